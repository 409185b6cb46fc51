// clock.h - the clocks of clock_gettime(2) that the threads ask.
#pragma once

#include <time.h>

#include <cstdint>

namespace weft {

inline int64_t clock_us(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000 + now.tv_nsec / 1'000;
}

inline int64_t now_ms() { return clock_us(CLOCK_MONOTONIC) / 1'000; }

/// What core/waiting.h asks, of the calling thread.
struct ThreadClock {
  int64_t now_us() const { return clock_us(CLOCK_MONOTONIC); }
  int64_t worked_us() const { return clock_us(CLOCK_THREAD_CPUTIME_ID); }
};

}  // namespace weft
