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

#include "counters.h"

namespace weft {

/// Addresses are IPv4 in network order; the inner ones of an IPv6 packet are 0.
struct Stranger {
  uint32_t from;  ///< the datagram's outer source
  uint32_t source, destination;
  Counter reason;
};

class Strangers {
 public:
  void note(const Stranger& stranger) {
    const uint64_t who = static_cast<uint64_t>(stranger.from) << 32 | (stranger.reason + 1);
    Slot& slot = slots_[(who * 0x9e3779b97f4a7c15ull) >> (64 - kSlotBits)];  // as PeerTable's hash
    if ((slot.who.load() & ~kTurns) == who) return;
    turns_ = (turns_ + kTurn) & kTurns;
    slot.who.store(0);
    slot.inner.store(static_cast<uint64_t>(stranger.source) << 32 | stranger.destination);
    slot.who.store(who | turns_);
  }

  /// Calls `each` with those there are, and forgets them. By one thread, which need not be the one that notes.
  template <typename Each>
  void take(Each each) {
    for (Slot& slot : slots_) {
      uint64_t who = slot.who.load();
      if (who == 0) continue;
      const uint64_t inner = slot.inner.load();
      if (!slot.who.compare_exchange_strong(who, 0)) continue;  // written over meanwhile: it is taken the next time
      each(Stranger{static_cast<uint32_t>(who >> 32), static_cast<uint32_t>(inner >> 32), static_cast<uint32_t>(inner),
                    static_cast<Counter>((who & kReason) - 1)});
    }
  }

 private:
  static constexpr size_t kSlotBits = 6;
  /// What `who` has below the address: the reason plus one, and which writing it was, so that two differ.
  static constexpr uint64_t kReason = 0xff, kTurns = 0xffffff00, kTurn = 0x100;
  static_assert(kCounterCount < kReason);
  struct Slot {
    std::atomic<uint64_t> who{0};  // 0: free
    std::atomic<uint64_t> inner{0};
  };
  std::array<Slot, 1 << kSlotBits> slots_;
  uint64_t turns_ = 0;
};

}  // namespace weft
