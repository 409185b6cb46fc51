// refusals.h - what follows when the kernel refuses a message or a write: by one table for both directions.
//
// It follows at once that what was refused is dropped, or handed over again singly. And when it is known whether the
// singles were taken: that packets are joined no more in that way, for whom, and for how long.
#pragma once

#include <array>
#include <limits>

#include "counters.h"
#include "features.h"
#include "peers.h"

namespace weft {

/// Linux before 6.9 takes so many segments of UDP in one superpacket (UDP_MAX_SEGMENTS, include/linux/udp.h), in both
/// directions; 128 since.
constexpr uint16_t kOldUdpSegments = 64;
constexpr uint16_t kUdpSegments = 128;

enum class Way : uint8_t { kPeers, kTun };

/// What the kernel was given.
struct Attempt {
  Way way;
  uint32_t joined_by;  ///< the feature that made several packets one; 0 for one packet
  size_t packets;
};

enum class Then : uint8_t { kDrop, kSingly, kGiveUp };
/// What is not tried again.
enum class Off : uint8_t { kNothing, kLongRuns, kFeature };
enum class Whom : uint8_t { kEndpoint, kAll };
/// What it takes to conclude that.
enum class When : uint8_t { kAlways, kSinglesTaken };

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

struct Consequence {
  Then then;
  Counter counted;  ///< once when it is sent again singly, for each packet when it is dropped
  Off off = Off::kNothing;
  Whom whom = Whom::kAll;
  When when = When::kAlways;
  int64_t for_ms = kForever;
};

/// What follows when `attempt` was refused with `error`.
const Consequence& consequence_of(const Attempt& attempt, int error);

/// What one sender or writer has learnt from refusals. Used by one thread at a time; what holds for all endpoints is
/// told to the features, which all threads share.
class Learnt {
 public:
  explicit Learnt(Features* features) : features_(features) {}

  uint16_t udp_segments() const { return udp_segments_; }

  /// Whether packets for `endpoint` may be joined. `now_ms()` is asked only where there is something to remember.
  template <typename Clock>
  bool may_join(const Endpoint& endpoint, Clock now_ms) const {
    for (size_t i = 0; i < used_; i++) {
      if (same(refused_[i].address, endpoint)) return refused_[i].until_ms <= now_ms();
    }
    return true;
  }

  /// Remembers what follows from a refusal, `taken` when any of the singles was not refused. `endpoint` is null where
  /// there is none.
  void learn(const Consequence& consequence, const Attempt& attempt, bool taken, const Endpoint* endpoint,
             int64_t now_ms);

 private:
  /// Endpoints to which joining does not work are few; when they are not, it goes off altogether.
  static constexpr size_t kMaxRefused = 64;
  struct Refused {
    sockaddr_in6 address;
    int64_t until_ms;
  };
  static bool same(const sockaddr_in6& address, const Endpoint& endpoint) {
    return std::memcmp(&address, &endpoint.address, endpoint.address_bytes) == 0;
  }

  Features* features_;
  uint16_t udp_segments_ = kUdpSegments;
  size_t used_ = 0;
  std::array<Refused, kMaxRefused> refused_{};
};

}  // namespace weft
