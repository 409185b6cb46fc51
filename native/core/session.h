// session.h - WireGuard's session with one peer: its keys, what waits for them, and when something is due.
//
// A handshake yields a pair of keys, which lives for three minutes. A session has up to three pairs: `current` is
// sealed with; `next` is one that the peer made with us, and takes the place of `current` with the first packet that
// the peer seals with it, since only then do both know it (white paper, sections 5.4.6 and 6.3); `previous` still opens
// what the peer seals until it knows of another. That is the pair that it has used last: where both began at once each
// seals by its own handshake, and opens by the other's. The kernel's noise.c keeps one less, and loses what is on its
// way then.
//
// Handshakes are JavaScript's (src/path/backends/wireguard/). All that a session knows of them is that one is wanted,
// which it says at most every few seconds, and the keys that come of it.
//
// Lanes use a session at once. It is locked for a few instructions at a time and never while a packet is sealed or
// opened: a lane takes a counter, and has its own copy of the key.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../crypto/aead.h"
#include "address.h"
#include "counters.h"
#include "replay.h"
#include "secret_bytes.h"

namespace weft {

/// What a handshake yields.
struct SessionKeys {
  bool is_initiator = false;
  uint32_t own_index = 0;   ///< by which the peer names this pair
  uint32_t peer_index = 0;  ///< by which we name it to the peer
  Key send, receive;
};

/// The limits of WireGuard (white paper, section 6.1), and ours of what waits.
struct SessionLimits {
  static constexpr int64_t kRekeyAfterMs = 120'000, kRejectAfterMs = 180'000, kWipeAfterMs = 3 * kRejectAfterMs;
  static constexpr int64_t kKeepaliveMs = 10'000, kRekeyTimeoutMs = 5'000;
  static constexpr uint64_t kRekeyAfterMessages = uint64_t{1} << 60, kRejectAfterMessages = UINT64_MAX - 8192;
  /// Packets that wait for keys, and for how long: long enough for a handshake whose first message was lost.
  static constexpr size_t kMaxStaged = 128;
  static constexpr int64_t kStagedMs = 12'000;
  /// The room around a packet that waits: a datagram's header, and its tag.
  static constexpr size_t kAroundBytes = 32;
};

/// A share of the memory for all packets that wait, given back when it is destroyed.
class StagedBytes {
 public:
  StagedBytes() = default;
  /// Takes so many of `most`, of which `taken` are; false when there are not as many left.
  static bool take(std::atomic<size_t>& taken, size_t most, size_t bytes, StagedBytes& share) {
    if (taken.fetch_add(bytes, std::memory_order_relaxed) + bytes > most) {
      taken.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    share = StagedBytes(taken, bytes);
    return true;
  }
  StagedBytes(StagedBytes&& other) noexcept
      : taken_(std::exchange(other.taken_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  StagedBytes& operator=(StagedBytes&& other) noexcept {
    std::swap(taken_, other.taken_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~StagedBytes() {
    if (taken_) taken_->fetch_sub(bytes_, std::memory_order_relaxed);
  }

 private:
  StagedBytes(std::atomic<size_t>& taken, size_t bytes) : taken_(&taken), bytes_(bytes) {}
  std::atomic<size_t>* taken_ = nullptr;
  size_t bytes_ = 0;
};

/// A packet that waits for keys, with room before and behind it for what sealing adds.
struct Staged {
  std::vector<uint8_t> datagram;
  int64_t since_ms;
  uint32_t slot;           ///< of the peer's traffic
  StagedBytes share = {};  ///< of the memory for all that wait
};

class Session {
 public:
  /// The answers to messages of handshakes: to an initiation; to that or a response, a cookie.
  enum class Expected : uint8_t { kResponse, kCookie };
  /// What became of asking to seal or open one.
  struct Grant {
    uint64_t counter = 0;
    uint32_t peer_index = 0;
    bool is_granted = false;
    bool wants_handshake = false;
  };
  struct Accepted {
    std::optional<Counter> reason;  ///< why it is dropped
    bool wants_handshake = false;
    bool has_moved = false;     ///< the peer sends from elsewhere than we sent to
    bool is_confirmed = false;  ///< its keys are in use from now on: what waits may go
  };
  /// What is due by the clock.
  struct Due {
    bool keepalive = false;
    bool wants_handshake = false;
    size_t expired = 0;  ///< packets that waited too long, and are dropped
  };

  // By JavaScript's thread.

  /// An initiator's pair is in use at once; a responder's when the peer has used it.
  void set_keys(uint64_t number, const SessionKeys& keys, int64_t now_ms);
  /// Wipes all keys and forgets what waits.
  void forget();
  /// Where it is sent to, until the peer sends from elsewhere. What one sends from `any_port` says nothing of where it
  /// listens: that its handshakes do, which are JavaScript's.
  void send_to(const SocketAddress& to, bool any_port);
  /// A message of a handshake goes to the peer, who answers it by this index.
  void expect(Expected answer, uint32_t own_index);
  /// True when there is nothing in it that another engine could go on with.
  bool is_empty() const;
  /// Keys, counters and times, and what waits; not where it is sent to, nor that a handshake was asked for: who goes on
  /// may ask at once.
  void save(SecretWriter& out) const;
  /// Takes over what another one saved; what cannot be, `in` refuses. `next_number` gives each pair its own, and
  /// `take_share` memory for what waits.
  void load(SecretReader& in, const std::function<uint64_t()>& next_number,
            const std::function<bool(size_t, StagedBytes&)>& take_share, uint32_t slot, int64_t now_ms);

  // By any lane.

  SocketAddress to() const;
  /// True for an answer to what was sent last.
  bool expects(Expected answer, uint32_t own_index) const;
  /// A counter to seal with, and the key for it in `sealing`; not granted while there is no key.
  Grant begin_seal(Aead& sealing, bool is_data, int64_t now_ms);
  /// Keeps a packet until there are keys; false when too many wait.
  bool stage(Staged staged);
  /// True when there is a key to seal with: asked once a packet was staged, for which there may be one since.
  bool may_seal(int64_t now_ms) const;
  /// What waited.
  std::vector<Staged> take_staged();
  /// The key that a datagram names, in `opening`; nothing when it may be opened, else why it is dropped.
  std::optional<Counter> begin_open(Aead& opening, uint32_t own_index, uint64_t counter, int64_t now_ms) const;
  /// After it was opened, and only then.
  Accepted accept(uint32_t own_index, uint64_t counter, bool is_data, const SocketAddress& from, int64_t now_ms);
  /// Looks at the clock. `keepalive_ms` is the time after which a peer that hears nothing else is sent a keepalive; 0:
  /// never.
  Due look(int64_t keepalive_ms, int64_t now_ms);

 private:
  using Limits = SessionLimits;
  struct Pair {
    Pair(uint64_t number, const SessionKeys& keys, int64_t now_ms) : number(number), keys(keys), made_ms(now_ms) {}
    bool is_usable(int64_t now_ms) const {
      return now_ms - made_ms < Limits::kRejectAfterMs && next_counter < Limits::kRejectAfterMessages;
    }
    uint64_t number;  // of its keys, as Aead has them
    SessionKeys keys;
    int64_t made_ms;
    uint64_t next_counter = 0;
    ReplayWindow received;
    uint64_t used = 0;          // by the peer; of two pairs the higher one last
    bool is_refreshed = false;  // a handshake was asked for since it gets old
  };
  using PairPointer = std::unique_ptr<Pair>;

  static void save_pair(const Pair& pair, SecretWriter& out);
  static PairPointer load_pair(SecretReader& in, uint64_t number, int64_t now_ms);
  Pair* find(uint32_t own_index) const;
  bool wants_handshake(int64_t now_ms);
  void sent(bool is_data, int64_t now_ms);
  void wipe();
  void replace_current(PairPointer pair);

  mutable std::mutex lock_;
  PairPointer previous_, current_, next_;
  uint64_t uses_ = 0;
  SocketAddress to_;
  bool any_port_ = false;
  std::array<uint32_t, 2> expected_{};  // the index of each answer; 0: none
  std::vector<Staged> staged_;
  int64_t asked_ms_ = 0;       // when a handshake was asked for; 0: not yet, as the next
  int64_t passed_ms_ = 0;      // when anything authenticated passed, either way
  int64_t unanswered_ms_ = 0;  // since when data is sent and nothing comes
  int64_t unthanked_ms_ = 0;   // since when data has come and nothing is sent
};

}  // namespace weft
