// path_probe.h - queries the kernel for the MTU of the path to a peer.
#pragma once

#include "../core/address.h"
#include "system.h"

namespace weft {

/// Queries the path MTU with a UDP socket that never sends. The socket is bound to the source address of the tunnel's
/// datagrams, because routes may depend on the source, and is opened on the first query.
class PathProbe {
 public:
  explicit PathProbe(const SocketAddress& from) : from_(from.address(), 0) {}
  /// Returns the kernel's path MTU to `to` in bytes. Returns 0 if the kernel does not know it, or if `to` and the
  /// source address are of different IP families.
  size_t ask(const SocketAddress& to);

 private:
  SocketAddress from_;
  Fd socket_;
};

}  // namespace weft
