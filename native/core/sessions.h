// sessions.h - what an encapsulation keeps of each peer, such as keys and counters: by the peer's slot, for as long as
// the slot is that peer's, whatever becomes of tables, endpoints and limits meanwhile.
//
// JavaScript gives each peer a slot and says it in the peer's record (peers.h); the traffic of a peer is counted in the
// same one (traffic.h). The thread that publishes tables makes a session for each slot that a record names, before the
// table is in force. A slot that another subnet is said to have gets a new session, and the one of before goes with the
// table that is replaced: whoever still has that table may use it until the end of its turn. A thread with the table of
// before may meet the new session too, which knows nothing yet. A peer that is gone has its session until its slot is
// another's: one that comes back goes on where it was.
//
// What stands in a session many threads may use at once; how, is the encapsulation's to say.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <span>

#include "peers.h"

namespace weft {

/// The engine's side of the sessions of whichever encapsulation it runs.
class SessionKeeper {
 public:
  virtual ~SessionKeeper() = default;
  /// Makes the sessions that these records need. By the one thread that publishes tables, before it publishes these;
  /// returned is what the table in force now may be used with, and none after it.
  virtual Garbage keep(std::span<const uint8_t> records) = 0;
};

template <typename Session>
class Sessions final : public SessionKeeper {
 public:
  Sessions() = default;
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;
  ~Sessions() override {
    for (auto& chunk : chunks_) delete[] chunk.load();
  }

  Garbage keep(std::span<const uint8_t> records) override {
    Garbage garbage;
    each_record(records, [&](const PeerRecord& record) {
      const uint32_t slot = record.usable_slot();
      if (slot == 0 || record.is_gone()) return;
      Entry& entry = room_for(slot);
      const Subnet subnet(record);
      if (entry.session.load(std::memory_order_relaxed) && entry.subnet == subnet) return;
      entry.subnet = subnet;
      Session* before = entry.session.exchange(new Session(), std::memory_order_acq_rel);
      if (before) garbage.push_back({before, [](void* old) { delete static_cast<Session*>(old); }});
    });
    return garbage;
  }

  /// The session of a peer that has this slot by a table that the caller has; null for one without a slot. By any
  /// thread, valid for as long as it has that table.
  Session* of(uint32_t slot) const {
    const Entry* chunk = chunks_[slot / kChunk].load(std::memory_order_acquire);
    return chunk ? chunk[slot % kChunk].session.load(std::memory_order_acquire) : nullptr;
  }

  /// Calls `each(slot, session)` with all that there are. By any thread, while it has a table.
  template <typename Each>
  void for_each(Each each) const {
    for (uint32_t at = 0; at < chunks_.size(); at++) {
      if (!chunks_[at].load(std::memory_order_acquire)) continue;
      for (uint32_t slot = at * kChunk; slot < (at + 1) * kChunk; slot++) {
        if (Session* session = of(slot)) each(slot, *session);
      }
    }
  }

 private:
  static constexpr uint32_t kChunk = 1 << 12;

  /// The subnet of a record, written the same way always.
  struct Subnet {
    Subnet() = default;
    explicit Subnet(const PeerRecord& record) : family(record.subnet_family), prefix_length(record.prefix_length) {
      std::copy(std::begin(record.subnet), std::end(record.subnet), address.begin());
    }
    bool operator==(const Subnet&) const = default;
    uint8_t family = 0, prefix_length = 0;
    std::array<uint8_t, 16> address{};
  };
  struct Entry {
    ~Entry() { delete session.load(); }
    std::atomic<Session*> session{nullptr};
    Subnet subnet;  // whose it is; for the publishing thread alone
  };

  Entry& room_for(uint32_t slot) {
    auto& chunk = chunks_[slot / kChunk];
    if (!chunk.load(std::memory_order_relaxed)) chunk.store(new Entry[kChunk], std::memory_order_release);
    return chunk.load(std::memory_order_relaxed)[slot % kChunk];
  }

  /// Never moved: a thread may be in one while there comes room for more.
  std::array<std::atomic<Entry*>, TrafficRows::kMaxSlots / kChunk> chunks_{};
};

}  // namespace weft
