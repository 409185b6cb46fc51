// icmp.h - the ICMP errors that a router sends, of both families (RFC 792, RFC 1812 section 4.3, RFC 4443).
#pragma once

#include <array>
#include <atomic>

#include "bucket.h"
#include "packet.h"

namespace weft {

struct IcmpError {
  /// The numbers of one family.
  struct Kind {
    uint8_t type, code;
  };
  Kind ipv4, ipv6;
  uint16_t mtu = 0;  ///< of the next hop (RFC 1191 section 4, RFC 4443 section 3.2)
};
constexpr IcmpError kNetUnreachable{{3, 0}, {1, 0}};
constexpr IcmpError kTimeExceeded{{11, 0}, {3, 0}};
constexpr IcmpError too_big(size_t mtu) { return {{3, 4}, {2, 0}, static_cast<uint16_t>(mtu)}; }

/// What asks for an echo, of ICMP and of ICMPv6.
constexpr uint8_t kEchoRequest = 8, kEchoRequest6 = 128;

/// The least MTU that a link of IPv6 may have (RFC 8200 section 5), and the longest error about one of its packets.
constexpr size_t kLeastIpv6Mtu = 1280;
constexpr size_t kMaxIcmpErrorBytes = kLeastIpv6Mtu;
/// The longest error about an IPv4 packet (RFC 1812 section 4.3.2.3).
constexpr size_t kMaxIpv4ErrorBytes = 576;

/// True if an ICMP error about the packet may be sent. False for a packet that is an ICMP error itself, for every
/// fragment but the first, and for a packet that is not from one host to one other host (RFC 1122 section 3.2.2,
/// RFC 1812 section 4.3.2.7, RFC 4443 section 2.4).
bool may_tell_of(const uint8_t* bytes, const Packet& packet);

/// Writes an ICMP error about the packet at `bytes` into `out` (kMaxIcmpErrorBytes of room) and returns its length; 0
/// if no error may be sent. `source` is the sender's address, of the packet's family.
///
/// An IPv4 error has TTL 8, identification 0 and no DF, like flanneld's net unreachable
/// (pkg/backend/udp/proxy_amd64.c); an IPv6 error has hop limit 64. The error quotes as much of the packet as it has
/// room for, whereas flanneld quotes the IP header and 8 bytes. Receivers need more: a tunnel in a container looks for
/// its own header behind the UDP header, and an address translator for the TCP checksum.
///
/// An error is at most 28 bytes longer than its packet (48 over IPv6). So an attacker who forges source addresses
/// makes this host send less than twice the bytes that he sends, and never more than IcmpLimit allows.
size_t write_icmp_error(const IcmpError& error, const Address& source, const uint8_t* bytes, const Packet& packet,
                        uint8_t* out);

/// The kinds of errors: each has limits of its own, so that who earns one kind takes none of another from anybody.
enum class IcmpKind : uint8_t {
  kOutward,  ///< about what came out of the TUN, but for the next
  kTooBig,   ///< fragmentation needed: without it a connection hangs
  kInward,   ///< about what came from a peer
  kKinds
};

/// Limits the ICMP errors of one kind (RFC 1812 section 4.3.2.8): so many to each sender, whichever threads serve it,
/// and so many to all senders but those of this node's subnet. Those are few, and no other's errors are in their way.
///
/// A sender stands in one of the eight words of a line that a secret chooses: nobody can find out who shares it. A new
/// one takes the place of the one that was told of least, so that a sender with many addresses is told of more errors
/// itself, and takes none from others. Shared by all loops, without a lock.
class IcmpLimit {
 public:
  static constexpr int64_t kSenderBurst = 50, kSenderEveryMs = 10;
  static constexpr int64_t kBurst = 500, kEveryMs = 1;

  explicit IcmpLimit(uint64_t secret) : secret_(secret) {}

  /// Returns true when one more may be sent about a packet of `sender`, which is one of our subnet or not.
  bool allows(const Address& sender, bool is_ours, int64_t now_ms) {
    return takes(name_of(sender, is_ours), static_cast<uint32_t>(now_ms)) &&
           (is_ours || others_.take(now_ms, kEveryMs, kBurst));
  }

 private:
  static constexpr size_t kLineBits = 7, kWays = 8;
  static constexpr uint32_t kLongestMs = kSenderBurst * kSenderEveryMs;
  /// The maximum by which the time of one thread is ahead of another thread's; each reads the clock right before the
  /// call. The lower half of the time repeats after 49.7 days: the larger this value, the longer such an old word looks
  /// current.
  static constexpr uint32_t kAheadMs = 1'024;
  /// A word is a sender and the lower half of the time at which its bucket will be full again, as Bucket has it; 0:
  /// free.
  struct alignas(64) Line {
    std::array<std::atomic<uint64_t>, kWays> words{};
  };

  /// A sender as a word has it: an IPv4 address itself, of IPv6 what the secret makes of it, which two may share and
  /// nobody can find out. Of one that is not of our subnet it is the first 64 bits: those behind them a host chooses as
  /// it likes, while all containers of this node are behind the same ones.
  uint32_t name_of(const Address& sender, bool is_ours) const {
    if (sender.is_v4()) return sender.ipv4();
    uint64_t mixed = (sender.high() ^ secret_) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ mixed >> 32 ^ (is_ours ? sender.low() : 0)) * 0xc2b2ae3d27d4eb4full;
    return static_cast<uint32_t>((mixed ^ secret_ >> 32) * 0x9e3779b97f4a7c15ull >> 32);
  }

  /// The time from now on for which a bucket will not be full: more than any can be by as much as the thread that
  /// wrote the word was ahead of this one. A longer one is of weeks ago.
  static uint32_t left_ms(uint64_t word, uint32_t now_ms) {
    const uint32_t left = static_cast<uint32_t>(word) - now_ms;
    return word == 0 || left > kLongestMs + kAheadMs ? 0 : left;
  }

  Line& line_of(uint32_t sender) {
    uint64_t mixed = (sender ^ secret_) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ mixed >> 32 ^ secret_) * 0xc2b2ae3d27d4eb4full;
    return lines_[mixed >> (64 - kLineBits)];
  }

  bool takes(uint32_t sender, uint32_t now_ms) {
    auto& words = line_of(sender).words;
    for (;;) {
      size_t at = 0;
      uint64_t word = 0;
      bool is_known = false;
      for (size_t way = 0; way < kWays && !is_known; way++) {
        const uint64_t other = words[way].load(std::memory_order_relaxed);
        is_known = other >> 32 == sender;
        if (way > 0 && !is_known && left_ms(other, now_ms) >= left_ms(word, now_ms)) continue;
        at = way;
        word = other;
      }
      const uint32_t left = is_known ? left_ms(word, now_ms) : 0;
      if (left > (kSenderBurst - 1) * kSenderEveryMs) return false;
      const uint64_t taken = uint64_t{sender} << 32 | static_cast<uint32_t>(now_ms + left + kSenderEveryMs);
      // Another thread may have changed it since: then it is looked at again.
      if (words[at].compare_exchange_strong(word, taken, std::memory_order_relaxed)) return true;
    }
  }

  uint64_t secret_;
  std::array<Line, 1 << kLineBits> lines_;
  Bucket others_;
};

/// One for each kind.
class IcmpLimits {
 public:
  /// `secret` is known to nobody else.
  explicit IcmpLimits(uint64_t secret) : limits_{IcmpLimit(secret), IcmpLimit(secret), IcmpLimit(secret)} {}
  IcmpLimit& operator[](IcmpKind kind) { return limits_[static_cast<size_t>(kind)]; }

 private:
  std::array<IcmpLimit, static_cast<size_t>(IcmpKind::kKinds)> limits_;
};

}  // namespace weft
