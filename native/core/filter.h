// filter.h - decides which packets from peers are accepted: the source must be genuine, and the destination must be in
// this node's subnet.
//
// Without encryption, the filter looks up the inner source address in the peer table, and compares the datagram's outer
// source with that peer's address. The filter ignores ports, because peers may send from any port. This check stops
// hosts that cannot use a peer's address, but not hosts on an underlay that lets them forge addresses. If encryption
// proves the sender's identity, the filter compares the datagram's session with that of the peer instead of the outer
// address.
#pragma once

#include <optional>

#include "packet.h"
#include "peers.h"
#include "unknown_senders.h"

namespace weft {

enum class VerifySource : uint8_t {
  kOff,  ///< Accepts all packets, as flanneld does, except IPv6 packets with link-local addresses.
  /// Checks only the inner addresses, because some peers send from an address that is not in their lease.
  kInner,
  kStrict,  ///< Checks the inner addresses and the outer source address.
};

struct FilterOptions {
  VerifySource verify = VerifySource::kOff;
  ByFamily<Net> network = {};
  ByFamily<Net> subnet = {};  ///< this node's subnets, which include the TUN's own addresses

  /// True if this node may have sent a packet from the TUN with this source. An ICMP error about a packet with any
  /// other source would go to a peer that did not send the packet, and this peer would drop the error.
  bool is_from_here(const Address& source) const {
    return verify == VerifySource::kOff || subnet.of(source).contains(source) || !network.of(source).contains(source);
  }
};

/// Decides which packets from peers are accepted. Each thread uses its own object.
class Filter {
 public:
  Filter(const FilterOptions& options, UnknownSenders* unknown_senders)
      : options_(options), unknown_senders_(unknown_senders) {}

  void begin(const PeerTable& table) {
    table_ = &table;
    forget();
  }
  /// Begins a received message: all packets up to the next call of begin_message() came in datagrams of `sender`.
  void begin_message(const SocketAddress& sender) {
    // Most messages of a batch come from the same sender, for which the results of earlier checks are still valid.
    if (sender.first_word() != sender_) change_sender(sender);
  }

  /// Names the session that provably sent the next packets to check; 0 if no session is proven.
  void prove(uint32_t session) {
    if (session == session_) return;
    forget();
    session_ = session;
  }

  /// Returns the counter of the reason to drop a packet, or nothing if the packet is accepted.
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

  /// The peer whose subnet contains the source address of the last packet that reason_to_drop() checked; null if there
  /// is no such peer.
  const Endpoint* peer() const { return peer_; }

 private:
  /// The value of an empty source_ or destination_. No 32-bit IPv4 address has this value.
  static constexpr uint64_t kNone = UINT64_MAX;

  [[gnu::noinline]] void change_sender(const SocketAddress& sender) {
    // The first word of an IPv6 sender (family and port) does not contain the sender's address. The word 0 matches no
    // sender, so each IPv6 message is compared in full.
    sender_ = sender.family() == AF_INET6 ? 0 : sender.first_word();
    const Address from = sender.address();
    if (!(from == from_)) forget();
    from_ = from;
  }

  void forget() {
    source_ = kNone;
    source6_.reset();
  }

  /// Finds the peer that owns a packet's source. Needed if `verify` is off, because then no check finds the peer.
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

  /// Returns the counter of the reason to drop packets with this inner source address; nothing if these packets are
  /// accepted. `at` points to the source address in the packet.
  std::optional<Counter> reason_against(uint8_t version, const Address& source, const uint8_t* at) {
    peer_ = nullptr;
    // Drop an IPv6 packet with an IPv4-mapped source address, because no host has such an address.
    if (source.is_v4() != (version == 4) || !is_one_host(source)) return k_rx_drop_spoofed_source;
    if (options_.verify != VerifySource::kOff && options_.subnet.of(version).contains(source)) {
      return k_rx_drop_spoofed_source;
    }
    peer_ = table_->find(version, at);
    if (options_.verify == VerifySource::kOff) return {};
    if (peer_) return unless_sent_by(*peer_);
    if (session_ != 0) return k_rx_drop_unknown_sender;
    // A peer that does not masquerade may send packets into the cluster's network from its host's address, which is
    // outside that network. The peer may do so only in an IP family in which it has a subnet.
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
    if (reason) unknown_senders_->note({from_, source_of(bytes, packet), destination_of(bytes, packet), *reason});
    return reason;
  }

  FilterOptions options_;
  UnknownSenders* unknown_senders_;
  const PeerTable* table_ = nullptr;
  const Endpoint* peer_ = nullptr;
  uint32_t session_ = 0;  // the session that the packets being checked provably came from; 0 without proof
  // The family and port, and for IPv4 the address, of the last sender. This member and the next ones store the results
  // of the last checks, because the next packet usually belongs to the same stream.
  uint64_t sender_ = 0;
  Address from_;
  uint64_t source_ = kNone;       // the inner source of the last accepted packet of this sender
  uint64_t destination_ = kNone;  // the last inner destination that was in this node's subnet
  // The last accepted IPv6 addresses. Their type is optional, because no 128-bit value is free to mean "none".
  std::optional<Address> source6_, destination6_;
};

}  // namespace weft
