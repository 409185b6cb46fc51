// traffic.h - the traffic between this host and each peer, counted per loop. Readers sum over the loops.
//
// JavaScript assigns a slot to each peer, and the peer keeps it in later tables. Each loop has its own rows, so that no
// thread waits for another. A row is written once per run of packets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace weft {

/// The traffic of one peer. Packets and bytes are those of inner packets, as in counters.h.
struct Traffic {
  uint64_t tx_packets = 0, tx_bytes = 0;
  uint64_t rx_packets = 0, rx_bytes = 0;  ///< the packets from the peer that entered
  uint64_t last_received_ms =
      0;  ///< when the last of them arrived, in milliseconds of the monotonic clock; 0 for never
};

/// The number of values that JavaScript gets per slot: packets and bytes sent, packets and bytes received, and
/// milliseconds since the last packet was received.
constexpr size_t kTrafficNumbers = 5;

class TrafficRows {
 public:
  /// Slot 0 belongs to no peer. It takes the counts of endpoints without a slot.
  static constexpr uint32_t kMaxSlots = 1 << 24;

  /// Allocates memory for slots below `count`. Called by the thread that publishes tables, before the first table that
  /// uses these slots.
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
  /// Adds the counts of one slot to `sum`. Any thread may call it. A slot for which there was no memory counts as zero.
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

  /// Zeroes that take no physical memory until they are written, because a loop has traffic with few of a million
  /// peers. calloc gets chunks of this size from the kernel (mallopt(3), M_MMAP_THRESHOLD).
  static Chunk new_chunk() { return Chunk(static_cast<Traffic*>(std::calloc(kChunk, sizeof(Traffic)))); }

  Traffic& row_of(uint32_t slot) {
    const Chunk& chunk = chunks_[slot / kChunk];
    return chunk ? chunk[slot % kChunk] : uncounted_;
  }
  static uint64_t load(const uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }
  /// There is one writer, as in CounterRow.
  static void add(uint64_t& word, uint64_t amount) { __atomic_store_n(&word, load(word) + amount, __ATOMIC_RELAXED); }

  /// The counts of slots for which calloc had no memory. sum() must not attribute them to a peer.
  Traffic uncounted_;
  /// Chunks never move, because threads use them while new chunks are added.
  std::array<Chunk, kMaxSlots / kChunk> chunks_{new_chunk()};
};

}  // namespace weft
