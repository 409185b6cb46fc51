// path_probe.cc - connects a UDP socket to a peer, and reads from the socket the MTU of the path to the peer.
#include "path_probe.h"

#include <sys/socket.h>

namespace weft {

size_t PathProbe::ask(const SocketAddress& to) {
  if (!from_.address() || from_.family() != to.family()) return 0;
  if (!socket_) {
    Fd fd(socket(from_.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Give the socket the smallest receive buffer that the kernel allows, because the socket never receives.
    const int nothing = 0;
    if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &nothing, sizeof nothing) < 0) return 0;
    if (bind(fd.get(), from_.raw(), from_.size()) < 0) return 0;
    socket_ = std::move(fd);
  }
  // connect() must be repeated for each query, because IP_MTU returns the MTU of the route that the last connect found
  // (net/ipv4/ip_sockglue.c).
  int mtu = 0;
  socklen_t size = sizeof mtu;
  if (connect(socket_.get(), to.raw(), to.size()) < 0) return 0;
  const bool is_v4 = to.family() == AF_INET;
  if (getsockopt(socket_.get(), is_v4 ? IPPROTO_IP : IPPROTO_IPV6, is_v4 ? IP_MTU : IPV6_MTU, &mtu, &size) < 0 ||
      mtu < 0)
    return 0;
  return static_cast<size_t>(mtu);
}

}  // namespace weft
