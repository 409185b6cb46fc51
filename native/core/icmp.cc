// icmp.cc - writes ICMP errors.
#include "icmp.h"

#include <algorithm>

#include "checksum.h"
#include "extensions.h"

namespace weft {

namespace {

constexpr uint8_t kTtl = 8, kHopLimit = 64;
constexpr size_t kIcmpHeaderBytes = 8;

bool may_answer_ipv4(const uint8_t* bytes, const Packet& packet) {
  if (packet.later_fragment) return false;
  if (packet.protocol == IPPROTO_ICMP && (packet.total <= packet.ip_bytes || bytes[packet.ip_bytes] != kEchoRequest)) {
    return false;
  }
  return is_one_host(load<uint32_t>(bytes + 12)) && is_one_host(load<uint32_t>(bytes + 16));
}

bool may_answer_ipv6(const uint8_t* bytes, const Packet& packet) {
  constexpr uint8_t kFirstNoError = 128, kRedirect = 137;
  const Upper upper = upper_of(bytes, packet);
  if (!upper.is_sound || upper.later_fragment) return false;
  if (upper.protocol == IPPROTO_ICMPV6) {
    if (upper.offset >= packet.total) return false;
    const uint8_t type = bytes[upper.offset];
    if (type < kFirstNoError || type == kRedirect) return false;
  }
  const Address source = source_of(bytes, packet), destination = destination_of(bytes, packet);
  return !source.is_v4() && is_one_host(source) && is_one_host(destination);
}

/// Completes an ICMP error whose MTU field is already set. `sum` is the sum of the pseudo-header; 0 for IPv4, because
/// ICMP for IPv4 has no pseudo-header.
void write_message(uint8_t* icmp, IcmpError::Kind kind, const uint8_t* bytes, size_t quote, uint64_t sum) {
  icmp[0] = kind.type;
  icmp[1] = kind.code;
  std::memcpy(icmp + kIcmpHeaderBytes, bytes, quote);
  store(icmp + 2, static_cast<uint16_t>(~checksum_fold(checksum_add(sum, icmp, kIcmpHeaderBytes + quote))));
}

size_t write_ipv4(const IcmpError& error, const Address& source, const uint8_t* bytes, const Packet& packet,
                  uint8_t* out) {
  const size_t quote = std::min<size_t>(packet.total, kMaxIpv4ErrorBytes - kIpv4HeaderBytes - kIcmpHeaderBytes);
  const size_t total = kIpv4HeaderBytes + kIcmpHeaderBytes + quote;
  std::memset(out, 0, kIpv4HeaderBytes + kIcmpHeaderBytes);
  out[0] = 0x45;
  store_be16(out + 2, static_cast<uint16_t>(total));
  out[8] = kTtl;
  out[9] = IPPROTO_ICMP;
  store(out + 12, source.ipv4());
  std::memcpy(out + 16, bytes + 12, 4);
  store(out + 10, ipv4_header_checksum(out, kIpv4HeaderBytes));

  uint8_t* icmp = out + kIpv4HeaderBytes;
  store_be16(icmp + 6, error.mtu);
  write_message(icmp, error.ipv4, bytes, quote, 0);
  return total;
}

size_t write_ipv6(const IcmpError& error, const Address& source, const uint8_t* bytes, const Packet& packet,
                  uint8_t* out) {
  const size_t quote = std::min<size_t>(packet.total, kMaxIcmpErrorBytes - kIpv6HeaderBytes - kIcmpHeaderBytes);
  const size_t length = kIcmpHeaderBytes + quote;
  std::memset(out, 0, kIpv6HeaderBytes + kIcmpHeaderBytes);
  out[0] = 0x60;
  store_be16(out + 4, static_cast<uint16_t>(length));
  out[6] = IPPROTO_ICMPV6;
  out[7] = kHopLimit;
  store(out + 8, source.high());
  store(out + 16, source.low());
  std::memcpy(out + 24, bytes + 8, 16);

  uint8_t* icmp = out + kIpv6HeaderBytes;
  store_be32(icmp + 4, error.mtu);
  write_message(icmp, error.ipv6, bytes, quote, pseudo_header_sum(out + 8, 32, IPPROTO_ICMPV6, length));
  return kIpv6HeaderBytes + length;
}

}  // namespace

bool may_send_error_about(const uint8_t* bytes, const Packet& packet) {
  return packet.version == 4 ? may_answer_ipv4(bytes, packet) : may_answer_ipv6(bytes, packet);
}

size_t write_icmp_error(const IcmpError& error, const Address& source, const uint8_t* bytes, const Packet& packet,
                        uint8_t* out) {
  if (!may_send_error_about(bytes, packet)) return 0;
  return packet.version == 4 ? write_ipv4(error, source, bytes, packet, out)
                             : write_ipv6(error, source, bytes, packet, out);
}

}  // namespace weft
