// ecn.h - copies congestion marks (ECN, RFC 3168 section 5) between the outer and the inner header, as RFC 6040 section
// 4 requires, so that a mark that a router puts on the outer header reaches the receiver of the inner packet.
#pragma once

#include "packet.h"

namespace weft {

/// The two ECN bits, which are the lowest bits of the IPv4 TOS and of the IPv6 traffic class.
enum Ecn : uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };
constexpr uint8_t kEcnMask = 3;

inline Ecn ecn_of(const uint8_t* bytes, const Packet& packet) {
  return static_cast<Ecn>((packet.version == 4 ? bytes[1] : bytes[1] >> 4) & kEcnMask);
}

/// Writes the ECN bits into an IP header, and updates the checksum of an IPv4 header (RFC 1624 equation 3).
inline void set_ecn(uint8_t* bytes, const Packet& packet, Ecn ecn) {
  if (packet.version == 6) {
    bytes[1] = static_cast<uint8_t>((bytes[1] & ~(kEcnMask << 4)) | ecn << 4);
    return;
  }
  uint32_t sum = static_cast<uint16_t>(~load<uint16_t>(bytes + 10));
  sum += static_cast<uint16_t>(~load<uint16_t>(bytes));
  bytes[1] = static_cast<uint8_t>((bytes[1] & ~kEcnMask) | ecn);
  sum += load<uint16_t>(bytes);
  store(bytes + 10, static_cast<uint16_t>(~checksum_fold(sum)));
}

/// Copies the outer header's congestion mark to the inner packet (RFC 6040 section 4.2, figure 4; Linux
/// include/net/inet_ecn.h). Returns false if the outer header reports congestion but the inner packet does not support
/// ECN. In that case the caller must drop the packet if the encapsulation also copies marks to the outer header.
inline bool take_ecn(Ecn outer, uint8_t* bytes, const Packet& packet) {
  const Ecn inner = ecn_of(bytes, packet);
  if (inner == kNotEct) return outer != kCe;
  if (outer == kCe && inner != kCe) set_ecn(bytes, packet, kCe);
  if (outer == kEct1 && inner == kEct0) set_ecn(bytes, packet, kEct1);
  return true;
}

}  // namespace weft
