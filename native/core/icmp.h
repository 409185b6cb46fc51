// icmp.h - the ICMP errors that a router sends (RFC 792, RFC 1812 section 4.3).
#pragma once

#include "packet.h"

namespace weft {

constexpr uint8_t kIcmpUnreachable = 3;
constexpr uint8_t kIcmpNetUnreachable = 0;
constexpr uint8_t kIcmpTimeExceeded = 11;

/// IP header, ICMP header, and the longest quote: an IP header with options and 8 bytes.
constexpr size_t kMaxIcmpErrorBytes = kIpv4HeaderBytes + 8 + 60 + 8;

/// Writes an ICMP error about the IPv4 packet at `bytes` into `out` (kMaxIcmpErrorBytes of room) and returns its
/// length; 0 when none may be sent: about an ICMP message other than an echo request, about a fragment but the first,
/// to a source that is not one host (RFC 1122 section 3.2.2).
/// `source` is the sender's IPv4 address, network order. TTL 8, identification 0, no DF and a quote of the IP
/// header and 8 bytes: as flanneld's net unreachable (pkg/backend/udp/proxy_amd64.c).
size_t write_icmp_error(uint8_t type, uint8_t code, uint32_t source, const uint8_t* bytes, const Packet& packet,
                        uint8_t* out);

}  // namespace weft
