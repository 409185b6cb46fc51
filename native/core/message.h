// message.h - what one message of the UDP socket held: a datagram, or several that the kernel joined.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "address.h"
#include "ecn.h"

namespace weft {

struct Message {
  uint8_t* bytes;  ///< borrowed from the receiver until its next batch
  size_t size;
  /// The size of each but the last of the datagrams that the kernel joined (UDP_GRO); 0 when it joined none. The
  /// encapsulation knows what that means for the bytes: an inner superpacket of another kernel says its own size
  /// here.
  size_t joined_bytes;
  Ecn ecn = kNotEct;                      ///< the outer header's mark; only datagrams with the same one are joined
  const SocketAddress* sender = nullptr;  ///< borrowed too; only datagrams of one sender are joined
  /// True if the sender's address is inside the network and belongs to no peer. A peer that seems to send from such an
  /// address must not be answered there, since the datagrams would go through the tunnel. Only encapsulations with
  /// sessions use this flag.
  bool is_from_inside = false;

  /// Takes the first datagram off.
  std::span<uint8_t> take() { return take(joined_bytes > 0 ? std::min(joined_bytes, size) : size); }
  /// Takes all of it as one.
  std::span<uint8_t> take_all() { return take(size); }

 private:
  std::span<uint8_t> take(size_t count) {
    const std::span<uint8_t> datagram(bytes, count);
    bytes += count;
    size -= count;
    return datagram;
  }
};

}  // namespace weft
