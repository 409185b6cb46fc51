// bucket.h - a token bucket: it allows a burst, then one action per interval.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace weft {

/// A token bucket by the generic cell rate algorithm (ITU-T I.371). The state is only the time at which the bucket will
/// be full of tokens again. Several threads may use one bucket.
class Bucket {
 public:
  /// Takes one token; returns false if the bucket is empty. `burst` is the bucket's size, and one token is added per
  /// `every`. `now` and `every` have the same unit, which the caller chooses.
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
