// descriptors.h - the descriptors that an engine needs. weftd opens them, or inherits them from the previous process.
#pragma once

#include <string>
#include <vector>

#include "../core/features.h"
#include "../io/system.h"
#include "../io/udp.h"

namespace weft {

/// A loop's UDP sockets in one IP family. Both members are empty if the loop has no sockets in the family.
struct LoopSockets {
  Fd receiver;  ///< receives on weft's well-known port
  Fd sender;    ///< sends; empty if the loop sends from `receiver`
};

struct LoopDescriptors {
  Fd tun;
  ByFamily<LoopSockets> sockets;
};

struct Descriptors {
  std::string tun_name;   ///< the interface name that the kernel chose
  uint32_t features = 0;  ///< the features that the kernel granted and that have not failed since
  std::vector<LoopDescriptors> loops;
  Fd handover_state;  ///< the saved sessions of the previous engine (io/handover_state.h); empty if there are none
};

struct OpenOptions {
  std::string tun_name;  ///< the interface name, or a pattern with %d
  SocketAddress bind_address;
  size_t workers = 1;
  uint32_t features = kAllFeatures;  ///< the requested features
};

struct ReceiveBuffer {
  int asked_bytes = 0;
  int granted_bytes = 0;
};

/// The sockets of one IP family, for all loops.
struct FamilySockets {
  uint32_t features = 0;  ///< the socket features that the kernel granted to all sockets
  ReceiveBuffer receive_buffer;
  std::vector<LoopSockets> loops;
};

Failure open_sockets(const OpenOptions& options, FamilySockets& result);

/// Opens the TUN queues and the sockets of one family for `workers` loops.
Failure open_descriptors(const OpenOptions& options, Descriptors& descriptors, ReceiveBuffer& receive_buffer);

}  // namespace weft
