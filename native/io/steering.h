// steering.h - chooses the TUN queue, and so the loop thread, of each packet from this host.
//
// The kernel's own rule hashes addresses and ports. A fragment has no ports. So the kernel's rule may put it into a
// different queue than the unfragmented packets of its flow, and it may overtake them. weft's eBPF program hashes as
// network cards do by default: TCP by addresses and ports, all other protocols by addresses only. A TCP fragment is
// also hashed by addresses only, because TCP itself restores the order of its segments.
//
// The hash is the same for both directions of a flow, and on all hosts. So if two hosts have the same number of loops,
// both directions of a flow use the same loop.
#pragma once

#include "system.h"

namespace weft {

/// Makes the TUN choose queues by weft's hash of addresses. Fails without the right to load an eBPF program (CAP_BPF),
/// and before Linux 4.16; in that case the kernel's own rule stays in use.
Failure steer_by_addresses(int tun);

/// Makes the TUN choose queues by the kernel's own rule again.
void steer_by_kernel(int tun);

}  // namespace weft
