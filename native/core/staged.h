// staged.h - packets that wait for the keys of a WireGuard session, and their shares of the memory limit.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft {

/// A share of the memory limit for waiting packets. The destructor returns the share.
class StagedBytes {
 public:
  StagedBytes() = default;
  /// Takes `bytes` of a limit of `most` bytes, of which `taken` are in use. Returns false if fewer than `bytes` are
  /// left.
  static bool take(std::atomic<size_t>& taken, size_t most, size_t bytes, StagedBytes& share) {
    if (taken.fetch_add(bytes, std::memory_order_relaxed) + bytes > most) {
      taken.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    share = StagedBytes(taken, bytes);
    return true;
  }
  StagedBytes(StagedBytes&& other) noexcept
      : taken_(std::exchange(other.taken_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  StagedBytes& operator=(StagedBytes&& other) noexcept {
    std::swap(taken_, other.taken_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~StagedBytes() {
    if (taken_) taken_->fetch_sub(bytes_, std::memory_order_relaxed);
  }

 private:
  StagedBytes(std::atomic<size_t>& taken, size_t bytes) : taken_(&taken), bytes_(bytes) {}
  std::atomic<size_t>* taken_ = nullptr;
  size_t bytes_ = 0;
};

/// A packet that waits for keys, with space before the packet for the header and after it for the authentication tag.
struct Staged {
  std::vector<uint8_t> datagram;
  int64_t since_ms;
  uint32_t slot;
  StagedBytes share = {};  ///< the packet's share of the memory limit for waiting packets
};

}  // namespace weft
