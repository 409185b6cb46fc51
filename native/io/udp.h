// udp.h - opens the UDP sockets of the overlay.
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
  uint32_t features = 0;         ///< those of kUdpGso, kUdpGro that the kernel granted
  int receive_buffer_bytes = 0;  ///< the size that the kernel granted
};

/// The receive buffer of all workers together, and the minimum for each. A 64-byte packet takes about 0.8 KB in the
/// kernel's accounting. With 16 MiB eight TCP streams had no retransmissions, with less they had 28,000. Packets in the
/// buffer delay later ones, so several lanes get a smaller buffer each.
constexpr int kReceiveBufferBytes = 16 << 20;
constexpr int kLeastReceiveBufferBytes = 2 << 20;
constexpr int kSendBufferBytes = 4 << 20;

// How flows are assigned to workers. A TUN queue has whole flows, and worker k sends the packets of its queue from its
// own source port: P + 240 n + k for the well-known port P, with the smallest n whose port is free. A receiver gives a
// datagram from such a port to its worker (source port - P) modulo its number of workers. So a flow stays with one
// worker on each side, and stays in order.
//
// io/steering.h chooses the queue of a flow, or else the kernel does. The kernel moves a flow to the queue to which its
// other direction was written, so any other rule for the receiver could move a flow from worker to worker forever. 240
// is a multiple of the usual numbers of workers. A datagram from P itself, as flannel and single workers send it, goes
// to a worker chosen by source address.

/// Whether a socket shares its port with others of this process (SO_REUSEPORT).
enum class Share : uint8_t {
  kNo,
  kBegin,  ///< Later sockets may join this one. Fails if another process has the port, even if that one would share it.
  kJoin,
};

/// Opens and binds a socket, to be used with MSG_DONTWAIT.
Failure open_udp(const SocketAddress& address, Share share, int receive_buffer_bytes, uint32_t wanted,
                 UdpSocket& socket);

/// Opens the sending socket of worker `worker`, if there are several workers.
Failure open_sender(const SocketAddress& address, size_t worker, uint32_t wanted, UdpSocket& socket);

/// Sends one datagram without blocking. Returns false if the kernel refused it.
bool send_now(int socket, const SocketAddress& to, std::span<const uint8_t> datagram);

/// Returns the address that a UDP socket is bound to; an empty address for any other socket.
SocketAddress bound_address(int socket);

sa_family_t family_of(int socket);

/// Attaches the rule above to the sockets that share `address`. All of them must be open, and `first` must be the first
/// one. Returns false if the kernel refuses.
bool spread_by_source(const UdpSocket& first, const SocketAddress& address, size_t workers);

}  // namespace weft
