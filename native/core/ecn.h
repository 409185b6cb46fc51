// ecn.h - marks of congestion (RFC 3168 section 5) between a packet's header and the one outside of it: what a router
// on the way says to the outer header reaches the inner one, as RFC 6040 section 4 has it.
#pragma once

#include "packet.h"

namespace weft {

/// The two bits below the DSCP, in the TOS and in the traffic class.
enum Ecn : uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };
constexpr uint8_t kEcnMask = 3;

/// Reads the mark of a packet's header.
inline Ecn ecn_of(const uint8_t* bytes, const Packet& packet) {
  return static_cast<Ecn>((packet.version == 4 ? bytes[1] : bytes[1] >> 4) & kEcnMask);
}

/// Makes it say that, the IPv4 header's checksum mended by RFC 1624 equation 3.
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

/// Tells a packet what the header said that it came in (RFC 6040 section 4.2, figure 4; as Linux,
/// include/net/inet_ecn.h). False where the one says congestion and the other that its sender would not hear of it:
/// such a packet is to be dropped, if what stands outside was ever copied from inside.
inline bool take_ecn(Ecn outer, uint8_t* bytes, const Packet& packet) {
  const Ecn inner = ecn_of(bytes, packet);
  if (inner == kNotEct) return outer != kCe;
  if (outer == kCe && inner != kCe) set_ecn(bytes, packet, kCe);
  if (outer == kEct1 && inner == kEct0) set_ecn(bytes, packet, kEct1);
  return true;
}

}  // namespace weft
