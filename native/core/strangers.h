// strangers.h - senders of whom the filter let a packet not in, for JavaScript to name: a small table, one a loop.
//
// The loop's thread writes it and JavaScript's takes from it, without a lock. It has few slots, and a stranger takes
// the place of another: one who keeps sending is found in it sooner or later, however many there are. How many packets
// were dropped the counters say.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "address.h"
#include "counters.h"

namespace weft {

struct Stranger {
  Address from;                 ///< the datagram's outer source
  Address source, destination;  ///< the packet's
  Counter reason;
};

class Strangers {
 public:
  void note(const Stranger& stranger) {
    const uint64_t reason = stranger.reason + 1;
    const uint64_t mixed = (stranger.from.high() ^ stranger.from.low()) * kGolden + reason;
    Slot& slot = slots_[(mixed * kGolden) >> (64 - kSlotBits)];  // the upper bits of a product are mixed best
    if ((load(slot.turn) & kReason) == reason && slot.from.read() == stranger.from) return;
    turn_ += kTurn;
    store(slot.turn, 0);
    slot.from.write(stranger.from);
    slot.source.write(stranger.source);
    slot.destination.write(stranger.destination);
    store(slot.turn, turn_ | reason);
  }

  /// Calls `each` with those there are, and forgets them. By one thread, which need not be the one that notes.
  template <typename Each>
  void take(Each each) {
    for (Slot& slot : slots_) {
      uint64_t turn = load(slot.turn);
      if (turn == 0) continue;
      const Stranger stranger{slot.from.read(), slot.source.read(), slot.destination.read(),
                              static_cast<Counter>((turn & kReason) - 1)};
      // It is written over meanwhile: it is taken the next time.
      if (!slot.turn.compare_exchange_strong(turn, 0, std::memory_order_acq_rel, std::memory_order_relaxed)) continue;
      each(stranger);
    }
  }

 private:
  static constexpr size_t kSlotBits = 6;
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  /// The parts of `turn`: the reason plus one, and above it which writing it was, so that no two are equal.
  static constexpr uint64_t kReason = 0xff, kTurn = 0x100;
  static_assert(kCounterCount < kReason);

  /// Released and acquired by words, as those of a kept drop are (drops.h): whoever has seen one of a later writing
  /// does not find the turn any more that was there before it.
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
    Word turn{0};  // 0: free, or written
    Words from, source, destination;
  };
  std::array<Slot, 1 << kSlotBits> slots_;
  uint64_t turn_ = 0;
};

}  // namespace weft
