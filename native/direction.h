// direction.h - what the two directions of a loop share: what each is given, and what it tells the loop.
#pragma once

#include "core/counters.h"
#include "core/drops.h"
#include "core/features.h"
#include "core/filter.h"
#include "core/icmp.h"
#include "core/traffic.h"
#include "io/system.h"

namespace weft {

/// All of it outlives the directions.
struct Path {
  int tun;
  int socket;                ///< receives, on the port that peers know
  int sender;                ///< sends: the same socket, or one with a source port of its own
  uint32_t tun_address;      ///< IPv4, network order: the source of ICMP errors to peers
  uint32_t network_address;  ///< the same of those into the TUN: the kernel refuses one of its own
  size_t batch;              ///< at most so many packets are read, or messages received, in one turn
  Features* features;
  CounterRow counters;
  TrafficRows* traffic;
  Drops *tx_drops, *rx_drops;      ///< where each direction says what it drops
  FilterOptions filter = {};       ///< what is let in from peers
  Strangers* strangers = nullptr;  ///< where it says who was not
  IcmpLimit* icmp = nullptr;       ///< of all loops
  size_t clamp_mtu = 0;            ///< of the TUN, where TCP is to begin with segments that fit; 0: it is not
};

/// What one turn did.
struct Pump {
  size_t items = 0;  ///< reads or messages
  Failure failure;   ///< the path cannot go on
};

class Direction {
 public:
  virtual ~Direction() = default;
  /// Moves one batch. Does not block, but for a full socket buffer (io/sender.h). Run by one thread at a time.
  virtual Pump pump() = 0;
  /// Counts what the kernel tells only when it is asked. By the same thread, now and then.
  virtual void count() {}
};

}  // namespace weft
