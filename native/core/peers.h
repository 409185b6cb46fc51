// peers.h - the peer table: inner destination to UDP endpoint, read by every thread while one changes it.
//
// One hash map (paged_map.h) for each prefix length that occurs, asked from the longest to the shortest. In
// practice a network has one prefix length (SubnetLen), so a look-up is one multiplication and one probe, however
// many peers there are, and leases of other lengths still match longest first. What a thread holds never changes: a
// change makes another table, which has all but what was changed in common with the one before.
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

/// A peer as JavaScript says it, byte by byte as src/path/engine/peers.ts writes it (napi/layout.cc tells it the
/// layout). Subnet and endpoint may be of different families; an IPv4 address stands in the first 4 of its 16 bytes.
struct PeerRecord {
  /// A bit of `flags`: the subnet has no peer any more; all else but family, length and subnet is 0 then.
  static constexpr uint8_t kGone = 1;
  /// The same: datagrams to the peer leave from the port that peers know, since it answers to where they come from.
  static constexpr uint8_t kFromKnownPort = 2;

  uint8_t subnet_family;  ///< 4 or 6, as the next
  uint8_t prefix_length;
  uint8_t endpoint_family;
  uint8_t flags;
  uint8_t port[2];   ///< of the endpoint, big-endian
  uint8_t limit[2];  ///< the longest packet that reaches the peer, big-endian; 0 where none is known
  uint8_t subnet[16];
  uint8_t endpoint[16];
  uint8_t encap[16];  ///< the encapsulation's facts about the peer
  uint32_t slot;      ///< in which the peer's traffic is counted and its session kept, in this host's order; 0: none
  uint8_t other[16];  ///< another address that its datagrams may come from, as Address has it in memory; 0: none

  bool is_gone() const { return flags & kGone; }
  bool is_from_known_port() const { return flags & kFromKnownPort; }
  /// The slot, where there may be one of that number.
  uint32_t usable_slot() const { return slot < TrafficRows::kMaxSlots ? slot : 0; }
};
static_assert(sizeof(PeerRecord) == 76 && alignof(PeerRecord) == 4 && std::is_trivially_copyable_v<PeerRecord>);
static_assert(offsetof(PeerRecord, port) == 4 && offsetof(PeerRecord, limit) == 6);
static_assert(offsetof(PeerRecord, subnet) == 8 && offsetof(PeerRecord, endpoint) == 24);
static_assert(offsetof(PeerRecord, encap) == 40 && offsetof(PeerRecord, slot) == 56);
static_assert(offsetof(PeerRecord, other) == 60);

/// Calls `each` with every whole record of these bytes, which lie at any alignment.
template <typename Each>
void each_record(std::span<const uint8_t> records, Each each) {
  for (; records.size() >= sizeof(PeerRecord); records = records.subspan(sizeof(PeerRecord))) {
    each(load<PeerRecord>(records.data()));
  }
}

/// The destination of a peer's datagrams. Compared by its place in memory: one peer is one Endpoint in a table, and
/// the same in the next one unless it was changed.
struct Endpoint {
  SocketAddress to;
  /// The address of another family by which it may send, and be sent to at another time; none where it has one alone.
  Address other;
  /// The encapsulation's facts about the peer, opaque to all others (for vxlan its MAC and VNI).
  std::array<uint8_t, 16> encap;
  /// The slot in which traffic to and from the peer is counted (traffic.h).
  uint32_t slot;
  /// The longest packet that reaches the peer, as was found by asking it; 0: no limit is known. Beside what the
  /// kernel knows.
  uint16_t limit;
  /// The last whole set that it was in; nothing to those who look it up.
  uint16_t round;
  /// Its datagrams leave from the port that peers know, and from no other.
  bool is_from_known_port;
  /// Learnt while it is sent to, and kept for as long as the peer has the address.
  mutable PathMtu path;

  Address address() const { return to.address(); }
  /// True when its datagrams come from this address; whatever the port.
  bool is_at(const Address& from) const { return address() == from || (other && other == from); }
};

/// A prefix of up to 128 bits, left-aligned, host order.
struct Prefix {
  uint64_t high, low;
  bool operator==(const Prefix&) const = default;
};

constexpr uint64_t hash_of(const Prefix& key) {
  return hash_of(uint64_t{key.high ^ (key.low * 0xc2b2ae3d27d4eb4full)});
}
constexpr uint64_t hash_of(const Address& key) { return hash_of(Prefix{key.high(), key.low()}); }

/// The peer table as it is during one batch.
class PeerTable {
 public:
  /// The endpoint for a destination in network order (4 bytes for version 4, 16 for 6), or null.
  const Endpoint* find(uint8_t version, const uint8_t* destination) const {
    return version == 4 ? find_in(v4_, read_ipv4(destination)) : find_in(v6_, read_ipv6(destination));
  }

  /// The endpoint of the peer whose subnet has this address, or null.
  const Endpoint* find(const Address& address) const {
    if (address.is_v4()) return find_in(v4_, to_be32(address.ipv4()));
    uint8_t bytes[sizeof(Address)];
    store(bytes, address.high());
    store(bytes + 8, address.low());
    return find(6, bytes);
  }

  /// True if any peer is at this address, by its endpoint or its other address.
  bool has_endpoint_at(const Address& address) const { return hosts_->find(address) != 0; }
  /// True when any peer with a subnet of this version is at this address, by its endpoint or the other one.
  bool has_endpoint_at(const Address& address, uint8_t version) const {
    return static_cast<uint32_t>(hosts_->find(address) / one_of(version)) != 0;
  }

 private:
  friend class PeerTables;
  template <typename Key>
  using Subnets = PagedMap<Key, Endpoint*>;
  /// The numbers of peers at each address: of subnets of IPv4 in the lower half, of IPv6 in the upper.
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

  std::vector<Length<uint32_t>> v4_;  // longest first
  std::vector<Length<Prefix>> v6_;
  const Hosts::Pages* hosts_;
};

/// The table in force, replaced without a lock: a hazard pointer for each reading thread (Michael, "Hazard
/// Pointers", 2004). Writers are serialised by their one thread, JavaScript's.
class PeerTables {
 public:
  /// A reader's claim on the table that it uses during one batch.
  class Reader {
   public:
    /// The newest table, valid until the next `acquire` or `release` of this reader.
    ///
    /// The claim and the look after it must both be seq_cst, as are the new table in publish() and the look at
    /// the claims in free_unheld(): of the two stores one is then seen by the other side's load. With less the look may
    /// go before the claim, and a table that is read is freed; no test of this project's sees that on a processor that
    /// does not do it (test/native/orders.test.ts).
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

  /// The claim of reader `index`; each is used by one thread at a time.
  Reader reader(size_t index) { return {this, &hazards_[index]}; }

  /// Makes the peers equal these whole records. Of two records for one subnet the last counts. A peer of which nothing
  /// is said that was not said before stays the one that it was.
  void set(std::span<const uint8_t> records);
  /// Puts these peers, or takes away those whose record says so, in their order; all others stay.
  void change(std::span<const uint8_t> records);

  /// Frees this once nobody has the table in force now, or one before it, any more.
  void free_with_current(Garbage garbage);

  /// The table for the thread that changes them.
  const PeerTable& current() const { return *tables_.back().table; }
  size_t size() const;
  /// One more than the highest slot that these records name.
  static uint32_t traffic_slots(std::span<const uint8_t> records);
  /// The number of earlier tables that are kept because a reader has one of them.
  size_t kept() const { return tables_.size() - 1; }
  /// The longest run of all maps, as PagedMap tells it.
  size_t longest_run() const;

 private:
  template <typename Key>
  using Subnets = PeerTable::Subnets<Key>;
  /// The maps by the length of their prefixes, the longest first.
  template <typename Key>
  using Lengths = std::map<uint8_t, Subnets<Key>, std::greater<>>;
  /// A table, and what the next one has no more: freed once nobody has this one or one before it.
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

  std::deque<Endpoint> endpoints_;  // never moved
  std::vector<Endpoint*> free_;     // of these, which are nobody's
  Lengths<uint32_t> v4_;
  Lengths<Prefix> v6_;
  PeerTable::Hosts hosts_;
  uint16_t round_ = 0;
  std::deque<Kept> tables_;  // the current one last
  std::atomic<const PeerTable*> current_;
  std::vector<std::atomic<const PeerTable*>> hazards_;
};

}  // namespace weft
