// circle.h - stops packets that would circle: datagrams of this host that the kernel routes back into the tunnel.
//
// If a peer's address is reached through the tunnel itself, the datagrams for the peer come out of the TUN again. A
// datagram may do so once on purpose: for a node behind another node. If it does so twice, it circles, or cannot be
// distinguished from one that does. IP never ends such a circle, because each round makes a longer datagram with a
// fresh TTL.
//
// One rule holds for all encapsulations and both families, because it uses addresses alone:
//
//   A packet out of the TUN is dropped if a peer is at its destination, and if the datagram around it would go to an
//   address that is in a peer's subnet too.
//
// The first condition recognises a datagram of this host by its destination. Its source does not identify it, since a
// masquerade rule (flannel's own, for packets into the network) replaces address and port; its content does not, since
// it may be sealed; its protocol does not, since IPsec may wrap it. The second condition means that the next datagram
// would come back as well. So a packet is put into at most two datagrams: the second datagram goes to an address that
// is in no peer's subnet.
#pragma once

#include "packet.h"
#include "peers.h"

namespace weft {

/// Decides for the packets of one thread.
class CircleGuard {
 public:
  void begin(const PeerTable& table) {
    table_ = &table;
    last_ = nullptr;
  }

  /// True if the packet at `bytes`, for the peer at `endpoint`, must be dropped.
  bool stops(const Endpoint& endpoint, const uint8_t* bytes, const Packet& packet) {
    // Most packets of a turn have one endpoint, and hardly any endpoint is inside the network.
    if (last_ != &endpoint) {
      last_ = &endpoint;
      leads_inside_ = table_->find(endpoint.address()) != nullptr;
    }
    return leads_inside_ && table_->has_endpoint_at(destination_of(bytes, packet));
  }

 private:
  const PeerTable* table_ = nullptr;
  const Endpoint* last_ = nullptr;
  bool leads_inside_ = false;  // whether the address of the last endpoint is in a peer's subnet
};

}  // namespace weft
