// drops.h - counts dropped packets by reason, and keeps the headers of the last dropped packets for JavaScript. Each
// forwarding thread (loop) has one such object for packets from the TUN to peers, and one for packets from peers to the
// TUN.
//
// The loop's thread writes the object and JavaScript's thread reads it, without a lock. A rate limit decides which
// dropped packets are kept, so that a flood of them costs little. The counters count every drop.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>

#include "address.h"
#include "bucket.h"
#include "counters.h"

namespace weft {

struct Dropped {
  Counter reason;
  size_t packets = 1;  ///< a superpacket counts as its segments
  std::span<const uint8_t> bytes = {};
  std::span<const uint8_t> more = {};  ///< the rest of the packet, if it is in a second piece
  Address peer = {};                   ///< the datagram's sender or receiver; :: if it is not known
  /// How many bytes at the beginning of the packet are the encapsulation's header; 0 if the engine removed that header.
  size_t encap_bytes = 0;
  /// True if the bytes after the encapsulation's header are encrypted. Only that header is kept, because the other
  /// bytes look random, and some of them would look like an IP packet.
  bool is_encrypted = false;
};

struct KeptDrop {
  static constexpr size_t kMaxBytes = 128;

  int64_t at_us;  ///< when the batch of the dropped packet began, on the monotonic clock
  Counter reason;
  uint32_t packets, length;
  Address peer;
  size_t encap_bytes;
  size_t size;
  std::array<uint8_t, kMaxBytes> bytes;
};

class Drops {
 public:
  /// kSlots is the number of most recent drops that are kept. A burst of up to kSlots drops is kept in full. kEveryUs
  /// is the interval, in microseconds, at which further drops are kept.
  static constexpr uint64_t kSlots = 256;
  static constexpr int64_t kEveryUs = 1'000;

  /// Returns the monotonic time in microseconds. Drops calls this function at most once per batch, and only if the
  /// batch drops a packet.
  using Clock = int64_t (*)();

  /// Numbers the kept drops, starting with the current time in microseconds. After a burst at most one drop per
  /// millisecond is kept, so the numbers grow more slowly than the time. So the numbers of the next engine start higher
  /// than those of this engine. A reader that knows its last number can therefore continue with the drops of the next
  /// engine.
  Drops(CounterRow counters, Clock now_us)
      : counters_(counters),
        now_us_(now_us),
        first_(static_cast<uint64_t>(now_us())),
        next_(first_),
        slots_(std::make_unique_for_overwrite<Slot[]>(kSlots)) {}

  void begin_turn() { turn_us_ = 0; }
  /// Counts a drop, and keeps its headers if the rate limit allows. Only the loop's thread may call add() and
  /// begin_turn().
  void add(const Dropped& dropped) {
    counters_.add(dropped.reason, dropped.packets);
    if (turn_us_ == 0) turn_us_ = now_us_();
    if (bucket_.take(turn_us_, kEveryUs, kSlots)) keep(dropped);
  }

  /// Calls `each` with the kept drops whose number is at least `from`, the oldest first. Returns the value of `from`
  /// for the next call. Any thread may call read().
  template <typename Each>
  uint64_t read(uint64_t from, Each each) const {
    const uint64_t next = load(next_);
    const uint64_t oldest = std::max(first_, next - std::min(next, kSlots));
    KeptDrop kept;
    for (uint64_t number = std::max(from, oldest); number < next; number++) {
      if (read_slot(number, kept)) each(kept);
    }
    return next;
  }

 private:
  static constexpr size_t kWords = KeptDrop::kMaxBytes / sizeof(uint64_t);

  /// A kept drop under a sequence lock. `sequence` is odd while the slot is written, and otherwise shows the number of
  /// the drop in it. Words are stored with release and loaded with acquire order, so a reader that sees one word of a
  /// write also sees the write's odd sequence (H. Boehm, "Can seqlocks get along with programming language memory
  /// models?", 2012, but without fences, which ThreadSanitizer does not support). No test detects a weaker order
  /// (test/native/orders.test.ts).
  struct Slot {
    uint64_t sequence;
    uint64_t at_us, numbers, about, peer[2];
    uint64_t words[kWords];
  };
  static_assert(kCounterCount <= 256 && KeptDrop::kMaxBytes < 256);  // the limits of the fields of `about`
  static uint64_t sequence_of(uint64_t number) { return 2 * number + 2; }

  static uint64_t load(const uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
  static void store(uint64_t& word, uint64_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }

  void keep(const Dropped& dropped) {
    uint64_t words[kWords] = {};
    const size_t most = dropped.is_encrypted ? dropped.encap_bytes : sizeof words;
    const size_t size = std::min(dropped.bytes.size(), most);
    const size_t more = std::min(dropped.more.size(), most - size);
    auto* bytes = reinterpret_cast<uint8_t*>(words);
    if (size > 0) std::memcpy(bytes, dropped.bytes.data(), size);
    if (more > 0) std::memcpy(bytes + size, dropped.more.data(), more);
    const uint64_t length = dropped.bytes.size() + dropped.more.size();

    const uint64_t number = next_;
    Slot& slot = slots_[number % kSlots];
    store(slot.sequence, sequence_of(number) - 1);
    store(slot.at_us, static_cast<uint64_t>(turn_us_));
    store(slot.numbers, length << 32 | (dropped.packets & 0xffffffff));
    store(slot.about, dropped.reason << 16 | (size + more) << 8 | dropped.encap_bytes);
    store(slot.peer[0], dropped.peer.high());
    store(slot.peer[1], dropped.peer.low());
    for (size_t i = 0; i * sizeof(uint64_t) < size + more; i++) store(slot.words[i], words[i]);
    store(slot.sequence, sequence_of(number));
    store(next_, number + 1);
  }

  /// Copies drop `number` into `kept`. Returns false if a later drop has overwritten the slot, or is overwriting it
  /// now.
  bool read_slot(uint64_t number, KeptDrop& kept) const {
    const Slot& slot = slots_[number % kSlots];
    if (load(slot.sequence) != sequence_of(number)) return false;
    const uint64_t numbers = load(slot.numbers), about = load(slot.about);
    kept.at_us = static_cast<int64_t>(load(slot.at_us));
    kept.length = static_cast<uint32_t>(numbers >> 32);
    kept.packets = static_cast<uint32_t>(numbers);
    kept.peer = Address::of_words(load(slot.peer[0]), load(slot.peer[1]));
    kept.reason = static_cast<Counter>(about >> 16 & 0xff);
    kept.size = about >> 8 & 0xff;
    kept.encap_bytes = std::min<size_t>(about & 0xff, kept.size);
    for (size_t i = 0; i * sizeof(uint64_t) < kept.size; i++) {
      const uint64_t word = load(slot.words[i]);
      std::memcpy(&kept.bytes[i * sizeof word], &word, sizeof word);
    }
    return load(slot.sequence) == sequence_of(number);
  }

  CounterRow counters_;
  Clock now_us_;
  int64_t turn_us_ = 0;  // when the current batch began; 0 until the time is needed
  Bucket bucket_;
  uint64_t first_;
  uint64_t next_;  // the number of the next drop
  // The slots are allocated, but not written before they are used, so that a thread without drops uses no physical
  // memory.
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace weft
