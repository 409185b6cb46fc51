// steering.h - which queue of a TUN, and so which lane, a packet from this host gets.
//
// The kernel's own rule hashes addresses and ports. A fragment has no ports, so that it gets another queue than the
// whole datagrams of its flow, and overtakes them. The program here does as network cards do by default: TCP by
// addresses and ports, everything else by addresses alone. A fragment of TCP goes by addresses alone too, since TCP
// puts its segments in order by itself.
//
// The hash is the same in both directions of a flow, and on all hosts. So where two hosts have the same number of
// lanes, a flow has one lane for both directions.
#pragma once

#include "system.h"

namespace weft {

/// Has the TUN of this queue choose queues so. Fails without the right to load a program (CAP_BPF), or on a kernel
/// before 4.16: the kernel's own rule stays.
Failure steer_by_addresses(int tun);

/// Has the TUN choose queues by the kernel's own rule.
void steer_by_kernel(int tun);

}  // namespace weft
