// steering.h - chooses the queue of the TUN, and so the lane, for each packet from this host.
//
// The kernel's own rule hashes addresses and ports. A fragment has no ports, so it gets a different queue from the
// whole datagrams of its flow, and overtakes them. The program here hashes as network cards do by default: TCP by
// addresses and ports, everything else by addresses only. A TCP fragment is also hashed by addresses only, since TCP
// puts its segments in order itself.
//
// The hash is the same in both directions of a flow, and on all hosts. So if two hosts have the same number of lanes,
// a flow uses the same lane in both directions.
#pragma once

#include "system.h"

namespace weft {

/// Makes the TUN of this queue choose queues by this hash. Fails without the right to load a program (CAP_BPF) and on
/// kernels before 4.16; then the kernel's own rule stays in use.
Failure steer_by_addresses(int tun);

/// Makes the TUN choose queues by the kernel's own rule.
void steer_by_kernel(int tun);

}  // namespace weft
