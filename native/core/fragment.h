// fragment.h - cuts an IPv4 packet that may be cut into fragments (RFC 791 section 3.2).
//
// Each gets a header of its own; the payload is not copied, a fragment points into the packet.
#pragma once

#include "segment.h"

namespace weft {

/// The fragments of one packet, in order.
class Fragmenter {
 public:
  /// Takes a packet in two pieces, whose checksums are complete: its IP header of `ip_bytes` and what else is in the
  /// first piece, then the payload. Each fragment is of at most `mtu` bytes; that must be more than the first piece,
  /// by 8 at least. A packet that is a fragment itself gives fragments of the same whole.
  Fragmenter(const Segment& packet, size_t ip_bytes, size_t mtu);

  /// Bytes that a fragment's header takes, at most.
  size_t header_bytes() const { return packet_.header_bytes; }
  bool done() const { return offset_ >= packet_.payload_bytes; }

  /// Writes the next fragment's header to `header` (header_bytes() of room). Must not be called when done.
  Segment next(uint8_t* header);

 private:
  Segment packet_;
  size_t ip_bytes_;
  size_t room_;        // behind a fragment's IP header
  size_t offset_ = 0;  // into the payload
};

}  // namespace weft
