// walk_test.cc - whole walks through egress and ingress, for flannel's udp and for an encapsulation of the test's that
// puts bytes before each packet; core.test.ts builds and runs it.
//
// A pair of sockets that keep messages apart stands for the TUN; datagrams go over loopback. clock_gettime is replaced
// for the whole program.
#include <arpa/inet.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../../native/egress.h"
#include "../../native/encap/flannel_udp.h"
#include "../../native/ingress.h"
#include "../../native/io/udp.h"
#include "packets.h"

static int64_t clock_ms = 1'000'000;  // goes on only as a test says
extern "C" int clock_gettime(clockid_t, timespec* now) {
  *now = {clock_ms / 1'000, clock_ms % 1'000 * 1'000'000};
  return 0;
}

namespace {

/// Eight bytes of the peer's record before each packet, and a first byte that is not 0.
struct Marked {
  static constexpr size_t kHeaderBytes = 8;
  void write(const Endpoint& peer, const Packet&, uint8_t* out) const { std::memcpy(out, peer.encap.data(), 8); }
  Stripped strip(Message& message) const {
    const std::span<uint8_t> datagram = message.take();
    if (datagram.size() < kHeaderBytes || datagram[0] == 0) return {{}, k_rx_drop_malformed};
    return {datagram.subspan(kHeaderBytes)};
  }
};
static_assert(Encapsulation<Marked>);

constexpr uint8_t kMark[8] = {0xde, 0xad, 1, 2, 3, 4, 5, 6};

/// An egress and an ingress of one host, whose only peer is `address` and port of the other end.
template <typename Encap>
struct Host {
  explicit Host(uint32_t features) : features(features), row(kCounterCount), peers(2) {
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, tun) == 0);
    const int buffer = 4 << 20;
    for (int* fd : {&socket, &other}) {
      *fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
      setsockopt(*fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
      sockaddr_in address = loopback(0);
      CHECK(bind(*fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    }
    for (const int fd : tun) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    Bytes r = record(4, 24, {10, 5, 2, 0}, INADDR_LOOPBACK);
    store(&r[4], port_of(other));
    std::copy(std::begin(kMark), std::end(kMark), r.begin() + 40);
    peers.replace(std::make_unique<const PeerTable>(r));
    const Path path{tun[0],
                    socket,
                    socket,
                    htonl(0x0a050100),
                    htonl(0x0a050000),
                    SIZE_MAX,
                    &this->features,
                    CounterRow(row.data())};
    egress = std::make_unique<Egress<Encap>>(path, peers.reader(0));
    ingress = std::make_unique<Ingress<Encap>>(path, peers.reader(1));
  }
  ~Host() {
    for (const int fd : {tun[0], tun[1], socket, other}) close(fd);
  }
  static sockaddr_in loopback(uint16_t port) { return {AF_INET, port, {htonl(INADDR_LOOPBACK)}, {}}; }
  static uint16_t port_of(int fd) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    return address.sin_port;
  }
  /// A packet as the kernel hands it to the TUN's reader.
  void to_tun(const VirtioHeader& virtio, const Bytes& packet) {
    Bytes bytes(sizeof virtio);
    std::memcpy(bytes.data(), &virtio, sizeof virtio);
    bytes.insert(bytes.end(), packet.begin(), packet.end());
    CHECK(send(tun[1], bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  void from_peer(const Bytes& datagram) {
    const sockaddr_in to = loopback(port_of(socket));
    CHECK(sendto(other, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) ==
          static_cast<ssize_t>(datagram.size()));
  }
  /// All that arrived at one end.
  static std::vector<Bytes> drain(int fd) {
    std::vector<Bytes> all;
    for (;;) {
      Bytes bytes(1 << 17);
      const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
      if (got < 0) return all;
      bytes.resize(static_cast<size_t>(got));
      all.push_back(std::move(bytes));
    }
  }

  Features features;
  std::vector<uint64_t> row;
  PeerTables peers;
  int tun[2], socket, other;
  std::unique_ptr<Egress<Encap>> egress;
  std::unique_ptr<Ingress<Encap>> ingress;
};

/// A datagram without its header, which is checked.
template <typename Encap>
Bytes inner(const Bytes& datagram) {
  CHECK(datagram.size() > Encap::kHeaderBytes);
  CHECK(std::equal(datagram.begin(), datagram.begin() + Encap::kHeaderBytes, kMark));
  return Bytes(datagram.begin() + Encap::kHeaderBytes, datagram.end());
}

template <typename Encap>
Bytes outer(const Bytes& packet) {
  Bytes datagram(kMark, kMark + Encap::kHeaderBytes);
  datagram.insert(datagram.end(), packet.begin(), packet.end());
  return datagram;
}

bool is_whole(const Bytes& bytes) {
  Packet packet;
  return read_packet(bytes.data(), bytes.size(), packet) == Shape::kOk && packet.total == bytes.size() &&
         transport_sum(bytes) == 0xffff && reference_fold(reference_sum(bytes.data(), packet.ip_bytes)) == 0xffff;
}

/// Of a TCP superpacket without IP options that is to be cut into segments of so many bytes.
VirtioHeader tcp_in_segments_of(uint16_t size) {
  VirtioHeader virtio;
  virtio.flags = kVirtioNeedsCsum;
  virtio.gso_type = kGsoTcp4;
  virtio.gso_size = size;
  virtio.csum_start = 20;
  virtio.csum_offset = 16;
  return virtio;
}

/// Superpackets with headers of different sizes, more datagrams than one batch of messages holds, and single packets
/// between them.
template <typename Encap>
void test_out(uint32_t features) {
  Host<Encap> host(features);
  size_t expected = 0;
  // What a receive buffer of net.core.rmem_max's default holds, 212992 bytes, whoever runs this.
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
  CHECK(host.row[k_tx_bytes] == bytes);
}

/// A superpacket that is dropped counts as its segments.
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

/// A container that sends to nobody, or with a TTL that ends here, is answered so often, and no more.
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
    clock_ms += 7;
    send(60);
    CHECK(host.row[sent] == 57);
    clock_ms += 3'600'000;
    send(60);
    CHECK(host.row[sent] == 107);
  }
}

/// A stream, joined; a datagram that the encapsulation refuses; one that is no packet.
template <typename Encap>
void test_in(uint32_t features) {
  Host<Encap> host(features);
  Fields f;
  std::vector<Bytes> packets;
  for (int i = 0; i < 10; i++, f.sequence += 100, f.id++) {
    packets.push_back(build(f));
    host.from_peer(outer<Encap>(packets.back()));
  }
  host.from_peer(Bytes(5, 0));
  host.from_peer(outer<Encap>(Bytes(30, 0xff)));
  CHECK(!host.ingress->pump().failure);
  CHECK(host.row[k_rx_packets] == 10);
  CHECK(host.row[k_rx_drop_malformed] == 2);
  const auto writes = host.drain(host.tun[1]);
  CHECK(writes.size() == (features & kCoalesceTcp ? 1u : 10u));
  const size_t header = features & kTunHeader ? sizeof(VirtioHeader) : 0;
  size_t payload = 0;
  for (const Bytes& write : writes) payload += write.size() - header - 40;
  CHECK(payload == 1000);
  CHECK(!writes.empty() && writes[0].size() > header + 8 && writes[0][header + 8] == f.ttl - 1);
}

/// What has no TTL left is answered to the peer whose packet it was, in its encapsulation, wherever it came from;
/// nobody is answered for a packet that is no peer's, nor too often.
template <typename Encap>
void test_time_exceeded() {
  Host<Encap> host(kAllFeatures);
  Fields f;
  f.tcp = false;
  f.ttl = 1;
  f.source = 0x0a050207;
  f.destination = 0x0a050102;
  const int stranger = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  const sockaddr_in to = Host<Encap>::loopback(Host<Encap>::port_of(host.socket));
  const auto send = [&](size_t packets) {
    const Bytes datagram = outer<Encap>(build(f));
    for (size_t i = 0; i < packets; i++) {
      CHECK(sendto(stranger, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) >
            0);
      CHECK(!host.ingress->pump().failure);
    }
  };
  send(1);
  CHECK(host.row[k_rx_drop_ttl] == 1);
  CHECK(host.row[k_rx_time_exceeded_sent] == 1);
  const auto answers = host.drain(host.other);
  CHECK(answers.size() == 1);
  CHECK(host.drain(stranger).empty());
  if (answers.empty()) return;
  const Bytes error = inner<Encap>(answers[0]);
  CHECK(error.size() == 56 && error[20] == kIcmpTimeExceeded && load_be32(&error[16]) == f.source);

  f.source = 0x0a050907;
  send(1);
  CHECK(host.row[k_rx_drop_ttl] == 2);
  CHECK(host.row[k_rx_time_exceeded_sent] == 1);
  CHECK(host.drain(host.other).empty() && host.drain(stranger).empty());

  f.source = 0x0a050207;
  send(100);
  CHECK(host.row[k_rx_drop_ttl] == 102);
  CHECK(host.row[k_rx_time_exceeded_sent] == 50);
  close(stranger);
}

/// What a socket had no room for is counted, by whichever engine has it at the time.
void test_overflow() {
  UdpSocket socket, sender;
  CHECK(!open_udp(Host<FlannelUdp>::loopback(0), Share::kNo, 1 << 20, 0, socket));
  CHECK(!open_udp(Host<FlannelUdp>::loopback(0), Share::kNo, 1 << 20, 0, sender));
  const int small = 20'000;
  CHECK(setsockopt(socket.fd.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
  const sockaddr_in to = Host<FlannelUdp>::loopback(Host<FlannelUdp>::port_of(socket.fd.get()));
  const Bytes datagram(1000);
  for (int engine = 0; engine < 2; engine++) {
    std::vector<uint64_t> row(kCounterCount);
    Receiver receiver(socket.fd.get(), 64, CounterRow(row.data()));
    Failure failure;
    size_t sent = 0;
    for (const int datagrams : {300, 1, 300, 1}) {  // what was dropped last is told by the next that comes
      for (int i = 0; i < datagrams; i++, sent++) {
        const auto* address = reinterpret_cast<const sockaddr*>(&to);
        CHECK(sendto(sender.fd.get(), datagram.data(), datagram.size(), 0, address, sizeof to) == 1000);
      }
      while (receiver.receive(failure) > 0) CHECK(!failure);
    }
    CHECK(row[k_rx_drop_socket_full] > 400);
    CHECK(row[k_rx_messages] + row[k_rx_drop_socket_full] == sent);
  }
}

/// A socket that is sent by alone holds next to nothing of what is sent to it.
void test_sender_socket() {
  UdpSocket receiver, sender;
  CHECK(!open_udp(Host<FlannelUdp>::loopback(0), Share::kNo, 1 << 20, 0, receiver));
  CHECK(!open_sender(Host<FlannelUdp>::loopback(Host<FlannelUdp>::port_of(receiver.fd.get())), 1, 0, sender));
  const sockaddr_in to = Host<FlannelUdp>::loopback(Host<FlannelUdp>::port_of(sender.fd.get()));
  const Bytes datagram(1000);
  for (int i = 0; i < 1000; i++) {
    sendto(receiver.fd.get(), datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  uint32_t memory[9] = {};  // as many as SK_MEMINFO_VARS
  socklen_t size = sizeof memory;
  CHECK(getsockopt(sender.fd.get(), SOL_SOCKET, SO_MEMINFO, memory, &size) == 0);
  CHECK(memory[SK_MEMINFO_DROPS] > 900);
  CHECK(memory[SK_MEMINFO_RMEM_ALLOC] < 10'000);
  CHECK(sender.receive_buffer_bytes < receiver.receive_buffer_bytes);
}

template <typename Encap>
void test_walks(const char* name, bool udp_gso) {
  for (const uint32_t features : {kAllFeatures & ~kUdpGso, kAllFeatures}) {
    if ((features & kUdpGso) && !udp_gso) continue;
    context = std::string(name) + (features & kUdpGso ? ", udp-gso" : ", no udp-gso");
    test_out<Encap>(features);
  }
  for (const uint32_t features : {kAllFeatures, kAllFeatures & ~(kCoalesceTcp | kCoalesceUdp), 0u}) {
    context = std::string(name) + ", features " + std::to_string(features);
    test_in<Encap>(features);
  }
  context = name;
  test_dropped_segments<Encap>();
  test_answers_are_few<Encap>();
  test_time_exceeded<Encap>();
  context.clear();
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  test_walks<FlannelUdp>("flannel's udp", argc < 4);
  test_walks<Marked>("eight bytes before each packet", argc < 4);
  test_sender_socket();
  test_overflow();
  return verdict(seed);
}
