// traffic.h - counts the traffic between this host and each peer, per loop thread. Readers add the counts of all
// threads.
//
// JavaScript assigns a slot (an index into the counters) to each peer, and the peer keeps its slot when JavaScript
// replaces the table of peers. Each loop thread has its own counters, so that no thread waits for another. A thread
// adds to its counters once for each run of packets to or from one peer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace weft {

/// The traffic between this host and one peer. Packets and bytes are those of inner packets, as in counters.h.
struct Traffic {
  uint64_t tx_packets = 0, tx_bytes = 0;
  uint64_t rx_packets = 0, rx_bytes = 0;  ///< the packets from the peer that the filter accepted
  /// When the last packet from the peer arrived, in ms of the monotonic clock; 0 for never.
  uint64_t last_received_ms = 0;
};

/// How many numbers JavaScript gets for each slot: packets and bytes sent, packets and bytes received, and milliseconds
/// since the last packet was received.
constexpr size_t kTrafficNumbers = 5;

class TrafficRows {
 public:
  /// All slot numbers are less than kMaxSlots. Slot 0 belongs to no peer: it counts the traffic of endpoints that have
  /// no slot of their own.
  static constexpr uint32_t kMaxSlots = 1 << 24;

  /// Allocates memory for the slots below `count`. Called by JavaScript's thread before it publishes the first peer
  /// table that uses these slots.
  void make_room(uint32_t count) {
    for (uint32_t at = 0; at * kChunk < count && at < chunks_.size(); at++) {
      if (!chunks_[at]) chunks_[at] = new_chunk();
    }
  }

  void add_sent(uint32_t slot, uint64_t packets, uint64_t bytes) {
    Traffic& row = row_of(slot);
    add(row.tx_packets, packets);
    add(row.tx_bytes, bytes);
  }
  void add_received(uint32_t slot, uint64_t packets, uint64_t bytes, uint64_t now_ms) {
    Traffic& row = row_of(slot);
    add(row.rx_packets, packets);
    add(row.rx_bytes, bytes);
    __atomic_store_n(&row.last_received_ms, now_ms, __ATOMIC_RELAXED);
  }
  /// Adds the counts of one slot to `sum`. Any thread may call sum(). A slot without memory counts as zero.
  void sum(uint32_t slot, Traffic& sum) const {
    const Chunk& chunk = chunks_[slot / kChunk];
    if (!chunk) return;
    const Traffic& row = chunk[slot % kChunk];
    sum.tx_packets += load(row.tx_packets);
    sum.tx_bytes += load(row.tx_bytes);
    sum.rx_packets += load(row.rx_packets);
    sum.rx_bytes += load(row.rx_bytes);
    if (const uint64_t received = load(row.last_received_ms); received > sum.last_received_ms)
      sum.last_received_ms = received;
  }

 private:
  static constexpr uint32_t kChunk = 1 << 12;
  struct Free {
    void operator()(Traffic* rows) const { std::free(rows); }
  };
  using Chunk = std::unique_ptr<Traffic[], Free>;

  /// Allocates zeroed counters that use no physical memory until a thread writes to them, because even in a network of
  /// a million peers a loop has traffic with only a few of them. calloc gets blocks of this size from the kernel
  /// (mallopt(3), M_MMAP_THRESHOLD).
  static Chunk new_chunk() { return Chunk(static_cast<Traffic*>(std::calloc(kChunk, sizeof(Traffic)))); }

  Traffic& row_of(uint32_t slot) {
    const Chunk& chunk = chunks_[slot / kChunk];
    return chunk ? chunk[slot % kChunk] : uncounted_;
  }
  static uint64_t load(const uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }
  /// Adds without a locked instruction, because only one thread writes a counter.
  static void add(uint64_t& word, uint64_t amount) { __atomic_store_n(&word, load(word) + amount, __ATOMIC_RELAXED); }

  /// Counts the traffic of all slots for which calloc had no memory. sum() must not attribute this traffic to any peer.
  Traffic uncounted_;
  /// The counters, in arrays with the counters of kChunk slots each. These arrays never move, because threads use them
  /// while new arrays are added.
  std::array<Chunk, kMaxSlots / kChunk> chunks_{new_chunk()};
};

}  // namespace weft
