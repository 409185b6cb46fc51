// clock.h - the clocks that the engine uses.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

namespace weft {

inline int64_t microseconds_of(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1'000;
}

inline int64_t monotonic_us() { return microseconds_of(CLOCK_MONOTONIC); }

/// The wall clock, in microseconds since 1970.
inline int64_t day_us() { return microseconds_of(CLOCK_REALTIME); }

inline int64_t now_ms() { return monotonic_us() / 1'000; }

/// The clock for the expiry of WireGuard keys, in microseconds. It continues while the host is suspended, like the
/// clock of the kernel's WireGuard (drivers/net/wireguard/timers.h, ktime_get_coarse_boottime_ns), because a suspension
/// must not make a key pair live longer than its three minutes.
inline int64_t session_us() { return microseconds_of(CLOCK_BOOTTIME); }
inline int64_t session_ms() { return session_us() / 1'000; }

struct ThreadClock {
  int64_t now_us() const { return monotonic_us(); }
  void give_way() const { sched_yield(); }
};

}  // namespace weft
