// tun.h - opening a TUN device and agreeing on offloads with it.
#pragma once

#include <string>

#include "../core/features.h"
#include "system.h"

namespace weft {

struct Tun {
  Fd fd;
  std::string name;       ///< as the kernel gave it
  uint32_t features = 0;  ///< those of kTunHeader, kTunCsum, kTunTso, kTunUso that the kernel took
};

/// Opens one queue of a TUN without packet information, non-blocking. `name` may be a pattern with %d, of which the
/// kernel takes the first free one, or that of a device that persists and has as many queues, one or several (EINVAL
/// otherwise). Of `wanted` it takes the tun features that the kernel grants.
Failure open_tun(const std::string& name, bool multi_queue, uint32_t wanted, Tun& tun);

/// The switches of a device that allow received packets to be joined into superpackets (ethtool(8), -k); the kernel's
/// own GRO obeys them too. The host's packet filter sees a superpacket as one packet.
struct JoinSwitches {
  bool tcp = true;   ///< generic-receive-offload (rx-gro), which is on unless an operator switches it off
  bool udp = false;  ///< also rx-udp-gro-forwarding, which is off unless switched on; Linux 5.12
};

/// Reads the switches of a device. If the kernel does not answer, they have their defaults.
JoinSwitches join_switches(const std::string& device);

/// Makes the device stay, or not, with its addresses and routes, when its last queue is closed.
Failure set_persistent(int tun, bool persistent);

}  // namespace weft
