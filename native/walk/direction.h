// direction.h - the common interface of the egress (TUN to peers) and the ingress (peers to TUN) of a loop, and the
// data that both get.
#pragma once

#include <algorithm>

#include "../core/counters.h"
#include "../core/drops.h"
#include "../core/encapsulation.h"
#include "../core/features.h"
#include "../core/filter.h"
#include "../core/icmp.h"
#include "../core/traffic.h"
#include "../io/path_probe.h"
#include "../io/system.h"
#include "../io/udp.h"

namespace weft {

/// The resources that both directions of a loop share: descriptors, addresses, and objects that outlive the directions.
struct Path {
  int tun = -1;
  ByFamily<Sockets> sockets = {};
  ByFamily<Address> tun_address = {};  ///< the TUN's own addresses, which ICMP errors to peers have as their source
  /// The source addresses of ICMP errors that the engine writes into the TUN. The IPv4 address must not be this host's
  /// own, because the kernel drops packets whose source is an address of the host.
  ByFamily<Address> network_address = {};
  Features* features = nullptr;
  CounterRow counters = CounterRow(nullptr);
  TrafficRows* traffic = nullptr;
  Drops* tx_drops = nullptr;  ///< the packets that the egress dropped
  Drops* rx_drops = nullptr;
  FilterOptions filter = {};
  UnknownSenders* unknown_senders = nullptr;  ///< the senders whose packets the filter dropped
  IcmpLimits* icmp = nullptr;                 ///< shared by all loops
  size_t clamp_mtu = 0;  ///< the TUN's MTU, if weft lowers the MSS in SYNs to fit it; 0 if it does not
};

struct Pump {
  size_t items = 0;    ///< the number of reads from the TUN, or of messages from the socket
  size_t carried = 0;  ///< the number of forwarded packets and superpackets
  size_t refused = 0;  ///< the number of dropped packets and superpackets
  Failure failure;     ///< set if the loop cannot continue
};

/// Converts a path MTU to the form that PathMtu stores. The MTU of an IPv6 path is reduced by 20 bytes, the extra
/// length of the IPv6 header, so that all other code can subtract the length of IPv4 headers. 0 means "unknown" and
/// stays 0.
inline size_t as_of_ipv4(size_t path_bytes, const Endpoint& endpoint) {
  constexpr size_t kLongerBytes = kIpv6HeaderBytes - kIpv4HeaderBytes;
  return endpoint.outer == 6 && path_bytes > kLongerBytes ? path_bytes - kLongerBytes : path_bytes;
}

/// Queries the kernel for the path MTU to endpoints, and stores the answers in the endpoints. Only one thread at a time
/// may use the object.
class PathQueries {
 public:
  explicit PathQueries(const ByFamily<Sockets>& sockets)
      : probes_{PathProbe(bound_address(sockets.ipv4.sender)), PathProbe(bound_address(sockets.ipv6.sender))} {}
  /// Queries the kernel if the endpoint's path MTU is unknown or too old.
  void refresh(const Endpoint& endpoint, int64_t now_ms) {
    if (!endpoint.path.is_due(now_ms)) return;
    const size_t bytes = probes_.of(endpoint.outer).ask(endpoint.to());
    endpoint.path.learn(as_of_ipv4(bytes, endpoint), now_ms);
  }

 private:
  ByFamily<PathProbe> probes_;
};

/// The smallest plausible MTU for inner packets, in bytes. A path MTU that leaves less for inner packets is ignored.
constexpr size_t kLeastMtu = 256;

/// Returns the length of the longest inner packet for a path MTU of `path_bytes` bytes, if the encapsulation adds
/// `encap_bytes` bytes. If the MTU is unknown (0) or implausibly small, the kernel fragments datagrams, and the maximum
/// datagram size is the limit.
inline size_t longest_within(size_t path_bytes, size_t encap_bytes) {
  const size_t before = kOuterBytes + encap_bytes;
  return path_bytes >= before + kLeastMtu ? path_bytes - before : kMaxDatagramBytes - encap_bytes;
}

/// Returns the length of the longest inner packet to an endpoint: the smaller of the kernel's path MTU and the limit
/// that probes found.
inline size_t longest_to(const Endpoint& endpoint, size_t encap_bytes) {
  const size_t known = longest_within(endpoint.path.bytes(), encap_bytes);
  return endpoint.limit == 0 ? known : std::min<size_t>(known, endpoint.limit);
}

class Direction {
 public:
  virtual ~Direction() = default;
  /// Forwards one batch of packets. Only one thread at a time calls pump(), which blocks only while a socket buffer is
  /// full, and only for a limited time (io/sender.h).
  virtual Pump pump() = 0;
  /// Queries how many packets the kernel has dropped since the last call, and adds them to the counters. The loop calls
  /// count() when another thread wakes it, and when it ends.
  virtual void count() {}
  /// The longest time between two calls of tick(), in milliseconds; -1 if tick() does nothing.
  virtual int tick_ms() const { return -1; }
  /// Runs the encapsulation's timers. Called by the loop's thread. If tick() returns true, the caller must call rest()
  /// of all directions, which wipes unused keys.
  virtual bool tick() { return false; }
  /// Wipes copies of keys that the encapsulation has not used for some seconds. Called by the loop's thread.
  virtual void rest() {}
};

}  // namespace weft
