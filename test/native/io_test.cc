// io_test.cc - tests how sending, receiving and writing react to each error of a simulated kernel. core.test.ts builds
// and runs it.
//
// sendmmsg, sendmsg, recvmmsg, writev, poll and clock_gettime are replaced for the whole program.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include <atomic>
#include <functional>
#include <thread>

#include "../../native/encap/flannel_udp.h"
#include "../../native/io/handover_state.h"
#include "../../native/io/linux_compat.h"
#include "../../native/io/netlink.h"
#include "../../native/io/receiver.h"
#include "../../native/io/sender.h"
#include "../../native/io/tun_writer.h"
#include "../../native/walk/egress.h"
#include "packets.h"

namespace {

/// A message that the simulated kernel received, and whether it accepted the message.
struct Sent {
  uint32_t address;  // the address of the receiving peer in host order; 0 for the TUN
  size_t segment_bytes;
  Bytes bytes;
  int tos = 0;
};

struct Kernel {
  // returns the errno with which the kernel refuses a message; 0 if it accepts it
  std::function<int(const Sent&)> refusal;
  std::function<int(mmsghdr*, unsigned)> receive;
  unsigned at_most = 1024;  // the maximum number of messages that one call accepts
  size_t calls = 0;
  size_t waits = 0;
  std::function<void()> waited;  // called when the tested code waits for a full socket
  std::vector<Sent> taken;

  int take(Sent sent) {
    const int error = refusal ? refusal(sent) : 0;
    if (error == 0) taken.push_back(std::move(sent));
    return error;
  }
};
Kernel kernel;
int64_t clock_ms = 1'000'000;  // the simulated time, which advances only if a test changes it

Bytes joined(const iovec* iov, size_t count) {
  Bytes bytes;
  for (size_t i = 0; i < count; i++) {
    const auto* from = static_cast<const uint8_t*>(iov[i].iov_base);
    bytes.insert(bytes.end(), from, from + iov[i].iov_len);
  }
  return bytes;
}

Sent read_message(const msghdr& message) {
  Sent sent{};
  sent.address = ntohl(static_cast<const sockaddr_in*>(message.msg_name)->sin_addr.s_addr);
  sent.bytes = joined(message.msg_iov, message.msg_iovlen);
  msghdr readable = message;
  for (cmsghdr* control = CMSG_FIRSTHDR(&readable); control; control = CMSG_NXTHDR(&readable, control)) {
    if (control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_TOS) {
      CHECK(control->cmsg_len == CMSG_LEN(1));
      sent.tos = *CMSG_DATA(control);
      continue;
    }
    uint16_t size;
    std::memcpy(&size, CMSG_DATA(control), sizeof size);
    CHECK(control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_SEGMENT);
    sent.segment_bytes = size;
  }
  return sent;
}

}  // namespace

extern "C" {
int sendmmsg(int, mmsghdr* messages, unsigned count, int flags) {
  CHECK(flags == MSG_DONTWAIT);
  kernel.calls++;
  for (unsigned i = 0; i < count; i++) {
    if (i == kernel.at_most) return static_cast<int>(i);
    if (const int error = kernel.take(read_message(messages[i].msg_hdr))) {
      if (i > 0) return static_cast<int>(i);
      errno = error;
      return -1;
    }
  }
  return static_cast<int>(count);
}
ssize_t sendmsg(int, const msghdr* message, int flags) {
  CHECK(flags == MSG_DONTWAIT);
  if (const int error = kernel.take(read_message(*message))) return errno = error, -1;
  return static_cast<ssize_t>(kernel.taken.back().bytes.size());
}
int poll(pollfd*, nfds_t, int timeout_ms) {
  CHECK(timeout_ms > 0 && timeout_ms <= 10);
  kernel.waits++;
  if (kernel.waited) kernel.waited();
  return 0;
}
int clock_gettime(clockid_t, timespec* now) {
  *now = {time_t{clock_ms / 1'000}, static_cast<long>(clock_ms % 1'000 * 1'000'000)};
  return 0;
}
int recvmmsg(int, mmsghdr* messages, unsigned count, int, timespec*) { return kernel.receive(messages, count); }
ssize_t writev(int, const iovec* iov, int count) {
  if (const int error = kernel.take({0, 0, joined(iov, static_cast<size_t>(count)), 0})) return errno = error, -1;
  return static_cast<ssize_t>(kernel.taken.back().bytes.size());
}
}

namespace {

constexpr uint32_t kHere = 0x0a000001, kThere = 0x0a000002;

Endpoint endpoint_of(uint32_t address) { return endpoint_at(SocketAddress(ipv4(address), htons(8285))); }

/// A Sender and a list of numbered datagrams, each of `size` bytes.
struct Outward {
  explicit Outward(uint32_t granted = kAllFeatures)
      : features(granted),
        row(kCounterCount),
        drops(CounterRow(row.data()), [] { return clock_ms * 1'000; }),
        sender({}, 0, 0, 100, &features, CounterRow(row.data()), &drops, &traffic),
        payload(70'000) {}

  void add(const Endpoint& endpoint, size_t size = 100, Ecn ecn = kNotEct) {
    uint8_t* header = sender.room(4);
    store_be32(header, number++);
    sender.add<0>({endpoint, 4, ecn}, {header, 4}, {payload.data(), size - 4});
  }
  /// Returns the numbers of all accepted datagrams, in order.
  static std::vector<uint32_t> numbers() {
    std::vector<uint32_t> numbers;
    for (const Sent& sent : kernel.taken) {
      const size_t step = sent.segment_bytes ? sent.segment_bytes : sent.bytes.size();
      for (size_t at = 0; at < sent.bytes.size(); at += step) numbers.push_back(load_be32(&sent.bytes[at]));
    }
    return numbers;
  }
  /// Returns the number of datagrams in the first message to `address` that was accepted.
  static size_t first_run(uint32_t address) {
    for (const Sent& sent : kernel.taken) {
      if (sent.address == address) return sent.segment_bytes ? sent.bytes.size() / sent.segment_bytes : 1;
    }
    return 0;
  }

  Features features;
  std::vector<uint64_t> row;
  TrafficRows traffic;
  Drops drops;
  Sender sender;
  Bytes payload;
  uint32_t number = 0;
  const Endpoint here = endpoint_of(kHere), there = endpoint_of(kThere);
};

void test_send_refusals() {
  struct Row {
    const char* what;
    size_t datagrams;
    int run_error, single_error;
    Counter counted;  // the counter that must count each lost datagram
    size_t sent, resent;
    // the number of datagrams in the next message to the same endpoint; messages to other endpoints have 128
    size_t next_here;
  };
  const Row rows[] = {
      {"EIO", 10, EIO, 0, k_tx_drop_refused, 10, 1, 1},
      {"EIO, singly too", 10, EIO, EIO, k_tx_drop_refused, 0, 1, 128},
      {"EIO on one datagram", 1, EIO, EIO, k_tx_drop_refused, 0, 0, 128},
      {"EINVAL for a long run", 100, EINVAL, 0, k_tx_drop_refused, 100, 1, 64},
      {"EINVAL", 64, EINVAL, 0, k_tx_drop_refused, 64, 1, 1},
      {"EINVAL, singly too", 10, EINVAL, EINVAL, k_tx_drop_refused, 0, 1, 128},
      {"EINVAL for a long run, singly too", 100, EINVAL, EINVAL, k_tx_drop_refused, 0, 1, 128},
      {"EMSGSIZE", 10, EMSGSIZE, 0, k_tx_drop_too_big, 10, 1, 1},
      {"EMSGSIZE, singly too", 10, EMSGSIZE, EMSGSIZE, k_tx_drop_too_big, 0, 1, 128},
      {"EMSGSIZE, then a full socket", 10, EMSGSIZE, EAGAIN, k_tx_drop_socket_full, 0, 1, 128},
      {"EAGAIN", 10, EAGAIN, 0, k_tx_drop_socket_full, 0, 0, 128},
      {"ENOBUFS", 10, ENOBUFS, 0, k_tx_drop_socket_full, 0, 0, 128},
      {"EPERM", 10, EPERM, 0, k_tx_drop_refused, 0, 0, 128},
      {"nothing", 128, 0, 0, k_tx_drop_refused, 128, 0, 128},
  };
  for (const Row& row : rows) {
    context = row.what;
    Outward out;
    kernel = {};
    kernel.refusal = [&](const Sent& sent) { return sent.segment_bytes > 0 ? row.run_error : row.single_error; };
    for (size_t i = 0; i < row.datagrams; i++) out.add(out.here);
    out.sender.flush();
    CHECK(out.row[k_tx_packets] == row.sent);
    CHECK(out.row[k_tx_bytes] == row.sent * 100);
    CHECK(out.row[k_udp_gso_refusals] == row.resent);
    CHECK(out.row[row.counted] == row.datagrams - row.sent);
    uint32_t lost = 0;
    out.drops.read(0, [&](const KeptDrop& kept) {
      CHECK(kept.reason == row.counted && kept.packets == 1 && kept.length == 100 && kept.size == 100);
      CHECK(load_be32(kept.bytes.data()) == lost++ && kept.peer == ipv4(kHere) && kept.encap_bytes == 0);
    });
    CHECK(lost == row.datagrams - row.sent);
    const auto numbers = Outward::numbers();
    CHECK(numbers.size() == row.sent);
    for (size_t i = 0; i < numbers.size(); i++) CHECK(numbers[i] == i);

    CHECK(out.features.bits() == kAllFeatures);
    const auto next_here = [&] {
      kernel = {};
      for (size_t i = 0; i < 130; i++) out.add(out.here);
      for (size_t i = 0; i < 130; i++) out.add(out.there);
      out.sender.flush();
      CHECK(Outward::first_run(kThere) == 128);
      CHECK(Outward::numbers().size() == 260);
      return Outward::first_run(kHere);
    };
    CHECK(next_here() == row.next_here);
    clock_ms += kRememberedMs - 1;
    CHECK(next_here() == row.next_here);
    clock_ms += 1;
    CHECK(next_here() == 128);
  }
  context.clear();
}

/// If the socket is full, the sender waits once per batch, regardless of the number of messages and of send() calls.
void test_full_socket() {
  Outward out(kAllFeatures & ~kUdpGso);
  for (const int messages : {1, 64, 1000}) {
    kernel = {};
    kernel.refusal = [](const Sent&) { return EAGAIN; };
    const uint64_t dropped = out.row[k_tx_drop_socket_full];
    for (int i = 0; i < messages; i++) out.add(out.here);
    out.sender.flush();
    CHECK(kernel.waits == 1);
    CHECK(out.row[k_tx_drop_socket_full] - dropped == static_cast<uint64_t>(messages));
  }
  // After the wait the socket accepts everything, so no datagram is lost.
  for (const uint32_t features : {kAllFeatures & ~kUdpGso, kAllFeatures}) {
    Outward again(features);
    kernel = {};
    bool full = true;
    kernel.refusal = [&](const Sent& sent) {
      return sent.segment_bytes ? EMSGSIZE : full && load_be32(sent.bytes.data()) >= 30 ? EAGAIN : 0;
    };
    kernel.waited = [&] { full = false; };
    for (int i = 0; i < 64; i++) again.add(again.here);
    again.sender.flush();
    CHECK(kernel.waits == 1);
    CHECK(Outward::numbers().size() == 64);
    CHECK(again.row[k_tx_drop_socket_full] == 0);
  }
}

/// The kernel accepts some messages of a call, is interrupted, and refuses one in the middle. All others must be sent
/// in order.
void test_send_partly() {
  Outward out;
  kernel = {};
  kernel.at_most = 2;
  int interruptions = 3;
  kernel.refusal = [&](const Sent& sent) {
    if (load_be32(sent.bytes.data()) == 4 && interruptions > 0) {
      interruptions--;
      return EINTR;
    }
    return load_be32(sent.bytes.data()) == 5 ? EAGAIN : 0;
  };
  for (int i = 0; i < 9; i++) out.add(i % 2 ? out.there : out.here);
  out.sender.flush();
  CHECK((Outward::numbers() == std::vector<uint32_t>{0, 1, 2, 3, 4, 6, 7, 8}));
  CHECK(out.row[k_tx_packets] == 8);
  CHECK(out.row[k_tx_drop_socket_full] == 1);
  CHECK(interruptions == 0);
  CHECK(out.row[k_tx_batches] == kernel.calls);
  // The buffers are empty when the next batch begins.
  kernel = {};
  out.add(out.here);
  out.sender.flush();
  CHECK((Outward::numbers() == std::vector<uint32_t>{9}));
}

/// A message must have consecutive datagrams of one size to one endpoint, up to the maximum. Only its last datagram may
/// be shorter.
void test_runs() {
  const auto sizes = [](uint32_t features, const std::function<void(Outward&)>& fill) {
    Outward out(features);
    kernel = {};
    fill(out);
    out.sender.flush();
    std::vector<size_t> sizes;
    for (const Sent& sent : kernel.taken) sizes.push_back(sent.bytes.size());
    const auto numbers = Outward::numbers();
    for (size_t i = 0; i < numbers.size(); i++) CHECK(numbers[i] == i);
    CHECK(out.row[k_tx_packets] == out.number);
    return sizes;
  };
  using Sizes = std::vector<size_t>;
  CHECK((sizes(kAllFeatures, [](Outward& o) {
           for (const size_t size : {100, 100, 40, 40, 100, 101}) o.add(o.here, size);
         }) == Sizes{240, 40, 100, 101}));
  CHECK((sizes(kAllFeatures, [](Outward& o) {
           for (int i = 0; i < 6; i++) o.add(i < 3 ? o.here : o.there);
         }) == Sizes{300, 300}));
  CHECK((sizes(kAllFeatures, [](Outward& o) {
           for (int i = 0; i < 50; i++) o.add(o.here, 1472);
         }) == Sizes{44 * 1472, 6 * 1472}));
  CHECK((sizes(kAllFeatures & ~kUdpGso, [](Outward& o) {
           for (int i = 0; i < 3; i++) o.add(o.here);
         }) == Sizes{100, 100, 100}));
  // If there are more messages or datagrams than the buffers hold, the sender sends earlier. No datagram may be lost.
  CHECK(sizes(kAllFeatures & ~kUdpGso, [](Outward& o) {
          for (int i = 0; i < 1000; i++) o.add(o.here);
        }).size() == 1000);
  CHECK(sizes(kAllFeatures, [](Outward& o) {
          for (int i = 0; i < 5000; i++) o.add(o.here);
        }).size() == 40);
}

/// Fills messages to the maximum size. A datagram that exceeds this size is dropped.
void test_longest() {
  const auto sizes = [](const std::vector<size_t>& datagrams) {
    Outward out;
    kernel = {};
    for (const size_t size : datagrams) out.add(out.here, size);
    out.sender.flush();
    std::vector<size_t> taken;
    for (const Sent& sent : kernel.taken) taken.push_back(sent.bytes.size());
    CHECK(out.row[k_tx_packets] + out.row[k_tx_drop_too_big] == datagrams.size());
    CHECK(out.sender.gathered() == out.row[k_tx_packets]);
    size_t kept = 0;
    out.drops.read(0, [&](const KeptDrop& drop) { kept += drop.reason == k_tx_drop_too_big && drop.length > 65507; });
    CHECK(kept == out.row[k_tx_drop_too_big]);
    return taken;
  };
  using Sizes = std::vector<size_t>;
  for (const size_t last : {34u, 35u, 36u}) {
    Sizes datagrams(66, 992);  // 65472 bytes, the most that fits
    datagrams.push_back(last);
    CHECK((sizes(datagrams) == (last == 36 ? Sizes{65472, 36} : Sizes{65472 + last})));
  }
  CHECK((sizes({65506, 65507, 65508, 65535, 65536, 65537, 100}) == Sizes{65506, 65507, 100}));
}

/// Datagrams with different ECN marks must be in different messages, and keep their marks if they are sent singly.
void test_ecn() {
  const std::vector<Ecn> marks{kNotEct, kNotEct, kEct0, kEct0, kCe, kEct0, kEct1, kNotEct};
  for (const int error : {0, EMSGSIZE}) {
    Outward out;
    kernel = {};
    kernel.refusal = [&](const Sent& sent) { return sent.segment_bytes ? error : 0; };
    for (const Ecn mark : marks) out.add(out.here, 100, mark);
    out.sender.flush();
    CHECK(kernel.taken.size() == (error ? 8u : 6u));
    std::vector<int> seen;
    for (const Sent& sent : kernel.taken) {
      for (size_t at = 0; at < sent.bytes.size(); at += 100) seen.push_back(sent.tos);
    }
    CHECK(std::equal(seen.begin(), seen.end(), marks.begin(), marks.end()));
    CHECK(Outward::numbers().size() == marks.size() && out.row[k_tx_packets] == marks.size());
  }
}

/// If a datagram with its headers exceeds the known path MTU, it must be alone in its message, because the kernel would
/// refuse a joined message. If a datagram fits but the kernel refuses it, the kernel must be queried again immediately.
void test_path_explains() {
  constexpr size_t kPath = 1500, kFits = kPath - 28;
  for (const size_t size : {kFits - 1, kFits, kFits + 1}) {
    Outward out;
    kernel = {};
    kernel.refusal = [](const Sent& sent) { return sent.segment_bytes ? EMSGSIZE : 0; };
    out.here.path.learn(kPath, clock_ms);
    for (int i = 0; i < 3; i++) out.add(out.here, size);
    out.sender.flush();
    CHECK(out.row[k_udp_gso_refusals] == (size <= kFits ? 1 : 0) && out.row[k_tx_packets] == 3);
    CHECK(out.here.path.is_due(clock_ms) == (size <= kFits));
    // Shorter datagrams to the same peer must still be joined.
    kernel = {};
    for (const size_t each : {kFits + 1, kFits + 1, size_t{100}, size_t{100}}) out.add(out.here, each);
    out.sender.flush();
    CHECK(kernel.taken.size() == 3 && out.row[k_tx_packets] == 7);
  }
}

/// If the socket is full, the sender waits once per batch, even if many path MTU probes are sent, each in a message of
/// its own.
void test_full_socket_of_questions() {
  int tun[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, tun) == 0);
  std::vector<uint64_t> row(kCounterCount);
  const CounterRow counters(row.data());
  Features features(kAllFeatures);
  Drops drops(counters, [] { return clock_ms * 1'000; });
  TrafficRows traffic;
  IcmpLimits icmp(1);
  UnknownSenders unknown_senders;
  PeerTables peers(1);
  peers.set(record(4, 24, {10, 5, 2, 0}, kThere));
  constexpr uint32_t kOwn = 0x0a050100;
  Egress<FlannelUdp> egress(Path{.tun = tun[0],
                                 .tun_address = {ipv4(kOwn), {}},
                                 .features = &features,
                                 .counters = counters,
                                 .traffic = &traffic,
                                 .tx_drops = &drops,
                                 .rx_drops = &drops,
                                 .unknown_senders = &unknown_senders,
                                 .icmp = &icmp},
                            peers.reader(0), FlannelUdp(OwnEnd{}));
  Fields f;
  f.tcp = false;
  f.source = kOwn;
  Bytes question = build(f);
  question[9] = IPPROTO_ICMP;
  question[20] = kEchoRequest;
  Bytes bytes(sizeof(VirtioHeader));
  bytes.insert(bytes.end(), question.begin(), question.end());
  for (int batch = 1; batch <= 2; batch++) {
    kernel = {};
    kernel.refusal = [](const Sent&) { return EAGAIN; };
    for (int i = 0; i < 20; i++) CHECK(send(tun[1], bytes.data(), bytes.size(), 0) > 0);
    CHECK(egress.pump().items == 20);
    CHECK(kernel.waits == 1);
    CHECK(row[k_tx_drop_socket_full] == static_cast<uint64_t>(20 * batch));
  }
  close(tun[0]);
  close(tun[1]);
}

/// If the TUN refuses a superpacket of another kernel but accepts its segments, weft must continue to join packets.
void test_uncut_refused() {
  for (const bool tcp : {true, false}) {
    Features features(kAllFeatures);
    std::vector<uint64_t> counters(kCounterCount);
    Drops drops(CounterRow(counters.data()), [] { return clock_ms * 1'000; });
    TunWriter writer(-1, &features, CounterRow(counters.data()), &drops);
    Fields f;
    f.tcp = tcp;
    f.payload = 10'000;
    Bytes packet = build(f);
    const Packet shape = read(packet);
    VirtioHeader undone = open_sum(shape);
    undone.gso_type = tcp ? kGsoTcp4 : kGsoUdp;
    undone.gso_size = 100;
    kernel = {};
    kernel.refusal = [](const Sent& sent) { return sent.bytes[1] == kGsoNone ? 0 : EINVAL; };
    Coalescer coalescer;
    coalescer.add(packet.data(), shape, writer.limits(), undone);
    CHECK(!writer.write(coalescer));
    CHECK(counters[k_rx_packets] == 100 && counters[k_coalesce_refusals] == 1);
    CHECK(features.bits() == kAllFeatures && writer.limits().udp_segments == kUdpSegments);
  }
}

void test_write_refusals() {
  struct Row {
    const char* what;
    bool tcp;
    int packets;
    int joined_error, single_error;
    uint32_t off;
    size_t written, rewritten;
    uint16_t udp_segments;
  };
  const Row rows[] = {
      {"TCP, taken", true, 10, 0, 0, 0, 10, 0, 128},
      {"TCP, EINVAL", true, 10, EINVAL, 0, kCoalesceTcp, 10, 1, 128},
      {"UDP, EINVAL", false, 10, EINVAL, 0, kCoalesceUdp, 10, 1, 128},
      {"long UDP, EINVAL", false, 100, EINVAL, 0, 0, 100, 1, 64},
      {"TUN down", true, 10, EINVAL, EINVAL, 0, 0, 1, 128},
      {"TUN down, long UDP", false, 100, EINVAL, EINVAL, 0, 0, 1, 128},
      {"TCP, EIO", true, 10, EIO, EIO, 0, 0, 1, 128},
      {"TCP, EIO, taken singly", true, 10, EIO, 0, 0, 10, 1, 128},
      {"one packet, EIO", true, 1, EIO, EIO, 0, 0, 0, 128},
  };
  for (const Row& row : rows) {
    context = row.what;
    kernel = {};
    kernel.refusal = [&](const Sent& sent) {
      VirtioHeader virtio;
      std::memcpy(&virtio, sent.bytes.data(), sizeof virtio);
      return virtio.gso_type == kGsoNone ? row.single_error : row.joined_error;
    };
    Features features(kAllFeatures);
    std::vector<uint64_t> counters(kCounterCount);
    Drops drops(CounterRow(counters.data()), [] { return clock_ms * 1'000; });
    TunWriter writer(-1, &features, CounterRow(counters.data()), &drops);
    Coalescer coalescer;
    std::vector<Bytes> packets;
    Fields fields;
    fields.tcp = row.tcp;
    fields.payload = 50;
    for (int i = 0; i < row.packets; i++, fields.sequence += 50, fields.id++) packets.push_back(build(fields));
    for (Bytes& packet : packets) coalescer.add(packet.data(), read(packet), writer.limits());
    CHECK(coalescer.writes() == 1);
    CHECK(!writer.write(coalescer));
    CHECK(coalescer.writes() == 0);
    CHECK(features.bits() == (kAllFeatures & ~row.off));
    CHECK(writer.limits().udp_segments == row.udp_segments);
    CHECK(writer.limits().tcp == !(row.off & kCoalesceTcp));
    CHECK(writer.limits().udp == !(row.off & kCoalesceUdp));
    CHECK(counters[k_rx_packets] == row.written);
    CHECK(counters[k_coalesce_refusals] == row.rewritten);
    CHECK(counters[k_rx_drop_tun] == static_cast<size_t>(row.packets) - row.written);
    size_t kept_drops = 0;
    drops.read(0, [&](const KeptDrop& kept) {
      const Bytes& packet = packets[row.written + kept_drops++];
      CHECK(kept.reason == k_rx_drop_tun && kept.packets == 1 && kept.length == packet.size());
      CHECK(kept.size == std::min(packet.size(), KeptDrop::kMaxBytes));
      CHECK(std::equal(packet.begin(), packet.begin() + static_cast<ptrdiff_t>(kept.size), kept.bytes.begin()));
    });
    CHECK(kept_drops == packets.size() - row.written);
    if (row.rewritten && row.written) {
      CHECK(kernel.taken.size() == packets.size());
      for (size_t i = 0; i < kernel.taken.size(); i++) {
        CHECK(std::equal(packets[i].begin(), packets[i].end(), kernel.taken[i].bytes.begin() + sizeof(VirtioHeader),
                         kernel.taken[i].bytes.end()));
      }
    }
  }
  context = "a deleted TUN";
  kernel = {};
  kernel.refusal = [](const Sent&) { return EBADFD; };
  Features features(kAllFeatures);
  std::vector<uint64_t> counters(kCounterCount);
  Drops drops(CounterRow(counters.data()), [] { return clock_ms * 1'000; });
  TunWriter writer(-1, &features, CounterRow(counters.data()), &drops);
  Coalescer coalescer;
  std::vector<Bytes> packets;
  Fields fields;
  for (int i = 0; i < 5; i++, fields.sequence += i == 3 ? 7 : 100) packets.push_back(build(fields));
  for (Bytes& packet : packets) coalescer.add(packet.data(), read(packet), writer.limits());
  CHECK(coalescer.writes() == 2);
  const Failure failure = writer.write(coalescer);
  CHECK(failure && failure->number == EBADFD);
  CHECK(counters[k_rx_drop_tun] == 5 && counters[k_rx_packets] == 0);  // counted for each packet of each write
  context.clear();
}

/// Puts a message into the buffers of recvmmsg, as the kernel does.
void deliver(mmsghdr& message, size_t size, int joined_bytes, int flags = 0) {
  for (size_t i = 0; i < size; i++) static_cast<uint8_t*>(message.msg_hdr.msg_iov->iov_base)[i] = 7;
  message.msg_len = static_cast<unsigned>(size);
  message.msg_hdr.msg_flags = flags;
  cmsghdr* control = CMSG_FIRSTHDR(&message.msg_hdr);
  if (joined_bytes == 0) {
    message.msg_hdr.msg_controllen = 0;
    return;
  }
  message.msg_hdr.msg_controllen = CMSG_SPACE(sizeof joined_bytes);
  control->cmsg_level = IPPROTO_UDP;
  control->cmsg_type = UDP_GRO;
  control->cmsg_len = CMSG_LEN(sizeof joined_bytes);
  std::memcpy(CMSG_DATA(control), &joined_bytes, sizeof joined_bytes);
}

void test_receive() {
  std::vector<uint64_t> counters(kCounterCount);
  Drops drops(CounterRow(counters.data()), [] { return clock_ms * 1'000; });
  Receiver receiver(-1, 8, CounterRow(counters.data()), &drops);
  Failure failure;
  bool interrupted = false;
  kernel = {};
  kernel.receive = [&](mmsghdr* messages, unsigned count) {
    CHECK(count == Receiver::kMaxMessages);
    if (!interrupted) {
      interrupted = true;
      errno = EINTR;
      return -1;
    }
    for (unsigned i = 0; i < 5; i++) {
      CHECK(messages[i].msg_hdr.msg_namelen == SocketAddress::kRoom);
      *static_cast<sockaddr_in*>(messages[i].msg_hdr.msg_name) = {AF_INET, 0, {htonl(kHere + i)}, {}};
    }
    deliver(messages[0], 100, 0);
    deliver(messages[1], 65536, 0, MSG_TRUNC);
    deliver(messages[2], 250, 100);
    deliver(messages[3], 0, 0);
    deliver(messages[4], 60, 1400);
    return 5;
  };
  CHECK(receiver.receive(failure) == 5);
  CHECK(!failure);
  std::vector<std::vector<size_t>> taken;
  std::vector<uint32_t> senders;
  for (Message& message : receiver.messages()) {
    taken.emplace_back();
    senders.push_back(to_be32(message.sender->address().ipv4()) - kHere);
    do taken.back().push_back(message.take().size());
    while (message.size > 0);
  }
  CHECK((taken == std::vector<std::vector<size_t>>{{100}, {100, 100, 50}, {0}, {60}}));
  CHECK((senders == std::vector<uint32_t>{0, 2, 3, 4}));
  CHECK(counters[k_rx_messages] == 5);
  CHECK(counters[k_rx_batches] == 1);
  CHECK(counters[k_rx_drop_truncated] == 1);
  size_t truncated = 0;
  drops.read(0, [&](const KeptDrop& kept) {
    truncated++;
    CHECK(kept.reason == k_rx_drop_truncated && kept.length == 65536 && kept.size == KeptDrop::kMaxBytes);
    CHECK(kept.bytes[0] == 7 && kept.peer == ipv4(kHere + 1) && kept.encap_bytes == 8);
  });
  CHECK(truncated == 1);

  // ECONNREFUSED reports an earlier send, so receive() must not fail. An invalid socket must make it fail.
  for (const auto& [error, fails] : {std::pair{EAGAIN, false}, {ECONNREFUSED, false}, {EBADF, true}}) {
    kernel.receive = [error](mmsghdr*, unsigned) { return errno = error, -1; };
    failure = {};
    CHECK(receiver.receive(failure) == 0);
    CHECK(receiver.messages().empty());
    CHECK(failure.has_value() == fails);
  }
  CHECK(counters[k_rx_batches] == 1);
}

size_t size_of(const Fd& fd) {
  struct stat about {};
  CHECK(fstat(fd.get(), &about) == 0);
  return static_cast<size_t>(about.st_size);
}

/// Exactly one process may get the body of the hand-over state, in any order of events, even if a process dies. A memfd
/// with another content must yield nothing.
void test_handover_state() {
  const Bytes head{1, 2, 3}, body{4, 5, 6, 7};
  {
    const Fd fd = write_handover_state(head, body);
    CHECK(fd && (fcntl(fd.get(), F_GETFD) & FD_CLOEXEC));
    for (int again = 0; again < 2; again++) CHECK(read_handover_head(fd.get()) == head);
    const auto taken = take_handover_state(fd.get());
    CHECK(taken && Bytes(taken->begin(), taken->end()) == body);
    CHECK(size_of(fd) == 0 && !read_handover_head(fd.get()) && !take_handover_state(fd.get()));
  }
  {
    const Fd fd = write_handover_state({}, {});
    CHECK(read_handover_head(fd.get())->empty() && take_handover_state(fd.get())->empty() &&
          !take_handover_state(fd.get()));
  }
  {  // If a process dies immediately after it sealed the memfd, no other process may get the body.
    const Fd fd = write_handover_state(head, body);
    const pid_t child = fork();
    if (child == 0) _exit(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL) == 0 ? 0 : 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!take_handover_state(fd.get()));
  }
  // Two processes try at the same time, with separate open files or with a shared one.
  for (int round = 0; round < 200; round++) {
    const Fd fd = write_handover_state(head, body);
    const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
    const Fd other(round % 2 == 0 ? dup(fd.get()) : open(path.c_str(), O_RDWR | O_CLOEXEC));
    std::atomic<int> at_start{0}, got{0};
    const auto claim = [&](int by) {
      at_start++;
      while (at_start < 2) std::this_thread::yield();
      const auto taken = take_handover_state(by);
      if (taken && Bytes(taken->begin(), taken->end()) == body) got++;
      CHECK(!taken || taken->size() == body.size());
    };
    std::thread one(claim, fd.get()), two(claim, other.get());
    one.join();
    two.join();
    CHECK(got == 1);
  }
  const auto is_none = [](const Fd& fd) { return !read_handover_head(fd.get()) && !take_handover_state(fd.get()); };
  const auto holding = [](const Bytes& bytes, unsigned flags = MFD_ALLOW_SEALING) {
    Fd fd(memfd_create("junk", MFD_CLOEXEC | flags));
    CHECK(write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    return fd;
  };
  Bytes whole(size_of(write_handover_state(head, body)));
  CHECK(pread(write_handover_state(head, body).get(), whole.data(), whole.size(), 0) ==
        static_cast<ssize_t>(whole.size()));
  CHECK(take_handover_state(holding(whole).get()).has_value());
  // the memfd was made without MFD_ALLOW_SEALING, so it cannot be sealed
  CHECK(!take_handover_state(holding(whole, 0).get()));
  for (size_t size = 0; size < 16; size++) CHECK(is_none(holding(Bytes(whole.begin(), whole.begin() + size))));
  for (const uint64_t bytes : {uint64_t{whole.size() - 15}, uint64_t{1} << 32, ~uint64_t{0}}) {
    Bytes wrong = whole;
    store(&wrong[8], bytes);
    CHECK(is_none(holding(wrong)));
  }
  Bytes unmarked = whole;
  unmarked[0] ^= 1;
  CHECK(is_none(holding(unmarked)));
  const Fd huge = holding(whole);
  CHECK(ftruncate(huge.get(), off_t{1} << 40) == 0 && is_none(huge));
  // a size whose lower 32 bits are those of a valid memfd
  CHECK(ftruncate(huge.get(), (off_t{1} << 32) + static_cast<off_t>(whole.size())) == 0 && is_none(huge));
  int ends[2];
  CHECK(pipe(ends) == 0);
  CHECK(is_none(Fd(ends[0])) && is_none(Fd(ends[1])) && is_none(Fd(open("/dev/null", O_RDWR))) && is_none(Fd()));
}

Bytes netlink_message(uint16_t type, uint16_t flags, uint32_t sequence, const Bytes& body) {
  const nlmsghdr header = {static_cast<uint32_t>(sizeof(nlmsghdr) + body.size()), type, flags, sequence, 0};
  Bytes message(sizeof header);
  std::memcpy(message.data(), &header, sizeof header);
  message.insert(message.end(), body.begin(), body.end());
  message.resize(NLMSG_ALIGN(message.size()));
  return message;
}

/// Returns the body of a refusal: the error number, the refused request, and the kernel's explanation.
Bytes netlink_refusal(int error, const Bytes& request, std::string_view explanation) {
  Bytes body(sizeof(int32_t));
  store<int32_t>(body.data(), -error);
  body.insert(body.end(), request.begin(), request.end());
  const nlattr attribute = {static_cast<uint16_t>(sizeof(nlattr) + explanation.size()), NLMSGERR_ATTR_MSG};
  body.resize(body.size() + sizeof attribute);
  std::memcpy(body.data() + body.size() - sizeof attribute, &attribute, sizeof attribute);
  body.insert(body.end(), explanation.begin(), explanation.end());
  return body;
}

void test_netlink_answers() {
  constexpr uint32_t kFirst = ~uint32_t{0};  // the sequence numbers wrap around
  std::vector<NetlinkAnswer> answers(4);
  NetlinkAnswers collected(kFirst, answers);
  const Bytes request = netlink_message(RTM_NEWROUTE, NLM_F_REQUEST, kFirst, Bytes(12));
  const Bytes header(request.begin(), request.begin() + sizeof(nlmsghdr));
  const std::string_view words("no device\0", 10);
  const auto take = [&](const Bytes& bytes) { collected.take(bytes); };
  take(netlink_message(NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, kFirst, netlink_refusal(ENODEV, header, words)));
  take(netlink_message(NLMSG_ERROR, NLM_F_ACK_TLVS, 0, netlink_refusal(EEXIST, request, words)));
  take(netlink_message(NLMSG_ERROR, NLM_F_CAPPED, 1, netlink_refusal(0, header, {})));
  CHECK(answers[0].error == ENODEV && answers[0].explanation == "no device");
  CHECK(answers[1].error == EEXIST && answers[1].explanation == "no device");
  CHECK(answers[2].is_complete && answers[2].error == 0 && answers[2].messages.empty());
  // messages with other sequence numbers, a second answer, and a length beyond the end
  take(netlink_message(NLMSG_ERROR, 0, 3, netlink_refusal(EINVAL, header, {})));
  take(netlink_message(NLMSG_ERROR, 0, 1, netlink_refusal(EINVAL, header, {})));
  Bytes truncated = netlink_message(RTM_NEWLINK, NLM_F_MULTI, 2, Bytes(16));
  truncated.resize(30);
  take(truncated);
  CHECK(answers[2].error == 0 && answers[3].messages.empty() && !collected.is_complete());
  // a positive number is not an error of the kernel
  std::vector<NetlinkAnswer> accepted(1);
  NetlinkAnswers(1, accepted)
      .take(netlink_message(NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, 1, netlink_refusal(-5, header, words)));
  CHECK(accepted[0].is_complete && accepted[0].error == 0 && accepted[0].explanation.empty());
  take(netlink_message(RTM_NEWLINK, NLM_F_MULTI, 2, Bytes(17)));
  take(netlink_message(RTM_NEWLINK, NLM_F_MULTI | NLM_F_DUMP_INTR, 2, Bytes(16)));
  take(netlink_message(NLMSG_DONE, NLM_F_MULTI, 2, Bytes(4)));
  CHECK(collected.is_complete() && answers[3].is_interrupted && answers[3].messages.size() == 36 + 32);
}

/// The kernel of this machine: a listing between two other requests, one of which it refuses.
void test_netlink_socket() {
  const auto request_for = [](uint16_t flags, int index) {
    ifinfomsg about = {};
    about.ifi_index = index;
    Bytes body(sizeof about);
    std::memcpy(body.data(), &about, sizeof about);
    return netlink_message(RTM_GETLINK, NLM_F_REQUEST | flags, 0, body);
  };
  Bytes requests;
  for (const Bytes& each : {request_for(NLM_F_ACK, 1), request_for(NLM_F_DUMP, 0), request_for(NLM_F_ACK, INT32_MAX)})
    requests.insert(requests.end(), each.begin(), each.end());
  NetlinkSocket socket(NETLINK_ROUTE), other(NETLINK_ROUTE);
  CHECK(socket.port() == 0);
  std::vector<NetlinkAnswer> answers;
  for (int round = 0; round < 2; round++) {
    CHECK(!socket.exchange(requests, answers) && answers.size() == 3);
    CHECK(answers[0].error == 0 && !answers[0].messages.empty());
    CHECK(answers[1].error == 0 && answers[1].messages.size() >= answers[0].messages.size());
    CHECK(answers[2].error == ENODEV && answers[2].messages.empty());
  }
  CHECK(socket.exchange(std::span(requests).first(40), answers)->number == EINVAL);
  CHECK(!other.exchange(requests, answers));
  CHECK(socket.port() != 0 && other.port() != 0 && socket.port() != other.port());
  NetlinkSocket of_no_protocol(MAX_LINKS - 1);
  CHECK(!of_no_protocol.exchange(requests, answers) && answers.size() == 3);
  for (const NetlinkAnswer& each : answers) CHECK(each.error == EPROTONOSUPPORT);
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  test_send_refusals();
  test_full_socket();
  test_send_partly();
  test_runs();
  test_longest();
  test_ecn();
  test_path_explains();
  test_full_socket_of_questions();
  test_uncut_refused();
  test_write_refusals();
  test_receive();
  test_handover_state();
  test_netlink_answers();
  test_netlink_socket();
  return verdict(seed);
}
