// echo.h - ICMP echo requests and their answers, of IPv4 (RFC 792) and IPv6 (RFC 4443), to see whether a peer answers,
// and how soon.
#pragma once

#include <cstdint>
#include <span>

#include "../core/address.h"
#include "system.h"

namespace weft {

/// A socket for them, of one family. The kernel's own for this (SOCK_DGRAM; Linux 3.0, of IPv6 3.11: icmp(7)) takes no
/// privilege of those whose group is within net.ipv4.ping_group_range, which governs both families; a raw one takes
/// CAP_NET_RAW.
struct Echo {
  Fd fd;
  bool raw = false;
  uint32_t mark = 0;  ///< in each request: a raw socket hears the answers to everybody's
};

/// The same, borrowed.
struct EchoSocket {
  int fd;
  bool raw;
  uint32_t mark;
};

struct EchoAnswer {
  Address from;
  uint16_t sequence;
  int64_t microseconds;  ///< since the request was sent, as the kernel saw it
};

/// Requests leave from `source`, whose family is the socket's; it must be this host's.
Failure open_echo(const Address& source, Echo& echo);

/// An IP packet of `bytes`, or of as few as it takes, that nobody may fragment, to an address of the socket's family.
/// Does not block.
Failure send_echo(const EchoSocket& echo, const Address& to, uint16_t sequence, size_t bytes);

/// Takes what has come, as many messages as there is room for answers, and returns those that are answers to requests
/// of this socket: there may be more. Does not block.
std::span<EchoAnswer> take_echoes(const EchoSocket& echo, std::span<EchoAnswer> room);

}  // namespace weft
