// path_probe.h - asks the kernel for the MTU of the path to a peer.
#pragma once

#include "../core/address.h"
#include "system.h"

namespace weft {

/// A socket that never sends. It is opened when it is first asked, from the address that the datagrams are from, since
/// routes may differ by that.
class PathProbe {
 public:
  explicit PathProbe(const SocketAddress& from) : from_(from.address(), 0) {}
  /// The MTU of the path in bytes; 0 when the kernel does not know, as for an address of another family than the
  /// socket's.
  size_t ask(const SocketAddress& to);

 private:
  SocketAddress from_;
  Fd socket_;
};

}  // namespace weft
