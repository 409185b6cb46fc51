// extensions.h - the extension headers of an IPv6 packet (RFC 8200 section 4): whether they are sound, and what is
// behind them.
//
// Next to no packet has any. Each is looked at that a router may meet before the transport header; what is behind an
// authentication header, mobility and the like is the host's own business, and counts as transport.
#pragma once

#include "packet.h"

namespace weft {

/// What was found behind the extension headers.
struct Upper {
  bool is_sound = false;        ///< all the rest means nothing without
  bool fragment = false;        ///< any but an atomic one (RFC 6946), the first too
  bool later_fragment = false;  ///< nothing is known of the transport header then
  uint8_t protocol = 0;
  size_t offset = 0;  ///< of the transport header from the packet's first byte; at most the packet's length
};

namespace extensions {

/// The most headers: no sender has a reason for more (RFC 8504 section 5.3 has the same kind of bounds for options).
constexpr size_t kMost = 8;
constexpr size_t kBlockBytes = 8, kFragmentBytes = 8, kMaxPayloadBytes = 65535;
constexpr uint8_t kHopByHop = 0, kRouting = 43, kFragment = 44, kDestination = 60;

/// True when a header of options keeps to its length, and so do they (RFC 8200 section 4.2). The length of a jumbogram
/// (RFC 2675) would be another than the packet says.
inline bool are_sound_options(const uint8_t* at, const uint8_t* end) {
  constexpr uint8_t kPad1 = 0, kJumbo = 0xc2;
  while (at < end) {
    if (*at == kPad1) {
      at++;
      continue;
    }
    if (*at == kJumbo || end - at < 2 || at[1] > end - at - 2) return false;
    at += 2 + at[1];
  }
  return true;
}

/// True when a routing header sends the packet nowhere else than its destination says, by which it is let in. Type 0 is
/// never heard (RFC 5095).
inline bool is_at_its_end(const uint8_t* header) { return header[2] != 0 && header[3] == 0; }

/// The least that a first fragment has of the transport header: all of its fixed part (RFC 7112), or it hides from
/// firewalls.
inline size_t least_first_bytes(uint8_t protocol) {
  return protocol == IPPROTO_TCP ? kTcpHeaderBytes : protocol == IPPROTO_NONE ? 0 : kUdpHeaderBytes;
}

}  // namespace extensions

/// Walks the extension headers of an IPv6 packet.
inline Upper upper_of(const uint8_t* bytes, const Packet& packet) {
  using namespace extensions;
  Upper upper;
  upper.protocol = packet.protocol;
  upper.offset = kIpv6HeaderBytes;
  for (size_t count = 0;; count++) {
    const uint8_t type = upper.protocol;
    const bool has_options = type == kHopByHop || type == kDestination;
    if (!has_options && type != kRouting && type != kFragment) break;
    const uint8_t* header = bytes + upper.offset;
    const size_t left = packet.total - upper.offset;
    if (count == kMost || left < kBlockBytes || (type == kHopByHop && count > 0)) return upper;
    const size_t size = type == kFragment ? kFragmentBytes : (header[1] + 1u) * kBlockBytes;
    if (size > left || upper.offset + size > kIpv6HeaderBytes + kMaxExtensionBytes) return upper;
    if (has_options && !extensions::are_sound_options(header + 2, header + size)) return upper;
    if (type == kRouting && !is_at_its_end(header)) return upper;
    upper.protocol = header[0];
    upper.offset += size;
    if (type != kFragment) continue;

    const uint16_t word = load_be16(header + 2);
    const size_t offset = word & 0xfff8u, rest = packet.total - upper.offset;
    const bool more = word & 1;
    if (offset == 0 && !more) continue;  // atomic
    const bool is_second = upper.fragment;
    upper.fragment = true;
    if (is_second || rest == 0 || (more && rest % kBlockBytes != 0)) return upper;
    if (upper.offset - kFragmentBytes - kIpv6HeaderBytes + offset + rest > kMaxPayloadBytes) return upper;
    upper.later_fragment = offset > 0;
    if (!upper.later_fragment) continue;
    // A sound first one is longer than this one's place: it would overlap (RFC 5722).
    upper.is_sound =
        upper.protocol != IPPROTO_TCP || offset >= (kTcpHeaderBytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    return upper;
  }
  upper.is_sound = !upper.fragment || packet.total - upper.offset >= extensions::least_first_bytes(upper.protocol);
  return upper;
}

}  // namespace weft
