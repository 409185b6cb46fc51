// echo.h - ICMP echo requests and replies over IPv4 (RFC 792) and IPv6 (RFC 4443), which probe whether a peer answers,
// and how fast.
#pragma once

#include <cstdint>
#include <span>

#include "../core/address.h"
#include "../core/packet.h"
#include "system.h"

namespace weft {

/// A socket for ICMP or ICMPv6 echo requests. The kernel's ping sockets (SOCK_DGRAM; Linux 3.0, for IPv6 3.11; icmp(7))
/// need no privilege for groups in net.ipv4.ping_group_range, which applies to IPv4 and IPv6. A raw socket needs
/// CAP_NET_RAW.
struct Echo {
  Fd fd;
  bool raw = false;
  /// A number that all requests of this socket contain. It is needed because a raw socket also receives the replies to
  /// other programs' requests.
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
  int64_t microseconds;  ///< the time from the request to the reply, from the kernel's timestamp of the reply
};

/// Opens a socket that sends echo requests from `source`, an address of this host.
Failure open_echo(const Address& source, Echo& echo);

/// Sends an echo request as an IP packet of `bytes` bytes that must not be fragmented; a smaller `bytes` gives the
/// shortest possible request. `to` must be of the socket's IP family. Does not block.
Failure send_echo(const EchoSocket& echo, const Address& to, uint16_t sequence, size_t bytes);

constexpr size_t kMaxEchoBytes = 64;

/// Writes the shortest possible echo request as an IP packet, so that the caller can send it through the tunnel in a
/// datagram of IP version `outer`. The request contains this version, so that the peer's engine sends the reply in a
/// datagram of the same version. `echo` receives the reply. Returns the length of the packet, or 0 if the socket has no
/// identifier.
size_t write_echo(const EchoSocket& echo, const Address& from, const Address& to, uint16_t sequence, uint8_t outer,
                  std::span<uint8_t, kMaxEchoBytes> packet);

/// Returns the IP version that a request of write_echo() named, if the packet is the reply to it; 0 for any other
/// packet.
uint8_t version_for_reply(const uint8_t* bytes, const Packet& packet);

/// Receives at most as many messages as `room` has elements, and returns those that are replies to requests of this
/// socket. More messages may still wait afterwards. Does not block.
std::span<EchoAnswer> take_echoes(const EchoSocket& echo, std::span<EchoAnswer> room);

}  // namespace weft
