// core_fuzz.cc - the entry point for the fuzzer. It tests the functions of core_jobs.h, sequences of refusals, saved
// sessions, answers of netlink, and both directions of packets. scripts/fuzz.mjs builds and runs it.
//
// The first byte of an input selects the target. The rest consists of jobs, refusals, saved sessions, or messages for a
// TUN or a socket. Each message is a length (uint16) and its bytes; for WireGuard it may be encrypted here with the
// keys of a session. No input may cause an access out of bounds. All packets that leave must be complete, and all
// packets that reach the TUN must be valid.
#include <fcntl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <functional>
#include <set>
#include <type_traits>

#include "../../native/encap/flannel_udp.h"
#include "../../native/encap/vxlan.h"
#include "../../native/encap/wireguard.h"
#include "../../native/io/netlink.h"
#include "../../native/walk/egress.h"
#include "../../native/walk/ingress.h"
#include "core_jobs.h"
#include "packets.h"

using namespace weft;

namespace {

/// A pair of connected Unix message sockets, which replaces a TUN or a UDP socket.
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

/// True if an IPv6 packet may enter: its source is a single host, and it is neither source-routed nor a neighbour
/// discovery message.
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

/// True if a packet may reach the TUN. The rules are written here again, independently of native/.
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

/// Returns the packet behind the virtio header in a write to a TUN.
std::span<uint8_t> behind_virtio(std::span<uint8_t> written) {
  return written.subspan(std::min(written.size(), sizeof(VirtioHeader)));
}

/// Reads all packets that came out of a socket, and checks that each is as long as its header says. `packet_in` returns
/// the packet in a message.
template <typename PacketIn = std::identity>
void expect_packets(int fd, PacketIn packet_in = {}, bool sound = false) {
  static std::vector<uint8_t> buffer(1 << 17);
  for (ssize_t size; (size = recv(fd, buffer.data(), buffer.size(), 0)) > 0;) {
    const std::span<uint8_t> bytes = packet_in(std::span(buffer).first(static_cast<size_t>(size)));
    Packet packet;
    if (bytes.empty() || !read_packet(bytes.data(), bytes.size(), packet) || packet.total != bytes.size() ||
        (sound && !is_sound(bytes.data(), bytes.size())))
      abort();
  }
}

/// Corrects the checksum of an IPv4 header, because a mutation would hardly ever yield a correct one.
void mend(uint8_t* bytes, size_t size) {
  const size_t header = size < 20 ? 0 : (bytes[0] & 15) * 4u;
  if (header >= 20 && header <= size) store(bytes + 10, ipv4_header_checksum(bytes, header));
}

/// Unix sockets do not support UDP_SEGMENT.
constexpr uint32_t kFeatures = kAllFeatures & ~kUdpGso;

struct Setting {
  uint32_t features;
  FilterOptions filter;
};
/// Two configurations: all features, with a TUN that accepts everything; and the filter, with a TUN that refuses all
/// joined packets. A Unix socket has no address, so all senders and the peer have the address ::.
const Setting kSettings[] = {
    {kFeatures, {}},
    {kTunHeader,
     {VerifySource::kStrict,
      {Net::of(Address::v4(0), 0), Net::of(Address(), 0)},
      {Net::of(Address::v4(to_be32(1u << 31)), 1),
       Net::of(Address::of_words(kLittleEndian ? 0x80 : 1ull << 63, 0), 1)}}},
};

/// The source addresses of ICMP errors to peers.
const ByFamily<Address> kTunAddress{Address::v4(1), Address::of_words(0xfd, 1)};
const ByFamily<Address> kNetworkAddress{Address::v4(2), Address::of_words(0xfd, 2)};

/// Returns the parameters of this host. MAC and VNI are 0, so a VXLAN frame of zeroes, except the flag, is for this
/// host.
OwnEnd own_end() {
  OwnEnd own;
  own.mtu = 1450;
  return own;
}

template <typename Encap>
struct Keyless {
  Encap encapsulation() { return Encap(own_end()); }
};

/// The session with the peer, with three pairs of keys: current, previous and next.
struct Keyed {
  static constexpr uint32_t kSession = 3;
  static constexpr uint64_t kPairs = 3, kInUse = 1;

  Keyed() {
    for (uint64_t pair = 0; pair < kPairs; pair++) sessions.set_keys(kSession, keys(pair), now_ms());
    for (uint8_t type : {1, 2}) {
      std::vector<uint8_t> sent(type == 1 ? 148 : 92);
      sent[0] = type;
      store_le32(&sent[4], index(kPairs));
      Wireguard::sends(sessions, sent);
    }
  }
  static uint32_t index(uint64_t pair) { return kSession << Sessions::kPairBits | static_cast<uint32_t>(pair); }
  static SessionKeys keys(uint64_t pair) {
    uint8_t bytes[Key::kBytes] = {static_cast<uint8_t>(pair + 1)};
    return {.is_initiator = pair <= kInUse,
            .own_index = index(pair),
            .peer_index = 0,
            .send = Key(bytes),
            .receive = Key(bytes)};
  }
  /// Encrypts a packet. The first bytes of the input select the pair of keys, and a counter near one that occurs often;
  /// the rest of the input is the packet.
  std::vector<uint8_t> seal(const uint8_t* bytes, size_t size) {
    if (size < 3) return {bytes, bytes + size};
    const uint64_t counter = load<uint16_t>(bytes) * (bytes[2] & 128 ? 257u : 1u), pair = bytes[2] % kPairs;
    std::vector<uint8_t> datagram(Wireguard::kHeaderBytes);
    datagram.insert(datagram.end(), bytes + 3, bytes + size);
    datagram.resize(datagram.size() + Wireguard::kTrailerBytes);
    store_le32(&datagram[0], 4);
    store_le32(&datagram[4], index(pair));
    store_le64(&datagram[8], counter);
    sealing->use(pair + 1, keys(pair).receive);
    if (!sealing->seal(counter, {&datagram[Wireguard::kHeaderBytes], size - 3})) abort();
    return datagram;
  }

  /// Decrypts a packet that the engine encrypted. Returns nothing unless it is authentic and its counter is above all
  /// earlier ones.
  std::span<uint8_t> open(std::span<uint8_t> datagram) {
    constexpr size_t kAround = kEncapBytes<Wireguard>;
    if (datagram.size() <= kAround || load_le32(&datagram[0]) != 4) return {};
    const uint64_t counter = load_le64(&datagram[8]);
    if (counter < next_counter) return {};
    next_counter = counter + 1;
    opening->use(1, keys(kInUse).send);
    const auto packet = datagram.subspan(Wireguard::kHeaderBytes, datagram.size() - kAround);
    return opening->open(counter, packet) ? packet : packet.first(0);
  }
  Wireguard encapsulation() { return Wireguard(own_end(), sessions); }

  Sessions sessions{0, [] {}, [] {}};
  std::unique_ptr<Aead> sealing = Aead::create(Aead::Way::kSeal), opening = Aead::create(Aead::Way::kOpen);
  uint64_t next_counter = 0;
};

template <typename Encap>
using KeysOf = std::conditional_t<HasSessions<Encap>, Keyed, Keyless<Encap>>;

/// Returns the records of one peer, which has the same address for IPv4 and for IPv6.
std::vector<uint8_t> one_peer() {
  std::vector<uint8_t> records(2 * sizeof(PeerRecord));
  for (size_t at = 0; at < records.size(); at += sizeof(PeerRecord)) {
    records[at] = at == 0 ? 4 : 6;
    records[at + 1] = 1;
    records[at + 2] = 6;
    store_le32(&records[at + offsetof(PeerRecord, encap)], Keyed::kSession);
  }
  return records;
}

/// Checks that no more drops were kept than counted.
void expect_counted(const Drops& drops, std::vector<uint64_t> row) {
  drops.read(0, [&](const KeptDrop& kept) {
    if (kept.packets == 0 || row[kept.reason] < kept.packets || kept.size > kept.length) abort();
    row[kept.reason] -= kept.packets;
  });
}

template <typename Encap>
void inward(const uint8_t* bytes, size_t size, bool mended, const Setting& setting) {
  Pair tun(SOCK_SEQPACKET), udp(SOCK_DGRAM);
  KeysOf<Encap> keys;
  std::vector<uint64_t> row(kCounterCount);
  Features features(setting.features);
  PeerTables peers(1);
  peers.set(one_peer());
  UnknownSenders unknown_senders;
  TrafficRows traffic;
  IcmpLimits icmp{1};
  const CounterRow counters(row.data());
  Drops drops(counters, monotonic_us);
  const Path path{.tun = tun.inside.get(),
                  .sockets = sockets_of(6, udp.inside.get(), udp.inside.get()),
                  .tun_address = kTunAddress,
                  .network_address = kNetworkAddress,
                  .features = &features,
                  .counters = counters,
                  .traffic = &traffic,
                  .rx_drops = &drops,
                  .filter = setting.filter,
                  .unknown_senders = &unknown_senders,
                  .icmp = &icmp,
                  .clamp_mtu = 1400};
  Ingress<Encap> ingress(path, 6, peers.reader(0), keys.encapsulation());
  [[maybe_unused]] std::set<std::vector<uint8_t>> sealed;
  each_message(bytes, size, [&](const uint8_t* at, size_t length) {
    std::vector<uint8_t> message(at, at + length);
    if constexpr (HasSessions<Encap>) {
      if (mended && length > 3) mend(&message[3], length - 3);
      if (mended) message = keys.seal(message.data(), message.size());
      // The 8 bytes of the counter follow the index. No datagram may use a counter that an earlier one used.
      if (message.size() >= kEncapBytes<Encap>) sealed.emplace(message.begin() + 4, message.begin() + 16);
    } else if (mended && length > Encap::kHeaderBytes) {
      mend(&message[Encap::kHeaderBytes], length - Encap::kHeaderBytes);
    }
    send(udp.outside.get(), message.data(), message.size(), 0);
  });
  while (ingress.pump().items > 0) expect_packets(tun.outside.get(), behind_virtio, true);
  if constexpr (HasSessions<Encap>) {
    if (row[k_rx_packets] > sealed.size() || (!mended && row[k_rx_packets] > 0)) abort();
    ingress.tick();
    ingress.rest();
    for (const auto& message : keys.sessions.mailbox().take(SIZE_MAX).control_messages) {
      if (message.size > message.bytes.size()) abort();
    }
  }
  unknown_senders.take([&](const UnknownSender& unknown_sender) {
    if (row[unknown_sender.reason] == 0) abort();
  });
  expect_counted(drops, row);
}

/// Reads refusals of eight bytes each. weft's reaction to each must be valid, and repeated refusals must end.
void refuse(const uint8_t* bytes, size_t size) {
  Features features(kAllFeatures);
  Learnt learnt(&features);
  int64_t now_ms = 0;
  Endpoint endpoint = endpoint_at(SocketAddress(Address::v4(0), 0));
  for (; size >= 8; bytes += 8, size -= 8) {
    const bool joined = bytes[0] & 1;
    const size_t packets = joined ? 2u + bytes[1] : 1;
    now_ms += load_be16(bytes + 2);
    endpoint.hosts.ipv4 = SocketAddress(Address::v4(bytes[4]), 0);
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

/// Delivers messages like a socket with UDP_GRO. The first two bytes of each message are the size of the joined
/// datagrams.
void open_each(const uint8_t* bytes, size_t size) {
  const Vxlan vxlan(own_end());
  each_message(bytes, size, [&](const uint8_t* at, size_t length) {
    if (length < 2) return;
    std::vector<uint8_t> copy(at + 2, at + length);  // on the heap, so that a sanitizer detects reads beyond the end
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

/// Runs one direction on the input. `outer` is the IP family of the datagrams.
template <typename Encap>
void outward(const uint8_t* bytes, size_t size, size_t path_bytes, uint8_t outer) {
  Pair tun(SOCK_SEQPACKET), lane(SOCK_SEQPACKET), known(SOCK_SEQPACKET);
  std::vector<uint64_t> row(kCounterCount);
  Features features(kFeatures);
  KeysOf<Encap> keys;
  PeerTables peers(2);
  // One peer has all of IPv4, another all of IPv6. Datagrams to the second peer must leave from the well-known port.
  // The sockets are connected, so they ignore these addresses.
  std::vector<uint8_t> records(2 * sizeof(PeerRecord));
  records[0] = 4;
  records[sizeof(PeerRecord)] = 6;
  records[2] = records[sizeof(PeerRecord) + 2] = outer;
  records[sizeof(PeerRecord) + offsetof(PeerRecord, flags)] = PeerRecord::kFromKnownPort;
  for (size_t at = 0; at < records.size(); at += sizeof(PeerRecord)) {
    store_le32(&records[at + offsetof(PeerRecord, encap)], Keyed::kSession);
  }
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
                  .sockets = sockets_of(outer, known.inside.get(), lane.inside.get()),
                  .tun_address = kTunAddress,
                  .network_address = kNetworkAddress,
                  .features = &features,
                  .counters = counters,
                  .traffic = &traffic,
                  .tx_drops = &drops,
                  .icmp = &icmp,
                  .clamp_mtu = 1400};
  Egress<Encap> egress(path, peers.reader(0), keys.encapsulation());
  each_message(bytes, size, [&](const uint8_t* at, size_t length) {
    if (send(tun.outside.get(), at, length, 0) < 0) return;
    while (egress.pump().items > 0) {
      for (const auto& [pair, version] : {std::pair(&lane, 4), std::pair(&known, 6)}) {
        // `version = version`, because clang 14 can capture a structured binding only as a copy.
        expect_packets(pair->outside.get(), [&, version = version](std::span<uint8_t> packet) {
          if constexpr (HasSessions<Encap>) packet = keys.open(packet);
          return packet.empty() || packet[0] >> 4 != version ? std::span<uint8_t>() : packet;
        });
      }
    }
    expect_packets(tun.outside.get(), behind_virtio);
  });
  expect_counted(drops, row);
}

/// Loads the input as saved sessions, and uses them. The first byte selects the time.
void take_over(const uint8_t* bytes, size_t size) {
  static const auto sealing = Aead::create(Aead::Way::kSeal), opening = Aead::create(Aead::Way::kOpen);
  if (size == 0) return;
  std::vector<uint8_t> records = one_peer();
  for (const size_t at : {0, 1}) store_le32(&records[at * sizeof(PeerRecord) + offsetof(PeerRecord, encap)], 1 + at);
  // True: the peer of the first session sends from any port.
  records[offsetof(PeerRecord, encap) + 4] = 1;
  // on the heap, so that a sanitizer detects reads beyond the end
  const std::vector<uint8_t> saved(bytes + 1, bytes + size);
  const int64_t now_ms = bytes[0] == 0 ? INT64_MAX / 2 : int64_t{1} << (bytes[0] & 31);
  Sessions sessions(
      0, [] {}, [] {});
  sessions.keep(records);
  const bool taken = sessions.take_over(saved, records, now_ms);
  sessions.for_each([&](uint32_t number, Session& session) {
    if (!session.is_empty() && (!taken || number == 0 || number > 2)) abort();
    if (sealing) session.begin_seal(*sealing, true, now_ms);
    for (const uint32_t index : {0, 1}) {
      if (!opening || session.begin_open(*opening, index, 70, now_ms)) continue;
      const SocketAddress from(Address::v4(index + 1), 1);
      const Session::Accepted accepted = session.accept(opening->key_number(), 70, true, from, now_ms);
      if (accepted.has_moved && (number == 1 || !(session.to() == from))) abort();
    }
    session.look(1, now_ms);
    for (const Staged& each : session.take_staged()) {
      if (each.datagram.size() < SessionLimits::kAroundBytes) abort();
    }
  });
  for (const Mailbox::ControlMessage& each : sessions.mailbox().take(9).control_messages) {
    if (each.size > Mailbox::kMessageBytes) abort();
  }
}

/// Assigns the messages of a kernel to three requests with the sequence numbers 1 to 3.
void answer(const uint8_t* bytes, size_t size) {
  std::vector<NetlinkAnswer> answers(3);
  NetlinkAnswers collected(1, answers);
  each_message(bytes, size, [&](const uint8_t* message, size_t length) {
    // on the heap, so that a sanitizer detects reads beyond the end
    collected.take(std::vector<uint8_t>(message, message + length));
  });
  bool is_complete = true;
  for (const NetlinkAnswer& each : answers) {
    is_complete = is_complete && each.is_complete;
    if (each.error < 0 || each.error >= 4096 || (each.error != 0 && !each.is_complete)) abort();
    if (each.error == 0 && !each.explanation.empty()) abort();
    if (!each_netlink_message(each.messages, [](const nlmsghdr&, std::span<const uint8_t>) {})) abort();
  }
  if (is_complete != collected.is_complete()) abort();
}

/// True if the library OpenSSL is installed. Without it WireGuard is not tested.
bool has_keys() {
  static const bool has = Aead::create(Aead::Way::kSeal) && Aead::create(Aead::Way::kOpen);
  return has;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  switch (bytes[0]) {
    case 'O':
      outward<FlannelUdp>(bytes + 1, size - 1, 0, 4);
      outward<FlannelUdp>(bytes + 1, size - 1, 700, 6);
      break;
    case 'o':
      if (!has_keys()) break;
      outward<Wireguard>(bytes + 1, size - 1, 0, 4);
      outward<Wireguard>(bytes + 1, size - 1, 700, 6);
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
    case 'N':
      answer(bytes + 1, size - 1);
      break;
    case 'W':
    case 'w':
      if (!has_keys()) break;
      for (const Setting& each : kSettings) inward<Wireguard>(bytes + 1, size - 1, bytes[0] == 'w', each);
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
