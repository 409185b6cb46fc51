// traffic_control.h - attaches eBPF programs to interfaces with tc (rtnetlink(7), tc-bpf(8)).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "system.h"

namespace weft {

/// The hook of an interface at which eBPF programs see each received packet (ingress) or each sent packet (egress).
struct Hook {
  uint32_t index;  ///< the index of the interface
  bool is_egress;
};

struct TcFilter {
  uint16_t priority;  ///< a filter with a lower number runs earlier
  std::string kind, name;
};

/// Attaches a program with weft's priority. Replaces an earlier program of weft without a gap: each packet passes the
/// old or the new program.
Failure attach_program(const Hook& hook, int program, const std::string& name);
/// Detaches the program that has weft's priority. Also succeeds if no program has that priority.
Failure detach_program(const Hook& hook);
/// Lists the filters of the hook; none if the interface has no clsact qdisc.
Failure list_filters(const Hook& hook, std::vector<TcFilter>& filters);
/// Returns the interface's features that are switched on (`ethtool -k`) as hexadecimal text; an empty text if the
/// interface is gone.
std::string active_features(const std::string& interface);
/// The features that set_offload() can switch (`ethtool -K`): the merging of received packets (GRO), and the sending of
/// TCP superpackets (TSO).
enum class Offload { kGro, kTso };
Failure set_offload(const std::string& interface, Offload offload, bool is_on);

}  // namespace weft
