// checksum.cc - the sum itself: 32 bytes a turn, with end-around carry on 64-bit words.
//
// Plain C++ on purpose: compilers turn it into add-with-carry, every architecture has it, and in the whole data path
// checksums took 1.6% of the samples, where vector instructions changed nothing that could be measured.
#include "checksum.h"

namespace weft {

namespace {

inline void add_word(uint64_t& sum, uint64_t word) {
  sum += word;
  sum += sum < word;
}

}  // namespace

uint64_t checksum_add(uint64_t sum, const uint8_t* bytes, size_t size) {
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
    uint64_t tail = 0;  // zero padding, RFC 1071 section 1
    std::memcpy(&tail, bytes, size);
    add_word(a, tail);
  }
  // Leave room for the few 16-bit words that callers add without carry.
  return (a & 0xffffffff) + (a >> 32);
}

}  // namespace weft
