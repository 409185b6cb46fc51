// echo_test.cc - sends ICMP and ICMPv6 echo requests with ping sockets and raw sockets. The kernel answers them on the
// loopback device of a network namespace that the program creates. echo.test.ts builds and runs it.
#include "../../native/io/echo.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cstring>
#include <vector>

#include "../../native/core/packet.h"
#include "checks.h"
#include "packets.h"

namespace {

constexpr int kPatienceMs = 60'000;
constexpr int kMtu = 1500;

struct Family {
  const char* name;
  int number, protocol;
  Address loopback, foreign;
  size_t ip_bytes;
  uint8_t request, answer;
  const char* bind_call;
};

Address address_of(const char* text) {
  in6_addr v6;
  CHECK(inet_pton(AF_INET6, text, &v6) == 1);
  return Address::v6(v6.s6_addr);
}

const std::array<Family, 2> families{{
    {"IPv4", AF_INET, IPPROTO_ICMP, Address::v4(htonl(0x7f000001)), Address::v4(htonl(0xc0000201)), 20, 8, 0,
     "bind ICMP"},
    {"IPv6", AF_INET6, IPPROTO_ICMPV6, address_of("::1"), address_of("2001:db8::1"), 40, 128, 129, "bind ICMPv6"},
}};

/// Enters a new network namespace with only a loopback device, whose MTU is set to 1500.
bool enter_namespace() {
  if (unshare(CLONE_NEWNET) < 0) return false;
  const Fd any(socket(AF_INET, SOCK_DGRAM, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_mtu = kMtu;
  if (ioctl(any.get(), SIOCSIFMTU, &request) < 0) return false;
  request.ifr_flags = IFF_UP;
  return ioctl(any.get(), SIOCSIFFLAGS, &request) == 0;
}

/// Sets the range of groups that may use ping sockets (net.ipv4.ping_group_range); "1 0" allows none.
bool allow_groups(const char* range) {
  const Fd file(open("/proc/sys/net/ipv4/ping_group_range", O_WRONLY));
  return write(file.get(), range, std::strlen(range)) > 0;
}

EchoSocket borrowed(const Echo& echo) { return {echo.fd.get(), echo.raw, echo.mark}; }

bool is_readable(int fd) {
  pollfd wanted{fd, POLLIN, 0};
  return poll(&wanted, 1, kPatienceMs) == 1;
}

/// Waits for one message and returns it as a reply. Fails if it is a request, because a raw socket also receives
/// requests.
EchoAnswer take_one(const Echo& echo) {
  std::array<EchoAnswer, 1> room{};
  CHECK(is_readable(echo.fd.get()));
  CHECK(take_echoes(borrowed(echo), room).size() == 1);
  return room[0];
}

/// Receives echo requests to this host with a raw socket. The messages include the IP header for IPv4 only.
struct Listener {
  Fd fd;
  explicit Listener(const Family& family) : fd(socket(family.number, SOCK_RAW | SOCK_NONBLOCK, family.protocol)) {}
  Bytes next_request(const Family& family) {
    while (is_readable(fd.get())) {
      Bytes bytes(4096);
      const ssize_t got = recv(fd.get(), bytes.data(), bytes.size(), 0);
      bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
      const size_t at = family.number == AF_INET ? 20 : 0;
      if (bytes.size() > at && bytes[at] == family.request) return bytes;
    }
    return {};
  }
};

void test_answers(const Family& family, bool raw) {
  Echo echo;
  CHECK(!open_echo(family.loopback, echo));
  CHECK(echo.raw == raw);
  std::array<EchoAnswer, 8> none;
  CHECK(take_echoes(borrowed(echo), none).empty());
  for (const size_t bytes : {size_t{0}, size_t{1200}, size_t{kMtu}}) {
    const auto sequence = static_cast<uint16_t>(0xfff0 + bytes % 7);
    Listener listener(family);
    CHECK(!send_echo(borrowed(echo), family.loopback, sequence, bytes));
    const EchoAnswer answer = take_one(echo);
    CHECK(answer.from == family.loopback && answer.sequence == sequence);
    CHECK(answer.microseconds >= 0 && answer.microseconds < 1'000 * kPatienceMs);
    // The request must be as long as requested, with DF for IPv4.
    const Bytes request = listener.next_request(family);
    const size_t header = family.number == AF_INET ? 0 : family.ip_bytes;
    CHECK(request.size() + header == (bytes == 0 ? family.ip_bytes + 24 : bytes));
    if (family.number == AF_INET) {
      CHECK((request[6] & 0x40) != 0);
      CHECK(reference_fold(reference_sum(request.data() + 20, request.size() - 20)) == 0xffff);
    }
  }
  const Failure too_long = send_echo(borrowed(echo), family.loopback, 1, kMtu + 1);
  CHECK(too_long && too_long->number == EMSGSIZE);
}

/// take_echoes() returns the replies for which there was no space at the next call.
void test_room(const Family& family) {
  Echo echo;
  CHECK(!open_echo(family.loopback, echo));
  for (uint16_t sequence = 0; sequence < 5; sequence++) {
    CHECK(!send_echo(borrowed(echo), family.loopback, sequence, 0));
  }
  std::array<EchoAnswer, 3> room;
  std::vector<uint16_t> sequences;
  while (sequences.size() < 5 && is_readable(echo.fd.get())) {
    for (const EchoAnswer& answer : take_echoes(borrowed(echo), room)) sequences.push_back(answer.sequence);
  }
  CHECK((sequences == std::vector<uint16_t>{0, 1, 2, 3, 4}));
}

/// A raw socket receives replies to other requests, and other messages. take_echoes() must ignore them.
void test_strangers(const Family& family) {
  Echo echo, other;
  CHECK(!open_echo(family.loopback, echo) && !open_echo(family.loopback, other));
  CHECK(echo.raw);
  other.mark = echo.mark + 1;
  CHECK(!send_echo(borrowed(other), family.loopback, 9, 0));
  take_one(other);
  const Fd forger(socket(family.number, SOCK_RAW, family.protocol));
  const SocketAddress to(family.loopback, 0);
  for (const size_t size : {size_t{8}, size_t{23}}) {
    Bytes bytes(size);
    bytes[0] = family.answer;
    if (family.number == AF_INET) store(&bytes[2], htons(static_cast<uint16_t>(~family.answer << 8)));
    CHECK(sendto(forger.get(), bytes.data(), bytes.size(), 0, to.raw(), to.size()) > 0);
  }
  std::array<EchoAnswer, 8> room;
  CHECK(is_readable(echo.fd.get()));
  CHECK(take_echoes(borrowed(echo), room).empty());
  CHECK(!send_echo(borrowed(echo), family.loopback, 10, 0));
  CHECK(take_one(echo).sequence == 10);
}

void test_refusals(const Family& family) {
  Echo echo;
  const Failure foreign = open_echo(family.foreign, echo);
  CHECK(foreign && foreign->number == EADDRNOTAVAIL && std::strcmp(foreign->call, family.bind_call) == 0);
  // Without a permitted group and without CAP_NET_RAW, open_echo() must fail with an error.
  const pid_t child = fork();
  if (child == 0) {
    const bool dropped = setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0;
    const Failure failure = open_echo(family.loopback, echo);
    _exit(dropped && failure && failure->number == EPERM ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  CHECK(enter_namespace());
  for (const Family& family : families) {
    for (const bool raw : {false, true}) {
      context = std::string(family.name) + (raw ? ", raw" : ", the kernel's own");
      CHECK(allow_groups(raw ? "1 0" : "0 2147483647"));
      test_answers(family, raw);
      test_room(family);
    }
    test_strangers(family);
    test_refusals(family);
  }
  return verdict(seed);
}
