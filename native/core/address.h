// address.h - an IP address of either family in 16 bytes, and the same with a port as the kernel takes it.
//
// An IPv4 address stands in the range that IPv6 keeps for them, ::ffff:0:0/96 (RFC 4291 section 2.5.5.2), so that there
// is one type, one comparison and one hash for both (the idea is passt's, inany.h). An address lies in memory as it
// does in a header, and is compared by two words. :: stands for none: no host has it.
//
// Inner IPv4 addresses are looked up by their 32 bits where that is once a packet (peers.h); what is here is for
// everything else.
#pragma once

#include <netinet/in.h>

#include "bytes.h"

namespace weft {

class Address {
 public:
  constexpr Address() = default;
  /// IPv4, in network order.
  static constexpr Address v4(uint32_t address) { return {0, std::bit_cast<uint64_t>(Mapped{kMark, address})}; }
  /// IPv6, of 16 bytes as they stand in a header; a mapped one is the IPv4 address.
  static Address v6(const uint8_t* bytes) { return {load<uint64_t>(bytes), load<uint64_t>(bytes + 8)}; }

  constexpr bool is_v4() const { return high_ == 0 && std::bit_cast<Mapped>(low_).mark == kMark; }
  /// The IPv4 address in network order; 0 for an address of the other family.
  constexpr uint32_t ipv4() const { return is_v4() ? std::bit_cast<Mapped>(low_).address : 0; }
  /// Its two halves, as they lie in memory.
  constexpr uint64_t high() const { return high_; }
  constexpr uint64_t low() const { return low_; }
  static constexpr Address of_words(uint64_t high, uint64_t low) { return {high, low}; }

  constexpr Address masked(const Address& mask) const { return {high_ & mask.high_, low_ & mask.low_}; }
  constexpr explicit operator bool() const { return (high_ | low_) != 0; }
  constexpr bool operator==(const Address&) const = default;

 private:
  /// The lower half of an IPv4 address, as it lies in memory.
  struct Mapped {
    uint32_t mark, address;
  };
  /// The last of the 80 bits of zeroes and the 16 of ones behind them.
  static constexpr uint32_t kMark = kLittleEndian ? 0xffff0000 : 0x0000ffff;

  constexpr Address(uint64_t high, uint64_t low) : high_(high), low_(low) {}

  uint64_t high_ = 0, low_ = 0;
};
static_assert(sizeof(Address) == 16);

/// A network of either family. One that nobody set contains no address.
struct Net {
  Address address = Address::of_words(UINT64_MAX, UINT64_MAX);  ///< its first
  Address mask = {};

  /// `bits` is the prefix length in the address's own family.
  static Net of(const Address& address, size_t bits) {
    if (address.is_v4()) bits += 96;
    uint8_t mask[sizeof(Address)] = {};
    for (size_t bit = 0; bit < bits; bit++) mask[bit / 8] = static_cast<uint8_t>(mask[bit / 8] | 0x80 >> bit % 8);
    const Address wide = Address::v6(mask);
    return {address.masked(wide), wide};
  }
  constexpr bool contains(const Address& other) const { return other.masked(mask) == address; }
  /// False of one that nobody set.
  constexpr explicit operator bool() const { return address.masked(mask) == address; }
};

/// Something that this host may have of either family.
template <typename T>
struct ByFamily {
  T ipv4 = {}, ipv6 = {};
  const T& of(uint8_t version) const { return version == 4 ? ipv4 : ipv6; }
  const T& of(const Address& address) const { return address.is_v4() ? ipv4 : ipv6; }
};

/// An address and a UDP port, in the form that system calls take and give.
class SocketAddress {
 public:
  SocketAddress() : any_{} {}
  SocketAddress(const Address& address, uint16_t port_be) : any_{} {
    if (address.is_v4()) {
      v4_ = {AF_INET, port_be, {address.ipv4()}, {}};
    } else {
      any_.sin6_family = AF_INET6;
      any_.sin6_port = port_be;
      store(any_.sin6_addr.s6_addr, address.high());
      store(any_.sin6_addr.s6_addr + 8, address.low());
    }
  }

  sa_family_t family() const { return any_.sin6_family; }
  /// The port in network order: both families have it at one place.
  uint16_t port() const { return any_.sin6_port; }
  void set_port(uint16_t port_be) { any_.sin6_port = port_be; }
  /// None of a socket of another kind.
  Address address() const {
    return family() == AF_INET    ? Address::v4(v4_.sin_addr.s_addr)
           : family() == AF_INET6 ? Address::v6(any_.sin6_addr.s6_addr)
                                  : Address();
  }

  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&any_); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&any_); }
  /// Bytes that count of raw().
  socklen_t size() const { return family() == AF_INET ? sizeof v4_ : sizeof any_; }
  /// Room behind raw(), for the kernel to write into.
  static constexpr socklen_t kRoom = sizeof(sockaddr_in6);

  /// Family and port, and of IPv4 the address: two senders of IPv4 are one if these are equal.
  uint64_t first_word() const { return load<uint64_t>(reinterpret_cast<const uint8_t*>(&any_)); }

  bool operator==(const SocketAddress& other) const {
    return family() == other.family() && port() == other.port() && address() == other.address();
  }

 private:
  union {
    sockaddr_in6 any_;
    sockaddr_in v4_;
  };
};
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

}  // namespace weft
