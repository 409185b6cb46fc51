// path_probe.cc - a connection to each peer in turn.
#include "path_probe.h"

#include <sys/socket.h>

namespace weft {

size_t PathProbe::ask(const sockaddr_in& to) {
  if (from_.sin_family != AF_INET || to.sin_family != AF_INET) return 0;
  if (!socket_) {
    Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Nobody reads it: the kernel makes the least that it allows of 0.
    const int nothing = 0;
    if (!fd || setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &nothing, sizeof nothing) < 0) return 0;
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&from_), sizeof from_) < 0) return 0;
    socket_ = std::move(fd);
  }
  // Each time anew: the route that a socket was connected by stays as it was (net/ipv4/ip_sockglue.c, IP_MTU).
  int mtu = 0;
  socklen_t size = sizeof mtu;
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) < 0) return 0;
  if (getsockopt(socket_.get(), IPPROTO_IP, IP_MTU, &mtu, &size) < 0 || mtu < 0) return 0;
  return static_cast<size_t>(mtu);
}

}  // namespace weft
