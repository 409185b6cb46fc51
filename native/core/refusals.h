// refusals.h - the table of reactions when the kernel refuses a message to a peer or a write to the TUN.
//
// The immediate reaction is to drop the packets, or to hand them over again singly. If the kernel accepts single
// packets after it refused joined ones, later packets are joined less or not at all. For the TUN this holds for the
// rest of the run. For messages it holds only for one endpoint and for a limited time, because routes and devices on
// the way to one peer say nothing about other peers, and they change.
#pragma once

#include <array>

#include "counters.h"
#include "features.h"
#include "peers.h"

namespace weft {

/// The maximum number of UDP segments in one superpacket, in both directions: 64 before Linux 6.9, 128 since
/// (UDP_MAX_SEGMENTS, include/linux/udp.h).
constexpr uint16_t kOldUdpSegments = 64;
constexpr uint16_t kUdpSegments = 128;

enum class Way : uint8_t { kPeers, kTun };

struct Attempt {
  Way way;
  uint32_t joined_by;  ///< the feature that joined the packets; 0 for a single packet
  size_t packets;
};

enum class Then : uint8_t { kDrop, kSingly, kGiveUp };
/// The features that a refusal turns off.
enum class Off : uint8_t {
  kNothing,
  kLongRuns,
  kFeature,
  kUnlessPath,  ///< The feature, unless the path MTU of the endpoint explains the refusal.
};

/// How long a refusal is remembered for an endpoint. After a peer is repaired, packets to it are joined again within a
/// minute.
constexpr int64_t kRememberedMs = 30'000;

struct Consequence {
  Then then;
  Counter counted;  ///< Counted once if the packets are sent singly, and for each packet if they are dropped.
  Off off = Off::kNothing;
};

const Consequence& consequence_of(const Attempt& attempt, int error);

/// The state of one sender or writer after refusals. Used by one thread at a time. If a feature does not work at all,
/// the shared Features are updated.
class Learnt {
 public:
  explicit Learnt(Features* features) : features_(features) {}

  /// The maximum number of UDP packets in one write to the TUN.
  uint16_t udp_segments() const { return udp_segments_; }

  /// The maximum number of datagrams in one message to `endpoint`. `now_ms()` is called only if a refusal is
  /// remembered.
  template <typename Clock>
  uint16_t udp_segments_to(const Endpoint& endpoint, Clock now_ms) const {
    if (used_ == 0) return kUdpSegments;
    const size_t at = find(endpoint);
    if (at == used_ && others_until_ms_ == 0) return kUdpSegments;
    const int64_t now = now_ms();
    if (at < used_ && refused_[at].until_ms > now) return refused_[at].udp_segments;
    return others_until_ms_ > now ? 1 : kUdpSegments;
  }

  /// Learns from a refused write to the TUN. `taken` is true if the kernel accepted any packet singly.
  void learn(const Consequence& consequence, const Attempt& attempt, bool taken);
  /// Learns from a refused message to `endpoint`, whose longest datagram had `bytes` bytes with all headers.
  void learn(const Consequence& consequence, bool taken, const Endpoint& endpoint, size_t bytes, int64_t now_ms);

 private:
  /// The maximum number of endpoints that are remembered. If more endpoints refuse joined messages, the cause is a
  /// policy of this host such as IPsec. In that case no messages are joined to any endpoint without an entry, because
  /// each refused message is copied twice.
  static constexpr size_t kMaxRefused = 64;
  struct Refused {
    SocketAddress to;
    uint16_t udp_segments;
    int64_t until_ms;
  };
  /// Returns the index of `endpoint`, or used_ if it has no entry.
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
