// checksum.cc - sums bytes for Internet checksums: portable C++ with 32 bytes per iteration, and AVX2 on processors
// that have it.
//
// AVX2 is 1.4 times as fast as the portable code for 1,400 bytes, and 1.7 times for 60,000 bytes. When weft forwards a
// TCP stream, checksums take 12% of the CPU time without AVX2 and 8% with AVX2.
#include "checksum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft {

namespace {

inline void add_word(uint64_t& sum, uint64_t word) {
  sum += word;
  sum += sum < word;
}

/// Sums `size` bytes without vector instructions, on any processor.
uint64_t add_words(uint64_t sum, const uint8_t* bytes, size_t size) {
  uint64_t a = sum, b = 0, c = 0, d = 0;
  for (; size >= 32; size -= 32, bytes += 32) {
    add_word(a, load<uint64_t>(bytes));
    add_word(b, load<uint64_t>(bytes + 8));
    add_word(c, load<uint64_t>(bytes + 16));
    add_word(d, load<uint64_t>(bytes + 24));
  }
  add_word(a, b);
  add_word(c, d);
  add_word(a, c);
  for (; size >= 8; size -= 8, bytes += 8) add_word(a, load<uint64_t>(bytes));
  if (size > 0) {
    uint64_t tail = 0;  // The odd rest is padded with zeros (RFC 1071 section 1).
    std::memcpy(&tail, bytes, size);
    add_word(a, tail);
  }
  // Folds the sum to 33 bits, so that callers can add a few 16-bit words without an overflow.
  return (a & 0xffffffff) + (a >> 32);
}

#if defined(__x86_64__)
/// The minimum length in bytes for which add_vectors() is used. For shorter inputs the set-up of AVX2 costs more than
/// AVX2 saves.
constexpr size_t kWorthVectors = 128;

const bool kHasAvx2 = __builtin_cpu_supports("avx2");

/// Sums with AVX2. Adds 32-bit halves of words in 64-bit elements, so that no carry is lost in up to 2^32 iterations.
__attribute__((target("avx2"))) uint64_t add_vectors(uint64_t sum, const uint8_t* bytes, size_t size) {
  const __m256i low_half = _mm256_set1_epi64x(0xffffffff);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (; size >= 64; size -= 64, bytes += 64) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32));
    a = _mm256_add_epi64(a, _mm256_and_si256(first, low_half));
    b = _mm256_add_epi64(b, _mm256_srli_epi64(first, 32));
    c = _mm256_add_epi64(c, _mm256_and_si256(second, low_half));
    d = _mm256_add_epi64(d, _mm256_srli_epi64(second, 32));
  }
  alignas(32) uint64_t lanes[4];
  const __m256i all = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), all);
  _mm256_zeroupper();
  for (const uint64_t lane : lanes) add_word(sum, lane);
  return add_words(sum, bytes, size);
}
#endif

}  // namespace

uint64_t checksum_add(uint64_t sum, const uint8_t* bytes, size_t size) {
#if defined(__x86_64__)
  if (size >= kWorthVectors && kHasAvx2) return add_vectors(sum, bytes, size);
#endif
  return add_words(sum, bytes, size);
}

}  // namespace weft
