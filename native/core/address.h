// address.h - an IPv4 or IPv6 address in 16 bytes, and an address with a port in the form of sockaddr.
//
// An IPv4 address is stored as an IPv4-mapped IPv6 address, in ::ffff:0:0/96 (RFC 4291 section 2.5.5.2). So one type,
// one comparison and one hash serve both families (passt's inany.h does the same). The bytes are in network order, and
// two addresses are compared as two 64-bit words. The address :: means "no address", because no host has it.
#pragma once

#include <netinet/in.h>

#include "bytes.h"

namespace weft {

class Address {
 public:
  constexpr Address() = default;
  /// Makes an IPv4 address from 32 bits in network order.
  static constexpr Address v4(uint32_t address) { return {0, std::bit_cast<uint64_t>(Mapped{kMark, address})}; }
  /// Reads an IPv6 address from 16 bytes in network order. An IPv4-mapped address becomes the IPv4 address.
  static Address v6(const uint8_t* bytes) { return {load<uint64_t>(bytes), load<uint64_t>(bytes + 8)}; }

  constexpr bool is_v4() const { return high_ == 0 && std::bit_cast<Mapped>(low_).mark == kMark; }
  /// The IPv4 address in network order; 0 for an IPv6 address.
  constexpr uint32_t ipv4() const { return is_v4() ? std::bit_cast<Mapped>(low_).address : 0; }
  /// The upper 64 bits of the address, as loaded from memory without swapping bytes; low() returns the lower 64 bits.
  constexpr uint64_t high() const { return high_; }
  constexpr uint64_t low() const { return low_; }
  static constexpr Address of_words(uint64_t high, uint64_t low) { return {high, low}; }

  constexpr Address masked(const Address& mask) const { return {high_ & mask.high_, low_ & mask.low_}; }
  constexpr explicit operator bool() const { return (high_ | low_) != 0; }
  constexpr bool operator==(const Address&) const = default;

 private:
  struct Mapped {
    uint32_t mark, address;
  };
  /// The 32 bits before the IPv4 address in an IPv4-mapped address: the last 16 of the 80 zero bits, then 16 one bits.
  static constexpr uint32_t kMark = kLittleEndian ? 0xffff0000 : 0x0000ffff;

  constexpr Address(uint64_t high, uint64_t low) : high_(high), low_(low) {}

  uint64_t high_ = 0, low_ = 0;
};
static_assert(sizeof(Address) == 16);

/// An IPv4 or IPv6 network. A default-constructed Net contains no address.
struct Net {
  Address address = Address::of_words(UINT64_MAX, UINT64_MAX);  ///< The first address of the network.
  Address mask = {};

  /// Makes the network of `address` with a prefix of `bits`: at most 32 for IPv4, at most 128 for IPv6.
  static Net of(const Address& address, size_t bits) {
    if (address.is_v4()) bits += 96;
    uint8_t mask[sizeof(Address)] = {};
    for (size_t bit = 0; bit < bits; bit++) mask[bit / 8] = static_cast<uint8_t>(mask[bit / 8] | 0x80 >> bit % 8);
    const Address wide = Address::v6(mask);
    return {address.masked(wide), wide};
  }
  constexpr bool contains(const Address& other) const { return other.masked(mask) == address; }
  /// True if the network contains addresses; false for a default-constructed Net, which contains none.
  constexpr explicit operator bool() const { return address.masked(mask) == address; }
};

constexpr uint8_t kIpVersions[] = {4, 6};

/// A value for each IP family. The members are named after the IP version, 4 or 6.
template <typename T>
struct ByFamily {
  T ipv4 = {}, ipv6 = {};
  T& of(uint8_t version) { return version == 4 ? ipv4 : ipv6; }
  const T& of(uint8_t version) const { return version == 4 ? ipv4 : ipv6; }
  const T& of(const Address& address) const { return address.is_v4() ? ipv4 : ipv6; }
  bool operator==(const ByFamily&) const = default;
};

/// An address and a UDP port in a sockaddr, the form that system calls use.
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
  /// The port in network order. The port has the same offset in sockaddr_in and sockaddr_in6, so sin6_port serves for
  /// IPv4 too.
  uint16_t port() const { return any_.sin6_port; }
  void set_port(uint16_t port_be) { any_.sin6_port = port_be; }
  /// Returns the IP address; :: if the kernel stored an address of a family other than IPv4 and IPv6.
  Address address() const {
    return family() == AF_INET    ? Address::v4(v4_.sin_addr.s_addr)
           : family() == AF_INET6 ? Address::v6(any_.sin6_addr.s6_addr)
                                  : Address();
  }

  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&any_); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&any_); }
  /// The length of the sockaddr at raw() in bytes, for system calls that read it.
  socklen_t size() const { return family() == AF_INET ? sizeof v4_ : sizeof any_; }
  /// The space at raw() in bytes, for system calls that write a sockaddr to raw().
  static constexpr socklen_t kRoom = sizeof(sockaddr_in6);

  /// Returns family, port and, for IPv4, the address in one word. Two IPv4 senders are the same if their words are
  /// equal.
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
