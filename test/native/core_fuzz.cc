// core_fuzz.cc - what a fuzzer throws at the core: its functions by the jobs of core_jobs.h, what is learnt from
// refusals, and both walks of a packet whole.
//
// The first byte of an input says which; the rest is jobs, refusals, sessions that were saved, or what a TUN or a
// socket delivers: messages, each a length (uint16) and bytes. Nothing may be read or written out of bounds, whatever
// the bytes are; the packets that leave must be whole ones, and those that reach the TUN sound ones. scripts/fuzz.mjs
// builds and runs it.
#include <fcntl.h>
#include <sys/socket.h>

#include <cstdlib>

#include "../../native/encap/flannel_udp.h"
#include "../../native/encap/vxlan.h"
#include "../../native/walk/egress.h"
#include "../../native/walk/ingress.h"
#include "core_jobs.h"
#include "packets.h"

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

/// What must be so of a packet of IPv6: it is from a host, and neither leads on nor speaks for a router of the link.
bool is_sound_ipv6(const uint8_t* bytes, size_t size) {
  const auto is_zero = [&](size_t from, size_t to) {
    return std::all_of(bytes + from, bytes + to, [](uint8_t byte) { return byte == 0; });
  };
  if (bytes[8] == 0xff || (bytes[8] == 0xfe && bytes[9] >> 6 == 2)) return false;
  if (is_zero(8, 20) || (is_zero(8, 18) && bytes[18] == 0xff && bytes[19] == 0xff)) return false;
  size_t at = 40;
  int headers = 0;
  for (unsigned next = bytes[6];; headers++) {
    if (next == 58) return at >= size || bytes[at] < 133 || bytes[at] > 137;
    if (next != 0 && next != 43 && next != 44 && next != 60) return headers <= 8 && at <= size;
    if (at + 8 > size || (next == 0 && headers > 0)) return false;
    const unsigned offset = (bytes[at + 2] * 256u + bytes[at + 3]) & ~7u;
    if (next == 43 && (bytes[at + 2] == 0 || bytes[at + 3] != 0)) return false;
    if (next == 44 && offset > 0) return at + 8 < size && at - 40 + offset + (size - at - 8) <= 65535;
    const size_t length = next == 44 ? 8 : (bytes[at + 1] + 1u) * 8;
    next = bytes[at];
    at += length;
  }
}

/// What must be so of all that reaches the TUN, said another way than native/ does.
bool is_sound(const uint8_t* bytes, size_t size) {
  if (bytes[0] >> 4 == 6) return is_sound_ipv6(bytes, size);
  const size_t header = (bytes[0] & 15) * 4u;
  if (reference_fold(reference_sum(bytes, header)) != 0xffff) return false;
  const unsigned offset = (bytes[6] & 31u) * 256 + bytes[7];
  const bool more = bytes[6] & 32;
  if ((offset > 0 || more) && (size == header || offset * 8 + size > 65535)) return false;
  if (more && (size - header) % 8 != 0) return false;
  for (size_t at = 20; at < header && bytes[at] != 0; at += bytes[at] == 1 ? 1u : bytes[at + 1]) {
    if (bytes[at] == 131 || bytes[at] == 137) return false;
    if (bytes[at] != 1 && (at + 1 == header || bytes[at + 1] < 2 || at + bytes[at + 1] > header)) return false;
  }
  return true;
}

/// Takes all that came out and checks that each is a packet of its own length.
void expect_packets(int fd, size_t header_bytes, bool sound = false) {
  static std::vector<uint8_t> buffer(1 << 17);
  for (ssize_t size; (size = recv(fd, buffer.data(), buffer.size(), 0)) > 0;) {
    Packet packet;
    const uint8_t* bytes = buffer.data() + header_bytes;
    const size_t length = static_cast<size_t>(size) - header_bytes;
    if (static_cast<size_t>(size) < header_bytes || !read_packet(bytes, length, packet) || packet.total != length ||
        (sound && !is_sound(bytes, length)))
      abort();
  }
}

/// Makes the IPv4 header's checksum right, which no mutation would find.
void mend(uint8_t* bytes, size_t size) {
  const size_t header = size < 20 ? 0 : (bytes[0] & 15) * 4u;
  if (header >= 20 && header <= size) store(bytes + 10, ipv4_header_checksum(bytes, header));
}

/// Without UDP_SEGMENT on sending, since a Unix socket stands for the UDP one.
constexpr uint32_t kFeatures = kAllFeatures & ~kUdpGso;

struct Setting {
  uint32_t features;
  FilterOptions filter;
};
/// Everything, on a TUN that takes all; what half of the addresses send to the other half, on one that takes nothing
/// joined. A Unix socket names no sender: all are at ::, as the peer is.
const Setting kSettings[] = {
    {kFeatures, {}},
    {kTunHeader,
     {VerifySource::kStrict,
      {Net::of(Address::v4(0), 0), Net::of(Address(), 0)},
      {Net::of(Address::v4(to_be32(1u << 31)), 1),
       Net::of(Address::of_words(kLittleEndian ? 0x80 : 1ull << 63, 0), 1)}}},
};

/// The sources of ICMP errors, of both families.
const ByFamily<Address> kTunAddress{Address::v4(1), Address::of_words(0xfd, 1)};
const ByFamily<Address> kNetworkAddress{Address::v4(2), Address::of_words(0xfd, 2)};

/// One in both families.
std::vector<uint8_t> one_peer() {
  std::vector<uint8_t> records(2 * sizeof(PeerRecord));
  for (size_t at = 0; at < records.size(); at += sizeof(PeerRecord)) {
    records[at] = at == 0 ? 4 : 6;
    records[at + 1] = 1;
    records[at + 2] = 6;
  }
  return records;
}

/// Of a VXLAN frame all of whose bytes are 0 but the flag.
OwnEnd own_end() {
  OwnEnd own;
  own.mtu = 1450;
  return own;
}

/// What is kept of drops was counted, and is no more than there was.
void expect_counted(const Drops& drops, std::vector<uint64_t> row) {
  drops.read(0, [&](const KeptDrop& kept) {
    if (kept.packets == 0 || row[kept.reason] < kept.packets || kept.size > kept.length) abort();
    row[kept.reason] -= kept.packets;
  });
}

template <typename Encap>
void inward(const uint8_t* bytes, size_t size, bool mended, const Setting& setting) {
  Pair tun(SOCK_SEQPACKET), udp(SOCK_DGRAM);
  std::vector<uint64_t> row(kCounterCount);
  Features features(setting.features);
  PeerTables peers(1);
  peers.set(one_peer());
  Strangers strangers;
  TrafficRows traffic;
  IcmpLimits icmp{1};
  const CounterRow counters(row.data());
  Drops drops(counters, monotonic_us);
  const Path path{.tun = tun.inside.get(),
                  .socket = udp.inside.get(),
                  .sender = udp.inside.get(),
                  .tun_address = kTunAddress,
                  .network_address = kNetworkAddress,
                  .features = &features,
                  .counters = counters,
                  .traffic = &traffic,
                  .rx_drops = &drops,
                  .filter = setting.filter,
                  .strangers = &strangers,
                  .icmp = &icmp,
                  .clamp_mtu = 1400};
  Ingress<Encap> ingress(path, peers.reader(0), Encap(own_end()));
  each_message(bytes, size, [&](const uint8_t* at, size_t length) {
    std::vector<uint8_t> message(at, at + length);
    if (mended && length > Encap::kHeaderBytes) mend(&message[Encap::kHeaderBytes], length - Encap::kHeaderBytes);
    send(udp.outside.get(), message.data(), message.size(), 0);
  });
  while (ingress.pump().items > 0) expect_packets(tun.outside.get(), sizeof(VirtioHeader), true);
  strangers.take([&](const Stranger& stranger) {
    if (row[stranger.reason] == 0) abort();
  });
  expect_counted(drops, row);
}

/// Refusals as they may follow each other, eight bytes each: what they lead to is one of few things, and ends.
void refuse(const uint8_t* bytes, size_t size) {
  Features features(kAllFeatures);
  Learnt learnt(&features);
  int64_t now_ms = 0;
  Endpoint endpoint{};
  for (; size >= 8; bytes += 8, size -= 8) {
    const bool joined = bytes[0] & 1;
    const size_t packets = joined ? 2u + bytes[1] : 1;
    now_ms += load_be16(bytes + 2);
    endpoint.to = SocketAddress(Address::v4(bytes[4]), 0);
    const int error = bytes[5];
    const bool taken = bytes[6] & 1;
    if (bytes[0] & 2) {
      const Attempt attempt{Way::kTun, joined ? kCoalesceTcp << (bytes[0] >> 2 & 1) : 0u, packets};
      const Consequence& consequence = consequence_of(attempt, error);
      if (consequence.then == Then::kSingly) learnt.learn(consequence, attempt, taken);
      if (consequence.then == Then::kSingly && !joined) abort();
    } else {
      const Attempt attempt{Way::kPeers, joined ? kUdpGso : 0u, packets};
      const Consequence& consequence = consequence_of(attempt, error);
      if (consequence.then == Then::kSingly && !joined) abort();
      if (consequence.then == Then::kSingly) learnt.learn(consequence, taken, endpoint, load_be16(bytes + 2), now_ms);
    }
    const uint16_t most = learnt.udp_segments_to(endpoint, [&] { return now_ms; });
    if (most != 1 && most != kOldUdpSegments && most != kUdpSegments) abort();
    if (learnt.udp_segments_to(endpoint, [&] { return now_ms + kRememberedMs; }) != kUdpSegments) abort();
  }
}

/// Messages as a socket with UDP_GRO may give them: the first two bytes of each are what its datagrams were joined by.
void open_each(const uint8_t* bytes, size_t size) {
  const Vxlan vxlan(own_end());
  each_message(bytes, size, [&](const uint8_t* at, size_t length) {
    if (length < 2) return;
    std::vector<uint8_t> copy(at + 2, at + length);  // on the heap, where a sanitizer sees its end
    Message message{copy.data(), copy.size(), load<uint16_t>(at)};
    do {
      const Opened opened = vxlan.open(message);
      if (opened.what != Opened::What::kPacket) continue;
      Packet packet;
      if (!read_packet(opened.bytes.data(), opened.bytes.size(), packet)) abort();
      count_packets(opened.undone, opened.bytes.data(), packet);
    } while (message.size > 0);
  });
}

/// `outer` is the family of the datagrams.
void outward(const uint8_t* bytes, size_t size, size_t path_bytes, uint8_t outer) {
  Pair tun(SOCK_SEQPACKET), udp(SOCK_SEQPACKET);
  std::vector<uint64_t> row(kCounterCount);
  Features features(kFeatures);
  PeerTables peers(2);
  // One peer for all of IPv4 and one for all of IPv6; a connected Unix socket ignores their addresses.
  std::vector<uint8_t> records(2 * sizeof(PeerRecord));
  records[0] = 4;
  records[sizeof(PeerRecord)] = 6;
  records[2] = records[sizeof(PeerRecord) + 2] = outer;
  peers.set(records);
  TrafficRows traffic;
  IcmpLimits icmp{1};
  const CounterRow counters(row.data());
  Drops drops(counters, monotonic_us);
  const uint8_t anybody[16] = {};
  PeerTables::Reader reader = peers.reader(1);
  for (const uint8_t version : {4, 6}) reader.acquire().find(version, anybody)->path.learn(path_bytes, INT32_MAX);
  reader.release();
  const Path path{.tun = tun.inside.get(),
                  .socket = udp.inside.get(),
                  .sender = udp.inside.get(),
                  .tun_address = kTunAddress,
                  .network_address = kNetworkAddress,
                  .features = &features,
                  .counters = counters,
                  .traffic = &traffic,
                  .tx_drops = &drops,
                  .icmp = &icmp,
                  .clamp_mtu = 1400};
  Egress<FlannelUdp> egress(path, peers.reader(0), FlannelUdp(OwnEnd{}));
  each_message(bytes, size, [&](const uint8_t* at, size_t length) {
    if (send(tun.outside.get(), at, length, 0) < 0) return;
    while (egress.pump().items > 0) expect_packets(udp.outside.get(), 0);
    expect_packets(tun.outside.get(), sizeof(VirtioHeader));
  });
  expect_counted(drops, row);
}

/// What an engine is to go on with, and then does; the first byte says at which time.
void take_over(const uint8_t* bytes, size_t size) {
  static const auto sealing = Aead::create(Aead::Way::kSeal), opening = Aead::create(Aead::Way::kOpen);
  if (size == 0) return;
  std::vector<uint8_t> records = one_peer();
  for (const size_t at : {0, 1}) store_le32(&records[at * sizeof(PeerRecord) + offsetof(PeerRecord, encap)], 1 + at);
  const std::vector<uint8_t> saved(bytes + 1, bytes + size);  // on the heap, where a sanitizer sees its end
  const int64_t now_ms = bytes[0] == 0 ? INT64_MAX / 2 : int64_t{1} << (bytes[0] & 31);
  Sessions sessions(
      0, [] {}, [] {});
  sessions.keep(records);
  const bool taken = sessions.take_over(saved, records, now_ms);
  sessions.for_each([&](uint32_t number, Session& session) {
    if (!session.is_empty() && (!taken || number == 0 || number > 2)) abort();
    if (sealing) session.begin_seal(*sealing, true, now_ms);
    for (const uint32_t index : {0, 1}) {
      if (opening && !session.begin_open(*opening, index, 70, now_ms)) session.accept(index, 70, true, {}, now_ms);
    }
    session.look(1, now_ms);
    for (const Staged& each : session.take_staged()) {
      if (each.datagram.size() < SessionLimits::kAroundBytes) abort();
    }
  });
  for (const Mailbox::Letter& each : sessions.mailbox().take(9).letters) {
    if (each.size > Mailbox::kMessageBytes) abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  switch (bytes[0]) {
    case 'O':
      outward(bytes + 1, size - 1, 0, 4);
      outward(bytes + 1, size - 1, 700, 6);
      break;
    case 'I':
    case 'i':
      for (const Setting& each : kSettings) inward<FlannelUdp>(bytes + 1, size - 1, bytes[0] == 'i', each);
      break;
    case 'V':
    case 'v':
      for (const Setting& each : kSettings) inward<Vxlan>(bytes + 1, size - 1, bytes[0] == 'v', each);
      break;
    case 'B':
      take_over(bytes + 1, size - 1);
      break;
    case 'R':
      refuse(bytes + 1, size - 1);
      break;
    case 'S':
      open_each(bytes + 1, size - 1);
      break;
    default:
      Jobs(bytes + 1, size - 1).run();
  }
  return 0;
}
