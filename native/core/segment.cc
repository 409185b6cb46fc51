// segment.cc - splits a TCP or UDP superpacket into segments, and writes the header of each segment.
#include "segment.h"

#include <algorithm>

#include "checksum.h"

namespace weft {

namespace {

/// Returns the value of a TCP or UDP checksum field. In UDP a computed checksum of zero is sent as 0xffff, because zero
/// means "no checksum" (RFC 768).
uint16_t checksum_field(uint64_t sum, bool tcp) {
  const uint16_t field = static_cast<uint16_t>(~checksum_fold(sum));
  return field == 0 && !tcp ? 0xffff : field;
}

}  // namespace

bool finish_checksum(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet) {
  const size_t start = virtio.csum_start;
  const size_t field = start + virtio.csum_offset;
  if (start < packet.ip_bytes || field + 2 > packet.total) return false;
  // The checksum field already contains the pseudo-header's sum, so the sum over header and payload is the complete
  // checksum.
  const bool udp = virtio.csum_offset == kUdpChecksum;
  store(bytes + field, checksum_field(checksum_add(0, bytes + start, packet.total - start), !udp));
  return true;
}

bool Segmenter::begin(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet) {
  const uint8_t type = virtio.gso_type & static_cast<uint8_t>(~kGsoEcn);
  tcp_ = type != kGsoUdp;
  if (tcp_ && type != (packet.version == 4 ? kGsoTcp4 : kGsoTcp6)) return false;
  if (virtio.gso_size == 0 || packet.fragment) return false;
  // After IPv6 extension headers, only csum_start says where the transport header begins.
  transport_ = virtio.flags & kVirtioNeedsCsum ? virtio.csum_start : packet.ip_bytes;
  if (transport_ < packet.ip_bytes || (packet.version == 4 && transport_ != packet.ip_bytes)) return false;
  size_t transport_bytes = kUdpHeaderBytes;
  if (tcp_) {
    if (transport_ + kTcpHeaderBytes > packet.total) return false;
    transport_bytes = static_cast<size_t>(bytes[transport_ + 12] >> 4) * 4;
    if (transport_bytes < kTcpHeaderBytes) return false;
  }
  header_bytes_ = transport_ + transport_bytes;
  if (header_bytes_ >= packet.total || header_bytes_ > kMaxCutHeadersBytes) return false;
  bytes_ = bytes;
  packet_ = packet;
  payload_bytes_ = packet.total - header_bytes_;
  gso_size_ = virtio.gso_size;
  offset_ = 0;
  index_ = 0;
  addresses_sum_ = checksum_add(0, source_address(bytes, packet), 2 * address_bytes(packet));
  return true;
}

Segment Segmenter::next(uint8_t* header) {
  const size_t size = std::min(gso_size_, payload_bytes_ - offset_);
  const bool first = offset_ == 0;
  const bool last = offset_ + size == payload_bytes_;
  uint8_t* payload = bytes_ + header_bytes_ + offset_;
  std::memcpy(header, bytes_, header_bytes_);

  if (packet_.version == 4) {
    store_be16(header + 2, static_cast<uint16_t>(header_bytes_ + size));
    store_be16(header + 4, static_cast<uint16_t>(load_be16(bytes_ + 4) + index_));
    store(header + 10, ipv4_header_checksum(header, packet_.ip_bytes));
  } else {
    store_be16(header + 4, static_cast<uint16_t>(header_bytes_ - kIpv6HeaderBytes + size));
  }

  uint8_t* transport = header + transport_;
  const uint16_t transport_total = static_cast<uint16_t>(header_bytes_ - transport_ + size);
  uint8_t* field = transport + (tcp_ ? kTcpChecksum : kUdpChecksum);
  if (tcp_) {
    store_be32(transport + 4, load_be32(bytes_ + transport_ + 4) + static_cast<uint32_t>(offset_));
    if (!last) transport[13] &= static_cast<uint8_t>(~(kFin | kPsh));
    if (!first) transport[13] &= static_cast<uint8_t>(~kCwr);
  } else {
    store_be16(transport + 4, transport_total);
  }
  store<uint16_t>(field, 0);
  uint64_t sum = addresses_sum_ + to_be16(tcp_ ? IPPROTO_TCP : IPPROTO_UDP) + to_be16(transport_total);
  sum = checksum_add(sum, transport, header_bytes_ - transport_);
  sum = checksum_add(sum, payload, size);
  store(field, checksum_field(sum, tcp_));

  offset_ += size;
  index_++;
  return {header, header_bytes_, payload, size};
}

std::span<const uint8_t> first_as_sent(const VirtioHeader& virtio, uint8_t* bytes, Packet& packet,
                                       std::span<uint8_t> to) {
  Segmenter segments;
  if (virtio.gso_type == kGsoNone || to.size() < kMaxCutHeadersBytes || !segments.begin(virtio, bytes, packet)) {
    if (virtio.flags & kVirtioNeedsCsum) finish_checksum(virtio, bytes, packet);
    return {bytes, packet.total};
  }
  const Segment first = segments.next(to.data());
  const size_t payload_bytes = std::min(first.payload_bytes, to.size() - first.header_bytes);
  std::memcpy(to.data() + first.header_bytes, first.payload, payload_bytes);
  packet.total = static_cast<uint32_t>(first.header_bytes + first.payload_bytes);
  return to.first(first.header_bytes + payload_bytes);
}

}  // namespace weft
