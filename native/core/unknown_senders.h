// unknown_senders.h - a small table, one per forwarding thread (loop), of senders whose packets the packet filter
// dropped. JavaScript reports these senders.
//
// The loop's thread writes the table and JavaScript's thread empties it, without a lock. A hash of the sender's address
// selects one of 64 slots, and a new sender overwrites the previous sender. So every sender that keeps sending is
// reported sooner or later, even among many senders. The table does not count the dropped packets (core/counters.h
// does).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "address.h"
#include "counters.h"

namespace weft {

struct UnknownSender {
  Address from;                 ///< the datagram's outer source address
  Address source, destination;  ///< the addresses of the inner packet
  Counter reason;
};

class UnknownSenders {
 public:
  void note(const UnknownSender& sender) {
    const uint64_t reason = sender.reason + 1;
    const uint64_t mixed = (sender.from.high() ^ sender.from.low()) * kGolden + reason;
    Slot& slot = slots_[(mixed * kGolden) >> (64 - kSlotBits)];  // the upper bits of a product are mixed best
    if ((load(slot.turn) & kReason) == reason && slot.from.read() == sender.from) return;
    turn_ += kTurn;
    store(slot.turn, 0);
    slot.from.write(sender.from);
    slot.source.write(sender.source);
    slot.destination.write(sender.destination);
    store(slot.turn, turn_ | reason);
  }

  /// Calls `each` with each entry, and removes the entry. Only one thread may call take(). The loop's thread may call
  /// note() at the same time.
  template <typename Each>
  void take(Each each) {
    for (Slot& slot : slots_) {
      uint64_t turn = load(slot.turn);
      if (turn == 0) continue;
      const UnknownSender sender{slot.from.read(), slot.source.read(), slot.destination.read(),
                                 static_cast<Counter>((turn & kReason) - 1)};
      // If the loop's thread has overwritten the slot since it was read, leave the new entry for the next call of
      // take().
      if (!slot.turn.compare_exchange_strong(turn, 0, std::memory_order_acq_rel, std::memory_order_relaxed)) continue;
      each(sender);
    }
  }

 private:
  static constexpr size_t kSlotBits = 6;
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  /// The two fields of Slot::turn. The lowest byte has the reason plus one. The remaining bits have a number that grows
  /// with each write, so that a reader notices every write.
  static constexpr uint64_t kReason = 0xff, kTurn = 0x100;
  static_assert(kCounterCount < kReason);

  /// Words are stored with release and loaded with acquire order, as in drops.h. So a reader that saw a word of a later
  /// write also sees that `turn` has changed.
  using Word = std::atomic<uint64_t>;
  static uint64_t load(const Word& word) { return word.load(std::memory_order_acquire); }
  static void store(Word& word, uint64_t value) { word.store(value, std::memory_order_release); }
  struct Words {
    Word high{0}, low{0};
    void write(const Address& address) {
      store(high, address.high());
      store(low, address.low());
    }
    Address read() const { return Address::of_words(load(high), load(low)); }
  };
  struct Slot {
    Word turn{0};  // 0 if the slot is empty or is being written
    Words from, source, destination;
  };
  std::array<Slot, 1 << kSlotBits> slots_;
  uint64_t turn_ = 0;
};

}  // namespace weft
