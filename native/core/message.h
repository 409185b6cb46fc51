// message.h - one message from the UDP socket: a datagram, or several datagrams that the kernel merged.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "address.h"
#include "ecn.h"

namespace weft {

struct Message {
  uint8_t* bytes;  ///< the first byte that was not taken yet; valid until the receiver's next batch
  size_t size;
  /// The length in bytes of each merged datagram except the last (UDP_GRO); 0 if the kernel merged none. If a vxlan
  /// device on this machine sent a superpacket without segmenting it, the value is the segment size of that
  /// superpacket. Only the encapsulation can distinguish the two cases.
  size_t joined_bytes;
  Ecn ecn = kNotEct;  ///< the ECN mark of the outer header; the kernel merges only datagrams with equal marks
  const SocketAddress* sender = nullptr;  ///< valid as long as `bytes`; the kernel merges only datagrams of one sender
  /// True if the sender's address is inside the cluster's network and belongs to no peer. weft must not answer to such
  /// an address, because the answer would go through the tunnel. Only encapsulations with sessions use this flag.
  bool is_from_inside = false;

  std::span<uint8_t> take() { return take(joined_bytes > 0 ? std::min(joined_bytes, size) : size); }
  /// Takes all remaining bytes of the message as one datagram.
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
