// walk_test.cc - sends packets through egress and ingress with these encapsulations: flannel's udp, a test
// encapsulation with header and trailer, VXLAN as kernels send it, and WireGuard. core.test.ts builds and runs it.
//
// A pair of Unix message sockets replaces the TUN. Datagrams go over loopback. clock_gettime is replaced for the whole
// program.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/icmp.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <fstream>
#include <functional>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "../../native/encap/flannel_udp.h"
#include "../../native/encap/vxlan.h"
#include "../../native/encap/wireguard.h"
#include "../../native/io/echo.h"
#include "../../native/io/linux_compat.h"
#include "../../native/io/udp.h"
#include "../../native/walk/egress.h"
#include "../../native/walk/ingress.h"
#include "packets.h"

static int64_t clock_ms = 1'000'000;  // the simulated time, which advances only if a test changes it
static int64_t slept_ms = 0;          // how long the host was suspended in ms, which only CLOCK_BOOTTIME includes
extern "C" int clock_gettime(clockid_t clock, timespec* now) {
  const int64_t ms = clock_ms + (clock == CLOCK_BOOTTIME ? slept_ms : 0);
  *now = {time_t{ms / 1'000}, static_cast<long>(ms % 1'000 * 1'000'000)};
  return 0;
}

/// The errors of the next calls of sendto(), the first call first.
static std::deque<int> sendto_errors;
extern "C" ssize_t sendto(int socket, const void* bytes, size_t size, int flags, const sockaddr* to,
                          socklen_t to_size) {
  if (sendto_errors.empty()) {
    using SendTo = ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t);
    return reinterpret_cast<SendTo*>(dlsym(RTLD_NEXT, "sendto"))(socket, bytes, size, flags, to, to_size);
  }
  errno = sendto_errors.front();
  sendto_errors.pop_front();
  return -1;
}

/// The number of next calls of OpenSSL functions that fail, as if there were no memory. The engine finds these
/// replacements by name in this process.
static int contexts_that_fail = 0, inits_that_fail = 0;
template <typename Function>
static Function* next_of(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
extern "C" void* EVP_CIPHER_CTX_new() {
  if (contexts_that_fail > 0 && contexts_that_fail-- > 0) return nullptr;
  return next_of<void*()>("EVP_CIPHER_CTX_new")();
}
extern "C" int EVP_CipherInit_ex(void* context, const void* cipher, void* engine, const unsigned char* key,
                                 const unsigned char* nonce, int seals) {
  if (cipher && inits_that_fail > 0 && inits_that_fail-- > 0) return 0;
  using Init = int(void*, const void*, void*, const unsigned char*, const unsigned char*, int);
  return next_of<Init>("EVP_CipherInit_ex")(context, cipher, engine, key, nonce, seals);
}

namespace {

constexpr size_t kMarkBytes = 8, kSealBytes = 16;

/// True if the datagrams of this test run go over IPv6.
bool is_over_ipv6 = false;
/// False if control messages reach the kernel with wrong option numbers, as in some emulators.
bool do_controls_pass = true;

const Address kLoopback6 = Address::of_words(0, to_be64(1));
/// The common address of this host and its peer, which have different ports.
Address loopback_address() { return is_over_ipv6 ? kLoopback6 : ipv4(INADDR_LOOPBACK); }
/// The address of a host that is not a peer, outside the network. This machine need not have the IPv6 address.
Address unknown_address() { return is_over_ipv6 ? ipv6(0x0a0609ff) : ipv4(INADDR_LOOPBACK + 1); }

/// Returns a non-blocking UDP socket that is bound to the address.
int socket_at(const Address& address) {
  const SocketAddress at(address, 0);
  const int fd = ::socket(at.family(), SOCK_DGRAM | SOCK_NONBLOCK, 0), on = 1;
  CHECK(setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof on) == 0);
  CHECK(bind(fd, at.raw(), at.size()) == 0);
  return fd;
}

/// Makes a socket send datagrams with this TOS or traffic class.
void mark_sent(int socket, int mark) {
  const int level = is_over_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, name = is_over_ipv6 ? IPV6_TCLASS : IP_TOS;
  CHECK(setsockopt(socket, level, name, &mark, sizeof mark) == 0);
}

/// Returns a sum of all bytes, weighted by position. It reveals damaged bytes, and a trailer at a wrong offset.
std::array<uint8_t, kSealBytes> seal_of(std::span<const uint8_t> bytes, std::span<const uint8_t> more = {}) {
  std::array<uint8_t, kSealBytes> seal{};
  uint64_t sum = 1;
  for (const auto& piece : {bytes, more}) {
    for (const uint8_t byte : piece) sum = sum * 31 + byte;
  }
  store(&seal[0], sum);
  store(&seal[8], ~sum);
  return seal;
}

/// An encapsulation for this test. It writes eight bytes of the peer's record before each packet (the first byte is not
/// 0), and sixteen bytes behind the packet that verify it.
struct Marked {
  static constexpr size_t kHeaderBytes = kMarkBytes;
  static constexpr size_t kTrailerBytes = kSealBytes;
  static constexpr bool kRoutes = true;
  static constexpr bool kCopiesEcn = true;
  explicit Marked(const OwnEnd&) {}
  Sealed seal(const Endpoint& peer, const Packet&, std::span<uint8_t> first, std::span<uint8_t> rest) const {
    std::memcpy(first.data(), peer.encap.data(), kHeaderBytes);
    store(first.data() + first.size(), seal_of(first.subspan(kHeaderBytes), rest));
    return Sealed::datagram();
  }
  Opened open(Message& message) const {
    const std::span<uint8_t> datagram = message.take();
    if (datagram.size() < kHeaderBytes + kTrailerBytes || datagram[0] == 0) return Opened::drop(k_rx_drop_malformed);
    const std::span<uint8_t> packet = datagram.subspan(kHeaderBytes, datagram.size() - kHeaderBytes - kTrailerBytes);
    if (load<std::array<uint8_t, kSealBytes>>(packet.data() + packet.size()) != seal_of(packet)) {
      return Opened::drop(k_rx_drop_malformed);
    }
    return Opened::packet(packet);
  }
};
static_assert(Encapsulation<Marked>);

constexpr uint8_t kMark[8] = {0xde, 0xad, 1, 2, 3, 4, 5, 6};

/// Returns the fields of a packet from the peer to a container of this host.
Fields inward() {
  Fields f;
  f.source = 0x0a050207;
  f.destination = 0x0a050102;
  return f;
}

/// the peer's traffic slot, which is in another array of TrafficRows than slot 0
constexpr uint32_t kSlot = 300;

/// One host with its egress and ingress. Its only peer has the subnet 10.5.2.0/24.
template <typename Encap>
struct Host {
  explicit Host(uint32_t features, const OwnEnd& own = {}, VerifySource verify = VerifySource::kStrict,
                size_t clamp_mtu = 0)
      : features(features),
        row(kCounterCount),
        peers(2),
        tx_drops(CounterRow(row.data()), monotonic_us),
        rx_drops(CounterRow(row.data()), monotonic_us) {
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, tun) == 0);
    const int buffer = 4 << 20;
    for (int* fd : {&socket, &other}) {
      *fd = socket_at(loopback_address());
      setsockopt(*fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    }
    for (const int fd : tun) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    traffic.make_room(kSlot + 1);
    if constexpr (HasSessions<Encap>) {
      sessions = std::make_unique<Sessions>(
          load_le32(own.encap.data()),
          [this] {
            if (on_mail) on_mail();
          },
          [] {});
    }
    set_peers(peer_record());
    const uint8_t outer = is_over_ipv6 ? 6 : 4;
    const Path path{.tun = tun[0],
                    .sockets = sockets_of(outer, socket, socket),
                    .tun_address = {ipv4(0x0a050100), ipv6(0x0a050100)},
                    .network_address = {ipv4(0x0a050000), ipv6(0x0a050100)},
                    .features = &this->features,
                    .counters = CounterRow(row.data()),
                    .traffic = &traffic,
                    .tx_drops = &tx_drops,
                    .rx_drops = &rx_drops,
                    .filter = options_of(verify),
                    .unknown_senders = &unknown_senders,
                    .icmp = &icmp,
                    .clamp_mtu = clamp_mtu};
    egress = std::make_unique<Egress<Encap>>(path, peers.reader(0), encapsulation(own));
    ingress = std::make_unique<Ingress<Encap>>(path, outer, peers.reader(1), encapsulation(own));
  }
  ~Host() {
    check_drops();
    for (const int fd : {tun[0], tun[1], socket, other}) close(fd);
  }
  Bytes peer_record(uint8_t version = 4) const {
    Bytes subnet(16);
    subnet[0] = 0xfd;
    store_be32(&subnet[12], 0x0a050200);
    Bytes r = version == 4 ? record(4, 24, {10, 5, 2, 0}, INADDR_LOOPBACK) : record(6, 120, subnet, INADDR_LOOPBACK);
    if (is_over_ipv6) move_to_ipv6(r, kLoopback6);
    store(&r[4], bound_address(other).port());
    std::copy(std::begin(kMark), std::end(kMark), r.begin() + 40);
    store(&r[56], uint32_t{kSlot});
    return r;
  }
  /// Sets the peer records like an Engine, which first creates the sessions that they name.
  void set_peers(const Bytes& records) {
    if (sessions) sessions->keep(records);
    peers.set(records);
  }
  Encap encapsulation(const OwnEnd& own) const {
    if constexpr (HasSessions<Encap>) {
      return Encap(own, *sessions);
    } else {
      return Encap(own);
    }
  }
  /// Puts a packet into the TUN, as the kernel does.
  void to_tun(const VirtioHeader& virtio, const Bytes& packet) {
    Bytes bytes(sizeof virtio);
    std::memcpy(bytes.data(), &virtio, sizeof virtio);
    bytes.insert(bytes.end(), packet.begin(), packet.end());
    CHECK(send(tun[1], bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  void from_peer(const Bytes& datagram) { from(other, datagram); }
  /// Returns the traffic that was counted for the peer.
  Traffic of_peer() const {
    Traffic sum;
    traffic.sum(kSlot, sum);
    return sum;
  }
  /// Checks that each kept drop has the reason under which it was counted.
  void check_drops() const {
    std::vector<uint64_t> counted = row;
    for (const Drops* drops : {&tx_drops, &rx_drops}) {
      size_t kept_drops = 0;
      drops->read(0, [&](const KeptDrop& kept) {
        counted[kept.reason] -= kept.packets;
        kept_drops++;
        CHECK(kNames[kept.reason].starts_with(drops == &tx_drops ? "tx_drop_" : "rx_drop_"));
      });
      if (kept_drops == Drops::kSlots) return;  // there may have been more drops than are kept
    }
    for (size_t at = 0; at < kCounterCount; at++)
      CHECK(kNames[at].find("_drop_") == kNames[at].npos || counted[at] == 0);
  }
  static constexpr auto& kNames = kCounterNames;
  /// Sends a datagram to this host from another address than the peer's.
  void from_stranger(const Bytes& datagram) {
    const Fd unknown_sender(socket_at(unknown_address()));
    from(unknown_sender.get(), datagram);
  }
  void from(int sender, const Bytes& datagram) {
    const SocketAddress to = bound_address(socket);
    CHECK(sendto(sender, datagram.data(), datagram.size(), 0, to.raw(), to.size()) ==
          static_cast<ssize_t>(datagram.size()));
  }
  /// Receives all messages that have arrived at a socket.
  static std::vector<Bytes> drain(int fd) {
    static Bytes bytes(1 << 17);
    std::vector<Bytes> all;
    for (;;) {
      const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
      if (got < 0) return all;
      all.emplace_back(bytes.begin(), bytes.begin() + got);
    }
  }

  Features features;
  std::vector<uint64_t> row;
  // called by the loop's thread when it has reported something to JavaScript, before it continues
  std::function<void()> on_mail;
  std::unique_ptr<Sessions> sessions;
  PeerTables peers;
  UnknownSenders unknown_senders;
  TrafficRows traffic;
  Drops tx_drops, rx_drops;
  IcmpLimits icmp{1};
  int tun[2], socket, other;
  std::unique_ptr<Egress<Encap>> egress;
  std::unique_ptr<Ingress<Encap>> ingress;
};

/// Checks the header and the trailer of a datagram, and returns the packet between them.
template <typename Encap>
Bytes inner(const Bytes& datagram) {
  if (datagram.size() <= kEncapBytes<Encap>) return CHECK(!"a packet is in it"), Bytes();
  CHECK(std::equal(datagram.begin(), datagram.begin() + Encap::kHeaderBytes, kMark));
  const auto end = datagram.end() - static_cast<long>(Encap::kTrailerBytes);
  const Bytes packet(datagram.begin() + Encap::kHeaderBytes, end);
  if constexpr (Encap::kTrailerBytes > 0) CHECK(std::ranges::equal(seal_of(packet), std::span(end, datagram.end())));
  return packet;
}

template <typename Encap>
Bytes outer(const Bytes& packet) {
  Bytes datagram(kMark, kMark + Encap::kHeaderBytes);
  datagram.insert(datagram.end(), packet.begin(), packet.end());
  if constexpr (Encap::kTrailerBytes > 0) {
    const auto seal = seal_of(packet);
    datagram.insert(datagram.end(), seal.begin(), seal.end());
  }
  return datagram;
}

bool is_whole(const Bytes& bytes) {
  Packet packet;
  return read_packet(bytes.data(), bytes.size(), packet) && packet.total == bytes.size() &&
         transport_sum(bytes) == 0xffff &&
         (packet.version == 6 || reference_fold(reference_sum(bytes.data(), packet.ip_bytes)) == 0xffff);
}

/// Returns the virtio header of a TCP superpacket without IP options, with segments of this size.
VirtioHeader tcp_in_segments_of(uint16_t size) {
  VirtioHeader virtio;
  virtio.flags = kVirtioNeedsCsum;
  virtio.gso_type = kGsoTcp4;
  virtio.gso_size = size;
  virtio.csum_start = 20;
  virtio.csum_offset = 16;
  return virtio;
}

/// Sends superpackets with different headers, with more datagrams than fit one batch of messages, and single packets in
/// between.
template <typename Encap>
void test_out(uint32_t features) {
  Host<Encap> host(features);
  size_t expected = 0;
  // The datagrams must fit a receive buffer of net.core.rmem_max's default (212992 bytes), so that any user can run
  // this.
  for (int i = 0; i < 5; i++) {
    Fields f;
    f.payload = 6000;
    f.sequence = static_cast<uint32_t>(i) * 6000;
    f.tcp_options = Bytes(i < 3 ? 0 : 40, 1);
    host.to_tun(tcp_in_segments_of(100), build(f));
    f.payload = 77;
    host.to_tun({}, build(f));
    expected += 61;
  }
  CHECK(!host.egress->pump().failure);
  CHECK(host.row[k_tx_packets] == expected);
  const auto datagrams = host.drain(host.other);
  CHECK(datagrams.size() == expected);
  size_t wrong = 0, bytes = 0;
  for (const Bytes& datagram : datagrams) {
    const Bytes packet = inner<Encap>(datagram);
    wrong += !is_whole(packet);
    bytes += packet.size();
  }
  CHECK(wrong == 0);
  const Traffic traffic = host.of_peer();
  CHECK(traffic.tx_packets == expected && traffic.tx_bytes == bytes && traffic.rx_packets == 0);
  CHECK(host.row[k_tx_bytes] == bytes);
}

/// A dropped superpacket must count as its segments.
template <typename Encap>
void test_dropped_segments() {
  for (const bool nobody : {true, false}) {
    Host<Encap> host(kAllFeatures);
    Fields f;
    f.payload = 6050;
    f.ttl = nobody ? 60 : 1;
    if (nobody) f.destination = 0x0a050901;
    host.to_tun(tcp_in_segments_of(100), build(f));
    f.payload = 77;
    host.to_tun({}, build(f));
    CHECK(!host.egress->pump().failure);
    CHECK(host.row[nobody ? k_tx_drop_no_route : k_tx_drop_ttl] == 62);
    CHECK(host.row[nobody ? k_tx_unreachable_sent : k_tx_time_exceeded_sent] == 2);
  }
}

/// An ICMP error must quote a packet as it would have been sent: the first segment of a superpacket, with its own
/// length and a complete checksum. The error must not exceed its maximum length.
template <typename Encap>
void test_quotes() {
  struct Row {
    bool v6, tcp;
    uint16_t segment;  ///< the segment size of a superpacket; 0 for a single packet
    size_t payload, options;
  };
  constexpr Row kRows[] = {
      {false, true, 1'000, 30'000, 0},  {false, true, 100, 30'000, 0},  {false, true, 0, 60, 0},
      {false, true, 0, 1'400, 40},      {false, false, 0, 1'400, 0},    {false, false, 0, 0, 0},
      {false, true, 1'000, 30'000, 40}, {true, true, 1'000, 30'000, 0}, {true, true, 100, 30'000, 0},
      {true, false, 0, 1'400, 0},       {false, false, 700, 30'000, 0}, {true, false, 300, 9'000, 0}};
  for (const Row& row : kRows) {
    context = std::string(row.v6 ? "IPv6" : "IPv4") + (row.tcp ? " TCP, " : " UDP, ") + std::to_string(row.payload) +
              " bytes in segments of " + std::to_string(row.segment);
    Host<Encap> host(kAllFeatures);
    Fields f;
    f.v6 = row.v6;
    f.tcp = row.tcp;
    f.payload = row.payload;
    f.ip_options = Bytes(row.v6 ? 0 : row.options, 1);
    f.destination = 0x0a050901;  // no peer has a subnet with this destination
    const Bytes whole = build(f);
    // Like the kernel, the test makes a superpacket whose checksum field contains only the pseudo-header's sum.
    Bytes open = whole;
    const size_t ip = row.v6 ? 40 : 20 + f.ip_options.size(), field = row.tcp ? kTcpChecksum : kUdpChecksum;
    Packet shape = read(open);
    const uint16_t pseudo =
        checksum_fold(pseudo_header_sum(source_address(open.data(), shape), 2 * address_bytes(shape),
                                        row.tcp ? IPPROTO_TCP : IPPROTO_UDP, static_cast<uint32_t>(open.size() - ip)));
    store(&open[ip + field], pseudo);
    VirtioHeader virtio;
    virtio.flags = kVirtioNeedsCsum;
    virtio.gso_type = row.segment == 0 ? kGsoNone : !row.tcp ? kGsoUdp : row.v6 ? kGsoTcp6 : kGsoTcp4;
    virtio.gso_size = row.segment;
    virtio.csum_start = static_cast<uint16_t>(ip);
    virtio.csum_offset = static_cast<uint16_t>(field);
    host.to_tun(virtio, open);
    CHECK(!host.egress->pump().failure && host.row[k_tx_unreachable_sent] == 1);
    const auto writes = host.drain(host.tun[1]);
    if (writes.size() != 1) return CHECK(!"one error was sent");
    const Bytes error(writes[0].begin() + sizeof(VirtioHeader), writes[0].end());
    const size_t outer_bytes = row.v6 ? 40 : 20, most = row.v6 ? kLeastIpv6Mtu : kMaxIpv4ErrorBytes;
    const size_t first = row.segment == 0 ? whole.size() : ip + (row.tcp ? 20 : 8) + row.segment;
    CHECK(error.size() == std::min(most, outer_bytes + 8 + first));
    if (row.v6) {
      CHECK(transport_sum(error) == 0xffff);
    } else {
      CHECK(reference_fold(reference_sum(&error[20], error.size() - 20)) == 0xffff);
      CHECK(reference_fold(reference_sum(error.data(), 20)) == 0xffff);
    }
    Bytes quoted(error.begin() + static_cast<long>(outer_bytes) + 8, error.end());
    const size_t says = row.v6 ? 40u + load_be16(&quoted[4]) : load_be16(&quoted[2]);
    CHECK(says == first);
    if (!row.v6) CHECK(reference_fold(reference_sum(quoted.data(), ip)) == 0xffff);
    // The bytes that the quote omits are added, so that the checksum over the whole packet can be verified.
    Bytes sent = quoted;
    sent.insert(sent.end(), whole.begin() + static_cast<long>(quoted.size()), whole.begin() + static_cast<long>(first));
    CHECK(transport_sum(sent) == 0xffff);
    CHECK(std::equal(quoted.begin() + static_cast<long>(ip) + (row.tcp ? 20 : 8), quoted.end(),
                     whole.begin() + static_cast<long>(ip) + (row.tcp ? 20 : 8)));
  }
  context.clear();
}

/// An unexpected error of the TUN must count as one dropped packet. Only the deletion of the TUN may end the loop.
template <typename Encap>
void test_tun_errors() {
  Host<Encap> host(kAllFeatures);
  const Fd tun(dup(host.tun[0]));
  const Fd folder(open("/", O_RDONLY | O_DIRECTORY));  // so that read() fails with EISDIR
  CHECK(dup2(folder.get(), host.tun[0]) == host.tun[0]);
  const Pump odd = host.egress->pump();
  CHECK(!odd.failure && odd.items == 64 && odd.refused == 64 && host.row[k_tx_drop_tun] == 64);
  CHECK(dup2(tun.get(), host.tun[0]) == host.tun[0]);
  host.to_tun({}, build({}));
  CHECK(!host.egress->pump().failure && host.drain(host.other).size() == 1);
  // so that read() fails with EBADFD, because no device is attached
  const Fd none(open("/dev/net/tun", O_RDWR | O_NONBLOCK));
  if (!none) return;
  CHECK(dup2(none.get(), host.tun[0]) == host.tun[0]);
  const Pump gone = host.egress->pump();
  CHECK(gone.failure && gone.failure->number == EBADFD && host.row[k_tx_drop_tun] == 64);
  CHECK(dup2(tun.get(), host.tun[0]) == host.tun[0]);
}

/// A container must get a limited number of ICMP errors about unknown destinations and expired TTLs.
template <typename Encap>
void test_answers_are_few() {
  for (const bool nobody : {true, false}) {
    Host<Encap> host(kAllFeatures);
    Fields f;
    f.tcp = false;
    f.ttl = nobody ? 60 : 1;
    if (nobody) f.destination = 0x0a050901;
    const Counter sent = nobody ? k_tx_unreachable_sent : k_tx_time_exceeded_sent;
    const auto send = [&](size_t packets) {
      for (size_t i = 0; i < packets; i++) host.to_tun({}, build(f));
      CHECK(!host.egress->pump().failure);
    };
    send(60);
    send(60);
    CHECK(host.row[nobody ? k_tx_drop_no_route : k_tx_drop_ttl] == 120);
    CHECK(host.row[sent] == 50);
    CHECK(host.drain(host.tun[1]).size() == 50);
    clock_ms += 75;
    send(60);
    CHECK(host.row[sent] == 57);
    clock_ms += 3'600'000;
    send(60);
    CHECK(host.row[sent] == 107);
    // Another sender has a limit of its own, so it still gets errors.
    f.source++;
    send(60);
    CHECK(host.row[sent] == 157);
  }
}

/// A packet that exceeds the path MTU must be segmented smaller, fragmented, or reported to its sender.
template <typename Encap>
void test_path(uint32_t features) {
  constexpr size_t kPath = 1280, kMtu = kPath - kOuterBytes - kEncapBytes<Encap>;
  const auto sent = [&](const VirtioHeader& virtio, const Bytes& packet, Host<Encap>& host) {
    PeerTables::Reader reader = host.peers.reader(1);
    const uint8_t peers[] = {10, 5, 2, 2};
    reader.acquire().find(4, peers)->path.learn(kPath, clock_ms);
    reader.release();
    host.to_tun(virtio, packet);
    CHECK(!host.egress->pump().failure);
    std::vector<Bytes> packets;
    for (const Bytes& datagram : host.drain(host.other)) packets.push_back(inner<Encap>(datagram));
    for (const Bytes& each : packets) {
      CHECK(each.size() <= kMtu && reference_fold(reference_sum(each.data(), 20)) == 0xffff);
    }
    return packets;
  };
  const auto told = [](Host<Encap>& host) {
    const auto writes = host.drain(host.tun[1]);
    if (writes.size() != 1) return size_t{0};
    const uint8_t* error = writes[0].data() + sizeof(VirtioHeader);
    const size_t size = writes[0].size() - sizeof(VirtioHeader);
    CHECK(size == kMaxIpv4ErrorBytes && load_be16(error + 2) == size);
    CHECK(error[20] == 3 && error[21] == 4 && reference_fold(reference_sum(error + 20, size - 20)) == 0xffff);
    return size_t{load_be16(error + 26)};
  };
  Fields f;
  f.tcp = false;
  const auto of_size = [&](size_t size) {
    f.payload = size - 28;
    return build(f);
  };
  for (const uint16_t fragment : {0x4000, 0}) {
    context = fragment ? "DF" : "no DF";
    f.fragment = fragment;
    Host<Encap> host(features);
    CHECK(sent({}, of_size(kMtu), host).size() == 1 && host.row[k_tx_fragmented] == 0);
    const auto packets = sent({}, of_size(kMtu + 1), host);
    CHECK(packets.size() == (fragment ? 0 : 2) && told(host) == (fragment ? kMtu : 0));
    CHECK(host.row[k_tx_drop_too_big] == (fragment != 0) && host.row[k_tx_fragmented] == (fragment == 0));
    CHECK(host.row[k_tx_frag_needed_sent] == (fragment != 0));
    // A missing checksum must be completed before the packet is fragmented.
    Packet shape;
    Bytes packet = of_size(kMtu + 100);
    read_packet(packet.data(), packet.size(), shape);
    const uint16_t right = load<uint16_t>(&packet[26]);
    store(&packet[26], checksum_fold(pseudo_header_sum(&packet[12], 8, IPPROTO_UDP, static_cast<uint32_t>(kMtu + 80))));
    const auto pieces = sent(open_sum(shape), packet, host);
    CHECK(pieces.size() == (fragment ? 0 : 2));
    if (!fragment) CHECK(load<uint16_t>(&pieces[0][26]) == right);
    host.drain(host.tun[1]);
    // The segments of a UDP superpacket must be reported or fragmented like single packets.
    VirtioHeader in_segments = open_sum(shape);
    in_segments.gso_type = kGsoUdp;
    in_segments.gso_size = 1300;
    const auto segments = sent(in_segments, of_size(28 + 3 * 1300 + 10), host);
    CHECK(segments.size() == (fragment ? 0 : 7) && told(host) == (fragment ? kMtu : 0));
    CHECK(host.row[k_tx_drop_too_big] == (fragment ? 2 + 4 : 0));
  }
  context = "a TCP superpacket";
  Host<Encap> host(features);
  f = {};
  f.payload = 20'000;
  const auto segments = sent(tcp_in_segments_of(1432), build(f), host);
  CHECK(segments.size() == (20'000 + kMtu - 41) / (kMtu - 40));
  for (const Bytes& each : segments) CHECK(is_whole(each));
  CHECK(host.drain(host.tun[1]).empty());
  context = "what is known grows old";
  f.tcp = false;
  f.payload = 1400;
  clock_ms += PathMtu::kAskEveryMs;
  host.to_tun({}, build(f));
  CHECK(!host.egress->pump().failure);
  CHECK(host.drain(host.other).size() == 1);  // the path is loopback, whose MTU is large enough
}

/// The limit in a peer's record must apply in addition to the path MTU, but not to echo requests of this host, which
/// probe the path.
template <typename Encap>
void test_limit(uint32_t features) {
  constexpr size_t kBefore = kOuterBytes + kEncapBytes<Encap>, kLimit = 1200;
  constexpr uint32_t kTunAddress = 0x0a050100, kContainer = 0x0a050102;
  const auto limit_to = [](Host<Encap>& host, size_t limit) {
    Bytes r = host.peer_record();
    store_be16(&r[6], static_cast<uint16_t>(limit));
    host.peers.set(r);
  };
  const auto datagrams = [](Host<Encap>& host, const VirtioHeader& virtio, const Bytes& packet) {
    host.to_tun(virtio, packet);
    CHECK(!host.egress->pump().failure);
    host.drain(host.tun[1]);
    return host.drain(host.other).size();
  };
  Fields f;
  f.tcp = false;
  f.payload = kLimit - 28;
  const auto echo = [](uint32_t source, uint8_t type, uint16_t fragment) {
    Fields g;
    g.tcp = false;
    g.source = source;
    g.fragment = fragment;
    g.payload = kLimit + 1 - 28;
    Bytes packet = build(g);
    packet[9] = IPPROTO_ICMP;
    packet[20] = type;
    store(&packet[10], uint16_t{0});
    store_be16(&packet[10], static_cast<uint16_t>(~reference_fold(reference_sum(packet.data(), 20))));
    return packet;
  };
  Host<Encap> host(features);
  context = "a limit";
  limit_to(host, kLimit);
  CHECK(datagrams(host, {}, build(f)) == 1);
  f.payload++;
  CHECK(datagrams(host, {}, build(f)) == 0 && host.row[k_tx_drop_too_big] == 1);
  f.fragment = 0;
  CHECK(datagrams(host, {}, build(f)) == 2 && host.row[k_tx_fragmented] == 1);
  Fields stream;
  stream.payload = 20'000;
  CHECK(datagrams(host, tcp_in_segments_of(1432), build(stream)) == (20'000 + kLimit - 41) / (kLimit - 40));
  context = "what asks whether it arrives";
  CHECK(datagrams(host, {}, echo(kTunAddress, 8, 0x4000)) == 1);
  CHECK(datagrams(host, {}, echo(kTunAddress, 0, 0x4000)) == 0);
  CHECK(datagrams(host, {}, echo(kContainer, 8, 0x4000)) == 0);
  CHECK(datagrams(host, {}, echo(kTunAddress, 8, 0)) == 2);
  context = "what the kernel knows counts beside a limit";
  const auto know = [](Host<Encap>& of, size_t bytes) {
    PeerTables::Reader reader = of.peers.reader(1);
    const uint8_t peer[] = {10, 5, 2, 2};
    reader.acquire().find(4, peer)->path.learn(bytes, clock_ms);
    reader.release();
  };
  know(host, kLimit + kBefore);
  CHECK(datagrams(host, {}, echo(kTunAddress, 8, 0x4000)) == 0);
  context = "what the kernel knows outlives a limit";
  limit_to(host, kLimit + 100);
  CHECK(datagrams(host, {}, echo(kContainer, 8, 0x4000)) == 0);
  context = "no limit, and one that is none";
  host.peers.set({});
  for (const size_t none : {size_t{0}, PathMtu::kAlwaysFits - 1}) {
    limit_to(host, none);
    CHECK(datagrams(host, {}, echo(kContainer, 8, 0x4000)) == 1);
  }
}

/// Every sender must get "fragmentation needed", regardless of errors of other kinds and for other senders.
template <typename Encap>
void test_told_of_size() {
  Host<Encap> host(kAllFeatures);
  Bytes r = host.peer_record();
  store_be16(&r[6], 1000);  // the limit: the longest packet that reaches the peer
  host.peers.set(r);
  Fields nowhere, late, long_one;
  nowhere.tcp = late.tcp = long_one.tcp = false;
  nowhere.destination = 0x0a050901;
  late.ttl = 1;
  long_one.payload = 1200;
  size_t told = 0, asked = 0;
  for (int ms = 0; ms < 4'000; ms += 4, clock_ms += 4) {
    for (uint32_t other = 0; other < 6; other++) {
      nowhere.source = 0x0a050110 + (static_cast<uint32_t>(ms) + other) % 200;
      late.source = 0xc0000200 + other;
      long_one.source = other % 2 ? 0xc0000300 + (static_cast<uint32_t>(ms) * 8 + other) % 4096 : 0x0a050103 + other;
      for (const Fields& f : {nowhere, late, long_one}) host.to_tun({}, build(f));
    }
    CHECK(!host.egress->pump().failure);
    host.drain(host.tun[1]);
    if (ms % 200 != 0) continue;
    asked++;
    // Errors of other kinds have limits of their own.
    nowhere.source = long_one.source = 0x0a050102;
    for (int i = 0; i < 60; i++) host.to_tun({}, build(nowhere));
    CHECK(!host.egress->pump().failure);
    host.drain(host.tun[1]);
    host.to_tun({}, build(long_one));
    CHECK(!host.egress->pump().failure);
    for (const Bytes& write : host.drain(host.tun[1])) {
      const uint8_t* error = write.data() + sizeof(VirtioHeader);
      told += error[20] == 3 && error[21] == 4 && load_be32(error + 16) == 0x0a050102 && load_be16(error + 26) == 1000;
    }
  }
  CHECK(asked == 20 && told == asked);
  CHECK(host.row[k_tx_unreachable_sent] > 0 && host.row[k_tx_time_exceeded_sent] > 0);
}

/// A packet with the maximum datagram size must be sent; with one byte more it must be reported, segmented, or dropped.
template <typename Encap>
void test_longest() {
  // The maximum that a datagram over IPv4 can contain, or over IPv6 the maximum for loopback's MTU of 65536 bytes.
  const size_t kMost = (is_over_ipv6 ? 65536 - 48 : 65507) - kEncapBytes<Encap>;
  const auto datagrams = [](Host<Encap>& host, const Bytes& packet) {
    host.to_tun({}, packet);
    CHECK(!host.egress->pump().failure);
    size_t longest = 0;
    const auto all = host.drain(host.other);
    for (const Bytes& each : all) longest = std::max(longest, each.size());
    CHECK(longest <= 65507);
    return all.size();
  };
  Fields f;
  f.tcp = false;
  for (const size_t size : {kMost, kMost + 1, size_t{65514}, size_t{65535}}) {
    context = "a packet of " + std::to_string(size);
    const bool fits = size <= kMost;
    f.payload = size - 28;
    Host<Encap> host(kAllFeatures);
    f.fragment = 0x4000;
    CHECK(datagrams(host, build(f)) == fits);
    CHECK(host.row[k_tx_drop_too_big] == !fits && host.row[k_tx_frag_needed_sent] == !fits);
    f.fragment = 0;
    CHECK(datagrams(host, build(f)) == (fits ? 1 : 2));
    CHECK(host.row[k_tx_drop_too_big] == !fits && host.row[k_tx_fragmented] == !fits);
  }
  context = "IPv6";
  Host<Encap> host(kAllFeatures);
  host.set_peers(host.peer_record(6));
  f.v6 = true;
  for (const size_t size : {kMost, kMost + 1, size_t{65535}}) {
    f.payload = size - 48;
    CHECK(datagrams(host, build(f)) == (size == kMost));
  }
  CHECK(host.row[k_tx_drop_too_big] == 2 && host.row[k_tx_frag_needed_sent] == 2);
  context.clear();
}

/// The MSS in the SYN of TCP connections must fit the path MTU, in both directions. If the path MTU is implausible, the
/// TUN's MTU must be used. If the path MTU is old, the kernel must be queried; its answer for loopback is large.
template <typename Encap>
void test_clamp() {
  constexpr size_t kBefore = kOuterBytes + kEncapBytes<Encap>, kClamp = 1400, kLeast = 256;
  for (const auto& [path, most] : {std::pair<size_t, size_t>{1280 + kBefore, 1280},
                                   {kLeast + kBefore, kLeast},
                                   {kLeast + kBefore - 1, kClamp},
                                   {41 + kBefore, kClamp},
                                   {kClamp + kBefore, kClamp},
                                   {kClamp + kBefore + 1, kClamp},
                                   {0, kClamp}}) {
    for (const auto& [outward, is_old] : {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
      context = std::string(outward ? "out" : "in") + ", a path of " + std::to_string(path) + (is_old ? ", old" : "");
      Host<Encap> host(kAllFeatures, {}, VerifySource::kStrict, kClamp);
      PeerTables::Reader reader = host.peers.reader(1);
      const uint8_t peer[] = {10, 5, 2, 2};
      reader.acquire().find(4, peer)->path.learn(path, clock_ms);
      reader.release();
      if (is_old) clock_ms += PathMtu::kAskEveryMs;
      Fields f = outward ? Fields{} : inward();
      f.flags = kSyn;
      f.payload = 0;
      f.tcp_options = {2, 4, 0xff, 0xff};
      Bytes packet = build(f);
      std::vector<Bytes> out;
      if (outward) {
        host.to_tun({}, packet);
        CHECK(!host.egress->pump().failure);
        for (const Bytes& each : host.drain(host.other)) out.push_back(inner<Encap>(each));
      } else {
        host.from_peer(outer<Encap>(packet));
        CHECK(!host.ingress->pump().failure);
        for (const Bytes& each : host.drain(host.tun[1])) {
          out.push_back(Bytes(each.begin() + sizeof(VirtioHeader), each.end()));
        }
      }
      const size_t expected = is_old ? kClamp : most;
      CHECK(out.size() == 1 && is_whole(out[0]) && load_be16(&out[0][42]) == expected - 40);
    }
  }
  context.clear();
}

/// Tests the rules that differ for IPv6.
template <typename Encap>
void test_ipv6(uint32_t features) {
  constexpr size_t kBefore = kOuterBytes + kEncapBytes<Encap>, kIp = 40;
  constexpr uint32_t kTunAddress = 0x0a050100, kNobody = 0x0a050901;
  Fields f;
  f.v6 = true;
  /// Returns the datagrams that are sent if the path accepts packets of `most` bytes.
  const auto sent = [](Host<Encap>& host, size_t most, const VirtioHeader& virtio, const Bytes& packet) {
    if (most > 0) {
      PeerTables::Reader reader = host.peers.reader(1);
      uint8_t peer[16] = {0xfd};
      store_be32(peer + 12, 0x0a050202);
      reader.acquire().find(6, peer)->path.learn(most + kBefore, clock_ms);
      reader.release();
    }
    host.to_tun(virtio, packet);
    CHECK(!host.egress->pump().failure);
    std::vector<Bytes> packets;
    for (const Bytes& datagram : host.drain(host.other)) packets.push_back(inner<Encap>(datagram));
    for (const Bytes& each : packets) CHECK(is_whole(each) && each[7] == 60 - Encap::kRoutes);
    return packets;
  };
  /// Validates the only ICMP error, and returns its type and its MTU.
  const auto told = [&f](Host<Encap>& host) {
    const auto writes = host.drain(host.tun[1]);
    if (writes.size() != 1) return std::pair<int, size_t>{-1, writes.size()};
    const Bytes error(writes[0].begin() + sizeof(VirtioHeader), writes[0].end());
    CHECK(error.size() <= 1280 && error[6] == 58 && transport_sum(error) == 0xffff);
    CHECK(Address::v6(&error[8]) == ipv6(kTunAddress) && Address::v6(&error[24]) == ipv6(f.source));
    return std::pair<int, size_t>{error[40], load_be32(&error[44])};
  };
  const auto of_size = [&f](size_t size) {
    f.payload = size - kIp - (f.tcp ? 20 : 8);
    return build(f);
  };
  VirtioHeader in_segments = tcp_in_segments_of(1428);
  in_segments.gso_type = kGsoTcp6;
  in_segments.csum_start = kIp;
  const auto host_of = [features] {
    auto host = std::make_unique<Host<Encap>>(features, OwnEnd{}, VerifySource::kStrict, 1400);
    host->set_peers(host->peer_record(6));
    return host;
  };
  const std::string before = context;
  context = before + ", IPv6 to nobody, and at its last hop";
  auto host = host_of();
  f.destination = kNobody;
  CHECK(sent(*host, 0, {}, build(f)).empty() && told(*host) == std::pair(1, size_t{0}));
  f.destination = Fields{}.destination;
  if constexpr (Encap::kRoutes) {
    f.ttl = 1;
    CHECK(sent(*host, 0, {}, build(f)).empty() && told(*host) == std::pair(3, size_t{0}));
    f.ttl = Fields{}.ttl;
  }
  context = before + ", IPv6, a TCP superpacket";
  CHECK(sent(*host, 0, in_segments, of_size(60 + 10 * 1428)).size() == 10);
  for (const size_t most : {1400u, 1280u, 1000u}) {
    const size_t each = most - 60;
    CHECK(sent(*host, most, in_segments, of_size(60 + 10 * 1428)).size() == (14'280 + each - 1) / each);
  }
  context = before + ", IPv6, a TCP superpacket with as many extension headers as there may be";
  {
    constexpr size_t kExtensionBytes = 512, kHeaders = kIp + kExtensionBytes + 20;
    Bytes options(kExtensionBytes);
    options[0] = IPPROTO_TCP;
    options[1] = kExtensionBytes / 8 - 1;
    for (const size_t at : {2u, 257u}) options[at] = 1, options[at + 1] = 253;  // PadN
    Bytes packet = of_size(60 + 7080);
    packet.insert(packet.begin() + kIp, options.begin(), options.end());
    packet[6] = IPPROTO_DSTOPTS;
    store_be16(&packet[4], static_cast<uint16_t>(packet.size() - kIp));
    VirtioHeader virtio = in_segments;
    virtio.csum_start = kIp + kExtensionBytes;
    // A segment must be as long as the path MTU allows, or as the IPv6 minimum if the headers leave hardly any payload.
    for (const size_t most : {size_t{1400}, size_t{1100}, kHeaders + 1, kHeaders, size_t{540}}) {
      PeerTables::Reader reader = host->peers.reader(1);
      uint8_t peer[16] = {0xfd};
      store_be32(peer + 12, 0x0a050202);
      reader.acquire().find(6, peer)->path.learn(most + kBefore, clock_ms);
      reader.release();
      host->to_tun(virtio, packet);
      CHECK(!host->egress->pump().failure);
      const size_t each = (most == 1400 ? most : 1280) - kHeaders;
      size_t payload = 0;
      const auto datagrams = host->drain(host->other);
      for (const Bytes& datagram : datagrams) payload += inner<Encap>(datagram).size() - kHeaders;
      CHECK(datagrams.size() == (7080 + each - 1) / each && payload == 7080);
    }
  }
  context = before + ", IPv6, what is too long";
  for (const bool tcp : {true, false}) {
    f.tcp = tcp;
    for (const size_t most : {1400u, 1281u, 1280u, 1279u, 1000u}) {
      const size_t longest = std::max<size_t>(most, 1280);
      CHECK(sent(*host, most, {}, of_size(longest)).size() == 1);
      CHECK(sent(*host, most, {}, of_size(longest + 1)).empty() && told(*host) == std::pair(2, longest));
    }
  }
  const uint64_t dropped = host->row[k_tx_drop_too_big];
  in_segments.gso_type = kGsoUdp;
  in_segments.csum_offset = 6;
  in_segments.gso_size = 1280 - 48;
  CHECK(sent(*host, 1000, in_segments, of_size(48 + 3 * 1232)).size() == 3);
  CHECK(sent(*host, 1280, in_segments, of_size(48 + 3 * 1232)).size() == 3);
  in_segments.gso_size++;
  CHECK(sent(*host, 1280, in_segments, of_size(48 + 3 * 1233)).empty() && told(*host) == std::pair(2, size_t{1280}));
  CHECK(host->row[k_tx_drop_too_big] == dropped + 3 && host->row[k_tx_fragmented] == 0);

  context = before + ", IPv6, a question of the path";
  host = host_of();
  Bytes limited = host->peer_record(6);
  store_be16(&limited[6], 1300);
  host->set_peers(limited);
  f.tcp = false;
  for (const uint32_t source : {kTunAddress, 0x0a050102u}) {
    f.source = source;
    Bytes question = of_size(1390);
    question[6] = 58;
    question[kIp] = kEchoRequest6;
    store_be16(&question[kIp + 2], 0);
    store_be16(&question[kIp + 2], static_cast<uint16_t>(~transport_sum(question)));
    CHECK(sent(*host, 0, {}, question).size() == (source == kTunAddress));
    CHECK(told(*host) == (source == kTunAddress ? std::pair(-1, size_t{0}) : std::pair(2, size_t{1300})));
  }
  context = before + ", IPv6, a connection's segments";
  f = {};
  f.v6 = true;
  f.flags = kSyn;
  f.payload = 0;
  f.tcp_options = {2, 4, 0xff, 0xff};
  for (const auto& [most, mss] : {std::pair{1300, 1240}, {1500, 1340}}) {
    const auto syn = sent(*host_of(), static_cast<size_t>(most), {}, build(f));
    CHECK(syn.size() == 1 && load_be16(&syn[0][kIp + 22]) == mss);
  }
  context = before + ", IPv6 from a peer at its last hop";
  if constexpr (Encap::kRoutes) {
    f = inward();
    f.v6 = true;
    f.ttl = 1;
    host->from_peer(outer<Encap>(build(f)));
    CHECK(!host->ingress->pump().failure && host->row[k_rx_time_exceeded_sent] == 1);
    const auto answers = host->drain(host->other);
    CHECK(answers.size() == 1);
    if (answers.size() == 1) {
      const Bytes error = inner<Encap>(answers[0]);
      CHECK(transport_sum(error) == 0xffff && error[40] == 3 && Address::v6(&error[24]) == ipv6(f.source));
      CHECK(Address::v6(&error[8]) == ipv6(kTunAddress));
    }
  }
  context = before;
}

/// A path MTU probe must be sent alone in its message, even between packets of the same size to the same peer.
template <typename Encap>
void test_question_alone(uint32_t features) {
  Host<Encap> host(features);
  Fields f;
  f.tcp = false;
  f.source = 0x0a050100;
  const Bytes before = build(f);
  Bytes question = before;
  question[9] = IPPROTO_ICMP;
  question[20] = kEchoRequest;
  for (int i = 0; i < 3; i++) host.to_tun({}, before);
  host.to_tun({}, question);
  for (int i = 0; i < 3; i++) host.to_tun({}, before);
  CHECK(!host.egress->pump().failure);
  CHECK(host.row[k_tx_packets] == 7 && host.drain(host.other).size() == 7);
  CHECK(host.row[k_tx_messages] == (features & kUdpGso ? 3 : 7));
}

/// After pump() has returned, no replaced peer table may be kept, because a table may be large.
template <typename Encap>
void test_table_goes() {
#if defined(__SANITIZE_ADDRESS__)
  for (const bool outward : {true, false}) {
    Host<Encap> host(kAllFeatures);
    const Bytes r = host.peer_record();
    host.peers.set(r);
    const auto* used = &host.peers.current();
    if (outward) {
      host.to_tun({}, build({}));
      CHECK(!host.egress->pump().failure);
    } else {
      host.from_peer(outer<Encap>(build(inward())));
      CHECK(!host.ingress->pump().failure);
    }
    CHECK(host.row[outward ? k_tx_packets : k_rx_packets] == 1);
    CHECK(!__asan_address_is_poisoned(used));
    host.peers.set(r);
    CHECK(__asan_address_is_poisoned(used));
  }
#endif
}

/// A router's ECN mark on the outer header must reach the packet if its sender supports ECN. The packet's own mark must
/// be on the outer header if the encapsulation copies marks. Uses real UDP sockets.
template <typename Encap>
void test_congestion(uint32_t features, bool copies_ecn, const std::function<Bytes(const Bytes&)>& frame,
                     const OwnEnd& own = {}) {
  // some emulators pass the ECN mark of an IPv6 datagram to the kernel with a wrong option number
  if (is_over_ipv6 && !do_controls_pass) return;
  constexpr uint8_t kDscp = 0xb8;
  for (const bool v6 : {false, true}) {
    for (uint8_t inner = 0; inner < 4; inner++) {
      for (int outer = 0; outer < 4; outer++) {
        context = "inner " + std::to_string(inner) + ", outer " + std::to_string(outer) + (v6 ? ", IPv6" : "");
        Host<Encap> host(features & ~kCoalesceTcp, own, VerifySource::kOff);
        Fields f = inward();
        f.v6 = v6;
        f.tos = kDscp | inner;
        // The peer sends its datagrams with a DSCP, which must not be copied to the packet.
        mark_sent(host.other, 0x40 | outer);
        for (int i = 0; i < 2; i++, f.sequence += 100) host.from_peer(frame(build(f)));
        const Pump pump = host.ingress->pump();
        const bool is_lost = inner == kNotEct && outer == kCe && copies_ecn;
        CHECK(pump.carried == (is_lost ? 0 : 2) && pump.refused == (is_lost ? 2 : 0));
        CHECK(host.row[k_rx_drop_congestion] == (is_lost ? 2 : 0));
        const auto writes = host.drain(host.tun[1]);
        CHECK(writes.size() == (is_lost ? 0 : 2));
        for (const Bytes& write : writes) {
          const uint8_t* bytes = write.data() + sizeof(VirtioHeader);
          const int now = v6 ? (bytes[0] & 15) << 4 | bytes[1] >> 4 : bytes[1];
          const int marked = inner == kNotEct                   ? kNotEct
                             : outer == kCe                     ? kCe
                             : inner == kEct0 && outer == kEct1 ? kEct1
                                                                : static_cast<Ecn>(inner);
          CHECK(now == (kDscp | marked));
          CHECK(v6 || reference_fold(reference_sum(bytes, 20)) == 0xffff);
        }
      }
    }
  }
  context = "what is sent";
  Host<Encap> host(features, own);
  const int on = 1, level = is_over_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP;
  CHECK(setsockopt(host.other, level, is_over_ipv6 ? IPV6_RECVTCLASS : IP_RECVTOS, &on, sizeof on) == 0);
  Fields f;
  f.payload = 1000;
  std::vector<uint8_t> expected;
  for (const uint8_t ecn : {kNotEct, kEct0, kEct0, kCe, kEct1, kNotEct, kEct0}) {
    f.tos = kDscp | ecn;
    host.to_tun({}, build(f));
    expected.push_back(ecn);
  }
  f.payload = 3000;
  f.tos = kEct0;
  host.to_tun(tcp_in_segments_of(1000), build(f));
  expected.insert(expected.end(), 3, kEct0);
  CHECK(!host.egress->pump().failure);
  for (const uint8_t ecn : expected) {
    Bytes bytes(2000);
    alignas(cmsghdr) uint8_t controls[CMSG_SPACE(sizeof(int))];
    iovec iov{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = controls;
    message.msg_controllen = sizeof controls;
    CHECK(recvmsg(host.other, &message, 0) > 0);
    const cmsghdr* control = CMSG_FIRSTHDR(&message);
    CHECK(control && control->cmsg_level == level && control->cmsg_type == (is_over_ipv6 ? IPV6_TCLASS : IP_TOS));
    if (!control) continue;
    // The kernel reports the mark of an IPv4 datagram as a byte, of an IPv6 datagram as an int.
    const int mark = is_over_ipv6 ? load<int>(CMSG_DATA(control)) : *CMSG_DATA(control);
    CHECK(mark == (copies_ecn ? ecn : 0));
    CHECK((bytes[Encap::kHeaderBytes + 1] & 3) == ecn);
  }
  context.clear();
}

/// The ECN mark of a message must apply to each datagram that the kernel joined.
void test_congestion_joined() {
  Host<FlannelUdp> host(kAllFeatures & ~kCoalesceTcp);
  const int on = 1, size = 140;
  CHECK(setsockopt(host.socket, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0);
  CHECK(setsockopt(host.other, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size) == 0);
  mark_sent(host.other, kCe);
  Fields f = inward();
  f.tos = kEct0;
  Bytes run;
  for (int i = 0; i < 5; i++, f.sequence += 100) {
    const Bytes packet = build(f);
    run.insert(run.end(), packet.begin(), packet.end());
  }
  host.from_peer(run);
  CHECK(host.ingress->pump().items == 1);  // one message, because the kernel joined the datagrams
  const auto writes = host.drain(host.tun[1]);
  CHECK(writes.size() == 5);
  for (const Bytes& write : writes) {
    CHECK((write[sizeof(VirtioHeader) + 1] & 3) == kCe);
    CHECK(reference_fold(reference_sum(write.data() + sizeof(VirtioHeader), 20)) == 0xffff);
  }
}

/// pump() must report how many packets were forwarded and refused, which decides how the thread waits.
template <typename Encap>
void test_turns() {
  Host<Encap> host(kAllFeatures);
  const Bytes good = outer<Encap>(build(inward()));
  const auto inward_turn = [&](std::pair<size_t, size_t> expected) {
    const Pump pump = host.ingress->pump();
    CHECK(!pump.failure && std::pair(pump.carried, pump.refused) == expected);
  };
  inward_turn({0, 0});
  host.from_peer(good);
  inward_turn({1, 0});
  host.from_stranger(good);
  host.from_peer(Bytes(5, 0));
  Fields late = inward();
  late.ttl = 1;
  host.from_peer(outer<Encap>(build(late)));
  inward_turn({0, 3});
  host.from_stranger(good);
  host.from_peer(good);
  inward_turn({1, 1});
  const auto outward_turn = [&](std::pair<size_t, size_t> expected) {
    const Pump pump = host.egress->pump();
    CHECK(!pump.failure && std::pair(pump.carried, pump.refused) == expected);
  };
  outward_turn({0, 0});
  host.to_tun({}, build({}));
  outward_turn({1, 0});
  Fields nowhere;
  nowhere.destination = 0x0a050901;
  host.to_tun({}, build(nowhere));
  host.to_tun({}, Bytes(30, 0xff));
  outward_turn({0, 2});
}

/// A raw socket also receives replies to other programs. A flood of them must not keep take_echoes() from returning.
void test_echoes() {
  int pair[2];
  CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair) == 0);
  constexpr uint32_t kMark = 7, kForeign = 8;
  const auto reply = [&](uint32_t mark, uint8_t sequence) {
    Bytes bytes(24);
    bytes[0] = ICMP_ECHOREPLY;
    bytes[7] = sequence;
    store(&bytes[16], mark);
    return send(pair[1], bytes.data(), bytes.size(), 0) == 24;
  };
  const EchoSocket echo{pair[0], false, kMark};
  std::array<EchoAnswer, 4> room;
  for (int i = 0; i < 4; i++) CHECK(reply(kForeign, 1));
  CHECK(reply(kMark, 5));
  CHECK(take_echoes(echo, room).empty());
  const auto answers = take_echoes(echo, room);
  CHECK(answers.size() == 1 && answers[0].sequence == 5);
  CHECK(take_echoes(echo, room).empty());
  close(pair[0]);
  close(pair[1]);
}

/// No ICMP error may be sent about packets that are not from one host of this node to one other host.
template <typename Encap>
void test_not_answered() {
  constexpr uint32_t kOurs = 0x0a050102, kNobodys = 0x0a050901;
  constexpr struct {
    const char* what;
    uint32_t source, destination;
    size_t answers, answers_when_off;
  } rows[] = {
      {"a container", kOurs, kNobodys, 1, 1},           {"the host", 0xc0000209, kNobodys, 1, 1},
      {"a peer's address", 0x0a050207, kNobodys, 0, 1}, {"nobody's address", 0x0a050a01, kNobodys, 0, 1},
      {"to multicast", kOurs, 0xe00000fb, 0, 0},        {"to broadcast", kOurs, 0xffffffff, 0, 0},
      {"from multicast", 0xe00000fb, kNobodys, 0, 0},   {"from nowhere", 0, kNobodys, 0, 0},
      {"from loopback", 0x7f000001, kNobodys, 0, 0},
  };
  for (const auto& row : rows) {
    context = row.what;
    for (const VerifySource verify : {VerifySource::kStrict, VerifySource::kInner, VerifySource::kOff}) {
      Host<Encap> host(kAllFeatures, {}, verify);
      Fields f;
      f.tcp = false;
      f.source = row.source;
      f.destination = row.destination;
      host.to_tun({}, build(f));
      f.fragment = 0x0010;
      host.to_tun({}, build(f));
      CHECK(!host.egress->pump().failure);
      const bool is_for_link = row.destination == 0xe00000fb || row.destination == 0xffffffff;
      CHECK(host.row[is_for_link ? k_tx_for_link : k_tx_drop_no_route] == 2);
      CHECK(host.row[k_tx_drop_no_route] == (is_for_link ? 0 : 2));
      CHECK(host.row[k_tx_unreachable_sent] == (verify == VerifySource::kOff ? row.answers_when_off : row.answers));
    }
  }
}

/// Receives a stream that can be joined, a datagram that the encapsulation refuses, and an invalid packet.
template <typename Encap>
void test_in(uint32_t features) {
  Host<Encap> host(features);
  Fields f = inward();
  std::vector<Bytes> packets;
  for (int i = 0; i < 10; i++, f.sequence += 100, f.id++) {
    packets.push_back(build(f));
    host.from_peer(outer<Encap>(packets.back()));
  }
  host.from_peer(Bytes(5, 0));
  host.from_peer(outer<Encap>(Bytes(30, 0xff)));
  CHECK(!host.ingress->pump().failure);
  CHECK(host.row[k_rx_packets] == 10);
  // Joined packets count with the headers that each of them had.
  CHECK(host.row[k_rx_bytes] == 10 * packets[0].size() && host.of_peer().rx_bytes == host.row[k_rx_bytes]);
  CHECK(host.row[k_rx_drop_malformed] == 2);
  const auto writes = host.drain(host.tun[1]);
  CHECK(writes.size() == (features & kCoalesceTcp ? 1u : 10u));
  const size_t header = features & kTunHeader ? sizeof(VirtioHeader) : 0;
  size_t payload = 0;
  for (const Bytes& write : writes) payload += write.size() - header - 40;
  CHECK(payload == 1000);
  CHECK(!writes.empty() && writes[0].size() > header + 8 && writes[0][header + 8] == f.ttl - 1);
}

/// Traffic must be counted for the peer that sent or receives it. Packets of unknown senders and refused packets must
/// not be counted.
template <typename Encap>
void test_traffic() {
  for (const VerifySource verify : {VerifySource::kStrict, VerifySource::kInner, VerifySource::kOff}) {
    Host<Encap> host(kAllFeatures, {}, verify);
    Fields f = inward();
    f.tcp = false;
    size_t bytes = 0;
    for (const uint32_t source : {0x0a050207u, 0x0b050207u, 0x0a050208u, 0x08080808u, 0x0a050207u, 0x0a050901u}) {
      f.source = source;
      const Bytes packet = build(f);
      if (source >> 8 == 0x0a0502) bytes += packet.size();
      host.from_peer(outer<Encap>(packet));
    }
    CHECK(host.of_peer().last_received_ms == 0);
    CHECK(!host.ingress->pump().failure);
    const Traffic traffic = host.of_peer();
    CHECK(host.row[k_rx_packets] == (verify == VerifySource::kOff ? 6u : 5u));
    CHECK(traffic.rx_packets == 3 && traffic.rx_bytes == bytes && traffic.tx_packets == 0);
    CHECK(traffic.last_received_ms == static_cast<uint64_t>(clock_ms));
    clock_ms += 1'000;
    CHECK(!host.ingress->pump().failure);
    CHECK(host.of_peer().last_received_ms == static_cast<uint64_t>(clock_ms - 1'000));
  }
}

/// A packet with a damaged header must be dropped, also within a stream that is joined. Later fragments must be
/// filtered like other packets.
template <typename Encap>
void test_malformed(uint32_t features) {
  Host<Encap> host(features);
  Fields f = inward();
  for (int i = 0; i < 5; i++, f.sequence += 100, f.id++) {
    Bytes packet = build(f);
    if (i == 2) packet[5] ^= 1;  // the identification, which may differ with DF
    host.from_peer(outer<Encap>(packet));
  }
  f.fragment = 0x0020;
  host.from_peer(outer<Encap>(build(f)));
  host.from_stranger(outer<Encap>(build(f)));
  f.fragment = 0x1fff;
  host.from_peer(outer<Encap>(build(f)));
  f.fragment = 0x4000;
  f.ip_options = {131, 7, 4, 10, 5, 1, 3, 0};
  host.from_peer(outer<Encap>(build(f)));
  CHECK(!host.ingress->pump().failure);
  CHECK(host.row[k_rx_packets] == 5);
  for (const Counter counter : {k_rx_drop_checksum, k_rx_drop_fragment, k_rx_drop_options, k_rx_drop_spoofed_source}) {
    CHECK(host.row[counter] == 1);
  }
  const size_t header = features & kTunHeader ? sizeof(VirtioHeader) : 0;
  for (const Bytes& write : host.drain(host.tun[1])) {
    const Bytes packet(write.begin() + static_cast<long>(header), write.end());
    CHECK(reference_fold(reference_sum(packet.data(), 20)) == 0xffff && load_be32(&packet[12]) == f.source);
  }
}

/// An expired TTL must be reported to the peer that owns the source, at the address in the peer table, whatever the
/// datagram's source. Packets that belong to no peer must cause no error, and the number of errors is limited.
template <typename Encap>
void test_time_exceeded() {
  Host<Encap> host(kAllFeatures);
  Fields f = inward();
  f.tcp = false;
  f.ttl = 1;
  const int unknown_sender = socket_at(loopback_address());  // a socket with the peer's address, but another port
  const auto send = [&](size_t packets) {
    const Bytes datagram = outer<Encap>(build(f));
    for (size_t i = 0; i < packets; i++) {
      host.from(unknown_sender, datagram);
      CHECK(!host.ingress->pump().failure);
    }
  };
  send(1);
  CHECK(host.row[k_rx_drop_ttl] == 1);
  CHECK(host.row[k_rx_time_exceeded_sent] == 1);
  const auto answers = host.drain(host.other);
  CHECK(answers.size() == 1);
  CHECK(host.drain(unknown_sender).empty());
  if (answers.empty()) return;
  const Bytes error = inner<Encap>(answers[0]);
  CHECK(error.size() == 28 + build(f).size() && error[20] == kTimeExceeded.ipv4.type &&
        load_be32(&error[16]) == f.source);

  f.source = 0xc0000209;  // a host in no subnet
  send(1);
  CHECK(host.row[k_rx_drop_ttl] == 2);
  CHECK(host.row[k_rx_time_exceeded_sent] == 1);
  CHECK(host.drain(host.other).empty() && host.drain(unknown_sender).empty());

  f.source = 0x0a050207;
  send(100);
  CHECK(host.row[k_rx_drop_ttl] == 102);
  CHECK(host.row[k_rx_time_exceeded_sent] == 50);
  close(unknown_sender);
}

/// Calls the function with each row for IPv4 and for IPv6, except rows about special IPv4 addresses.
template <typename Row, size_t kCount>
std::vector<std::pair<Row, bool>> in_both_families(const Row (&rows)[kCount]) {
  std::vector<std::pair<Row, bool>> both;
  for (const Row& row : rows) {
    both.emplace_back(row, false);
    if (is_one_host(to_be32(row.source))) both.emplace_back(row, true);
  }
  return both;
}

/// Tests which packets may enter, for each value of verifySource.
template <typename Encap>
void test_filter() {
  constexpr uint32_t kPeers = 0x0a050207, kOurs = 0x0a050102, kHosts = 0xc0000209, kNobodys = 0x0a050907;
  constexpr Counter kIn = k_rx_packets, kUnknown = k_rx_drop_unknown_sender, kSpoofed = k_rx_drop_spoofed_source,
                    kNotOurs = k_rx_drop_destination;
  constexpr struct {
    const char* what;
    bool by_peer;
    uint32_t source, destination;
    Counter strict, inner;
  } rows[] = {
      {"a container to another", true, kPeers, kOurs, kIn, kIn},
      {"a node to another, by their TUNs", true, 0x0a050200, 0x0a050100, kIn, kIn},
      {"a host that does not masquerade", true, kHosts, kOurs, kIn, kIn},
      {"a cloud's address that was reserved", true, 0xf0000001, kOurs, kIn, kIn},
      {"a peer's source from elsewhere", false, kPeers, kOurs, kSpoofed, kIn},
      {"a node that has no lease", false, kNobodys, kOurs, kUnknown, kUnknown},
      {"nobody's source by a peer", true, kNobodys, kOurs, kUnknown, kUnknown},
      {"a host that is no node", false, kHosts, kOurs, kUnknown, kUnknown},
      {"our own subnet, by a peer", true, kOurs, kOurs, kSpoofed, kSpoofed},
      {"our own TUN, by a peer", true, 0x0a050100, kOurs, kSpoofed, kSpoofed},
      {"our own subnet, by an unknown sender", false, kOurs, kOurs, kSpoofed, kSpoofed},
      {"from loopback", true, 0x7f000001, kOurs, kSpoofed, kSpoofed},
      {"from multicast", true, 0xe0000001, kOurs, kSpoofed, kSpoofed},
      {"from broadcast", true, 0xffffffff, kOurs, kSpoofed, kSpoofed},
      {"from no address", true, 0, kOurs, kSpoofed, kSpoofed},
      {"to another node's subnet", true, kPeers, 0x0a050302, kNotOurs, kNotOurs},
      {"to the peer's own subnet", true, kPeers, kPeers, kNotOurs, kNotOurs},
      {"to a host", true, kPeers, kHosts, kNotOurs, kNotOurs},
      {"to multicast", true, kPeers, 0xe0000001, kNotOurs, kNotOurs},
      {"to broadcast", true, kPeers, 0xffffffff, kNotOurs, kNotOurs},
      {"to loopback", true, kPeers, 0x7f000001, kNotOurs, kNotOurs},
  };
  for (const auto& [row, v6] : in_both_families(rows)) {
    context = row.what + std::string(v6 ? ", by IPv6" : "");
    Fields f;
    f.v6 = v6;
    f.source = row.source;
    f.destination = row.destination;
    const Bytes datagram = outer<Encap>(build(f));
    for (const auto& [verify, expected] : {std::pair{VerifySource::kStrict, row.strict},
                                           {VerifySource::kInner, row.inner},
                                           {VerifySource::kOff, k_rx_packets}}) {
      Host<Encap> host(kAllFeatures, {}, verify);
      host.set_peers(host.peer_record(v6 ? 6 : 4));
      // An accepted packet before and after the tested packet must not change the result.
      Fields as_ever = inward();
      as_ever.v6 = v6;
      const Bytes good = outer<Encap>(build(as_ever));
      host.from_peer(good);
      row.by_peer ? host.from_peer(datagram) : host.from_stranger(datagram);
      host.from_peer(good);
      CHECK(!host.ingress->pump().failure);
      CHECK(host.row[k_rx_packets] == (expected == kIn ? 3 : 2));
      for (const Counter counter : {kUnknown, kSpoofed, kNotOurs}) CHECK(host.row[counter] == (counter == expected));
      size_t named = 0;
      host.unknown_senders.take([&](const UnknownSender& unknown_sender) {
        named++;
        CHECK(unknown_sender.reason == expected);
        CHECK(unknown_sender.from == (row.by_peer ? loopback_address() : unknown_address()));
        const auto address = v6 ? ipv6 : ipv4;
        CHECK(unknown_sender.source == address(row.source) && unknown_sender.destination == address(row.destination));
      });
      CHECK(named == (expected != kIn));
    }
  }
  context = "from or to :: and all ones, before any other packet of its turn, and again";
  for (const uint8_t value : {uint8_t{0}, uint8_t{0xff}}) {
    for (const size_t at : {size_t{8}, size_t{24}}) {
      Fields f = inward();
      f.v6 = true;
      Bytes bytes = build(f);
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), 16, value);
      Host<Encap> host(kAllFeatures, {}, VerifySource::kStrict);
      host.set_peers(host.peer_record(6));
      for (int times = 0; times < 2; times++) host.from_peer(outer<Encap>(bytes));
      CHECK(!host.ingress->pump().failure);
      CHECK(host.row[k_rx_packets] == 0 && host.row[at == 8 ? kSpoofed : kNotOurs] == 2);
    }
  }
  context = "what routers of IPv6 tell their link";
  for (const uint8_t second : {0x80, 0xbf, 0x7f, 0xc0}) {
    Host<Encap> host(kAllFeatures, {}, VerifySource::kOff);
    Fields f;
    f.v6 = true;
    Bytes advertisement = build(f);
    advertisement[6] = IPPROTO_ICMPV6;
    advertisement[7] = 255;
    advertisement[40] = 134;
    advertisement[8] = 0xfe;
    advertisement[9] = second;
    host.from_peer(outer<Encap>(advertisement));
    CHECK(!host.ingress->pump().failure);
    CHECK(host.row[k_rx_drop_not_ours] == 1 && host.row[k_rx_packets] == 0);
    advertisement[6] = IPPROTO_UDP;  // the same packet with another protocol enters
    host.from_peer(outer<Encap>(advertisement));
    CHECK(!host.ingress->pump().failure);
    const bool is_link_local = second == 0x80 || second == 0xbf;
    CHECK(host.row[kSpoofed] == is_link_local && host.row[k_rx_packets] == !is_link_local);
  }
  context = "a peer that goes";
  Host<Encap> host(kAllFeatures);
  for (const uint64_t expected : {1u, 1u}) {
    host.from_peer(outer<Encap>(build(inward())));
    CHECK(!host.ingress->pump().failure);
    CHECK(host.row[k_rx_packets] == expected);
    host.peers.set({});
  }
  CHECK(host.row[kUnknown] == 1);
}

/// True if sockets report how many datagrams they dropped (Linux 4.12). qemu's user emulation writes only part of the
/// answer.
bool do_sockets_tell(int socket) {
  uint32_t memory[9] = {};  // the number of values in SO_MEMINFO (SK_MEMINFO_VARS)
  socklen_t size = sizeof memory;
  if (getsockopt(socket, SOL_SOCKET, SO_MEMINFO, memory, &size) == 0 && size == sizeof memory) return true;
  fprintf(stderr, "skipped: what a socket drops: no SO_MEMINFO here\n");
  return false;
}

const SocketAddress kLoopback(ipv4(INADDR_LOOPBACK), 0);

/// The datagrams that a full socket drops must be counted by the engine that uses the socket at that time.
void test_overflow() {
  UdpSocket socket, sender;
  CHECK(!open_udp(kLoopback, Share::kNo, 1 << 20, 0, socket));
  CHECK(!open_udp(kLoopback, Share::kNo, 1 << 20, 0, sender));
  int tells = -1;
  socklen_t size = sizeof tells;
  // SO_RXQ_OVFL must be off, because of a kernel bug (io/receiver.h)
  CHECK(getsockopt(socket.fd.get(), SOL_SOCKET, SO_RXQ_OVFL, &tells, &size) == 0 && tells == 0);
  if (!do_sockets_tell(socket.fd.get())) return;
  const int small = 20'000;
  CHECK(setsockopt(socket.fd.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
  const SocketAddress to = bound_address(socket.fd.get());
  const Bytes datagram(1000);
  for (int engine = 0; engine < 2; engine++) {
    std::vector<uint64_t> row(kCounterCount);
    Receiver receiver(socket.fd.get(), 0, CounterRow(row.data()), nullptr);
    Failure failure;
    size_t sent = 0;
    for (const int datagrams : {300, 300}) {
      for (int i = 0; i < datagrams; i++, sent++) {
        CHECK(sendto(sender.fd.get(), datagram.data(), datagram.size(), 0, to.raw(), to.size()) == 1000);
      }
      while (receiver.receive(failure) > 0) CHECK(!failure);
      receiver.count_overflow();
    }
    CHECK(row[k_rx_drop_socket_full] > 400);
    CHECK(row[k_rx_messages] + row[k_rx_drop_socket_full] == sent);
  }
}

/// A datagram with a wrong UDP checksum must be counted, and must not be received.
void test_damaged_datagram() {
  UdpSocket socket;
  CHECK(!open_udp(kLoopback, Share::kNo, 1 << 20, 0, socket));
  const Fd raw(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_UDP));
  if (!raw) {
    fprintf(stderr, "skipped: a wrong UDP checksum: no raw sockets here\n");
    return;
  }
  if (!do_sockets_tell(socket.fd.get())) return;
  const SocketAddress to = bound_address(socket.fd.get());
  Bytes datagram(100);
  store_be16(&datagram[0], 40'000);
  store(&datagram[2], to.port());  // already in network order
  store_be16(&datagram[4], 100);
  store_be16(&datagram[6], 0x1234);  // not the checksum
  std::vector<uint64_t> row(kCounterCount);
  Receiver receiver(socket.fd.get(), 0, CounterRow(row.data()), nullptr);
  CHECK(sendto(raw.get(), datagram.data(), datagram.size(), 0, to.raw(), to.size()) == 100);
  Failure failure;
  CHECK(receiver.receive(failure) == 0 && !failure);
  receiver.count_overflow();
  CHECK(row[k_rx_drop_socket_full] == 1 && row[k_rx_messages] == 0);
}

/// A sending socket must keep hardly any datagrams that are sent to it.
void test_sender_socket() {
  UdpSocket receiver, sender;
  CHECK(!open_udp(kLoopback, Share::kNo, 1 << 20, 0, receiver));
  CHECK(!open_sender(bound_address(receiver.fd.get()), 1, 0, sender));
  const SocketAddress to = bound_address(sender.fd.get());
  const Bytes datagram(1000);
  for (int i = 0; i < 1000; i++) {
    sendto(receiver.fd.get(), datagram.data(), datagram.size(), 0, to.raw(), to.size());
  }
  if (!do_sockets_tell(sender.fd.get())) return;
  uint32_t memory[9] = {};
  socklen_t size = sizeof memory;
  CHECK(getsockopt(sender.fd.get(), SOL_SOCKET, SO_MEMINFO, memory, &size) == 0);
  CHECK(memory[SK_MEMINFO_DROPS] > 900);
  CHECK(memory[SK_MEMINFO_RMEM_ALLOC] < 10'000);
  CHECK(sender.receive_buffer_bytes < receiver.receive_buffer_bytes);
}

/// Loops over IPv4 and IPv6: a datagram from the source port of a loop must arrive at the loop with the same number,
/// with its ECN mark. A datagram from the well-known port must arrive at any loop.
void test_underlay() {
  constexpr size_t kLanes = 3;
  for (const Address& own : {ipv4(INADDR_LOOPBACK), kLoopback6}) {
    context = own.is_v4() ? "lanes over IPv4" : "lanes over IPv6";
    std::vector<UdpSocket> sockets(kLanes), senders(kLanes);
    if (open_udp(SocketAddress(own, 0), Share::kBegin, 1 << 20, 0, sockets[0])) {
      CHECK(!own.is_v4());
      fprintf(stderr, "skipped: %s: there is no such address here\n", context.c_str());
      continue;
    }
    const SocketAddress at = bound_address(sockets[0].fd.get());
    for (size_t lane = 1; lane < kLanes; lane++) CHECK(!open_udp(at, Share::kJoin, 1 << 20, 0, sockets[lane]));
    for (size_t lane = 0; lane < kLanes; lane++) CHECK(!open_sender(at, lane, 0, senders[lane]));
    const bool is_spread = spread_by_source(sockets[0].fd, at, kLanes);
    if (!is_spread && errno == ENOPROTOOPT) {
      // qemu's user emulation does not support SO_ATTACH_REUSEPORT_CBPF.
      fprintf(stderr, "skipped: %s: no SO_ATTACH_REUSEPORT_CBPF here\n", context.c_str());
      continue;
    }
    CHECK(is_spread);

    std::vector<uint64_t> row(kCounterCount);
    Drops drops(CounterRow(row.data()), monotonic_us);
    TrafficRows traffic;
    Features features(0);
    std::vector<std::unique_ptr<Receiver>> lanes;
    for (const UdpSocket& socket : sockets) {
      lanes.push_back(std::make_unique<Receiver>(socket.fd.get(), 0, CounterRow(row.data()), &drops));
    }
    const Endpoint to = endpoint_at(at);
    const auto send = [&](int by, Ecn ecn) {
      Sender sender(sockets_of(to.outer, by, by), 0, 0, 100, &features, CounterRow(row.data()), &drops, &traffic);
      uint8_t* header = sender.room(8);
      std::memset(header, 0, 8);
      sender.add<0>({to, to.outer, ecn}, {header, 8}, {});
      sender.flush();
    };
    Failure failure;
    for (size_t lane = 0; lane < kLanes; lane++) {
      for (const Ecn mark : {kNotEct, kEct1, kEct0, kCe}) {
        send(senders[lane].fd.get(), mark);
        for (size_t other = 0; other < kLanes; other++) {
          CHECK(lanes[other]->receive(failure) == (other == lane) && !failure);
        }
        const auto messages = lanes[lane]->messages();
        CHECK(messages.size() == 1 && messages[0].ecn == mark && messages[0].size == 8);
        CHECK(messages.size() == 1 && messages[0].sender->address() == own);
      }
    }
    send(sockets[1].fd.get(), kNotEct);
    size_t arrived = 0;
    for (const auto& lane : lanes) arrived += lane->receive(failure);
    CHECK(arrived == 1 && row[k_tx_packets] == 4 * kLanes + 1);
  }
}

/// Over IPv6 all datagrams of a loop must have the same flow label, and different loops different labels (RFC 6438).
void test_flow_labels() {
  context = "flow labels";
  constexpr size_t kLanes = 3, kDatagrams = 4;
  constexpr int kFlowInfo = 11;  // the value of IPV6_FLOWINFO in linux/in6.h
  UdpSocket receiver;
  if (open_udp(SocketAddress(kLoopback6, 0), Share::kNo, 1 << 20, 0, receiver)) {
    fprintf(stderr, "skipped: %s: there is no such address here\n", context.c_str());
    return;
  }
  const int fd = receiver.fd.get(), on = 1;
  if (setsockopt(fd, IPPROTO_IPV6, kFlowInfo, &on, sizeof on) != 0) {
    // qemu's user emulation does not support IPV6_FLOWINFO.
    fprintf(stderr, "skipped: %s: no IPV6_FLOWINFO here\n", context.c_str());
    return;
  }
  std::vector<uint32_t> labels;
  for (size_t lane = 0; lane < kLanes; lane++) {
    UdpSocket sender;
    CHECK(!open_sender(bound_address(fd), lane, 0, sender));
    for (size_t i = 0; i < kDatagrams; i++) {
      const uint8_t datagram[8] = {};
      CHECK(send_now(sender.fd.get(), bound_address(fd), datagram));
      uint8_t bytes[8];
      alignas(cmsghdr) uint8_t controls[CMSG_SPACE(sizeof(uint32_t))];
      iovec iov{bytes, sizeof bytes};
      msghdr message{};
      message.msg_iov = &iov;
      message.msg_iovlen = 1;
      message.msg_control = controls;
      message.msg_controllen = sizeof controls;
      CHECK(recvmsg(fd, &message, 0) == sizeof bytes);
      const cmsghdr* control = CMSG_FIRSTHDR(&message);
      CHECK(control && control->cmsg_type == kFlowInfo);  // the kernel does not report a label of 0
      if (!control) return;
      const uint32_t label = to_be32(load<uint32_t>(CMSG_DATA(control))) & 0xfffff;
      CHECK(label != 0 && (i == 0 || label == labels.back()));
      if (i == 0) labels.push_back(label);
    }
  }
  std::ranges::sort(labels);
  CHECK(std::ranges::adjacent_find(labels) == labels.end());
}

/// Sockets that are bound to the unspecified address must send to peers of their IP family too.
void test_any_address() {
  context = "sockets at any address";
  std::vector<uint64_t> row(kCounterCount);
  Features features(0);
  TrafficRows traffic;
  Drops tx_drops(CounterRow(row.data()), monotonic_us), rx_drops(CounterRow(row.data()), monotonic_us);
  UnknownSenders unknown_senders;
  IcmpLimits icmp{1};
  UdpSocket own4, own6, peer4, peer6;
  CHECK(!open_udp(SocketAddress(ipv4(INADDR_ANY), 0), Share::kNo, 1 << 20, 0, own4));
  CHECK(!open_udp(SocketAddress(ipv4(INADDR_LOOPBACK), 0), Share::kNo, 1 << 20, 0, peer4));
  if (open_udp(SocketAddress(Address(), 0), Share::kNo, 1 << 20, 0, own6) ||
      open_udp(SocketAddress(kLoopback6, bound_address(peer4.fd.get()).port()), Share::kNo, 1 << 20, 0, peer6)) {
    fprintf(stderr, "skipped: %s: there is no such address or port here\n", context.c_str());
    return;
  }
  int tun[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, tun) == 0);
  const Fd inside(tun[0]), outside(tun[1]);
  Bytes records = record(4, 24, {10, 5, 2, 0}, INADDR_LOOPBACK), third = record(4, 24, {10, 5, 3, 0}, 0);
  third[2] = 6;
  store(&third[24], kLoopback6);
  for (Bytes* each : {&records, &third}) store(&(*each)[4], bound_address(peer4.fd.get()).port());
  records.insert(records.end(), third.begin(), third.end());
  PeerTables peers(1, records);
  const int four = own4.fd.get(), six = own6.fd.get();
  const Path path{.tun = inside.get(),
                  .sockets = {{four, four, four}, {six, six, six}},
                  .features = &features,
                  .counters = CounterRow(row.data()),
                  .traffic = &traffic,
                  .tx_drops = &tx_drops,
                  .rx_drops = &rx_drops,
                  .filter = options_of(VerifySource::kStrict),
                  .unknown_senders = &unknown_senders,
                  .icmp = &icmp};
  Egress<FlannelUdp> egress(path, peers.reader(0), FlannelUdp({}));
  for (const uint32_t to : {0x0a050207u, 0x0a050307u}) {
    Fields f;
    f.destination = to;
    const Bytes packet = build(f);
    CHECK(send(outside.get(), packet.data(), packet.size(), 0) > 0);
  }
  CHECK(!egress.pump().failure);
  uint8_t bytes[1'500];
  for (const UdpSocket* peer : {&peer4, &peer6}) {
    CHECK(recv(peer->fd.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0);
    CHECK(recv(peer->fd.get(), bytes, sizeof bytes, MSG_DONTWAIT) < 0);
  }
  context.clear();
}

/// A host whose peers have an IPv4 and an IPv6 address. Datagrams must go over the family of each peer's endpoint, in
/// any order of packets. Packets must be accepted over both families. Replies to probes must go over the family of the
/// probe.
void test_both_families() {
  context = "both families";
  const Address four = ipv4(INADDR_LOOPBACK), six = kLoopback6;
  std::vector<uint64_t> row(kCounterCount);
  Features features(0);
  TrafficRows traffic;
  traffic.make_room(kSlot + 1);
  Drops tx_drops(CounterRow(row.data()), monotonic_us), rx_drops(CounterRow(row.data()), monotonic_us);
  UnknownSenders unknown_senders;
  IcmpLimits icmp{1};
  UdpSocket own4, own6, lane4, lane6, peer4, peer6, unknown_sender;
  for (UdpSocket* each : {&own4, &lane4}) CHECK(!open_udp(SocketAddress(four, 0), Share::kNo, 1 << 20, 0, *each));
  CHECK(!open_udp(SocketAddress(four, 0), Share::kNo, 1 << 20, 0, peer4));
  const uint16_t port = bound_address(peer4.fd.get()).port();
  if (open_udp(SocketAddress(six, 0), Share::kNo, 1 << 20, 0, own6) ||
      open_udp(SocketAddress(six, 0), Share::kNo, 1 << 20, 0, lane6) ||
      open_udp(SocketAddress(six, port), Share::kNo, 1 << 20, 0, peer6)) {
    fprintf(stderr, "skipped: %s: there is no such address or port here\n", context.c_str());
    return;
  }
  CHECK(!open_udp(SocketAddress(ipv4(INADDR_LOOPBACK + 1), 0), Share::kNo, 1 << 20, 0, unknown_sender));
  int tun[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, tun) == 0);
  const Fd inside(tun[0]), outside(tun[1]);

  /// Returns the record of peer `number` with the subnet 10.5.number.0/24.
  const auto peer = [&](uint8_t number, bool by_six, uint8_t flags = 0) {
    Bytes r = record(4, 24, {10, 5, number, 0}, INADDR_LOOPBACK);
    if (by_six) r[2] = 6;
    r[3] = flags;
    store(&r[4], port);
    store(&r[24], six);
    store(&r[56], uint32_t{kSlot});
    return r;
  };
  Bytes records = peer(2, false);
  const Bytes third = peer(3, true);
  records.insert(records.end(), third.begin(), third.end());
  PeerTables peers(3, records);
  const auto sockets_at = [](const UdpSocket& own, const UdpSocket& lane) {
    return Sockets{.receiver = own.fd.get(), .sender = lane.fd.get(), .known = own.fd.get()};
  };
  Path path{.tun = inside.get(),
            .sockets = {sockets_at(own4, lane4), sockets_at(own6, lane6)},
            .tun_address = {ipv4(0x0a050100), ipv6(0x0a050100)},
            .network_address = {ipv4(0x0a050000), ipv6(0x0a050100)},
            .features = &features,
            .counters = CounterRow(row.data()),
            .traffic = &traffic,
            .tx_drops = &tx_drops,
            .rx_drops = &rx_drops,
            .filter = options_of(VerifySource::kStrict),
            .unknown_senders = &unknown_senders,
            .icmp = &icmp};
  Egress<FlannelUdp> egress(path, peers.reader(0), FlannelUdp({}));
  Ingress<FlannelUdp> by4(path, 4, peers.reader(1), FlannelUdp({}));
  Ingress<FlannelUdp> by6(path, 6, peers.reader(2), FlannelUdp({}));

  const auto packet_to = [&](uint32_t destination, size_t size) {
    Fields f;
    f.tcp = false;
    f.destination = destination;
    f.payload = size;
    const Bytes bytes = build(f);
    CHECK(send(outside.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  };
  const auto sizes_at = [&](const UdpSocket& socket) {
    std::vector<size_t> sizes;
    for (const Bytes& each : Host<FlannelUdp>::drain(socket.fd.get())) sizes.push_back(each.size() - 28);
    return sizes;
  };
  for (const UdpSocket* each : {&peer4, &peer6, &own4, &own6}) fcntl(each->fd.get(), F_SETFL, O_NONBLOCK);
  // One batch has runs over IPv4 and over IPv6 by turns.
  for (const size_t size : {size_t{10}, size_t{11}, size_t{12}}) {
    packet_to(0x0a050202, size);
    packet_to(0x0a050302, size + 100);
    packet_to(0x0a050303, size + 200);
  }
  CHECK(!egress.pump().failure);
  CHECK((sizes_at(peer4) == std::vector<size_t>{10, 11, 12}));
  CHECK((sizes_at(peer6) == std::vector<size_t>{110, 210, 111, 211, 112, 212}));
  // In one batch, datagrams must leave from the loop's own port, or from the well-known port for endpoints that require
  // it.
  const auto ports_at = [&](const UdpSocket& socket) {
    std::vector<uint16_t> ports;
    for (;;) {
      uint8_t bytes[256];
      SocketAddress from;
      socklen_t size = SocketAddress::kRoom;
      if (recvfrom(socket.fd.get(), bytes, sizeof bytes, 0, from.raw(), &size) < 0) return ports;
      ports.push_back(from.port());
    }
  };
  const auto port_of = [](const UdpSocket& socket) { return bound_address(socket.fd.get()).port(); };
  peers.change(peer(4, false, PeerRecord::kFromKnownPort));
  peers.change(peer(5, true, PeerRecord::kFromKnownPort));
  for (const size_t size : {size_t{1}, size_t{2}}) {
    for (const uint32_t host : {2u, 4u, 5u, 3u}) packet_to(0x0a050002 | host << 8, size);
  }
  CHECK(!egress.pump().failure);
  const uint16_t lane4_port = port_of(lane4), lane6_port = port_of(lane6), known4 = port_of(own4),
                 known6 = port_of(own6);
  CHECK((ports_at(peer4) == std::vector{lane4_port, known4, lane4_port, known4}));
  CHECK((ports_at(peer6) == std::vector{known6, lane6_port, known6, lane6_port}));
  // Replies to probes must also go over the family that the endpoint does not use.
  Echo echo;
  const bool has_echo = !open_echo(four, echo);
  if (has_echo) {
    std::array<uint8_t, kMaxEchoBytes> bytes;
    const EchoSocket by{echo.fd.get(), echo.raw, echo.mark};
    for (const uint8_t host : {2, 4}) {
      const size_t size = write_echo(by, ipv4(0x0a050100), ipv4(0x0a050000 | host << 8), 7, 6, bytes);
      bytes[20] = ICMP_ECHOREPLY;
      CHECK(send(outside.get(), bytes.data(), size, 0) == static_cast<ssize_t>(size) && !egress.pump().failure);
      CHECK((ports_at(peer6) == std::vector{host == 2 ? lane6_port : known6}));
    }
  }
  const size_t before = row[k_tx_packets];
  peers.change(peer(2, true));
  packet_to(0x0a050202, 13);
  CHECK(!egress.pump().failure);
  CHECK(sizes_at(peer4).empty() && (sizes_at(peer6) == std::vector<size_t>{13}));

  // Packets must be accepted over both families, but only from an address of the peer.
  const auto comes = [&](const UdpSocket& from, const UdpSocket& to, const Bytes& bytes) {
    CHECK(send_now(from.fd.get(), bound_address(to.fd.get()), bytes));
    CHECK(!by4.pump().failure && !by6.pump().failure);
    return Host<FlannelUdp>::drain(outside.get()).size();
  };
  const Bytes inward_packet = build(inward());
  CHECK(comes(peer4, own4, inward_packet) == 1 && comes(peer6, own6, inward_packet) == 1);
  CHECK(comes(unknown_sender, own4, inward_packet) == 0 && row[k_rx_drop_spoofed_source] == 1);
  // An ICMP error must go over the family of the endpoint, even if the packet came over the other family.
  Fields last = inward();
  last.ttl = 1;
  CHECK(comes(peer4, own4, build(last)) == 0 && row[k_rx_time_exceeded_sent] == 1);
  CHECK(sizes_at(peer4).empty() && sizes_at(peer6).size() == 1);

  // Replies of this host to echo requests must go over the family that the request chose.
  if (!has_echo) return;
  const auto answer = [&](uint32_t source, uint8_t outer, bool is_answer = true) {
    std::array<uint8_t, kMaxEchoBytes> bytes;
    const EchoSocket socket{echo.fd.get(), echo.raw, echo.mark};
    const size_t size = write_echo(socket, ipv4(source), ipv4(0x0a050200), 7, outer, bytes);
    CHECK(size == 44 && reference_fold(reference_sum(bytes.data() + 20, 24)) == 0xffff);
    if (is_answer) bytes[20] = ICMP_ECHOREPLY;
    CHECK(send(outside.get(), bytes.data(), size, 0) == static_cast<ssize_t>(size) && !egress.pump().failure);
    return std::pair(sizes_at(peer4).size(), sizes_at(peer6).size());
  };
  using Both = std::pair<size_t, size_t>;
  CHECK(answer(0x0a050100, 4) == Both(1, 0) && answer(0x0a050100, 6) == Both(0, 1));
  CHECK(answer(0x0a050100, 4, false) == Both(0, 1) && answer(0x0a050102, 4) == Both(0, 1));
  peers.change(peer(2, false));
  CHECK(answer(0x0a050100, 4) == Both(1, 0) && answer(0x0a050100, 6) == Both(0, 1));
  // A reply to a peer without an address of that family must go to the address that the peer has.
  Bytes without_six = peer(2, false);
  store(&without_six[offsetof(PeerRecord, ipv6)], Address());
  peers.change(without_six);
  CHECK(answer(0x0a050100, 6) == Both(1, 0));
  Traffic sum;
  traffic.sum(kSlot, sum);
  CHECK(sum.tx_packets == row[k_tx_packets] && before == 9 + 8 + 2 && row[k_tx_packets] == before + 1 + 7);
}

constexpr uint8_t kOurMac[6] = {2, 0, 0, 0, 0, 0xaa};
constexpr size_t kVxlanMtu = 1450;
/// The number of segments of a TCP superpacket with 20,000 bytes of payload, if each segment fits an MTU of 1280
/// (encap/vxlan.h).
constexpr size_t kSegmentsOf20000 = (20'000 + 1280 - 41) / (1280 - 40);

/// Returns the parameters of this host for VXLAN, with VNI 0x010203.
OwnEnd vxlan_end() {
  OwnEnd own;
  own.mtu = kVxlanMtu;
  std::copy(std::begin(kOurMac), std::end(kOurMac), own.encap.begin());
  own.encap[6] = 1;
  own.encap[7] = 2;
  own.encap[8] = 3;
  return own;
}

/// Puts a packet into a VXLAN frame for this host.
Bytes vxlan_frame(const Bytes& packet, uint16_t ether_type = 0x0800) {
  Bytes frame{8, 0, 0, 0, 1, 2, 3, 0, 2, 0, 0, 0, 0, 0xaa, 2, 0, 0, 0, 0, 0xbb};
  frame.push_back(static_cast<uint8_t>(ether_type >> 8));
  frame.push_back(static_cast<uint8_t>(ether_type));
  frame.insert(frame.end(), packet.begin(), packet.end());
  return frame;
}

/// Returns the packet with an incomplete checksum, as a kernel leaves it to a device.
Bytes opened(Bytes packet) {
  const Packet shape = read(packet);
  const uint64_t sum = pseudo_header_sum(source_address(packet.data(), shape), 2 * address_bytes(shape), shape.protocol,
                                         shape.total - shape.ip_bytes);
  store(&packet[shape.ip_bytes + (shape.protocol == IPPROTO_TCP ? 16u : 6u)], checksum_fold(sum));
  return packet;
}

Message message_of(Bytes& bytes, size_t joined = 0) { return {bytes.data(), bytes.size(), joined}; }

/// Checks the VXLAN header against the layout in RFC 7348 section 5.
void test_vxlan_out() {
  Host<Vxlan> host(kAllFeatures & ~kUdpGso, vxlan_end());
  Fields f;
  f.ttl = 1;  // the TTL may be 1, because a VXLAN tunnel is a link and does not decrement it
  host.to_tun({}, build(f));
  f.payload = 3000;
  host.to_tun(tcp_in_segments_of(1000), build(f));
  CHECK(!host.egress->pump().failure);
  const auto datagrams = host.drain(host.other);
  CHECK(datagrams.size() == 4);
  // The destination MAC must be that of the peer's record.
  const Bytes expected{8, 0, 0, 0, 1, 2, 3, 0, 0xde, 0xad, 1, 2, 3, 4, 2, 0, 0, 0, 0, 0xaa, 8, 0};
  for (const Bytes& datagram : datagrams) {
    CHECK(std::equal(expected.begin(), expected.end(), datagram.begin()));
    CHECK(is_whole(Bytes(datagram.begin() + 22, datagram.end())) && datagram[22 + 8] == 1);
  }
  CHECK(host.row[k_tx_bytes] == 140 + 3 * 1040);
}

/// Frames for other hosts, and malformed frames, must be dropped.
void test_vxlan_refusals() {
  const Vxlan vxlan(vxlan_end());
  const Bytes good = vxlan_frame(build({}));
  const auto drop_of = [&](Bytes frame) {
    Message message = message_of(frame);
    const Opened opened = vxlan.open(message);
    CHECK(message.size == 0);
    return opened.what == Opened::What::kPacket ? std::nullopt : std::optional(opened.reason);
  };
  CHECK(!drop_of(good));
  const auto with = [&](size_t at, uint8_t byte) {
    Bytes frame = good;
    frame[at] = byte;
    return frame;
  };
  CHECK(!drop_of(with(0, 0x88)));                                        // this flag must be ignored
  CHECK(!drop_of(with(14, 0x77)));                                       // the source MAC must be ignored
  for (const size_t at : {1, 2, 3, 7}) CHECK(!drop_of(with(at, 0x55)));  // reserved bytes must be ignored
  CHECK(drop_of(with(0, 0)) == k_rx_drop_not_ours);
  for (const size_t at : {4, 5, 6, 8, 13}) CHECK(drop_of(with(at, 0x55)) == k_rx_drop_not_ours);
  CHECK(drop_of(vxlan_frame(Bytes(28), 0x0806)) == k_rx_drop_not_ours);  // ARP
  CHECK(drop_of(vxlan_frame(build({}), 0x86dd)) == k_rx_drop_malformed);
  for (size_t size = 0; size < good.size(); size++) {
    CHECK(drop_of(Bytes(good.begin(), good.begin() + static_cast<long>(size))) == k_rx_drop_malformed);
  }
  const Bytes other = with(4, 0x55);  // truncated to the header, which alone shows the VNI
  CHECK(drop_of(Bytes(other.begin(), other.begin() + 22)) == k_rx_drop_not_ours);
  CHECK(drop_of(vxlan_frame(Bytes(60, 0xff))) == k_rx_drop_malformed);
  Fields f;
  f.v6 = true;
  CHECK(!drop_of(vxlan_frame(build(f), 0x86dd)));
}

/// Checksum and length must show which work a kernel left undone.
void test_vxlan_undone() {
  const Vxlan vxlan(vxlan_end());
  const auto undone_of = [&](Bytes frame, size_t joined = 0) {
    Message message = message_of(frame, joined);
    const Opened opened = vxlan.open(message);
    CHECK(opened.what == Opened::What::kPacket && message.size == 0 && opened.bytes.size() == frame.size() - 22);
    return opened.undone;
  };
  for (const bool v6 : {false, true}) {
    const uint16_t type = v6 ? 0x86dd : 0x0800;
    const uint16_t ip = v6 ? 40 : 20;
    for (const bool tcp : {false, true}) {
      Fields f;
      f.v6 = v6;
      f.tcp = tcp;
      CHECK(undone_of(vxlan_frame(build(f), type)).flags == 0);
      const VirtioHeader open = undone_of(vxlan_frame(opened(build(f)), type));
      CHECK(open.flags == kVirtioNeedsCsum && open.gso_type == kGsoNone && open.csum_start == ip);
      CHECK(open.csum_offset == (tcp ? 16 : 6));
    }
    Fields f;
    f.v6 = v6;
    f.payload = 30'000;
    f.tcp_options = Bytes(12, 1);
    const VirtioHeader super = undone_of(vxlan_frame(opened(build(f)), type));
    CHECK(super.gso_type == (v6 ? kGsoTcp6 : kGsoTcp4) && super.gso_size == 1280 - ip - 32);
    // not a superpacket, because the datagram is as long as the IP header says
    CHECK(undone_of(vxlan_frame(build(f), type)).gso_type == kGsoNone);
    f.flags |= kCwr;
    CHECK(undone_of(vxlan_frame(opened(build(f)), type)).gso_type == ((v6 ? kGsoTcp6 : kGsoTcp4) | kGsoEcn));
    // The kernel reports the segment size where the size of joined datagrams would be.
    f.tcp = false;
    f.payload = 12'000;
    const VirtioHeader udp = undone_of(vxlan_frame(opened(build(f)), type), 1200);
    CHECK(udp.gso_type == kGsoUdp && udp.gso_size == 1200 && udp.flags == kVirtioNeedsCsum);
    CHECK(udp.hdr_len == ip + 8 && super.hdr_len == ip + 32);
    // A UDP packet with segments of one byte is a superpacket. A packet that is not longer than the segment size is not
    // one.
    CHECK(undone_of(vxlan_frame(opened(build(f)), type), 1).gso_size == 1);
    f.payload = 1200;
    for (const size_t joined : {1200, 1201, 1220}) {
      const VirtioHeader one = undone_of(vxlan_frame(opened(build(f)), type), joined);
      CHECK(one.gso_type == kGsoNone && one.flags == kVirtioNeedsCsum);
    }
    f.payload = 0;
    CHECK(undone_of(vxlan_frame(opened(build(f)), type)).flags == kVirtioNeedsCsum);
  }
}

/// Fields that only look like an incomplete checksum, and headers with wrong lengths, must not be reported as undone
/// work.
void test_vxlan_odd() {
  const Vxlan vxlan(vxlan_end());
  const auto undone_of = [&](const Vxlan& own, const Bytes& packet) {
    Bytes frame = vxlan_frame(packet);
    Message message = message_of(frame);
    const Opened opened = own.open(message);
    CHECK(opened.what == Opened::What::kPacket);
    return opened.undone;
  };
  const auto kind_of = [&](Bytes packet, uint8_t protocol) {
    packet[9] = protocol;
    const uint64_t sum = pseudo_header_sum(&packet[12], 8, protocol, packet.size() - 20);
    store(&packet[26], checksum_fold(sum));
    return packet;
  };
  Fields f;
  f.tcp = false;
  CHECK(undone_of(vxlan, kind_of(build(f), IPPROTO_UDP)).flags == kVirtioNeedsCsum);
  CHECK(undone_of(vxlan, kind_of(build(f), IPPROTO_ICMP)).flags == 0);
  f.fragment = 0x2000;
  CHECK(undone_of(vxlan, kind_of(build(f), IPPROTO_UDP)).flags == 0);

  Fields tcp;
  tcp.payload = 30'000;
  for (const uint8_t words : {0, 4}) {
    Bytes packet = opened(build(tcp));
    packet[32] = static_cast<uint8_t>(words << 4);
    CHECK(undone_of(vxlan, packet).gso_type == kGsoNone);
  }
  // A packet longer than the link's MTU is a superpacket. A packet of exactly the MTU is not.
  for (const size_t more : {0, 1}) {
    tcp.payload = kVxlanMtu - 40 + more;
    CHECK(undone_of(vxlan, opened(build(tcp))).gso_type == (more ? kGsoTcp4 : kGsoNone));
  }
  // The checksum looks incomplete, but the packets are too short for a TCP header.
  f.fragment = 0x4000;
  f.payload = 10;
  Bytes shorter = build(f);
  shorter[9] = IPPROTO_TCP;
  store(&shorter[36], checksum_fold(pseudo_header_sum(&shorter[12], 8, IPPROTO_TCP, 18)));
  CHECK(undone_of(vxlan, shorter).flags == 0);

  tcp.payload = 4;
  Bytes packet = opened(build(tcp));
  packet[32] = 15 << 4;
  const VirtioHeader longer = undone_of(vxlan, packet);
  CHECK(longer.flags == kVirtioNeedsCsum && longer.hdr_len <= packet.size());

  // With this MTU the headers leave no space for payload.
  OwnEnd narrow = vxlan_end();
  narrow.mtu = 72;
  tcp.payload = 1000;
  tcp.tcp_options = Bytes(32, 1);
  CHECK(undone_of(Vxlan(narrow), opened(build(tcp))).gso_type == kGsoNone);
  narrow.mtu = 73;
  CHECK(undone_of(Vxlan(narrow), opened(build(tcp))).gso_size == 1);
}

/// The datagrams that this kernel joined into a message must be taken off one by one.
void test_vxlan_joined() {
  const Vxlan vxlan(vxlan_end());
  Bytes message_bytes;
  for (const size_t payload : {500, 500, 500, 20}) {
    Fields f;
    f.payload = payload;
    const Bytes frame = vxlan_frame(build(f));
    message_bytes.insert(message_bytes.end(), frame.begin(), frame.end());
  }
  Message message = message_of(message_bytes, 562);
  for (const size_t size : {540, 540, 540, 60}) {
    const Opened opened = vxlan.open(message);
    CHECK(opened.what == Opened::What::kPacket && opened.bytes.size() == size && opened.undone.flags == 0);
  }
  CHECK(message.size == 0);
}

/// A superpacket from another kernel must be written unchanged if the TUN accepts that, else segmented with complete
/// checksums. A stream without checksums must be joined.
void test_vxlan_in(uint32_t features) {
  Host<Vxlan> host(features, vxlan_end());
  const size_t header = features & kTunHeader ? sizeof(VirtioHeader) : 0;
  Fields f = inward();
  f.ttl = 1;
  f.payload = 20'000;
  host.from_peer(vxlan_frame(opened(build(f))));
  f.payload = 1000;
  f.sequence = 5;
  for (int i = 0; i < 4; i++, f.sequence += 1000) host.from_peer(vxlan_frame(opened(build(f))));
  CHECK(!host.ingress->pump().failure);
  CHECK(host.row[k_rx_packets] == kSegmentsOf20000 + 4);
  CHECK(host.row[k_rx_bytes] == 24'000 + 40 * host.row[k_rx_packets]);
  CHECK(host.of_peer().rx_packets == host.row[k_rx_packets] && host.of_peer().rx_bytes == host.row[k_rx_bytes]);
  const auto writes = host.drain(host.tun[1]);
  const bool joins = features & kCoalesceTcp;
  CHECK(writes.size() == (joins ? 2 : kSegmentsOf20000 + 4));
  size_t payload = 0, unfinished = 0;
  for (const Bytes& write : writes) {
    VirtioHeader virtio;
    if (header) std::memcpy(&virtio, write.data(), header);
    const Bytes packet(write.begin() + static_cast<long>(header), write.end());
    CHECK(packet[8] == 1);
    payload += packet.size() - 40;
    unfinished += !is_whole(packet);
    CHECK(is_whole(packet) != ((virtio.flags & kVirtioNeedsCsum) != 0));
    if (!joins) CHECK(virtio.gso_type == kGsoNone && packet.size() <= kVxlanMtu);
  }
  CHECK(payload == 24'000);
  // The single packets of the stream stay without a checksum if the kernel can complete it.
  CHECK(unfinished == (joins ? 2u : header ? 4u : 0u));
}

/// A frame with a damaged inner header must be dropped.
void test_vxlan_malformed() {
  Host<Vxlan> host(kAllFeatures, vxlan_end());
  Bytes packet = build(inward());
  packet[10] ^= 1;
  host.from_peer(vxlan_frame(packet));
  Fields f = inward();
  f.payload = 20'000;
  packet = opened(build(f));
  packet[4] ^= 1;
  host.from_peer(vxlan_frame(packet));
  CHECK(!host.ingress->pump().failure);
  CHECK(host.row[k_rx_drop_checksum] == 2 && host.row[k_rx_packets] == 0);
  CHECK(host.drain(host.tun[1]).empty());
}

/// A superpacket that the filter refuses must count as its segments.
void test_vxlan_filter() {
  Host<Vxlan> host(kAllFeatures, vxlan_end());
  Fields f = inward();
  f.payload = 20'000;
  host.from_stranger(vxlan_frame(opened(build(f))));
  CHECK(!host.ingress->pump().failure);
  CHECK(host.row[k_rx_drop_spoofed_source] == kSegmentsOf20000);
  CHECK(host.drain(host.tun[1]).empty());
}

void test_vxlan() {
  test_vxlan_out();
  test_vxlan_refusals();
  test_vxlan_undone();
  test_vxlan_odd();
  test_vxlan_joined();
  test_vxlan_malformed();
  test_vxlan_filter();
  test_congestion<Vxlan>(
      kAllFeatures & ~kUdpGso, true,
      [](const Bytes& packet) { return vxlan_frame(packet, packet[0] >> 4 == 6 ? 0x86dd : 0x0800); }, vxlan_end());
  for (const uint32_t features : {kAllFeatures, kAllFeatures & ~(kCoalesceTcp | kCoalesceUdp), 0u}) {
    context = "vxlan, features " + std::to_string(features);
    test_vxlan_in(features);
  }
  context.clear();
}

/// An encapsulation for this test that refuses every hundredth packet.
class Keyed {
 public:
  static constexpr size_t kHeaderBytes = kMarkBytes, kTrailerBytes = kSealBytes;
  static constexpr bool kRoutes = true, kCopiesEcn = false;
  static constexpr uint64_t kRefuseEvery = 100;

  explicit Keyed(const OwnEnd& own) : marked_(own) {}
  Sealed seal(const Endpoint& peer, const Packet& packet, std::span<uint8_t> first, std::span<uint8_t> rest) {
    return ++packets_ % kRefuseEvery == 0 ? Sealed::drop(k_tx_drop_refused) : marked_.seal(peer, packet, first, rest);
  }
  Opened open(Message& message) const { return marked_.open(message); }

 private:
  Marked marked_;
  uint64_t packets_ = 0;
};
static_assert(Encapsulation<Keyed> && !HasSessions<Keyed>);

/// A packet that the encapsulation refuses must be dropped alone, with the encapsulation's reason. The packets before
/// and after it must be sent.
void test_refused_by_encapsulation(uint32_t features) {
  Host<Keyed> host(features);
  constexpr size_t kSegments = 250, kSegmentBytes = 200, kSingles = 60;
  Fields f;
  f.payload = kSegments * kSegmentBytes;
  host.to_tun(tcp_in_segments_of(kSegmentBytes), build(f));
  f.payload = 77;
  f.sequence += kSegments * kSegmentBytes;
  for (size_t i = 0; i < kSingles; i++) host.to_tun({}, build(f));
  CHECK(!host.egress->pump().failure);
  constexpr size_t kAll = kSegments + kSingles, kRefused = kAll / Keyed::kRefuseEvery;
  CHECK(host.row[k_tx_drop_refused] == kRefused && host.row[k_tx_packets] == kAll - kRefused);
  CHECK(host.of_peer().tx_packets == kAll - kRefused && host.of_peer().tx_bytes == host.row[k_tx_bytes]);
  const auto datagrams = host.drain(host.other);
  CHECK(datagrams.size() == kAll - kRefused);
  size_t bytes = 0;
  for (const Bytes& datagram : datagrams) {
    const Bytes packet = inner<Keyed>(datagram);
    bytes += packet.size();
    CHECK(is_whole(packet));
  }
  CHECK(bytes == host.row[k_tx_bytes]);
  // The refused packet must not end the run, so each superpacket is still one message.
  if (features & kUdpGso) CHECK(host.row[k_tx_messages] == 3);
  size_t kept = 0;
  host.tx_drops.read(0, [&](const KeptDrop& drop) {
    const bool is_segment = ++kept < kRefused;
    CHECK(drop.reason == k_tx_drop_refused && drop.packets == 1 && drop.encap_bytes == 0);
    CHECK(drop.peer == loopback_address() && drop.length == 40 + (is_segment ? kSegmentBytes : 77));
    const auto sequence = static_cast<uint32_t>(1000 + (kept * Keyed::kRefuseEvery - 1) * kSegmentBytes);
    CHECK(drop.bytes[0] == 0x45 && (!is_segment || load_be32(&drop.bytes[24]) == sequence));
  });
  CHECK(kept == kRefused);
}

/// A datagram that the kernel refuses must be kept as a drop without its header and trailer.
void test_dropped_with_trailer() {
  Host<Marked> host(kAllFeatures);
  const uint8_t peer[] = {10, 5, 2, 2};
  // so that the engine opens no socket to query the path MTU
  host.peers.current().find(4, peer)->path.learn(1500, clock_ms);
  close(host.socket);
  Fields f;
  f.payload = 2 * 500;
  host.to_tun(tcp_in_segments_of(500), build(f));
  f.payload = 500;
  host.to_tun({}, build(f));
  CHECK(!host.egress->pump().failure);
  size_t kept = 0;
  host.tx_drops.read(0, [&](const KeptDrop& drop) {
    kept++;
    CHECK(drop.length == 540 && drop.size == KeptDrop::kMaxBytes && drop.bytes[0] == 0x45 && drop.encap_bytes == 0);
  });
  CHECK(kept == 3 && host.row[k_tx_drop_refused] == 3);
  host.socket = dup(host.other);
}

/// A datagram that was damaged in transit must be dropped.
void test_damaged() {
  Host<Keyed> host(kAllFeatures);
  Bytes damaged = outer<Keyed>(build(inward()));
  damaged.back() ^= 1;
  host.from_peer(damaged);
  host.from_peer(Bytes(kEncapBytes<Keyed> - 1, 9));
  CHECK(host.ingress->pump().refused == 2);
  CHECK(host.row[k_rx_drop_malformed] == 2);
  host.rx_drops.read(0, [&](const KeptDrop& drop) { CHECK(drop.encap_bytes == Keyed::kHeaderBytes); });
  CHECK(host.ingress->tick_ms() == -1);
}

constexpr uint32_t kSecretOfHost = 0xabcdef01, kSession = 7;

/// The parameters of this host at the offsets where session-manager.ts writes them.
OwnEnd wireguard_end(uint32_t keepalive_ms = 0) {
  OwnEnd own{.mtu = 1420};
  store_le32(&own.encap[0], kSecretOfHost);
  store_le32(&own.encap[4], keepalive_ms);
  std::fill_n(&own.encap[8], Mac::kKeyBytes, uint8_t{0x5a});
  return own;
}

/// The other host of a session, which has the keys of both ends.
class Remote {
 public:
  explicit Remote(uint32_t pair, uint32_t session = kSession)
      : index_(((session << Sessions::kPairBits) | pair) ^ kSecretOfHost), peer_index_(0x1000 + pair) {
    for (size_t at = 0; at < Key::kBytes; at++) {
      outward_[at] = static_cast<uint8_t>(at + pair);
      inward_[at] = static_cast<uint8_t>(at * 3 + pair);
    }
    sealing_->use(1, Key(inward_));
    opening_->use(1, Key(outward_));
  }
  SessionKeys keys(bool is_initiator) const {
    return {.is_initiator = is_initiator,
            .own_index = index_,
            .peer_index = peer_index_,
            .send = Key(outward_),
            .receive = Key(inward_)};
  }
  Bytes seal(const Bytes& packet) { return seal_at(next_++, packet); }
  Bytes seal_at(uint64_t counter, const Bytes& packet) {
    Bytes datagram(kEncapBytes<Wireguard> + packet.size());
    store_le32(&datagram[0], 4);
    store_le32(&datagram[4], index_);
    store_le64(&datagram[8], counter);
    std::copy(packet.begin(), packet.end(), datagram.begin() + Wireguard::kHeaderBytes);
    CHECK(sealing_->seal(counter, {&datagram[Wireguard::kHeaderBytes], packet.size()}));
    return datagram;
  }
  /// Decrypts a datagram of the host, which must have this counter.
  Bytes open(Bytes datagram, uint64_t counter) {
    CHECK(datagram.size() >= kEncapBytes<Wireguard> && load_le32(&datagram[0]) == 4);
    CHECK(load_le32(&datagram[4]) == peer_index_ && load_le64(&datagram[8]) == counter);
    const size_t size = datagram.size() - kEncapBytes<Wireguard>;
    CHECK(opening_->open(counter, {&datagram[Wireguard::kHeaderBytes], size}));
    return {datagram.begin() + Wireguard::kHeaderBytes, datagram.end() - Wireguard::kTrailerBytes};
  }

 private:
  uint32_t index_, peer_index_;
  uint64_t next_ = 0;
  uint8_t outward_[Key::kBytes], inward_[Key::kBytes];
  std::unique_ptr<Aead> sealing_ = Aead::create(Aead::Way::kSeal), opening_ = Aead::create(Aead::Way::kOpen);
};

/// Returns the record with a session for the peer.
Bytes with_session(Bytes r, uint32_t session = kSession) {
  std::fill_n(r.begin() + 40, 16, uint8_t{0});
  store_le32(&r[40], session);
  return r;
}

/// Packets must wait for keys up to a limit, and be sent in order when there are keys.
void test_wireguard_waits() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  Remote remote(1);
  constexpr size_t kTooMany = SessionLimits::kMaxStaged + 3;
  Fields f;
  for (size_t i = 0; i < kTooMany; i++) {
    f.sequence = static_cast<uint32_t>(i);
    host.to_tun({}, build(f));
  }
  while (host.egress->pump().items > 0) continue;
  CHECK(host.drain(host.other).empty() && host.row[k_tx_packets] == 0 && host.row[k_tx_drop_no_session] == 3);
  CHECK((host.sessions->mailbox().take(0).wanted == std::vector<uint32_t>{kSession}));
  host.ingress->tick();
  CHECK(host.drain(host.other).empty() && host.sessions->mailbox().take(0).wanted.empty());
  host.sessions->set_keys(kSession, remote.keys(true), clock_ms);
  host.ingress->tick();
  const auto datagrams = host.drain(host.other);
  CHECK(datagrams.size() == SessionLimits::kMaxStaged && host.row[k_tx_packets] == SessionLimits::kMaxStaged);
  for (size_t i = 0; i < datagrams.size(); i++) {
    f.sequence = static_cast<uint32_t>(i);
    CHECK(remote.open(datagrams[i], i) == build(f));
  }
  CHECK(host.of_peer().tx_packets == SessionLimits::kMaxStaged && host.of_peer().tx_bytes == host.row[k_tx_bytes]);
  // If no packets wait, the initiator must send a keepalive, from which the peer learns that both have the keys.
  host.sessions->set_keys(kSession, Remote(2).keys(true), clock_ms);
  host.ingress->tick();
  CHECK(Remote(2).open(host.drain(host.other).at(0), 0).empty());
  CHECK(host.row[k_tx_packets] == SessionLimits::kMaxStaged);  // a keepalive does not count as a packet
}

/// The packets that wait for keys of a peer must be counted as dropped if the peer is removed. A ready number without a
/// session must be ignored.
void test_wireguard_waits_for_removed_peer() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  for (int i = 0; i < 3; i++) host.to_tun({}, build({}));
  CHECK(!host.egress->pump().failure && host.row[k_tx_drop_no_session] == 0);
  host.sessions->forget(kSession);
  host.sessions->make_ready(Sessions::kMaxSessions - 1);
  for (int ticks = 0; ticks < 2; ticks++, clock_ms += Wireguard::kTickMs) host.ingress->tick();
  CHECK(host.row[k_tx_drop_no_session] == 3 && host.row[k_tx_packets] == 0);
}

/// A packet that waited for keys must be dropped if the keys have expired, although the thread still has a copy of
/// them.
void test_wireguard_waits_without_keys() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  const auto wait = [&] {
    host.to_tun({}, build({}));
    CHECK(!host.egress->pump().failure);
  };
  wait();
  host.sessions->set_keys(kSession, Remote(1).keys(true), clock_ms);
  host.ingress->tick();
  CHECK(host.drain(host.other).size() == 1);
  clock_ms += SessionLimits::kRejectAfterMs;
  wait();
  CHECK(host.row[k_tx_drop_no_session] == 0);
  host.sessions->make_ready(kSession);
  host.ingress->tick();
  CHECK(host.drain(host.other).empty() && host.row[k_tx_drop_no_session] == 1);
  // A packet that expires while it waits for keys must be counted too.
  wait();
  clock_ms += SessionLimits::kStagedMs;
  host.ingress->tick();
  CHECK(host.drain(host.other).empty() && host.row[k_tx_drop_no_session] == 2);
}

/// If the kernel refuses a packet that waited for keys, the packet must be counted under the reason that the kernel
/// gave.
void test_wireguard_waits_for_full_socket() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  for (int i = 0; i < 3; i++) host.to_tun({}, build({}));
  CHECK(!host.egress->pump().failure);
  host.sessions->set_keys(kSession, Remote(1).keys(true), clock_ms);
  for (const int error : {EAGAIN, EPERM, EMSGSIZE}) sendto_errors.push_back(error);
  host.ingress->tick();
  CHECK(sendto_errors.empty() && host.row[k_tx_packets] == 0);
  for (const Counter counter : {k_tx_drop_socket_full, k_tx_drop_refused, k_tx_drop_too_big}) {
    CHECK(host.row[counter] == 1);
  }
}

/// The engine must keep only the header of an encrypted datagram that it drops. Otherwise `weft capture` would
/// show random addresses.
void test_wireguard_dropped_encrypted() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  Remote remote(1);
  host.sessions->set_keys(kSession, remote.keys(true), clock_ms);
  const Bytes packet = build(inward());
  Bytes damaged = remote.seal(packet);
  damaged.back() ^= 1;
  host.from_peer(damaged);
  host.from_peer(Remote(5).seal(packet));
  host.from_peer(remote.seal_at(9, packet));
  host.from_peer(remote.seal_at(9, packet));
  CHECK(!host.ingress->pump().failure && host.row[k_rx_packets] == 1);
  close(host.socket);
  const Bytes outward = build({});
  host.to_tun({}, outward);
  host.to_tun(tcp_in_segments_of(50), outward);
  CHECK(!host.egress->pump().failure && host.row[k_tx_drop_refused] == 3);
  host.socket = dup(host.other);
  constexpr size_t kHeaderBytes = Wireguard::kHeaderBytes;
  std::vector<size_t> received, sent;
  const auto keep_length_in = [](std::vector<size_t>& lengths) {
    return [&lengths](const KeptDrop& drop) {
      lengths.push_back(drop.length);
      CHECK(drop.encap_bytes == kHeaderBytes && load_le32(drop.bytes.data()) == 4);
      // A replayed packet was decrypted, so its headers are kept.
      CHECK((drop.size == kHeaderBytes) == (drop.reason != k_rx_drop_replay));
    };
  };
  host.rx_drops.read(0, keep_length_in(received));
  host.tx_drops.read(0, keep_length_in(sent));
  CHECK(received == std::vector<size_t>(3, kEncapBytes<Wireguard> + packet.size()));
  CHECK((sent == std::vector<size_t>{kHeaderBytes + 140, kHeaderBytes + 90, kHeaderBytes + 90}));
}

/// A packet for which there were no keys, and that begins to wait just after keys arrived, must be sent.
void test_wireguard_waits_too_late() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  Remote remote(1);
  size_t rung = 0;
  // The keys arrive while the loop's thread reports that it needs a handshake.
  host.on_mail = [&] {
    if (rung++ > 0) return;
    host.sessions->set_keys(kSession, remote.keys(true), clock_ms);
    host.ingress->tick();
  };
  host.to_tun({}, build({}));
  CHECK(!host.egress->pump().failure && rung == 1);
  CHECK(remote.open(host.drain(host.other).at(0), 0).empty());
  host.ingress->tick();
  const auto datagrams = host.drain(host.other);
  CHECK(datagrams.size() == 1 && remote.open(datagrams.at(0), 1) == build({}));
  // No further handshake may be requested for this packet.
  clock_ms += SessionLimits::kRequestEveryMs;
  host.ingress->tick();
  CHECK(rung == 1 && host.drain(host.other).empty() && host.row[k_tx_drop_no_session] == 0);
}

/// Each segment of a superpacket must be encrypted, and sent in runs, with and without virtio headers.
void test_wireguard_out(uint32_t features) {
  Host<Wireguard> host(features, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  Remote remote(1);
  host.sessions->set_keys(kSession, remote.keys(true), clock_ms);
  constexpr size_t kSegments = 40, kSegmentBytes = 1'200;
  Fields f;
  f.payload = kSegments * kSegmentBytes + 77;
  host.to_tun(tcp_in_segments_of(kSegmentBytes), build(f));
  f.payload = 5;
  host.to_tun({}, build(f));
  CHECK(!host.egress->pump().failure);
  const auto datagrams = host.drain(host.other);
  CHECK(datagrams.size() == kSegments + 2 && host.row[k_tx_packets] == kSegments + 2);
  size_t bytes = 0;
  for (size_t i = 0; i < datagrams.size(); i++) {
    const Bytes packet = remote.open(datagrams[i], i);
    bytes += packet.size();
    CHECK(is_whole(packet) && packet.size() == 40 + (i < kSegments ? kSegmentBytes : i == kSegments ? 77 : 5));
  }
  CHECK(bytes == host.row[k_tx_bytes] && bytes == host.of_peer().tx_bytes);
  if (features & kUdpGso) CHECK(host.row[k_tx_messages] == 2);
}

/// An encrypted packet must be accepted once, and only from the peer that has the keys.
void test_wireguard_in() {
  Host<Wireguard> host(kAllFeatures & ~(kCoalesceTcp | kCoalesceUdp), wireguard_end());
  Bytes records = with_session(host.peer_record());
  Bytes third = with_session(host.peer_record(), 9);
  third[10] = 3;
  records.insert(records.end(), third.begin(), third.end());
  host.set_peers(records);
  Remote remote(1), of_third(2, 9);
  host.sessions->set_keys(kSession, remote.keys(true), clock_ms);
  host.sessions->set_keys(9, of_third.keys(true), clock_ms);
  host.ingress->tick();
  host.drain(host.other);
  const auto pump = [&] { CHECK(!host.ingress->pump().failure); };
  const Bytes packet = build(inward());
  const Bytes sealed = remote.seal(packet);
  host.from_peer(sealed);
  pump();
  CHECK(host.row[k_rx_packets] == 1 && host.of_peer().rx_packets == 1);
  host.from_peer(sealed);
  host.from_stranger(sealed);
  pump();
  CHECK(host.row[k_rx_drop_replay] == 2 && host.row[k_rx_packets] == 1);
  CHECK(host.sessions->mailbox().take(0).moved.empty());
  for (const size_t at : {size_t{8}, Wireguard::kHeaderBytes, sealed.size() - 1}) {
    Bytes damaged = remote.seal(packet);
    damaged[at] ^= 1;
    host.from_peer(damaged);
  }
  pump();
  CHECK(host.row[k_rx_drop_not_authentic] == 3);
  Bytes unknown = remote.seal(packet);
  unknown[4] ^= 1;  // names another pair of the session
  host.from_peer(unknown);
  unknown[7] ^= 1;  // names another session
  host.from_peer(unknown);
  host.from_peer(Remote(1, 8).seal(packet));
  pump();
  CHECK(host.row[k_rx_drop_no_session] == 3);
  // JavaScript must get one message, because the sender is a peer.
  const auto told = host.sessions->mailbox().take(0).control_messages;
  CHECK(told.size() == 1 && told[0].bytes[0] == 4 && told[0].size == Wireguard::kHeaderBytes);
  CHECK(host.row[k_rx_drop_handshake] == 0);
  // A packet of one peer with a source in another peer's subnet must be dropped.
  host.from_peer(of_third.seal(packet));
  host.from_peer(remote.seal(packet));
  host.from_peer(of_third.seal(packet));
  pump();
  CHECK(host.row[k_rx_drop_spoofed_source] == 2 && host.row[k_rx_packets] == 2);
  // A keepalive must not be written to the TUN. An authentic message without a valid packet must be dropped.
  host.from_peer(remote.seal({}));
  host.from_peer(remote.seal({1, 2, 3}));
  Bytes too_short = remote.seal({});
  too_short.pop_back();
  host.from_peer(too_short);
  Bytes of_type_5 = remote.seal(packet);
  of_type_5[0] = 5;
  host.from_peer(of_type_5);
  pump();
  CHECK(host.row[k_rx_drop_malformed] == 3 && host.row[k_rx_packets] == 2);
  // The address of a peer must change with an authenticated packet, and only with one.
  Bytes forged = remote.seal(packet);
  forged.back() ^= 1;
  host.from_stranger(forged);
  pump();
  CHECK(host.sessions->mailbox().take(0).moved.empty());
  host.from_stranger(remote.seal(packet));
  pump();
  const auto moved = host.sessions->mailbox().take(0).moved;
  CHECK(moved.size() == 1 && moved[0].session == kSession && moved[0].to.address() == unknown_address());
  CHECK(host.row[k_rx_packets] == 3 && host.drain(host.tun[1]).size() == 3);
}

/// A responder may encrypt with new keys only after the initiator has used them; then it must send the waiting packets.
void test_wireguard_responds() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  Remote remote(1), later(2);
  host.to_tun({}, build({}));
  CHECK(!host.egress->pump().failure);
  host.sessions->set_keys(kSession, remote.keys(false), clock_ms);
  host.ingress->tick();
  CHECK(host.drain(host.other).empty());
  host.from_peer(remote.seal({}));
  CHECK(!host.ingress->pump().failure);
  host.ingress->tick();
  CHECK(remote.open(host.drain(host.other).at(0), 0) == build({}));
  // The next pair of keys is confirmed in the same way, and packets with the previous keys must still enter.
  host.sessions->set_keys(kSession, later.keys(false), clock_ms);
  host.to_tun({}, build({}));
  CHECK(!host.egress->pump().failure);
  CHECK(remote.open(host.drain(host.other).at(0), 1) == build({}));
  host.from_peer(later.seal(build(inward())));
  host.from_peer(remote.seal(build(inward())));
  CHECK(!host.ingress->pump().failure && host.row[k_rx_packets] == 2);
  host.to_tun({}, build({}));
  CHECK(!host.egress->pump().failure);
  host.ingress->tick();
  const auto datagrams = host.drain(host.other);
  CHECK(datagrams.size() == 2 && later.open(datagrams[0], 0) == build({}) && later.open(datagrams[1], 1).empty());
}

/// Returns a handshake message in which every byte is its type.
Bytes handshake(uint8_t type, size_t size) {
  Bytes bytes(size, type);
  bytes[1] = bytes[2] = bytes[3] = 0;
  return bytes;
}
/// Returns an initiation from a host that knows this host's public key. Its MAC was computed with Python's hashlib.
Bytes initiation() {
  constexpr uint8_t kMac[Mac::kBytes] = {0x25, 0x70, 0xdd, 0x94, 0x49, 0xd4, 0xc8, 0x08,
                                         0x21, 0xd8, 0x23, 0x6c, 0xa8, 0x2f, 0x22, 0x6f};
  Bytes bytes = handshake(1, 148);
  std::ranges::copy(kMac, bytes.end() - 32);
  return bytes;
}
/// Returns an answer that names this index.
Bytes answer(uint8_t type, uint32_t index) {
  Bytes bytes = handshake(type, type == 2 ? 92 : 64);
  store_le32(&bytes[type == 2 ? 8 : 4], index);
  return bytes;
}

/// Data, keepalives and handshakes from an address inside the network must not change a peer's address, because
/// datagrams to it would come out of the TUN again. They must if the address belongs to a known peer. Only over IPv6
/// can this program send from any address.
void test_wireguard_stays_outside() {
  if (!is_over_ipv6) return;
  struct Row {
    const char* what;
    uint32_t from;
    bool is_known;  ///< true if a second peer has the address from which the datagrams come
    bool moves;
  };
  constexpr Row kRows[] = {
      {"its own subnet", 0x0a050209, false, false},       {"this node's subnet", 0x0a050109, false, false},
      {"a subnet of nobody's", 0x0a050909, false, false}, {"outside", 0x0a060909, false, true},
      {"where another peer is", 0x0a050209, true, true},
  };
  for (const Row& row : kRows) {
    context = std::string("wireguard, roaming to ") + row.what;
    Host<Wireguard> host(kAllFeatures, wireguard_end());
    Bytes records = with_session(host.peer_record()), second = with_session(host.peer_record(), 9);
    const Bytes six = with_session(host.peer_record(6));
    records.insert(records.end(), six.begin(), six.end());
    second[10] = 3;
    store(&second[24], ipv6(row.from));
    if (row.is_known) records.insert(records.end(), second.begin(), second.end());
    host.set_peers(records);
    Remote remote(1);
    host.sessions->set_keys(kSession, remote.keys(true), clock_ms);
    host.ingress->tick();
    host.drain(host.other);
    const Fd sender(socket_at(ipv6(row.from)));
    const SocketAddress before = host.sessions->of(kSession)->to();
    for (const Bytes& packet : {Bytes(), build(inward())}) {
      host.from(sender.get(), remote.seal(packet));
      CHECK(!host.ingress->pump().failure);
    }
    CHECK(host.row[k_rx_packets] == 1);  // the packet must enter, because its sender is authenticated
    CHECK(host.sessions->mailbox().take(0).moved.size() == (row.moves ? 1 : 0));
    CHECK((host.sessions->of(kSession)->to() == before) == !row.moves);
    host.from(sender.get(), initiation());
    CHECK(!host.ingress->pump().failure);
    CHECK(host.sessions->mailbox().take(64).control_messages.size() == (row.moves ? 1 : 0));
    CHECK(host.row[k_rx_drop_handshake] == (row.moves ? 0 : 1));
  }
  context = "wireguard";
}

/// Keys must expire after three minutes, including the time for which the host is suspended. Afterwards a handshake
/// with a silent peer must be requested immediately.
void test_wireguard_slept() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  Remote remote(1);
  host.sessions->set_keys(kSession, remote.keys(true), session_ms());
  host.ingress->tick();
  host.drain(host.other);
  const auto send = [&] {
    host.to_tun({}, build({}));
    CHECK(!host.egress->pump().failure);
    return host.drain(host.other).size();
  };
  CHECK(send() == 1);
  slept_ms += SessionLimits::kRejectAfterMs - 1;
  CHECK(send() == 1);
  slept_ms += 1;
  CHECK(send() == 0);
  CHECK(host.sessions->mailbox().take(0).wanted == std::vector<uint32_t>{kSession});
  host.from_peer(remote.seal(build(inward())));
  CHECK(!host.ingress->pump().failure && host.row[k_rx_drop_no_session] == 1 && host.row[k_rx_packets] == 0);
  // The keys must be wiped at the first check.
  host.sessions->of(kSession)->take_staged();
  CHECK(!host.sessions->of(kSession)->is_empty());
  slept_ms += Wireguard::kTickMs;
  CHECK(host.ingress->tick());
  CHECK(host.sessions->of(kSession)->is_empty());
  slept_ms = 0;
}

/// A thread that had no memory for its keys must encrypt and decrypt again when there is memory.
void test_wireguard_without_memory() {
  for (int* fails : {&contexts_that_fail, &inits_that_fail}) {
    for (const int times : {1, 5}) {
      Host<Wireguard> host(kAllFeatures, wireguard_end());
      host.set_peers(with_session(host.peer_record()));
      Remote remote(1);
      host.sessions->set_keys(kSession, remote.keys(true), session_ms());
      const auto both_ways = [&] {
        host.to_tun({}, build({}));
        CHECK(!host.egress->pump().failure);
        host.from_peer(remote.seal(build(inward())));
        CHECK(!host.ingress->pump().failure);
        return std::pair(host.drain(host.other).size(), host.row[k_rx_packets]);
      };
      CHECK(both_ways() == std::pair(size_t{1}, uint64_t{1}));
      clock_ms += SessionLimits::kKeepaliveMs;
      *fails = times;
      host.egress->rest();
      *fails = times;
      host.ingress->rest();
      *fails = 0;
      CHECK(both_ways() == std::pair(size_t{1}, uint64_t{2}));
      // Memory is still missing for a while.
      clock_ms += SessionLimits::kKeepaliveMs;
      *fails = 1'000;
      host.egress->rest();
      host.ingress->rest();
      CHECK(both_ways() == std::pair(size_t{0}, uint64_t{2}));
      *fails = 0;
      CHECK(both_ways() == std::pair(size_t{1}, uint64_t{3}));
    }
  }
}

/// Initiations from hosts that know this host's public key must reach JavaScript, one per host, whatever other hosts
/// send.
void test_wireguard_initiations() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  // A refused message must count as refused. An accepted message must not count as a packet.
  const auto pump = [&](size_t refused) {
    const Pump pump = host.ingress->pump();
    CHECK(!pump.failure && pump.carried == 0 && pump.refused == refused);
  };
  const auto control_messages = [&](size_t most) { return host.sessions->mailbox().take(most).control_messages; };
  for (const size_t at : {size_t{4}, size_t{115}, size_t{116}, size_t{131}}) {
    Bytes damaged = initiation();
    damaged[at] ^= 0x80;
    host.from_peer(damaged);
  }
  host.from_peer(handshake(1, 148));
  pump(5);
  CHECK(host.row[k_rx_drop_wrong_key] == 5 && control_messages(9).empty());
  Bytes with_cookie = initiation();
  with_cookie[147] ^= 1;
  for (int i = 0; i < 2; i++) {
    host.from_peer(with_cookie);
    host.from_stranger(initiation());
  }
  pump(2);
  CHECK(host.row[k_rx_drop_handshake] == 2 && host.row[k_rx_drop_wrong_key] == 5);
  const auto both = control_messages(9);
  CHECK(both.size() == 2 && both[0].size == 148 && std::ranges::equal(both[0].bytes, with_cookie));
  CHECK(both[0].from.address() == loopback_address() && both[1].from.address() == unknown_address());
  // At most nine messages of unknown hosts may reach JavaScript, and no invalid ones.
  host.from_stranger(initiation());
  host.from_stranger(handshake(4, 32));  // a data message of an unknown host must not use the space for handshakes
  host.from_peer(handshake(1, 147));
  pump(2);
  CHECK(control_messages(0).empty() && control_messages(9).empty() && host.row[k_rx_drop_malformed] == 1);
}

/// The number of verified MACs per second must be limited, and unknown hosts must not use up the limit of peers.
void test_wireguard_looks() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  constexpr size_t kLooks = 1'000;
  const auto flood = [&] {
    for (size_t i = 0; i < kLooks + 100; i++) {
      host.from_stranger(handshake(1, 148));
      if (i % 16 == 15) CHECK(!host.ingress->pump().failure);
    }
    while (host.ingress->pump().items > 0) continue;
  };
  flood();
  CHECK(host.row[k_rx_drop_wrong_key] == kLooks && host.row[k_rx_drop_handshake] == 100);
  host.from_stranger(initiation());
  host.from_peer(initiation());
  CHECK(!host.ingress->pump().failure);
  const auto control_messages = host.sessions->mailbox().take(9).control_messages;
  CHECK(control_messages.size() == 1 && control_messages[0].from.address() == loopback_address());
  CHECK(host.row[k_rx_drop_handshake] == 101);
  clock_ms += 100;
  flood();
  CHECK(host.row[k_rx_drop_wrong_key] == 2 * kLooks && host.row[k_rx_drop_handshake] == 201);
}

/// Answers to this host's last message must reach JavaScript, from any address. Other answers must cost only a look-up.
void test_wireguard_answers() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  const auto index = [](uint32_t pair) { return ((kSession << Sessions::kPairBits) | pair) ^ kSecretOfHost; };
  const auto sends = [&](uint8_t type, uint32_t pair) {
    Bytes message = handshake(type, type == 1 ? 148 : 92);
    store_le32(&message[4], index(pair));
    Wireguard::sends(*host.sessions, message);
  };
  /// Returns the types of the messages that reached JavaScript.
  const auto heard = [&](std::initializer_list<Bytes> answers) {
    for (const Bytes& each : answers) host.from_stranger(each);
    CHECK(!host.ingress->pump().failure);
    std::string types;
    for (const auto& message : host.sessions->mailbox().take(0).control_messages)
      types += static_cast<char>('0' + message.bytes[0]);
    return types;
  };
  CHECK(heard({answer(2, index(1)), answer(3, index(1)), answer(2, 0), answer(3, 0)}).empty());
  CHECK(host.row[k_rx_drop_handshake] == 4);
  sends(1, 1);
  CHECK(heard({answer(2, index(2)), answer(3, index(2)), answer(2, index(1) ^ 1u << 31)}).empty());
  CHECK(heard({answer(2, index(1)), answer(3, index(1))}) == "23");
  CHECK(heard({answer(2, index(1)), answer(2, index(1)), answer(3, index(1))}) == "23");
  CHECK(host.row[k_rx_drop_handshake] == 8);
  // This host has sent a response, which may be answered only by a cookie, whereas an initiation may be answered by a
  // response too.
  sends(2, 2);
  CHECK(heard({answer(2, index(2)), answer(3, index(1))}).empty());
  CHECK(heard({answer(2, index(1)), answer(3, index(2))}) == "23");
  sends(1, 3);
  CHECK(heard({answer(2, index(1)), answer(3, index(2))}).empty());
  CHECK(heard({answer(2, index(3)), answer(3, index(3))}) == "23");
  // After the handshake no response may be accepted.
  host.sessions->set_keys(kSession, {.is_initiator = true, .own_index = index(3), .send = {}, .receive = {}}, clock_ms);
  CHECK(heard({answer(2, index(3)), answer(3, index(3))}) == "3");
  sends(1, 4);
  host.sessions->set_keys(kSession, {.is_initiator = true, .own_index = index(3), .send = {}, .receive = {}}, clock_ms);
  CHECK(heard({answer(2, index(4)), answer(3, index(4))}) == "23");
  host.sessions->forget(kSession);
  CHECK(heard({answer(2, index(3)), answer(3, index(3)), answer(2, 0), answer(3, 0)}).empty());
  Wireguard::sends(*host.sessions, Bytes(3, 1));
  Wireguard::sends(*host.sessions, answer(3, index(4)));
  CHECK(heard({answer(3, index(4))}).empty());
  CHECK(host.row[k_rx_drop_wrong_key] == 0 && host.row[k_rx_drop_malformed] == 0);
}

/// Returns a byte of a test key. The key is computed byte by byte, so the whole key is in memory only in copies that
/// the host made.
uint8_t byte_of_key(size_t at) { return static_cast<uint8_t>((at * 37 + 11) ^ (at * at >> 1)); }

/// Returns the number of copies of the test key in this process's memory.
size_t copies_of_key() {
  std::ifstream maps("/proc/self/maps");
  const Fd memory(open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  size_t copies = 0;
  static Bytes bytes(1 << 20);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from, to;
    char rights[5];
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, rights) != 3 || rights[1] != 'w')
      continue;
    if (to - from > size_t{1} << 30) continue;  // skips the sanitizer's own memory
    for (uintptr_t at = from; at < to; at += bytes.size() - Key::kBytes + 1) {
      const ssize_t got =
          pread(memory.get(), bytes.data(), std::min<size_t>(bytes.size(), to - at), static_cast<off_t>(at));
      const uint8_t *found = bytes.data(), *end = found + std::max<ssize_t>(got, 0);
      for (; end - found >= static_cast<ssize_t>(Key::kBytes); found++) {
        const size_t last = static_cast<size_t>(end - found) - Key::kBytes + 1;
        found = static_cast<const uint8_t*>(std::memchr(found, byte_of_key(0), last));
        if (!found) break;
        size_t same = 0;
        while (same < Key::kBytes && found[same] == byte_of_key(same)) same++;
        // Copies in the buffer of this search itself do not count.
        const uintptr_t where = at + static_cast<uintptr_t>(found - bytes.data());
        copies += same == Key::kBytes && where - reinterpret_cast<uintptr_t>(bytes.data()) >= bytes.size();
      }
    }
  }
  std::ranges::fill(bytes, uint8_t{0});
  return copies;
}

/// A key that the session wiped must soon be wiped in all threads, for encryption and for decryption. A key in use must
/// stay.
void test_wireguard_wipes() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  Remote remote(1);
  CHECK(copies_of_key() == 0);
  {
    SessionKeys keys = remote.keys(true);
    uint8_t bytes[Key::kBytes];
    for (size_t at = 0; at < sizeof bytes; at++) bytes[at] = byte_of_key(at);
    keys.send = keys.receive = Key(bytes);
    explicit_bzero(bytes, sizeof bytes);
    host.sessions->set_keys(kSession, keys, clock_ms);
  }
  const auto use = [&] {
    host.to_tun({}, build({}));
    CHECK(!host.egress->pump().failure);
    host.from_peer(remote.seal({}));  // names the test key, but is encrypted with another key
    CHECK(!host.ingress->pump().failure);
    host.ingress->tick();
    return host.drain(host.other).size();
  };
  /// runs the engine for this time, as a loop does
  const auto rest = [&](int64_t ms) {
    clock_ms += ms;
    if (!host.ingress->tick()) return;
    host.egress->rest();
    host.ingress->rest();
  };
  CHECK(use() == 2);  // the second datagram is a keepalive
  const size_t all = copies_of_key();
  CHECK(all >= 4);
  rest(SessionLimits::kKeepaliveMs - 1);
  CHECK(copies_of_key() == all);
  rest(SessionLimits::kKeepaliveMs);
  CHECK(copies_of_key() == 2);  // only the session's own copies are left
  CHECK(use() == 1 && host.row[k_tx_drop_no_session] == 0);
  host.sessions->forget(kSession);
  CHECK(copies_of_key() > 0);
  // Datagrams that name unknown keys must not keep keys in a thread's memory.
  clock_ms += SessionLimits::kKeepaliveMs - 1;
  CHECK(use() == 0);
  rest(Wireguard::kTickMs);
  CHECK(copies_of_key() == 0);
}

/// If the peer does not answer a packet that had waited for keys, the session must request new keys after 15 seconds.
void test_wireguard_silent_peer() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  host.to_tun({}, build({}));
  CHECK(!host.egress->pump().failure);
  host.sessions->set_keys(kSession, Remote(1).keys(true), clock_ms);
  host.ingress->tick();
  CHECK(host.drain(host.other).size() == 1);
  host.sessions->mailbox().take(0);
  const auto wants_after = [&](int64_t ms) {
    clock_ms += ms;
    host.ingress->tick();
    return host.sessions->mailbox().take(0).wanted.size();
  };
  CHECK(wants_after(SessionLimits::kSilenceMs - Wireguard::kTickMs) == 0);
  CHECK(wants_after(Wireguard::kTickMs) == 1);
}

/// Received data must be answered by a keepalive after ten seconds, and received keepalives must not. In each interval
/// only one thread checks the sessions, but tick() must return true to all threads, so that each thread calls rest().
void test_wireguard_answers_data() {
  Host<Wireguard> host(kAllFeatures, wireguard_end());
  host.set_peers(with_session(host.peer_record()));
  Remote remote(1);
  host.sessions->set_keys(kSession, remote.keys(true), clock_ms);
  host.ingress->tick();
  host.drain(host.other);
  const auto receive = [&](const Bytes& packet) {
    host.from_peer(remote.seal(packet));
    CHECK(!host.ingress->pump().failure);
  };
  const auto sent_after = [&](int64_t ms) {
    clock_ms += ms;
    CHECK(host.ingress->tick());
    return host.drain(host.other).size();
  };
  receive({});
  CHECK(sent_after(SessionLimits::kKeepaliveMs) == 0);
  receive(build(inward()));
  CHECK(sent_after(SessionLimits::kKeepaliveMs - Wireguard::kTickMs) == 0);
  // Another thread checks the sessions at this time.
  CHECK(host.sessions->begin_look(clock_ms + Wireguard::kTickMs, Wireguard::kTickMs));
  CHECK(sent_after(Wireguard::kTickMs) == 0);
  CHECK(sent_after(Wireguard::kTickMs) == 1);
}

/// The initiator must request new keys when it receives a packet with keys that expire soon, and the responder must
/// not.
void test_wireguard_receives_with_old_keys() {
  for (const bool is_initiator : {true, false}) {
    Host<Wireguard> host(kAllFeatures, wireguard_end());
    host.set_peers(with_session(host.peer_record()));
    Remote remote(1);
    host.sessions->set_keys(kSession, remote.keys(is_initiator), clock_ms);
    const auto wants_after = [&](int64_t ms) {
      clock_ms += ms;
      host.from_peer(remote.seal(build(inward())));
      CHECK(!host.ingress->pump().failure);
      return host.sessions->mailbox().take(0).wanted.size();
    };
    CHECK(wants_after(SessionLimits::kRefreshAfterMs - 1) == 0);
    CHECK(wants_after(1) == (is_initiator ? 1 : 0));
    CHECK(host.row[k_rx_packets] == 2);
  }
}

/// Keys must be renewed even if only keepalives are sent, because keepalives request handshakes like data.
void test_wireguard_kept_awake() {
  constexpr int64_t kEveryMs = 25'000;
  Host<Wireguard> host(kAllFeatures, wireguard_end(kEveryMs));
  host.set_peers(with_session(host.peer_record()));
  host.sessions->set_keys(kSession, Remote(1).keys(true), clock_ms);
  const int64_t since = clock_ms;
  size_t asked = 0;
  for (int64_t at = 0; at < SessionLimits::kRejectAfterMs; at += kEveryMs) {
    clock_ms = since + at;
    host.ingress->tick();
    CHECK(host.drain(host.other).size() == 1);
    const size_t now = host.sessions->mailbox().take(0).wanted.size();
    CHECK(at < SessionLimits::kRekeyAfterMs ? now == 0 : now == 1);
    asked += now;
  }
  CHECK(asked > 1);
  // Without keys no keepalive may be sent, but a handshake must be requested.
  host.sessions->forget(kSession);
  host.sessions->make_ready(kSession);
  host.ingress->tick();
  CHECK(host.drain(host.other).empty() && host.sessions->mailbox().take(0).wanted.size() == 1);
}

/// All waiting packets together have a memory limit, and must give their share back when they are sent or dropped.
void test_wireguard_waits_in_all() {
  constexpr uint32_t kPeers = 4;
  constexpr size_t kPacketBytes = 60'000;
  OwnEnd own = wireguard_end();
  own.mtu = 65'000;
  Host<Wireguard> host(kAllFeatures, own);
  Bytes records;
  for (uint32_t i = 0; i < kPeers; i++) {
    Bytes each = with_session(host.peer_record(), kSession + i);
    each[10] = static_cast<uint8_t>(2 + i);
    records.insert(records.end(), each.begin(), each.end());
  }
  host.set_peers(records);
  const size_t fit = Sessions::kMaxStagedBytes / (kPacketBytes + kEncapBytes<Wireguard>);
  CHECK(fit > SessionLimits::kMaxStaged && fit < kPeers * SessionLimits::kMaxStaged);
  const auto send = [&](uint32_t peer) {
    Fields f;
    f.destination = 0x0a050205 + peer * 256;
    f.payload = kPacketBytes - 40;
    host.to_tun({}, build(f));
    CHECK(!host.egress->pump().failure);
  };
  const auto dropped = [&] { return host.row[k_tx_drop_no_session]; };
  for (size_t i = 0; i < fit; i++) send(static_cast<uint32_t>(i / SessionLimits::kMaxStaged));
  CHECK(dropped() == 0);
  send(kPeers - 1);
  CHECK(dropped() == 1);
  host.sessions->forget(kSession);
  for (size_t i = 0; i < SessionLimits::kMaxStaged; i++) send(kPeers - 1);
  CHECK(dropped() == 1);
  send(0);
  CHECK(dropped() == 2);
  clock_ms += SessionLimits::kStagedMs;
  host.ingress->tick();
  const size_t all = 2 + fit + SessionLimits::kMaxStaged;
  CHECK(dropped() == all);
  for (size_t i = 0; i < SessionLimits::kMaxStaged; i++) send(0);
  CHECK(dropped() == all);
}

void test_wireguard(bool udp_gso) {
  if (!Aead::create(Aead::Way::kSeal)) {
    std::fputs("no OpenSSL in this process: WireGuard is left out\n", stderr);
    return;
  }
  context = "wireguard";
  test_wireguard_kept_awake();
  test_wireguard_waits_in_all();
  test_wireguard_waits();
  test_wireguard_waits_too_late();
  test_wireguard_waits_without_keys();
  test_wireguard_silent_peer();
  test_wireguard_answers_data();
  test_wireguard_receives_with_old_keys();
  test_wireguard_waits_for_removed_peer();
  test_wireguard_waits_for_full_socket();
  test_wireguard_dropped_encrypted();
  test_wireguard_in();
  test_wireguard_responds();
  test_wireguard_initiations();
  test_wireguard_looks();
  test_wireguard_answers();
  test_wireguard_wipes();
  test_wireguard_stays_outside();
  test_wireguard_slept();
  test_wireguard_without_memory();
  for (const uint32_t features : {kAllFeatures & ~kUdpGso, kAllFeatures}) {
    if ((features & kUdpGso) && !udp_gso) continue;
    test_wireguard_out(features);
  }
  context.clear();
}

void test_keyed(bool udp_gso) {
  for (const uint32_t features : {kAllFeatures & ~kUdpGso, kAllFeatures}) {
    if ((features & kUdpGso) && !udp_gso) continue;
    context = "an encapsulation that refuses, features " + std::to_string(features);
    test_refused_by_encapsulation(features);
  }
  context = "an encapsulation with keys";
  test_dropped_with_trailer();
  test_damaged();
  context.clear();
}

template <typename Encap>
void test_walks(std::string name, bool copies_ecn, bool udp_gso) {
  if (is_over_ipv6) name += " over IPv6";
  for (const uint32_t features : {kAllFeatures & ~kUdpGso, kAllFeatures}) {
    if ((features & kUdpGso) && !udp_gso) continue;
    context = name + (features & kUdpGso ? ", udp-gso" : ", no udp-gso");
    test_out<Encap>(features);
    test_path<Encap>(features);
    test_limit<Encap>(features);
    test_question_alone<Encap>(features);
    test_ipv6<Encap>(features);
    test_congestion<Encap>(features, copies_ecn, outer<Encap>);
  }
  for (const uint32_t features : {kAllFeatures, kAllFeatures & ~(kCoalesceTcp | kCoalesceUdp), 0u}) {
    context = name + ", features " + std::to_string(features);
    test_in<Encap>(features);
    test_malformed<Encap>(features);
  }
  context = name;
  test_dropped_segments<Encap>();
  test_quotes<Encap>();
  test_tun_errors<Encap>();
  context = name;
  test_answers_are_few<Encap>();
  test_told_of_size<Encap>();
  test_longest<Encap>();
  test_clamp<Encap>();
  test_table_goes<Encap>();
  test_turns<Encap>();
  test_not_answered<Encap>();
  context = name;
  test_time_exceeded<Encap>();
  test_filter<Encap>();
  test_traffic<Encap>();
  context.clear();
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  const bool udp_gso = do_controls_pass = argc < 4;
  for (const bool ipv6 : {false, true}) {
    UdpSocket socket;
    if (ipv6 && open_udp(SocketAddress(kLoopback6, 0), Share::kNo, 1 << 20, 0, socket)) {
      std::fputs("skipped: all over IPv6: there is no such address here\n", stderr);
      continue;
    }
    is_over_ipv6 = ipv6;
    test_walks<FlannelUdp>("flannel's udp", false, udp_gso);
    test_walks<Marked>("eight bytes before each packet, sixteen behind it", Marked::kCopiesEcn, udp_gso);
    test_keyed(udp_gso);
    test_wireguard(udp_gso);
    test_vxlan();
    if (udp_gso) test_congestion_joined();
  }
  test_echoes();
  test_sender_socket();
  test_underlay();
  test_flow_labels();
  test_any_address();
  test_both_families();
  test_overflow();
  test_damaged_datagram();
  return verdict(seed);
}
