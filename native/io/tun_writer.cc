// tun_writer.cc - writes packets to the TUN with writev, and handles the errors of these writes.
#include "tun_writer.h"

#include <errno.h>

namespace weft {

bool write_packet(int tun, bool header, std::span<uint8_t> packet, std::span<uint8_t> payload) {
  VirtioHeader virtio;
  const iovec iov[3] = {{&virtio, sizeof virtio}, {packet.data(), packet.size()}, {payload.data(), payload.size()}};
  const int count = payload.empty() ? 1 : 2;
  return (header ? writev(tun, iov, 1 + count) : writev(tun, iov + 1, count)) >= 0;
}

TunWriter::TunWriter(int tun, Features* features, CounterRow counters, Drops* drops)
    : tun_(tun),
      header_(features->has(kTunHeader)),
      features_(features),
      counters_(counters),
      drops_(drops),
      learnt_(features),
      iovecs_(Coalescer::kMaxIovecs) {}

CoalesceLimits TunWriter::limits() const {
  return {features_->has(kCoalesceTcp), features_->has(kCoalesceUdp), learnt_.udp_segments()};
}

Failure TunWriter::write(Coalescer& packets) {
  Failure failure;
  for (size_t i = 0; i < packets.writes(); i++) {
    if (!takes(packets, i)) {
      write_singly(packets, i);
      continue;
    }
    const size_t count = packets.write(i, iovecs_.data());
    // Skip the virtio header if the TUN does not use virtio headers. Such a TUN gets only single packets with complete
    // checksums.
    const size_t skip = header_ ? 0 : 1;
    if (writev(tun_, iovecs_.data() + skip, static_cast<int>(count - skip)) < 0) {
      refused(packets, i, errno, failure);
      continue;
    }
    counters_.add(k_tun_writes);
    counters_.add(k_rx_packets, packets.run_packets(i));
    counters_.add(k_rx_bytes, packets.run_bytes(i));
  }
  packets.clear();
  return failure;
}

void TunWriter::refused(Coalescer& packets, size_t index, int error, Failure& failure) {
  const size_t count = packets.run_packets(index);
  const uint32_t joined_by = count == 1 ? 0u : packets.is_udp(index) ? kCoalesceUdp : kCoalesceTcp;
  const Attempt attempt{Way::kTun, joined_by, count};
  const Consequence& consequence = consequence_of(attempt, error);
  if (consequence.then == Then::kGiveUp) failure = SystemError{"write to the TUN", error};
  if (consequence.then != Then::kSingly) {
    return packets.each_packet(index, [&](std::span<uint8_t> header, std::span<uint8_t> payload) {
      drops_->add({.reason = consequence.counted, .bytes = header, .more = payload});
    });
  }
  counters_.add(consequence.counted);
  const bool taken = write_singly(packets, index);
  // weft merges less in later writes if the kernel rejected a superpacket that weft itself merged. The rejection of a
  // superpacket that a vxlan device of this machine made has no effect on later writes.
  if (!packets.is_uncut(index)) learnt_.learn(consequence, attempt, taken);
}

/// False if the TUN cannot accept the write with the number `index`, because it is a packet without a complete checksum
/// or an unsegmented superpacket.
bool TunWriter::takes(const Coalescer& packets, size_t index) const {
  if (packets.is_uncut(index)) return features_->has(packets.is_udp(index) ? kCoalesceUdp : kCoalesceTcp);
  return header_ || !packets.is_open(index);
}

/// Writes the packets of a failed write one by one. Returns true if the kernel accepted at least one packet.
bool TunWriter::write_singly(Coalescer& packets, size_t index) {
  bool taken = false;
  packets.each_packet(index, [&](std::span<uint8_t> header, std::span<uint8_t> payload) {
    if (!write_packet(tun_, header_, header, payload)) {
      const Counter reason = consequence_of({Way::kTun, 0, 1}, errno).counted;
      return drops_->add({.reason = reason, .bytes = header, .more = payload});
    }
    counters_.add(k_tun_writes);
    counters_.add(k_rx_packets);
    counters_.add(k_rx_bytes, header.size() + payload.size());
    taken = true;
  });
  return taken;
}

}  // namespace weft
