// refusals.h - what follows when the kernel refuses a message or a write: by one table for both directions.
//
// It follows at once that what was refused is dropped, or handed over again singly. And when the singles were taken, so
// that it was the joining that the kernel did not want: that packets are joined no more, or fewer of them. What is
// learnt from a write holds for the TUN and for good; from a message for its endpoint alone and for a while, since
// routes and devices on the way to one peer say nothing about another, and change.
#pragma once

#include <array>

#include "counters.h"
#include "features.h"
#include "peers.h"

namespace weft {

/// Linux before 6.9 takes so many segments of UDP in one superpacket (UDP_MAX_SEGMENTS, include/linux/udp.h), in both
/// directions; 128 since.
constexpr uint16_t kOldUdpSegments = 64;
constexpr uint16_t kUdpSegments = 128;

enum class Way : uint8_t { kPeers, kTun };

/// The message that the kernel was given.
struct Attempt {
  Way way;
  uint32_t joined_by;  ///< the feature that made several packets one; 0 for one packet
  size_t packets;
};

enum class Then : uint8_t { kDrop, kSingly, kGiveUp };
/// The features that a refusal turns off.
enum class Off : uint8_t {
  kNothing,
  kLongRuns,
  kFeature,
  kUnlessPath,  ///< the feature, where the path to the endpoint does not explain it
};

/// A refusal is remembered for so long for an endpoint: a peer that is mended is served in full again within a
/// minute.
constexpr int64_t kRememberedMs = 30'000;

struct Consequence {
  Then then;
  Counter counted;  ///< once when it is sent again singly, for each packet when it is dropped
  Off off = Off::kNothing;
};

/// The consequence when `attempt` was refused with `error`.
const Consequence& consequence_of(const Attempt& attempt, int error);

/// The lessons of one sender or writer from refusals. Used by one thread at a time; a feature that does not work is
/// told to the features, which all threads share.
class Learnt {
 public:
  explicit Learnt(Features* features) : features_(features) {}

  /// The number of UDP packets that may be joined for the TUN.
  uint16_t udp_segments() const { return udp_segments_; }

  /// The number of datagrams for `endpoint` that may be joined. `now_ms()` is asked only when there is something to
  /// remember.
  template <typename Clock>
  uint16_t udp_segments_to(const Endpoint& endpoint, Clock now_ms) const {
    if (used_ == 0) return kUdpSegments;
    const size_t at = find(endpoint);
    if (at == used_ && others_until_ms_ == 0) return kUdpSegments;
    const int64_t now = now_ms();
    if (at < used_ && refused_[at].until_ms > now) return refused_[at].udp_segments;
    return others_until_ms_ > now ? 1 : kUdpSegments;
  }

  /// Remembers what follows from a refused write, `taken` when any of the singles was not refused.
  void learn(const Consequence& consequence, const Attempt& attempt, bool taken);
  /// The same of a message to `endpoint`, whose longest datagram had so many bytes with all its headers.
  void learn(const Consequence& consequence, bool taken, const Endpoint& endpoint, size_t bytes, int64_t now_ms);

 private:
  /// Endpoints to which joining does not work are few. When they are not, a policy of this host's is why (IPsec), and
  /// to those that have no place nothing is joined for as long: what is refused is copied twice each time.
  static constexpr size_t kMaxRefused = 64;
  struct Refused {
    SocketAddress to;
    uint16_t udp_segments;
    int64_t until_ms;
  };
  /// The place of `endpoint`; used_ when it has none.
  size_t find(const Endpoint& endpoint) const {
    size_t at = 0;
    while (at < used_ && !(refused_[at].to == endpoint.to)) at++;
    return at;
  }

  Features* features_;
  uint16_t udp_segments_ = kUdpSegments;
  size_t used_ = 0;
  int64_t others_until_ms_ = 0;
  std::array<Refused, kMaxRefused> refused_{};
};

}  // namespace weft
