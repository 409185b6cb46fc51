// peers.h - the peer table: it maps an inner destination to a UDP endpoint. All threads read it while one thread
// changes it.
//
// The table has a hash map (paged_map.h) for each prefix length in use. A look-up tries the lengths from the longest to
// the shortest. A network usually has one prefix length (SubnetLen), so a look-up is one multiplication and one hash
// probe, however many peers there are. A published table never changes: each change makes a new table, which shares all
// unchanged pages with the previous table.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "address.h"
#include "bytes.h"
#include "paged_map.h"
#include "path_mtu.h"
#include "traffic.h"

namespace weft {

/// A peer as JavaScript passes it, in the layout that src/path/engine/peers.ts writes and napi/layout.cc reports. The
/// datagrams to the peer may have another IP version than the subnet. An IPv4 subnet uses the first 4 of the 16 bytes.
struct PeerRecord {
  /// Flag in `flags`: the peer is removed. All fields except family, length and subnet are 0.
  static constexpr uint8_t kGone = 1;
  /// Flag in `flags`: datagrams to the peer must leave from weft's well-known port, because the peer replies to the
  /// source port of the datagrams.
  static constexpr uint8_t kFromKnownPort = 2;

  uint8_t subnet_family;  ///< 4 or 6
  uint8_t prefix_length;
  uint8_t outer;  ///< the IP version of datagrams to the peer, 4 or 6; the record has an address of this version
  uint8_t flags;
  uint8_t port[2];   ///< the UDP port of the peer's addresses, big-endian
  uint8_t limit[2];  ///< the length in bytes of the longest packet that reaches the peer, big-endian; 0 if unknown
  uint8_t subnet[16];
  uint8_t ipv6[16];   ///< the IPv6 address of the peer's host; 0 for none
  uint8_t encap[16];  ///< the peer's parameters for the encapsulation, for example MAC and VNI
  uint32_t slot;      ///< the index of the peer's traffic counters, in host byte order; 0 for none
  uint8_t ipv4[4];    ///< the IPv4 address of the peer's host; 0 for none

  bool is_gone() const { return flags & kGone; }
  bool is_from_known_port() const { return flags & kFromKnownPort; }
  /// Returns the address and the port of the peer's host for the IP version `version`; an empty address if the host has
  /// no address of that version.
  SocketAddress host(uint8_t version) const {
    const auto v4 = load<uint32_t>(ipv4);
    const Address address = version == 6 ? Address::v6(ipv6) : v4 != 0 ? Address::v4(v4) : Address();
    return address ? SocketAddress(address, load<uint16_t>(port)) : SocketAddress();
  }
  /// Returns the index of the peer's traffic counters, or 0 if the index in the record is out of range.
  uint32_t usable_slot() const { return slot < TrafficRows::kMaxSlots ? slot : 0; }
};
static_assert(sizeof(PeerRecord) == 64 && alignof(PeerRecord) == 4 && std::is_trivially_copyable_v<PeerRecord>);
static_assert(offsetof(PeerRecord, port) == 4 && offsetof(PeerRecord, limit) == 6);
static_assert(offsetof(PeerRecord, subnet) == 8 && offsetof(PeerRecord, ipv6) == 24);
static_assert(offsetof(PeerRecord, encap) == 40 && offsetof(PeerRecord, slot) == 56);
static_assert(offsetof(PeerRecord, ipv4) == 60);

/// Calls `each` with every complete record in `records`, whose bytes may have any alignment.
template <typename Each>
void each_record(std::span<const uint8_t> records, Each each) {
  for (; records.size() >= sizeof(PeerRecord); records = records.subspan(sizeof(PeerRecord))) {
    each(load<PeerRecord>(records.data()));
  }
}

/// The addresses of a peer's host, and the address to which this host sends datagrams for the peer. A peer has one
/// Endpoint object, which stays the same in later tables unless the peer changes. So two Endpoints are compared by
/// their pointers.
struct Endpoint {
  /// The host's address and UDP port in each IP family. The peer's datagrams may come from any of these addresses. An
  /// address is empty if the host has none in the family.
  ByFamily<SocketAddress> hosts;
  /// The peer's parameters for the encapsulation, for example its MAC and VNI for vxlan.
  std::array<uint8_t, 16> encap;
  /// The index of the peer's traffic counters (traffic.h).
  uint32_t slot;
  /// The length in bytes of the longest packet that reaches the peer, as weft's probes found; 0 if the probes found no
  /// limit. The kernel's path MTU applies in addition.
  uint16_t limit;
  /// The serial number of the last complete set of records (set()) that contained the peer. Readers do not use this
  /// number.
  uint16_t round;
  /// The IP version of datagrams to the peer, 4 or 6. `hosts` has an address of this version.
  uint8_t outer;
  /// True if datagrams to the peer must leave from weft's well-known port, because the peer replies to the source port
  /// of the datagrams.
  bool is_from_known_port;
  /// The kernel's path MTU to the peer, learnt while sending. The value is kept as long as the peer has the same
  /// address.
  mutable PathMtu path;

  const SocketAddress& to() const { return hosts.of(outer); }
  Address address() const { return to().address(); }
  /// True if the peer's datagrams may come from the address `from`, with any port.
  bool is_at(const Address& from) const { return from && hosts.of(from).address() == from; }
};

/// The first bits of an IPv6 address as two words in host byte order; the remaining bits are 0.
struct Prefix {
  uint64_t high, low;
  bool operator==(const Prefix&) const = default;
};

constexpr uint64_t hash_of(const Prefix& key) {
  return hash_of(uint64_t{key.high ^ (key.low * 0xc2b2ae3d27d4eb4full)});
}
constexpr uint64_t hash_of(const Address& key) { return hash_of(Prefix{key.high(), key.low()}); }

class PeerTable {
 public:
  /// Returns the endpoint of the peer whose subnet contains a destination, or null. `destination` is in network order,
  /// 4 bytes for version 4 and 16 bytes for version 6.
  const Endpoint* find(uint8_t version, const uint8_t* destination) const {
    return version == 4 ? find_in(v4_, read_ipv4(destination)) : find_in(v6_, read_ipv6(destination));
  }

  /// Returns the endpoint of the peer whose subnet contains this address, or null if there is no such peer.
  const Endpoint* find(const Address& address) const {
    if (address.is_v4()) return find_in(v4_, to_be32(address.ipv4()));
    uint8_t bytes[sizeof(Address)];
    store(bytes, address.high());
    store(bytes + 8, address.low());
    return find(6, bytes);
  }

  bool has_endpoint_at(const Address& address) const { return hosts_->find(address) != 0; }
  /// True if `address` is the address of a peer's host, and this peer has a subnet of the IP version `version`.
  bool has_endpoint_at(const Address& address, uint8_t version) const {
    return static_cast<uint32_t>(hosts_->find(address) / one_of(version)) != 0;
  }

 private:
  friend class PeerTables;
  template <typename Key>
  using Subnets = PagedMap<Key, Endpoint*>;
  /// The number of peers at each address: peers with an IPv4 subnet in the lower half of the value, peers with an IPv6
  /// subnet in the upper half.
  using Hosts = PagedMap<Address, uint64_t>;
  static constexpr uint64_t one_of(uint8_t version) { return version == 4 ? 1 : uint64_t{1} << 32; }
  template <typename Key>
  struct Length {
    Key mask;
    const typename Subnets<Key>::Pages* subnets;
  };

  static uint32_t read_ipv4(const uint8_t* address) { return load_be32(address); }
  static Prefix read_ipv6(const uint8_t* address) {
    return {uint64_t{load_be32(address)} << 32 | load_be32(address + 4),
            uint64_t{load_be32(address + 8)} << 32 | load_be32(address + 12)};
  }
  static uint32_t masked(uint32_t address, uint32_t mask) { return address & mask; }
  static Prefix masked(const Prefix& address, const Prefix& mask) {
    return {address.high & mask.high, address.low & mask.low};
  }
  template <typename Key>
  static const Endpoint* find_in(const std::vector<Length<Key>>& lengths, const Key& address) {
    for (const Length<Key>& length : lengths) {
      if (const Endpoint* found = length.subnets->find(masked(address, length.mask))) return found;
    }
    return nullptr;
  }

  std::vector<Length<uint32_t>> v4_;  // the longest prefix length first, as in v6_
  std::vector<Length<Prefix>> v6_;
  const Hosts::Pages* hosts_;
};

/// Publishes peer tables to reader threads without a lock. Each reading thread has a hazard pointer to the table that
/// it uses (Michael, "Hazard Pointers", 2004), and tables to which no hazard pointer points are freed. Only
/// JavaScript's thread changes tables.
class PeerTables {
 public:
  class Reader {
   public:
    /// Returns the newest table, valid until the next acquire() or release() of this reader.
    ///
    /// The store to the hazard pointer and the load after it must both be seq_cst, and so must the store in publish()
    /// and the loads in free_unheld(). Then the reader sees the store of the publishing thread, or the publishing
    /// thread sees the store of the reader. With a weaker order the load may happen before the store, and a table in
    /// use is freed. Tests cannot show this on processors that do not reorder these accesses
    /// (test/native/orders.test.ts).
    const PeerTable& acquire() {
      const PeerTable* table = tables_->current_.load(std::memory_order_acquire);
      for (;;) {
        hazard_->store(table, std::memory_order_seq_cst);
        const PeerTable* again = tables_->current_.load(std::memory_order_seq_cst);
        if (again == table) return *table;
        table = again;
      }
    }
    void release() { hazard_->store(nullptr, std::memory_order_release); }

   private:
    friend class PeerTables;
    Reader(PeerTables* tables, std::atomic<const PeerTable*>* hazard) : tables_(tables), hazard_(hazard) {}
    PeerTables* tables_;
    std::atomic<const PeerTable*>* hazard_;
  };

  explicit PeerTables(size_t readers, std::span<const uint8_t> records = {});

  /// Returns the object with the number `index` through which a thread reads peer tables. Only one thread at a time may
  /// use an object.
  Reader reader(size_t index) { return {this, &hazards_[index]}; }

  /// Replaces all peers by the records `records`. If two records have the same subnet, the last record counts. A peer
  /// whose record is unchanged keeps its Endpoint.
  void set(std::span<const uint8_t> records);
  /// Applies the records `records` in order: each record adds, changes or removes a peer. All other peers stay.
  void change(std::span<const uint8_t> records);

  /// Frees `garbage` once no reader uses the current table or an earlier one.
  void free_with_current(Garbage garbage);

  const PeerTable& current() const { return *tables_.back().table; }
  size_t size() const;
  /// Returns the highest traffic slot (number of a peer's traffic counters) in the records `records`, plus one.
  static uint32_t traffic_slots(std::span<const uint8_t> records);
  /// The number of earlier tables that are not freed yet, because a reader still uses one of these tables.
  size_t kept() const { return tables_.size() - 1; }
  size_t longest_run() const;

 private:
  template <typename Key>
  using Subnets = PeerTable::Subnets<Key>;
  /// The map of subnets for each prefix length, the longest length first.
  template <typename Key>
  using Lengths = std::map<uint8_t, Subnets<Key>, std::greater<>>;
  /// A peer table, with the pages and endpoints that the next table no longer uses. All are freed once no reader uses
  /// this table or an earlier one.
  struct Kept {
    std::unique_ptr<const PeerTable> table;
    Garbage pages;
    std::vector<Endpoint*> endpoints;
  };

  void apply(std::span<const uint8_t> records, bool is_whole);
  template <typename Key>
  void put(Subnets<Key>& subnets, const Key& prefix, const Endpoint& wanted);
  template <typename Key>
  void put(Subnets<Key>& subnets, const Key& prefix, Endpoint* endpoint, Endpoint* before);
  template <typename Key>
  void keep_only_round(Lengths<Key>& lengths);
  template <typename Key>
  void drop_empty(Lengths<Key>& lengths);
  void count_host(const Address& address, uint64_t change);
  Endpoint* new_endpoint(const Endpoint& wanted);
  void publish();
  void free_unheld();

  std::deque<Endpoint> endpoints_;  // a deque, because readers point to its elements, which must not move
  std::vector<Endpoint*> free_;     // the unused elements of endpoints_
  Lengths<uint32_t> v4_;
  Lengths<Prefix> v6_;
  PeerTable::Hosts hosts_;
  uint16_t round_ = 0;
  std::deque<Kept> tables_;  // the current table is the last one
  std::atomic<const PeerTable*> current_;
  std::vector<std::atomic<const PeerTable*>> hazards_;
};

}  // namespace weft
