// encapsulation.h - the interface of an encapsulation: it seals an inner packet into a datagram, and opens a datagram.
//
// Sealing writes the header before a packet and the trailer behind it. It may refuse the packet, or keep the packet
// until there are keys. Opening yields a packet, a control message for JavaScript, a drop, or nothing. An encapsulation
// with keys also has sessions (core/sessions.h) and timers.
//
// The encapsulation is a template parameter of egress and ingress, so that features that it lacks cost nothing. Each
// encapsulation is a file in encap/, a line in encap/all.h, and for the dgram engine an entry in
// src/path/engine/encapsulation.ts.
#pragma once

#include <concepts>
#include <span>

#include "counters.h"
#include "message.h"
#include "packet.h"
#include "peers.h"
#include "sessions.h"
#include "virtio.h"

namespace weft {

/// The length of the outer IPv4 and UDP headers.
constexpr size_t kOuterBytes = kIpv4HeaderBytes + kUdpHeaderBytes;
/// The maximum length of the payload of a datagram, or of several datagrams in one message. Over IPv6 it may be longer
/// by the length of the IPv6 header, which is not used.
constexpr size_t kMaxDatagramBytes = 65535 - kOuterBytes;

struct OwnEnd {
  static constexpr size_t kEncapBytes = 72;
  /// The same fields as in a peer's record (core/peers.h), then the fields that only this host has.
  std::array<uint8_t, kEncapBytes> encap{};
  size_t mtu = 0;  ///< The MTU of the TUN, in bytes.
};

/// The result of sealing a packet.
struct Sealed {
  enum class What : uint8_t { kDatagram, kKept, kDrop };
  What what;
  Counter reason = {};  ///< set if `what` is kDrop

  static Sealed datagram() { return {What::kDatagram}; }
  /// The encapsulation keeps the packet and sends it later.
  static Sealed kept() { return {What::kKept}; }
  static Sealed drop(Counter reason) { return {What::kDrop, reason}; }
};

/// The result of opening a datagram.
struct Opened {
  enum class What : uint8_t { kPacket, kDrop, kControlMessage, kNothing };
  What what;
  Counter reason = {};            ///< set if `what` is kDrop
  std::span<uint8_t> bytes = {};  ///< The packet, borrowed from the message, or the control message for JavaScript.
  /// The work that the sender's kernel left undone: a missing checksum, or a superpacket to cut.
  VirtioHeader undone = {};
  uint32_t session = 0;  ///< The session of the peer that is proved to have sent the packet; 0 if there is no proof.

  static Opened packet(std::span<uint8_t> bytes, const VirtioHeader& undone = {}) {
    return {What::kPacket, {}, bytes, undone};
  }
  static Opened packet(std::span<uint8_t> bytes, uint32_t session) { return {What::kPacket, {}, bytes, {}, session}; }
  static Opened drop(Counter reason) { return {What::kDrop, reason}; }
  /// A drop that is also a control message for JavaScript.
  static Opened drop(Counter reason, std::span<uint8_t> message) { return {What::kDrop, reason, message}; }
  static Opened control_message(std::span<uint8_t> datagram) { return {What::kControlMessage, {}, datagram}; }
  static Opened nothing() { return {What::kNothing}; }
};

template <typename E>
concept Encapsulation = requires(E& encapsulation, const Endpoint& peer, const Packet& packet, std::span<uint8_t> bytes,
                                 Message& message) {
  /// The lengths of the header and the trailer that the encapsulation puts around each inner packet.
  { E::kHeaderBytes } -> std::convertible_to<size_t>;
  { E::kTrailerBytes } -> std::convertible_to<size_t>;
  /// True if both ends of the tunnel are routers, which decrement the TTL. False if the tunnel is a link.
  { E::kRoutes } -> std::convertible_to<bool>;
  /// True if congestion marks are copied between inner and outer header (core/ecn.h).
  { E::kCopiesEcn } -> std::convertible_to<bool>;
  /// Seals a packet to `peer`; on a drop the packet stays unchanged. The first span has kHeaderBytes of room, then the
  /// packet. If the packet is a segment of a superpacket, the second span has the rest of it. kTrailerBytes of room
  /// follow the first span; the datagram's trailer goes there. If the packet was cut, `packet` describes the
  /// superpacket.
  { encapsulation.seal(peer, packet, bytes, bytes) } -> std::same_as<Sealed>;
  /// Takes the next datagram off a message. Only the encapsulation knows how its peers join datagrams into a message.
  { encapsulation.open(message) } -> std::same_as<Opened>;
};

/// The number of bytes by which a packet becomes longer.
template <Encapsulation E>
constexpr size_t kEncapBytes = E::kHeaderBytes + E::kTrailerBytes;

/// An encapsulation with sessions, which all loops share. It proves who sent a packet. Packets come to it in one piece,
/// and its datagrams leave from the port that peers know. The loop's thread calls `tick(now_ms, out)` every kTickMs and
/// after each turn. `out.send(to, datagram, inner_bytes, slot)` sends immediately, `out.drop(reason, packets)` counts
/// packets that it gives up. If tick() returns true, the loop calls rest() of each direction.
template <typename E>
concept HasSessions = Encapsulation<E> && std::constructible_from<E, const OwnEnd&, Sessions&> &&
    requires(E& encapsulation) {
  { E::kTickMs } -> std::convertible_to<int>;
  encapsulation.begin_turn(int64_t{});
  encapsulation.rest(int64_t{});
};

}  // namespace weft
