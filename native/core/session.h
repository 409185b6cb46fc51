// session.h - WireGuard's session with one peer: its keys, the packets that wait for keys, and its timers.
//
// A handshake yields a pair of keys, which is valid for three minutes. A session has up to three pairs. `current` seals
// packets. `next` comes from a handshake that the peer initiated; it becomes `current` with the first packet that the
// peer seals with it, because only then are both ends known to have it (white paper, sections 5.4.6 and 6.3).
// `previous` still opens packets that the peer sealed before it switched. It is the pair that the peer used last: if
// both ends initiate at the same time, each seals with its own handshake's pair and opens with the other's. The kernel
// (noise.c) keeps one pair fewer, and loses packets in flight in that case.
//
// JavaScript performs handshakes (src/path/backends/wireguard/). A session only reports that it needs one, at most
// every few seconds, and receives the keys.
//
// All lanes use a session at the same time. It is locked only for a few instructions, never while a packet is sealed or
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

struct SessionKeys {
  bool is_initiator = false;
  uint32_t own_index = 0;   ///< the index by which the peer refers to this pair
  uint32_t peer_index = 0;  ///< the index by which this host refers to the pair
  Key send, receive;
};

/// WireGuard's limits (white paper, section 6.1), and weft's limits on waiting packets.
struct SessionLimits {
  static constexpr int64_t kRekeyAfterMs = 120'000, kRejectAfterMs = 180'000, kWipeAfterMs = 3 * kRejectAfterMs;
  static constexpr int64_t kKeepaliveMs = 10'000, kRekeyTimeoutMs = 5'000;
  static constexpr uint64_t kRekeyAfterMessages = uint64_t{1} << 60, kRejectAfterMessages = UINT64_MAX - 8192;
  /// The limits on packets that wait for keys. The time is long enough for a handshake whose first message was lost.
  static constexpr size_t kMaxStaged = 128;
  static constexpr int64_t kStagedMs = 12'000;
  /// The room around a waiting packet, for the datagram's header and its tag.
  static constexpr size_t kAroundBytes = 32;
};

/// A share of the memory for waiting packets. The destructor returns it.
class StagedBytes {
 public:
  StagedBytes() = default;
  /// Takes `bytes` of the total of `most`, of which `taken` are in use. Returns false if fewer are left.
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

/// A packet that waits for keys, with room around it for the header and the tag.
struct Staged {
  std::vector<uint8_t> datagram;
  int64_t since_ms;
  uint32_t slot;
  StagedBytes share = {};  ///< the packet's share of the memory for waiting packets
};

class Session {
 public:
  /// The answers that a handshake message may get: an initiation gets a response or a cookie, a response gets a cookie.
  enum class Expected : uint8_t { kResponse, kCookie };
  struct Grant {
    uint64_t counter = 0;
    uint32_t peer_index = 0;
    bool is_granted = false;
    bool wants_handshake = false;
  };
  struct Accepted {
    std::optional<Counter> reason;  ///< why the packet is dropped, if it is
    bool wants_handshake = false;
    bool has_moved = false;     ///< the peer sent from another address than the known one
    bool is_confirmed = false;  ///< The peer used the next pair for the first time, so waiting packets can be sent.
  };
  struct Due {
    bool keepalive = false;
    bool wants_handshake = false;
    size_t expired = 0;  ///< the number of waiting packets that timed out and were dropped
  };

  // For JavaScript's thread.

  /// Installs a pair. An initiator's pair is used immediately, a responder's when the peer has used it.
  void set_keys(uint64_t number, const SessionKeys& keys, int64_t now_ms);
  /// Wipes all keys and drops the waiting packets.
  void forget();
  /// Sets the peer's address, until the peer sends from another one. With `any_port` the source port of data packets is
  /// ignored, because the peer sends them from any port. Only its handshake messages show the port that it listens on.
  void send_to(const SocketAddress& to, bool any_port);
  /// A handshake message was sent to the peer, which will refer to it by this index in its answer.
  void expect(Expected answer, uint32_t own_index);
  /// True if the session has nothing that another engine could continue with.
  bool is_empty() const;
  /// Saves keys, counters, times and waiting packets. Neither the peer's address nor the time of the last handshake
  /// request is saved, so a successor may request a handshake immediately.
  void save(SecretWriter& out) const;
  /// Loads a saved session. `in` refuses invalid bytes. `next_number` numbers each pair, and `take_share` provides the
  /// memory for waiting packets.
  void load(SecretReader& in, const std::function<uint64_t()>& next_number,
            const std::function<bool(size_t, StagedBytes&)>& take_share, uint32_t slot, int64_t now_ms);

  // For any lane.

  SocketAddress to() const;
  /// True if this answers the last message of that kind.
  bool expects(Expected answer, uint32_t own_index) const;
  /// Returns a counter to seal with, and puts the key into `sealing`. Not granted if there is no usable key.
  Grant begin_seal(Aead& sealing, bool is_data, int64_t now_ms);
  /// Keeps a packet until there are keys. Returns false if too many packets wait.
  bool stage(Staged staged);
  /// True if there is a key to seal with. After stage() the caller must check this again, because keys may have
  /// arrived.
  bool may_seal(int64_t now_ms) const;
  std::vector<Staged> take_staged();
  /// Puts the key that a datagram refers to into `opening`. Returns why the datagram is dropped, or nothing.
  std::optional<Counter> begin_open(Aead& opening, uint32_t own_index, uint64_t counter, int64_t now_ms) const;
  /// Must be called after a packet was authenticated, and only then.
  Accepted accept(uint32_t own_index, uint64_t counter, bool is_data, const SocketAddress& from, int64_t now_ms);
  /// Returns the actions that are due. `keepalive_ms` is the interval of silence after which a keepalive is sent; 0
  /// means never.
  Due look(int64_t keepalive_ms, int64_t now_ms);

 private:
  using Limits = SessionLimits;
  struct Pair {
    Pair(uint64_t number, const SessionKeys& keys, int64_t now_ms) : number(number), keys(keys), made_ms(now_ms) {}
    bool is_usable(int64_t now_ms) const {
      return now_ms - made_ms < Limits::kRejectAfterMs && next_counter < Limits::kRejectAfterMessages;
    }
    uint64_t number;  // the key's number in Aead
    SessionKeys keys;
    int64_t made_ms;
    uint64_t next_counter = 0;
    ReplayWindow received;
    // The value of uses_ when the peer last used this pair, so that the pair used last has the highest value.
    uint64_t used = 0;
    bool is_refreshed = false;  // a handshake was already requested because of this pair's age
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
  std::array<uint32_t, 2> expected_{};  // the index for each answer; 0 for none
  std::vector<Staged> staged_;
  int64_t requested_ms_ = 0;   // when a handshake was last requested; 0 for never
  int64_t passed_ms_ = 0;      // when an authenticated packet last passed in either direction
  int64_t unanswered_ms_ = 0;  // since when data has been sent without a reply; 0 for none
  int64_t unreplied_ms_ = 0;   // since when data has been received without sending; 0 for none
};

}  // namespace weft
