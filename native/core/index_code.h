// index_code.h - hides a session's number in the indices of WireGuard's messages.
//
// An index has 32 bits: 20 bits for the session of a peer, and 12 bits that distinguish the session's key pairs. A
// Feistel network over two halves of 16 bits permutes indices with a key, so that a peer cannot derive other peers'
// indices or the number of sessions from its own index. Four rounds of multiplications are cheap enough for each
// packet. This permutation is not encryption: an attacker who guesses an index only makes JavaScript examine the
// attacker's message as a possible handshake response.
//
// src/path/backends/wireguard/indices.ts implements the same permutation.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "bytes.h"

namespace weft {

class IndexCode {
 public:
  static constexpr size_t kKeyBytes = 32;

  /// Uses an all-zero key for the permutation, so that only `secret` hides the sessions' numbers.
  IndexCode(uint32_t secret = 0) : secret_(secret) {}
  /// Permutes the indices with `key`, a list of little-endian 32-bit words. `secret` is XORed into each permuted index.
  IndexCode(uint32_t secret, std::span<const uint8_t, kKeyBytes> key) : secret_(secret) {
    for (size_t at = 0; at < key_.size(); at++) key_[at] = load_le32(&key[4 * at]);
  }

  uint32_t encode(uint32_t value) const {
    uint32_t left = value >> 16, right = value & 0xffff;
    for (size_t round = 0; round < kRounds; round++) {
      const uint32_t next = left ^ mixed(right, round);
      left = right;
      right = next;
    }
    return (left << 16 | right) ^ secret_;
  }
  uint32_t decode(uint32_t index) const {
    uint32_t left = (index ^ secret_) >> 16, right = (index ^ secret_) & 0xffff;
    for (size_t round = kRounds; round-- > 0;) {
      const uint32_t before = right ^ mixed(left, round);
      right = left;
      left = before;
    }
    return left << 16 | right;
  }

 private:
  static constexpr size_t kRounds = 4;

  /// The round function: mixes a half of 16 bits with two words of the key.
  uint32_t mixed(uint32_t half, size_t round) const {
    uint32_t mixed = (half + 1) * key_[2 * round];
    mixed ^= mixed >> 15;
    return mixed * key_[2 * round + 1] >> 16;
  }

  uint32_t secret_;
  std::array<uint32_t, 2 * kRounds> key_{};
};

}  // namespace weft
