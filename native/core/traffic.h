// traffic.h - what passed between this host and each peer, as one loop saw it: summed over the loops by whoever reads.
//
// A peer has a slot, which JavaScript gives it and which stays its own when the table is published anew. Each loop has
// rows of its own, so that no thread waits for another; a row is written once a run of packets, not once a packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace weft {

/// The traffic of one peer. Packets are inner ones, as counters.h has them.
struct Traffic {
  uint64_t tx_packets = 0, tx_bytes = 0;
  uint64_t rx_packets = 0, rx_bytes = 0;  ///< let in from it
  uint64_t heard_ms = 0;                  ///< the time when the last of them came, by the threads' clock; 0: none did
};

/// The numbers that JavaScript is told of a slot: packets and bytes sent, packets and bytes let in, milliseconds
/// since the last of those.
constexpr size_t kTrafficNumbers = 5;

class TrafficRows {
 public:
  /// Slot 0 is of no peer, and takes what is counted for one that has none.
  static constexpr uint32_t kMaxSlots = 1 << 24;

  /// Makes room for slots below `count`; by the one thread that publishes tables, before the first table that has them.
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
    __atomic_store_n(&row.heard_ms, now_ms, __ATOMIC_RELAXED);
  }
  /// Adds up the counts of one slot; any thread may call it. A slot that had no memory counts as zero.
  void sum(uint32_t slot, Traffic& sum) const {
    const Chunk& chunk = chunks_[slot / kChunk];
    if (!chunk) return;
    const Traffic& row = chunk[slot % kChunk];
    sum.tx_packets += load(row.tx_packets);
    sum.tx_bytes += load(row.tx_bytes);
    sum.rx_packets += load(row.rx_packets);
    sum.rx_bytes += load(row.rx_bytes);
    if (const uint64_t heard = load(row.heard_ms); heard > sum.heard_ms) sum.heard_ms = heard;
  }

 private:
  static constexpr uint32_t kChunk = 1 << 12;
  struct Free {
    void operator()(Traffic* rows) const { std::free(rows); }
  };
  using Chunk = std::unique_ptr<Traffic[], Free>;

  /// Zeroes that take no memory until they are written to: a loop hears of few of a million peers. So large a chunk
  /// calloc has from the kernel (mallopt(3), M_MMAP_THRESHOLD).
  static Chunk new_chunk() { return Chunk(static_cast<Traffic*>(std::calloc(kChunk, sizeof(Traffic)))); }

  Traffic& row_of(uint32_t slot) {
    const Chunk& chunk = chunks_[slot / kChunk];
    return chunk ? chunk[slot % kChunk] : uncounted_;
  }
  static uint64_t load(const uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }
  /// One writer, as CounterRow's.
  static void add(uint64_t& word, uint64_t amount) { __atomic_store_n(&word, load(word) + amount, __ATOMIC_RELAXED); }

  /// Receives the counts of slots that calloc had no memory for; sum() must not attribute them to a peer.
  Traffic uncounted_;
  /// Never moved: a thread may be in one while there comes room for more.
  std::array<Chunk, kMaxSlots / kChunk> chunks_{new_chunk()};
};

}  // namespace weft
