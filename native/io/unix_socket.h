// unix_socket.h - exchanges text and descriptors with another process over a Unix socket. Node cannot send descriptors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "system.h"

namespace weft {

/// The content of one message. Descriptors travel as SCM_RIGHTS (unix(7)): the receiver gets its own descriptors of the
/// same open files.
struct Parcel {
  std::string text;
  std::vector<Fd> fds;
};

/// The kernel's limit on the descriptors in one message (SCM_MAX_FD in include/net/scm.h).
constexpr size_t kMostParcelFds = 253;
/// The maximum length of the text in bytes. Longer texts are refused with EMSGSIZE.
constexpr size_t kParcelTextBytes = 65536;

/// Sends one datagram to the socket `name`: a path, or '@' and a name in the abstract namespace. Does not block.
Failure notify(std::string_view name, std::string_view text, std::span<const int> fds);

/// Listens at a path for sequenced packets. Only this user may connect (mode 0600). An existing socket file is removed.
Failure listen_at(std::string_view path, Fd& listener);
/// Connects to a listener. Fails with ECONNREFUSED or ENOENT if there is none.
Failure connect_to(std::string_view path, Fd& connection);
/// Accepts the next connection. Fails with EAGAIN if none waits.
Failure accept_from(int listener, Fd& connection);

/// Returns the pid of the other process in this process's namespace; 0 if it has none there.
int peer_pid(int connection);

/// Neither function blocks; both fail with EAGAIN instead.
Failure send_parcel(int connection, std::string_view text, std::span<const int> fds);
/// Yields an empty parcel at the end of the connection.
Failure receive_parcel(int connection, Parcel& parcel);

}  // namespace weft
