// encapsulation.h - what egress and ingress ask of an encapsulation: to seal an inner packet into a datagram, and to
// open a datagram.
//
// Sealing writes what stands before a packet and what stands behind it, and may refuse, or keep the packet until it can
// be sealed: an encapsulation with keys has none yet. Opening yields a packet, or a message for JavaScript, or nothing
// for anybody. One with keys has sessions (core/sessions.h), and timers.
//
// An encapsulation is a parameter of theirs at compile time, so that what one does not have costs it nothing. Each is a
// file of encap/ and a line in encap/all.h, and for the dgram engine one in src/path/engine/encapsulation.ts.
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

/// IPv4 and UDP, before all of it.
constexpr size_t kOuterBytes = kIpv4HeaderBytes + kUdpHeaderBytes;
/// The most that stands behind them, in one datagram or in several that are one message. Behind IPv6 it might be more
/// by its header's length.
constexpr size_t kMaxDatagramBytes = 65535 - kOuterBytes;

/// An encapsulation's facts about this host.
struct OwnEnd {
  static constexpr size_t kEncapBytes = 72;
  std::array<uint8_t, kEncapBytes> encap{};  ///< as a peer's record has it of a peer, and what only this host has
  size_t mtu = 0;                            ///< of the TUN, in bytes
};

/// What became of a packet that was to be sealed.
struct Sealed {
  enum class What : uint8_t { kDatagram, kKept, kDrop };
  What what;
  Counter reason = {};  ///< of a drop

  static Sealed datagram() { return {What::kDatagram}; }
  /// The encapsulation has it, and sends it when it can.
  static Sealed kept() { return {What::kKept}; }
  static Sealed drop(Counter reason) { return {What::kDrop, reason}; }
};

/// The content of a datagram that was opened.
struct Opened {
  enum class What : uint8_t { kPacket, kDrop, kLetter, kNothing };
  What what;
  Counter reason = {};            ///< of a drop
  std::span<uint8_t> bytes = {};  ///< the packet where it lies, or what is told to JavaScript
  VirtioHeader undone = {};       ///< work that the sender's kernel left to others: a checksum, cutting
  uint32_t session = 0;           ///< of the peer that has proved to have sent the packet; 0: nothing is proved

  static Opened packet(std::span<uint8_t> bytes, const VirtioHeader& undone = {}) {
    return {What::kPacket, {}, bytes, undone};
  }
  static Opened packet(std::span<uint8_t> bytes, uint32_t session) { return {What::kPacket, {}, bytes, {}, session}; }
  static Opened drop(Counter reason) { return {What::kDrop, reason}; }
  /// Dropped, and told to JavaScript.
  static Opened drop(Counter reason, std::span<uint8_t> letter) { return {What::kDrop, reason, letter}; }
  /// A message for JavaScript.
  static Opened letter(std::span<uint8_t> datagram) { return {What::kLetter, {}, datagram}; }
  static Opened nothing() { return {What::kNothing}; }
};

template <typename E>
concept Encapsulation = requires(E& encapsulation, const Endpoint& peer, const Packet& packet, std::span<uint8_t> bytes,
                                 Message& message) {
  /// The bytes before each inner packet, and behind it.
  { E::kHeaderBytes } -> std::convertible_to<size_t>;
  { E::kTrailerBytes } -> std::convertible_to<size_t>;
  /// True when either end of the tunnel is a router, which takes one off the TTL; false when both are a link's.
  { E::kRoutes } -> std::convertible_to<bool>;
  /// True when the outer header says of congestion what the packet says (core/ecn.h); false when it says nothing.
  { E::kCopiesEcn } -> std::convertible_to<bool>;
  /// Seals a packet to `peer`, or says why not and leaves it as it is. The first span begins with kHeaderBytes of room,
  /// then the packet, of which the second may have the rest, where it lies in a superpacket. Behind the first there are
  /// kTrailerBytes of room, which the datagram has at its end. Of a packet that was cut it is told the superpacket's
  /// shape.
  { encapsulation.seal(peer, packet, bytes, bytes) } -> std::same_as<Sealed>;
  /// Takes the next datagram off a message, which it takes as it came: it knows what its peers put into one.
  { encapsulation.open(message) } -> std::same_as<Opened>;
};

/// The bytes by which a packet becomes longer.
template <Encapsulation E>
constexpr size_t kEncapBytes = E::kHeaderBytes + E::kTrailerBytes;

/// One that proves who sent a packet, made with the sessions that its directions of all loops share. It takes packets
/// in one piece, its datagrams come from the port that peers know, and it has timers: `tick(now_ms, out)` is called
/// every kTickMs, and after each turn of a loop, by the loop's thread. `out.send(to, datagram, inner_bytes, slot)`
/// sends at once, `out.drop(reason, packets)` counts what is given up. When it returns true, rest() of each direction's
/// follows.
template <typename E>
concept HasSessions = Encapsulation<E> && std::constructible_from<E, const OwnEnd&, Sessions&> &&
    requires(E& encapsulation) {
  { E::kTickMs } -> std::convertible_to<int>;
  encapsulation.begin_turn(int64_t{});
  encapsulation.rest(int64_t{});
};

}  // namespace weft
