// encapsulation.h - what egress and ingress ask of an encapsulation: to write what stands before an inner packet, to
// check it and to strip it.
//
// It is a parameter of theirs at compile time, so that one that writes nothing costs nothing. Each is a file of encap/
// and a line in engine.cc, and for the dgram engine one in src/dataplane/encapsulation.ts.
#pragma once

#include <concepts>
#include <optional>
#include <span>

#include "counters.h"
#include "message.h"
#include "packet.h"
#include "peers.h"
#include "virtio.h"

namespace weft {

/// IPv4 and UDP, before all of it.
constexpr size_t kOuterBytes = kIpv4HeaderBytes + kUdpHeaderBytes;
/// The most that stands behind them, in one datagram or in several that are one message.
constexpr size_t kMaxDatagramBytes = 65535 - kOuterBytes;

/// What an encapsulation knows of this host.
struct OwnEnd {
  std::array<uint8_t, 16> encap{};  ///< as a peer's record has it of a peer
  size_t mtu = 0;                   ///< of the TUN, in bytes
};

/// The inner packet of a datagram, where it lies, or the reason why there is none.
struct Stripped {
  std::span<uint8_t> packet;
  std::optional<Counter> drop = {};
  VirtioHeader undone = {};  ///< what its sender's kernel left to others: a checksum, cutting
};

template <typename E>
concept Encapsulation = std::constructible_from<E, const OwnEnd&> &&
    requires(const E& encapsulation, const Endpoint& peer, const Packet& packet, uint8_t* out, Message& message) {
  /// The bytes before each inner packet.
  { E::kHeaderBytes } -> std::convertible_to<size_t>;
  /// Whether either end of the tunnel is a router, which takes one off the TTL, or both are a
  /// link's.
  { E::kRoutes } -> std::convertible_to<bool>;
  /// Whether the outer header says of congestion what the packet says (core/ecn.h), or nothing.
  { E::kCopiesEcn } -> std::convertible_to<bool>;
  /// Writes them before a packet to `peer`. Of a packet that was cut it is told the
  /// superpacket's shape.
  encapsulation.write(peer, packet, out);
  /// Takes the next inner packet off a message, which it takes as it came: it knows what its
  /// peers put into one.
  { encapsulation.strip(message) } -> std::same_as<Stripped>;
};

}  // namespace weft
