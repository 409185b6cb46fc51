// icmp.cc - builds the errors.
#include "icmp.h"

#include <algorithm>

#include "checksum.h"

namespace weft {

namespace {

constexpr uint8_t kTtl = 8;

bool may_answer(const uint8_t* bytes, const Packet& packet) {
  if (packet.version != 4 || packet.later_fragment) return false;
  if (packet.protocol == IPPROTO_ICMP && (packet.total <= packet.ip_bytes || bytes[packet.ip_bytes] != kEchoRequest)) {
    return false;
  }
  return is_one_host(load<uint32_t>(bytes + 12)) && is_one_host(load<uint32_t>(bytes + 16));
}

}  // namespace

size_t write_icmp_error(const IcmpError& error, const Address& source, const uint8_t* bytes, const Packet& packet,
                        uint8_t* out) {
  if (!may_answer(bytes, packet)) return 0;
  const size_t quote = std::min<size_t>(packet.ip_bytes + 8u, packet.total);
  const size_t total = kIpv4HeaderBytes + 8 + quote;
  std::memset(out, 0, kIpv4HeaderBytes + 8);
  out[0] = 0x45;
  store_be16(out + 2, static_cast<uint16_t>(total));
  out[8] = kTtl;
  out[9] = IPPROTO_ICMP;
  store(out + 12, source.ipv4());
  std::memcpy(out + 16, bytes + 12, 4);
  store(out + 10, ipv4_header_checksum(out, kIpv4HeaderBytes));

  uint8_t* icmp = out + kIpv4HeaderBytes;
  icmp[0] = error.type;
  icmp[1] = error.code;
  store_be16(icmp + 6, error.mtu);
  std::memcpy(icmp + 8, bytes, quote);
  store(icmp + 2, static_cast<uint16_t>(~checksum_fold(checksum_add(0, icmp, 8 + quote))));
  return total;
}

}  // namespace weft
