// core_fuzz.cc - the core under libFuzzer: its functions by the jobs of core_jobs.h, and both walks of a packet whole.
//
// The first byte of an input says which; the rest is jobs, or what a TUN or a socket delivers: messages, each a length
// (uint16) and bytes. Nothing may be read or written out of bounds, whatever the bytes are; the packets that leave
// must be whole ones. scripts/fuzz.mjs builds and runs it.
#include <fcntl.h>
#include <sys/socket.h>

#include <cstdlib>

#include "../../native/egress.h"
#include "../../native/encap/flannel_udp.h"
#include "../../native/encap/vxlan.h"
#include "../../native/ingress.h"
#include "core_jobs.h"

using namespace weft;

namespace {

/// A pair of connected sockets that keep messages apart, as a TUN and a UDP socket do.
struct Pair {
  explicit Pair(int type) {
    int fds[2];
    if (socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, fds) < 0) abort();
    inside = Fd(fds[0]);
    outside = Fd(fds[1]);
  }
  Fd inside, outside;
};

template <typename Each>
void each_message(const uint8_t* bytes, size_t size, Each each) {
  while (size >= 2) {
    const size_t length = std::min<size_t>(load<uint16_t>(bytes), size - 2);
    each(bytes + 2, length);
    bytes += 2 + length;
    size -= 2 + length;
  }
}

/// Takes all that came out and checks that each is a packet of its own length.
void expect_packets(int fd, size_t header_bytes) {
  static std::vector<uint8_t> buffer(1 << 17);
  for (ssize_t size; (size = recv(fd, buffer.data(), buffer.size(), 0)) > 0;) {
    Packet packet;
    const size_t length = static_cast<size_t>(size) - header_bytes;
    if (static_cast<size_t>(size) < header_bytes ||
        read_packet(buffer.data() + header_bytes, length, packet) != Shape::kOk || packet.total != length)
      abort();
  }
}

/// Without UDP_SEGMENT on sending, since a Unix socket stands for the UDP one.
constexpr uint32_t kFeatures = kAllFeatures & ~kUdpGso;

/// Everything, or what half of the addresses send to the other half. A Unix socket names no sender: all are at 0.
const FilterOptions kFilters[] = {{}, {VerifySource::kStrict, {0, 0}, {to_be32(1u << 31), to_be32(1u << 31)}}};

std::vector<uint8_t> one_peer() {
  std::vector<uint8_t> record(PeerTable::kRecordBytes);
  record[0] = record[2] = 4;
  record[1] = 1;
  return record;
}

/// Of a VXLAN frame all of whose bytes are 0 but the flag.
OwnEnd own_end() {
  OwnEnd own;
  own.mtu = 1450;
  return own;
}

template <typename Encap>
void inward(const uint8_t* bytes, size_t size, const FilterOptions& filter) {
  Pair tun(SOCK_SEQPACKET), udp(SOCK_DGRAM);
  std::vector<uint64_t> row(kCounterCount);
  Features features(kFeatures);
  PeerTables peers(1);
  peers.replace(std::make_unique<const PeerTable>(one_peer()));
  Strangers strangers;
  TrafficRows traffic;

  const CounterRow counters(row.data());
  Ingress<Encap> ingress({tun.inside.get(), udp.inside.get(), udp.inside.get(), 1, 2, SIZE_MAX, &features, counters,
                          &traffic, filter, &strangers},
                         peers.reader(0), own_end());
  each_message(bytes, size, [&](const uint8_t* at, size_t length) { send(udp.outside.get(), at, length, 0); });
  while (ingress.pump().items > 0) expect_packets(tun.outside.get(), sizeof(VirtioHeader));
}

/// Messages as a socket with UDP_GRO may give them: the first two bytes of each are what its datagrams were joined by.
void strip(const uint8_t* bytes, size_t size) {
  const Vxlan vxlan(own_end());
  each_message(bytes, size, [&](const uint8_t* at, size_t length) {
    if (length < 2) return;
    std::vector<uint8_t> copy(at + 2, at + length);  // on the heap, where a sanitizer sees its end
    Message message{copy.data(), copy.size(), load<uint16_t>(at)};
    do {
      const Stripped stripped = vxlan.strip(message);
      Packet packet;
      if (!stripped.drop && read_packet(stripped.packet.data(), stripped.packet.size(), packet) != Shape::kOk) abort();
      if (!stripped.drop) count_packets(stripped.undone, stripped.packet.data(), packet);
    } while (message.size > 0);
  });
}

void outward(const uint8_t* bytes, size_t size) {
  Pair tun(SOCK_SEQPACKET), udp(SOCK_SEQPACKET);
  std::vector<uint64_t> row(kCounterCount);
  Features features(kFeatures);
  PeerTables peers(1);
  // One peer for all of IPv4 and one for all of IPv6; a connected Unix socket ignores their addresses.
  std::vector<uint8_t> records(2 * PeerTable::kRecordBytes);
  records[0] = 4;
  records[2] = 4;
  records[PeerTable::kRecordBytes] = 6;
  records[PeerTable::kRecordBytes + 2] = 4;
  peers.replace(std::make_unique<const PeerTable>(records));
  TrafficRows traffic;
  Egress<FlannelUdp> egress({tun.inside.get(), udp.inside.get(), udp.inside.get(), 1, 2, SIZE_MAX, &features,
                             CounterRow(row.data()), &traffic},
                            peers.reader(0), OwnEnd{});
  each_message(bytes, size, [&](const uint8_t* at, size_t length) {
    if (send(tun.outside.get(), at, length, 0) < 0) return;
    while (egress.pump().items > 0) expect_packets(udp.outside.get(), 0);
    expect_packets(tun.outside.get(), sizeof(VirtioHeader));
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  switch (bytes[0]) {
    case 'O':
      outward(bytes + 1, size - 1);
      break;
    case 'I':
      for (const FilterOptions& filter : kFilters) inward<FlannelUdp>(bytes + 1, size - 1, filter);
      break;
    case 'V':
      for (const FilterOptions& filter : kFilters) inward<Vxlan>(bytes + 1, size - 1, filter);
      break;
    case 'S':
      strip(bytes + 1, size - 1);
      break;
    default:
      Jobs(bytes + 1, size - 1).run();
  }
  return 0;
}
