// waiting.h - how a thread waits for packets: whether it gives way for a moment and looks again before it sleeps.
//
// A wake-up costs more than what is done with a lone packet, and a conversation (a request, its answer, the next) has
// two on each host. A thread that gives way instead leaves its core to whoever sends the next packet, and is there when
// it comes. Two things speak against it, and both are told by the clock alone:
//
//   - the last packets were far apart: the next is not worth waiting for. So it costs nothing while a host is idle, and
//     what is spent in vain is at most 1 / kNearWindows of a core. While packets come within the window it does not
//     sleep at all: that core is then the thread's, as far as nobody else wants it.
//     What is refused is nobody's conversation: it neither makes nor keeps a thread look again, so that whoever may not
//     send buys nothing by it.
//   - others want the core: a turn that is given away is theirs for milliseconds, where a thread that sleeps would be
//     woken to preempt them. One such turn, and it sleeps at once for a while; again, for twice as long.
//
// KVM's halt polling decides by the first alone (Documentation/virt/kvm/halt-polling.rst); there the core is one's own.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft {

class Waiting {
 public:
  /// Longer than a turn takes of those who answer a packet, shorter than a time slice.
  static constexpr int64_t kLateUs = 300;
  static constexpr int64_t kShortestRestUs = 10'000;
  static constexpr int64_t kLongestRestUs = 1'000'000;
  /// The longest sleep, in windows, in which it would have been right to look again.
  static constexpr int64_t kNearWindows = 25;
  /// After so many turns that were not late all begins anew.
  static constexpr int kGoodTurns = 256;

  /// The window is the time for which it looks again; 0: it always sleeps at once.
  explicit Waiting(int64_t window_us) : window_us_(window_us) {}

  /// Waits until `look(milliseconds)`, which waits for as long (-1: for ever), finds anything, and returns what that
  /// returned. `clock` has `now_us()`, of a clock that only goes on, and `give_way()`.
  template <typename Look, typename Clock>
  int wait(const Look& look, const Clock& clock) {
    if (window_us_ == 0) return look(-1);
    if (const int found = look(0)) return found;
    int64_t now_us = clock.now_us();
    if (is_new_) start_us_ = now_us;
    is_new_ = false;
    while (near_ && now_us >= rest_until_us_ && now_us - start_us_ < window_us_) {
      const int64_t before_us = now_us;
      clock.give_way();
      const int found = look(0);
      now_us = clock.now_us();
      took_turn(now_us - before_us, now_us);
      if (found) return found;
    }
    if (!asleep_) asleep_since_us_ = now_us;
    asleep_ = true;
    const int found = look(-1);
    woke_us_ = clock.now_us();
    return found;
  }

  /// The packets found last were worth being looked for: some of them went on.
  void found_worth() {
    if (asleep_) near_ = woke_us_ - asleep_since_us_ <= kNearWindows * window_us_;
    asleep_ = false;
    is_new_ = true;
  }

 private:
  void took_turn(int64_t us, int64_t now_us) {
    if (us > kLateUs) {
      rest_us_ = std::clamp(2 * rest_us_, kShortestRestUs, kLongestRestUs);
      rest_until_us_ = now_us + rest_us_;
      good_turns_ = 0;
    } else if (++good_turns_ >= kGoodTurns) {
      rest_us_ = 0;
    }
  }

  int64_t window_us_;
  bool near_ = true;
  bool is_new_ = true;    // it has not been looked again for since
  int64_t start_us_ = 0;  // when that began
  bool asleep_ = false;   // since what was found last, but for what was not worth it
  int64_t asleep_since_us_ = 0, woke_us_ = 0;
  int64_t rest_us_ = 0;
  int64_t rest_until_us_ = 0;
  int good_turns_ = 0;
};

}  // namespace weft
