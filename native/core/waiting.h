// waiting.h - how a loop thread waits for packets: it may poll for a short time before it sleeps.
//
// Waking a thread costs more than forwarding one packet, and a request with its answer wakes two threads on each host.
// A polling thread calls sched_yield() between its checks, so the core goes to the program that sends the next packet,
// and the thread is ready when the packet comes. In two cases polling is wrong, and the thread recognises both by the
// clock:
// - The last packets were far apart, so the next packet is not worth polling for. An idle host uses no CPU time, and a
//   thread wastes at most 1 / kNearWindows of a core. While packets arrive at shorter intervals than the polling time,
//   the thread does not sleep at all, and uses its core as far as no other program needs it. Packets that the filter
//   drops do not count, so that unknown senders cannot make a thread poll.
// - Other programs need the core. A thread that yields to them waits for milliseconds, whereas a sleeping thread would
//   preempt them when it wakes. After a yield that took too long, the thread does not poll for a while, and each
//   further yield that takes too long doubles that time.
//
// KVM's halt polling uses only the first rule (Documentation/virt/kvm/halt-polling.rst), because KVM does not share the
// core.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft {

class Waiting {
 public:
  /// If sched_yield() takes longer than kLateUs microseconds, other programs need the core. A program that only answers
  /// a request yields sooner; a busy program keeps the core for a time slice, which is longer.
  static constexpr int64_t kLateUs = 300;
  static constexpr int64_t kShortestRestUs = 10'000;
  static constexpr int64_t kLongestRestUs = 1'000'000;
  /// The longest sleep for which polling would have been worthwhile, as a multiple of the polling time.
  static constexpr int64_t kNearWindows = 25;
  /// The number of consecutive quick returns of sched_yield() after which the time without polling is reset to its
  /// minimum.
  static constexpr int kGoodTurns = 256;

  /// `window_us` is how long the thread polls before it sleeps, in microseconds; 0 means that the thread always sleeps
  /// immediately.
  explicit Waiting(int64_t window_us) : window_us_(window_us) {}

  /// Waits until `look(milliseconds)` returns a value other than 0, and returns this value. look() must wait for
  /// packets for at most the given time; -1 means forever. `clock` must have `now_us()`, a monotonic clock, and
  /// `give_way()`, which yields the core.
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

  /// The caller must call found_worth() if it forwarded any of the packets that the last wait() found.
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
  bool is_new_ = true;    // true until the next wait() sets start_us_
  int64_t start_us_ = 0;  // when the current polling time began
  bool asleep_ = false;   // true if the thread has slept since found_worth()
  int64_t asleep_since_us_ = 0, woke_us_ = 0;
  int64_t rest_us_ = 0;
  int64_t rest_until_us_ = 0;
  int good_turns_ = 0;
};

}  // namespace weft
