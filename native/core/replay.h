// replay.h - which counters of a key have come: a sliding window (RFC 6479), of the size that kernels and wireguard-go
// have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft {

/// Asked once a packet was authenticated, and never before: else anybody could move it.
class ReplayWindow {
 public:
  static constexpr uint64_t kBits = 8192;
  /// A counter that is so far behind the greatest is too old: a word is being cleared while it is entered.
  static constexpr uint64_t kWindow = kBits - 64;

  /// True when this counter has not come before, and is not too old to tell; it has come from now on.
  bool accept(uint64_t counter) {
    if (counter >= next_) {
      move_to(counter);
    } else if (next_ - counter > kWindow) {
      return false;
    }
    uint64_t& word = words_[counter / 64 % kWords];
    const uint64_t bit = uint64_t{1} << counter % 64;
    if (word & bit) return false;
    word |= bit;
    return true;
  }

 private:
  static constexpr uint64_t kWords = kBits / 64;

  void move_to(uint64_t counter) {
    // The words that no counter below next_ is in.
    const uint64_t first = (next_ + 63) / 64, last = counter / 64;
    for (uint64_t word = first; word <= last && word < first + kWords; word++) words_[word % kWords] = 0;
    next_ = counter + 1;
  }

  std::array<uint64_t, kWords> words_{};
  uint64_t next_ = 0;  // one more than the greatest counter that has come
};

}  // namespace weft
