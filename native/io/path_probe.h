// path_probe.h - asks the kernel for the MTU of the path to a peer.
#pragma once

#include <netinet/in.h>

#include "../core/peers.h"
#include "system.h"

namespace weft {

/// A socket that never sends. It is opened when it is first asked, from the address that the datagrams are from, since
/// routes may differ by that.
class PathProbe {
 public:
  explicit PathProbe(const sockaddr_in& from) : from_(from) { from_.sin_port = 0; }
  /// In bytes; 0 when the kernel does not know.
  size_t ask(const sockaddr_in& to);

 private:
  sockaddr_in from_;
  Fd socket_;
};

}  // namespace weft
