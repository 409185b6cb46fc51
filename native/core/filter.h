// filter.h - which packets from peers are let in: those that say truly whose they are, and are for us.
//
// There is no key and no signature: what is compared is the packet's inner source with the peer table, and the
// datagram's outer source with the peer's address. Ports are not, which peers choose as they like. That keeps out
// whoever cannot send with a peer's address; on an underlay where hosts forge addresses it keeps out nobody who knows
// the peers.
#pragma once

#include <optional>

#include "packet.h"
#include "peers.h"
#include "strangers.h"

namespace weft {

enum class VerifySource : uint8_t {
  kOff,     ///< everything is let in, as by flanneld, but for what IPv6 routers tell their own link
  kInner,   ///< by the inner addresses, for peers whose datagrams come from another address than they lease with
  kStrict,  ///< by the outer source too
};

struct FilterOptions {
  VerifySource verify = VerifySource::kOff;
  Net network = {};  ///< the cluster's
  Net subnet = {};   ///< this node's part of it, with the TUN's own address

  /// Whether a packet that came out of the TUN can be from this side. If not, what is said about it would go to a peer,
  /// who did not send it and would not let it in.
  bool is_from_here(const Address& source) const {
    return verify == VerifySource::kOff || subnet.contains(source) || !network.contains(source);
  }
};

/// Used by one thread.
class Filter {
 public:
  Filter(const FilterOptions& options, Strangers* strangers) : options_(options), strangers_(strangers) {}

  /// Until the next call peers are asked of `table`.
  void begin(const PeerTable& table) {
    table_ = &table;
    peer_ = nullptr;
    last_ = {};
  }

  /// Why a packet is not let in that came in a datagram from `from`; nothing when it is.
  std::optional<Counter> reason_to_drop(const Address& from, const uint8_t* bytes, const Packet& packet) {
    if (options_.verify == VerifySource::kOff) {
      look_up(packet, bytes);
      if (packet.version == 6 && is_link_local(bytes + 8)) return noted(k_rx_drop_unknown_sender, from, bytes, packet);
      return {};
    }
    if (packet.version == 6) return noted(reason_against(from, bytes + 8), from, bytes, packet);
    const uint32_t source = load<uint32_t>(bytes + 12), destination = load<uint32_t>(bytes + 16);
    // Most packets of a turn are a stream's.
    if (last_.source != source || !(last_.from == from)) {
      last_ = {};
      if (const auto reason = reason_against(from, source)) return noted(reason, from, bytes, packet);
      last_ = {from, source};
    }
    if (destination == ours_) return {};
    if (!options_.subnet.contains(Address::v4(destination))) return noted(k_rx_drop_destination, from, bytes, packet);
    ours_ = destination;
    return {};
  }

  /// The peer whose subnet has the source of the packet that was let in last; null where it is from outside all.
  const Endpoint* peer() const { return peer_; }

 private:
  /// Inner IPv4 addresses that were looked up last are remembered by their 32 bits, in network order; this is none.
  static constexpr uint64_t kNone = UINT64_MAX;
  /// An inner source, and who sent it.
  struct Pair {
    Address from = {};
    uint64_t source = kNone;
  };

  /// Whether an IPv6 address is of one link, fe80::/10. Nobody on this one has any; what a router's advertisement or
  /// redirect says, which must come from such a one (RFC 4861 sections 4.2 and 4.5), the host would do.
  static bool is_link_local(const uint8_t* address) { return address[0] == 0xfe && (address[1] & 0xc0) == 0x80; }

  /// Whose a packet is where nothing is asked of it.
  void look_up(const Packet& packet, const uint8_t* bytes) {
    const bool is_v4 = packet.version == 4;
    const uint64_t source = is_v4 ? load<uint32_t>(bytes + 12) : kNone;
    if (is_v4 && last_.source == source) return;
    peer_ = table_->find(packet.version, source_address(bytes, packet));
    last_ = {{}, source};
  }

  std::optional<Counter> reason_against(const Address& from, uint32_t source) {
    const Address whole = Address::v4(source);
    if (options_.subnet.contains(whole) || !is_one_host(source)) return k_rx_drop_spoofed_source;
    uint8_t address[sizeof source];
    store(address, source);
    peer_ = table_->find(4, address);
    if (peer_) return unless_sent_by(*peer_, from);
    // A host that does not masquerade what it sends itself.
    if (!options_.network.contains(whole) && table_->has_endpoint_at(from)) return {};
    return k_rx_drop_unknown_sender;
  }

  /// Of IPv6 no network and no subnet of our own is known: a packet is a peer's, or nobody's.
  std::optional<Counter> reason_against(const Address& from, const uint8_t* source) {
    peer_ = table_->find(6, source);
    last_ = {};
    return peer_ ? unless_sent_by(*peer_, from) : k_rx_drop_unknown_sender;
  }

  std::optional<Counter> unless_sent_by(const Endpoint& peer, const Address& from) const {
    if (options_.verify == VerifySource::kStrict && !peer.is_at(from)) return k_rx_drop_spoofed_source;
    return {};
  }

  std::optional<Counter> noted(std::optional<Counter> reason, const Address& from, const uint8_t* bytes,
                               const Packet& packet) {
    if (reason) strangers_->note({from, source_of(bytes, packet), destination_of(bytes, packet), *reason});
    return reason;
  }

  FilterOptions options_;
  Strangers* strangers_;
  const PeerTable* table_ = nullptr;
  const Endpoint* peer_ = nullptr;  // of the packet that was asked about last
  Pair last_;                       // that was let in
  uint64_t ours_ = kNone;           // the destination that was found in our subnet last
};

}  // namespace weft
