// extensions.h - validates the extension headers of an IPv6 packet (RFC 8200 section 4), and finds the upper-layer
// header after them.
//
// Hardly any packet has extension headers. Only headers that a router may meet before the transport header are parsed.
// An authentication or mobility header counts as a transport header, because only the receiving host parses it.
#pragma once

#include "packet.h"

namespace weft {

struct Upper {
  bool is_sound = false;  ///< false if the headers are invalid; the other fields then have no meaning
  /// True for any fragment, including the first; false for an atomic fragment, which is a whole packet (RFC 6946).
  bool fragment = false;
  /// True if the packet is a fragment other than the first, and so has no transport header.
  bool later_fragment = false;
  uint8_t protocol = 0;
  size_t offset = 0;  ///< The offset of the transport header from the packet's first byte; at most the packet's length.
};

namespace extensions {

/// The maximum number of extension headers in a packet. No sender has a reason for more extension headers. (RFC 8504
/// section 5.3 recommends a limit for the number of options.)
constexpr size_t kMost = 8;
constexpr size_t kBlockBytes = 8, kFragmentBytes = 8, kMaxPayloadBytes = 65535;
constexpr uint8_t kHopByHop = 0, kRouting = 43, kFragment = 44, kDestination = 60;

/// True if the options fill their extension header exactly (RFC 8200 section 4.2). Jumbograms (RFC 2675) are rejected,
/// because the length field of their IP header is 0.
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

/// True if a routing header leaves the destination unchanged; the filter relies on an unchanged destination. False for
/// type 0 (RFC 5095).
inline bool is_at_its_end(const uint8_t* header) { return header[2] != 0 && header[3] == 0; }

/// The number of transport header bytes that a first fragment must have: the fixed part of the transport header (RFC
/// 7112). A shorter first fragment would hide its ports and flags from firewalls.
inline size_t least_first_bytes(uint8_t protocol) {
  return protocol == IPPROTO_TCP ? kTcpHeaderBytes : protocol == IPPROTO_NONE ? 0 : kUdpHeaderBytes;
}

}  // namespace extensions

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
    if (offset == 0 && !more) continue;  // an atomic fragment is a whole packet
    const bool is_second = upper.fragment;
    upper.fragment = true;
    if (is_second || rest == 0 || (more && rest % kBlockBytes != 0)) return upper;
    if (upper.offset - kFragmentBytes - kIpv6HeaderBytes + offset + rest > kMaxPayloadBytes) return upper;
    upper.later_fragment = offset > 0;
    if (!upper.later_fragment) continue;
    // The first fragment must contain the whole TCP header. So a later fragment must begin after that header; otherwise
    // the receiver could overwrite the header with the fragment (RFC 5722).
    upper.is_sound =
        upper.protocol != IPPROTO_TCP || offset >= (kTcpHeaderBytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    return upper;
  }
  upper.is_sound = !upper.fragment || packet.total - upper.offset >= extensions::least_first_bytes(upper.protocol);
  return upper;
}

}  // namespace weft
