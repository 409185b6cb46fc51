// filter.h - which packets from peers are let in: those that say truly whose they are, and are for us.
//
// Where there is no key and no signature, what is compared is the packet's inner source with the peer table, and the
// datagram's outer source with the peer's address. Ports are not, which peers choose as they like. That keeps out
// whoever cannot send with a peer's address; on an underlay where hosts forge addresses it keeps out nobody who knows
// the peers. Where the sender has proved who it is, its session is compared in place of its address.
#pragma once

#include <optional>

#include "packet.h"
#include "peers.h"
#include "strangers.h"

namespace weft {

enum class VerifySource : uint8_t {
  kOff,     ///< everything is let in, as by flanneld, but for IPv6 addresses of one link
  kInner,   ///< by the inner addresses, for peers whose datagrams come from another address than they lease with
  kStrict,  ///< by the outer source too
};

struct FilterOptions {
  VerifySource verify = VerifySource::kOff;
  ByFamily<Net> network = {};  ///< the cluster's
  ByFamily<Net> subnet = {};   ///< this node's part of it, with the TUN's own address

  /// True when a packet that came out of the TUN can be from this side. Otherwise an ICMP error about it would go to
  /// a peer, who did not send it and would not let it in.
  bool is_from_here(const Address& source) const {
    return verify == VerifySource::kOff || subnet.of(source).contains(source) || !network.of(source).contains(source);
  }
};

/// Used by one thread.
class Filter {
 public:
  Filter(const FilterOptions& options, Strangers* strangers) : options_(options), strangers_(strangers) {}

  /// Begins a batch: until the next call peers are asked of `table`.
  void begin(const PeerTable& table) {
    table_ = &table;
    forget();
  }
  /// Begins a message: until the next call all packets came in datagrams of this sender.
  void begin_message(const SocketAddress& sender) {
    // Most messages of a turn are a stream's.
    if (sender.first_word() != sender_) change_sender(sender);
  }

  /// The packets that follow are of the peer that has this session; 0: nobody has proved whose they are.
  void prove(uint32_t session) {
    if (session == session_) return;
    forget();
    session_ = session;
  }

  /// The reason why a packet is not let in; nothing when it is.
  std::optional<Counter> reason_to_drop(const uint8_t* bytes, const Packet& packet) {
    if (packet.version == 6) return reason_to_drop_ipv6(bytes, packet);
    if (options_.verify == VerifySource::kOff) {
      look_up(packet, bytes);
      return {};
    }
    const uint32_t source = load<uint32_t>(bytes + 12), destination = load<uint32_t>(bytes + 16);
    if (source_ != source) {
      forget();
      if (const auto reason = reason_against(4, Address::v4(source), bytes + 12)) return noted(reason, bytes, packet);
      source_ = source;
    }
    if (destination_ == destination) return {};
    if (!options_.subnet.ipv4.contains(Address::v4(destination))) return noted(k_rx_drop_destination, bytes, packet);
    destination_ = destination;
    return {};
  }

  /// The peer whose subnet has the source of the packet that was let in last; null where it is from outside all.
  const Endpoint* peer() const { return peer_; }

 private:
  /// A value that is no IPv4 address, of which 32 bits are kept, in network order.
  static constexpr uint64_t kNone = UINT64_MAX;

  [[gnu::noinline]] void change_sender(const SocketAddress& sender) {
    sender_ = sender.family() == AF_INET6 ? 0 : sender.first_word();  // 0: of IPv6 each is looked at
    const Address from = sender.address();
    if (!(from == from_)) forget();
    from_ = from;
  }

  /// Nothing is known of the next packet, whoever sent it.
  void forget() {
    source_ = kNone;
    source6_.reset();
  }

  /// Finds the peer that a packet is of, when nothing is asked of it.
  void look_up(const Packet& packet, const uint8_t* bytes) {
    const uint32_t source = load<uint32_t>(bytes + 12);
    if (source_ == source) return;
    forget();
    peer_ = table_->find(packet.version, bytes + 12);
    source_ = source;
  }

  std::optional<Counter> reason_to_drop_ipv6(const uint8_t* bytes, const Packet& packet) {
    const Address source = source_of(bytes, packet), destination = destination_of(bytes, packet);
    if (source6_ != source) {
      forget();
      if (const auto reason = reason_against(6, source, bytes + 8)) return noted(reason, bytes, packet);
      source6_ = source;
    }
    if (options_.verify == VerifySource::kOff || destination6_ == destination) return {};
    if (!options_.subnet.ipv6.contains(destination)) return noted(k_rx_drop_destination, bytes, packet);
    destination6_ = destination;
    return {};
  }

  /// `at` is where it stands in the packet.
  std::optional<Counter> reason_against(uint8_t version, const Address& source, const uint8_t* at) {
    peer_ = nullptr;
    // An IPv6 packet may say an IPv4 address: no host has that one.
    if (source.is_v4() != (version == 4) || !is_one_host(source)) return k_rx_drop_spoofed_source;
    if (options_.verify != VerifySource::kOff && options_.subnet.of(version).contains(source)) {
      return k_rx_drop_spoofed_source;
    }
    peer_ = table_->find(version, at);
    if (options_.verify == VerifySource::kOff) return {};
    if (peer_) return unless_sent_by(*peer_);
    if (session_ != 0) return k_rx_drop_unknown_sender;
    // A host that does not masquerade what it sends itself; one without a subnet of the family has no way here.
    const Net& network = options_.network.of(version);
    if (network && !network.contains(source) && table_->has_endpoint_at(from_, version)) return {};
    return k_rx_drop_unknown_sender;
  }

  std::optional<Counter> unless_sent_by(const Endpoint& peer) const {
    const bool is_its = session_ != 0 ? load_le32(peer.encap.data()) == session_ : peer.is_at(from_);
    if (options_.verify == VerifySource::kStrict && !is_its) return k_rx_drop_spoofed_source;
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
  uint32_t session_ = 0;            // of the peer that proved to have sent it
  // Most packets of a turn are a stream's: what was found of one is known of the next.
  uint64_t sender_ = 0;                            // its first word
  Address from_;                                   // its address
  uint64_t source_ = kNone;                        // the inner source that was let in last from there
  uint64_t destination_ = kNone;                   // the destination that was found in our subnet last
  std::optional<Address> source6_, destination6_;  // the same of IPv6, of which any value may stand in a packet
};

}  // namespace weft
