// echo.h - ICMP echo requests and their answers, of IPv4 (RFC 792) and IPv6 (RFC 4443), to see whether a peer answers,
// and how soon.
#pragma once

#include <cstdint>
#include <span>

#include "../core/address.h"
#include "../core/packet.h"
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

/// The most bytes of a packet that write_echo makes.
constexpr size_t kMaxEchoBytes = 64;

/// Writes the whole IP packet of such a request, as short as it may be, for whoever sends it in a datagram of IP
/// version `outer`: the socket takes the answer, and an engine that carries the answer sends it by that version too,
/// whichever the peer is reached by otherwise. Returns its size; 0 when the socket has no number.
size_t write_echo(const EchoSocket& echo, const Address& from, const Address& to, uint16_t sequence, uint8_t outer,
                  std::span<uint8_t, kMaxEchoBytes> packet);

/// The IP version by which a packet goes if it is the answer to a request of write_echo; 0 of any other packet.
uint8_t outer_of_answer(const uint8_t* bytes, const Packet& packet);

/// Takes what has come, as many messages as there is room for answers, and returns those that are answers to requests
/// of this socket: there may be more. Does not block.
std::span<EchoAnswer> take_echoes(const EchoSocket& echo, std::span<EchoAnswer> room);

}  // namespace weft
