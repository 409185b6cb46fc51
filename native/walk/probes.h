// probes.h - the rules for weft's own probes among the packets from the TUN.
// - An echo request of this host may probe the path MTU, so it ignores the limit that earlier probes found.
// - The choice of underlay (src/node/loops/underlay-choice.ts) probes a peer over IPv4 and over IPv6. The reply to such
//   a probe goes over the IP version that the probe names (io/echo.h), because the reply must show whether that version
//   works. All other packets to the peer go over the version in the peer's record.
#pragma once

#include "../core/icmp.h"
#include "../core/peers.h"
#include "../io/echo.h"

namespace weft {

class Probes {
 public:
  /// `own` has the TUN's own addresses. `has_both_versions` is true if datagrams can be sent over IPv4 and over IPv6.
  Probes(const ByFamily<Address>& own, bool has_both_versions) : own_(own), has_both_versions_(has_both_versions) {}

  /// True for an unfragmented echo request of this host.
  bool is_request(const uint8_t* bytes, const Packet& packet) const {
    const uint8_t type = packet.version == 4 ? kEchoRequest : kEchoRequest6;
    return is_icmp(packet) && !packet.fragment && packet.total > packet.ip_bytes && bytes[packet.ip_bytes] == type &&
           is_own(bytes, packet);
  }

  /// Returns the IP version of the datagram that carries a packet to `peer`.
  uint8_t outer_version(const Endpoint& peer, const uint8_t* bytes, const Packet& packet) const {
    if (!has_both_versions_ || !is_icmp(packet) || !is_own(bytes, packet)) return peer.outer;
    const uint8_t named = version_for_reply(bytes, packet);
    return named != 0 && peer.hosts.of(named).address() ? named : peer.outer;
  }

 private:
  static bool is_icmp(const Packet& packet) {
    return packet.protocol == (packet.version == 4 ? uint8_t{IPPROTO_ICMP} : uint8_t{IPPROTO_ICMPV6});
  }
  bool is_own(const uint8_t* bytes, const Packet& packet) const {
    return source_of(bytes, packet) == own_.of(packet.version);
  }

  ByFamily<Address> own_;
  bool has_both_versions_;
};

}  // namespace weft
