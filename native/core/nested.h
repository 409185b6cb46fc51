// nested.h - an overlay in an overlay: whether a packet out of the TUN is a datagram of this host's around another of
// its datagrams.
//
// Where a peer's address is itself reached through the tunnel, the datagrams for it come back out of the TUN. Once may
// be meant: a node behind another one. Twice is a circle: each datagram is a new one with a TTL of its own and longer
// than the last, so that nothing of IP's ends it.
#pragma once

#include "packet.h"

namespace weft {

/// How a datagram of this host's begins.
struct OwnHeaders {
  bool is_own = false;
  bool later_fragment = false;
  size_t bytes = 0;  ///< of the IP header; by IPv6 with that of a fragment, the only one that the kernel adds
};

/// Reads the IP header of `size` bytes at `ip` as that of a UDP datagram from `own`.
inline OwnHeaders own_headers(const Address& own, const uint8_t* ip, size_t size) {
  if (own.is_v4()) {
    const bool is_own = size >= kIpv4HeaderBytes && ip[0] >> 4 == 4 && ip[9] == IPPROTO_UDP &&
                        Address::v4(load<uint32_t>(ip + 12)) == own;
    return is_own ? OwnHeaders{true, (load_be16(ip + 6) & 0x1fff) != 0, (ip[0] & 15) * 4u} : OwnHeaders{};
  }
  constexpr size_t kFragmentBytes = 8;
  if (size < kIpv6HeaderBytes || ip[0] >> 4 != 6 || !(Address::v6(ip + 8) == own)) return {};
  if (ip[6] == IPPROTO_UDP) return {true, false, kIpv6HeaderBytes};
  const uint8_t* fragment = ip + kIpv6HeaderBytes;
  const bool is_fragment = ip[6] == IPPROTO_FRAGMENT && size >= kIpv6HeaderBytes + kFragmentBytes;
  if (!is_fragment || fragment[0] != IPPROTO_UDP) return {};
  return {true, (load_be16(fragment + 2) & 0xfff8) != 0, kIpv6HeaderBytes + kFragmentBytes};
}

/// The same for a host whose datagrams are from an address of each family that it has one of.
inline OwnHeaders own_headers(const ByFamily<Address>& own, const uint8_t* ip, size_t size) {
  if (size == 0) return {};
  const Address& from = own.of(static_cast<uint8_t>(ip[0] >> 4));
  return from ? own_headers(from, ip, size) : OwnHeaders{};
}

/// `own` has the addresses that this host's datagrams are from, `encap_bytes` what stands in them before a packet. What
/// is within a fragment is seen in the first; the others are told by who sent them.
inline bool is_nested_twice(const ByFamily<Address>& own, size_t encap_bytes, const uint8_t* bytes,
                            const Packet& packet) {
  constexpr size_t kDestinationPort = 2;
  const OwnHeaders outer = own_headers(own, bytes, packet.total);
  const size_t within = outer.bytes + kUdpHeaderBytes + encap_bytes;
  if (!outer.is_own || outer.later_fragment || packet.total < within) return false;
  const OwnHeaders inner = own_headers(own, bytes + within, packet.total - within);
  if (!inner.is_own || inner.later_fragment) return inner.is_own;
  const size_t port = within + inner.bytes + kDestinationPort;
  return packet.total >= port + 2 &&
         load<uint16_t>(bytes + port) == load<uint16_t>(bytes + outer.bytes + kDestinationPort);
}

}  // namespace weft
