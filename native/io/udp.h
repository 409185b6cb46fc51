// udp.h - opens the UDP sockets that carry the tunnel's datagrams.
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
  uint32_t features = 0;         ///< which of kUdpGso and kUdpGro the kernel granted
  int receive_buffer_bytes = 0;  ///< the size of the receive buffer that the kernel granted
};

/// A loop's UDP sockets in one IP family, as descriptors. All members are -1 if the loop has no sockets in the family.
struct Sockets {
  int receiver = -1;  ///< receives on weft's well-known port
  int sender = -1;    ///< sends from a port of the loop's own, or is `receiver`
  /// The socket that sends from weft's well-known port, for peers that reply to the source port of datagrams. It is
  /// `receiver`, except for WireGuard. With WireGuard all loops send from the first loop's socket, because all threads
  /// share the packet counter of a session: a fair queue (fq) serves sockets alternately, so packets from several
  /// sockets would arrive out of order.
  int known = -1;
};

/// The receive buffer in bytes of all workers (loop threads) together. kLeastReceiveBufferBytes is the minimum for each
/// worker. A 64-byte packet takes about 0.8 KB in the kernel's accounting. With 16 MiB a test with eight TCP streams
/// had no retransmissions; with a smaller buffer it had 28,000. Packets in the buffer delay later packets, so each of
/// several workers gets a smaller buffer.
constexpr int kReceiveBufferBytes = 16 << 20;
constexpr int kLeastReceiveBufferBytes = 2 << 20;
constexpr int kSendBufferBytes = 4 << 20;

// How flows are assigned to workers (loop threads). A TUN queue gets whole flows, and worker k sends the packets of its
// queue from its own source port: P + 240 n + k for the well-known port P, with the smallest n whose port is free. A
// receiving host gives a datagram from such a port to its own worker with the number (source port - P) modulo the
// receiving host's number of workers. So a flow stays with one worker on each side, and stays in order.
//
// io/steering.h or else the kernel chooses the queue of a flow. The kernel moves a flow to the queue to which the
// flow's reverse direction was written, so any other rule for the receiver could move a flow from worker to worker
// forever. 240 is a multiple of the usual numbers of workers. A datagram from P itself, as flannel and single workers
// send it, goes to a worker chosen by source address.

/// Whether a socket shares its port with other sockets of this process (SO_REUSEPORT).
enum class Share : uint8_t {
  kNo,
  /// The first socket of a group, whose port later sockets may share. Opening this socket fails if another process has
  /// the port, even if that process would share the port.
  kBegin,
  kJoin,
};

/// Opens and binds a UDP socket. The socket is in blocking mode, so the caller must pass MSG_DONTWAIT to each call that
/// sends or receives.
Failure open_udp(const SocketAddress& address, Share share, int receive_buffer_bytes, uint32_t wanted,
                 UdpSocket& socket);

/// Opens the sending socket of worker number `worker`. A worker needs a sending socket only if there are several
/// workers.
Failure open_sender(const SocketAddress& address, size_t worker, uint32_t wanted, UdpSocket& socket);

/// Sends one datagram without blocking. Returns false if the system call failed, with its error in errno.
bool send_now(int socket, const SocketAddress& to, std::span<const uint8_t> datagram);

/// Returns the address to which a UDP socket is bound; an empty address for any other descriptor.
SocketAddress bound_address(int socket);

/// Makes the kernel choose the receiving socket of a datagram by its source port: among the sockets that share
/// `address`, a datagram from port P + k goes to socket k modulo `workers`, where P is the port of `address`. All
/// sockets must be open, and `first` must have been bound first. Returns false if the kernel rejects the rule.
bool spread_by_source(const Fd& first, const SocketAddress& address, size_t workers);

}  // namespace weft
