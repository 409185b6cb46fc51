// coalesce.h - joins received packets of one flow into superpackets, so that one write hands many packets to the
// kernel.
//
// The Coalescer is the inverse of segment.h, for the packets of one receive batch. Packets are added in order. Writes
// come out in the order in which the first packet of each write came in. Packets of one flow never overtake each other:
// a packet that may not join the open run of its flow closes that run and starts a write of its own. Nothing is held
// beyond the batch.
//
// A packet joins a run only if cutting the result again (segment.h, or the kernel) gives back the same packets. Only
// the IPv4 identification of packets with DF may change, because it has no meaning there (RFC 6864 section 4.1). The
// conditions are:
//
// - The IP headers agree in addresses, TOS or traffic class with ECN, TTL and DF; the ports are the same.
// - TCP: acknowledgement, window, flags and options are the same, and the sequence number is the next one.
// - UDP: the packet has a checksum.
// - The payload has the size of the first one. A shorter payload ends the run, and so does PSH.
// - The packet has no SYN, FIN, RST, URG or CWR, no IP options or extension headers, is not a fragment, and its payload
//   is not empty.
//
// A joined packet gets new inner checksums. The IP header's checksum was verified before (inspect.h). The TCP or UDP
// checksum is verified before two packets are joined, so that a damaged packet keeps the checksum that reveals the
// damage. A packet that another kernel of this machine left without a checksum needs no verification. A superpacket
// that another kernel left uncut is written as it is.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "packet.h"
#include "segment.h"
#include "virtio.h"

namespace weft {

/// The kinds of packets that may be joined, and the maximum number of UDP packets in a run. The kernel's limit for UDP
/// (UDP_MAX_SEGMENTS) is 64 before Linux 6.9 and 128 since.
struct CoalesceLimits {
  bool tcp = true;
  bool udp = true;
  uint16_t udp_segments = 128;
};

class Coalescer {
 public:
  /// The capacity of one batch. add() must not be called when full().
  static constexpr size_t kMaxPackets = 2048;
  static constexpr size_t kMaxWrites = 512;
  /// The number of iovecs of the longest write: the virtio header, the packet header, and a slice for each segment.
  static constexpr size_t kMaxRun = 512;
  static constexpr size_t kMaxIovecs = kMaxRun + 2;

  Coalescer();

  bool full() const { return packet_count_ == kMaxPackets || write_count_ == kMaxWrites; }

  /// Adds a packet of `packet.total` bytes whose IP header was verified. `bytes` is borrowed until clear(). `undone`
  /// describes a packet that lacks its checksum or is a superpacket.
  void add(uint8_t* bytes, const Packet& packet, const CoalesceLimits& limits, const VirtioHeader& undone = {});

  size_t writes() const { return write_count_; }

  /// The number of packets in write `index`. A superpacket that was not cut counts as its segments.
  size_t run_packets(size_t index) const { return runs_[index].packets; }
  bool is_udp(size_t index) const { return runs_[index].udp; }
  /// True if write `index` is a superpacket that came in uncut.
  bool is_uncut(size_t index) const { return runs_[index].packets > 1 && runs_[index].count == 1; }
  /// True if write `index` is a single packet without a complete checksum.
  bool is_open(size_t index) const { return runs_[index].count == 1 && pieces_[runs_[index].first].open; }
  /// Puts write `index` into `iov`, virtio header first, and returns the number of iovecs. They are valid until
  /// clear().
  size_t write(size_t index, iovec* iov);
  /// Calls `each(header, payload)` for each packet of write `index`, to send the packets singly. Checksums are complete
  /// and superpackets are cut. The payload may be empty.
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
    bool open;  // The checksum field has the pseudo-header's sum only.
  };
  struct Run {
    uint32_t first, last;
    uint32_t total;          // The length of the joined packet so far, in bytes.
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

  bool joins(Run& run, const Flow& flow, const CoalesceLimits& limits);
  uint32_t append(uint8_t* bytes, uint32_t total, bool open);
  uint32_t start_run(uint8_t* bytes, uint32_t total, const VirtioHeader& undone);

  size_t packet_count_ = 0;
  size_t write_count_ = 0;
  // These arrays stay untouched until they are used, so that an idle lane takes no memory.
  std::unique_ptr<Piece[]> pieces_;
  std::unique_ptr<Run[]> runs_;
  std::vector<VirtioHeader> virtio_;
  std::unique_ptr<uint8_t[]> headers_;  // kMaxHeadersBytes for each write
  std::vector<uint32_t> open_;          // the open run for each hash of a flow; a collision only closes a run early
};

}  // namespace weft
