// icmp.h - the ICMP errors that a router sends (RFC 792, RFC 1812 section 4.3).
#pragma once

#include <array>

#include "bucket.h"
#include "packet.h"

namespace weft {

struct IcmpError {
  uint8_t type, code;
  uint16_t mtu = 0;  ///< of the next hop (RFC 1191 section 4)
};
constexpr IcmpError kNetUnreachable{3, 0};
constexpr IcmpError kTimeExceeded{11, 0};
constexpr IcmpError fragmentation_needed(size_t mtu) { return {3, 4, static_cast<uint16_t>(mtu)}; }

constexpr uint8_t kEchoRequest = 8;

/// IP header, ICMP header, and the longest quote: an IP header with options and 8 bytes.
constexpr size_t kMaxIcmpErrorBytes = kIpv4HeaderBytes + 8 + 60 + 8;

/// Writes an ICMP error about the IPv4 packet at `bytes` into `out` (kMaxIcmpErrorBytes of room) and returns its
/// length; 0 when none may be sent: about an ICMP message other than an echo request, about a fragment but the first,
/// about what is not from one host to another (RFC 1122 section 3.2.2, RFC 1812 section 4.3.2.7). Nor about IPv6: there
/// are no IPv6 peers, so that none of its packets has a sender here.
/// `source` is the sender's IPv4 address, network order. TTL 8, identification 0, no DF and a quote of the IP
/// header and 8 bytes: as flanneld's net unreachable (pkg/backend/udp/proxy_amd64.c).
size_t write_icmp_error(const IcmpError& error, uint32_t source, const uint8_t* bytes, const Packet& packet,
                        uint8_t* out);

/// How many ICMP errors may be sent (RFC 1812 section 4.3.2.8): whoever sends what earns one slows no other by that,
/// nor gets more for being served by several threads. Shared by all loops, without a lock. Its memory is bounded: two
/// senders may have one bucket, which costs each half at worst.
class IcmpLimit {
 public:
  static constexpr int64_t kSenderBurst = 50, kSenderEveryMs = 10;
  static constexpr int64_t kBurst = 500, kEveryMs = 1;

  /// Whether one more may be sent about a packet of `sender` (IPv4, network order).
  bool allows(uint32_t sender, int64_t now_ms) {
    Bucket& own = senders_[(sender * 0x9e3779b97f4a7c15ull) >> (64 - kBucketBits)];  // as PeerTable's hash
    return own.take(now_ms, kSenderEveryMs, kSenderBurst) && all_.take(now_ms, kEveryMs, kBurst);
  }

 private:
  static constexpr size_t kBucketBits = 10;
  std::array<Bucket, 1 << kBucketBits> senders_;
  Bucket all_;
};

}  // namespace weft
