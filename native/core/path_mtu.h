// path_mtu.h - the MTU of the path to a peer, as the kernel reported it when weft last queried it. docs/path-mtu.md
// describes its use.
//
// The state is one word, which any thread may read and write. If two threads write simultaneously, one value is lost,
// and the kernel is queried again later.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

class PathMtu {
 public:
  /// The shortest interval in ms between two queries of the kernel; a query costs two system calls.
  static constexpr int64_t kAskEveryMs = 500;
  /// A packet of this size in bytes always fits: with the outer headers its size does not exceed the smallest path MTU
  /// that Linux accepts (net.ipv4.route.min_pmtu, 552).
  static constexpr size_t kAlwaysFits = 500;

  /// The path MTU in bytes, including all headers; 0 if it is not known. For an IPv6 path the value is 20 bytes less
  /// than the real MTU, so that callers can subtract the length of IPv4 headers for both families.
  size_t bytes() const { return read() & kBytes; }
  /// True if a datagram of `datagram_bytes` bytes, headers included, is not longer than the path MTU, or if the path
  /// MTU is not known.
  bool fits(size_t datagram_bytes) const { return bytes() == 0 || datagram_bytes <= bytes(); }
  bool is_due(int64_t now_ms) const {
    const uint64_t word = read();
    return word == 0 || (word & kAtOnce) || now_ms - asked_ms(word) >= kAskEveryMs;
  }
  void learn(size_t bytes, int64_t now_ms) {
    write((bytes < kBytes ? bytes : kBytes) | (read() & kAtOnce ? kDoubted : 0), now_ms);
  }
  /// True if the path MTU explains why the kernel rejected a datagram of `bytes` bytes: the datagram exceeds the known
  /// MTU, or the MTU is too old and will be queried again immediately. False if a query has just confirmed that the
  /// datagram fits.
  bool explains(size_t bytes, int64_t now_ms) {
    const uint64_t word = read();
    const size_t known = word & kBytes;
    if (known == 0) return false;
    if (bytes > known || (word & kAtOnce)) return true;
    if ((word & kDoubted) && now_ms - asked_ms(word) < kAskEveryMs) return false;
    write(known | kAtOnce, now_ms);
    return true;
  }
  /// Copies the state of `other`. If another thread updates `other` at the same time, the copy is outdated until the
  /// next query.
  void take_over(const PathMtu& other) { __atomic_store_n(&word_, other.read(), __ATOMIC_RELAXED); }

 private:
  static constexpr uint64_t kBytes = 0xffff, kAtOnce = 1 << 16, kDoubted = 1 << 17;
  static constexpr int kTimeShift = 18;

  uint64_t read() const { return __atomic_load_n(&word_, __ATOMIC_RELAXED); }
  void write(uint64_t rest, int64_t now_ms) {
    __atomic_store_n(&word_, static_cast<uint64_t>(now_ms) << kTimeShift | rest, __ATOMIC_RELAXED);
  }
  static int64_t asked_ms(uint64_t word) { return static_cast<int64_t>(word >> kTimeShift); }

  uint64_t word_ = 0;
};

}  // namespace weft
