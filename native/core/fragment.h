// fragment.h - splits an IPv4 packet without DF into fragments (RFC 791 section 3.2).
//
// Each fragment gets its own header. The payload is not copied: a fragment points into the original packet.
#pragma once

#include "segment.h"

namespace weft {

class Fragmenter {
 public:
  /// Takes a packet with complete checksums in two pieces: the header piece has the IP header of `ip_bytes` bytes and
  /// possibly more, the payload piece has the rest. Each fragment has at most `mtu` bytes. `mtu` must exceed the header
  /// piece by at least 8. The packet may itself be a fragment.
  Fragmenter(const Segment& packet, size_t ip_bytes, size_t mtu);

  size_t header_bytes() const { return packet_.header_bytes; }
  bool done() const { return offset_ >= packet_.payload_bytes; }

  /// Writes the next fragment's header to `header`, which must have space for header_bytes(). Must not be called when
  /// done() is true.
  Segment next(uint8_t* header);

 private:
  Segment packet_;
  size_t ip_bytes_;
  size_t room_;        // the maximum number of bytes behind the IP header of a fragment
  size_t offset_ = 0;  // the number of payload bytes in earlier fragments
};

}  // namespace weft
