// icmp.h - the ICMP errors that a router sends, for IPv4 and IPv6 (RFC 792, RFC 1812 section 4.3, RFC 4443).
#pragma once

#include <array>
#include <atomic>

#include "bucket.h"
#include "packet.h"

namespace weft {

struct IcmpError {
  /// The ICMP type and code of an error, which differ between IPv4 and IPv6.
  struct Kind {
    uint8_t type, code;
  };
  Kind ipv4, ipv6;
  uint16_t mtu = 0;  ///< the MTU of the next hop (RFC 1191 section 4, RFC 4443 section 3.2)
};
constexpr IcmpError kNetUnreachable{{3, 0}, {1, 0}};
constexpr IcmpError kTimeExceeded{{11, 0}, {3, 0}};
constexpr IcmpError too_big(size_t mtu) { return {{3, 4}, {2, 0}, static_cast<uint16_t>(mtu)}; }

/// The ICMP and ICMPv6 types of an echo request.
constexpr uint8_t kEchoRequest = 8, kEchoRequest6 = 128;

/// The minimum MTU of an IPv6 link in bytes (RFC 8200 section 5), which is also the maximum length of an ICMPv6 error.
constexpr size_t kLeastIpv6Mtu = 1280;
constexpr size_t kMaxIcmpErrorBytes = kLeastIpv6Mtu;
/// The maximum length in bytes of an ICMP error about an IPv4 packet (RFC 1812 section 4.3.2.3).
constexpr size_t kMaxIpv4ErrorBytes = 576;

/// True if an ICMP error about the packet may be sent. False for an ICMP error, for every fragment but the first, and
/// if the source or the destination is not a single host (RFC 1122 section 3.2.2, RFC 1812 section 4.3.2.7, RFC 4443
/// section 2.4).
bool may_send_error_about(const uint8_t* bytes, const Packet& packet);

/// Writes an ICMP error about the packet at `bytes` into `out`, which must have space for kMaxIcmpErrorBytes. Returns
/// the length of the error, or 0 if no error may be sent (may_send_error_about). `source` becomes the error's source
/// address; its family must be that of the packet.
///
/// An IPv4 error has TTL 8, identification 0 and no DF, like flanneld's net unreachable
/// (pkg/backend/udp/proxy_amd64.c); an IPv6 error has hop limit 64. The error quotes as much of the packet as fits,
/// whereas flanneld quotes the IP header and 8 bytes. Some receivers of errors need more of the packet: a tunnel in a
/// container looks for its own header after the UDP header, and an address translator looks for the TCP checksum.
///
/// An error is at most 28 bytes longer than its packet (48 bytes over IPv6). So an attacker with forged source
/// addresses makes this host send less than twice the bytes that the attacker sends, and never more than IcmpLimit
/// allows.
size_t write_icmp_error(const IcmpError& error, const Address& source, const uint8_t* bytes, const Packet& packet,
                        uint8_t* out);

/// The kinds of ICMP errors. Each kind has its own rate limits, so that errors of one kind never use up the limits of
/// another kind.
enum class IcmpKind : uint8_t {
  kOutward,  ///< errors about packets from the TUN, except kTooBig
  kTooBig,   ///< "fragmentation needed", without which a connection hangs
  kInward,   ///< errors about packets from peers
  kKinds
};

/// Limits the rate of one kind of ICMP error (RFC 1812 section 4.3.2.8), for all threads together and without a lock.
/// Each sender of packets has a limit. All senders outside this node's subnet also share a limit, so that they cannot
/// use up the errors for this node's containers.
///
/// A secret hash assigns one of 4096 slots to each sender, so that an attacker cannot choose a sender address that
/// shares a slot with a victim. A new sender replaces the slot's previous sender, and starts with a full bucket. So a
/// sender with many addresses gets more errors, but other senders do not get fewer errors. If 254 containers all send
/// too much, 6% of them share a slot and exceed the limit.
class IcmpLimit {
 public:
  static constexpr int64_t kSenderBurst = 50, kSenderEveryMs = 10;
  static constexpr int64_t kBurst = 500, kEveryMs = 1;

  explicit IcmpLimit(uint64_t secret) : secret_(secret) {}

  /// Takes one token for an ICMP error about a packet of `sender`. `is_ours` is true if the sender is in this node's
  /// subnet. Returns false if the sender has reached its limit, or if all senders outside this node's subnet have
  /// together reached theirs.
  bool allows(const Address& sender, bool is_ours, int64_t now_ms) {
    return takes(name_of(sender, is_ours), static_cast<uint32_t>(now_ms)) &&
           (is_ours || others_.take(now_ms, kEveryMs, kBurst));
  }

 private:
  static constexpr size_t kSlotBits = 12;
  static constexpr uint32_t kLongestMs = kSenderBurst * kSenderEveryMs;
  /// The maximum difference in ms by which the clock reading of an earlier call may be ahead of the reading of a later
  /// call. Threads read the clock before they call allows(), so the calls may come in a different order than the
  /// readings. The value is small because times have 32 bits and wrap around after 49.7 days: after a wrap, an old
  /// rate-limit entry looks current during this time.
  static constexpr uint32_t kAheadMs = 1'024;
  /// Reduces a sender address to 32 bits: an IPv4 address itself, or a secret hash of an IPv6 address, which two
  /// addresses may share. For IPv6 senders outside this node's subnet the hash uses only the upper 64 bits, because a
  /// host can choose the lower 64 bits freely. For containers of this node it uses all bits, because their upper 64
  /// bits are equal.
  uint32_t name_of(const Address& sender, bool is_ours) const {
    if (sender.is_v4()) return sender.ipv4();
    uint64_t mixed = (sender.high() ^ secret_) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ mixed >> 32 ^ (is_ours ? sender.low() : 0)) * 0xc2b2ae3d27d4eb4full;
    return static_cast<uint32_t>((mixed ^ secret_ >> 32) * 0x9e3779b97f4a7c15ull >> 32);
  }

  /// Returns the time in ms until the bucket of a slot (`word`) is full again. If this time is longer than the time in
  /// which an empty bucket fills, the slot was last used weeks ago, so its bucket is full. kAheadMs allows for a thread
  /// whose clock reading was ahead.
  static uint32_t left_ms(uint64_t word, uint32_t now_ms) {
    const uint32_t left = static_cast<uint32_t>(word) - now_ms;
    return word == 0 || left > kLongestMs + kAheadMs ? 0 : left;
  }

  size_t slot_of(uint32_t sender) const {
    uint64_t mixed = (sender ^ secret_) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ mixed >> 32 ^ secret_) * 0xc2b2ae3d27d4eb4full;
    return mixed >> (64 - kSlotBits);
  }

  bool takes(uint32_t sender, uint32_t now_ms) {
    std::atomic<uint64_t>& slot = slots_[slot_of(sender)];
    uint64_t word = slot.load(std::memory_order_relaxed);
    for (;;) {
      const uint32_t left = word >> 32 == sender ? left_ms(word, now_ms) : 0;
      if (left > (kSenderBurst - 1) * kSenderEveryMs) return false;
      const uint64_t taken = uint64_t{sender} << 32 | static_cast<uint32_t>(now_ms + left + kSenderEveryMs);
      // A failed compare_exchange loads the word that another thread wrote, and the loop tries again with that word.
      if (slot.compare_exchange_weak(word, taken, std::memory_order_relaxed)) return true;
    }
  }

  uint64_t secret_;
  /// The state of each slot: the sender in the upper 32 bits, and in the lower 32 bits the time in ms at which the
  /// sender's bucket will be full again, as in Bucket; 0 if the slot is free.
  std::array<std::atomic<uint64_t>, 1 << kSlotBits> slots_{};
  Bucket others_;
};

/// The rate limit of each kind of ICMP error.
class IcmpLimits {
 public:
  /// `secret` decides which senders share a slot. Senders must not be able to guess `secret`.
  explicit IcmpLimits(uint64_t secret) : limits_{IcmpLimit(secret), IcmpLimit(secret), IcmpLimit(secret)} {}
  IcmpLimit& operator[](IcmpKind kind) { return limits_[static_cast<size_t>(kind)]; }

 private:
  std::array<IcmpLimit, static_cast<size_t>(IcmpKind::kKinds)> limits_;
};

}  // namespace weft
