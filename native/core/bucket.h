// bucket.h - how often something may be done: a burst at once, and then one in so long.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace weft {

/// The generic cell rate algorithm (ITU-T I.371): a bucket is the time at which it will be full again. Threads may
/// share one.
class Bucket {
 public:
  /// Returns true when it may be done once more. Times are of one unit, whichever.
  bool take(int64_t now, int64_t every, int64_t burst) {
    int64_t full = full_.load(std::memory_order_relaxed);
    int64_t from;
    do {
      from = std::max(full, now);
      if (from - now > (burst - 1) * every) return false;
    } while (!full_.compare_exchange_weak(full, from + every, std::memory_order_relaxed));
    return true;
  }

 private:
  std::atomic<int64_t> full_{0};
};

}  // namespace weft
