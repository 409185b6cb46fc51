// coalesce.h - merges received packets of one flow into superpackets (TCP or UDP packets of up to 64 KiB under one
// header), so that one write hands many packets to the kernel.
//
// The Coalescer is the inverse of segment.h. It works on the packets of one receive batch and holds no packet beyond
// the batch. The caller adds the packets in order. Each resulting write takes the place of its first packet. Packets of
// one flow never overtake each other: a packet that cannot be merged with its flow's unfinished superpacket ends that
// superpacket, and starts a write of its own.
//
// A packet is merged only if segmenting the result (by segment.h or the kernel) gives back the same packets. Only the
// IPv4 identification of packets with DF may change, because with DF it has no meaning (RFC 6864 section 4.1). The
// conditions are:
// - The IP headers agree in addresses, TOS or traffic class with ECN, TTL and DF; the ports are the same.
// - TCP: acknowledgement, window, flags and options are the same, and the sequence number is the next one.
// - UDP: the packet has a checksum.
// - The payload is as long as that of the first packet. A shorter payload, or PSH, ends the superpacket.
// - The packet has no SYN, FIN, RST, URG or CWR, no IP options or extension headers, is not a fragment, and its payload
//   is not empty.
//
// A superpacket gets a new inner checksum. The IP header's checksum was verified before (inspect.h). The TCP or UDP
// checksum of each packet is verified before it is merged, because a new checksum would hide damage. A vxlan device on
// the same machine may send packets without a checksum and superpackets without segmenting them (encap/vxlan.h). Such a
// packet needs no verification, and such a superpacket is written unchanged.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "packet.h"
#include "segment.h"
#include "virtio.h"

namespace weft {

/// The kinds of packets that may be merged, and the maximum number of UDP packets in a superpacket. The kernel's limit
/// for UDP (UDP_MAX_SEGMENTS) is 64 before Linux 6.9 and 128 since.
struct CoalesceLimits {
  bool tcp = true;
  bool udp = true;
  uint16_t udp_segments = 128;
};

class Coalescer {
 public:
  /// The maximum number of packets and of writes in one batch. add() must not be called when full() is true.
  static constexpr size_t kMaxPackets = 2048;
  static constexpr size_t kMaxWrites = 512;
  /// The maximum number of packets in a superpacket. kMaxIovecs is the maximum number of pieces of a write: a virtio
  /// header, a packet header, and one piece of payload per packet.
  static constexpr size_t kMaxRun = 512;
  static constexpr size_t kMaxIovecs = kMaxRun + 2;

  Coalescer();

  bool full() const { return packet_count_ == kMaxPackets || write_count_ == kMaxWrites; }

  /// Adds a packet of `packet.total` bytes whose IP header was verified. `bytes` must stay valid until clear().
  /// `undone` says whether the packet lacks its checksum or is a superpacket.
  void add(uint8_t* bytes, const Packet& packet, const CoalesceLimits& limits, const VirtioHeader& undone = {});

  size_t writes() const { return write_count_; }

  /// The number of packets in the write with the number `index`, that is, in one packet or superpacket for the TUN. A
  /// superpacket that arrived unsegmented counts as the number of its segments.
  size_t run_packets(size_t index) const { return runs_[index].packets; }
  /// The sum of the lengths of these packets in bytes, with the headers of each packet.
  size_t run_bytes(size_t index) const { return runs_[index].bytes; }
  bool is_udp(size_t index) const { return runs_[index].udp; }
  /// True if the write with the number `index` is a superpacket that a vxlan device on this machine sent without
  /// segmenting it.
  bool is_uncut(size_t index) const { return runs_[index].packets > 1 && runs_[index].count == 1; }
  /// True if the write with the number `index` is a single packet with an incomplete checksum.
  bool is_open(size_t index) const { return runs_[index].count == 1 && pieces_[runs_[index].first].open; }
  /// Puts the pieces of the write with the number `index` into `iov`, the virtio header first. Returns the number of
  /// iovecs, which stay valid until clear().
  size_t write(size_t index, iovec* iov);
  /// Calls `each(header, payload)` for each single packet of the superpacket with the number `index`. Used after the
  /// kernel has rejected the superpacket. The single packets have complete checksums. The payload may be empty.
  template <typename Each>
  void each_packet(size_t index, Each each) {
    Packet packet;
    for (uint32_t at = runs_[index].first; at != kNone; at = pieces_[at].next) {
      const Piece& piece = pieces_[at];
      read_packet(piece.bytes, piece.total, packet);
      if (is_uncut(index)) {
        Segmenter segments;
        if (!segments.begin(virtio_[index], piece.bytes, packet)) continue;
        uint8_t header[kMaxCutHeadersBytes];
        while (!segments.done()) {
          const Segment one = segments.next(header);
          each(std::span(one.header, one.header_bytes), std::span(one.payload, one.payload_bytes));
        }
        continue;
      }
      if (piece.open) finish_checksum(open_sum(packet), piece.bytes, packet);
      each(std::span(piece.bytes, piece.total), std::span<uint8_t>());
    }
  }

  void clear();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kSlotBits = 8;

  struct Piece {
    uint8_t* bytes;
    uint32_t next;
    uint16_t total;
    bool open;  // true if the checksum field has only the pseudo-header's sum
  };
  struct Run {
    uint32_t first, last;
    uint32_t total;          // The length of the merged packet so far, in bytes.
    uint32_t bytes;          // The sum of the lengths of the packets before they were merged, in bytes.
    uint32_t next_sequence;  // The sequence number that the next packet must have (TCP).
    uint16_t next_id;        // The identification that the next packet must have (IPv4 without DF).
    uint16_t count;
    uint16_t packets;        // The number of packets. It is more than `count` if a piece is a superpacket.
    uint16_t segment_bytes;  // The payload size of the first packet.
    uint8_t header_bytes;
    uint8_t version;
    bool udp;
    bool verified;
    bool push;
  };
  struct Flow;

  static Flow flow_of(uint8_t* bytes, const Packet& packet, const CoalesceLimits& limits, const VirtioHeader& undone);
  bool extend(Run& run, const Flow& flow);
  bool joins(Run& run, const Flow& flow, const CoalesceLimits& limits);
  uint32_t append(uint8_t* bytes, uint32_t total, bool open);
  uint32_t start_run(uint8_t* bytes, uint32_t total, const VirtioHeader& undone);

  size_t packet_count_ = 0;
  size_t write_count_ = 0;
  // The kernel provides memory for these arrays only when a thread writes to them, so an idle thread uses no physical
  // memory.
  std::unique_ptr<Piece[]> pieces_;
  std::unique_ptr<Run[]> runs_;
  std::vector<VirtioHeader> virtio_;
  std::unique_ptr<uint8_t[]> headers_;  // kMaxHeadersBytes for each write
  // The unfinished superpacket of each flow, by the flow's hash. If two flows have the same hash, a superpacket ends
  // earlier than necessary.
  std::vector<uint32_t> open_;
};

}  // namespace weft
