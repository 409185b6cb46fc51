// udp.h - opening the UDP socket that carries the overlay.
#pragma once

#include <netinet/in.h>

#include <string>
#include <vector>

#include "../core/features.h"
#include "system.h"

namespace weft {

struct UdpSocket {
  Fd fd;
  uint32_t features = 0;         ///< of kUdpGso, kUdpGro: what the kernel took
  int receive_buffer_bytes = 0;  ///< as granted
};

/// What is asked for: a burst of 64-byte packets takes about 0.8 KB each in the kernel's accounting, and 16 MiB took
/// the retransmissions of eight TCP streams from 28,000 to none.
constexpr int kReceiveBufferBytes = 16 << 20;
constexpr int kSendBufferBytes = 4 << 20;

// How several workers share one peer's traffic. A TUN queue holds whole flows, and a worker sends what its queue holds
// from a source port of its own: P + 240 k + worker for the port P, with the least k that is free. The receiver gives a
// datagram from there to its worker (source port - P) modulo its workers. So a flow stays with one worker on each side
// and in order, and the way back is the same worker's: the kernel steers a flow to the queue that its other direction
// was written to, so that any other rule could send it around in circles. 240 is a multiple of the usual numbers of
// workers. A datagram from P itself, as flannel and single workers send them, goes to a worker by source address.

/// Opens and binds the socket. `shared` lets several sockets bind to the one port (SO_REUSEPORT). It is sent and
/// received by with MSG_DONTWAIT.
Failure open_udp(const sockaddr_in& address, bool shared, uint32_t wanted, UdpSocket& socket);

/// Opens the socket that worker `worker` sends by, where there are several.
Failure open_sender(const sockaddr_in& address, size_t worker, uint32_t wanted, UdpSocket& socket);

/// Attaches the rule above to the sockets that share `address`, all of them open; `first` is the first of them. False
/// when the kernel refuses.
bool spread_by_source(const UdpSocket& first, const sockaddr_in& address, size_t workers);

}  // namespace weft
