// waiting.h - how a thread waits when it has moved a batch, and which of a loop's two threads waits at the TUN.
//
// Two threads wake each other and compete with the programs at the ends: where cores are short, one carries as much
// with fewer wake-ups. Help pays for a thread that moves packets in both directions, has a core to itself and needs
// all of it. What a thread does in each case is loop.cc's.
//
// A clock tells `now_us()`, the microseconds of a clock that only goes on, and `worked_us()`, the CPU time of the
// calling thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

enum class Next : uint8_t {
  kSleep,  ///< until something comes, or for as long as its own waiting says
  kHandTunOver,
  kGiveTunBack,
};

/// Of the loop's own thread, which sleeps until something comes.
class LoopWaiting {
 public:
  static constexpr int kSleepMs = -1;
  static constexpr size_t kBusyItems = 24;  ///< of each direction, in a window
  static constexpr int64_t kWindowUs = 20'000;
  static constexpr int64_t kFullPercent = 90;

  /// After the thread has moved so much in both directions. The clock is not asked while a direction is quiet.
  template <typename Clock>
  Next after(size_t tun_items, size_t socket_items, const Clock& clock) {
    tun_items_ += tun_items;
    socket_items_ += socket_items;
    if (tun_items_ < kBusyItems || socket_items_ < kBusyItems) return Next::kSleep;
    const int64_t elapsed = clock.now_us() - start_us_;
    if (elapsed < kWindowUs) return Next::kSleep;
    const int64_t worked = clock.worked_us() - worked_us_;
    start_us_ += elapsed;
    worked_us_ += worked;
    tun_items_ = socket_items_ = 0;
    return worked * 100 >= elapsed * kFullPercent ? Next::kHandTunOver : Next::kSleep;
  }

 private:
  size_t tun_items_ = 0;
  size_t socket_items_ = 0;
  int64_t start_us_ = 0;   // of the window
  int64_t worked_us_ = 0;  // CPU time of the thread by then
};

/// Of the thread that has taken over the TUN, from then on until it gives it back.
class HelperWaiting {
 public:
  /// Bounds both the return of the TUN and how long ending the thread takes.
  static constexpr int kSleepMs = 20;
  static constexpr int64_t kQuietUs = 20'000;
  static constexpr size_t kQuietItems = 8;  ///< fewer than this in that time count as quiet

  template <typename Clock>
  explicit HelperWaiting(const Clock& clock) : since_us_(clock.now_us()) {}

  /// After the thread has slept, and moved so much if anything came.
  template <typename Clock>
  Next after(size_t items, const Clock& clock) {
    items_ += items;
    const int64_t now = clock.now_us();
    if (items_ >= kQuietItems) {
      items_ = 0;
      since_us_ = now;
    }
    return now - since_us_ >= kQuietUs ? Next::kGiveTunBack : Next::kSleep;
  }

 private:
  size_t items_ = 0;
  int64_t since_us_;  // the last time that it was not quiet
};

}  // namespace weft
