// counters.h - what the data path counts, by name and in words; what is dropped is counted under its reason (drops.h).
//
// Packets are inner packets as they stand on the wire, a superpacket counts as its segments. Where what is dropped was
// never taken apart, a message counts as one, whatever it held: rx_drop_socket_full and rx_drop_truncated. Of the ICMP
// errors of our own those are counted that were sent. Each loop has a row of
// its own in memory that JavaScript reads; each counter is written by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

// clang-format off
#define WEFT_COUNTERS(X)                                                                             \
  /* TUN to peers */                                                                                 \
  X(tx_packets,             "inner packets handed to the socket")                                    \
  X(tx_bytes,               "their bytes, without UDP and outer headers")                            \
  X(tx_messages,            "messages they went in: fewer than packets with udp-gso")                \
  X(tx_batches,             "sendmmsg calls")                                                        \
  X(tun_reads,              "packets and superpackets read from the TUN")                            \
  X(tx_drop_malformed,      "not IP, contradicting lengths, or a superpacket of many tiny segments") \
  X(tx_drop_tun,            "the kernel did not hand over the packet: an odd error of the TUN")      \
  X(tx_drop_no_route,       "no peer has the destination")                                           \
  X(tx_drop_circle,         "our own datagram came back: the peer's address is inside the tunnel")   \
  X(tx_drop_ttl,            "TTL or hop limit ran out here")                                         \
  X(tx_drop_too_big,        "larger than the path takes, and may not be fragmented; EMSGSIZE")       \
  X(tx_drop_socket_full,    "the socket's buffer stayed full, or a queue had no room (ENOBUFS)")     \
  X(tx_drop_refused,        "the kernel refused it: no route to the peer, or a firewall (EPERM)")    \
  X(tx_drop_no_session,     "WireGuard: no keys with the peer yet, and too many or too long waiting")  \
  X(tx_fragmented,          "packets sent as fragments; tx_packets counts each fragment")            \
  X(tx_unreachable_sent,    "ICMP net unreachable, into the TUN")                                    \
  X(tx_time_exceeded_sent,  "ICMP time exceeded, into the TUN")                                      \
  X(tx_frag_needed_sent,    "ICMP fragmentation needed, into the TUN")                               \
  X(udp_gso_refusals,       "messages that had to be sent again as single datagrams")                \
  /* peers to TUN */                                                                                 \
  X(rx_packets,             "inner packets written to the TUN")                                      \
  X(rx_bytes,               "their bytes")                                                           \
  X(rx_messages,            "messages read from the socket")                                         \
  X(rx_batches,             "recvmmsg calls that returned any")                                      \
  X(tun_writes,             "writes they went in: fewer than packets with coalescing")               \
  X(rx_drop_malformed,      "shorter than an IP header, not IP, contradicting lengths")              \
  X(rx_drop_checksum,       "a wrong checksum in the IPv4 header")                                   \
  X(rx_drop_options,        "options past their header, a route of its own, odd extension headers")  \
  X(rx_drop_fragment,       "a fragment beyond the longest packet, too small, or of odd blocks")     \
  X(rx_drop_not_ours,       "VXLAN: another VNI, MAC, or no IP; IPv6: said to hosts of one link")    \
  X(rx_drop_unknown_sender, "no peer has the inner source; if outside the network: no peer sent it") \
  X(rx_drop_spoofed_source, "another peer has the inner source, or no peer can have it")             \
  X(rx_drop_destination,    "the inner destination is not in our subnet")                            \
  X(rx_drop_congestion,     "marked for congestion on the way, but its sender knows no such marks")  \
  X(rx_drop_no_session,     "WireGuard: no keys by the number that it names, or they are too old")    \
  X(rx_drop_not_authentic,  "WireGuard: not sealed with the key that it names, or damaged")           \
  X(rx_drop_replay,         "WireGuard: it has come before, or is too late to tell")                  \
  X(rx_drop_handshake,      "WireGuard: more handshakes than are looked at, or answers to none")      \
  X(rx_drop_wrong_key,      "WireGuard: a handshake with another public key than ours, or junk")      \
  X(rx_drop_socket_full,    "messages that the receive buffer had no room for, as of the last look") \
  X(rx_drop_truncated,      "longer than the receive buffer")                                        \
  X(rx_drop_ttl,            "TTL or hop limit ran out here")                                         \
  X(rx_time_exceeded_sent,  "ICMP time exceeded, to the peer")                                       \
  X(rx_drop_tun,            "the kernel did not take the packet: the TUN is down or full")           \
  X(tx_for_link,            "multicast and the like, which no tunnel carries: nothing is lost")      \
  X(coalesce_refusals,      "joined writes that had to be written again one by one")
// clang-format on

enum Counter : size_t {
#define WEFT_COUNTER_ENUM(name, text) k_##name,
  WEFT_COUNTERS(WEFT_COUNTER_ENUM)
#undef WEFT_COUNTER_ENUM
      kCounterCount
};

constexpr std::array<std::string_view, kCounterCount> kCounterNames{
#define WEFT_COUNTER_NAME(name, text) #name,
    WEFT_COUNTERS(WEFT_COUNTER_NAME)
#undef WEFT_COUNTER_NAME
};

/// The text of each counter, for people.
constexpr std::array<std::string_view, kCounterCount> kCounterTexts{
#define WEFT_COUNTER_TEXT(name, text) text,
    WEFT_COUNTERS(WEFT_COUNTER_TEXT)
#undef WEFT_COUNTER_TEXT
};

/// One loop's row.
class CounterRow {
 public:
  explicit CounterRow(uint64_t* row) : row_(row) {}
  void add(Counter counter, uint64_t amount = 1) {
    // One writer: a relaxed load and store, no locked instruction.
    __atomic_store_n(&row_[counter], __atomic_load_n(&row_[counter], __ATOMIC_RELAXED) + amount, __ATOMIC_RELAXED);
  }

 private:
  uint64_t* row_;
};

}  // namespace weft
