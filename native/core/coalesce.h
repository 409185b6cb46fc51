// coalesce.h - joins received packets of one flow into superpackets, so that the kernel takes many by one write.
//
// The inverse of segment.h, for what arrived in one receive batch. Packets are added in order and come out as writes
// in the order in which each write's first packet came in. A flow's packets never overtake each other: a packet that
// may not join the open run of its flow closes that run and starts a write of its own behind it. Nothing is held
// beyond the batch.
//
// A packet joins a run only if cutting the result again (segment.h, or the kernel) gives back the same packets, but for
// the identification of those with DF, which means nothing (RFC 6864 section 4.1) and counts up then: same addresses,
// ports, TOS or traffic class with ECN, TTL, DF; TCP: same acknowledgement, window, flags and options, the next
// sequence number; UDP: a checksum is present; equal payload size, a shorter one ends the run, and so does PSH. Never:
// SYN, FIN, RST, URG, CWR, IP options and extension headers, fragments, an empty payload. Both inner checksums are new
// in a joined packet. That of the IP header was right in all that is added (inspect.h); the other is verified before
// two packets are joined: one that was damaged on the way must go on with the sum that betrays it. What another kernel
// of this machine left without a sum has nothing to verify, and one that it left uncut goes on so.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "packet.h"
#include "segment.h"
#include "virtio.h"

namespace weft {

/// The kinds that may be joined, and the number of UDP packets: 64 before Linux 6.9, 128 since (UDP_MAX_SEGMENTS).
struct CoalesceLimits {
  bool tcp = true;
  bool udp = true;
  uint16_t udp_segments = 128;
};

class Coalescer {
 public:
  /// Packets that one batch may hold; add() must not be called when full().
  static constexpr size_t kMaxPackets = 2048;
  static constexpr size_t kMaxWrites = 512;
  /// iovecs of the longest write: the virtio header, the packet header, a slice for each segment.
  static constexpr size_t kMaxRun = 512;
  static constexpr size_t kMaxIovecs = kMaxRun + 2;

  Coalescer();

  bool full() const { return packet_count_ == kMaxPackets || write_count_ == kMaxWrites; }

  /// Takes a packet of `packet.total` bytes whose IP header is sound; `bytes` is borrowed until clear(). `undone` is of
  /// a packet that is not finished: its sum, and it may be a superpacket.
  void add(uint8_t* bytes, const Packet& packet, const CoalesceLimits& limits, const VirtioHeader& undone = {});

  size_t writes() const { return write_count_; }

  /// Packets in write `index`, joined or not yet cut; 1 for one that goes as it came.
  size_t run_packets(size_t index) const { return runs_[index].packets; }
  /// True when these are UDP packets.
  bool is_udp(size_t index) const { return runs_[index].udp; }
  /// True when write `index` is a superpacket as it came.
  bool is_uncut(size_t index) const { return runs_[index].packets > 1 && runs_[index].count == 1; }
  /// True for a single packet whose sum is still to be finished.
  bool is_open(size_t index) const { return runs_[index].count == 1 && pieces_[runs_[index].first].open; }
  /// Puts write `index` into `iov`, virtio header first, and returns the number of iovecs. Valid until clear().
  size_t write(size_t index, iovec* iov);
  /// Calls `each(header, payload)` for the packets of write `index`, finished, to send them singly: as they came in, or
  /// cut. The payload may be empty.
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
    bool open;  // its sum is the pseudo header's alone
  };
  struct Run {
    uint32_t first, last;    // pieces
    uint32_t total;          // bytes of the joined packet so far
    uint32_t next_sequence;  // TCP
    uint16_t next_id;        // IPv4
    uint16_t count;          // of pieces
    uint16_t packets;        // more than pieces where one is a superpacket
    uint16_t segment_bytes;  // payload of the first
    uint8_t header_bytes;
    uint8_t version;
    bool udp;
    bool verified;
    bool push;
  };
  struct Flow;  // a packet that could take part

  bool joins(Run& run, const Flow& flow, const CoalesceLimits& limits);
  uint32_t append(uint8_t* bytes, uint32_t total, bool open);
  uint32_t start_run(uint8_t* bytes, uint32_t total, const VirtioHeader& undone);

  size_t packet_count_ = 0;
  size_t write_count_ = 0;
  // Not written to before they are used: a lane that is idle has no memory.
  std::unique_ptr<Piece[]> pieces_;
  std::unique_ptr<Run[]> runs_;
  std::vector<VirtioHeader> virtio_;
  std::unique_ptr<uint8_t[]> headers_;  // kMaxHeadersBytes for each write
  std::vector<uint32_t> open_;          // by hash of the flow: its open run; a collision only closes a run early
};

}  // namespace weft
