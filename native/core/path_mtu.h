// path_mtu.h - what is known of the MTU of the path to a peer: what the kernel said when it was last asked.
//
// docs/path-mtu.md has what is decided by it. One word, which any thread may read and write; one that is lost to
// another thread's is asked for again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

class PathMtu {
 public:
  /// The kernel is asked this often at most: its answer costs two system calls.
  static constexpr int64_t kAskEveryMs = 500;
  /// A packet of this size always fits: with what stands before it, it is no longer than the least that Linux takes
  /// (net.ipv4.route.min_pmtu, 552).
  static constexpr size_t kAlwaysFits = 500;

  /// The longest datagram with all its headers, in bytes, as IPv4 counts them; 0: not known.
  size_t bytes() const { return read() & kBytes; }
  bool is_due(int64_t now_ms) const {
    const uint64_t word = read();
    return word == 0 || (word & kAtOnce) || now_ms - asked_ms(word) >= kAskEveryMs;
  }
  void learn(size_t bytes, int64_t now_ms) {
    write((bytes < kBytes ? bytes : kBytes) | (read() & kAtOnce ? kDoubted : 0), now_ms);
  }
  /// True when the path explains that the kernel refused a datagram of `bytes`: it is known by now that it does not
  /// fit, or is asked again at once. False when the answer to that is that it fits.
  bool explains(size_t bytes, int64_t now_ms) {
    const uint64_t word = read();
    const size_t known = word & kBytes;
    if (known == 0) return false;
    if (bytes > known || (word & kAtOnce)) return true;
    if ((word & kDoubted) && now_ms - asked_ms(word) < kAskEveryMs) return false;
    write(known | kAtOnce, now_ms);
    return true;
  }
  /// Takes over what another one knows of the path; what a thread learns there meanwhile is asked for again here.
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
