// mss.h - lowers the maximum segment size (MSS) in the SYN of TCP connections (RFC 9293 section 3.7.1), so that packets
// fit the tunnel. This is needed if the MTU of a container is larger than that of the tunnel, or if a firewall drops
// the ICMP errors to the sender.
#pragma once

#include "checksum.h"
#include "packet.h"

namespace weft {

/// The length in bytes of the IP and TCP headers without options. The MSS is the longest packet minus this length (RFC
/// 6691).
inline size_t mss_header_bytes(const Packet& packet) {
  return (packet.version == 4 ? kIpv4HeaderBytes : kIpv6HeaderBytes) + kTcpHeaderBytes;
}

/// True for a SYN or a SYN-ACK without IPv6 extension headers.
inline bool is_tcp_syn(const uint8_t* bytes, const Packet& packet) {
  return packet.protocol == IPPROTO_TCP && !packet.later_fragment &&
         packet.total >= packet.ip_bytes + kTcpHeaderBytes && (bytes[packet.ip_bytes + 13] & kSyn);
}

/// Lowers the MSS option of a SYN to at most `mss`. Updates the checksum (RFC 1624 equation 3), unless the packet is
/// `open`, that is, has no complete checksum yet. A SYN without the option means an MSS of 536, or 1220 over IPv6 (RFC
/// 9293), which always fits.
inline void clamp_mss(uint8_t* bytes, const Packet& packet, size_t mss, bool open) {
  constexpr uint8_t kEnd = 0, kNothing = 1, kMss = 2, kMssBytes = 4;
  uint8_t* tcp = bytes + packet.ip_bytes;
  const size_t header_bytes = static_cast<size_t>(tcp[12] >> 4) * 4;
  if (packet.ip_bytes + header_bytes > packet.total) return;
  for (size_t at = kTcpHeaderBytes; at < header_bytes && tcp[at] != kEnd;) {
    if (tcp[at] == kNothing) {
      at++;
      continue;
    }
    if (header_bytes - at < 2 || tcp[at + 1] < 2 || tcp[at + 1] > header_bytes - at) return;
    if (tcp[at] == kMss && tcp[at + 1] == kMssBytes) {
      const uint16_t before = load_be16(tcp + at + 2);
      if (before <= mss) return;
      const uint16_t now = static_cast<uint16_t>(mss);
      store_be16(tcp + at + 2, now);
      if (open) return;
      // The checksum adds words of 16 bits. The two bytes of an MSS at an odd offset belong to different words, so swap
      // them.
      const auto as_summed = [at](uint16_t value) {
        return static_cast<uint16_t>(at % 2 == 0 ? value : (value << 8) | (value >> 8));
      };
      uint32_t sum = static_cast<uint16_t>(~load_be16(tcp + kTcpChecksum));
      sum += static_cast<uint16_t>(~as_summed(before));
      sum += as_summed(now);
      return store_be16(tcp + kTcpChecksum, static_cast<uint16_t>(~checksum_fold(sum)));
    }
    at += tcp[at + 1];
  }
}

}  // namespace weft
