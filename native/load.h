// load.h - whether one thread is enough for both directions of a loop.
//
// Two threads wake each other and compete with the programs at the ends: where cores are short, one carries as much
// with fewer wake-ups. Help pays for a thread that moves packets in both directions, has a core to itself and needs
// all of it.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>

namespace weft {

class Load {
 public:
  static constexpr size_t kBusyItems = 24;  ///< of each direction, in a window
  static constexpr int64_t kWindowUs = 20'000;
  static constexpr int64_t kFullPercent = 90;

  /// Counts what the thread has just moved and says whether it needs help. `clock` gives the microseconds of a clock of
  /// clock_gettime(2) for the calling thread; it is not asked while a direction is quiet.
  template <typename Clock>
  bool add(size_t tun_items, size_t socket_items, Clock clock) {
    tun_items_ += tun_items;
    socket_items_ += socket_items;
    if (tun_items_ < kBusyItems || socket_items_ < kBusyItems) return false;
    const int64_t elapsed = clock(CLOCK_MONOTONIC) - start_us_;
    if (elapsed < kWindowUs) return false;
    const int64_t worked = clock(CLOCK_THREAD_CPUTIME_ID) - worked_us_;
    start_us_ += elapsed;
    worked_us_ += worked;
    tun_items_ = socket_items_ = 0;
    return worked * 100 >= elapsed * kFullPercent;
  }

 private:
  size_t tun_items_ = 0;
  size_t socket_items_ = 0;
  int64_t start_us_ = 0;   // of the window
  int64_t worked_us_ = 0;  // CPU time of the thread by then
};

}  // namespace weft
