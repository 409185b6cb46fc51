// guarantees_test.cc - checks two guarantees for every encapsulation with every set of features: no packet loops
// forever through the tunnel, and each batch does a limited amount of work. core.test.ts builds and runs it.
//
// The tests iterate over the lists of encapsulations (native/encap/all.h) and of features, so new ones are included
// automatically. A pair of Unix message sockets replaces each TUN queue. The system calls that send are replaced for
// the whole program, so that no datagram leaves it. Each datagram is recorded with its destination. Datagrams into the
// cluster's network come back out of the TUN, as the kernel would route them.
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <deque>

#include "../../native/encap/all.h"
#include "../../native/io/linux_compat.h"
#include "../../native/io/udp.h"
#include "../../native/walk/egress.h"
#include "../../native/walk/ingress.h"
#include "packets.h"

namespace {

struct Datagram {
  Address to;
  Bytes bytes;
};
std::vector<Datagram> sent;

void record_message(const msghdr& message) {
  SocketAddress to;
  std::memcpy(to.raw(), message.msg_name, message.msg_namelen);
  Bytes all;
  for (size_t i = 0; i < message.msg_iovlen; i++) {
    const auto* at = static_cast<const uint8_t*>(message.msg_iov[i].iov_base);
    all.insert(all.end(), at, at + message.msg_iov[i].iov_len);
  }
  size_t segment = all.size();
  msghdr header = message;
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != IPPROTO_UDP || each->cmsg_type != UDP_SEGMENT) continue;
    uint16_t size;
    std::memcpy(&size, CMSG_DATA(each), sizeof size);
    segment = size;
  }
  for (size_t at = 0; at < all.size(); at += segment) {
    const auto begin = all.begin() + static_cast<long>(at);
    sent.push_back({to.address(), Bytes(begin, begin + static_cast<long>(std::min(segment, all.size() - at)))});
  }
}

}  // namespace

extern "C" int sendmmsg(int, mmsghdr* messages, unsigned count, int) {
  for (unsigned i = 0; i < count; i++) record_message(messages[i].msg_hdr);
  return static_cast<int>(count);
}
extern "C" ssize_t sendmsg(int, const msghdr* message, int) {
  record_message(*message);
  return 1;
}
/// Makes every connect() fail, so that the kernel knows no path MTU.
extern "C" int connect(int, const sockaddr*, socklen_t) {
  errno = ENETUNREACH;
  return -1;
}
extern "C" ssize_t sendto(int fd, const void* bytes, size_t size, int flags, const sockaddr* to, socklen_t to_size) {
  if (!to) return syscall(SYS_sendto, fd, bytes, size, flags, nullptr, 0);
  iovec piece{const_cast<void*>(bytes), size};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(to);
  message.msg_namelen = to_size;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  record_message(message);
  return static_cast<ssize_t>(size);
}

namespace {

/// The number of peers. Their subnets are 10.5.2.0/24, 10.5.3.0/24, 10.5.4.0/24, and similar IPv6 subnets.
constexpr size_t kPeers = 3;
constexpr uint32_t kOwnSubnet = 0x0a050100, kOutside = 0xc0a84d02;
constexpr uint32_t subnet_of(size_t peer) { return kOwnSubnet + static_cast<uint32_t>(peer + 1) * 256; }

/// Where the address of a peer is: outside the network, inside a subnet, or in the network but in no subnet.
struct Place {
  enum Kind : uint8_t { kOutsideAll, kBehind, kInOwnSubnet, kInNobodys } kind = kOutsideAll;
  size_t peer = 0;  ///< if `kind` is kBehind: the index of the peer whose subnet contains the address

  uint32_t address(size_t self) const {
    switch (kind) {
      case kBehind:
        return subnet_of(peer) + 9;
      case kInOwnSubnet:
        return kOwnSubnet + 9;
      case kInNobodys:
        return 0x0a050909;
      default:
        return kOutside + static_cast<uint32_t>(self);
    }
  }
};

struct Arrangement {
  const char* name;
  std::array<Place, kPeers> places;
  size_t datagrams;  ///< how many datagrams one packet to a container of the first peer becomes
  bool is_circle;
};
constexpr Place at(size_t peer) { return {Place::kBehind, peer}; }
constexpr Place kFree{};
constexpr Arrangement kArrangements[] = {
    {"all outside", {kFree, kFree, kFree}, 1, false},
    {"the first inside itself", {at(0), kFree, kFree}, 1, true},
    {"two inside each other", {at(1), at(0), kFree}, 1, true},
    {"three in a ring", {at(1), at(2), at(0)}, 1, true},
    {"the first behind one inside itself", {at(1), at(1), kFree}, 1, true},
    {"the first behind the second", {at(1), kFree, kFree}, 2, false},
    {"the first behind the second behind the third", {at(1), at(2), kFree}, 1, true},
    {"the first in this node's subnet", {Place{Place::kInOwnSubnet}, kFree, kFree}, 1, false},
    {"the first in a subnet of nobody's", {Place{Place::kInNobodys}, kFree, kFree}, 1, false},
};

struct Setting {
  uint32_t features = kAllFeatures;
  bool inner_v6 = false, outer_v6 = false;
  bool has_both_underlays = false;  ///< if true, the addresses of the peers are IPv4 and IPv6 by turns
  bool is_masqueraded = false;      ///< if true, a NAT rule of the host replaces the source of packets into the network
  size_t lanes = 1;
};

/// All loops of one host.
template <typename Encap>
struct Host {
  struct Lane {
    Fd tun, outside, socket, other;
    std::unique_ptr<Egress<Encap>> egress;
    std::unique_ptr<Ingress<Encap>> ingress;
  };

  Host(const Setting& setting, const Arrangement& arrangement)
      : setting(setting), features(setting.features), row(kCounterCount), peers(2 * setting.lanes) {
    if constexpr (HasSessions<Encap>)
      sessions = std::make_unique<Sessions>(
          0, [] {}, [] {});
    traffic.make_room(1);
    Bytes records;
    for (size_t peer = 0; peer < kPeers; peer++) {
      for (const bool v6 : {false, true}) {
        const Bytes record = record_of(peer, v6, arrangement.places[peer]);
        records.insert(records.end(), record.begin(), record.end());
      }
    }
    if (sessions) sessions->keep(records);
    peers.set(records);
    for (size_t i = 0; i < setting.lanes; i++) add_lane(i);
    for (uint32_t peer = 0; sessions && has_keys && peer < kPeers; peer++) {
      SessionKeys keys;
      keys.is_initiator = true;
      keys.own_index = (peer + 1) << Sessions::kPairBits;
      sessions->set_keys(peer + 1, keys, session_ms());
    }
    for (Lane& lane : lanes) lane.ingress->tick();
    sent.clear();
  }

  Bytes record_of(size_t peer, bool v6, const Place& place) const {
    Bytes four(4), six{0xfd};
    six.resize(16);
    store_be32(&four[0], subnet_of(peer));
    store_be32(&six[12], subnet_of(peer));
    Bytes r = v6 ? record(6, 120, six, place.address(peer)) : record(4, 24, four, place.address(peer));
    const bool is_over_v6 = setting.has_both_underlays ? (peer % 2 == 0) == setting.outer_v6 : setting.outer_v6;
    if (is_over_v6) move_to_ipv6(r, ipv6(place.address(peer)));
    // the number of the peer's session, for encapsulations with sessions
    store_le32(&r[40], static_cast<uint32_t>(peer + 1));
    return r;
  }

  void add_lane(size_t number) {
    Lane& lane = lanes.emplace_back();
    int tun[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, tun) == 0);
    const int buffer = 4 << 20;
    setsockopt(tun[1], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    lane.tun = Fd(tun[0]);
    lane.outside = Fd(tun[1]);
    const Address four = ipv4(INADDR_LOOPBACK), six = Address::of_words(0, to_be64(1));
    UdpSocket socket, other;
    CHECK(!open_udp(SocketAddress(setting.outer_v6 ? six : four, 0), Share::kNo, 1 << 16, 0, socket));
    lane.socket = std::move(socket.fd);
    if (setting.has_both_underlays) {
      CHECK(!open_udp(SocketAddress(setting.outer_v6 ? four : six, 0), Share::kNo, 1 << 16, 0, other));
      lane.other = std::move(other.fd);
    }
    const uint8_t outer = setting.outer_v6 ? 6 : 4;
    ByFamily<Sockets> sockets = sockets_of(outer, lane.socket.get(), lane.socket.get());
    sockets.of(outer == 4 ? 6 : 4) = {lane.other.get(), lane.other.get(), lane.other.get()};
    const Path path{.tun = lane.tun.get(),
                    .sockets = sockets,
                    .tun_address = {ipv4(kOwnSubnet), ipv6(kOwnSubnet)},
                    .network_address = {ipv4(0x0a050000), ipv6(kOwnSubnet)},
                    .features = &features,
                    .counters = CounterRow(row.data()),
                    .traffic = &traffic,
                    .tx_drops = &tx_drops,
                    .rx_drops = &rx_drops,
                    .filter = options_of(VerifySource::kStrict),
                    .unknown_senders = &unknown_senders,
                    .icmp = &icmp};
    const auto make = [&] {
      if constexpr (HasSessions<Encap>) {
        return Encap(OwnEnd{}, *sessions);
      } else {
        return Encap(OwnEnd{});
      }
    };
    lane.egress = std::make_unique<Egress<Encap>>(path, peers.reader(2 * number), make());
    lane.ingress = std::make_unique<Ingress<Encap>>(path, outer, peers.reader(2 * number + 1), make());
  }

  /// Hands a packet to a TUN queue, as the kernel does. Returns false if the queue is full.
  bool to_tun(const Bytes& packet, const VirtioHeader& virtio = {}) {
    Bytes bytes(features.has(kTunHeader) ? sizeof virtio : 0);
    if (!bytes.empty()) std::memcpy(bytes.data(), &virtio, sizeof virtio);
    bytes.insert(bytes.end(), packet.begin(), packet.end());
    return send(lanes[next_lane++ % lanes.size()].outside.get(), bytes.data(), bytes.size(), 0) > 0;
  }

  /// Routes the datagrams that were sent. Those with a destination in the network, but not in this node's own subnet,
  /// come out of the TUN again.
  void route() {
    std::vector<Datagram> all = std::move(sent);
    sent.clear();
    for (const Datagram& datagram : all) {
      const bool v6 = !datagram.to.is_v4();
      const FilterOptions nets = options_of(VerifySource::kStrict);
      if (!nets.network.of(datagram.to).contains(datagram.to) || nets.subnet.of(datagram.to).contains(datagram.to))
        continue;
      Fields f;
      f.v6 = v6;
      f.tcp = false;
      f.source = setting.is_masqueraded ? kOwnSubnet : 0xc0a84d01;
      f.source_port = setting.is_masqueraded ? static_cast<uint16_t>(1024 + random_below(60'000)) : 8285;
      f.destination_port = 8285;
      f.fragment = 0;
      uint8_t to[16];
      store(to, datagram.to.high());
      store(to + 8, datagram.to.low());
      f.destination = load_be32(to + 12);
      f.payload = datagram.bytes.size();
      Bytes packet = build(f);
      std::copy(datagram.bytes.begin(), datagram.bytes.end(), packet.end() - static_cast<long>(f.payload));
      for (const Bytes& piece : pieces(packet)) CHECK(to_tun(piece));
    }
  }

  /// Fragments a packet that is longer than the TUN's MTU.
  static std::vector<Bytes> pieces(const Bytes& packet) {
    constexpr size_t kMtu = 1'400;
    if (packet.size() <= kMtu) return {packet};
    const bool v6 = packet[0] >> 4 == 6;
    const size_t ip = v6 ? 40 : 20, header = v6 ? 48 : 20, most = (kMtu - header) / 8 * 8;
    std::vector<Bytes> all;
    for (size_t at = ip; at < packet.size(); at += most) {
      const size_t size = std::min(most, packet.size() - at), offset = at - ip;
      const bool more = at + size < packet.size();
      Bytes piece(packet.begin(), packet.begin() + static_cast<long>(ip));
      if (v6) {
        Bytes fragment{IPPROTO_UDP, 0, 0, 0, 1, 2, 3, 4};
        store_be16(&fragment[2], static_cast<uint16_t>(offset | more));
        piece[6] = IPPROTO_FRAGMENT;
        piece.insert(piece.end(), fragment.begin(), fragment.end());
        store_be16(&piece[4], static_cast<uint16_t>(8 + size));
      } else {
        store_be16(&piece[2], static_cast<uint16_t>(20 + size));
        store_be16(&piece[6], static_cast<uint16_t>(offset / 8 | (more ? 0x2000 : 0)));
        store_be16(&piece[10], 0);
        store_be16(&piece[10], static_cast<uint16_t>(~reference_fold(reference_sum(piece.data(), 20))));
      }
      piece.insert(piece.end(), packet.begin() + static_cast<long>(at), packet.begin() + static_cast<long>(at + size));
      all.push_back(std::move(piece));
    }
    return all;
  }

  Setting setting;
  Features features;
  std::vector<uint64_t> row;
  std::unique_ptr<Sessions> sessions;
  PeerTables peers;
  UnknownSenders unknown_senders;
  TrafficRows traffic;
  Drops tx_drops{CounterRow(row.data()), monotonic_us}, rx_drops{CounterRow(row.data()), monotonic_us};
  IcmpLimits icmp{1};
  std::deque<Lane> lanes;
  size_t next_lane = 0;
  static inline bool has_keys = true;
};

bool has_ipv6() {
  UdpSocket socket;
  return !open_udp(SocketAddress(Address::of_words(0, to_be64(1)), 0), Share::kNo, 1 << 16, 0, socket);
}

/// Returns the sets of features to test: all features, none, and all except one, for each feature.
std::vector<uint32_t> feature_sets() {
  std::vector<uint32_t> sets{kAllFeatures, 0};
  for (const FeatureName& each : kFeatureNames) sets.push_back(kAllFeatures & ~each.feature);
  return sets;
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  const bool v6 = has_ipv6();
  if (!v6) std::fputs("skipped: underlays of IPv6: there is no such address here\n", stderr);
  for (unsigned bits = 0; bits < 1u << 5; bits++) {
    const Setting each{.inner_v6 = (bits & 1) != 0,
                       .outer_v6 = (bits & 2) != 0,
                       .has_both_underlays = (bits & 4) != 0,
                       .is_masqueraded = (bits & 8) != 0,
                       .lanes = bits & 16 ? 3u : 1u};
    if (v6 || !(each.outer_v6 || each.has_both_underlays)) all.push_back(each);
  }
  for (const uint32_t features : feature_sets()) {
    for (const bool inner_v6 : {false, true}) all.push_back({.features = features, .inner_v6 = inner_v6});
  }
  return all;
}

std::string text_of(const Setting& each) {
  return std::string(each.inner_v6 ? "IPv6" : "IPv4") + " over " + (each.outer_v6 ? "IPv6" : "IPv4") +
         (each.has_both_underlays ? " and the other" : "") + (each.is_masqueraded ? ", masqueraded" : "") + ", " +
         std::to_string(each.lanes) + " lanes, features " + std::to_string(each.features);
}

/// Sends packets of all lengths and superpackets. Each must become the expected number of datagrams, or twice as many
/// if one node is behind another node. No packet may loop.
template <typename Encap>
void test_no_circle(const Setting& setting, const Arrangement& arrangement) {
  Host<Encap> host(setting, arrangement);
  Fields f;
  f.v6 = setting.inner_v6;
  f.destination = subnet_of(0) + 7;
  f.tcp = false;
  f.fragment = 0;
  size_t packets = 0;
  const auto pump = [&] {
    size_t items = 0;
    for (auto& lane : host.lanes) {
      const Pump turn = lane.egress->pump();
      CHECK(!turn.failure);
      items += turn.items;
    }
    return items;
  };
  const auto put = [&](const Bytes& packet, size_t counts, const VirtioHeader& virtio = {}) {
    CHECK(host.to_tun(packet, virtio));
    packets += counts;
  };
  for (const size_t payload : {size_t{0}, size_t{40}, size_t{1'200}}) {
    f.payload = payload;
    put(build(f), 1);
  }
  if (host.features.has(kTunHeader)) {
    VirtioHeader virtio;
    virtio.flags = kVirtioNeedsCsum;
    virtio.gso_type = f.v6 ? kGsoTcp6 : kGsoTcp4;
    virtio.gso_size = 1'000;
    virtio.csum_start = f.v6 ? 40 : 20;
    virtio.csum_offset = kTcpChecksum;
    f.tcp = true;
    f.payload = 9'500;
    put(build(f), 10, virtio);
  }
  // A packet of this length is fragmented when its datagram comes out of the TUN again; the packets above are not.
  size_t total = 0, rounds = 0;
  const auto run = [&] {
    for (rounds = 0; rounds < 8 && pump() > 0; rounds++) {
      total += sent.size();
      host.route();
    }
    CHECK(rounds <= 3);
  };
  run();
  CHECK(total == packets * arrangement.datagrams);
  CHECK((host.row[k_tx_drop_circle] > 0) == arrangement.is_circle);
  total = 0;
  f.tcp = false;
  for (const size_t payload : {size_t{1'390}, size_t{4'000}, size_t{30'000}}) {
    f.payload = payload;
    const Bytes packet = build(f);
    CHECK(host.to_tun(packet));
  }
  run();
  CHECK(total >= 3 && total <= 3 + 3 * 30);
}

/// Each batch must make a limited number of datagrams and read a limited number of packets. Every packet in the TUN
/// must be sent or counted as dropped.
template <typename Encap>
void test_bounded_turn(const Setting& setting) {
  constexpr size_t kMostDatagrams = 512 + 1'023, kMostReads = 64;
  if (!(setting.features & kTunHeader)) return;
  for (const bool tcp : {true, false}) {
    for (const uint16_t size : {1, 8, 36, 63, 64, 100, 536, 1'400, 65'000}) {
      if (!tcp && size == 65'000) continue;  // this would be one fragmented packet, not a superpacket
      const std::string before = context;
      context += (tcp ? ", TCP in segments of " : ", UDP in segments of ") + std::to_string(size);
      Host<Encap> host(setting, kArrangements[0]);
      Fields f;
      f.v6 = setting.inner_v6;
      f.tcp = tcp;
      f.destination = subnet_of(0) + 7;
      f.payload = 65'000;
      VirtioHeader virtio;
      virtio.flags = kVirtioNeedsCsum;
      virtio.gso_type = !tcp ? kGsoUdp : f.v6 ? kGsoTcp6 : kGsoTcp4;
      virtio.gso_size = size;
      virtio.csum_start = f.v6 ? 40 : 20;
      virtio.csum_offset = static_cast<uint16_t>(tcp ? kTcpChecksum : kUdpChecksum);
      const Bytes packet = build(f);
      size_t supers = 0;
      while (supers < 4 && host.to_tun(packet, virtio)) supers++;
      f.payload = 5;
      const Bytes little = build(f);
      size_t littles = 0;
      while (littles < 100 && host.to_tun(little)) littles++;
      const size_t segments = (65'000u + size - 1) / size;
      size_t made = 0, turns = 0;
      for (bool goes_on = true; goes_on && turns < 200; turns++) {
        goes_on = false;
        for (auto& lane : host.lanes) {
          sent.clear();
          const Pump pump = lane.egress->pump();
          CHECK(!pump.failure && pump.items <= kMostReads && sent.size() <= kMostDatagrams);
          made += sent.size();
          goes_on = goes_on || pump.items > 0;
        }
      }
      const bool is_costly = size < 64;
      const uint64_t kept = host.sessions && !Host<Encap>::has_keys ? host.row[k_tx_drop_no_session] : 0;
      if (Host<Encap>::has_keys || !host.sessions) {
        CHECK(made == littles + (is_costly ? 0 : supers * segments));
      } else {
        CHECK(made == 0 && kept <= littles + (is_costly ? 0 : supers * segments));
      }
      CHECK(host.row[k_tx_drop_malformed] == (is_costly ? supers * segments : 0));
      context = before;
    }
  }
}

/// A superpacket with as many tiny segments as a UDP socket may send in one message must be carried, because programs
/// do this.
template <typename Encap>
void test_few_tiny_segments() {
  for (const size_t segments : {size_t{2}, size_t{128}, size_t{129}}) {
    Host<Encap> host({}, kArrangements[0]);
    Fields f;
    f.tcp = false;
    f.destination = subnet_of(0) + 7;
    f.payload = 50 * segments;
    VirtioHeader virtio;
    virtio.flags = kVirtioNeedsCsum;
    virtio.gso_type = kGsoUdp;
    virtio.gso_size = 50;
    virtio.csum_start = 20;
    virtio.csum_offset = kUdpChecksum;
    CHECK(host.to_tun(build(f), virtio));
    CHECK(!host.lanes[0].egress->pump().failure);
    CHECK(sent.size() == (segments <= 128 ? segments : 0));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  Encapsulations::for_each([]<typename Encap>() {
    if (HasSessions<Encap> && !Aead::create(Aead::Way::kSeal)) {
      std::fputs("no OpenSSL in this process: an encapsulation with keys is left out\n", stderr);
      return;
    }
    const std::string name(Encap::kName);
    for (const Setting& setting : settings()) {
      for (const Arrangement& arrangement : kArrangements) {
        context = name + ", " + text_of(setting) + ", " + arrangement.name;
        test_no_circle<Encap>(setting, arrangement);
      }
    }
    for (const uint32_t features : feature_sets()) {
      for (const bool inner_v6 : {false, true}) {
        const Setting setting{.features = features, .inner_v6 = inner_v6};
        context = name + ", " + text_of(setting);
        test_bounded_turn<Encap>(setting);
      }
    }
    context = name + ", no keys";
    Host<Encap>::has_keys = false;
    test_bounded_turn<Encap>({.lanes = 3});
    Host<Encap>::has_keys = true;
    context = name;
    test_few_tiny_segments<Encap>();
    context.clear();
  });
  return verdict(seed);
}
