// message.h - one message from the UDP socket: a datagram, or several datagrams that the kernel joined.
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
  /// The size of each joined datagram except the last (UDP_GRO); 0 if the kernel joined none. If another kernel of this
  /// machine sent an inner superpacket uncut, this is its segment size. Only the encapsulation can distinguish the two.
  size_t joined_bytes;
  Ecn ecn = kNotEct;  ///< the outer header's mark; the kernel joins only datagrams with the same mark
  const SocketAddress* sender = nullptr;  ///< borrowed; the kernel joins only datagrams of one sender
  /// True if the sender's address is inside the network and belongs to no peer. A peer that seems to send from such an
  /// address must not be answered there, since the datagrams would go through the tunnel. Only encapsulations with
  /// sessions use this flag.
  bool is_from_inside = false;

  std::span<uint8_t> take() { return take(joined_bytes > 0 ? std::min(joined_bytes, size) : size); }
  /// Takes the rest of the message as one datagram.
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
