// echo.h - ICMP echo requests and replies over IPv4 (RFC 792) and IPv6 (RFC 4443), to probe whether a peer answers, and
// how fast.
#pragma once

#include <cstdint>
#include <span>

#include "../core/address.h"
#include "../core/packet.h"
#include "system.h"

namespace weft {

/// A socket for echo requests of one family. The kernel's ping sockets (SOCK_DGRAM; Linux 3.0, for IPv6 3.11; icmp(7))
/// need no privilege for groups in net.ipv4.ping_group_range, which applies to both families. A raw socket needs
/// CAP_NET_RAW.
struct Echo {
  Fd fd;
  bool raw = false;
  /// An identifier in each request, because a raw socket gets the replies to other programs' requests too.
  uint32_t mark = 0;
};

struct EchoSocket {
  int fd;
  bool raw;
  uint32_t mark;
};

struct EchoAnswer {
  Address from;
  uint16_t sequence;
  int64_t microseconds;  ///< The time since the request was sent, as the kernel measured it.
};

/// Opens a socket that sends from `source`, an address of this host.
Failure open_echo(const Address& source, Echo& echo);

/// Sends a request in an IP packet of `bytes` that must not be fragmented. A request has a minimum length, which is
/// used if `bytes` is smaller. `to` must be of the socket's family. Does not block.
Failure send_echo(const EchoSocket& echo, const Address& to, uint16_t sequence, size_t bytes);

constexpr size_t kMaxEchoBytes = 64;

/// Writes the IP packet of a request with the minimum length. The caller sends it in a datagram of IP version `outer`;
/// the socket receives the reply. The request asks the peer's engine to send the reply in a datagram of the same
/// version, even if it uses the other version at the moment. Returns the length of the packet, or 0 if the socket has
/// no identifier.
size_t write_echo(const EchoSocket& echo, const Address& from, const Address& to, uint16_t sequence, uint8_t outer,
                  std::span<uint8_t, kMaxEchoBytes> packet);

/// Returns the IP version that a reply to write_echo() must be sent over; 0 for any other packet.
uint8_t outer_of_answer(const uint8_t* bytes, const Packet& packet);

/// Receives as many messages as `room` has elements, and returns those that are replies to requests of this socket.
/// There may be more messages. Does not block.
std::span<EchoAnswer> take_echoes(const EchoSocket& echo, std::span<EchoAnswer> room);

}  // namespace weft
