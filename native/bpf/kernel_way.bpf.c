// kernel_way.bpf.c - three tc programs with which the kernel carries datagrams of flannel's udp backend for promoted
// peers (docs/design/kernel-way.md).
//
// `egress` runs on the TUN device and puts an IPv4 and a UDP header before a packet. `ingress` runs on the external
// interface and removes these headers. `joined` takes packets from the veth devices at which the kernel merges TCP
// segments. `egress` and `ingress` leave each packet that they do not fully support to the engine, which checks, counts
// and reports the packet. weftd fills the maps (src/path/tunnel/kernel-way-maps.ts has the same layouts).
//
// The file includes no system header, so that clang compiles it on each distribution.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BE16(value) ((u16)__builtin_bswap16(value))
#define BE32(value) __builtin_bswap32(value)
#else
#define BE16(value) ((u16)(value))
#define BE32(value) (value)
#endif

/// The packet as tc programs see it (struct __sk_buff of linux/bpf.h).
struct packet {
  u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
  u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end, napi_id;
  u32 family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port, data_meta;
  u64 flow_keys;
  u64 tstamp;
  u32 wire_len, gso_segs;
  u64 sk;
  u32 gso_size;
};

// Helpers of the kernel by their numbers (enum bpf_func_id of linux/bpf.h).
static void* (*const map_lookup)(void* map, const void* key) = (void*)1;
static long (*const map_update)(void* map, const void* key, const void* value, u64 flags) = (void*)2;
static long (*const redirect)(u32 ifindex, u64 flags) = (void*)23;
static long (*const load_bytes)(const struct packet* packet, u32 at, void* to, u32 bytes) = (void*)26;
static long (*const pull_data)(struct packet* packet, u32 len) = (void*)39;
static long (*const change_head)(struct packet* packet, u32 len, u64 flags) = (void*)43;
static long (*const adjust_room)(struct packet* packet, int bytes, u32 mode, u64 flags) = (void*)50;
static long (*const redirect_neigh)(u32 ifindex, void* next, int bytes, u64 flags) = (void*)152;
static u64 (*const coarse_ns)(void) = (void*)160;

enum { kNext = -1, kDrop = 2 };             // TC_ACT_UNSPEC: the packet continues as without this program; TC_ACT_SHOT
enum { kRoomBehindMac = 1, kIngress = 1 };  // BPF_ADJ_ROOM_MAC, BPF_F_INGRESS
/// Flags of adjust_room: BPF_F_ADJ_ROOM_FIXED_GSO, _ENCAP_L3_IPV4, _ENCAP_L4_UDP, _DECAP_L3_IPV6 (Linux 6.3).
enum { kFixedGso = 1, kEncapIpv4 = 2, kEncapUdp = 16, kDecapIpv6 = 256 };

enum { kEthBytes = 14, kIpv4Bytes = 20, kIpv6Bytes = 40, kUdpBytes = 8, kOuterBytes = kIpv4Bytes + kUdpBytes };
enum { kEthIpv4 = 0x0800, kEthIpv6 = 0x86dd, kTcp = 6, kUdp = 17, kIcmp = 1, kIcmpv6 = 58 };
enum { kFragmentBits = 0x3fff, kDontFragment = 0x4000, kSyn = 2 };
enum { kMostBytes = 65535 - kOuterBytes };

struct ipv4 {
  u8 version_length, tos;
  u16 total, id, fragment;
  u8 ttl, protocol;
  u16 checksum;
  u32 source, destination;
};
struct ipv6 {
  u8 version, class_flow[3];
  u16 payload;
  u8 next, hops;
  u32 source[4], destination[4];
};
struct udp {
  u16 source, destination, length, checksum;
};

// The layouts of the maps' values. src/path/tunnel/kernel-way-maps.ts writes them.

enum { kLeavesSyn = 2, kLeavesProbes = 4 };
struct config {
  u64 until_ns;        ///< the time of CLOCK_MONOTONIC in ns from which the programs carry no packets
  u32 uplink, tunnel;  ///< the indices of the interfaces
  u32 join;            ///< the index of the interface behind which the kernel merges TCP segments; 0 for none
  u32 flags;
  u32 own_host;  ///< the address of this host's datagrams, in network order like all addresses and ports
  u16 port, proof_port;
  u32 subnet, mask;  ///< this node's IPv4 subnet; a mask of 0 for none
  u32 own, pad;      ///< the TUN's own IPv4 address
  u32 subnet6[4], mask6[4], own6[4];
};

enum { kPromoted = 1, kTried = 2 };
struct peer {
  u32 host;         ///< the IPv4 address of the peer's host; 0 if datagrams to the peer are IPv6
  u16 port, limit;  ///< `limit`: the longest packet that reaches the peer, in bytes and host byte order
  u32 slot, flags;
};

struct traffic {
  u64 sent, sent_bytes, received, received_bytes, received_ns;
};

/// The indices of the counters. src/path/tunnel/kernel-way-maps.ts names them.
enum {
  kSent,
  kSentBytes,
  kReceived,
  kReceivedBytes,
  kLeftNoPeer,
  kLeftNotPromoted,
  kLeftKind,
  kLeftHops,
  kLeftLength,
  kLeftRoom,
  kLeftUserspace,
  kLeftOuter,
  kLeftSender,
  kLeftDestination,
  kLost,
  kJoined,
  kLong,
  kLone
};

struct key4 {
  u32 bits, address;
};
struct key6 {
  u32 bits, address[4];
};

// The maps. The loader replaces each reference by a descriptor, and knows the types of the maps by name.
struct map {
  int unused;
};
struct map config SECTION("maps");
struct map peers4 SECTION("maps");
struct map peers6 SECTION("maps");
struct map traffic SECTION("maps");
struct map counters SECTION("maps");

INLINE void count(u32 which, u64 by) {
  u64* counter = map_lookup(&counters, &which);
  if (counter) *counter += by;
}

INLINE int leave(u32 why) {
  count(why, 1);
  return kNext;
}

INLINE struct config* current(void) {
  u32 first = 0;
  struct config* now = map_lookup(&config, &first);
  return now && coarse_ns() < now->until_ns ? now : 0;
}

INLINE u16 fold(u32 sum) {
  sum = (sum & 0xffff) + (sum >> 16);
  return (u16)((sum & 0xffff) + (sum >> 16));
}

/// Returns the sum over an IPv4 header without options; 0xffff if the header's checksum is right.
INLINE u16 sum_of(const struct ipv4* ip) {
  const u16* words = (const u16*)ip;
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < kIpv4Bytes / 2; i++) sum += words[i];
  return fold(sum);
}

/// Lowers the TTL, and updates the checksum (RFC 1624 equation 3), with the same result as native/core/packet.h.
INLINE void lower_ttl(struct ipv4* ip) {
  u16* word = (u16*)&ip->ttl;
  u32 sum = (u16)~ip->checksum + (u32)(u16) ~*word;
  ip->ttl--;
  sum += *word;
  ip->checksum = (u16)~fold(sum);
}

INLINE int is_within6(const u32* address, const u32* net, const u32* mask) {
  return ((address[0] & mask[0]) == net[0]) & ((address[1] & mask[1]) == net[1]) & ((address[2] & mask[2]) == net[2]) &
         ((address[3] & mask[3]) == net[3]);
}

INLINE int is_same6(const u32* a, const u32* b) {
  return (a[0] == b[0]) & (a[1] == b[1]) & (a[2] == b[2]) & (a[3] == b[3]);
}

INLINE struct peer* find4(u32 address) {
  struct key4 key = {32, address};
  return map_lookup(&peers4, &key);
}

INLINE struct peer* find6(const u32* address) {
  struct key6 key = {128, {address[0], address[1], address[2], address[3]}};
  return map_lookup(&peers6, &key);
}

INLINE struct traffic* traffic_of(u32 slot) {
  struct traffic* found = map_lookup(&traffic, &slot);
  if (found || slot == 0) return found;
  struct traffic none = {};
  map_update(&traffic, &slot, &none, 1);  // BPF_NOEXIST
  return map_lookup(&traffic, &slot);
}

/// The fields of an inner packet that `egress` and `ingress` need.
struct inner {
  u32 header_bytes;  ///< the length of the IP header
  u32 total;         ///< the length that the IP header gives
  u8 protocol, hops;
};

/// Returns the number of packets on the wire: a superpacket counts as its segments.
INLINE u64 packets_in(const struct packet* packet, const struct inner* inner, u32 upper_bytes) {
  const u32 size = packet->gso_size;
  const u32 headers = inner->header_bytes + upper_bytes;
  if (size == 0 || inner->total <= headers) return 1;
  return (inner->total - headers + size - 1) / size;
}

/// The number of bytes of a TCP or UDP header that the programs read.
enum { kUpperBytes = 14 };

/// Returns the length of the TCP or UDP header at `at`; 0 if the header is not in the packet or is malformed.
INLINE u32 upper_bytes_of(u8 protocol, const u8* at, const u8* end) {
  if (protocol == kUdp) return at + kUdpBytes <= end ? kUdpBytes : 0;
  if (at + kUpperBytes > end) return 0;
  const u32 bytes = (at[12] >> 4) * 4;
  return bytes >= 20 ? bytes : 0;
}

/// Makes the first bytes of a packet readable. The programs request only the headers, because bpf_skb_pull_data moves
/// payload out of its page, and splitting and merging such packets costs 50 % more.
INLINE void make_readable(struct packet* packet, u32 bytes) {
  const u32 len = packet->len, readable = packet->data_end - packet->data;
  if (readable < bytes && readable < len) pull_data(packet, len < bytes ? len : bytes);
}
/// A TCP packet that is longer than this number of bytes has so much payload that merging saves CPU time.
enum { kFullBytes = 1000 };

SECTION("tc/egress")
int egress(struct packet* packet) {
  struct config* now = current();
  if (!now) return kNext;
  const u32 len = packet->len;
  const int is_v6 = packet->protocol == BE16(kEthIpv6);
  make_readable(packet, (is_v6 ? kIpv6Bytes : kIpv4Bytes) + kUpperBytes);
  u8 *data = (u8*)(u64)packet->data, *end = (u8*)(u64)packet->data_end;
  struct inner inner = {};
  struct peer* peer;
  int is_own;        // true if the packet comes from the TUN's own address
  int is_from_here;  // true if the packet comes from this node's subnet
  if (is_v6) {
    const struct ipv6* ip = (void*)data;
    if ((u8*)(ip + 1) > end) return leave(kLeftKind);
    peer = find6(ip->destination);
    inner = (struct inner){kIpv6Bytes, kIpv6Bytes + BE16(ip->payload), ip->next, ip->hops};
    is_own = is_same6(ip->source, now->own6);
    is_from_here = now->mask6[0] != 0 && is_within6(ip->source, now->subnet6, now->mask6);
    if (ip->version >> 4 != 6 || (inner.protocol != kTcp && inner.protocol != kUdp && inner.protocol != kIcmpv6)) {
      return leave(kLeftKind);
    }
  } else if (packet->protocol == BE16(kEthIpv4)) {
    const struct ipv4* ip = (void*)data;
    if ((u8*)(ip + 1) > end) return leave(kLeftKind);
    peer = find4(ip->destination);
    inner = (struct inner){kIpv4Bytes, BE16(ip->total), ip->protocol, ip->ttl};
    is_own = ip->source == now->own;
    is_from_here = now->mask != 0 && (ip->source & now->mask) == now->subnet;
    if (ip->version_length != 0x45 || (ip->fragment & BE16(kFragmentBits))) return leave(kLeftKind);
  } else {
    return leave(kLeftKind);
  }
  if (!peer || peer->host == 0) return leave(kLeftNoPeer);
  const u8* upper = data + inner.header_bytes;
  const int is_tcp = inner.protocol == kTcp;
  if (!(peer->flags & kPromoted)) {
    // While weftd tests a peer, this program carries only the packets of the test connection.
    if (!(peer->flags & kTried) || !is_tcp || !is_own || upper + 4 > end) return leave(kLeftNotPromoted);
    if (*(const u16*)(upper + 2) != now->proof_port) return leave(kLeftNotPromoted);
  }
  // The peer's `ingress` leaves packets with any other source to the peer's engine, which cannot use superpackets and
  // unfinished checksums.
  if (!is_from_here) return leave(kLeftSender);
  if (inner.hops <= 1) return leave(kLeftHops);
  if (inner.total != len || len > kMostBytes) return leave(kLeftLength);
  u32 upper_bytes = 0;
  if (is_tcp || inner.protocol == kUdp) {
    upper_bytes = upper_bytes_of(inner.protocol, upper, end);
    if (upper_bytes == 0) return leave(kLeftKind);
    if (is_tcp && (now->flags & kLeavesSyn) && upper + kUpperBytes <= end && (upper[13] & kSyn))
      return leave(kLeftKind);
  } else if (is_own && (now->flags & kLeavesProbes) && (inner.protocol == kIcmp || inner.protocol == kIcmpv6)) {
    return leave(kLeftKind);
  }
  const u32 segment = packet->gso_size;
  if (segment != 0 && upper_bytes == 0) return leave(kLeftKind);
  if ((segment != 0 ? inner.header_bytes + upper_bytes + segment : len) > peer->limit) return leave(kLeftLength);
  const u64 packets = packets_in(packet, &inner, upper_bytes);
  const u32 host = peer->host, slot = peer->slot;
  const u16 port = peer->port;

  if (adjust_room(packet, kOuterBytes, kRoomBehindMac, kFixedGso | kEncapIpv4 | kEncapUdp)) return leave(kLeftRoom);
  data = (u8*)(u64)packet->data, end = (u8*)(u64)packet->data_end;
  if (data + kOuterBytes + kIpv4Bytes > end) goto lost;
  struct ipv4* outer = (void*)data;
  *outer =
      (struct ipv4){0x45, 0, BE16((u16)(kOuterBytes + len)), 0, BE16(kDontFragment), 64, kUdp, 0, now->own_host, host};
  outer->checksum = (u16)~sum_of(outer);
  // The UDP checksum 0 shows the peer's `ingress` that an `egress` sent the datagram.
  *(struct udp*)(outer + 1) = (struct udp){now->port, port, BE16((u16)(kUdpBytes + len)), 0};
  if (is_v6) {
    ((struct ipv6*)(data + kOuterBytes))->hops--;
  } else {
    lower_ttl((struct ipv4*)(data + kOuterBytes));
  }
  if (change_head(packet, kEthBytes, 0)) goto lost;
  packet->mark = 0;
  count(kSent, packets);
  const u64 bytes = inner.total + (packets - 1) * (inner.header_bytes + upper_bytes);
  count(kSentBytes, bytes);
  struct traffic* row = traffic_of(slot);
  if (row) {
    row->sent += packets;
    row->sent_bytes += bytes;
  }
  return (int)redirect_neigh(now->uplink, 0, 0, 0);
lost:
  count(kLost, 1);
  return kDrop;
}

SECTION("tc/ingress")
int ingress(struct packet* packet) {
  // Make the cheapest checks first, because most packets of the external interface are not for the tunnel.
  if (packet->protocol != BE16(kEthIpv4) || packet->pkt_type != 0 || packet->vlan_present) return kNext;
  const u32 len = packet->len;
  make_readable(packet, kEthBytes + kOuterBytes);
  u8 *data = (u8*)(u64)packet->data, *end = (u8*)(u64)packet->data_end;
  const struct ipv4* outer = (void*)(data + kEthBytes);
  const struct udp* udp = (void*)(outer + 1);
  if ((u8*)(udp + 1) > end) return kNext;
  if (outer->version_length != 0x45 || outer->protocol != kUdp) return kNext;
  struct config* now = current();
  if (!now || udp->destination != now->port || outer->destination != now->own_host) return kNext;
  if (udp->checksum != 0) return leave(kLeftUserspace);
  const u32 outer_total = BE16(outer->total);
  if ((outer->fragment & BE16(kFragmentBits)) || (outer->tos & 3) || outer_total > len - kEthBytes ||
      BE16(udp->length) != outer_total - kIpv4Bytes || sum_of(outer) != 0xffff) {
    return leave(kLeftOuter);
  }
  const u32 from = outer->source;

  u8 version;
  if (load_bytes(packet, kEthBytes + kOuterBytes, &version, 1)) return leave(kLeftKind);
  const int is_v6 = version >> 4 == 6;
  make_readable(packet, kEthBytes + kOuterBytes + (is_v6 ? kIpv6Bytes : kIpv4Bytes) + kUpperBytes);
  data = (u8*)(u64)packet->data, end = (u8*)(u64)packet->data_end;
  u8* at = data + kEthBytes + kOuterBytes;
  struct inner inner = {};
  struct peer* peer;
  if (is_v6) {
    const struct ipv6* ip = (void*)at;
    if ((u8*)(ip + 1) > end) return leave(kLeftKind);
    inner = (struct inner){kIpv6Bytes, kIpv6Bytes + BE16(ip->payload), ip->next, ip->hops};
    // ICMPv6 has messages that must not cross a tunnel, so the engine checks it (native/core/inspect.h).
    if (inner.protocol != kTcp && inner.protocol != kUdp) return leave(kLeftKind);
    peer = find6(ip->source);
    if (is_within6(ip->source, now->subnet6, now->mask6)) return leave(kLeftSender);
    if (now->mask6[0] == 0 || !is_within6(ip->destination, now->subnet6, now->mask6)) return leave(kLeftDestination);
  } else {
    const struct ipv4* ip = (void*)at;
    if ((u8*)(ip + 1) > end) return leave(kLeftKind);
    if (ip->version_length != 0x45 || (ip->fragment & BE16(kFragmentBits)) || sum_of(ip) != 0xffff) {
      return leave(kLeftKind);
    }
    inner = (struct inner){kIpv4Bytes, BE16(ip->total), ip->protocol, ip->ttl};
    peer = find4(ip->source);
    if ((ip->source & now->mask) == now->subnet) return leave(kLeftSender);
    if (now->mask == 0 || (ip->destination & now->mask) != now->subnet) return leave(kLeftDestination);
  }
  // Datagrams from other addresses must pass the host's packet filter, even if the engine would accept them.
  if (!peer || peer->host == 0 || peer->host != from) return leave(kLeftSender);
  if (inner.hops <= 1) return leave(kLeftHops);
  // If the kernel merged several datagrams into one, the result is longer than its first packet.
  if (inner.total != outer_total - kOuterBytes) return leave(kLeftLength);
  const u8* upper = at + inner.header_bytes;
  u32 upper_bytes = 0;
  if (inner.protocol == kTcp || inner.protocol == kUdp) {
    upper_bytes = upper_bytes_of(inner.protocol, upper, end);
    if (upper_bytes == 0) return leave(kLeftKind);
    if (inner.protocol == kTcp && (now->flags & kLeavesSyn) && upper + kUpperBytes <= end && (upper[13] & kSyn)) {
      return leave(kLeftKind);
    }
  }
  const u32 segment = packet->gso_size;
  if (segment != 0 && upper_bytes == 0) return leave(kLeftKind);
  const u64 packets = packets_in(packet, &inner, upper_bytes);
  const u32 slot = peer->slot;
  const int is_tcp = inner.protocol == kTcp;
  const u32 join = now->join, tunnel = now->tunnel;
  // Either all received TCP packets are merged or none, so that their order stays. weftd decides by these counters.
  if (is_tcp && segment != 0) count(kLong, 1);
  if (is_tcp && segment == 0 && inner.total > kFullBytes) count(kLone, 1);

  if (adjust_room(packet, -kOuterBytes, kRoomBehindMac, kFixedGso | (is_v6 ? kDecapIpv6 : 0))) return leave(kLeftRoom);
  data = (u8*)(u64)packet->data, end = (u8*)(u64)packet->data_end;
  if (data + kEthBytes + kIpv4Bytes > end) goto lost;
  if (is_v6) {
    ((struct ipv6*)(data + kEthBytes))->hops--;
    *(u16*)(data + 12) = BE16(kEthIpv6);
  } else {
    lower_ttl((struct ipv4*)(data + kEthBytes));
  }
  count(kReceived, packets);
  const u64 bytes = inner.total + (packets - 1) * (inner.header_bytes + upper_bytes);
  count(kReceivedBytes, bytes);
  struct traffic* row = traffic_of(slot);
  if (row) {
    row->received += packets;
    row->received_bytes += bytes;
    row->received_ns = coarse_ns();
  }
  if (is_tcp && join != 0) {
    count(kJoined, 1);
    return (int)redirect(join, 0);
  }
  return (int)redirect(tunnel, kIngress);
lost:
  count(kLost, 1);
  return kDrop;
}

/// Runs on the interface at which the kernel has merged TCP segments, and redirects the result to the TUN device. Only
/// `ingress` sends TCP packets to this interface. All other packets are this host's own link-local messages.
SECTION("tc/joined")
int joined(struct packet* packet) {
  const u8 *data = (u8*)(u64)packet->data, *end = (u8*)(u64)packet->data_end;
  if (data + kEthBytes + kIpv4Bytes > end) return kDrop;
  const u8* ip = data + kEthBytes;
  const u8 protocol = packet->protocol == BE16(kEthIpv4)   ? ((const struct ipv4*)ip)->protocol
                      : packet->protocol == BE16(kEthIpv6) ? ((const struct ipv6*)ip)->next
                                                           : 0;
  u32 first = 0;
  struct config* now = map_lookup(&config, &first);
  return now && protocol == kTcp ? (int)redirect(now->tunnel, kIngress) : kDrop;
}
