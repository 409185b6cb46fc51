// precedence.h - whether a thread goes before other programs: not while nearly all that comes is refused.
//
// A thread has its priority for the sake of packets that somebody waits for. Under a flood of those that are not let in
// it would go before the thread that renews the lease, for nobody's good. Whoever fills a lane with them does not keep
// this host from its other work, and the packets of others in that lane wait for their turn as they do anywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

class Precedence {
 public:
  /// It is looked at so often, at most.
  static constexpr int64_t kLookEveryUs = 100'000;
  /// A flood: so many are refused a second, and of so many packets one goes on at most.
  static constexpr int64_t kFloodPerSecond = 2'000;
  static constexpr int64_t kOneOf = 16;

  /// True while it goes before others.
  bool goes_first() const { return goes_first_; }

  /// Counts what came of a turn, and says whether goes_first() has changed. `now_us()` is asked only where something
  /// was refused, or may have changed.
  template <typename Clock>
  bool count(size_t carried, size_t refused, Clock now_us) {
    if (refused == 0 && begin_us_ == 0) return false;
    const int64_t now = now_us();
    if (begin_us_ == 0) begin_us_ = now;
    carried_ += static_cast<int64_t>(carried);
    refused_ += static_cast<int64_t>(refused);
    const int64_t us = now - begin_us_;
    if (us < kLookEveryUs) return false;
    const bool is_flood = refused_ * 1'000'000 >= kFloodPerSecond * us && refused_ >= (kOneOf - 1) * carried_;
    const bool changes = goes_first_ == is_flood;
    goes_first_ = !is_flood;
    begin_us_ = is_flood ? now : 0;
    carried_ = refused_ = 0;
    return changes;
  }

 private:
  bool goes_first_ = true;
  int64_t begin_us_ = 0;  // of what is counted; 0: nothing is
  int64_t carried_ = 0, refused_ = 0;
};

}  // namespace weft
