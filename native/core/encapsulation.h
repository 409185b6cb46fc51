// encapsulation.h - the interface of an encapsulation: it seals an inner packet (wraps it into a datagram, perhaps
// encrypted), and opens a received datagram.
//
// Sealing writes a header before a packet and a trailer after it. The encapsulation may drop the packet, or keep the
// packet until there are keys. Opening yields a packet, a control message for JavaScript, a drop, or nothing. An
// encapsulation with keys also has sessions (core/sessions.h) and timers.
//
// The encapsulation is a template parameter of egress and ingress, so that a feature costs nothing in encapsulations
// that lack it. To add an encapsulation, add a file in encap/, a line in encap/all.h, and for the dgram engine an entry
// in src/path/engine/encapsulation.ts.
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

constexpr size_t kOuterBytes = kIpv4HeaderBytes + kUdpHeaderBytes;
/// The maximum length in bytes of a datagram's payload, and of the payloads of all datagrams in one message together.
/// IPv6 would allow 20 bytes more, which weft does not use.
constexpr size_t kMaxDatagramBytes = 65535 - kOuterBytes;

struct OwnEnd {
  static constexpr size_t kEncapBytes = 72;
  /// This host's parameters, such as MAC and VNI: first the fields that a peer's record has too (core/peers.h), then
  /// fields that only this host has.
  std::array<uint8_t, kEncapBytes> encap{};
  size_t mtu = 0;  ///< The MTU of the TUN, in bytes.
};

/// The result of sealing a packet, that is, of wrapping the packet into a datagram.
struct Sealed {
  enum class What : uint8_t { kDatagram, kKept, kDrop };
  What what;
  Counter reason = {};  ///< set if `what` is kDrop

  static Sealed datagram() { return {What::kDatagram}; }
  /// The result for a packet of which the encapsulation keeps a copy, which it will send when there are keys.
  static Sealed kept() { return {What::kKept}; }
  static Sealed drop(Counter reason) { return {What::kDrop, reason}; }
};

/// The result of opening a datagram, that is, of unwrapping the packet inside.
struct Opened {
  enum class What : uint8_t { kPacket, kDrop, kControlMessage, kNothing };
  What what;
  Counter reason = {};  ///< set if `what` is kDrop
  /// The packet inside the datagram, or the control message for JavaScript. The bytes are part of the received message,
  /// and stay valid as long as the message's buffer.
  std::span<uint8_t> bytes = {};
  /// The work that the sender's kernel left undone: computing a checksum, or segmenting a superpacket.
  VirtioHeader undone = {};
  uint32_t session = 0;  ///< the session of the peer that provably sent the packet; 0 without such a proof
  /// True if `what` is kDrop and the datagram is still encrypted.
  bool is_encrypted = false;

  static Opened packet(std::span<uint8_t> bytes, const VirtioHeader& undone = {}) {
    return {What::kPacket, {}, bytes, undone};
  }
  static Opened packet(std::span<uint8_t> bytes, uint32_t session) { return {What::kPacket, {}, bytes, {}, session}; }
  static Opened drop(Counter reason) { return {What::kDrop, reason}; }
  /// The result for a datagram that could not be decrypted. If `message` is given, JavaScript gets these first bytes of
  /// the datagram as a control message.
  static Opened drop_encrypted(Counter reason, std::span<uint8_t> message = {}) {
    return {What::kDrop, reason, message, {}, 0, true};
  }
  static Opened control_message(std::span<uint8_t> datagram) { return {What::kControlMessage, {}, datagram}; }
  static Opened nothing() { return {What::kNothing}; }
};

template <typename E>
concept Encapsulation = requires(E& encapsulation, const Endpoint& peer, const Packet& packet, std::span<uint8_t> bytes,
                                 Message& message) {
  /// The lengths of the header and the trailer around each inner packet, in bytes.
  { E::kHeaderBytes } -> std::convertible_to<size_t>;
  { E::kTrailerBytes } -> std::convertible_to<size_t>;
  /// True if both ends of the tunnel act as routers, which decrement the TTL. False if the tunnel acts as one link.
  { E::kRoutes } -> std::convertible_to<bool>;
  /// True if the engine copies congestion marks between the inner and the outer header (core/ecn.h).
  { E::kCopiesEcn } -> std::convertible_to<bool>;
  /// Seals a packet for `peer`. The first span has kHeaderBytes of free space, then the packet, then kTrailerBytes of
  /// free space. For a segment of a superpacket, the second span has the rest of the segment's payload, and `packet`
  /// describes the superpacket. If the result is a drop, the packet is unchanged.
  { encapsulation.seal(peer, packet, bytes, bytes) } -> std::same_as<Sealed>;
  /// Opens the next datagram of a message and removes the datagram from the message. Only the encapsulation knows how
  /// datagrams were merged into the message.
  { encapsulation.open(message) } -> std::same_as<Opened>;
};

/// The number of bytes that an encapsulation adds to each packet.
template <Encapsulation E>
constexpr size_t kEncapBytes = E::kHeaderBytes + E::kTrailerBytes;

/// An encapsulation with sessions, which all loop threads share. The sessions prove who sent a packet. The
/// encapsulation gets packets in one piece, and its datagrams leave from weft's well-known port.
///
/// Each loop thread calls `tick(now_ms, out)` every kTickMs and after each batch. With `out.send(to, datagram,
/// inner_bytes, slot)` the encapsulation sends a datagram immediately; with `out.drop(reason, packets)` it counts
/// packets that it gives up. If tick() returns true, the loop must call rest() of the encapsulation of each direction,
/// which wipes unused keys.
template <typename E>
concept HasSessions = Encapsulation<E> && std::constructible_from<E, const OwnEnd&, Sessions&> &&
    requires(E& encapsulation) {
  { E::kTickMs } -> std::convertible_to<int>;
  encapsulation.begin_turn(int64_t{});
  encapsulation.rest(int64_t{});
};

}  // namespace weft
