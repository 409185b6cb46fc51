// direction.h - what the two directions of a loop share: what each is given, and what it tells the loop.
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

/// All of it outlives the directions.
struct Path {
  int tun = -1;
  int socket = -1;        ///< receives, on the port that peers know
  int sender = -1;        ///< sends: the same socket, or one with a source port of its own
  int other_socket = -1;  ///< the two of the other family, where datagrams are of both; else none
  int other_sender = -1;
  /// The sockets that send from the port that peers know, one per family; -1: use the lane's own. Packets of a session
  /// share one counter, and a fair queue (fq) serves each socket in turn. So all lanes send them through one socket.
  int known = -1;
  int other_known = -1;
  ByFamily<Address> tun_address = {};  ///< the source of ICMP errors to peers
  ByFamily<Address> network_address =
      {};                   ///< the same of those into the TUN: by IPv4 the kernel refuses one of its own
  Features* features = nullptr;
  CounterRow counters = CounterRow(nullptr);
  TrafficRows* traffic = nullptr;
  Drops* tx_drops = nullptr;  ///< the drops of the egress; below: those of the ingress
  Drops* rx_drops = nullptr;
  FilterOptions filter = {};       ///< chooses the packets from peers that are let in
  Strangers* strangers = nullptr;  ///< hears whose packets were not let in
  IcmpLimits* icmp = nullptr;      ///< shared by all loops
  size_t clamp_mtu = 0;            ///< the TUN's MTU, when TCP is to begin with segments that fit; else 0

  int known_socket() const { return known >= 0 ? known : socket; }
  int other_known_socket() const { return other_known >= 0 ? other_known : other_socket; }
};

/// The outcome of one turn.
struct Pump {
  size_t items = 0;    ///< reads or messages
  size_t carried = 0;  ///< packets that went on, or superpackets
  size_t refused = 0;  ///< those that were dropped
  Failure failure;     ///< the path cannot go on
};

/// The MTU of the path to an endpoint as PathMtu keeps it: as if it were of IPv4, whose header is that much shorter, so
/// that what is left in a datagram is found by one rule. 0 stays: not known.
inline size_t as_of_ipv4(size_t path_bytes, const Endpoint& endpoint) {
  constexpr size_t kLongerBytes = kIpv6HeaderBytes - kIpv4HeaderBytes;
  return endpoint.to.family() == AF_INET6 && path_bytes > kLongerBytes ? path_bytes - kLongerBytes : path_bytes;
}

/// A path that takes no packet of so many bytes takes next to nothing.
constexpr size_t kLeastMtu = 256;

/// The longest packet that a path of `path_bytes` takes, in a datagram with `encap_bytes` around it. Where the path is
/// not known, which is 0, or takes next to nothing, the kernel fragments datagrams, and it is what one may hold.
inline size_t longest_within(size_t path_bytes, size_t encap_bytes) {
  const size_t before = kOuterBytes + encap_bytes;
  return path_bytes >= before + kLeastMtu ? path_bytes - before : kMaxDatagramBytes - encap_bytes;
}

/// The same to an endpoint, by all that is known of it.
inline size_t longest_to(const Endpoint& endpoint, size_t encap_bytes) {
  const size_t known = longest_within(endpoint.path.bytes(), encap_bytes);
  return endpoint.limit == 0 ? known : std::min<size_t>(known, endpoint.limit);
}

class Direction {
 public:
  virtual ~Direction() = default;
  /// Moves one batch. Does not block, but for a full socket buffer (io/sender.h). Run by one thread at a time.
  virtual Pump pump() = 0;
  /// Counts what the kernel tells only when it is asked. By the same thread, now and then.
  virtual void count() {}
  /// tick() is to be called this often at least, in milliseconds; -1: never.
  virtual int tick_ms() const { return -1; }
  /// Does what an encapsulation with timers has to do. By the same thread. True when all directions are to rest().
  virtual bool tick() { return false; }
  /// Wipes what an encapsulation has not used for a while. By the same thread.
  virtual void rest() {}
};

}  // namespace weft
