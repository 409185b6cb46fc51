// checksum.cc - the sum itself.
//
// 32-bit words are added into 64-bit lanes, so that no carry is lost and none has to be propagated (RFC 1071 section
// 2 A and C: any order, any width). The lanes are a vector of the compiler's: SSE2 on every x86-64, NEON on every
// arm64, plain registers elsewhere; where the loader can choose at start-up, an AVX2 build of the same lines too.
#include "checksum.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__)
#define WEFT_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define WEFT_CLONES
#endif

namespace weft {

namespace {

typedef uint64_t Lanes __attribute__((vector_size(32)));

/// Adds `blocks` times 64 bytes. 2^32 words fit a lane, far more than any packet has.
WEFT_CLONES uint64_t add_blocks(const uint8_t* bytes, size_t blocks) {
  const Lanes low = {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff};
  Lanes a = {}, b = {};
  for (; blocks > 0; blocks--, bytes += 64) {
    Lanes first, second;
    std::memcpy(&first, bytes, sizeof first);
    std::memcpy(&second, bytes + 32, sizeof second);
    a += (first & low) + (first >> 32);
    b += (second & low) + (second >> 32);
  }
  a += b;
  return a[0] + a[1] + a[2] + a[3];
}

inline void add_word(uint64_t& sum, uint64_t word) {
  sum += word;
  sum += sum < word;
}

}  // namespace

uint64_t checksum_add(uint64_t sum, const uint8_t* bytes, size_t size) {
  if (size >= 64) {
    add_word(sum, add_blocks(bytes, size / 64));
    bytes += size & ~size_t{63};
    size &= 63;
  }
  for (; size >= 8; size -= 8, bytes += 8) add_word(sum, load<uint64_t>(bytes));
  if (size > 0) {
    uint64_t tail = 0;  // zero padding, RFC 1071 section 1
    std::memcpy(&tail, bytes, size);
    add_word(sum, tail);
  }
  // Leave room for the few 16-bit words that callers add without carry.
  return (sum & 0xffffffff) + (sum >> 32);
}

}  // namespace weft
