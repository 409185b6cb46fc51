// inspect.h - validates an IP packet from a peer, so that no malformed packet reaches the TUN.
//
// The checks are those of a router (RFC 1812 section 5.2.2), plus checks of fragments, options and extension headers.
// All checked fields are in the IP header, so a superpacket is checked only once. Bytes beyond the length in the IP
// header are trimmed, as the kernel does (net/ipv4/ip_input.c, ip_rcv_core).
#pragma once

#include <optional>
#include <span>

#include "counters.h"
#include "extensions.h"

namespace weft {

/// True if the length and the offset of an IPv4 fragment are valid and do not hide TCP flags from firewalls.
inline bool is_sound_fragment(const uint8_t* bytes, const Packet& packet) {
  constexpr size_t kBlockBytes = 8, kMaxPacketBytes = 65535;
  constexpr size_t kLeastFirstTcpBytes = 16;
  const uint16_t word = load_be16(bytes + 6);
  const bool more = word & 0x2000;
  const size_t offset = (word & 0x1fff) * kBlockBytes, size = packet.total - packet.ip_bytes;
  // The length of every fragment except the last must be a multiple of 8 (RFC 791 section 3.2).
  if (size == 0 || (more && size % kBlockBytes != 0)) return false;
  if (packet.ip_bytes + offset + size > kMaxPacketBytes) return false;
  // A TCP header that is split over fragments would hide its flags from a firewall (RFC 3128 section 3).
  return packet.protocol != IPPROTO_TCP || (offset == 0 ? size >= kLeastFirstTcpBytes : offset > kBlockBytes);
}

/// True if the options of an IPv4 header (RFC 791 section 3.1) fit in it and contain no source route. With a source
/// route the kernel would send the packet to a destination that the filter did not check (RFC 7126 sections 4.3 and
/// 4.4). The kernel itself drops packets with source routes, unless accept_source_route is set.
inline bool are_sound_options(const uint8_t* at, const uint8_t* end) {
  constexpr uint8_t kEnd = 0, kNothing = 1, kLooseRoute = 131, kStrictRoute = 137;
  while (at < end && *at != kEnd) {
    if (*at == kNothing) {
      at++;
      continue;
    }
    if (*at == kLooseRoute || *at == kStrictRoute) return false;
    if (end - at < 2 || at[1] < 2 || at[1] > end - at) return false;
    at += at[1];
  }
  return true;
}

/// True for neighbour discovery messages (RFC 4861 section 4), which only hosts on the same link may send. This host
/// must not get such messages from peers, because its kernel would act on them.
inline bool is_of_a_link(const uint8_t* bytes, const Packet& packet, const Upper& upper) {
  constexpr uint8_t kRouterSolicitation = 133, kRedirect = 137;
  if (upper.protocol != IPPROTO_ICMPV6 || upper.later_fragment || upper.offset >= packet.total) return false;
  return bytes[upper.offset] >= kRouterSolicitation && bytes[upper.offset] <= kRedirect;
}

inline std::optional<Counter> inspect_ipv6(const uint8_t* bytes, const Packet& packet) {
  if (packet.protocol == IPPROTO_TCP || packet.protocol == IPPROTO_UDP) return {};
  const Upper upper = upper_of(bytes, packet);
  if (!upper.is_sound) return upper.fragment ? k_rx_drop_fragment : k_rx_drop_options;
  if (is_of_a_link(bytes, packet, upper)) return k_rx_drop_not_ours;
  return {};
}

/// Reads the IP header of a packet from a peer into `packet`. Returns the counter of the reason to drop the packet, or
/// nothing if the packet is valid.
inline std::optional<Counter> inspect(std::span<const uint8_t> bytes, Packet& packet) {
  if (!read_packet(bytes.data(), bytes.size(), packet)) return k_rx_drop_malformed;
  if (packet.version == 6) return inspect_ipv6(bytes.data(), packet);
  if (!is_ipv4_header_right(bytes.data(), packet.ip_bytes)) return k_rx_drop_checksum;
  if (packet.fragment && !is_sound_fragment(bytes.data(), packet)) return k_rx_drop_fragment;
  if (!are_sound_options(bytes.data() + kIpv4HeaderBytes, bytes.data() + packet.ip_bytes)) return k_rx_drop_options;
  return {};
}

}  // namespace weft
