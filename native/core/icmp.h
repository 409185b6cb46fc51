// icmp.h - the ICMP errors that a router sends (RFC 792, RFC 1812 section 4.3).
#pragma once

#include <algorithm>

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

/// How many ICMP errors may be sent: whoever sends what earns one must not slow all others by that (RFC 1812 section
/// 4.3.2.8). As many as Linux sends by default (Documentation/networking/ip-sysctl.rst, icmp_msgs_per_sec and
/// icmp_msgs_burst).
class IcmpLimit {
 public:
  static constexpr int64_t kBurst = 50;
  static constexpr int64_t kPerMs = 1;

  bool allows(int64_t now_ms) {
    left_ = std::min(kBurst, left_ + (now_ms - last_ms_) * kPerMs);
    last_ms_ = now_ms;
    if (left_ == 0) return false;
    left_--;
    return true;
  }

 private:
  int64_t left_ = kBurst;
  int64_t last_ms_ = 0;
};

}  // namespace weft
