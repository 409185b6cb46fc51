// echo.cc - opens sockets for ICMP echo requests, and writes and reads their messages. A request contains the time when
// it was sent, on the clock that the kernel uses for timestamps of replies.
#include "echo.h"

#include <errno.h>
#include <linux/icmp.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "../core/checksum.h"
#include "../core/packet.h"

namespace weft {

namespace {

/// An echo request or an echo reply, which have the same layout in ICMP and ICMPv6 (RFC 792 page 14, RFC 4443 section
/// 4).
struct Message {
  uint8_t type;
  uint8_t code;
  uint16_t checksum;
  uint16_t id;
  uint16_t sequence;
  /// The time when the request was sent, in nanoseconds of CLOCK_REALTIME.
  int64_t sent;
  uint32_t mark;
  /// The IP version of the datagram in which the reply must be sent (reply_over); all zero if the peer may choose. The
  /// peer's kernel copies this field into the reply, where the peer's engine reads it.
  std::array<uint8_t, 4> outer;
};
static_assert(sizeof(Message) == 24);

/// Returns the field Message::outer of a request whose reply must go over the given IP version. Three letters mark the
/// field, because echo requests of other programs have arbitrary bytes in its place.
constexpr std::array<uint8_t, 4> reply_over(uint8_t version) { return {'w', 'e', 'f', version}; }

struct Protocol {
  int family;
  int number;
  uint8_t request, answer;
  size_t ip_bytes;        ///< the length of an IP header without options
  const char* open_call;  ///< the name of the system call in errors
  const char* bind_call;
};
constexpr Protocol kIcmp{AF_INET,          IPPROTO_ICMP,  ICMP_ECHO,  ICMP_ECHOREPLY,
                         kIpv4HeaderBytes, "socket ICMP", "bind ICMP"};
constexpr Protocol kIcmpv6{AF_INET6,         IPPROTO_ICMPV6,  ICMP6_ECHO_REQUEST, ICMP6_ECHO_REPLY,
                           kIpv6HeaderBytes, "socket ICMPv6", "bind ICMPv6"};

const Protocol& protocol_of(const Address& address) { return address.is_v4() ? kIcmp : kIcmpv6; }

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

int64_t realtime() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

int64_t arrival_of(msghdr& message) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec time;
    std::memcpy(&time, CMSG_DATA(control), sizeof time);
    return nanoseconds(time);
  }
  return realtime();
}

Failure set_option(int fd, int level, int name, const void* value, socklen_t size, const char* call) {
  return setsockopt(fd, level, name, value, size) < 0 ? Failure(SystemError{call, errno}) : Failure();
}

Failure let_in_answers(int fd, const Protocol& protocol) {
  if (protocol.family == AF_INET) {
    const icmp_filter all_but_answers{~(1u << ICMP_ECHOREPLY)};
    return set_option(fd, SOL_RAW, ICMP_FILTER, &all_but_answers, sizeof all_but_answers, "setsockopt ICMP_FILTER");
  }
  icmp6_filter all_but_answers;
  ICMP6_FILTER_SETBLOCKALL(&all_but_answers);
  ICMP6_FILTER_SETPASS(ICMP6_ECHO_REPLY, &all_but_answers);
  return set_option(fd, IPPROTO_ICMPV6, ICMP6_FILTER, &all_but_answers, sizeof all_but_answers,
                    "setsockopt ICMP6_FILTER");
}

/// Makes the kernel send requests unfragmented even if they exceed the path MTU that the kernel knows, because the
/// requests probe the real path MTU. The kernel still rejects a request that exceeds the device's MTU
/// (net/ipv6/ip6_output.c, __ip6_append_data: ip6_sk_ignore_df).
void forbid_fragments(int fd, const Protocol& protocol) {
  const int v4 = IP_PMTUDISC_PROBE, v6 = IPV6_PMTUDISC_PROBE;
  if (protocol.family == AF_INET) {
    setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &v4, sizeof v4);
  } else {
    setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &v6, sizeof v6);
  }
}

}  // namespace

Failure open_echo(const Address& source, Echo& echo) {
  const Protocol& protocol = protocol_of(source);
  const auto open = [&](int type) {
    return Fd(socket(protocol.family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol.number));
  };
  const auto mark = static_cast<uint32_t>(realtime() ^ getpid());
  echo = {open(SOCK_DGRAM), false, mark};
  if (!echo.fd) echo = {open(SOCK_RAW), true, mark};
  if (!echo.fd) return SystemError{protocol.open_call, errno};
  const int fd = echo.fd.get();
  if (echo.raw) {
    if (Failure failure = let_in_answers(fd, protocol)) return failure;
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  forbid_fragments(fd, protocol);
  const SocketAddress address(source, 0);
  if (bind(fd, address.raw(), address.size()) < 0) return SystemError{protocol.bind_call, errno};
  return {};
}

Failure send_echo(const EchoSocket& echo, const Address& to, uint16_t sequence, size_t bytes) {
  const Protocol& protocol = protocol_of(to);
  Message request{};
  request.type = protocol.request;
  request.sequence = to_be16(sequence);
  request.sent = realtime();
  request.mark = echo.mark;
  std::vector<uint8_t> packet(std::max(bytes, protocol.ip_bytes + sizeof request) - protocol.ip_bytes);
  // Set the identifier of a request from a raw socket. For a ping socket the kernel writes identifier and checksum
  // (net/ipv4/ping.c).
  if (echo.raw) request.id = to_be16(static_cast<uint16_t>(getpid()));
  std::memcpy(packet.data(), &request, sizeof request);
  // Compute the checksum for IPv4 only. The checksum of ICMPv6 includes the IP addresses, so the kernel writes it even
  // for a raw socket (RFC 3542 section 3.1).
  if (echo.raw && protocol.family == AF_INET) {
    const uint16_t sum = static_cast<uint16_t>(~checksum_fold(checksum_add(0, packet.data(), packet.size())));
    store(packet.data() + offsetof(Message, checksum), sum);
  }
  const SocketAddress target(to, 0);
  if (sendto(echo.fd, packet.data(), packet.size(), MSG_DONTWAIT, target.raw(), target.size()) < 0) {
    return SystemError{"sendto", errno};
  }
  return {};
}

uint8_t version_for_reply(const uint8_t* bytes, const Packet& packet) {
  const Protocol& protocol = packet.version == 4 ? kIcmp : kIcmpv6;
  if (packet.protocol != protocol.number || packet.fragment || packet.total != packet.ip_bytes + sizeof(Message))
    return 0;
  const auto message = load<Message>(bytes + packet.ip_bytes);
  if (message.type != protocol.answer) return 0;
  return message.outer == reply_over(4) ? 4 : message.outer == reply_over(6) ? 6 : 0;
}

size_t write_echo(const EchoSocket& echo, const Address& from, const Address& to, uint16_t sequence, uint8_t outer,
                  std::span<uint8_t, kMaxEchoBytes> packet) {
  const Protocol& protocol = protocol_of(to);
  const size_t size = protocol.ip_bytes + sizeof(Message);
  Message request{};
  request.type = protocol.request;
  // The kernel stores the identifier of a ping socket as the port of its address (net/ipv4/ping.c).
  SocketAddress own;
  socklen_t own_size = SocketAddress::kRoom;
  if (!echo.raw && getsockname(echo.fd, own.raw(), &own_size) < 0) return 0;
  request.id = echo.raw ? to_be16(static_cast<uint16_t>(getpid())) : own.port();
  request.sequence = to_be16(sequence);
  request.sent = realtime();
  request.mark = echo.mark;
  request.outer = reply_over(outer);
  std::fill(packet.begin(), packet.end(), uint8_t{0});
  uint8_t* message = packet.data() + protocol.ip_bytes;
  std::memcpy(message, &request, sizeof request);
  constexpr uint8_t kHops = 64;
  uint64_t sum = 0;
  if (protocol.family == AF_INET) {
    packet[0] = 0x45;
    store_be16(&packet[2], static_cast<uint16_t>(size));
    packet[8] = kHops;
    packet[9] = IPPROTO_ICMP;
    store(&packet[12], from.ipv4());
    store(&packet[16], to.ipv4());
    store(&packet[10], ipv4_header_checksum(packet.data(), kIpv4HeaderBytes));
  } else {
    packet[0] = 0x60;
    store_be16(&packet[4], sizeof request);
    packet[6] = IPPROTO_ICMPV6;
    packet[7] = kHops;
    const uint64_t words[] = {from.high(), from.low(), to.high(), to.low()};
    std::memcpy(&packet[8], words, sizeof words);
    sum = pseudo_header_sum(&packet[8], sizeof words, IPPROTO_ICMPV6, sizeof request);
  }
  const uint16_t folded = static_cast<uint16_t>(~checksum_fold(checksum_add(sum, message, sizeof request)));
  store(message + offsetof(Message, checksum), folded);
  return size;
}

std::span<EchoAnswer> take_echoes(const EchoSocket& echo, std::span<EchoAnswer> room) {
  size_t count = 0;
  // A raw socket receives the replies to all programs' requests. Limit the number of reads, so that a flood of replies
  // does not keep the calling thread busy.
  for (size_t looks = 0; looks < room.size(); looks++) {
    uint8_t bytes[128];  // the bytes of a longer reply beyond these are not needed
    alignas(cmsghdr) uint8_t controls[CMSG_SPACE(sizeof(timespec))];
    SocketAddress from;
    iovec iov{bytes, sizeof bytes};
    msghdr message{};
    message.msg_name = from.raw();
    message.msg_namelen = SocketAddress::kRoom;
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = controls;
    message.msg_controllen = sizeof controls;
    const ssize_t got = recvmsg(echo.fd, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;  // no more messages, or the ICMP error for an earlier request, which gets no reply
    const size_t size = static_cast<size_t>(got);
    // A raw IPv4 socket receives the IP header with the message; a raw IPv6 socket receives only the ICMPv6 message
    // (RFC 3542 section 3).
    const Protocol& protocol = from.family() == AF_INET6 ? kIcmpv6 : kIcmp;
    const bool has_header = echo.raw && protocol.family == AF_INET && size > 0;
    const size_t ip_bytes = has_header ? size_t{bytes[0]} % 16 * 4 : 0;
    Message answer;
    if (size < ip_bytes + sizeof answer) continue;
    std::memcpy(&answer, bytes + ip_bytes, sizeof answer);
    if (answer.type != protocol.answer || answer.mark != echo.mark) continue;
    const int64_t microseconds = (arrival_of(message) - answer.sent) / 1'000;
    // The time is negative if the clock was set back after the request was sent. In that case report 0.
    room[count++] = {from.address(), to_be16(answer.sequence), microseconds < 0 ? 0 : microseconds};
  }
  return room.first(count);
}

}  // namespace weft
