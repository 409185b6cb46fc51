// sessions.h - the WireGuard sessions of all peers, by the number that JavaScript assigns to each public key.
//
// A peer's record names its session in the first 4 bytes of `encap`. A host with several subnets, or with an IPv4 and
// an IPv6 subnet, has one session. The fifth byte says whether the peer sends from any port. Datagrams name a session
// by an index, which contains the session's number and is permuted with a key of this process (index_code.h). So the
// session is found without a search, and an observer does not learn how many sessions there are.
//
// A session is created when a peer's record or a new key names it, and exists until the engine ends. If its peer is
// removed, the session is wiped and its number may be reused. An engine that ends may save its sessions for its
// successor on this host. A counter must never be used twice for encryption. So only one engine may take over the saved
// sessions (io/handover_state.h), and the engine that saved them must not encrypt any more.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "bucket.h"
#include "index_code.h"
#include "mailbox.h"
#include "peers.h"
#include "session.h"

namespace weft {

class Sessions {
 public:
  /// All session numbers are less than kMaxSessions; 0 means "no session".
  static constexpr uint32_t kMaxSessions = 1 << 20;
  /// How many bits of an index distinguish the key pairs of one session; the upper bits are the session's number.
  static constexpr uint32_t kPairBits = 12;
  /// The memory limit in bytes for all packets that wait for keys, in all sessions together. The memory holds the
  /// packets of an eighth of a second at 1 Gbit/s.
  static constexpr size_t kMaxStagedBytes = 16 << 20;

  /// `ring_mail` is called when the mailbox has something new for JavaScript. `ring_lane` is called when a loop thread
  /// must send packets that waited for keys.
  Sessions(const IndexCode& indices, std::function<void()> ring_mail, std::function<void()> ring_lane)
      : indices_(indices), mailbox_(std::move(ring_mail)), ring_lane_(std::move(ring_lane)) {}
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;
  ~Sessions() {
    for (auto& chunk : chunks_) delete[] chunk.load();
  }

  static uint32_t number_of(const uint8_t* encap) { return load_le32(encap); }
  static bool has_any_port(const uint8_t* encap) { return encap[4] != 0; }
  uint32_t number_of_index(uint32_t own_index) const { return indices_.decode(own_index) >> kPairBits; }

  /// Creates the sessions that the records `records` name, and sets the address of each peer. Only JavaScript's thread,
  /// which publishes peer tables, may call keep(), save() and take_over().
  void keep(std::span<const uint8_t> records) {
    each_record(records, [&](const PeerRecord& record) {
      const uint32_t number = number_of(record.encap);
      if (record.is_gone() || number == 0 || number >= kMaxSessions) return;
      room_for(number).send_to(record.host(record.outer), has_any_port(record.encap));
    });
  }
  void set_keys(uint32_t number, const SessionKeys& keys, int64_t now_ms) {
    if (number == 0 || number >= kMaxSessions) return;
    room_for(number).set_keys(++last_pair_, keys, now_ms);
    if (keys.is_initiator) make_ready(number);
  }
  void forget(uint32_t number) {
    if (Session* session = of(number)) session->forget();
  }

  /// Saves all sessions, including their keys. Must be called while no loop thread runs.
  SecretBytes save() {
    SecretWriter out;
    out.put(kForm);
    out.put_all(take_ready(), [&](uint32_t number) { out.put(number); });
    std::vector<uint32_t> numbers;
    for_each([&](uint32_t number, const Session& session) {
      if (!session.is_empty()) numbers.push_back(number);
    });
    out.put_all(numbers, [&](uint32_t number) {
      out.put(number);
      of(number)->save(out);
    });
    mailbox_.save(out);
    return out.take();
  }
  /// Continues the sessions that another engine saved (`saved`). `records` is the list of the peers (PeerRecord);
  /// sessions that no record names are dropped. Must be called before a loop thread runs. Returns false and keeps no
  /// session if `saved` is invalid.
  bool take_over(std::span<const uint8_t> saved, std::span<const uint8_t> records, int64_t now_ms) {
    std::unordered_map<uint32_t, uint32_t> slots;  // the traffic slot of each session's peer, by session number
    each_record(records, [&](const PeerRecord& record) {
      if (!record.is_gone() && of(number_of(record.encap))) slots[number_of(record.encap)] = record.usable_slot();
    });
    const auto next_number = [this] { return ++last_pair_; };
    const auto take_share = [this](size_t bytes, StagedBytes& share) { return take_staged_bytes(bytes, share); };
    SecretReader in(saved);
    if (in.get<uint32_t>() != kForm) in.refuse();
    std::vector<uint32_t> ready;
    in.get_all([&] { ready.push_back(in.get<uint32_t>()); });
    in.get_all([&] {
      const auto slot = slots.find(in.get<uint32_t>());
      Session nobodys;
      const bool is_named = slot != slots.end();
      Session& session = is_named ? room_for(slot->first) : nobodys;
      session.load(in, next_number, take_share, is_named ? slot->second : 0, now_ms);
    });
    mailbox_.load(in);
    if (in.is_whole()) {
      const std::lock_guard lock(ready_lock_);
      for (const uint32_t number : ready) {
        if (slots.contains(number)) ready_.push_back(number);
      }
      has_ready_.store(!ready_.empty(), std::memory_order_release);
      return true;
    }
    for_each([](uint32_t, Session& session) { session.forget(); });
    mailbox_.take(0);
    keep(records);
    return false;
  }

  Session* of(uint32_t number) const {
    if (number == 0 || number >= kMaxSessions) return nullptr;
    Session* chunk = chunks_[number / kChunk].load(std::memory_order_acquire);
    return chunk ? &chunk[number % kChunk] : nullptr;
  }
  template <typename Each>
  void for_each(Each each) const {
    for (uint32_t at = 0; at < chunks_.size(); at++) {
      Session* chunk = chunks_[at].load(std::memory_order_acquire);
      for (uint32_t in = 0; chunk && in < kChunk; in++) each(at * kChunk + in, chunk[in]);
    }
  }
  /// Returns true to only one loop thread in each interval of `every_ms`. That thread must then check the timers of all
  /// sessions.
  bool begin_look(int64_t now_ms, int64_t every_ms) {
    int64_t next_ms = next_look_ms_.load(std::memory_order_relaxed);
    return now_ms >= next_ms &&
           next_look_ms_.compare_exchange_strong(next_ms, now_ms + every_ms, std::memory_order_relaxed);
  }
  /// Makes a loop thread send the waiting packets of session `number`, or a keepalive if no packets wait.
  void make_ready(uint32_t number) {
    {
      const std::lock_guard lock(ready_lock_);
      ready_.push_back(number);
      has_ready_.store(true, std::memory_order_release);
    }
    ring_lane_();
  }
  std::vector<uint32_t> take_ready() {
    if (!has_ready_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(ready_lock_);
    has_ready_.store(false, std::memory_order_relaxed);
    return std::exchange(ready_, {});
  }
  /// Reserves memory for a packet that waits for keys. Returns false if the limit is reached.
  bool take_staged_bytes(size_t bytes, StagedBytes& share) {
    return StagedBytes::take(staged_bytes_, kMaxStagedBytes, bytes, share);
  }
  Mailbox& mailbox() { return mailbox_; }
  /// True if the MAC of one more handshake message may be verified. This rate limit keeps the cost of all threads
  /// together below a few percent of a core. Senders that are not peers have a limit of their own.
  bool may_look(bool is_from_peer, int64_t now_ms) {
    constexpr int64_t kPeersPerSecond = 50'000, kOthersPerSecond = 10'000, kMicroseconds = 1'000'000;
    const int64_t rate = is_from_peer ? kPeersPerSecond : kOthersPerSecond;
    return looks_[is_from_peer].take(now_ms * 1'000, kMicroseconds / rate, rate / 10);
  }

 private:
  static constexpr uint32_t kChunk = 1 << 8;
  /// The version of the format that save() writes. It must change when the format changes, and when the memory layout
  /// of a value that is written as raw bytes changes.
  static constexpr uint32_t kForm = 3;
  static_assert(sizeof(Mailbox::Moved) == 32);
  static_assert(sizeof(Mailbox::ControlMessage) == sizeof(SocketAddress) + Mailbox::kMessageBytes + 8);

  Session& room_for(uint32_t number) {
    auto& chunk = chunks_[number / kChunk];
    if (!chunk.load(std::memory_order_relaxed)) chunk.store(new Session[kChunk], std::memory_order_release);
    return chunk.load(std::memory_order_relaxed)[number % kChunk];
  }

  IndexCode indices_;
  Mailbox mailbox_;
  std::function<void()> ring_lane_;
  uint64_t last_pair_ = 0;
  std::mutex ready_lock_;
  std::vector<uint32_t> ready_;
  std::atomic<bool> has_ready_{false};
  std::atomic<int64_t> next_look_ms_{0};
  std::array<Bucket, 2> looks_;  // the limits on verified MACs: [0] for senders that are not peers, [1] for peers
  std::atomic<size_t> staged_bytes_{0};  // the memory of all waiting packets, including those that a thread is sending
  /// The sessions, in arrays of kChunk sessions each. These arrays never move, because threads use them while new
  /// arrays are added.
  std::array<std::atomic<Session*>, kMaxSessions / kChunk> chunks_{};
};

}  // namespace weft
