// session.h - WireGuard's session with one peer: its keys, the packets that wait for keys, and its timers.
//
// A handshake yields a pair of keys, which is valid for three minutes. A session has up to three pairs. `current`
// encrypts packets. `next` comes from a handshake that the peer initiated; it becomes `current` with the first packet
// that the peer encrypts with it, because only then do both ends surely have it (white paper, sections 5.4.6 and 6.3).
// `previous` still decrypts packets that the peer sent before it switched. It is the pair that the peer used last: if
// both ends initiate simultaneously, each encrypts with the pair of its own handshake, and decrypts with the other
// pair. The kernel (noise.c) keeps one pair fewer, and loses packets in flight in that case.
//
// JavaScript performs handshakes (src/path/backends/wireguard/). A session only reports that it needs a handshake, at
// most every few seconds, and receives the keys.
//
// All loop threads use a session simultaneously. It is locked only for a few instructions, never while a packet is
// encrypted or decrypted: a thread takes a counter, and has its own copy of the key.
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
  uint32_t own_index = 0;   ///< the index of this pair in the messages that the peer sends
  uint32_t peer_index = 0;  ///< the index of this pair in the messages that this host sends
  Key send, receive;
};

/// WireGuard's time limits and message limits (white paper, section 6.1), and weft's limits on packets that wait for
/// keys.
struct SessionLimits {
  static constexpr int64_t kRekeyAfterMs = 120'000, kRejectAfterMs = 180'000, kWipeAfterMs = 3 * kRejectAfterMs;
  static constexpr int64_t kKeepaliveMs = 10'000, kRekeyTimeoutMs = 5'000;
  static constexpr uint64_t kRekeyAfterMessages = uint64_t{1} << 60, kRejectAfterMessages = UINT64_MAX - 8192;
  /// kMaxStaged is the maximum number of packets that wait for the keys of one session. kStagedMs limits how long each
  /// packet may wait, which is long enough for a handshake whose first message was lost.
  static constexpr size_t kMaxStaged = 128;
  static constexpr int64_t kStagedMs = 12'000;
  /// The total space before and behind a waiting packet, for the datagram's header and its authentication tag.
  static constexpr size_t kAroundBytes = 32;
};

/// A share of the memory limit for waiting packets. The destructor gives it back.
class StagedBytes {
 public:
  StagedBytes() = default;
  /// Takes `bytes` of a limit of `most` bytes, of which `taken` are in use. Returns false if fewer than `bytes` are
  /// left.
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

/// A packet that waits for keys, with space before it for the header and behind it for the authentication tag.
struct Staged {
  std::vector<uint8_t> datagram;
  int64_t since_ms;
  uint32_t slot;
  StagedBytes share = {};  ///< the packet's share of the memory limit for waiting packets
};

class Session {
 public:
  /// The answers to handshake messages that this host may expect: to an initiation a response or a cookie, to a
  /// response a cookie.
  enum class Expected : uint8_t { kResponse, kCookie };
  struct Grant {
    uint64_t counter = 0;
    uint32_t peer_index = 0;
    bool is_granted = false;
    bool wants_handshake = false;
  };
  struct Accepted {
    std::optional<Counter> reason;  ///< the counter of the reason if the packet must be dropped
    bool wants_handshake = false;
    bool has_moved = false;  ///< true if the peer sent from another address than the known one
    /// True if the peer has used the next pair of keys for the first time, so that waiting packets can be sent.
    bool is_confirmed = false;
  };
  struct Due {
    bool keepalive = false;
    bool wants_handshake = false;
    size_t expired = 0;  ///< the number of waiting packets that were dropped because they had waited too long
  };

  // The following functions may be called only from JavaScript's thread.

  /// Installs a pair of keys. The initiator of the handshake encrypts with it immediately; the responder only after it
  /// has received a packet encrypted with it.
  void set_keys(uint64_t number, const SessionKeys& keys, int64_t now_ms);
  /// Wipes all keys of the session and drops its waiting packets.
  void forget();
  /// Sets the address to which datagrams are sent, until the peer sends from another address. If `any_port` is true,
  /// the source port of data packets is ignored, because the peer sends them from any port; only its handshake messages
  /// show the port on which it listens.
  void send_to(const SocketAddress& to, bool any_port);
  /// Notes that a handshake message with `own_index` was sent to the peer, whose answer will contain this index.
  void expect(Expected answer, uint32_t own_index);
  /// True if the session contains nothing that the next engine could use.
  bool is_empty() const;
  /// Saves keys, counters, times and waiting packets for the next engine. The peer's address comes from its record. The
  /// time of the last handshake request is not saved, so the next engine may request a handshake immediately.
  void save(SecretWriter& out) const;
  /// Loads a session that save() wrote. `in` refuses invalid bytes. `next_number` returns a number for each pair of
  /// keys. `take_share` reserves memory for a waiting packet, or returns false if there is none.
  void load(SecretReader& in, const std::function<uint64_t()>& next_number,
            const std::function<bool(size_t, StagedBytes&)>& take_share, uint32_t slot, int64_t now_ms);

  // The following functions may be called from any loop thread.

  SocketAddress to() const;
  /// True if an answer with `own_index` belongs to the last handshake message that this host sent to the peer.
  bool expects(Expected answer, uint32_t own_index) const;
  /// Returns the counter for the next packet, and puts the encryption key into `sealing`. In the result `is_granted` is
  /// false if there is no valid key.
  Grant begin_seal(Aead& sealing, bool is_data, int64_t now_ms);
  /// Keeps a packet until the session has keys. Returns false if too many packets wait already.
  bool stage(Staged staged);
  /// True if there is a valid key for encryption. The caller must check this again after stage(), because another
  /// thread may have installed keys meanwhile.
  bool may_seal(int64_t now_ms) const;
  std::vector<Staged> take_staged();
  /// Puts the key that a datagram's index names into `opening`. Returns the counter of the reason to drop the datagram,
  /// or nothing if the key is valid.
  std::optional<Counter> begin_open(Aead& opening, uint32_t own_index, uint64_t counter, int64_t now_ms) const;
  /// Notes that a packet has arrived. Must be called only after the packet was authenticated, because it moves the
  /// replay window and the peer's address.
  Accepted accept(uint32_t own_index, uint64_t counter, bool is_data, const SocketAddress& from, int64_t now_ms);
  /// Checks the session's timers and returns the actions that are due. `keepalive_ms` is the interval of silence after
  /// which a keepalive is sent; 0 means never.
  Due look(int64_t keepalive_ms, int64_t now_ms);

 private:
  using Limits = SessionLimits;
  struct Pair {
    Pair(uint64_t number, const SessionKeys& keys, int64_t now_ms) : number(number), keys(keys), made_ms(now_ms) {}
    bool is_usable(int64_t now_ms) const {
      return now_ms - made_ms < Limits::kRejectAfterMs && next_counter < Limits::kRejectAfterMessages;
    }
    uint64_t number;  // the number by which Aead recognises a key, unique in this process
    SessionKeys keys;
    int64_t made_ms;
    uint64_t next_counter = 0;
    ReplayWindow received;
    // The value of the session's count `uses_` when the peer last used this pair of keys. So the pair that was used
    // last has the highest value.
    uint64_t used = 0;
    bool is_refreshed = false;  // true if a handshake was already requested because of this pair's age
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
  std::array<uint32_t, 2> expected_{};  // the index that each kind of answer must have; 0 if none is expected
  std::vector<Staged> staged_;
  int64_t requested_ms_ = 0;   // when a handshake was last requested, in ms of session_ms(); 0 for never
  int64_t passed_ms_ = 0;      // when an authenticated packet was last sent or received
  int64_t unanswered_ms_ = 0;  // when the first data was sent that the peer has not replied to; 0 if there is none
  int64_t unreplied_ms_ = 0;  // when the first data was received since this host last sent a packet; 0 if there is none
};

}  // namespace weft
