// udp.h - opening the UDP socket that carries the overlay.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "../core/address.h"
#include "../core/features.h"
#include "system.h"

namespace weft {

struct UdpSocket {
  Fd fd;
  uint32_t features = 0;         ///< those of kUdpGso, kUdpGro that the kernel took
  int receive_buffer_bytes = 0;  ///< as granted
};

/// The buffer that is asked for, for all workers together and for one at least: a burst of 64-byte packets takes
/// about 0.8 KB each in the kernel's accounting, and 16 MiB took the retransmissions of eight TCP streams from 28,000
/// to none. Data in it delays what comes later, so that a lane among others has less.
constexpr int kReceiveBufferBytes = 16 << 20;
constexpr int kLeastReceiveBufferBytes = 2 << 20;
constexpr int kSendBufferBytes = 4 << 20;

// Workers share one peer's traffic by flows. A TUN queue holds whole flows, and a worker sends what its queue holds
// from a source port of its own: P + 240 k + worker for the port P, with the least k that is free. The receiver gives a
// datagram from there to its worker (source port - P) modulo its workers. So a flow stays with one worker on each side
// and in order. io/steering.h chooses the queue of a flow, or else the kernel's rule does. The kernel gives a flow the
// queue to which its other direction was written, so any other rule for the receiver could move a flow from worker to
// worker forever. 240 is a multiple of the usual numbers of workers. A datagram from P itself, as flannel and single
// workers send it, goes to a worker chosen by source address.

/// Says whether a socket shares its port with others of this process (SO_REUSEPORT).
enum class Share : uint8_t {
  kNo,
  kBegin,  ///< later ones may join it; fails where another has the port, also one that would share it
  kJoin,
};

/// Opens and binds the socket. It is sent and received by with MSG_DONTWAIT.
Failure open_udp(const SocketAddress& address, Share share, int receive_buffer_bytes, uint32_t wanted,
                 UdpSocket& socket);

/// Opens the socket that worker `worker` sends by, where there are several.
Failure open_sender(const SocketAddress& address, size_t worker, uint32_t wanted, UdpSocket& socket);

/// Sends one datagram. Does not block. False when it was refused.
bool send_now(int socket, const SocketAddress& to, std::span<const uint8_t> datagram);

/// The address that a UDP socket is bound to; none for a socket of another kind.
SocketAddress bound_address(int socket);

/// The address family of a socket.
sa_family_t family_of(int socket);

/// Attaches the rule above to the sockets that share `address`, all of them open; `first` is the first of them. False
/// when the kernel refuses.
bool spread_by_source(const UdpSocket& first, const SocketAddress& address, size_t workers);

}  // namespace weft
