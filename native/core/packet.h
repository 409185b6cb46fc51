// packet.h - what the engine must know of an inner IP packet, read once and checked once.
#pragma once

#include "address.h"
#include "checksum.h"

namespace weft {

constexpr size_t kIpv4HeaderBytes = 20;
constexpr size_t kIpv6HeaderBytes = 40;
constexpr size_t kTcpHeaderBytes = 20;
constexpr size_t kUdpHeaderBytes = 8;
/// The longest IPv4 header and TCP header together.
constexpr size_t kMaxHeadersBytes = 120;
/// The most that the extension headers of an IPv6 packet take: no sender has a reason for more (extensions.h).
constexpr size_t kMaxExtensionBytes = 512;
/// The longest headers of a superpacket, which each of its segments has: of IPv6, with extension headers and TCP's.
constexpr size_t kMaxCutHeadersBytes = kIpv6HeaderBytes + kMaxExtensionBytes + 60;

/// The place of the checksum in a TCP and in a UDP header.
constexpr size_t kTcpChecksum = 16;
constexpr size_t kUdpChecksum = 6;

/// Two parts of the 16 bits of flags and fragment offset (RFC 791 section 3.1).
constexpr uint16_t kDontFragment = 0x4000;

/// TCP flags, the 14th byte of the header (RFC 9293 section 3.1, RFC 3168 section 6.1).
enum TcpFlag : uint8_t { kFin = 1, kSyn = 2, kRst = 4, kPsh = 8, kAck = 16, kUrg = 32, kEce = 64, kCwr = 128 };

/// The shape of an IP packet whose headers were found whole. Offsets are from its first byte.
struct Packet {
  uint8_t version = 0;    ///< 4 or 6
  uint8_t protocol = 0;   ///< IPv4 protocol, or the first next header of IPv6
  uint8_t hop_limit = 0;  ///< TTL or hop limit
  bool fragment = false;  ///< any fragment, the first one too (IPv4 only: IPv6 fragments show as protocol 44)
  bool later_fragment = false;
  uint16_t ip_bytes = 0;  ///< length of the IP header
  uint32_t total = 0;     ///< length of the packet by its own header
};

/// Reads the IP header of `size` bytes at `bytes`. Trailing bytes beyond the packet's own length are allowed. False
/// when it is of neither version, or its lengths contradict each other or say more than there is: `packet` means
/// nothing then.
inline bool read_packet(const uint8_t* bytes, size_t size, Packet& packet) {
  if (size < kIpv4HeaderBytes) return false;
  packet.version = bytes[0] >> 4;
  if (packet.version == 4) {
    packet.ip_bytes = static_cast<uint16_t>((bytes[0] & 15) * 4);
    packet.total = load_be16(bytes + 2);
    if (packet.ip_bytes < kIpv4HeaderBytes || packet.total < packet.ip_bytes || packet.total > size) return false;
    const uint16_t fragment = load_be16(bytes + 6);
    packet.later_fragment = (fragment & 0x1fff) != 0;
    packet.fragment = (fragment & 0x3fff) != 0;
    packet.hop_limit = bytes[8];
    packet.protocol = bytes[9];
    return true;
  }
  if (packet.version == 6) {
    if (size < kIpv6HeaderBytes) return false;
    packet.ip_bytes = kIpv6HeaderBytes;
    packet.total = kIpv6HeaderBytes + load_be16(bytes + 4);
    if (packet.total > size) return false;
    packet.fragment = packet.later_fragment = false;
    packet.protocol = bytes[6];
    packet.hop_limit = bytes[7];
    return true;
  }
  return false;
}

/// The whole of the source.
inline Address source_of(const uint8_t* bytes, const Packet& packet) {
  return packet.version == 4 ? Address::v4(load<uint32_t>(bytes + 12)) : Address::v6(bytes + 8);
}
inline Address destination_of(const uint8_t* bytes, const Packet& packet) {
  return packet.version == 4 ? Address::v4(load<uint32_t>(bytes + 16)) : Address::v6(bytes + 24);
}

/// True for an IPv4 address, in network order, that can be that of one host (RFC 1122 section 3.2.1.3); those above
/// 240.0.0.0 are, since clouds lease them.
inline bool is_one_host(uint32_t address) {
  const uint32_t host_order = to_be32(address);
  const uint8_t top = static_cast<uint8_t>(host_order >> 24);
  return top != 0 && top != 127 && (top < 224 || top >= 240) && host_order != 0xffffffff;
}

/// True for an IPv6 address that can be that of one host behind a router: no multicast, none of a link, nor what stands
/// for no address, for this host or for one of IPv4 (RFC 4291 sections 2.4 and 2.5, RFC 4007 section 9).
inline bool is_one_host(const Address& address) {
  if (address.is_v4()) return is_one_host(address.ipv4());
  uint8_t bytes[sizeof(Address)];
  store(bytes, address.high());
  store(bytes + 8, address.low());
  const bool is_mapped_or_zero = address.high() == 0 && load<uint32_t>(bytes + 8) == 0;
  return bytes[0] != 0xff && !(bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80) && !is_mapped_or_zero;
}

/// The place of the source address; the destination follows it. `address_bytes` is the length of one.
inline const uint8_t* source_address(const uint8_t* bytes, const Packet& packet) {
  return bytes + (packet.version == 4 ? 12 : 8);
}
inline size_t address_bytes(const Packet& packet) { return packet.version == 4 ? 4 : 16; }
inline const uint8_t* destination_address(const uint8_t* bytes, const Packet& packet) {
  return bytes + (packet.version == 4 ? 16 : 24);
}

/// True for a destination on the link alone, to which nobody routes: multicast, the broadcast address, and link-local
/// addresses of IPv6 (RFC 1112, RFC 919, RFC 4291 section 2.5.6). The kernel sends such packets into each device by
/// itself (router solicitations), as programs do that look for others (mDNS).
inline bool is_for_link(const uint8_t* destination, uint8_t version) {
  if (version == 4) return (destination[0] & 0xf0) == 0xe0 || load<uint32_t>(destination) == 0xffffffff;
  return destination[0] == 0xff || (destination[0] == 0xfe && (destination[1] & 0xc0) == 0x80);
}

/// Lowers the TTL or hop limit by one; it must not be 0.
inline void decrement_hop_limit(uint8_t* bytes, const Packet& packet) {
  if (packet.version == 4) {
    decrement_ipv4_ttl(bytes);
  } else {
    bytes[7]--;
  }
}

}  // namespace weft
