// ingress.h - writes packets from peers to the TUN. Each batch has these steps:
// - receive: receive a batch of messages, each with one datagram or several (io/receiver.h).
// - open: the encapsulation turns each datagram into a packet, a control message for JavaScript, a drop, or nothing.
// - check: validate the inner packet (core/inspect.h), filter it by sender and destination (core/filter.h), copy the
//   outer congestion mark (core/ecn.h), and decrement the TTL if the encapsulation routes.
// - merge: combine packets of one flow into superpackets (core/coalesce.h).
// - write: write each packet with its virtio header to the TUN, in order (io/tun_writer.h).
#pragma once

#include <errno.h>

#include "../core/checksum.h"
#include "../core/coalesce.h"
#include "../core/encapsulation.h"
#include "../core/inspect.h"
#include "../core/mss.h"
#include "../core/refusals.h"
#include "../io/clock.h"
#include "../io/receiver.h"
#include "../io/tun_writer.h"
#include "../io/udp.h"
#include "direction.h"

namespace weft {

template <Encapsulation Encap>
class Ingress final : public Direction {
 public:
  /// Receives datagrams of IP version `outer`. No other object may use the reader `peers`, because the other directions
  /// may run at the same time.
  Ingress(const Path& path, uint8_t outer, PeerTables::Reader peers, Encap encap)
      : path_(path),
        peers_(peers),
        encap_(std::move(encap)),
        filter_(path.filter, path.unknown_senders),
        path_mtu_(path.sockets),
        receiver_(path.sockets.of(outer).receiver, Encap::kHeaderBytes, path.counters, path.rx_drops),
        writer_(path.tun, path.features, path.counters, path.rx_drops) {
    for (const uint8_t version : kIpVersions) {
      own_.of(version) = bound_address(path.sockets.of(version).receiver).address();
    }
  }

  Pump pump() override {
    Pump pump;
    if constexpr (HasSessions<Encap>) encap_.begin_turn(session_ms());
    path_.rx_drops->begin_turn();
    pump.items = receiver_.receive(pump.failure);
    pump.refused = pump.items - receiver_.messages().size();
    limits_ = writer_.limits();
    table_ = &peers_.acquire();
    filter_.begin(*table_);
    for (Message& message : receiver_.messages()) {
      filter_.begin_message(*message.sender);
      if constexpr (HasSessions<Encap>) message.is_from_inside = is_from_inside(message.sender->address());
      do {
        const uint8_t* datagram = message.bytes;
        const Opened opened = encap_.open(message);
        if (opened.what == Opened::What::kPacket) {
          if constexpr (HasSessions<Encap>) filter_.prove(opened.session);
          const bool goes_on = receive(message, opened.bytes, opened.undone, pump.failure);
          (goes_on ? pump.carried : pump.refused)++;
        } else if (opened.what == Opened::What::kDrop) {
          pump.refused++;
          path_.rx_drops->add({.reason = opened.reason,
                               .bytes = {datagram, message.bytes},
                               .peer = message.sender->address(),
                               .encap_bytes = Encap::kHeaderBytes,
                               .is_encrypted = opened.is_encrypted});
          if (!opened.bytes.empty()) deliver(*message.sender, opened.bytes);
        } else if (opened.what == Opened::What::kControlMessage) {
          if (const auto reason = deliver(*message.sender, opened.bytes)) {
            pump.refused++;
            path_.rx_drops->add({.reason = *reason, .bytes = opened.bytes, .peer = message.sender->address()});
          }
        }
      } while (message.size > 0);
    }
    if (Failure failure = writer_.write(coalescer_)) pump.failure = failure;
    count_received();
    peers_.release();
    return pump;
  }

  void count() override { receiver_.count_overflow(); }

  int tick_ms() const override {
    if constexpr (HasSessions<Encap>) return Encap::kTickMs;
    return -1;
  }
  bool tick() override {
    if constexpr (HasSessions<Encap>) {
      Out out{*this};
      return encap_.tick(session_ms(), out);
    }
    return false;
  }
  void rest() override {
    if constexpr (HasSessions<Encap>) encap_.rest(session_ms());
  }

 private:
  /// The functions with which an encapsulation's timers send datagrams from weft's well-known port, and count dropped
  /// packets.
  struct Out {
    Ingress& self;
    void send(const SocketAddress& to, std::span<const uint8_t> datagram, size_t inner_bytes, uint32_t slot) {
      const bool is_sent = self.send(to, datagram);
      if (inner_bytes == 0) return;
      if (!is_sent) return drop(consequence_of({Way::kPeers, 0, 1}, errno).counted, 1);
      self.path_.counters.add(k_tx_messages);
      self.path_.counters.add(k_tx_packets);
      self.path_.counters.add(k_tx_bytes, inner_bytes);
      self.path_.traffic->add_sent(slot, 1, inner_bytes);
    }
    void drop(Counter reason, size_t packets) { self.path_.tx_drops->add({.reason = reason, .packets = packets}); }
  };

  /// True if the address `from` is reached through the tunnel and belongs to no peer (Message::is_from_inside). If this
  /// host's own underlay address is in the cluster's network, other hosts may also have addresses in the network that
  /// are in no subnet. Then only addresses in a subnet count as reached through the tunnel.
  bool is_from_inside(const Address& from) const {
    const Net& network = path_.filter.network.of(from);
    const bool is_inside = table_->find(from) || path_.filter.subnet.of(from).contains(from) ||
                           (network.contains(from) && !network.contains(own_.of(from)));
    return is_inside && !table_->has_endpoint_at(from);
  }

  /// Passes a control message to JavaScript. Returns the counter of the reason to drop the message, or nothing if
  /// JavaScript gets it.
  std::optional<Counter> deliver(const SocketAddress& from, std::span<const uint8_t> message) {
    if constexpr (HasSessions<Encap>) {
      const bool is_peer = table_->has_endpoint_at(from.address(), 4) || table_->has_endpoint_at(from.address(), 6);
      return encap_.deliver(from, message, is_peer);
    }
    return {};
  }

  /// Checks an inner packet and adds it to the packets that will be written to the TUN. Returns false if the packet was
  /// dropped.
  bool receive(const Message& message, std::span<uint8_t> bytes, const VirtioHeader& undone, Failure& failure) {
    Packet packet;
    if (const auto reason = inspect(bytes, packet)) {
      path_.rx_drops->add({.reason = *reason, .bytes = bytes, .peer = message.sender->address()});
      return false;
    }
    if (const auto reason = filter_.reason_to_drop(bytes.data(), packet)) {
      drop(*reason, message, undone, bytes, packet);
      return false;
    }
    // A congestion mark on the outer header is a reason to drop only if the encapsulation copies marks to the outer
    // header.
    if (message.ecn != kNotEct && !take_ecn(message.ecn, bytes.data(), packet) && Encap::kCopiesEcn) {
      drop(k_rx_drop_congestion, message, undone, bytes, packet);
      return false;
    }
    if constexpr (Encap::kRoutes) {
      if (packet.hop_limit <= 1) {
        drop(k_rx_drop_ttl, message, undone, bytes, packet);
        send_time_exceeded(bytes.data(), packet);
        return false;
      }
      decrement_hop_limit(bytes.data(), packet);
    }
    if (path_.clamp_mtu != 0 && is_tcp_syn(bytes.data(), packet)) clamp(bytes.data(), packet, undone);
    if (filter_.peer() != received_.peer) count_received();
    received_.peer = filter_.peer();
    const OnWire on_wire = count_on_wire(undone, bytes.data(), packet);
    received_.packets += on_wire.packets;
    received_.bytes += on_wire.bytes;
    if (coalescer_.full()) {
      if (Failure gone = writer_.write(coalescer_)) failure = gone;
    }
    CoalesceLimits limits = limits_;
    // Do not merge UDP packets whose destination is this host: the kernel passes a superpacket only to sockets that
    // requested UDP_GRO, and weftd cannot see whether a socket requested it.
    limits.udp = limits.udp && packet.protocol == IPPROTO_UDP && !is_for_host(bytes.data(), packet);
    coalescer_.add(bytes.data(), packet, limits, undone);
    return true;
  }

  /// True for a packet to one of the two addresses of this host in its subnet: the TUN's own address, and the next
  /// address, which the bridge of the containers has (subnet.env).
  bool is_for_host(const uint8_t* bytes, const Packet& packet) const {
    const uint8_t* at = destination_address(bytes, packet);
    const Address to = packet.version == 4 ? Address::v4(load<uint32_t>(at)) : Address::v6(at);
    return to == path_.tun_address.of(packet.version) || to == behind_tun(packet.version);
  }
  Address behind_tun(uint8_t version) const {
    const Address& own = path_.tun_address.of(version);
    uint8_t bytes[sizeof own];
    std::memcpy(bytes, &own, sizeof own);
    bytes[sizeof own - 1] |= 1;
    return Address::v6(bytes);
  }

  void drop(Counter reason, const Message& message, const VirtioHeader& undone, std::span<uint8_t> bytes,
            const Packet& packet) {
    path_.rx_drops->add({.reason = reason,
                         .packets = count_packets(undone, bytes.data(), packet),
                         .bytes = bytes.first(packet.total),
                         .peer = message.sender->address()});
  }

  /// Lowers the MSS in a peer's SYN, so that the segments that this host sends to the peer fit the path.
  void clamp(uint8_t* bytes, const Packet& packet, const VirtioHeader& undone) {
    const Endpoint* peer = table_->find(packet.version, source_address(bytes, packet));
    size_t most = path_.clamp_mtu;
    if (peer) {
      // This host may not have sent a long packet to the peer yet, so query the path MTU here too.
      path_mtu_.refresh(*peer, now_ms());
      most = std::min(most, longest_to(*peer, kEncapBytes<Encap>));
    }
    clamp_mss(bytes, packet, most - mss_header_bytes(packet), undone.flags & kVirtioNeedsCsum);
  }

  void count_received() {
    if (received_.peer) {
      path_.traffic->add_received(received_.peer->slot, received_.packets, received_.bytes,
                                  static_cast<uint64_t>(now_ms()));
    }
    received_ = {};
  }

  /// Sends an ICMP error to the peer whose subnet contains the packet's source, at the address in the peer table. The
  /// error never goes to the datagram's sender, because the outer and the inner source may be forged.
  void send_time_exceeded(const uint8_t* bytes, const Packet& packet) {
    const Endpoint* peer = table_->find(packet.version, source_address(bytes, packet));
    uint8_t out[kEncapBytes<Encap> + kMaxIcmpErrorBytes];
    uint8_t* error = out + Encap::kHeaderBytes;
    const size_t size = write_icmp_error(kTimeExceeded, path_.tun_address.of(packet.version), bytes, packet, error);
    Packet about;
    if (!peer || size == 0 || !read_packet(error, size, about)) return;
    IcmpLimit& limit = (*path_.icmp)[IcmpKind::kInward];
    if (!limit.allows(source_of(bytes, packet), false, now_ms())) return;
    const std::span<uint8_t> whole(out, Encap::kHeaderBytes + size);
    if (encap_.seal(*peer, about, whole, {}).what != Sealed::What::kDatagram) return;
    const std::span<uint8_t> datagram(out, whole.size() + Encap::kTrailerBytes);
    if (send(peer->to(), datagram)) path_.counters.add(k_rx_time_exceeded_sent);
  }

  /// Sends a datagram from weft's well-known port, over the IP family of `to`, because a peer may send over one family
  /// and receive over the other.
  bool send(const SocketAddress& to, std::span<const uint8_t> datagram) {
    return send_now(path_.sockets.of(to.address()).known, to, datagram);
  }

  struct Received {
    const Endpoint* peer = nullptr;
    uint64_t packets = 0, bytes = 0;
  };

  Path path_;
  ByFamily<Address> own_;  // the source addresses of this host's datagrams
  PeerTables::Reader peers_;
  const PeerTable* table_ = nullptr;  // valid while pump() runs
  Encap encap_;
  Filter filter_;
  PathQueries path_mtu_;
  Received received_;
  Receiver receiver_;
  CoalesceLimits limits_;
  Coalescer coalescer_;
  TunWriter writer_;
};

}  // namespace weft
