// notify.cc - a socket that lives as long as its one datagram.
#include "notify.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace weft {

Failure notify(std::string_view name, std::string_view message) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A path needs room for its final zero; an abstract name is as long as it is, after a zero in place of '@'.
  const bool abstract = name.starts_with('@');
  if (name.size() + !abstract > sizeof address.sun_path) return SystemError{"sendto", ENAMETOOLONG};
  name.copy(address.sun_path, name.size());
  if (abstract) address.sun_path[0] = 0;
  const socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + !abstract);

  Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return SystemError{"socket", errno};
  const auto* target = reinterpret_cast<const sockaddr*>(&address);
  if (sendto(fd.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL, target, size) < 0) {
    return SystemError{"sendto", errno};
  }
  return {};
}

}  // namespace weft
