// unix_socket.cc - opens Unix sockets, and sends and receives descriptors in control messages.
#include "unix_socket.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace weft {

namespace {

struct Address {
  sockaddr_un un{};
  socklen_t bytes = 0;
  const sockaddr* any() const { return reinterpret_cast<const sockaddr*>(&un); }
};

Failure to_address(std::string_view name, const char* call, Address& address) {
  address.un.sun_family = AF_UNIX;
  // A path needs space for its terminating zero. An abstract name has no terminator, and its '@' becomes a zero byte.
  const bool abstract = name.starts_with('@');
  if (name.size() + !abstract > sizeof address.un.sun_path) return SystemError{call, ENAMETOOLONG};
  name.copy(address.un.sun_path, name.size());
  if (abstract) address.un.sun_path[0] = 0;
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + !abstract);
  return {};
}

/// The buffer for the descriptors in one message, with the alignment that cmsg(3) requires.
union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(kMostParcelFds * sizeof(int))> bytes;
};

Failure send_message(int fd, const Address* to, std::string_view text, std::span<const int> fds) {
  if (fds.size() > kMostParcelFds || text.size() > kParcelTextBytes) return SystemError{"sendmsg", EMSGSIZE};
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (to) {
    message.msg_name = const_cast<sockaddr_un*>(&to->un);
    message.msg_namelen = to->bytes;
  }
  Control control{};
  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  if (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return SystemError{"sendmsg", errno};
  return {};
}

Failure open_socket(int type, Fd& fd) {
  fd = Fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd ? Failure{} : SystemError{"socket", errno};
}

}  // namespace

Failure notify(std::string_view name, std::string_view text, std::span<const int> fds) {
  Address address;
  if (Failure failure = to_address(name, "sendmsg", address)) return failure;
  Fd fd;
  if (Failure failure = open_socket(SOCK_DGRAM, fd)) return failure;
  return send_message(fd.get(), &address, text, fds);
}

Failure listen_at(std::string_view path, Fd& listener) {
  Address address;
  if (Failure failure = to_address(path, "bind", address)) return failure;
  if (Failure failure = open_socket(SOCK_SEQPACKET, listener)) return failure;
  if (unlink(address.un.sun_path) < 0 && errno != ENOENT) return SystemError{"unlink", errno};
  if (bind(listener.get(), address.any(), address.bytes) < 0) return SystemError{"bind", errno};
  // Set the mode of the socket file before listen(), so that no other user can connect earlier.
  if (chmod(address.un.sun_path, 0600) < 0) return SystemError{"chmod", errno};
  if (listen(listener.get(), 1) < 0) return SystemError{"listen", errno};
  return {};
}

Failure connect_to(std::string_view path, Fd& connection) {
  Address address;
  if (Failure failure = to_address(path, "connect", address)) return failure;
  if (Failure failure = open_socket(SOCK_SEQPACKET, connection)) return failure;
  if (connect(connection.get(), address.any(), address.bytes) < 0) return SystemError{"connect", errno};
  return {};
}

Failure accept_from(int listener, Fd& connection) {
  connection = Fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return connection ? Failure{} : SystemError{"accept4", errno};
}

int peer_pid(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ? 0 : peer.pid;
}

Failure send_parcel(int connection, std::string_view text, std::span<const int> fds) {
  return send_message(connection, nullptr, text, fds);
}

Failure receive_parcel(int connection, Parcel& parcel) {
  std::string text(kParcelTextBytes, '\0');
  iovec part{text.data(), text.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t bytes = recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0) return SystemError{"recvmsg", errno};
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      parcel.fds.emplace_back(fd);
    }
  }
  // Descriptors or text that did not fit into the buffers are lost, so the whole message fails.
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return SystemError{"recvmsg", EMSGSIZE};
  text.resize(static_cast<size_t>(bytes));
  parcel.text = std::move(text);
  return {};
}

}  // namespace weft
