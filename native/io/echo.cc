// echo.cc - the two kinds of socket, and what a request carries: when it was sent, by the clock that the kernel stamps
// answers with.
#include "echo.h"

#include <errno.h>
#include <linux/icmp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "../core/checksum.h"
#include "../core/packet.h"

namespace weft {

namespace {

struct Request {
  icmphdr header;
  /// Nanoseconds of CLOCK_REALTIME.
  int64_t sent;
  uint32_t mark;
  uint32_t unused;
};
static_assert(sizeof(Request) == 24);

int64_t nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

int64_t realtime() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

/// When the kernel received it.
int64_t arrival_of(msghdr& message) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec time;
    std::memcpy(&time, CMSG_DATA(control), sizeof time);
    return nanoseconds(time);
  }
  return realtime();
}

}  // namespace

Failure open_echo(uint32_t source, Echo& echo) {
  const auto mark = static_cast<uint32_t>(realtime() ^ getpid());
  echo = {Fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_ICMP)), false, mark};
  if (!echo.fd) echo = {Fd(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_ICMP)), true, mark};
  if (!echo.fd) return SystemError{"socket ICMP", errno};
  if (echo.raw) {
    const icmp_filter all_but_answers{~(1u << ICMP_ECHOREPLY)};
    if (setsockopt(echo.fd.get(), SOL_RAW, ICMP_FILTER, &all_but_answers, sizeof all_but_answers) < 0) {
      return SystemError{"setsockopt ICMP_FILTER", errno};
    }
  }
  const int on = 1;
  setsockopt(echo.fd.get(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  // Whole or not at all, whatever the kernel believes of the path: what is asked is whether so large a packet arrives.
  const int whole = IP_PMTUDISC_PROBE;
  setsockopt(echo.fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, &whole, sizeof whole);
  const sockaddr_in address{AF_INET, 0, {source}, {}};
  if (bind(echo.fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
    return SystemError{"bind ICMP", errno};
  }
  return {};
}

Failure send_echo(const EchoSocket& echo, uint32_t to, uint16_t sequence, size_t bytes) {
  Request request{};
  request.header.type = ICMP_ECHO;
  request.header.un.echo.sequence = to_be16(sequence);
  request.sent = realtime();
  request.mark = echo.mark;
  std::vector<uint8_t> packet(std::max(bytes, kIpv4HeaderBytes + sizeof request) - kIpv4HeaderBytes);
  // The kernel's socket has a number of its own, and writes it and the sum (net/ipv4/ping.c).
  if (echo.raw) request.header.un.echo.id = to_be16(static_cast<uint16_t>(getpid()));
  std::memcpy(packet.data(), &request, sizeof request);
  if (echo.raw) {
    const uint16_t sum = static_cast<uint16_t>(~checksum_fold(checksum_add(0, packet.data(), packet.size())));
    store(packet.data() + offsetof(icmphdr, checksum), sum);
  }
  const sockaddr_in address{AF_INET, 0, {to}, {}};
  const auto* target = reinterpret_cast<const sockaddr*>(&address);
  if (sendto(echo.fd, packet.data(), packet.size(), MSG_DONTWAIT, target, sizeof address) < 0) {
    return SystemError{"sendto", errno};
  }
  return {};
}

std::span<EchoAnswer> take_echoes(const EchoSocket& echo, std::span<EchoAnswer> room) {
  size_t count = 0;
  // A raw socket hears the answers to everybody's: whoever floods this host with them must not keep the caller here.
  for (size_t looks = 0; looks < room.size(); looks++) {
    uint8_t bytes[128];  // the rest of a long one is cut off
    alignas(cmsghdr) uint8_t controls[CMSG_SPACE(sizeof(timespec))];
    sockaddr_in from{};
    iovec iov{bytes, sizeof bytes};
    msghdr message{};
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = controls;
    message.msg_controllen = sizeof controls;
    const ssize_t got = recvmsg(echo.fd, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;  // there is no more; or an error of an earlier request, whose answer will not come
    const size_t size = static_cast<size_t>(got);
    const size_t ip_bytes = echo.raw && size > 0 ? size_t{bytes[0]} % 16 * 4 : 0;
    Request answer;
    if (size < ip_bytes + sizeof answer) continue;
    std::memcpy(&answer, bytes + ip_bytes, sizeof answer);
    if (answer.header.type != ICMP_ECHOREPLY || answer.mark != echo.mark) continue;
    const int64_t microseconds = (arrival_of(message) - answer.sent) / 1'000;
    // The clock of the day may be set meanwhile.
    room[count++] = {from.sin_addr.s_addr, to_be16(answer.header.un.echo.sequence),
                     microseconds < 0 ? 0 : microseconds};
  }
  return room.first(count);
}

}  // namespace weft
