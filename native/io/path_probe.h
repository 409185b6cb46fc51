// path_probe.h - queries the kernel for the MTU of the path to a peer.
#pragma once

#include "../core/address.h"
#include "system.h"

namespace weft {

/// Uses a socket that never sends. The socket is bound to the source address of the datagrams, because routes may
/// depend on it. It is opened on the first query.
class PathProbe {
 public:
  explicit PathProbe(const SocketAddress& from) : from_(from.address(), 0) {}
  /// Returns the path MTU in bytes; 0 if the kernel does not know it, or if the address is of another family.
  size_t ask(const SocketAddress& to);

 private:
  SocketAddress from_;
  Fd socket_;
};

}  // namespace weft
