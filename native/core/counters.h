// counters.h - the counters of the data path, with their names and descriptions. Each drop is counted under its reason
// (drops.h).
//
// Packet counters count inner packets as on the wire: a superpacket counts as its segments. A message of several
// datagrams that is dropped as a whole counts as one packet (rx_drop_socket_full, rx_drop_truncated), and so does a
// superpacket that the kernel drops (tx_drop_queue_full). ICMP errors of weft are counted after they were sent. Each
// loop thread has its own row of counters, in memory that JavaScript reads. Only one thread at a time writes a counter.
// No thread writes tx_drop_queue_full: JavaScript reads it from the kernel (src/path/tunnel/queue-drops.ts).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

// clang-format off
#define WEFT_COUNTERS(X)                                                                             \
  /* counters of packets from the TUN to peers */                                                    \
  X(tx_packets,             "inner packets handed to the socket")                                    \
  X(tx_bytes,               "bytes of these packets, without UDP and outer headers")                 \
  X(tx_messages,            "messages that carried them: fewer than packets with udp-gso")           \
  X(tx_batches,             "sendmmsg calls")                                                        \
  X(tun_reads,              "packets and superpackets read from the TUN")                            \
  X(tx_drop_queue_full,     "dropped at the TUN, mostly for a full queue, as of the last check")     \
  X(tx_drop_malformed,      "not IP, contradictory lengths, or a superpacket of many tiny segments") \
  X(tx_drop_tun,            "the kernel failed to hand over the packet: an odd error of the TUN")    \
  X(tx_drop_no_route,       "no peer has the destination")                                           \
  X(tx_drop_circle,         "an own datagram came back: the peer's address is inside the tunnel")    \
  X(tx_drop_ttl,            "the TTL or hop limit expired here")                                     \
  X(tx_drop_too_big,        "longer than the path allows, and may not be fragmented (EMSGSIZE)")     \
  X(tx_drop_socket_full,    "the socket's buffer stayed full, or a queue had no room (ENOBUFS)")     \
  X(tx_drop_refused,        "the kernel refused it: no route to the peer, or a firewall (EPERM)")    \
  X(tx_drop_no_session,     "WireGuard: no keys with the peer; too many packets wait, or for too long")\
  X(tx_fragmented,          "packets sent as fragments; tx_packets counts each fragment")            \
  X(tx_unreachable_sent,    "ICMP net unreachable, sent into the TUN")                               \
  X(tx_time_exceeded_sent,  "ICMP time exceeded, sent into the TUN")                                 \
  X(tx_frag_needed_sent,    "ICMP fragmentation needed, sent into the TUN")                          \
  X(udp_gso_refusals,       "messages that had to be sent again as single datagrams")                \
  /* counters of packets from peers to the TUN */                                                    \
  X(rx_packets,             "inner packets written to the TUN")                                      \
  X(rx_bytes,               "bytes of these packets")                                                \
  X(rx_messages,            "messages read from the socket")                                         \
  X(rx_batches,             "recvmmsg calls that returned a message")                                \
  X(tun_writes,             "writes that carried them: fewer than packets with coalescing")          \
  X(rx_drop_malformed,      "shorter than an IP header, not IP, or contradictory lengths")           \
  X(rx_drop_checksum,       "a wrong checksum in the IPv4 header")                                   \
  X(rx_drop_options,        "invalid IP options or extension headers, or a source route")            \
  X(rx_drop_fragment,       "an invalid fragment: too small, not in blocks of 8, or beyond 65535 bytes")\
  X(rx_drop_not_ours,       "VXLAN: another VNI or MAC, or not IP; IPv6: neighbour discovery")       \
  X(rx_drop_unknown_sender, "no peer has the inner source; if outside the network, no peer sent it") \
  X(rx_drop_spoofed_source, "another peer has the inner source, or no peer can have it")             \
  X(rx_drop_destination,    "the inner destination is not in this node's subnet")                    \
  X(rx_drop_congestion,     "marked for congestion on the way, but its sender does not support ECN") \
  X(rx_drop_no_session,     "WireGuard: it names unknown keys, or keys that are too old")            \
  X(rx_drop_not_authentic,  "WireGuard: not sealed with the keys that it names, or damaged")         \
  X(rx_drop_replay,         "WireGuard: received before, or too late to know")                       \
  X(rx_drop_handshake,      "WireGuard: too many handshakes, or an answer that was not expected")    \
  X(rx_drop_wrong_key,      "WireGuard: a handshake for another public key than ours, or junk")      \
  X(rx_drop_socket_full,    "no room in the buffer, or a wrong UDP checksum, as of the last check")  \
  X(rx_drop_truncated,      "longer than the receive buffer of one message")                         \
  X(rx_drop_ttl,            "the TTL or hop limit expired here")                                     \
  X(rx_time_exceeded_sent,  "ICMP time exceeded, sent to the peer")                                  \
  X(rx_drop_tun,            "the kernel refused the packet: the TUN is down or full")                \
  X(tx_for_link,            "multicast and the like, which no tunnel carries: no loss")              \
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

constexpr std::array<std::string_view, kCounterCount> kCounterTexts{
#define WEFT_COUNTER_TEXT(name, text) text,
    WEFT_COUNTERS(WEFT_COUNTER_TEXT)
#undef WEFT_COUNTER_TEXT
};

class CounterRow {
 public:
  explicit CounterRow(uint64_t* row) : row_(row) {}
  void add(Counter counter, uint64_t amount = 1) {
    // Each counter has only one writer, so a relaxed load and store suffice, without a locked instruction.
    __atomic_store_n(&row_[counter], __atomic_load_n(&row_[counter], __ATOMIC_RELAXED) + amount, __ATOMIC_RELAXED);
  }

 private:
  uint64_t* row_;
};

}  // namespace weft
