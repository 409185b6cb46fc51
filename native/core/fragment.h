// fragment.h - cuts an IPv4 packet without DF into fragments (RFC 791 section 3.2).
//
// Each fragment gets its own header. The payload is not copied: a fragment points into the packet.
#pragma once

#include "segment.h"

namespace weft {

class Fragmenter {
 public:
  /// Takes a packet with complete checksums in two pieces: the header piece has the IP header of `ip_bytes` and
  /// possibly more, the other piece has the rest. Each fragment has at most `mtu` bytes. `mtu` must exceed the header
  /// piece by at least 8. If the packet is a fragment itself, its fragments belong to the same original packet.
  Fragmenter(const Segment& packet, size_t ip_bytes, size_t mtu);

  size_t header_bytes() const { return packet_.header_bytes; }
  bool done() const { return offset_ >= packet_.payload_bytes; }

  /// Writes the next fragment's header to `header`, which must have header_bytes() of room. Must not be called when
  /// done().
  Segment next(uint8_t* header);

 private:
  Segment packet_;
  size_t ip_bytes_;
  size_t room_;        // the maximum number of bytes behind a fragment's IP header
  size_t offset_ = 0;  // into the payload
};

}  // namespace weft
