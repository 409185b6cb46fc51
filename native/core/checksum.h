// checksum.h - the Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//
// Sums are in memory order: words are added and the folded result is stored without swapping bytes, on little-endian
// and on big-endian processors (RFC 1071 section 2 B). Only the length and the protocol number of a pseudo-header need
// swapping.
#pragma once

#include "bytes.h"

namespace weft {

/// Adds `size` bytes to a running sum and returns the new sum. Only the last call for a sum may have an odd `size`.
uint64_t checksum_add(uint64_t sum, const uint8_t* bytes, size_t size);

/// Folds a running sum to the 16 bits of a checksum field in memory order. The caller must still complement the result.
inline uint16_t checksum_fold(uint64_t sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

/// Returns the sum of a TCP or UDP pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1): source and destination
/// address, the protocol, and the length of header and payload. The length is at most 65535, because weft drops
/// jumbograms.
inline uint64_t pseudo_header_sum(const uint8_t* addresses, size_t addresses_size, uint8_t protocol, size_t length) {
  return checksum_add(0, addresses, addresses_size) + to_be16(protocol) + to_be16(static_cast<uint16_t>(length));
}

/// Returns the checksum of an IPv4 header of `size` bytes, in memory order. The checksum field itself counts as zero.
inline uint16_t ipv4_header_checksum(const uint8_t* header, size_t size) {
  uint64_t sum = checksum_add(0, header, 10);
  return static_cast<uint16_t>(~checksum_fold(checksum_add(sum, header + 12, size - 12)));
}

/// True if an IPv4 header of `size` bytes has a correct checksum. The header must not be all zero. The one's complement
/// sum is 0xffff exactly if the plain sum is a multiple of 0xffff, which the compiler tests with one multiplication.
inline bool is_ipv4_header_right(const uint8_t* header, size_t size) {
  uint64_t sum = uint64_t{load<uint32_t>(header)} + load<uint32_t>(header + 4) + load<uint32_t>(header + 8) +
                 load<uint32_t>(header + 12) + load<uint32_t>(header + 16);
  if (size > 20) sum = checksum_add(sum, header + 20, size - 20);
  return sum % 0xffff == 0;
}

/// Decrements the TTL, which must not be 0, and updates the header checksum (RFC 1624 equation 3): HC' = ~(~HC + ~m +
/// m').
inline void decrement_ipv4_ttl(uint8_t* header) {
  uint32_t sum = static_cast<uint16_t>(~load<uint16_t>(header + 10));
  sum += static_cast<uint16_t>(~load<uint16_t>(header + 8));
  header[8]--;
  sum += load<uint16_t>(header + 8);
  store(header + 10, static_cast<uint16_t>(~checksum_fold(sum)));
}

}  // namespace weft
