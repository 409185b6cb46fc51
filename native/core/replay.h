// replay.h - remembers which packet counters of a key have arrived, so that a replayed packet is dropped: a sliding
// window (RFC 6479).
//
// The window is as wide as all queues between two hosts can hold (docs/decisions/replay-window.md). All loop threads of
// a sender share one counter, but each thread has queues of its own: in its socket, in the network, at the receiver.
// While a packet waits in the queue of one thread, the other threads use many later counters.
//
// The window's memory grows with the greatest counter that has arrived: 128 bytes for a key that carried 1,000 packets,
// 128 KiB for a key that carried a million.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "secret_bytes.h"

namespace weft {

/// The replay window of one key. accept() must be called only for authenticated packets; otherwise any host could move
/// the window.
class ReplayWindow {
 public:
  static constexpr uint64_t kBits = 1 << 20;
  /// accept() always accepts a new counter that is at most kWindow behind the greatest counter.
  static constexpr uint64_t kWindow = kBits - 64;

  /// Marks a counter as arrived. Returns false if the counter arrived earlier, or if it is older than the window, so
  /// that it may have arrived earlier.
  bool accept(uint64_t counter) {
    if (counter >= next_) {
      move_to(counter);
    } else if (counter / 64 + size_ <= (next_ - 1) / 64) {
      return false;  // newer counters use the word of this old counter
    }
    uint64_t& word = words()[counter / 64 % size_];
    const uint64_t bit = uint64_t{1} << counter % 64;
    if (word & bit) return false;
    word |= bit;
    return true;
  }

  /// The number of bytes that the window has allocated in addition to the object itself.
  size_t grown_bytes() const { return more_ ? size_ * sizeof(uint64_t) : 0; }

  /// Saves the window. Consecutive words in which all bits are set are saved as their number only, because nearly all
  /// counters of a busy key have arrived. Otherwise a host with a thousand busy peers would copy 256 MiB during the
  /// hand-over, while no process forwards.
  void save(SecretWriter& out) const {
    out.put(next_);
    out.put(size_);
    const uint64_t* const all = more_ ? more_.get() : first_.data();
    const uint64_t* const end = all + used_words();
    for (const uint64_t* at = all; at < end;) {
      const uint64_t* const other = std::find_if(at, end, [](uint64_t word) { return word != kFull; });
      const uint64_t* const next = std::find(other, end, kFull);
      out.put(static_cast<uint64_t>(other - at));
      out.put(static_cast<uint64_t>(next - other));
      out.put_bytes({reinterpret_cast<const uint8_t*>(other), static_cast<size_t>(next - other) * sizeof(uint64_t)});
      at = next;
    }
  }
  /// Loads a window that save() wrote; this window must be new. Marks `in` as bad if save() cannot have written its
  /// bytes.
  void load(SecretReader& in) {
    const auto next = in.get<uint64_t>(), size = in.get<uint64_t>();
    if (size < kFirstWords || size > kMostWords || !std::has_single_bit(size)) return in.refuse();
    if (size > size_) grow(size);
    if (size != size_) return in.refuse();
    next_ = next;
    for (uint64_t at = 0; at < used_words();) {
      const uint64_t left = used_words() - at, full = in.get<uint64_t>(), other = in.get<uint64_t>();
      if (full > left || other > left - full || full + other == 0) return in.refuse();
      std::fill_n(words() + at, full, kFull);
      const std::span<const uint8_t> bytes = in.get_bytes(other * sizeof(uint64_t));
      if (bytes.size() != other * sizeof(uint64_t)) return in.refuse();
      if (other > 0) std::memcpy(words() + at + full, bytes.data(), bytes.size());
      at += full + other;
    }
  }

 private:
  static constexpr uint64_t kFirstWords = 16, kMostWords = kBits / 64, kFull = ~uint64_t{0};

  /// The number of words of the window that may record an arrived counter: all words, once the counters have filled the
  /// window.
  uint64_t used_words() const { return next_ / 64 < size_ ? (next_ + 63) / 64 : size_; }

  uint64_t* words() { return more_ ? more_.get() : first_.data(); }

  void move_to(uint64_t counter) {
    const uint64_t last = counter / 64;
    if (last >= size_ && size_ < kMostWords) grow(last >= kMostWords ? kMostWords : std::bit_ceil(last + 1));
    // Clear the words between the previous greatest counter and this counter, which still have bits of old counters.
    const uint64_t first = (next_ + 63) / 64;
    for (uint64_t word = first; word <= last && word < first + size_; word++) words()[word % size_] = 0;
    next_ = counter + 1;
  }

  /// Moves the window to more memory. If no memory is available, the window keeps its width: it may reject late
  /// packets, but never accepts a packet twice, even if it gets memory later.
  void grow(uint64_t size) {
    std::unique_ptr<uint64_t[]> more(new (std::nothrow) uint64_t[size]());
    if (!more) return;
    const uint64_t end = (next_ + 63) / 64, begin = end > size_ ? end - size_ : 0;
    for (uint64_t word = begin; word < end; word++) more[word % size] = words()[word % size_];
    // The smaller window did not store which counters before its beginning arrived, so mark all of these counters as
    // arrived.
    for (uint64_t word = end > size ? end - size : 0; word < begin; word++) more[word % size] = kFull;
    more_ = std::move(more);
    size_ = size;
  }

  std::array<uint64_t, kFirstWords> first_{};  // the window until more_ is allocated
  std::unique_ptr<uint64_t[]> more_;
  uint64_t size_ = kFirstWords;  // in words; a power of two
  uint64_t next_ = 0;            // the greatest counter that has arrived, plus one
};

}  // namespace weft
