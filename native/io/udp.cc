// udp.cc - opens the UDP sockets and sets their options.
#include "udp.h"

#include <errno.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include "kernel_layout.h"
#include "linux_compat.h"

namespace weft {

namespace {

bool set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

/// Sets the size of a socket buffer. The size may exceed the sysctl limit if this process has the right (CAP_NET_ADMIN
/// in the initial user namespace), otherwise the kernel reduces it to the limit. Returns the granted size; the kernel
/// itself reports twice that size (socket(7)).
int set_buffer(int fd, int force, int ask, int bytes) {
  if (!set_option(fd, SOL_SOCKET, force, bytes)) set_option(fd, SOL_SOCKET, ask, bytes);
  int granted = 0;
  socklen_t size = sizeof granted;
  getsockopt(fd, SOL_SOCKET, ask, &granted, &size);
  return granted / 2;
}

Failure open_socket(const SocketAddress& address, Share share, int receive_buffer_bytes, uint32_t wanted,
                    UdpSocket& result) {
  Fd fd(socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return SystemError{"socket", errno};
  if (address.family() == AF_INET6 && !set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1)) {
    return SystemError{"setsockopt IPV6_V6ONLY", errno};
  }
  // Make the kernel derive the IPv6 flow label from addresses and ports, so that routers can spread flows (RFC 6438).
  // This is the default, unless net.ipv6.auto_flowlabels was changed.
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 1);
  const auto let_share = [&] { return set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1); };
  if (share == Share::kJoin && !let_share()) return SystemError{"setsockopt SO_REUSEPORT", errno};
  result.receive_buffer_bytes = set_buffer(fd.get(), SO_RCVBUFFORCE, SO_RCVBUF, receive_buffer_bytes);
  set_buffer(fd.get(), SO_SNDBUFFORCE, SO_SNDBUF, kSendBufferBytes);
  if (bind(fd.get(), address.raw(), address.size()) < 0) return SystemError{"bind", errno};
  // The first socket gets SO_REUSEPORT only after bind(), so that bind() fails if another daemon has the port.
  if (share == Share::kBegin && !let_share()) return SystemError{"setsockopt SO_REUSEPORT", errno};
  result.features = 0;
  // Set the segment size 0, which leaves the socket unchanged, to find out if the kernel knows UDP_SEGMENT.
  if ((wanted & kUdpGso) && set_option(fd.get(), IPPROTO_UDP, UDP_SEGMENT, 0)) result.features |= kUdpGso;
  if ((wanted & kUdpGro) && set_option(fd.get(), IPPROTO_UDP, UDP_GRO, 1)) result.features |= kUdpGro;
  result.fd = std::move(fd);
  return {};
}

}  // namespace

Failure open_udp(const SocketAddress& address, Share share, int receive_buffer_bytes, uint32_t wanted,
                 UdpSocket& socket) {
  return open_socket(address, share, receive_buffer_bytes, wanted, socket);
}

Failure open_sender(const SocketAddress& address, size_t worker, uint32_t wanted, UdpSocket& socket) {
  constexpr size_t kStride = 240;
  // Give this socket the smallest receive buffer, because weft never reads from the socket. Otherwise datagrams sent to
  // it would fill memory.
  constexpr int kNothingBytes = 0;
  Failure failure;
  for (size_t port = to_be16(address.port()) + kStride + worker; port <= 0xffff; port += kStride) {
    const SocketAddress own(address.address(), to_be16(static_cast<uint16_t>(port)));
    failure = open_socket(own, Share::kNo, kNothingBytes, wanted & kUdpGso, socket);
    if (!failure || failure->number != EADDRINUSE) return failure;
  }
  return open_socket(SocketAddress(address.address(), 0), Share::kNo, kNothingBytes, wanted & kUdpGso, socket);
}

bool send_now(int socket, const SocketAddress& to, std::span<const uint8_t> datagram) {
  return sendto(socket, datagram.data(), datagram.size(), MSG_DONTWAIT, to.raw(), to.size()) > 0;
}

SocketAddress bound_address(int socket) {
  SocketAddress address;
  socklen_t size = SocketAddress::kRoom;
  const bool is_bound = getsockname(socket, address.raw(), &size) == 0;
  return is_bound && address.address() ? address : SocketAddress();
}

bool spread_by_source(const Fd& first, const SocketAddress& address, size_t workers) {
  // The program that chooses the socket is classic BPF. Its offsets count from the IP header (filter.txt, SKF_NET_OFF),
  // and assume no IPv4 options and no IPv6 extension headers. Only the last 32 bits of an IPv6 source address count.
  constexpr uint32_t kHeaders = static_cast<uint32_t>(SKF_NET_OFF);
  const bool is_v4 = address.family() == AF_INET;
  const uint32_t source_address = kHeaders + (is_v4 ? 12 : 20), source_port = kHeaders + (is_v4 ? 20 : 40);
  const uint32_t port = to_be16(address.port());
  const uint32_t count = static_cast<uint32_t>(workers);
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, source_port), BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, port),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, source_address),
      BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, count),      BPF_STMT(BPF_RET | BPF_A, 0),
  };
  const sock_fprog program{sizeof code / sizeof *code, code};
  return setsockopt(first.get(), SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) == 0;
}

}  // namespace weft
