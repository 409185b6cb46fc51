// tun.h - opens a TUN device, negotiates its offloads, and reads its switches.
#pragma once

#include <string>

#include "../core/features.h"
#include "system.h"

namespace weft {

struct Tun {
  Fd fd;
  std::string name;       ///< the name that the kernel chose
  uint32_t features = 0;  ///< those of kTunHeader, kTunCsum, kTunTso, kTunUso that the kernel granted
};

/// Opens one non-blocking queue of a TUN without packet information. `name` may be a pattern with %d, for which the
/// kernel takes the first free number. It may also be the name of a persistent device with the same kind of queues,
/// single or multiple (EINVAL otherwise). `wanted` is the set of requested features.
Failure open_tun(const std::string& name, bool multi_queue, uint32_t wanted, Tun& tun);

/// The switches of a device that allow received packets to be joined into superpackets (ethtool(8), -k); the kernel's
/// own GRO obeys them too. The host's packet filter sees a superpacket as one packet.
struct JoinSwitches {
  bool tcp = true;   ///< generic-receive-offload (rx-gro), which is on unless an operator switches it off
  bool udp = false;  ///< also rx-udp-gro-forwarding, which is off unless switched on; Linux 5.12
};

/// Reads the switches of a device. If the kernel does not answer, they have their defaults.
JoinSwitches join_switches(const std::string& device);

/// If `persistent`, the device keeps existing, with its addresses and routes, after its last queue is closed.
Failure set_persistent(int tun, bool persistent);

}  // namespace weft
