// peers.h - the peer table: inner destination to UDP endpoint, built once, read by every thread.
//
// One open-addressing hash table for each prefix length that occurs, asked from the longest to the shortest. In
// practice a network has one prefix length (SubnetLen), so a look-up is one multiplication and one probe, however
// many peers there are, and leases of other lengths still match longest first.
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "bytes.h"
#include "path_mtu.h"
#include "traffic.h"

namespace weft {

/// Where a peer's datagrams go. Compared by address: one peer is one Endpoint in a table.
struct Endpoint {
  union {
    sockaddr_in v4;
    sockaddr_in6 v6;
  } address;
  socklen_t address_bytes;
  /// What the encapsulation needs to know of the peer, opaque to all others (for vxlan its MAC and VNI).
  std::array<uint8_t, 16> encap;
  /// Where what passes to and from the peer is counted (traffic.h).
  uint32_t slot;
  /// No longer packet reaches the peer, as was found by asking it; 0: not known of any. Beside what the kernel knows.
  uint16_t limit;
  /// Learnt while it is sent to; with another table it is asked for again.
  mutable PathMtu path;

  /// Whether its datagrams come from this IPv4 address, in network order; whatever the port.
  bool is_at(uint32_t other) const { return address.v4.sin_family == AF_INET && ipv4() == other; }
  /// Its address, in network order; 0 when it is none of IPv4.
  uint32_t ipv4() const { return address.v4.sin_family == AF_INET ? address.v4.sin_addr.s_addr : 0; }
};

class PeerTable {
 public:
  /// Size of one record; the layout is in src/dataplane/peers.ts.
  static constexpr size_t kRecordBytes = 60;

  /// Builds a table from whole records. Of two records for one subnet the last counts.
  explicit PeerTable(std::span<const uint8_t> records);

  /// The endpoint for a destination in network order (4 bytes for version 4, 16 for 6), or null.
  const Endpoint* find(uint8_t version, const uint8_t* destination) const;

  /// Whether any peer's endpoint is at this IPv4 address, in network order.
  bool has_endpoint_at(uint32_t ipv4) const;

  /// One more than the highest slot that an endpoint has.
  uint32_t traffic_slots() const { return traffic_slots_; }

  /// The most slots in a row that are taken: what a look-up may have to walk.
  size_t longest_run() const;

 private:
  /// A prefix of up to 128 bits, left-aligned, host order; IPv4 uses the top 32.
  struct Prefix {
    uint64_t high, low;
    bool operator==(const Prefix&) const = default;
  };
  struct Slot {
    Prefix prefix;
    uint32_t endpoint;  // index plus one; 0 is free
  };
  struct Length {
    uint8_t bits;
    Prefix mask;
    uint32_t slot_mask;  // number of slots, a power of two, minus one
    std::vector<Slot> slots;
    /// Where the search for a prefix begins.
    uint32_t home(const Prefix& prefix) const;
  };

  static Prefix read_prefix(uint8_t version, const uint8_t* address);
  static Prefix mask_of(uint8_t bits);
  /// Empty tables with room for `counts[bits]` prefixes of each length, the longest first.
  static std::vector<Length> lengths_for(std::span<const uint32_t> counts);
  void insert(const uint8_t* record);

  std::vector<Endpoint> endpoints_;
  std::vector<uint32_t> ipv4_endpoints_;  // their addresses, sorted
  std::vector<Length> v4_, v6_;           // longest first
  uint32_t traffic_slots_ = 1;
};

/// The table in force, replaced without a lock: a hazard pointer for each reading thread (Michael, "Hazard
/// Pointers", 2004). Writers are serialised by their one thread, JavaScript's.
class PeerTables {
 public:
  /// A reader's claim on the table that it uses during one batch.
  class Reader {
   public:
    /// The newest table, valid until the next `acquire` or `release` of this reader.
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

  explicit PeerTables(size_t readers);

  /// The claim of reader `index`; each is used by one thread at a time.
  Reader reader(size_t index) { return {this, &hazards_[index]}; }

  /// Puts `table` in force and frees those that no reader holds any more.
  void replace(std::unique_ptr<const PeerTable> table);

 private:
  std::atomic<const PeerTable*> current_;
  std::vector<std::unique_ptr<const PeerTable>> owned_;  // the current one and those still in use
  std::vector<std::atomic<const PeerTable*>> hazards_;
};

}  // namespace weft
