// session.h - WireGuard's session with one peer: its keys, the packets that wait for keys, and its timers.
// docs/design/wireguard-sessions.md explains why sessions and handshakes together are correct.
//
// A handshake yields a pair of keys. A session has up to three pairs, one in each of these places:
// - next: decrypts. The pair comes from a handshake that the peer initiated, and the peer has not used it yet.
// - current: encrypts and decrypts.
// - previous: decrypts. Of all replaced pairs, it is the pair that the peer used last.
//
// set_keys() installs a new pair: in `current` if this host initiated the handshake, else in `next`. accept() moves a
// pair from `next` when the first packet with it arrives, because only then do both ends surely have the pair
// (WireGuard's white paper, section 5.4.6). The pair moves to `current`. But both ends may have initiated a handshake
// simultaneously. Then `current` may already have the pair of this host's own handshake, and the peer's pair moves to
// `previous`: each end encrypts with the pair of its own handshake, and decrypts with the pair of the other end's
// handshake. The kernel (noise.c) keeps one pair fewer, and so loses packets in flight if both ends initiate.
//
// A pair is erased when another pair takes its place, and when it has expired. Until then, it can be used.
//
// JavaScript performs handshakes (src/path/backends/wireguard/). A session only reports that it needs a handshake, and
// receives the keys. The session repeats the report, so a lost report does not matter.
//
// All loop threads use a session simultaneously. It is locked only for a few instructions, never while a packet is
// encrypted or decrypted: a thread takes a counter, and has its own copy of the key.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "../crypto/aead.h"
#include "address.h"
#include "counters.h"
#include "replay.h"
#include "secret_bytes.h"
#include "staged.h"

namespace weft {

struct SessionKeys {
  bool is_initiator = false;
  uint32_t own_index = 0;   ///< the index of this pair in the messages that the peer sends
  uint32_t peer_index = 0;  ///< the index of this pair in the messages that this host sends
  Key send, receive;
};

/// The limits of WireGuard's keys and of waiting packets, each with its source: WireGuard's white paper, or weft
/// itself. The limits of handshakes are in src/path/backends/wireguard/limits.ts.
struct SessionLimits {
  /// The age in ms at which a pair of keys is erased, so that it neither encrypts nor decrypts (Reject-After-Time;
  /// WireGuard's white paper, sections 6.1 and 6.2).
  static constexpr int64_t kRejectAfterMs = 180'000;
  /// The number of packets that a pair of keys may encrypt. A received packet is dropped if its counter is not less
  /// than this number (Reject-After-Messages; WireGuard's white paper, sections 6.1 and 6.2).
  static constexpr uint64_t kRejectAfterMessages = UINT64_MAX - 8192;
  /// If a pair of keys has this age in ms or more and its initiator sends a packet, the initiator requests new keys
  /// (Rekey-After-Time; WireGuard's white paper, section 6.2). The responder requests no keys, so that the two ends do
  /// not initiate simultaneously.
  static constexpr int64_t kRekeyAfterMs = 120'000;
  /// The number of packets after which a session requests new keys (Rekey-After-Messages; WireGuard's white paper,
  /// section 6.2).
  static constexpr uint64_t kRekeyAfterMessages = uint64_t{1} << 60;
  /// If a pair of keys has this age in ms or more and its initiator receives a packet, the initiator requests new keys
  /// (WireGuard's white paper, section 6.2: Reject-After-Time less Keepalive-Timeout less Rekey-Timeout).
  static constexpr int64_t kRefreshAfterMs = 165'000;
  /// The time in ms from received data to a keepalive. The keepalive is sent if this host sent no packet in this time
  /// (Keepalive-Timeout; WireGuard's white paper, section 6.5).
  static constexpr int64_t kKeepaliveMs = 10'000;
  /// The time in ms from sent data to a request for new keys, if no packet was received meanwhile (WireGuard's white
  /// paper, section 6.5: Keepalive-Timeout plus Rekey-Timeout).
  static constexpr int64_t kSilenceMs = 15'000;
  /// The interval in ms at which a session repeats its request for a handshake. JavaScript limits the rate of
  /// initiations.
  static constexpr int64_t kRequestEveryMs = 5'000;
  /// The maximum number of packets that wait for the keys of one session (kernel, messages.h: MAX_STAGED_PACKETS).
  static constexpr size_t kMaxStaged = 128;
  /// How long, in ms, a packet waits for keys. This time suffices for a handshake whose first two messages were lost.
  static constexpr int64_t kStagedMs = 12'000;
  /// The total space in bytes before and after a waiting packet, for the datagram's header and its authentication tag.
  static constexpr size_t kAroundBytes = 32;
};

class Session {
 public:
  /// The answers to handshake messages that this host may expect: a response or a cookie to an initiation, and a cookie
  /// to a response.
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
    /// The number of waiting packets that were dropped because they had waited too long, or by forget().
    size_t expired = 0;
  };

  /// Installs a pair of keys. As long as this session exists, `number` must identify only these keys. Only JavaScript's
  /// thread may call set_keys(), forget(), send_to(), expect(), is_empty(), save() and load().
  void set_keys(uint64_t number, const SessionKeys& keys, int64_t now_ms);
  /// Wipes all keys of the session and drops its waiting packets.
  void forget();
  /// Sets the address to which datagrams are sent, until the peer sends from another address. If `any_port` is true,
  /// the source port of data packets is ignored, because the peer sends data from any port; only the peer's handshake
  /// messages show the port on which it listens.
  void send_to(const SocketAddress& to, bool any_port);
  /// Notes that a handshake message with `own_index` was sent to the peer, whose answer will contain this index.
  void expect(Expected answer, uint32_t own_index);
  /// True if the session contains nothing that the next engine could use.
  bool is_empty() const;
  /// Saves keys, counters, times and waiting packets for the next engine. The peer's address is not saved, because it
  /// comes from the peer's record. The time of the last handshake request is not saved, so the next engine may request
  /// a handshake immediately.
  void save(SecretWriter& out) const;
  /// Loads a session that save() wrote. Marks `in` as bad if the bytes are invalid. `next_number` returns the next
  /// value of the `number` that set_keys() takes. `take_share` reserves memory for a waiting packet, or returns false
  /// if no memory is left.
  void load(SecretReader& in, const std::function<uint64_t()>& next_number,
            const std::function<bool(size_t, StagedBytes&)>& take_share, uint32_t slot, int64_t now_ms);

  SocketAddress to() const;
  /// True if an answer with `own_index` belongs to the last handshake message that this host sent to the peer. Any loop
  /// thread may call expects() and the functions declared after it.
  bool expects(Expected answer, uint32_t own_index) const;
  /// Returns the counter for the next packet, and puts the encryption key into `sealing`. In the result `is_granted` is
  /// false if there is no valid key.
  Grant begin_seal(Aead& sealing, bool is_data, int64_t now_ms);
  /// Keeps a packet until the session has keys. Returns false if too many packets wait already.
  bool stage(Staged staged);
  /// True if there is a valid key for encryption. The caller must check this again after stage(), because another
  /// thread may have installed keys in between.
  bool may_seal(int64_t now_ms) const;
  std::vector<Staged> take_staged();
  /// Puts the key that a datagram's index names into `opening`. Returns the counter of the reason to drop the datagram,
  /// or nothing if the key is valid.
  std::optional<Counter> begin_open(Aead& opening, uint32_t own_index, uint64_t counter, int64_t now_ms) const;
  /// Notes that a packet has arrived. Must be called only after the packet was authenticated, because accept() moves
  /// the replay window and changes the peer's address. `number` is the number of the pair that decrypted the packet.
  /// The pair's index would not suffice, because another pair may have got the same index since.
  Accepted accept(uint64_t number, uint64_t counter, bool is_data, const SocketAddress& from, int64_t now_ms);
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
    uint64_t number;  // the number by which Aead recognises a key
    SessionKeys keys;
    int64_t made_ms;
    uint64_t next_counter = 0;
    ReplayWindow received;
    int64_t used_ms = 0;       // when the peer last used this pair; 0 for never
    bool is_outdated = false;  // true if this host installed a pair of its own handshake while this pair was in `next`
  };
  using PairPointer = std::unique_ptr<Pair>;

  static void save_pair(const Pair& pair, SecretWriter& out);
  static PairPointer load_pair(SecretReader& in, uint64_t number, int64_t now_ms);
  template <typename Is>
  Pair* find(Is is) const;
  bool request_handshake(int64_t now_ms);
  void sent(bool is_data, int64_t now_ms);
  void wipe();
  void replace_current(PairPointer pair);

  mutable std::mutex lock_;
  PairPointer previous_, current_, next_;
  SocketAddress to_;  // where datagrams are sent; without an address until the peer's record is known
  bool any_port_ = false;
  std::array<uint32_t, 2> expected_{};  // the index that each kind of answer must have; 0 if none is expected
  std::vector<Staged> staged_;          // the packets that wait for keys, the oldest first
  size_t forgotten_ = 0;                // the waiting packets that forget() dropped since the last look()
  // The following times are in ms of session_ms(); 0 means never.
  int64_t requested_ms_ = 0;   // when a handshake was last requested
  int64_t passed_ms_ = 0;      // when an authenticated packet was last sent or received
  int64_t unanswered_ms_ = 0;  // when the first data was sent that the peer has not replied to
  int64_t unreplied_ms_ = 0;   // when the first data was received since this host last sent a packet
};

}  // namespace weft
