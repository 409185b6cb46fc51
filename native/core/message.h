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
  /// By what the kernel joined datagrams (UDP_GRO): the size of each but the last; 0 when it joined none. What that
  /// means for the bytes is the encapsulation's to know: an inner superpacket of another kernel says its own size here.
  size_t joined_bytes;
  Ecn ecn = kNotEct;  ///< what the outer header says of the way; datagrams are joined that say the same alone
  const SocketAddress* sender = nullptr;  ///< where it came from, borrowed likewise; joined are those of one alone

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
