// tun.h - opens a TUN device, negotiates its offloads, and reads its ethtool switches.
#pragma once

#include <string>

#include "../core/features.h"
#include "system.h"

namespace weft {

struct Tun {
  Fd fd;
  std::string name;       ///< the name that the kernel chose
  uint32_t features = 0;  ///< which of kTunHeader, kTunCsum, kTunTso and kTunUso the kernel granted
};

/// Opens one non-blocking queue of a TUN without packet information. `name` may be a pattern with %d, which the kernel
/// completes with the first free number, or the name of a persistent TUN. Fails with EINVAL if a persistent TUN has a
/// single queue but `multi_queue` is true, or the reverse. `wanted` has the requested features.
Failure open_tun(const std::string& name, bool multi_queue, uint32_t wanted, Tun& tun);

/// Returns the interface name that an open TUN has now, because another program may rename it; empty if the device was
/// deleted.
std::string tun_name(int tun);

/// The switches of a device that allow received packets to be merged into superpackets (ethtool(8), -k). The kernel's
/// own GRO uses the same switches. An operator may turn the switches off, because the host's packet filter sees a
/// superpacket as one packet.
struct JoinSwitches {
  bool tcp = true;   ///< generic-receive-offload (rx-gro), which is on by default
  bool udp = false;  ///< true if both rx-gro and rx-udp-gro-forwarding (Linux 5.12, by default off) are on
};

/// Reads the switches of a device. If the kernel does not answer, returns the defaults of JoinSwitches.
JoinSwitches join_switches(const std::string& device);

/// Sets whether the kernel keeps the TUN, with its addresses and routes, after its last queue is closed.
Failure set_persistent(int tun, bool persistent);

}  // namespace weft
