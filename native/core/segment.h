// segment.h - cuts what the kernel left uncut: a superpacket into packets, a missing checksum into a whole one.
//
// A TUN with TSO and USO hands over up to 64 KiB under one header. Each segment gets a header of its own; the
// payload is not copied, a segment points into the superpacket.
#pragma once

#include <algorithm>
#include <span>

#include "packet.h"
#include "virtio.h"

namespace weft {

/// Describes a TCP or UDP packet that has the pseudo header's sum alone.
inline VirtioHeader open_sum(const Packet& packet) {
  VirtioHeader virtio;
  virtio.flags = kVirtioNeedsCsum;
  virtio.csum_start = packet.ip_bytes;
  virtio.csum_offset = static_cast<uint16_t>(packet.protocol == IPPROTO_TCP ? kTcpChecksum : kUdpChecksum);
  return virtio;
}

/// Completes the checksum of a packet read with kVirtioNeedsCsum and no GSO type. False when the offsets are not behind
/// its IP header and within it. A UDP sum of zero becomes 0xffff (RFC 768).
bool finish_checksum(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet);

/// One packet in two pieces.
struct Segment {
  uint8_t* header;  ///< where the caller asked for it
  size_t header_bytes;
  uint8_t* payload;  ///< inside the superpacket: valid as long as that
  size_t payload_bytes;
};

/// The segments of one superpacket, in order. Rules: the IPv4 identification counts up by one; the TCP sequence number
/// by the segment size; FIN and PSH stand on the last segment only, CWR on the first only (RFC 3168 section 6.1.2);
/// every segment has its checksums complete.
class Segmenter {
 public:
  /// Checks the superpacket of `packet.total` bytes and gets ready. False when it is malformed or of a type that we
  /// did not ask for.
  bool begin(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet);

  /// Bytes that a segment's header takes; at most kMaxCutHeadersBytes.
  size_t header_bytes() const { return header_bytes_; }
  size_t count() const { return (payload_bytes_ + gso_size_ - 1) / gso_size_; }
  bool done() const { return offset_ >= payload_bytes_; }
  bool is_tcp() const { return tcp_; }
  /// True if the superpacket costs this host far more than its size suggests, because each segment costs the same,
  /// however small it is. Up to kMostSmall tiny segments are carried, which is the kernel's limit for one UDP message
  /// of a program (UDP_MAX_SEGMENTS). TCP makes tiny segments only if the other end announces a tiny segment size, and
  /// continues with fewer segments at a time after the drop.
  bool is_costly() const { return gso_size_ < kSmallBytes && count() > kMostSmall; }
  /// The length of the longest.
  size_t packet_bytes() const { return header_bytes_ + std::min(gso_size_, payload_bytes_); }
  /// To be called for TCP, at the beginning: makes no packet longer than that, which must be more than the header.
  void limit(size_t packet_bytes) { gso_size_ = std::min(gso_size_, packet_bytes - header_bytes_); }

  /// Writes the next segment's header to `header` (header_bytes() of room). Must not be called when done.
  Segment next(uint8_t* header);

 private:
  static constexpr size_t kSmallBytes = 64, kMostSmall = 128;

  uint8_t* bytes_;
  Packet packet_;
  size_t transport_;  // offset of the TCP or UDP header
  size_t header_bytes_;
  size_t payload_bytes_;
  size_t gso_size_;
  size_t offset_;  // into the payload
  uint16_t index_;
  bool tcp_;
  uint64_t addresses_sum_;
};

/// Copies the first packet of a buffer read from the TUN to `to`, as far as there is room. The copy is as the packet
/// would have been sent: cut from its superpacket, with its checksum complete. `packet` receives its shape. Copies a
/// malformed packet unchanged.
std::span<const uint8_t> first_as_sent(const VirtioHeader& virtio, uint8_t* bytes, Packet& packet,
                                       std::span<uint8_t> to);

/// The number of packets in what was read from the TUN; 1 when that cannot be told.
inline size_t count_packets(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet) {
  Segmenter segments;
  return virtio.gso_type != kGsoNone && segments.begin(virtio, bytes, packet) ? segments.count() : 1;
}

}  // namespace weft
