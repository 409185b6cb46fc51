// direction.h - the interface of the two directions of a loop, and the data that both get.
#pragma once

#include <algorithm>

#include "../core/counters.h"
#include "../core/drops.h"
#include "../core/encapsulation.h"
#include "../core/features.h"
#include "../core/filter.h"
#include "../core/icmp.h"
#include "../core/traffic.h"
#include "../io/system.h"

namespace weft {

/// The environment of both directions. Everything here outlives them.
struct Path {
  int tun = -1;
  int socket = -1;        ///< receives on the well-known port
  int sender = -1;        ///< sends; the same as `socket`, or one with its own source port
  int other_socket = -1;  ///< The two sockets of the other family; -1 if datagrams are of one family.
  int other_sender = -1;
  /// The sockets that send from the port that peers know, one per family; -1: use the lane's own. Packets of a session
  /// share one counter, and a fair queue (fq) serves each socket in turn. So all lanes send them through one socket.
  int known = -1;
  int other_known = -1;
  ByFamily<Address> tun_address = {};  ///< the source addresses of ICMP errors to peers
  /// The source addresses of ICMP errors into the TUN. The kernel would refuse its own IPv4 address as a source.
  ByFamily<Address> network_address = {};
  Features* features = nullptr;
  CounterRow counters = CounterRow(nullptr);
  TrafficRows* traffic = nullptr;
  Drops* tx_drops = nullptr;  ///< the drops of the egress
  Drops* rx_drops = nullptr;
  FilterOptions filter = {};
  UnknownSenders* unknown_senders = nullptr;  ///< records whose packets were refused
  IcmpLimits* icmp = nullptr;                 ///< shared by all loops
  size_t clamp_mtu = 0;  ///< the TUN's MTU if the MSS of new connections is lowered to fit it; else 0

  int known_socket() const { return known >= 0 ? known : socket; }
  int other_known_socket() const { return other_known >= 0 ? other_known : other_socket; }
};

struct Pump {
  size_t items = 0;    ///< reads or messages
  size_t carried = 0;  ///< packets or superpackets that were forwarded
  size_t refused = 0;  ///< packets or superpackets that were dropped
  Failure failure;     ///< set if the path cannot continue
};

/// Converts an endpoint's path MTU to the form that PathMtu stores. The MTU of an IPv6 path is reduced by the extra
/// length of the IPv6 header, so that the rest of the code uses the overhead of IPv4. 0 means "unknown" and stays 0.
inline size_t as_of_ipv4(size_t path_bytes, const Endpoint& endpoint) {
  constexpr size_t kLongerBytes = kIpv6HeaderBytes - kIpv4HeaderBytes;
  return endpoint.to.family() == AF_INET6 && path_bytes > kLongerBytes ? path_bytes - kLongerBytes : path_bytes;
}

/// A path MTU that leaves less than this for a packet is implausible.
constexpr size_t kLeastMtu = 256;

/// Returns the length of the longest packet that fits in a datagram of `path_bytes` with `encap_bytes` around the
/// packet. If the MTU is unknown (0) or implausibly small, the kernel fragments datagrams, and the maximum datagram
/// size is the limit.
inline size_t longest_within(size_t path_bytes, size_t encap_bytes) {
  const size_t before = kOuterBytes + encap_bytes;
  return path_bytes >= before + kLeastMtu ? path_bytes - before : kMaxDatagramBytes - encap_bytes;
}

/// Returns the length of the longest packet to an endpoint, by the kernel's path MTU and by probes.
inline size_t longest_to(const Endpoint& endpoint, size_t encap_bytes) {
  const size_t known = longest_within(endpoint.path.bytes(), encap_bytes);
  return endpoint.limit == 0 ? known : std::min<size_t>(known, endpoint.limit);
}

class Direction {
 public:
  virtual ~Direction() = default;
  /// Moves one batch. Called by one thread at a time. It blocks only while a socket buffer is full, and for a limited
  /// time (io/sender.h).
  virtual Pump pump() = 0;
  /// Updates the counters that the kernel reports only on request. Called by the loop's thread from time to time.
  virtual void count() {}
  /// The longest interval between two calls of tick(), in milliseconds; -1 if tick() is not needed.
  virtual int tick_ms() const { return -1; }
  /// Runs the encapsulation's timers. Called by the loop's thread. Returns true if rest() of all directions must be
  /// called.
  virtual bool tick() { return false; }
  /// Wipes keys that the encapsulation has not used for a while. Called by the loop's thread.
  virtual void rest() {}
};

}  // namespace weft
