// udp.h - opening the UDP socket that carries the overlay.
#pragma once

#include <netinet/in.h>

#include <string>
#include <vector>

#include "engine_features.h"
#include "system.h"

namespace weft {

struct UdpSocket {
  Fd fd;
  uint32_t features = 0;         ///< of kUdpGso, kUdpGro: what the kernel took
  int receive_buffer_bytes = 0;  ///< as granted
  int send_buffer_bytes = 0;
};

/// What is asked for: a burst of 64-byte packets takes about 0.8 KB each in the kernel's accounting, and 16 MiB took
/// the retransmissions of eight TCP streams from 28,000 to none.
constexpr int kReceiveBufferBytes = 16 << 20;
constexpr int kSendBufferBytes = 4 << 20;

/// Opens and binds the socket. `shared` lets several sockets bind to the one port (SO_REUSEPORT). The socket blocks
/// when sending, for at most 10 ms, so that a full queue pushes back for a moment; reading is done with MSG_DONTWAIT.
Failure open_udp(const sockaddr_in& address, bool shared, uint32_t wanted, UdpSocket& socket);

}  // namespace weft
