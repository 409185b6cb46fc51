// egress.h - sends packets from the TUN to their peers. Each batch has these steps:
// - read: read up to 64 packets or 256 KiB, each with its virtio header before it, or fewer if the packets become many
//   datagrams.
// - decide: look up the endpoint of the inner destination. If there is none, write an ICMP error into the TUN. If the
//   encapsulation routes, decrement the TTL.
// - segment: turn a superpacket into pairs of header and payload slice, without copying the payload. Complete missing
//   checksums.
// - fit: if a packet exceeds the path MTU, segment it smaller, fragment it, or write an ICMP error into the TUN
//   (docs/path-mtu.md).
// - seal: the encapsulation adds its header and trailer and may encrypt the packet, or it drops the packet.
// - send: pass all datagrams of the batch to the kernel (io/sender.h).
//
// Packets stay in the read buffer while their batch is processed, and no packet outlives its batch. No function
// allocates memory or locks.
#pragma once

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "../core/checksum.h"
#include "../core/circle.h"
#include "../core/encapsulation.h"
#include "../core/fragment.h"
#include "../core/mss.h"
#include "../core/segment.h"
#include "../io/clock.h"
#include "../io/sender.h"
#include "../io/tun_writer.h"
#include "../io/udp.h"
#include "direction.h"
#include "probes.h"

namespace weft {

template <Encapsulation Encap>
class Egress final : public Direction {
 public:
  Egress(const Path& path, PeerTables::Reader peers, Encap encap)
      : path_(path),
        header_(path.features->has(kTunHeader)),
        probes_(path.tun_address, path.sockets.ipv4.sender >= 0 && path.sockets.ipv6.sender >= 0),
        path_mtu_(path.sockets),
        peers_(peers),
        encap_(std::move(encap)),
        sender_(path.sockets, Encap::kHeaderBytes, Encap::kTrailerBytes, kRoomBytes, path.features, path.counters,
                path.tx_drops, path.traffic, HasSessions<Encap>),
        reads_(std::make_unique_for_overwrite<uint8_t[]>(kReadBudgetBytes + kEncapBytes<Encap> + kMaxReadBytes)) {}

  Pump pump() override {
    Pump pump;
    if constexpr (HasSessions<Encap>) encap_.begin_turn(session_ms());
    const size_t gathered = sender_.gathered();
    refused_ = made_ = 0;
    table_ = &peers_.acquire();
    circles_.begin(*table_);
    path_.tx_drops->begin_turn();
    turn_ms_ = 0;
    size_t used = 0;
    while (pump.items < kMaxReads && used < kReadBudgetBytes && made_ < kEnoughMade) {
      // Leave space for the encapsulation's header and trailer around the data of each read. The virtio header, if the
      // TUN uses virtio headers, is part of the data and does not use up this space.
      uint8_t* bytes = reads_.get() + used + Encap::kHeaderBytes;
      const ssize_t size = read(path_.tun, bytes, kMaxReadBytes);
      if (size < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) break;
        if (errno == EBADFD) {
          pump.failure = SystemError{"read from the TUN", errno};
          break;
        }
        // If read() fails with an errno other than EINTR, EAGAIN and EBADFD, the kernel has dropped one packet
        // (drivers/net/tun.c, tun_put_user), so the loop continues to read.
        drop({.reason = k_tx_drop_tun});
        pump.items++;
        continue;
      }
      forward(bytes, static_cast<size_t>(size));
      used += kEncapBytes<Encap> + static_cast<size_t>(size);
      pump.items++;
    }
    sender_.flush();
    path_.counters.add(k_tun_reads, pump.items);
    pump.carried = sender_.gathered() - gathered;
    pump.refused = refused_;
    peers_.release();
    return pump;
  }

  void rest() override {
    if constexpr (HasSessions<Encap>) encap_.rest(session_ms());
  }

 private:
  static constexpr size_t kMaxReads = 64;
  static constexpr size_t kReadBudgetBytes = 256 << 10;
  /// The number of datagrams after which a batch reads no further packets. The last read may add 1,023 datagrams: a
  /// superpacket of the smallest segments that weft carries (Segmenter::is_costly).
  static constexpr size_t kEnoughMade = 512;
  static constexpr size_t kMaxReadBytes = sizeof(VirtioHeader) + 65535;
  /// The maximum number of bytes that one call of room() requests: the headers of a datagram. An encapsulation with
  /// sessions encrypts a datagram in one piece, so its calls of room() also request space for the payload.
  static constexpr size_t kRoomBytes =
      kEncapBytes<Encap> + kMaxCutHeadersBytes + (HasSessions<Encap> ? kReadBudgetBytes / 1'024 : 0);

  void forward(uint8_t* bytes, size_t size) {
    VirtioHeader virtio;
    if (header_) {
      if (size < sizeof virtio) return drop({.reason = k_tx_drop_malformed});
      std::memcpy(&virtio, bytes, sizeof virtio);
      bytes += sizeof virtio;
      size -= sizeof virtio;
    }
    Packet packet;
    if (!read_packet(bytes, size, packet)) {
      return drop({.reason = k_tx_drop_malformed, .bytes = {bytes, size}});
    }
    const Endpoint* endpoint = table_->find(packet.version, destination_address(bytes, packet));
    if (!endpoint) return refuse_without_peer(virtio, bytes, packet);
    if (circles_.stops(*endpoint, bytes, packet)) {
      return drop(k_tx_drop_circle, virtio, bytes, packet, endpoint);
    }
    if constexpr (Encap::kRoutes) {
      if (packet.hop_limit <= 1) {
        drop(k_tx_drop_ttl, virtio, bytes, packet, endpoint);
        return send_icmp(IcmpKind::kOutward, kTimeExceeded, virtio, bytes, packet, k_tx_time_exceeded_sent);
      }
      decrement_hop_limit(bytes, packet);
    }
    const Outer outer{*endpoint, probes_.outer_version(*endpoint, bytes, packet),
                      Encap::kCopiesEcn ? ecn_of(bytes, packet) : kNotEct};
    const size_t mtu = packet.total > PathMtu::kAlwaysFits ? mtu_to(*endpoint) : kMaxDatagramBytes;
    if (virtio.gso_type != kGsoNone) {
      cut(virtio, bytes, packet, outer, mtu);
    } else {
      send_packet(virtio, bytes, packet, outer, mtu);
    }
  }

  /// Drops a packet whose destination is in no peer's subnet.
  void refuse_without_peer(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet) {
    if (is_for_link(destination_address(bytes, packet), packet.version)) {
      refused_++;
      return path_.counters.add(k_tx_for_link, count_packets(virtio, bytes, packet));
    }
    drop(k_tx_drop_no_route, virtio, bytes, packet);
    send_icmp(IcmpKind::kOutward, kNetUnreachable, virtio, bytes, packet, k_tx_unreachable_sent);
  }

  /// Sends a packet that is not a superpacket: in one datagram, or in fragments if it exceeds the MTU. The function is
  /// inlined, because a call costs some 25 instructions for each packet.
  [[gnu::always_inline]] void send_packet(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet,
                                          const Outer& outer, size_t mtu) {
    const Endpoint& endpoint = outer.peer;
    bool fits = packet.total <= mtu;
    if (!fits && may_not_fragment(bytes, packet)) {
      fits = packet.total <= least_mtu(packet) ||
             (probes_.is_request(bytes, packet) && packet.total <= known_mtu(endpoint));
      if (!fits) return refuse(mtu, virtio, bytes, packet, endpoint);
    }
    if (path_.clamp_mtu != 0 && is_tcp_syn(bytes, packet)) {
      const size_t most = std::min(path_.clamp_mtu, mtu_to(endpoint));
      clamp_mss(bytes, packet, most - mss_header_bytes(packet), virtio.flags & kVirtioNeedsCsum);
    }
    if ((virtio.flags & kVirtioNeedsCsum) && !finish_checksum(virtio, bytes, packet)) {
      return drop(k_tx_drop_malformed, {}, bytes, packet, &endpoint);
    }
    if (!fits) {
      const size_t ip_bytes = packet.ip_bytes;
      return send_fragments({bytes, ip_bytes, bytes + ip_bytes, packet.total - ip_bytes}, packet, outer, mtu);
    }
    // A path MTU probe must be alone in its message. If a message has several datagrams, the kernel allows routers to
    // fragment them (__ip_make_skb sets DF only if the whole message fits the path), and a fragmented probe says
    // nothing about the path MTU.
    const bool alone = probes_.is_request(bytes, packet);
    if (alone) sender_.send();
    uint8_t* start = bytes - Encap::kHeaderBytes;
    sender_.room(0);
    seal(outer, packet, {start, Encap::kHeaderBytes + packet.total}, {});
    if (alone) sender_.send();
  }

  /// Splits a superpacket into segments, and sends the segments to their peer.
  void cut(const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet, const Outer& outer, size_t mtu) {
    const Endpoint& endpoint = outer.peer;
    Segmenter segments;
    if (!segments.begin(virtio, bytes, packet)) return drop(k_tx_drop_malformed, {}, bytes, packet, &endpoint);
    if (segments.is_costly()) return drop(k_tx_drop_malformed, virtio, bytes, packet, &endpoint);
    if (segments.packet_bytes() > mtu) {
      if (segments.is_tcp()) {
        // If the path MTU leaves hardly any payload after the headers, make the segments as long as the minimum IPv6
        // MTU, so that the kernel fragments their datagrams.
        segments.limit(2 * segments.header_bytes() <= mtu ? mtu : std::max(mtu, kLeastIpv6Mtu));
      } else if (may_not_fragment(bytes, packet)) {
        if (segments.packet_bytes() > least_mtu(packet)) return refuse(mtu, virtio, bytes, packet, endpoint);
      } else {
        uint8_t header[kMaxCutHeadersBytes];
        while (!segments.done()) send_fragments(segments.next(header), packet, outer, mtu);
        return;
      }
    }
    const size_t header_bytes = Encap::kHeaderBytes + segments.header_bytes();
    while (!segments.done()) {
      uint8_t* start = room(header_bytes, segments.packet_bytes() - segments.header_bytes());
      const Segment segment = segments.next(start + Encap::kHeaderBytes);
      seal(outer, packet, {start, header_bytes}, {segment.payload, segment.payload_bytes});
    }
  }

  void send_fragments(const Segment& whole, const Packet& packet, const Outer& outer, size_t mtu) {
    Fragmenter fragments(whole, packet.ip_bytes, mtu);
    if (whole.header_bytes + whole.payload_bytes > mtu) path_.counters.add(k_tx_fragmented);
    while (!fragments.done()) {
      uint8_t* start =
          room(Encap::kHeaderBytes + fragments.header_bytes(), std::min(mtu, whole.header_bytes + whole.payload_bytes));
      const Segment fragment = fragments.next(start + Encap::kHeaderBytes);
      seal(outer, packet, {start, Encap::kHeaderBytes + fragment.header_bytes},
           {fragment.payload, fragment.payload_bytes});
    }
  }

  /// Returns memory for a datagram's header and trailer, and also for its payload if the datagram is encrypted in one
  /// piece.
  uint8_t* room(size_t header_bytes, size_t payload_bytes) {
    return sender_.room(header_bytes + (HasSessions<Encap> ? payload_bytes : 0) + Encap::kTrailerBytes);
  }

  /// Seals a packet into a datagram and adds the datagram to the batch. `first` begins with space for the
  /// encapsulation's header, and space for the trailer follows `first`.
  void seal(const Outer& outer, const Packet& packet, std::span<uint8_t> first, std::span<uint8_t> payload) {
    made_++;
    if constexpr (HasSessions<Encap>) {
      if (!payload.empty()) std::memcpy(first.data() + first.size(), payload.data(), payload.size());
      first = {first.data(), first.size() + payload.size()};
      payload = {};
    }
    const Sealed sealed = encap_.seal(outer.peer, packet, first, payload);
    if (sealed.what == Sealed::What::kKept) return;
    if (sealed.what == Sealed::What::kDrop) {
      return drop({.reason = sealed.reason,
                   .bytes = first.subspan(Encap::kHeaderBytes),
                   .more = payload,
                   .peer = outer.to().address()});
    }
    sender_.template add<Encap::kTrailerBytes>(outer, first, payload);
  }

  void drop(const Dropped& dropped) {
    refused_++;
    path_.tx_drops->add(dropped);
  }
  /// Counts a packet as dropped; a superpacket counts as all of its segments.
  void drop(Counter reason, const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet,
            const Endpoint* endpoint = nullptr) {
    drop({.reason = reason,
          .packets = count_packets(virtio, bytes, packet),
          .bytes = {bytes, packet.total},
          .peer = endpoint ? endpoint->address() : Address()});
  }

  /// True if the packet has DF, or is IPv6, which routers must not fragment (RFC 8200 section 5).
  static bool may_not_fragment(const uint8_t* bytes, const Packet& packet) {
    return packet.version == 6 || (load_be16(bytes + 6) & kDontFragment);
  }
  /// Returns the length up to which packets are sent regardless of the path MTU. IPv6 senders need not send packets
  /// shorter than 1280 bytes, whatever an ICMP error says. So the kernel fragments the datagrams that contain IPv6
  /// packets of at most 1280 bytes (RFC 2473 section 7.1).
  static size_t least_mtu(const Packet& packet) { return packet.version == 6 ? kLeastIpv6Mtu : 0; }

  void refuse(size_t mtu, const VirtioHeader& virtio, uint8_t* bytes, const Packet& packet, const Endpoint& endpoint) {
    drop(k_tx_drop_too_big, virtio, bytes, packet, &endpoint);
    send_icmp(IcmpKind::kTooBig, too_big(std::max(mtu, least_mtu(packet))), virtio, bytes, packet,
              k_tx_frag_needed_sent);
  }

  /// Returns the length of the longest packet that may be sent to a peer, by the kernel's path MTU and the limit that
  /// probes found.
  size_t mtu_to(const Endpoint& endpoint) {
    ask_path(endpoint);
    return longest_to(endpoint, kEncapBytes<Encap>);
  }

  /// Returns the length of the longest packet that may be sent to a peer, by the kernel's path MTU only.
  size_t known_mtu(const Endpoint& endpoint) {
    ask_path(endpoint);
    return longest_within(endpoint.path.bytes(), kEncapBytes<Encap>);
  }

  void ask_path(const Endpoint& endpoint) {
    if (turn_ms_ == 0) turn_ms_ = now_ms();
    path_mtu_.refresh(endpoint, turn_ms_);
  }

  /// Sends an ICMP error about a packet from the TUN. For a superpacket the error quotes the first segment, because the
  /// sender's network stack knows only segments.
  void send_icmp(IcmpKind kind, const IcmpError& error, const VirtioHeader& virtio, uint8_t* bytes, Packet packet,
                 Counter counter) {
    const Address sender = source_of(bytes, packet);
    const bool is_ours = path_.filter.subnet.of(packet.version).contains(sender);
    if (!path_.filter.is_from_here(sender) || !may_send_error_about(bytes, packet) ||
        !(*path_.icmp)[kind].allows(sender, is_ours, now_ms())) {
      return;
    }
    uint8_t first[kMaxIcmpErrorBytes], out[kMaxIcmpErrorBytes];
    const std::span<const uint8_t> quoted = first_as_sent(virtio, bytes, packet, first);
    const size_t size = write_icmp_error(error, path_.network_address.of(packet.version), quoted.data(), packet, out);
    if (size > 0 && write_packet(path_.tun, header_, {out, size})) path_.counters.add(counter);
  }

  Path path_;
  bool header_;  // true if the TUN uses virtio headers
  Probes probes_;
  PathQueries path_mtu_;
  int64_t turn_ms_ = 0;  // when the current batch began; 0 until the time is needed
  PeerTables::Reader peers_;
  const PeerTable* table_ = nullptr;
  CircleGuard circles_;
  Encap encap_;
  Sender sender_;
  size_t refused_ = 0, made_ = 0;     // the numbers of dropped packets and of datagrams in the current batch
  std::unique_ptr<uint8_t[]> reads_;  // not written until used, so that an idle thread uses no memory
};

}  // namespace weft
