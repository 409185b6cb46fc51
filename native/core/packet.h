// packet.h - the fields of an inner IP packet that the engine needs. They are read and validated only once.
#pragma once

#include "address.h"
#include "checksum.h"

namespace weft {

constexpr size_t kIpv4HeaderBytes = 20;
constexpr size_t kIpv6HeaderBytes = 40;
constexpr size_t kTcpHeaderBytes = 20;
constexpr size_t kUdpHeaderBytes = 8;
/// The length in bytes of the longest IPv4 header (60) and the longest TCP header (60) together.
constexpr size_t kMaxHeadersBytes = 120;
/// The maximum length in bytes of all extension headers of an IPv6 packet together. No sender has a reason for longer
/// extension headers (extensions.h).
constexpr size_t kMaxExtensionBytes = 512;
/// The maximum length in bytes of the headers of a superpacket, which each of its segments repeats: IPv6, extension
/// headers and TCP.
constexpr size_t kMaxCutHeadersBytes = kIpv6HeaderBytes + kMaxExtensionBytes + 60;

/// The offset in bytes of the checksum field in a TCP header; kUdpChecksum is the offset in a UDP header.
constexpr size_t kTcpChecksum = 16;
constexpr size_t kUdpChecksum = 6;

/// The DF bit in the 16-bit field of flags and fragment offset (RFC 791 section 3.1).
constexpr uint16_t kDontFragment = 0x4000;

/// TCP flags, the 14th byte of the header (RFC 9293 section 3.1, RFC 3168 section 6.1).
enum TcpFlag : uint8_t { kFin = 1, kSyn = 2, kRst = 4, kPsh = 8, kAck = 16, kUrg = 32, kEce = 64, kCwr = 128 };

struct Packet {
  uint8_t version = 0;   ///< 4 or 6
  uint8_t protocol = 0;  ///< the IPv4 protocol, or the first IPv6 next header
  uint8_t hop_limit = 0;
  bool fragment = false;  ///< true for any IPv4 fragment, also the first; IPv6 fragments have protocol 44 instead
  bool later_fragment = false;
  uint16_t ip_bytes = 0;  ///< length of the IP header
  uint32_t total = 0;     ///< length of the packet according to its IP header
};

/// Reads the IP header of a packet at `bytes`, of which `size` bytes are valid. Bytes beyond the packet's own length
/// are allowed. Returns false if the version is unknown, or if the lengths contradict each other or exceed `size`; in
/// that case `packet` has no meaning.
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

inline Address source_of(const uint8_t* bytes, const Packet& packet) {
  return packet.version == 4 ? Address::v4(load<uint32_t>(bytes + 12)) : Address::v6(bytes + 8);
}
inline Address destination_of(const uint8_t* bytes, const Packet& packet) {
  return packet.version == 4 ? Address::v4(load<uint32_t>(bytes + 16)) : Address::v6(bytes + 24);
}

/// True if an IPv4 address, in network order, can belong to one host (RFC 1122 section 3.2.1.3). Addresses from
/// 240.0.0.0 on count as hosts, because cloud providers assign them.
inline bool is_one_host(uint32_t address) {
  const uint32_t host_order = to_be32(address);
  const uint8_t top = static_cast<uint8_t>(host_order >> 24);
  return top != 0 && top != 127 && (top < 224 || top >= 240) && host_order != 0xffffffff;
}

/// True if an IPv6 address can belong to one host behind a router. Multicast, link-local, unspecified, loopback and
/// IPv4-mapped addresses cannot (RFC 4291 sections 2.4 and 2.5, RFC 4007 section 9).
inline bool is_one_host(const Address& address) {
  if (address.is_v4()) return is_one_host(address.ipv4());
  uint8_t bytes[sizeof(Address)];
  store(bytes, address.high());
  store(bytes + 8, address.low());
  const bool is_mapped_or_zero = address.high() == 0 && load<uint32_t>(bytes + 8) == 0;
  return bytes[0] != 0xff && !(bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80) && !is_mapped_or_zero;
}

/// Returns a pointer to the source address in an IP header. The destination address directly follows the source
/// address.
inline const uint8_t* source_address(const uint8_t* bytes, const Packet& packet) {
  return bytes + (packet.version == 4 ? 12 : 8);
}
inline size_t address_bytes(const Packet& packet) { return packet.version == 4 ? 4 : 16; }
inline const uint8_t* destination_address(const uint8_t* bytes, const Packet& packet) {
  return bytes + (packet.version == 4 ? 16 : 24);
}

/// True for a destination on the local link, to which no router forwards: multicast, broadcast, and IPv6 link-local
/// addresses (RFC 1112, RFC 919, RFC 4291 section 2.5.6). The kernel itself sends such packets into each device, for
/// example router solicitations. mDNS programs send such packets too.
inline bool is_for_link(const uint8_t* destination, uint8_t version) {
  if (version == 4) return (destination[0] & 0xf0) == 0xe0 || load<uint32_t>(destination) == 0xffffffff;
  return destination[0] == 0xff || (destination[0] == 0xfe && (destination[1] & 0xc0) == 0x80);
}

/// Decrements the TTL or hop limit, which must not be 0, and updates the IPv4 header checksum.
inline void decrement_hop_limit(uint8_t* bytes, const Packet& packet) {
  if (packet.version == 4) {
    decrement_ipv4_ttl(bytes);
  } else {
    bytes[7]--;
  }
}

}  // namespace weft
