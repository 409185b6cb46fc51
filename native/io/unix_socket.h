// unix_socket.h - exchanges text and descriptors with another process over a Unix socket. Node.js itself cannot send
// descriptors.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "system.h"

namespace weft {

/// The content of one message. The descriptors are sent as SCM_RIGHTS (unix(7)): the receiver gets its own descriptors
/// of the same open files.
struct Parcel {
  std::string text;
  std::vector<Fd> fds;
};

/// The maximum number of descriptors in one message, which is the kernel's limit (SCM_MAX_FD in include/net/scm.h).
constexpr size_t kMostParcelFds = 253;
/// The maximum length of the text in one message, in bytes. Sending a longer text fails with EMSGSIZE.
constexpr size_t kParcelTextBytes = 65536;

/// Sends one datagram with text and descriptors to the Unix socket `name`: a path, or '@' and an abstract name. Does
/// not block.
Failure notify(std::string_view name, std::string_view text, std::span<const int> fds);

/// Listens on a Unix socket at a path (SOCK_SEQPACKET). Only processes of this process's user may connect (mode 0600).
/// An existing socket file is removed.
Failure listen_at(std::string_view path, Fd& listener);
/// Connects to a Unix socket at a path. Fails with ECONNREFUSED or ENOENT if no process listens at the path.
Failure connect_to(std::string_view path, Fd& connection);
/// Accepts the next connection. Fails with EAGAIN if no connection waits.
Failure accept_from(int listener, Fd& connection);

/// Returns the pid of the connection's peer; 0 if the peer is not visible in this process's PID namespace.
int peer_pid(int connection);

/// Sends one message with text and descriptors. Does not block: fails with EAGAIN if the receiver's queue is full.
Failure send_parcel(int connection, std::string_view text, std::span<const int> fds);
/// Receives the next message. Fails with EAGAIN if no message waits; yields an empty parcel after the peer has closed
/// the connection.
Failure receive_parcel(int connection, Parcel& parcel);

}  // namespace weft
