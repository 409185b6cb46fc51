// segment.h - splits a superpacket (TCP or UDP segments under one header) into single packets, and completes missing
// checksums.
//
// A TUN with TSO and USO delivers superpackets of up to 64 KiB. Each segment gets its own header. The payload is not
// copied: a segment points into the superpacket.
#pragma once

#include <algorithm>
#include <span>

#include "packet.h"
#include "virtio.h"

namespace weft {

/// Returns the virtio header of a TCP or UDP packet whose checksum field contains only the pseudo-header's sum.
inline VirtioHeader open_sum(const Packet& packet) {
  VirtioHeader virtio;
  virtio.flags = kVirtioNeedsCsum;
  virtio.csum_start = packet.ip_bytes;
  virtio.csum_offset = static_cast<uint16_t>(packet.protocol == IPPROTO_TCP ? kTcpChecksum : kUdpChecksum);
  return virtio;
}

/// Completes the checksum of a packet with kVirtioNeedsCsum and no GSO type. Returns false unless the offsets in
/// `virtio` are after the IP header and within the packet. A UDP checksum of zero becomes 0xffff (RFC 768).
bool finish_checksum(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet);

struct Segment {
  uint8_t* header;  ///< in the caller's memory
  size_t header_bytes;
  uint8_t* payload;  ///< inside the superpacket, so valid as long as the superpacket
  size_t payload_bytes;
};

/// Yields the segments of one superpacket, in order and with complete checksums. The IPv4 identification increases by
/// one, the TCP sequence number by the segment size. FIN and PSH are set only on the last segment, CWR only on the
/// first (RFC 3168 section 6.1.2).
class Segmenter {
 public:
  /// Begins with a superpacket of `packet.total` bytes. Returns false if the superpacket is malformed, or of a type
  /// that weft does not request from the TUN.
  bool begin(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet);

  /// The length of a segment's headers in bytes; at most kMaxCutHeadersBytes.
  size_t header_bytes() const { return header_bytes_; }
  size_t count() const { return (payload_bytes_ + gso_size_ - 1) / gso_size_; }
  bool done() const { return offset_ >= payload_bytes_; }
  bool is_tcp() const { return tcp_; }
  /// True if the superpacket has more than kMostSmall segments of less than kSmallBytes. The caller drops such a
  /// superpacket, because each segment costs the same CPU time, however small it is. kMostSmall is the kernel's limit
  /// for one UDP message of a program (UDP_MAX_SEGMENTS). TCP makes tiny segments only if the receiver announces a tiny
  /// segment size, and after the drop sends fewer segments at a time.
  bool is_costly() const { return gso_size_ < kSmallBytes && count() > kMostSmall; }
  size_t packet_bytes() const { return header_bytes_ + std::min(gso_size_, payload_bytes_); }
  /// Limits the length of a segment of a TCP superpacket, headers included, to `packet_bytes`, which must exceed the
  /// headers. Must be called before next().
  void limit(size_t packet_bytes) { gso_size_ = std::min(gso_size_, packet_bytes - header_bytes_); }

  /// Writes the next segment's headers to `header`, which must have space for header_bytes(). Must not be called when
  /// done() is true.
  Segment next(uint8_t* header);

 private:
  static constexpr size_t kSmallBytes = 64, kMostSmall = 128;

  uint8_t* bytes_;
  Packet packet_;
  size_t transport_;  // offset of the TCP or UDP header
  size_t header_bytes_;
  size_t payload_bytes_;
  size_t gso_size_;
  size_t offset_;  // the number of payload bytes in earlier segments
  uint16_t index_;
  bool tcp_;
  uint64_t addresses_sum_;
};

/// Copies the first packet of a buffer that was read from the TUN to `to`, as far as it fits. The copy has the form in
/// which weft would have sent the packet: one segment, with a complete checksum. `packet` is set to the fields of the
/// copy. A malformed packet is copied unchanged.
std::span<const uint8_t> first_as_sent(const VirtioHeader& virtio, uint8_t* bytes, Packet& packet,
                                       std::span<uint8_t> to);

/// The number of packets in a buffer, and the sum of their lengths in bytes.
struct OnWire {
  size_t packets, bytes;
};

/// Counts the packets in a buffer as on the wire: a superpacket counts as its segments, each with its own headers. A
/// malformed buffer counts as one packet.
inline OnWire count_on_wire(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet) {
  Segmenter segments;
  if (virtio.gso_type == kGsoNone || !segments.begin(virtio, bytes, packet)) return {1, packet.total};
  return {segments.count(), packet.total + (segments.count() - 1) * segments.header_bytes()};
}
inline size_t count_packets(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet) {
  return count_on_wire(virtio, bytes, packet).packets;
}

}  // namespace weft
