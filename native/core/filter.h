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
    source_ = kNone;
  }
  /// Until the next call what is asked about came in datagrams of this sender.
  void begin_message(const SocketAddress& sender) {
    // Most messages of a turn are a stream's.
    if (sender.first_word() != sender_) change_sender(sender);
  }

  /// Why a packet is not let in; nothing when it is.
  std::optional<Counter> reason_to_drop(const uint8_t* bytes, const Packet& packet) {
    if (options_.verify == VerifySource::kOff) {
      look_up(packet, bytes);
      if (packet.version == 6 && is_link_local(bytes + 8)) return noted(k_rx_drop_unknown_sender, bytes, packet);
      return {};
    }
    if (packet.version == 6) return noted(reason_against(bytes + 8), bytes, packet);
    const uint32_t source = load<uint32_t>(bytes + 12), destination = load<uint32_t>(bytes + 16);
    if (source_ != source) {
      source_ = kNone;
      if (const auto reason = reason_against(source)) return noted(reason, bytes, packet);
      source_ = source;
    }
    if (destination_ == destination) return {};
    if (!options_.subnet.contains(Address::v4(destination))) return noted(k_rx_drop_destination, bytes, packet);
    destination_ = destination;
    return {};
  }

  /// The peer whose subnet has the source of the packet that was let in last; null where it is from outside all.
  const Endpoint* peer() const { return peer_; }

 private:
  /// No IPv4 address, of which 32 bits are kept, in network order.
  static constexpr uint64_t kNone = UINT64_MAX;

  [[gnu::noinline]] void change_sender(const SocketAddress& sender) {
    sender_ = sender.family() == AF_INET6 ? 0 : sender.first_word();  // 0: of IPv6 each is looked at
    const Address from = sender.address();
    if (!(from == from_)) source_ = kNone;
    from_ = from;
  }

  /// Whether an IPv6 address is of one link, fe80::/10. Nobody on this one has any; what a router's advertisement or
  /// redirect says, which must come from such a one (RFC 4861 sections 4.2 and 4.5), the host would do.
  static bool is_link_local(const uint8_t* address) { return address[0] == 0xfe && (address[1] & 0xc0) == 0x80; }

  /// Whose a packet is where nothing is asked of it.
  void look_up(const Packet& packet, const uint8_t* bytes) {
    const bool is_v4 = packet.version == 4;
    const uint64_t source = is_v4 ? load<uint32_t>(bytes + 12) : kNone;
    if (is_v4 && source_ == source) return;
    peer_ = table_->find(packet.version, source_address(bytes, packet));
    source_ = source;
  }

  std::optional<Counter> reason_against(uint32_t source) {
    const Address whole = Address::v4(source);
    if (options_.subnet.contains(whole) || !is_one_host(source)) return k_rx_drop_spoofed_source;
    uint8_t address[sizeof source];
    store(address, source);
    peer_ = table_->find(4, address);
    if (peer_) return unless_sent_by(*peer_);
    // A host that does not masquerade what it sends itself.
    if (!options_.network.contains(whole) && table_->has_endpoint_at(from_)) return {};
    return k_rx_drop_unknown_sender;
  }

  /// Of IPv6 no network and no subnet of our own is known: a packet is a peer's, or nobody's.
  std::optional<Counter> reason_against(const uint8_t* source) {
    peer_ = table_->find(6, source);
    source_ = kNone;
    return peer_ ? unless_sent_by(*peer_) : k_rx_drop_unknown_sender;
  }

  std::optional<Counter> unless_sent_by(const Endpoint& peer) const {
    if (options_.verify == VerifySource::kStrict && !peer.is_at(from_)) return k_rx_drop_spoofed_source;
    return {};
  }

  std::optional<Counter> noted(std::optional<Counter> reason, const uint8_t* bytes, const Packet& packet) {
    if (reason) strangers_->note({from_, source_of(bytes, packet), destination_of(bytes, packet), *reason});
    return reason;
  }

  FilterOptions options_;
  Strangers* strangers_;
  const PeerTable* table_ = nullptr;
  const Endpoint* peer_ = nullptr;  // of the packet that was asked about last
  // Most packets of a turn are a stream's: what was found of one is known of the next.
  uint64_t sender_ = 0;           // its first word
  Address from_;                  // its address
  uint64_t source_ = kNone;       // the inner source that was let in last from there
  uint64_t destination_ = kNone;  // the destination that was found in our subnet last
};

}  // namespace weft
