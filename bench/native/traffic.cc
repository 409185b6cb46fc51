// traffic.cc - the two ends of measurements that iperf3 cannot make: UDP at an even rate, and requests and answers of
// one byte.
// - `traffic serve` serves all other modes, and prints `ready`.
// - `traffic udp ADDRESS SECONDS BYTES RATE` sends datagrams with BYTES bytes of payload to a receiver that each
//   datagram may wake. It sends RATE datagrams a second; RATE 0 means as fast as it can.
// - `traffic udp-polled ADDRESS SECONDS BYTES RATE` sends as `udp` does, to a receiver that checks its socket at
//   intervals.
// - `traffic rr ADDRESS SECONDS PAUSE_US` opens one connection, and repeats: a byte, its answer, a pause.
// - `traffic crr ADDRESS SECONDS` opens a new connection for each byte and its answer.
//
// All modes except `serve` print one line of JSON. A server serves one client at a time. The first byte of a connection
// names the mode of the connection, so that `crr` needs no further messages.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "../../native/core/address.h"
#include "../../native/io/system.h"

namespace {

using weft::Fd;

constexpr uint16_t kPort = 5202;
constexpr char kOnce = 'c';  // the first byte of a connection: what the client measures
constexpr char kEcho = 'e';
constexpr char kSink = 'u';
constexpr char kPolledSink = 'p';
constexpr uint64_t kSecond = 1'000'000'000;
/// The maximum number of datagrams in one sendmmsg or recvmmsg call.
constexpr size_t kBatch = 64;
/// The interval, in ns, at which the sender sends all datagrams that are due. The interval is short enough not to fill
/// a queue, and long enough to cost little CPU time.
constexpr uint64_t kTickNs = 50'000;
/// If the kernel schedules the sender late, by at most this time in ns, the sender sends all datagrams that were due.
/// After a longer delay it sends only the datagrams that were due in kCatchUpNs, because more datagrams would form a
/// burst. The sender reports how many datagrams it sent, so a rate that is too low is visible.
constexpr uint64_t kCatchUpNs = 500'000;
/// The interval, in ns, at which a receiver in the mode udp-polled reads its socket. No datagram wakes the receiver, so
/// this receiver uses almost no CPU time.
constexpr uint64_t kSinkTickNs = 500'000;
/// How long, in ns, a receiver waits for late datagrams after the sender has finished.
constexpr uint64_t kPatienceNs = 50'000'000;
constexpr int kSinkBufferBytes = 128 << 20;
constexpr int kSendBufferBytes = 8 << 20;
constexpr size_t kMaxPayload = 65'507;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "traffic: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * kSecond + static_cast<uint64_t>(time.tv_nsec);
}

void sleep_until(uint64_t ns) {
  const timespec time{static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
}

/// Returns the CPU time of this process in ns, including the kernel's work on its behalf.
uint64_t cpu_ns() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * kSecond + static_cast<uint64_t>(time.tv_nsec);
}

void set(int fd, int level, int option, int value, const char* what) {
  if (setsockopt(fd, level, option, &value, sizeof value) != 0) fail(what);
}

/// Sets the size of a socket buffer with the option `forced` or, without CAP_NET_ADMIN, with the option `plain`, which
/// net.core.rmem_max or net.core.wmem_max limits.
void set_buffer(int fd, int forced, int plain, int bytes) {
  if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0) set(fd, SOL_SOCKET, plain, bytes, "buffer");
}

Fd open_socket(int type, int family) {
  Fd fd(socket(family, type | SOCK_CLOEXEC, 0));
  if (fd && type == SOCK_STREAM) set(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  return fd;
}

Fd connect_to(int type, const weft::Address& address, uint16_t port) {
  const weft::SocketAddress peer(address, htons(port));
  Fd fd = open_socket(type, peer.family());
  if (!fd) fail("socket");
  if (connect(fd.get(), peer.raw(), peer.size()) != 0) fail("connect");
  return fd;
}

/// Binds a socket to all IPv4 and IPv6 addresses, or to all IPv4 addresses if the host has no IPv6.
Fd bind_any(int type, uint16_t port) {
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  both.sin6_port = htons(port);
  sockaddr_in ipv4{};
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(port);
  Fd fd = open_socket(type, AF_INET6);
  const bool has_both = static_cast<bool>(fd);
  if (!has_both) fd = open_socket(type, AF_INET);
  if (!fd) fail("socket");
  set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (has_both) set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY");
  const auto* local = has_both ? reinterpret_cast<const sockaddr*>(&both) : reinterpret_cast<const sockaddr*>(&ipv4);
  if (bind(fd.get(), local, has_both ? sizeof both : sizeof ipv4) != 0) fail("bind");
  return fd;
}

/// Reads exactly `size` bytes. Returns false if the stream ends before that.
bool read_all(int fd, void* bytes, size_t size) {
  const ssize_t got = recv(fd, bytes, size, MSG_WAITALL);
  if (got < 0) fail("recv");
  return static_cast<size_t>(got) == size;
}

void write_all(int fd, const void* bytes, size_t size) {
  if (send(fd, bytes, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) fail("send");
}

/// The receiver's counts, which the server sends to the client. Server and client are one program on one machine, so
/// the struct is sent in its memory layout.
struct Received {
  uint64_t datagrams = 0;
  uint64_t reordered = 0;  // datagrams that arrived after a datagram that was sent later
  // The number of datagrams that the receiver's full socket buffer dropped, although the measured path carried them.
  uint64_t sink_drops = 0;
  uint64_t cpu_ns = 0;
};

/// The sequence number of a datagram, with which the datagram's payload begins. The receiver reads only this number.
using Sequence = uint64_t;

class Sink {
 public:
  Sink() : fd_(bind_any(SOCK_DGRAM, 0)) {
    set_buffer(fd_.get(), SO_RCVBUFFORCE, SO_RCVBUF, kSinkBufferBytes);
    for (size_t i = 0; i < kBatch; i++) {
      iovecs_[i] = {&sequences_[i], sizeof(Sequence)};
      messages_[i].msg_hdr.msg_iov = &iovecs_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }

  int fd() const { return fd_.get(); }

  uint16_t port() const {
    weft::SocketAddress local;
    socklen_t size = weft::SocketAddress::kRoom;
    if (getsockname(fd_.get(), local.raw(), &size) != 0) fail("getsockname");
    return ntohs(local.port());
  }

  void drain() {
    for (;;) {
      const int count = recvmmsg(fd_.get(), messages_, kBatch, MSG_DONTWAIT, nullptr);
      if (count <= 0) return;
      received_.datagrams += static_cast<uint64_t>(count);
      for (int i = 0; i < count; i++) {
        if (sequences_[i] < next_) received_.reordered++;
        next_ = std::max(next_, sequences_[i] + 1);
      }
    }
  }

  Received result() const {
    Received result = received_;
    uint32_t memory[9] = {};  // SO_MEMINFO, Linux 4.12: the ninth value is the number of drops
    socklen_t size = sizeof memory;
    if (getsockopt(fd_.get(), SOL_SOCKET, SO_MEMINFO, memory, &size) == 0) result.sink_drops = memory[8];
    return result;
  }

 private:
  Fd fd_;
  Received received_;
  Sequence next_ = 0;
  Sequence sequences_[kBatch] = {};
  iovec iovecs_[kBatch] = {};
  mmsghdr messages_[kBatch] = {};
};

void serve_sink(int control, bool polled) {
  const uint64_t cpu = cpu_ns();
  Sink sink;
  const uint16_t port = sink.port();
  write_all(control, &port, sizeof port);
  uint64_t sent = 0;
  for (;;) {
    sink.drain();
    const ssize_t got = recv(control, &sent, sizeof sent, MSG_DONTWAIT);
    if (got == static_cast<ssize_t>(sizeof sent)) break;
    if (got >= 0 || errno != EAGAIN) return;  // the client has closed the connection
    if (polled) {
      sleep_until(now_ns() + kSinkTickNs);
    } else {
      pollfd either[] = {{sink.fd(), POLLIN, 0}, {control, POLLIN, 0}};
      poll(either, 2, -1);
    }
  }
  uint64_t last = now_ns();
  for (uint64_t before = 0; sink.result().datagrams < sent && now_ns() < last + kPatienceNs;) {
    sink.drain();
    if (sink.result().datagrams != before) last = now_ns();
    before = sink.result().datagrams;
    sleep_until(now_ns() + kSinkTickNs);
  }
  Received received = sink.result();
  received.cpu_ns = cpu_ns() - cpu;
  write_all(control, &received, sizeof received);
}

int serve() {
  const Fd listener = bind_any(SOCK_STREAM, kPort);
  if (listen(listener.get(), 128) != 0) fail("listen");
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    const Fd client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char kind;
    if (!client || recv(client.get(), &kind, 1, 0) != 1) continue;
    if (kind == kSink || kind == kPolledSink) {
      serve_sink(client.get(), kind == kPolledSink);
      continue;
    }
    send(client.get(), &kind, 1, MSG_NOSIGNAL);
    if (kind != kEcho) continue;
    set(client.get(), IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
    while (recv(client.get(), &kind, 1, 0) == 1 && send(client.get(), &kind, 1, MSG_NOSIGNAL) == 1) {
    }
  }
}

class Sender {
 public:
  Sender(const weft::Address& address, uint16_t port, size_t bytes)
      : fd_(connect_to(SOCK_DGRAM, address, port)), bytes_(bytes * kBatch) {
    set_buffer(fd_.get(), SO_SNDBUFFORCE, SO_SNDBUF, kSendBufferBytes);
    for (size_t i = 0; i < kBatch; i++) {
      iovecs_[i] = {&bytes_[i * bytes], bytes};
      messages_[i].msg_hdr.msg_iov = &iovecs_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }

  /// Sends `count` datagrams and returns how many of them the kernel accepted.
  size_t send(size_t count) {
    count = std::min(count, kBatch);
    for (size_t i = 0; i < count; i++) {
      const Sequence sequence = sent_ + i;
      std::memcpy(iovecs_[i].iov_base, &sequence, sizeof sequence);
    }
    const int taken = sendmmsg(fd_.get(), messages_, static_cast<unsigned>(count), 0);
    // If sendmmsg fails with ENOBUFS or EAGAIN (a full queue), the datagram counts as lost, as for a program that
    // ignores these errors.
    if (taken < 0 && errno != ENOBUFS && errno != EAGAIN) fail("sendmmsg");
    sent_ += taken < 0 ? 1 : static_cast<uint64_t>(taken);
    return taken < 0 ? 1 : static_cast<size_t>(taken);
  }

  uint64_t sent() const { return sent_; }

 private:
  Fd fd_;
  std::vector<uint8_t> bytes_;
  uint64_t sent_ = 0;
  iovec iovecs_[kBatch] = {};
  mmsghdr messages_[kBatch] = {};
};

int send_udp(char sink, const weft::Address& address, uint64_t duration, size_t bytes, double rate) {
  const Fd control = connect_to(SOCK_STREAM, address, kPort);
  write_all(control.get(), &sink, 1);
  uint16_t port;
  if (!read_all(control.get(), &port, sizeof port)) fail("the server ended");
  Sender sender(address, port, bytes);
  prctl(PR_SET_TIMERSLACK, 1);  // in ns; the default of 50 us would double the interval kTickNs

  const uint64_t cpu = cpu_ns();
  const uint64_t start = now_ns();
  uint64_t now = start;
  uint64_t last = start;
  double due = 0;
  while (now < start + duration) {
    if (rate == 0) {
      sender.send(kBatch);
    } else {
      due += static_cast<double>(std::min(now - last, kCatchUpNs)) * rate / kSecond;
      last = now;
      while (due >= 1) due -= static_cast<double>(sender.send(static_cast<size_t>(due)));
      sleep_until(now + kTickNs);
    }
    now = now_ns();
  }
  const double seconds = static_cast<double>(now - start) / kSecond;
  const double sender_cpu = static_cast<double>(cpu_ns() - cpu) / kSecond;
  const uint64_t sent = sender.sent();
  write_all(control.get(), &sent, sizeof sent);
  Received received;
  if (!read_all(control.get(), &received, sizeof received)) fail("the server ended");
  std::printf("{\"seconds\":%.6f,\"sent\":%" PRIu64 ",\"received\":%" PRIu64 ",\"reordered\":%" PRIu64
              ",\"sinkDrops\":%" PRIu64 ",\"senderCpu\":%.6f,\"sinkCpu\":%.6f}\n",
              seconds, sent, received.datagrams, received.reordered, received.sink_drops, sender_cpu,
              static_cast<double>(received.cpu_ns) / kSecond);
  return 0;
}

/// Prints the number of requests per second, and percentiles of their duration.
int print_times(std::vector<uint64_t>& ns, uint64_t duration) {
  if (ns.empty()) fail("no answer");
  std::sort(ns.begin(), ns.end());
  const auto us = [&](double share) {
    return static_cast<double>(ns[static_cast<size_t>(share * static_cast<double>(ns.size() - 1))]) / 1e3;
  };
  std::printf("{\"perSecond\":%.1f,\"p50\":%.2f,\"p99\":%.2f}\n",
              static_cast<double>(ns.size()) * kSecond / static_cast<double>(duration), us(0.5), us(0.99));
  return 0;
}

int request_response(const weft::Address& address, uint64_t duration, uint64_t pause) {
  const Fd fd = connect_to(SOCK_STREAM, address, kPort);
  prctl(PR_SET_TIMERSLACK, 1);
  std::vector<uint64_t> times;
  times.reserve(1 << 20);
  const uint64_t start = now_ns();
  uint64_t now = start;
  while (now < start + duration) {
    char byte = kEcho;
    const uint64_t asked = now;
    write_all(fd.get(), &byte, 1);
    if (!read_all(fd.get(), &byte, 1)) fail("the server ended");
    now = now_ns();
    times.push_back(now - asked);
    if (pause == 0) continue;
    sleep_until(now + pause);
    now = now_ns();
  }
  return print_times(times, now - start);
}

int connect_request_response(const weft::Address& address, uint64_t duration) {
  std::vector<uint64_t> times;
  times.reserve(1 << 20);
  const uint64_t start = now_ns();
  uint64_t now = start;
  while (now < start + duration) {
    const uint64_t asked = now;
    const Fd fd = connect_to(SOCK_STREAM, address, kPort);
    // The server closes the connection first, and this client then resets the connection. Otherwise tens of thousands
    // of connections would stay in TIME-WAIT.
    const linger reset{1, 0};
    if (setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset) != 0) fail("SO_LINGER");
    char byte = kOnce;
    write_all(fd.get(), &byte, 1);
    if (!read_all(fd.get(), &byte, 1) || read_all(fd.get(), &byte, 1)) fail("the server broke the protocol");
    now = now_ns();
    times.push_back(now - asked);
  }
  return print_times(times, now - start);
}

}  // namespace

int main(int count, char** arguments) {
  const auto is = [&](const char* mode, int expected) {
    return count == expected && std::strcmp(arguments[1], mode) == 0;
  };
  if (is("serve", 2)) return serve();
  weft::Address address;
  uint64_t duration = 0;
  if (count > 3) {
    uint8_t bytes[16];
    if (inet_pton(AF_INET, arguments[2], bytes) == 1) {
      address = weft::Address::v4(weft::load<uint32_t>(bytes));
    } else if (inet_pton(AF_INET6, arguments[2], bytes) == 1) {
      address = weft::Address::v6(bytes);
    }
    if (address) duration = static_cast<uint64_t>(std::atof(arguments[3]) * kSecond);
  }
  if (duration > 0) {
    if (is("crr", 4)) return connect_request_response(address, duration);
    if (is("rr", 5)) return request_response(address, duration, static_cast<uint64_t>(std::atol(arguments[4])) * 1000);
    if (is("udp", 6) || is("udp-polled", 6)) {
      const char sink = is("udp", 6) ? kSink : kPolledSink;
      const auto bytes = static_cast<size_t>(std::atol(arguments[4]));
      const double rate = std::atof(arguments[5]);
      if (bytes >= sizeof(Sequence) && bytes <= kMaxPayload && rate >= 0) {
        return send_udp(sink, address, duration, bytes, rate);
      }
    }
  }
  std::fputs(
      "usage: traffic serve | udp ADDRESS SECONDS BYTES RATE | udp-polled ADDRESS SECONDS BYTES RATE | rr ADDRESS "
      "SECONDS PAUSE_US | crr ADDRESS SECONDS\n",
      stderr);
  return 2;
}
