// coalesce.cc - decides which packets may be merged, and writes the header of the merged packet.
#include "coalesce.h"

#include <algorithm>

#include "checksum.h"

namespace weft {

/// A TCP or UDP packet that might be merged with other packets of its flow.
struct Coalescer::Flow {
  uint8_t* bytes;
  uint8_t* transport;
  uint32_t total;
  uint16_t payload_bytes;
  uint8_t header_bytes;
  uint8_t version;
  bool tcp;
  bool eligible;  ///< true if the packet may be merged with other packets at all
  bool ends_run;  ///< true if no packet may be merged after this one (TCP PSH)
  bool open;      ///< true if the checksum is incomplete: its field has only the pseudo-header's sum
};

namespace {

/// True for the IPv6 next headers that can precede the transport header (RFC 8200 section 4), including the fragment
/// header. Packets with such a header are not merged.
bool is_extension(uint8_t protocol) {
  return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_FRAGMENT ||
         protocol == IPPROTO_DSTOPTS;
}

bool equal(const uint8_t* a, const uint8_t* b, size_t from, size_t to) {
  return std::memcmp(a + from, b + from, to - from) == 0;
}

/// True if two IP headers are equal in all fields that a merged packet can have only once. Must be called only for
/// headers without options.
bool same_network(const uint8_t* a, const uint8_t* b, uint8_t version) {
  if (version == 4) {
    return load<uint16_t>(a) == load<uint16_t>(b) && load<uint32_t>(a + 6) == load<uint32_t>(b + 6) &&
           load<uint64_t>(a + 12) == load<uint64_t>(b + 12);
  }
  return load<uint32_t>(a) == load<uint32_t>(b) && load<uint16_t>(a + 6) == load<uint16_t>(b + 6) && equal(a, b, 8, 40);
}

/// Hashes addresses and ports of a packet. Callers must use the upper bits of the hash, because the lower bits are
/// mixed poorly.
uint64_t flow_hash(const uint8_t* bytes, const uint8_t* transport, uint8_t version) {
  uint64_t mix = load<uint32_t>(transport);
  if (version == 4) {
    mix ^= load<uint64_t>(bytes + 12) * 0x9e3779b97f4a7c15ull;
  } else {
    for (size_t at = 8; at < 40; at += 8) mix = (mix ^ load<uint64_t>(bytes + at)) * 0x9e3779b97f4a7c15ull;
  }
  return mix * 0x9e3779b97f4a7c15ull;
}

/// True if the TCP or UDP checksum is correct. An `open` packet has no complete checksum yet, and counts as correct.
bool checksum_is_right(const uint8_t* bytes, const uint8_t* transport, uint32_t total, uint8_t version, bool tcp,
                       bool open) {
  if (open) return true;
  const uint32_t size = total - static_cast<uint32_t>(transport - bytes);
  const size_t at = version == 4 ? 12 : 8;
  uint64_t sum = pseudo_header_sum(bytes + at, version == 4 ? 8 : 32, tcp ? IPPROTO_TCP : IPPROTO_UDP, size);
  return checksum_fold(checksum_add(sum, transport, size)) == 0xffff;
}

}  // namespace

Coalescer::Coalescer()
    : pieces_(std::make_unique_for_overwrite<Piece[]>(kMaxPackets)),
      runs_(std::make_unique_for_overwrite<Run[]>(kMaxWrites)),
      virtio_(kMaxWrites),
      headers_(std::make_unique_for_overwrite<uint8_t[]>(kMaxWrites * kMaxHeadersBytes)),
      open_(size_t{1} << kSlotBits, kNone) {}

void Coalescer::clear() {
  packet_count_ = 0;
  write_count_ = 0;
  std::fill(open_.begin(), open_.end(), kNone);
}

uint32_t Coalescer::append(uint8_t* bytes, uint32_t total, bool open) {
  pieces_[packet_count_] = {bytes, kNone, static_cast<uint16_t>(total), open};
  return static_cast<uint32_t>(packet_count_++);
}

uint32_t Coalescer::start_run(uint8_t* bytes, uint32_t total, const VirtioHeader& undone) {
  Run& run = runs_[write_count_];
  run = {};
  run.first = run.last = append(bytes, total, undone.flags & kVirtioNeedsCsum);
  run.total = run.bytes = total;
  run.count = run.packets = 1;
  virtio_[write_count_] = undone;
  return static_cast<uint32_t>(write_count_++);
}

/// Reads the fields of a TCP or UDP packet with a whole transport header.
inline Coalescer::Flow Coalescer::flow_of(uint8_t* bytes, const Packet& packet, const CoalesceLimits& limits,
                                          const VirtioHeader& undone) {
  const bool tcp = packet.protocol == IPPROTO_TCP;
  Flow flow;
  flow.bytes = bytes;
  flow.transport = bytes + packet.ip_bytes;
  flow.total = packet.total;
  flow.version = packet.version;
  flow.tcp = tcp;
  flow.open = undone.flags & kVirtioNeedsCsum;
  const bool plain = undone.gso_type == kGsoNone && (packet.version == 6 || packet.ip_bytes == kIpv4HeaderBytes);
  if (tcp) {
    const size_t tcp_bytes = static_cast<size_t>(flow.transport[12] >> 4) * 4;
    const size_t headers = packet.ip_bytes + tcp_bytes;
    const uint8_t flags = flow.transport[13];
    flow.eligible = limits.tcp && plain && tcp_bytes >= kTcpHeaderBytes && headers < packet.total &&
                    (flags & ~(kPsh | kEce)) == kAck;
    flow.header_bytes = static_cast<uint8_t>(headers);
    flow.payload_bytes = static_cast<uint16_t>(packet.total - headers);
    flow.ends_run = (flags & kPsh) != 0;
  } else {
    const size_t headers = packet.ip_bytes + kUdpHeaderBytes;
    flow.eligible = limits.udp && plain && packet.total > headers &&
                    load<uint16_t>(flow.transport + kUdpChecksum) != 0 &&
                    load_be16(flow.transport + 4) == packet.total - packet.ip_bytes;
    flow.header_bytes = static_cast<uint8_t>(headers);
    flow.payload_bytes = static_cast<uint16_t>(packet.total - headers);
    flow.ends_run = false;
  }
  return flow;
}

/// Merges a packet into the superpacket `run`. Returns true if no packet may be merged into `run` after this packet.
inline bool Coalescer::extend(Run& run, const Flow& flow) {
  const uint32_t piece = append(flow.bytes, flow.total, flow.open);
  pieces_[run.last].next = piece;
  run.last = piece;
  run.count++;
  run.packets++;
  run.total += flow.payload_bytes;
  run.bytes += flow.total;
  run.next_sequence += flow.payload_bytes;
  run.next_id++;
  run.push = flow.ends_run;
  return flow.ends_run || flow.payload_bytes < run.segment_bytes;
}

void Coalescer::add(uint8_t* bytes, const Packet& packet, const CoalesceLimits& limits, const VirtioHeader& undone) {
  const bool tcp = packet.protocol == IPPROTO_TCP;
  const size_t least = packet.ip_bytes + (tcp ? kTcpHeaderBytes : kUdpHeaderBytes);
  if (packet.fragment || (packet.version == 6 && is_extension(packet.protocol))) {
    // A fragment without ports may belong to any flow. To keep the order within its flow, do not merge packets after
    // the fragment with packets before it.
    std::fill(open_.begin(), open_.end(), kNone);
    start_run(bytes, packet.total, undone);
    return;
  }
  if ((!tcp && packet.protocol != IPPROTO_UDP) || packet.total < least) {
    start_run(bytes, packet.total, undone);
    return;
  }

  const Flow flow = flow_of(bytes, packet, limits, undone);
  uint32_t& open = open_[flow_hash(bytes, flow.transport, packet.version) >> (64 - kSlotBits)];
  if (!flow.eligible) {
    open = kNone;
    Run& run = runs_[start_run(bytes, packet.total, undone)];
    run.udp = !tcp;
    const OnWire on_wire = count_on_wire(undone, bytes, packet);
    run.packets = static_cast<uint16_t>(on_wire.packets);
    run.bytes = static_cast<uint32_t>(on_wire.bytes);
    return;
  }
  if (open != kNone && joins(runs_[open], flow, limits)) {
    if (extend(runs_[open], flow)) open = kNone;
    return;
  }
  const uint32_t index = start_run(bytes, packet.total, undone);
  Run& run = runs_[index];
  run.udp = !tcp;
  run.version = packet.version;
  run.header_bytes = flow.header_bytes;
  run.segment_bytes = flow.payload_bytes;
  if (tcp) run.next_sequence = load_be32(flow.transport + 4) + flow.payload_bytes;
  if (packet.version == 4) run.next_id = static_cast<uint16_t>(load_be16(bytes + 4) + 1);
  open = flow.ends_run ? kNone : index;
}

bool Coalescer::joins(Run& run, const Flow& flow, const CoalesceLimits& limits) {
  uint8_t* head = pieces_[run.first].bytes;
  if (flow.payload_bytes > run.segment_bytes || run.total + flow.payload_bytes > 65535) return false;
  if (run.count >= (run.udp ? limits.udp_segments : kMaxRun)) return false;
  if (!same_network(head, flow.bytes, flow.version)) return false;
  // Without DF, receivers need the IPv4 identification to reassemble fragments, so the identification must stay
  // consecutive. With DF the identification has no meaning (RFC 6864 section 4.1).
  if (flow.version == 4 && !(load_be16(head + 6) & kDontFragment) && load_be16(flow.bytes + 4) != run.next_id) {
    return false;
  }
  const uint8_t* head_transport = head + (flow.transport - flow.bytes);
  if (load<uint32_t>(head_transport) != load<uint32_t>(flow.transport)) return false;  // ports
  if (flow.tcp) {
    const size_t tcp_bytes = static_cast<size_t>(flow.bytes + flow.header_bytes - flow.transport);
    if (load_be32(flow.transport + 4) != run.next_sequence) return false;
    if (!equal(head_transport, flow.transport, 8, 13)) return false;  // acknowledgement, data offset, reserved bits
    if ((head_transport[13] ^ flow.transport[13]) & ~kPsh) return false;
    if (!equal(head_transport, flow.transport, 14, 16)) return false;         // window
    if (!equal(head_transport, flow.transport, 18, tcp_bytes)) return false;  // urgent pointer, options
  }
  if (!run.verified) {
    // Verify the checksum of the first packet when a second packet is merged with it. A damaged packet must not be
    // merged, because merging computes a new checksum that would hide the damage.
    if (!checksum_is_right(head, head_transport, pieces_[run.first].total, run.version, flow.tcp,
                           pieces_[run.first].open)) {
      return false;
    }
    run.verified = true;
  }
  return checksum_is_right(flow.bytes, flow.transport, flow.total, flow.version, flow.tcp, flow.open);
}

size_t Coalescer::write(size_t index, iovec* iov) {
  const Run& run = runs_[index];
  VirtioHeader& virtio = virtio_[index];
  iov[0] = {&virtio, sizeof virtio};
  const Piece& first = pieces_[run.first];
  if (run.count == 1) {
    iov[1] = {first.bytes, first.total};
    return 2;
  }

  uint8_t* header = headers_.get() + index * kMaxHeadersBytes;
  std::memcpy(header, first.bytes, run.header_bytes);
  const size_t ip_bytes = run.version == 4 ? kIpv4HeaderBytes : kIpv6HeaderBytes;
  uint8_t* transport = header + ip_bytes;
  const uint16_t transport_total = static_cast<uint16_t>(run.total - ip_bytes);
  if (run.version == 4) {
    store_be16(header + 2, static_cast<uint16_t>(run.total));
    store(header + 10, ipv4_header_checksum(header, kIpv4HeaderBytes));
  } else {
    store_be16(header + 4, transport_total);
  }
  // The kernel computes the checksum of each segment, starting from the pseudo-header's sum in the checksum field
  // (virtio 1.2 section 5.1.6.2).
  const size_t field = run.udp ? kUdpChecksum : kTcpChecksum;
  if (run.udp) store_be16(transport + 4, transport_total);
  if (!run.udp && run.push) transport[13] |= kPsh;
  const uint64_t sum = pseudo_header_sum(header + (run.version == 4 ? 12 : 8), run.version == 4 ? 8 : 32,
                                         run.udp ? IPPROTO_UDP : IPPROTO_TCP, transport_total);
  store(transport + field, checksum_fold(sum));
  virtio = {.flags = kVirtioNeedsCsum,
            .gso_type = run.udp            ? kGsoUdp
                        : run.version == 4 ? kGsoTcp4
                                           : kGsoTcp6,
            .hdr_len = run.header_bytes,
            .gso_size = run.segment_bytes,
            .csum_start = static_cast<uint16_t>(ip_bytes),
            .csum_offset = static_cast<uint16_t>(field)};

  iov[1] = {header, run.header_bytes};
  size_t count = 2;
  for (uint32_t at = run.first; at != kNone; at = pieces_[at].next) {
    iov[count++] = {pieces_[at].bytes + run.header_bytes, size_t{pieces_[at].total} - run.header_bytes};
  }
  return count;
}

}  // namespace weft
