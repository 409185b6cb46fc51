// nested.h - an overlay in an overlay: whether a packet out of the TUN is a datagram of this host's around another of
// its datagrams.
//
// Where a peer's address is itself reached through the tunnel, the datagrams for it come back out of the TUN. Once may
// be meant: a node behind another one. Twice is a circle: each datagram is a new one with a TTL of its own and longer
// than the last, so that nothing of IP's ends it.
#pragma once

#include "packet.h"

namespace weft {

/// `own` is the address that this host's datagrams are from, `encap_bytes` what stands in them before a packet; over
/// IPv6 none are sent. What is within a fragment is seen in the first; the others are told by who sent them.
inline bool is_nested_twice(const Address& own, size_t encap_bytes, const uint8_t* bytes, const Packet& packet) {
  constexpr size_t kDestinationPort = 2;
  const auto is_own = [&own](const uint8_t* ip) {
    return ip[9] == IPPROTO_UDP && Address::v4(load<uint32_t>(ip + 12)) == own;
  };
  if (packet.version != 4 || !is_own(bytes) || packet.later_fragment) return false;
  const size_t within = packet.ip_bytes + kUdpHeaderBytes + encap_bytes;
  if (packet.total < within + kIpv4HeaderBytes) return false;
  const uint8_t* inner = bytes + within;
  if (inner[0] >> 4 != 4 || !is_own(inner)) return false;
  if (load_be16(inner + 6) & 0x1fff) return true;
  const size_t port = within + (inner[0] & 15) * 4u + kDestinationPort;
  return packet.total >= port + 2 &&
         load<uint16_t>(bytes + port) == load<uint16_t>(bytes + packet.ip_bytes + kDestinationPort);
}

}  // namespace weft
