// unix_socket.h - text and descriptors to another process through a Unix socket, which Node has no way to send.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "system.h"

namespace weft {

/// The content of one message. Descriptors travel as SCM_RIGHTS (unix(7)): the receiver has its own of the same open
/// files.
struct Parcel {
  std::string text;
  std::vector<Fd> fds;
};

/// The most descriptors of one message that the kernel takes (SCM_MAX_FD in include/net/scm.h).
constexpr size_t kMostParcelFds = 253;
/// The longest text; what is longer is refused with EMSGSIZE.
constexpr size_t kParcelTextBytes = 65536;

/// One datagram to the socket `name`: a path, or '@' and a name in the abstract namespace. Does not block.
Failure notify(std::string_view name, std::string_view text, std::span<const int> fds);

/// Listens at a path for sequenced packets, for this user alone (mode 0600). What stood there before is removed.
Failure listen_at(std::string_view path, Fd& listener);
/// A connection to whoever listens there: ECONNREFUSED or ENOENT when nobody does.
Failure connect_to(std::string_view path, Fd& connection);
/// The next that waits: EAGAIN when none does.
Failure accept_from(int listener, Fd& connection);

/// The process at the other end, by its id in this process's namespace; 0 when it has none there.
int peer_pid(int connection);

/// Neither blocks: EAGAIN when it would have to.
Failure send_parcel(int connection, std::string_view text, std::span<const int> fds);
/// An empty parcel at the end of the connection.
Failure receive_parcel(int connection, Parcel& parcel);

}  // namespace weft
