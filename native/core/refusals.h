// refusals.h - how weft handles errors of messages to peers and of writes to the TUN.
//
// weft either drops the packets, or sends the merged packets again one by one. If the kernel accepts the single
// packets, weft merges later packets less or not at all. For the TUN, weft keeps this limit until the engine ends. For
// messages to peers, the limit applies only to one peer and for a limited time, because a route or device on the way to
// one peer says nothing about other peers, and may change.
#pragma once

#include <array>

#include "counters.h"
#include "features.h"
#include "peers.h"

namespace weft {

/// The maximum number of UDP segments in one superpacket, in both directions, before Linux 6.9; kUdpSegments is the
/// maximum since Linux 6.9 (UDP_MAX_SEGMENTS, include/linux/udp.h).
constexpr uint16_t kOldUdpSegments = 64;
constexpr uint16_t kUdpSegments = 128;

enum class Way : uint8_t { kPeers, kTun };

struct Attempt {
  Way way;
  uint32_t joined_by;  ///< the feature that merged the packets; 0 for a single packet
  size_t packets;
};

enum class Then : uint8_t { kDrop, kSingly, kGiveUp };
/// The effect of a rejected message or write on later packets: none; UDP packets are merged only up to kOldUdpSegments;
/// or the feature that merged the packets is turned off.
enum class Off : uint8_t {
  kNothing,
  kLongRuns,
  kFeature,
  kUnlessPath,  ///< the feature, unless the endpoint's path MTU explains the error
};

/// How long, in ms, weft remembers that the kernel rejected a merged message (UDP GSO) to an endpoint. So weft merges
/// datagrams again within a minute after the path to the endpoint was repaired.
constexpr int64_t kRememberedMs = 30'000;

struct Consequence {
  Then then;
  Counter counted;  ///< counted once if the packets are sent singly, and for each packet if they are dropped
  Off off = Off::kNothing;
};

const Consequence& consequence_of(const Attempt& attempt, int error);

/// Remembers which merged packets of one UDP sender or TUN writer the kernel rejected. Only one thread at a time uses a
/// Learnt. If the kernel rejects a feature completely, Learnt turns the feature off in the shared Features.
class Learnt {
 public:
  explicit Learnt(Features* features) : features_(features) {}

  /// The maximum number of UDP packets to merge in one write to the TUN.
  uint16_t udp_segments() const { return udp_segments_; }

  /// The maximum number of datagrams to merge in one message to `endpoint`. Calls `now_ms()` only if it has to know
  /// whether the record of an earlier rejection by the kernel has expired.
  template <typename Clock>
  uint16_t udp_segments_to(const Endpoint& endpoint, Clock now_ms) const {
    if (used_ == 0) return kUdpSegments;
    const size_t at = find(endpoint);
    if (at == used_ && others_until_ms_ == 0) return kUdpSegments;
    const int64_t now = now_ms();
    if (at < used_ && refused_[at].until_ms > now) return refused_[at].udp_segments;
    return others_until_ms_ > now ? 1 : kUdpSegments;
  }

  /// Remembers that the kernel rejected a write to the TUN, so that later writes merge fewer packets. `taken` is true
  /// if the kernel then accepted any of the single packets.
  void learn(const Consequence& consequence, const Attempt& attempt, bool taken);
  /// Remembers that the kernel rejected a message to `endpoint`, so that later messages merge fewer datagrams. `taken`
  /// is true if the kernel then accepted any single datagram. `bytes` is the length of the longest datagram with all
  /// headers.
  void learn(const Consequence& consequence, bool taken, const Endpoint& endpoint, size_t bytes, int64_t now_ms);

 private:
  /// The size of `refused_`, which records the endpoints to which the kernel rejected a merged message (UDP GSO). If
  /// the kernel rejects merged messages to more endpoints than that, the cause is probably a policy of this host, such
  /// as IPsec. For kRememberedMs weft then merges no datagrams to endpoints that are not in `refused_`, because the
  /// kernel copies a merged message before it rejects the message.
  static constexpr size_t kMaxRefused = 64;
  struct Refused {
    SocketAddress to;
    uint16_t udp_segments;
    int64_t until_ms;
  };
  /// Returns the index of `endpoint` in refused_; used_ if refused_ does not contain it.
  size_t find(const Endpoint& endpoint) const {
    size_t at = 0;
    while (at < used_ && !(refused_[at].to == endpoint.to())) at++;
    return at;
  }

  Features* features_;
  uint16_t udp_segments_ = kUdpSegments;
  size_t used_ = 0;
  int64_t others_until_ms_ = 0;
  std::array<Refused, kMaxRefused> refused_{};
};

}  // namespace weft
