// circle.h - drops packets that would loop forever: datagrams of this host that its kernel routes back into the tunnel.
//
// If a route leads to a peer's address through the tunnel itself, the datagrams for that peer come out of the TUN
// again. A datagram may come out once on purpose, if the peer's host is reached through another peer. A datagram that
// comes out twice would loop forever: each round wraps it in a longer datagram with a fresh TTL, so IP never ends the
// loop.
//
// One rule works for all encapsulations and both IP families, because it compares only addresses:
//
// A packet from the TUN is dropped if its destination is a peer's address and the datagram around it would go to an
// address inside a peer's subnet.
//
// The first condition recognises a datagram that this host sent earlier, by its destination. Its source does not
// identify it, because a masquerade rule (such as flannel's own) replaces address and port. Its content may be
// encrypted, and IPsec may replace its protocol. The second condition means that the new datagram would come back as
// well. So a packet is wrapped at most twice: the second datagram goes to an address that is in no peer's subnet.
#pragma once

#include "packet.h"
#include "peers.h"

namespace weft {

/// Finds the packets of one thread that would loop forever, by the rule at the beginning of circle.h.
class CircleGuard {
 public:
  void begin(const PeerTable& table) {
    table_ = &table;
    last_ = nullptr;
  }

  /// True if the packet at `bytes`, which would go to the peer at `endpoint`, must be dropped because it would loop
  /// forever.
  bool stops(const Endpoint& endpoint, const uint8_t* bytes, const Packet& packet) {
    // Most packets of a batch go to the same peer. So look up whether the endpoint's address is inside a peer's subnet
    // only when the endpoint differs from that of the previous packet.
    if (last_ != &endpoint) {
      last_ = &endpoint;
      leads_inside_ = table_->find(endpoint.address()) != nullptr;
    }
    return leads_inside_ && table_->has_endpoint_at(destination_of(bytes, packet));
  }

 private:
  const PeerTable* table_ = nullptr;
  const Endpoint* last_ = nullptr;
  bool leads_inside_ = false;  // true if a peer's subnet contains the address of last_
};

}  // namespace weft
