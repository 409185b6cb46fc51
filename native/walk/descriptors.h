// descriptors.h - what an engine moves packets through, opened: here, or by a process that went before.
#pragma once

#include <string>
#include <vector>

#include "../core/features.h"
#include "../io/system.h"
#include "../io/udp.h"

namespace weft {

struct LoopDescriptors {
  Fd tun;
  Fd socket;
  Fd sender;        ///< none where the loop sends by the socket that it receives by
  Fd other_socket;  ///< the two of the other family; none where datagrams are of one
  Fd other_sender;
};

struct Descriptors {
  std::string tun_name;   ///< as the kernel gave it
  uint32_t features = 0;  ///< granted, less those that failed since
  std::vector<LoopDescriptors> loops;
  Fd bequest;  ///< the sessions of the engine that ran on them (io/bequest.h); none where there are none to go on with
};

struct OpenOptions {
  std::string tun_name;  ///< or a pattern with %d
  SocketAddress bind_address;
  size_t workers = 1;
  uint32_t features = kAllFeatures;  ///< those wanted
};

/// The receive buffer of one socket.
struct ReceiveBuffer {
  int asked_bytes = 0;
  int granted_bytes = 0;
};

/// The sockets of one family for all loops.
struct LoopSockets {
  uint32_t features = 0;  ///< granted, of those of a socket
  ReceiveBuffer receive_buffer;
  std::vector<UdpSocket> sockets;
  std::vector<UdpSocket> senders;  ///< none in place of each where there is one loop
};

/// Opens the sockets alone, of the family of the address.
Failure open_sockets(const OpenOptions& options, LoopSockets& result);

/// Opens all that `workers` loops need to carry datagrams of one family.
Failure open_descriptors(const OpenOptions& options, Descriptors& descriptors, ReceiveBuffer& receive_buffer);

}  // namespace weft
