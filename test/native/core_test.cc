// core_test.cc - table tests and property tests of native/core. core.test.ts builds and runs them with sanitizers.
#include <arpa/inet.h>
#include <errno.h>

#include <atomic>
#include <map>
#include <set>
#include <string_view>
#include <thread>

#include "../../native/core/checksum.h"
#include "../../native/core/circle.h"
#include "../../native/core/coalesce.h"
#include "../../native/core/drops.h"
#include "../../native/core/ecn.h"
#include "../../native/core/features.h"
#include "../../native/core/filter.h"
#include "../../native/core/fragment.h"
#include "../../native/core/icmp.h"
#include "../../native/core/inspect.h"
#include "../../native/core/mss.h"
#include "../../native/core/peers.h"
#include "../../native/core/refusals.h"
#include "../../native/core/segment.h"
#include "../../native/core/sessions.h"
#include "../../native/core/traffic.h"
#include "../../native/core/unknown_senders.h"
#include "../../native/core/waiting.h"
#include "packets.h"

/// Cuts a write into single packets with segment.h, as the kernel would.
static std::vector<Bytes> cut(const VirtioHeader& virtio, Bytes bytes) {
  std::vector<Bytes> packets;
  const Packet packet = read(bytes);
  if (virtio.gso_type == kGsoNone) return {bytes};
  Segmenter segments;
  CHECK(segments.begin(virtio, bytes.data(), packet));
  const size_t expected = segments.count();
  while (!segments.done()) {
    uint8_t header[kMaxCutHeadersBytes];
    const Segment segment = segments.next(header);
    Bytes one(segment.header, segment.header + segment.header_bytes);
    one.insert(one.end(), segment.payload, segment.payload + segment.payload_bytes);
    packets.push_back(one);
  }
  CHECK(packets.size() == expected);
  return packets;
}

/// Checks the virtio header of a joined write (virtio 1.2 section 5.1.6.2): the transport checksum field must contain
/// the pseudo-header's sum.
static void check_joined(const VirtioHeader& virtio, const Bytes& whole, size_t header_bytes,
                         size_t first_payload_bytes) {
  const bool v6 = whole[0] >> 4 == 6, tcp = whole[v6 ? 6u : 9u] == IPPROTO_TCP;
  const size_t ip_bytes = v6 ? 40 : 20, at = ip_bytes + (tcp ? 16 : 6);
  CHECK(virtio.flags == 1 && virtio.gso_type == (!tcp ? 5 : v6 ? 4 : 1));
  CHECK(virtio.hdr_len == header_bytes && virtio.gso_size == first_payload_bytes);
  CHECK(virtio.csum_start == ip_bytes && virtio.csum_offset == at - ip_bytes);
  const size_t behind = whole.size() - ip_bytes;
  CHECK(load_be16(&whole[v6 ? 4u : 2u]) == (v6 ? behind : whole.size()));
  if (!tcp) CHECK(load_be16(&whole[ip_bytes + 4]) == behind);
  if (!v6) CHECK(reference_fold(reference_sum(whole.data(), 20)) == 0xffff);
  const uint64_t pseudo = reference_sum(&whole[v6 ? 8u : 12u], v6 ? 32 : 8, behind + (tcp ? IPPROTO_TCP : IPPROTO_UDP));
  CHECK(load_be16(&whole[at]) == reference_fold(pseudo));
}

/// Passes packets through a Coalescer. Returns for each write the packets into which segment.h cuts it again.
static std::vector<std::vector<Bytes>> coalesce(std::vector<Bytes>& packets, CoalesceLimits limits = {}) {
  static Coalescer coalescer;
  std::vector<std::vector<Bytes>> writes;
  const auto drain = [&] {
    for (size_t i = 0; i < coalescer.writes(); i++) {
      iovec iov[Coalescer::kMaxIovecs];
      const size_t count = coalescer.write(i, iov);
      CHECK(count <= Coalescer::kMaxIovecs);
      VirtioHeader virtio;
      std::memcpy(&virtio, iov[0].iov_base, sizeof virtio);
      Bytes whole;
      for (size_t j = 1; j < count; j++) {
        const auto* from = static_cast<const uint8_t*>(iov[j].iov_base);
        whole.insert(whole.end(), from, from + iov[j].iov_len);
      }
      if (count > 2) check_joined(virtio, whole, iov[1].iov_len, iov[2].iov_len);
      writes.push_back(cut(virtio, whole));
      CHECK(writes.back().size() == coalescer.run_packets(i));
    }
    coalescer.clear();
  };
  for (Bytes& packet : packets) {
    if (coalescer.full()) drain();
    coalescer.add(packet.data(), read(packet), limits);
  }
  drain();
  return writes;
}

/// Checksums and virtio fields must equal reference values.
static void test_numbers() {
  const uint8_t flags[] = {kFin, kSyn, kRst, kPsh, kAck, kUrg, kEce, kCwr};
  for (size_t bit = 0; bit < 8; bit++) CHECK(flags[bit] == 1 << bit);
  CHECK(kDontFragment == 0x4000 && kEchoRequest == 8);
  CHECK(kVirtioNeedsCsum == 1 && kGsoNone == 0 && kGsoTcp4 == 1 && kGsoTcp6 == 4 && kGsoUdp == 5 && kGsoEcn == 0x80);
  const VirtioHeader nothing;
  const uint8_t zeroes[10] = {};
  CHECK(std::memcmp(&nothing, zeroes, sizeof zeroes) == 0);
}

/// A folded sum must equal the sum modulo 0xffff, except that it is 0 only for a sum of zeroes.
static void test_fold() {
  const uint64_t edges[] = {0, 1, 2, 0x7fff, 0x8000, 0xfffe, 0xffff};
  for (const uint64_t a : edges) {
    for (const uint64_t b : edges) {
      for (const uint64_t c : edges) {
        for (const uint64_t d : edges) {
          const uint64_t sum = a << 48 | b << 32 | c << 16 | d;
          CHECK(checksum_fold(sum) == (sum == 0 ? 0 : (sum - 1) % 0xffff + 1));
        }
      }
    }
  }
}

static void test_checksum() {
  // Callers may add a few words to the largest sum without an overflow.
  for (const size_t size : {8u, 32u}) {
    const Bytes addresses(size, 0xff);
    const uint8_t last[4] = {0, IPPROTO_TCP, 0xff, 0xff};
    const uint16_t expected = reference_fold(reference_sum(last, 4, reference_sum(addresses.data(), size)));
    CHECK(to_be16(checksum_fold(pseudo_header_sum(addresses.data(), size, IPPROTO_TCP, 0xffff))) == expected);
  }
  Bytes bytes(5000);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random_below(256));
  for (int round = 0; round < 3000; round++) {
    const size_t at = random_below(64), size = random_below(round < 300 ? 80 : 4000);
    const uint16_t mine = checksum_fold(checksum_add(0, &bytes[at], size));
    const uint16_t theirs = to_be16(reference_fold(reference_sum(&bytes[at], size)));
    CHECK(mine == theirs || (mine == 0xffff && theirs == 0) || (mine == 0 && theirs == 0xffff));
    // A sum may start from any value, and callers may add a few words without carry.
    const uint64_t before = random_below(2) ? ~uint64_t{random_below(3)} : uint64_t{rng()} << 32 | rng();
    const uint64_t after = checksum_add(before, &bytes[at], size);
    CHECK(after % 0xffff == (before % 0xffff + theirs) % 0xffff && after < uint64_t{1} << 33);
  }
  Bytes ones(65535, 0xff);
  CHECK(checksum_fold(checksum_add(0, ones.data(), 65534)) == 0xffff);
  for (int ttl = 1; ttl < 256; ttl++) {
    Fields f;
    f.ttl = static_cast<uint8_t>(ttl);
    f.id = static_cast<uint16_t>(random_below(65536));
    Bytes packet = build(f);
    decrement_ipv4_ttl(packet.data());
    CHECK(packet[8] == ttl - 1);
    CHECK(reference_fold(reference_sum(packet.data(), 20)) == 0xffff);
  }
}

static void test_read_packet() {
  for (int round = 0; round < 200'000; round++) {
    Bytes bytes(random_below(100));
    for (auto& byte : bytes) byte = static_cast<uint8_t>(random_below(256));
    if (!bytes.empty() && random_below(2)) bytes[0] = random_below(2) ? 0x45 : 0x60;
    Packet packet;
    if (read_packet(bytes.data(), bytes.size(), packet)) {
      CHECK(packet.ip_bytes <= packet.total && packet.total <= bytes.size());
      uint8_t out[kMaxIcmpErrorBytes];
      const size_t size = write_icmp_error(kNetUnreachable, Address::v4(1), bytes.data(), packet, out);
      CHECK(size <= kMaxIcmpErrorBytes);
      static Coalescer coalescer;
      coalescer.add(bytes.data(), packet, {});
      coalescer.clear();
    }
  }
}

/// Tests read_packet() with each length field and each available size at its limit, and one beyond.
static void test_read_limits() {
  constexpr struct {
    const char* what;
    uint8_t first;
    uint16_t length;
    size_t size;
    bool is_packet;
  } rows[] = {
      {"a header alone", 0x45, 20, 20, true},
      {"the same, a byte less", 0x45, 20, 19, false},
      {"the same, with a byte behind it", 0x45, 20, 21, true},
      {"a length of less than the header", 0x45, 19, 20, false},
      {"a length of more than there is", 0x45, 21, 20, false},
      {"less than five words", 0x44, 20, 20, false},
      {"the longest header", 0x4f, 60, 60, true},
      {"a byte less of it", 0x4f, 60, 59, false},
      {"a length that leaves a byte of it out", 0x4f, 59, 60, false},
      {"a header beyond its packet", 0x46, 20, 24, false},
      {"IPv6, a header alone", 0x60, 0, 40, true},
      {"the same, a byte less", 0x60, 0, 39, false},
      {"with a byte behind the header", 0x60, 1, 41, true},
      {"that byte is not there", 0x60, 1, 40, false},
      {"that byte is no part of it", 0x60, 0, 41, true},
      {"version 0", 0x05, 20, 60, false},
      {"version 5", 0x55, 20, 60, false},
      {"version 7", 0x75, 20, 60, false},
  };
  Packet packet;
  for (const auto& row : rows) {
    context = row.what;
    Bytes bytes(64);
    bytes[0] = row.first;
    const bool v6 = row.first >> 4 == 6;
    store_be16(&bytes[v6 ? 4u : 2u], row.length);
    bytes[v6 ? 7u : 8u] = 61;
    bytes[v6 ? 6u : 9u] = 17;
    CHECK(read_packet(bytes.data(), row.size, packet) == row.is_packet);
    if (!row.is_packet) continue;
    CHECK(packet.version == row.first >> 4 && packet.ip_bytes == (v6 ? 40 : (row.first & 15) * 4));
    CHECK(packet.total == row.length + (v6 ? 40u : 0u) && packet.protocol == 17 && packet.hop_limit == 61);
  }
  for (const auto& [word, fragment, later] : {std::tuple{0x0000, false, false},
                                              {0xc000, false, false},
                                              {0x2000, true, false},
                                              {0x0001, true, true},
                                              {0x3fff, true, true}}) {
    context = "a fragment's word, " + std::to_string(word);
    Fields f;
    f.fragment = static_cast<uint16_t>(word);
    Bytes bytes = build(f);
    CHECK(read_packet(bytes.data(), bytes.size(), packet) && packet.fragment == fragment);
    CHECK(packet.later_fragment == later);
    f.v6 = true;
    bytes = build(f);
    CHECK(read_packet(bytes.data(), bytes.size(), packet) && !packet.fragment && !packet.later_fragment);
  }
  context = "an address of one host";
  for (const auto& [address, is_one] : {std::pair{0u, false},
                                        {0x00ffffffu, false},
                                        {0x01000000u, true},
                                        {0x7effffffu, true},
                                        {0x7f000000u, false},
                                        {0x7fffffffu, false},
                                        {0x80000000u, true},
                                        {0xdfffffffu, true},
                                        {0xe0000000u, false},
                                        {0xefffffffu, false},
                                        {0xf0000000u, true},
                                        {0xfffffffeu, true},
                                        {0xffffffffu, false}}) {
    CHECK(is_one_host(to_be32(address)) == is_one);
  }
  context.clear();
}

/// Packets from a peer, each with the counter of the reason to drop it.
static void test_inspect() {
  constexpr auto reason_of = [](const Bytes& bytes) {
    Packet packet;
    return inspect(bytes, packet);
  };
  struct Row {
    const char* what;
    std::optional<Counter> reason;
    void (*change)(Fields&);
  };
  constexpr Counter kFragment = k_rx_drop_fragment, kOptions = k_rx_drop_options;
  const Row rows[] = {
      {"nothing odd", {}, [](Fields&) {}},
      {"no payload", {}, [](Fields& f) { f.payload = 0; }},
      {"all that IPv4 can be long", {}, [](Fields& f) { f.payload = 65535 - 40; }},
      {"a first fragment", {}, [](Fields& f) { f.fragment = 0x2000, f.payload = 20; }},
      {"the least first fragment of TCP", {}, [](Fields& f) { f.fragment = 0x2000, f.payload = 4; }},
      {"the least first fragment of UDP", {}, [](Fields& f) { f.tcp = false, f.fragment = 0x2000, f.payload = 0; }},
      {"a middle fragment", {}, [](Fields& f) { f.fragment = 0x2002, f.payload = 4; }},
      {"a last fragment", {}, [](Fields& f) { f.fragment = 0x0010, f.payload = 1; }},
      {"the last of the longest", {}, [](Fields& f) { f.tcp = false, f.fragment = 0x1ffb, f.payload = 11; }},
      {"a fragment with DF", {}, [](Fields& f) { f.fragment = 0x4010; }},
      {"one byte too far", kFragment, [](Fields& f) { f.tcp = false, f.fragment = 0x1ffb, f.payload = 12; }},
      {"the farthest", kFragment, [](Fields& f) { f.fragment = 0x1fff; }},
      {"not of whole blocks", kFragment, [](Fields& f) { f.fragment = 0x2000, f.payload = 21; }},
      {"not of whole blocks in the middle", kFragment, [](Fields& f) { f.fragment = 0x2005, f.payload = 21; }},
      {"a TCP header's second block", kFragment, [](Fields& f) { f.fragment = 0x0001; }},
      {"the same of UDP", {}, [](Fields& f) { f.tcp = false, f.fragment = 0x0001; }},
      {"nothing to be done",
       {},
       [](Fields& f) {
         f.ip_options = {1, 1, 1, 0};
       }},
      {"a router alert",
       {},
       [](Fields& f) {
         f.ip_options = {148, 4, 0, 0};
       }},
      {"record route", {}, [](Fields& f) { f.ip_options = {7, 7, 4, 0, 0, 0, 0, 0}; }},
      {"40 bytes", {}, [](Fields& f) { f.ip_options = Bytes(40, 1); }},
      {"an option up to the end", {}, [](Fields& f) { f.ip_options = Bytes(40, 68), f.ip_options[1] = 40; }},
      {"anything behind the end",
       {},
       [](Fields& f) {
         f.ip_options = {0, 131, 1, 200};
       }},
      {"beyond the end", kOptions,
       [](Fields& f) {
         f.ip_options = {68, 5, 5, 0};
       }},
      {"no length", kOptions,
       [](Fields& f) {
         f.ip_options = {1, 1, 1, 68};
       }},
      {"a length of 0", kOptions,
       [](Fields& f) {
         f.ip_options = {68, 0, 5, 0};
       }},
      {"a length of 1", kOptions,
       [](Fields& f) {
         f.ip_options = {68, 1, 5, 0};
       }},
      {"a loose source route", kOptions, [](Fields& f) { f.ip_options = {131, 7, 4, 10, 5, 3, 2, 0}; }},
      {"a strict one", kOptions, [](Fields& f) { f.ip_options = {1, 137, 7, 4, 10, 5, 3, 2}; }},
  };
  for (const Row& row : rows) {
    context = row.what;
    Fields f;
    row.change(f);
    Bytes packet = build(f);
    CHECK(reason_of(packet) == row.reason);
    packet.resize(packet.size() + 7);  // bytes behind the packet must be ignored
    CHECK(reason_of(packet) == row.reason);
    packet[10] ^= 1;
    CHECK(reason_of(packet) == k_rx_drop_checksum);
  }
  context = "fragments of nothing";
  for (const uint16_t fragment : {0x2000, 0x2010, 0x0010}) {
    Fields f;
    f.fragment = fragment;
    Bytes packet = build(f);
    packet.resize(20);
    store_be16(&packet[2], 20);
    store(&packet[10], ipv4_header_checksum(packet.data(), 20));
    CHECK(reason_of(packet) == k_rx_drop_fragment);
  }
  context = "a first fragment of TCP that has its flags, and one that has not";
  for (const size_t size : {16u, 8u}) {
    Fields f;
    f.fragment = 0x2000;
    Bytes packet = build(f);
    packet.resize(20 + size);
    store_be16(&packet[2], static_cast<uint16_t>(packet.size()));
    store(&packet[10], ipv4_header_checksum(packet.data(), 20));
    CHECK(reason_of(packet) == (size == 16 ? std::optional<Counter>() : k_rx_drop_fragment));
  }
  context = "each bit of a header";
  for (size_t bit = 0; bit < 8 * 32; bit++) {
    if (bit == 5) continue;  // flipping this bit makes it an IPv6 packet
    Fields f;
    f.ip_options = Bytes(12, 1);
    Bytes packet = build(f);
    packet[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    CHECK(reason_of(packet).has_value());
  }
  context = "a checksum that is 0, either way";
  Fields f;
  f.id = 0;
  Bytes packet = build(f);
  store_be16(&packet[4], load_be16(&packet[10]));  // makes the header checksum 0
  store_be16(&packet[10], 0);
  CHECK(!reason_of(packet));
  store_be16(&packet[10], 0xffff);  // flanneld's way to decrement the TTL may leave this value
  CHECK(!reason_of(packet));
  context = "IPv6";
  f.v6 = true;
  packet = build(f);
  CHECK(!reason_of(packet));
  packet.resize(packet.size() - 1);
  CHECK(reason_of(packet) == k_rx_drop_malformed);
  context.clear();
}

/// Builds an IPv6 packet with extension headers. `headers` has the number and the content of each. The last header is
/// followed by `protocol` and `payload` bytes.
static Bytes with_extensions(const std::vector<std::pair<uint8_t, Bytes>>& headers, uint8_t protocol, size_t behind) {
  Fields f;
  f.v6 = true;
  Bytes packet = build(f);
  packet.resize(40);
  packet[6] = headers.empty() ? protocol : headers[0].first;
  for (size_t i = 0; i < headers.size(); i++) {
    Bytes header = headers[i].second;
    header[0] = i + 1 < headers.size() ? headers[i + 1].first : protocol;
    packet.insert(packet.end(), header.begin(), header.end());
  }
  packet.resize(packet.size() + behind);
  store_be16(&packet[4], static_cast<uint16_t>(packet.size() - 40));
  return packet;
}

/// IPv6 packets from a peer, each with the counter of the reason to drop it.
static void test_inspect_ipv6() {
  constexpr uint8_t kHop = 0, kRouting = 43, kFragment = 44, kDestination = 60, kTcp = 6, kUdp = 17, kIcmp = 58;
  using Headers = std::vector<std::pair<uint8_t, Bytes>>;
  const Bytes padding{0, 0, 1, 4, 0, 0, 0, 0};
  const auto options = [](Bytes bytes) {
    Bytes header{0, static_cast<uint8_t>((bytes.size() + 2) / 8 - 1)};
    header.insert(header.end(), bytes.begin(), bytes.end());
    return header;
  };
  const auto routing = [](uint8_t type, uint8_t left) { return Bytes{0, 0, type, left, 0, 0, 0, 0}; };
  const auto fragment = [](size_t offset, bool more) {
    Bytes header{0, 0, 0, 0, 1, 2, 3, 4};
    store_be16(&header[2], static_cast<uint16_t>(offset | more));
    return header;
  };
  constexpr std::optional<Counter> kGood{}, kOdd = k_rx_drop_options, kPiece = k_rx_drop_fragment,
                                            kLink = k_rx_drop_not_ours;
  const struct {
    const char* what;
    std::optional<Counter> reason;
    Headers headers;
    uint8_t protocol;
    size_t behind;
  } rows[] = {
      {"none", kGood, {}, kUdp, 8},
      {"no next header", kGood, {}, 59, 0},
      {"what is encrypted", kGood, {}, 50, 0},
      {"padding", kGood, {{kHop, padding}}, kUdp, 8},
      {"nothing behind it", kGood, {{kHop, padding}}, kUdp, 0},
      {"a router alert", kGood, {{kHop, options({5, 2, 0, 0, 1, 0})}}, kUdp, 8},
      {"Pad1", kGood, {{kDestination, options({0, 0, 0, 0, 0, 0})}}, kTcp, 20},
      {"an option up to the end", kGood, {{kDestination, options({30, 4, 9, 9, 9, 9})}}, kTcp, 20},
      {"one beyond it", kOdd, {{kDestination, options({30, 5, 9, 9, 9, 9})}}, kTcp, 20},
      {"one without its length", kOdd, {{kDestination, options({1, 3, 0, 0, 0, 30})}}, kTcp, 20},
      {"a jumbogram", kOdd, {{kHop, options({0xc2, 4, 0, 1, 0, 0})}}, kTcp, 20},
      {"both kinds of options", kGood, {{kHop, padding}, {kDestination, padding}}, kTcp, 20},
      {"the hop's behind another", kOdd, {{kDestination, padding}, {kHop, padding}}, kTcp, 20},
      {"the hop's twice", kOdd, {{kHop, padding}, {kHop, padding}}, kTcp, 20},
      {"a header beyond the packet", kOdd, {{kDestination, Bytes{0, 1, 1, 4, 0, 0, 0, 0}}}, kTcp, 7},
      {"a header up to its end", kGood, {{kDestination, Bytes{0, 1, 1, 4, 0, 0, 0, 0}}}, kTcp, 8},
      {"a header of no room", kOdd, {}, kDestination, 7},
      {"a route of its own", kOdd, {{kRouting, routing(4, 1)}}, kTcp, 20},
      {"one that is at its end", kGood, {{kRouting, routing(4, 0)}}, kTcp, 20},
      {"type 0", kOdd, {{kRouting, routing(0, 1)}}, kTcp, 20},
      {"type 0 at its end", kOdd, {{kRouting, routing(0, 0)}}, kTcp, 20},
      {"eight", kGood, Headers(8, {kDestination, padding}), kTcp, 20},
      {"nine", kOdd, Headers(9, {kDestination, padding}), kTcp, 20},
      {"512 bytes", kGood, {{kDestination, options(Bytes(510))}}, kTcp, 20},
      {"more", kOdd, {{kDestination, options(Bytes(518))}}, kTcp, 20},
      {"an atomic fragment", kGood, {{kFragment, fragment(0, false)}}, kUdp, 3},
      {"two of them", kGood, {{kFragment, fragment(0, false)}, {kFragment, fragment(0, false)}}, kUdp, 8},
      {"the least first fragment of TCP", kGood, {{kFragment, fragment(0, true)}}, kTcp, 24},
      {"less", kPiece, {{kFragment, fragment(0, true)}}, kTcp, 16},
      {"the least first fragment of UDP", kGood, {{kFragment, fragment(0, true)}}, kUdp, 8},
      {"a first one of nothing", kPiece, {{kFragment, fragment(0, true)}}, kUdp, 0},
      {"headers in the first fragment", kGood, {{kFragment, fragment(0, true)}, {kDestination, padding}}, kUdp, 8},
      {"and no more", kPiece, {{kFragment, fragment(0, true)}, {kDestination, padding}}, kUdp, 0},
      {"headers that go on in the next", kPiece, {{kFragment, fragment(0, true)}}, kDestination, 0},
      {"not of whole blocks", kPiece, {{kFragment, fragment(0, true)}}, kTcp, 25},
      {"not of whole blocks in the middle", kPiece, {{kFragment, fragment(800, true)}}, kTcp, 25},
      {"a middle one", kGood, {{kFragment, fragment(800, true)}}, kTcp, 24},
      {"a last one", kGood, {{kFragment, fragment(800, false)}}, kTcp, 1},
      {"a last one of nothing", kPiece, {{kFragment, fragment(800, false)}}, kTcp, 0},
      {"one behind a TCP header", kGood, {{kFragment, fragment(24, false)}}, kTcp, 8},
      {"one that overlaps it", kPiece, {{kFragment, fragment(16, false)}}, kTcp, 8},
      {"the same of UDP", kGood, {{kFragment, fragment(8, false)}}, kUdp, 8},
      {"the last of the longest", kGood, {{kFragment, fragment(65520, false)}}, kUdp, 15},
      {"a byte more", kPiece, {{kFragment, fragment(65520, false)}}, kUdp, 16},
      {"the last of the longest, behind options",
       kPiece,
       {{kHop, padding}, {kFragment, fragment(65520, false)}},
       kUdp,
       8},
      {"a fragment in a fragment", kPiece, {{kFragment, fragment(0, true)}, {kFragment, fragment(8, true)}}, kUdp, 8},
      {"ICMPv6", kGood, {}, kIcmp, 8},
      {"ICMPv6 of nothing", kGood, {}, kIcmp, 0},
  };
  constexpr auto reason_of = [](const Bytes& bytes) {
    Packet packet;
    return inspect(bytes, packet);
  };
  for (const auto& row : rows) {
    context = std::string("IPv6, ") + row.what;
    Bytes packet = with_extensions(row.headers, row.protocol, row.behind);
    CHECK(reason_of(packet) == row.reason);
    packet.resize(packet.size() + 7);
    CHECK(reason_of(packet) == row.reason);
  }
  for (int type = 0; type < 256; type++) {
    for (const Headers& headers : {Headers{}, {{kHop, padding}}, {{kFragment, fragment(0, false)}}}) {
      context = "ICMPv6 of type " + std::to_string(type);
      Bytes packet = with_extensions(headers, kIcmp, 8);
      packet[packet.size() - 8] = static_cast<uint8_t>(type);
      CHECK(reason_of(packet) == (type >= 133 && type <= 137 ? kLink : kGood));
    }
    // The first byte is not an ICMPv6 type in UDP packets and in later fragments.
    context = "other data with the first byte " + std::to_string(type);
    for (const auto& [headers, protocol] :
         {std::pair{Headers{{kHop, padding}}, kUdp}, std::pair{Headers{{kFragment, fragment(800, false)}}, kIcmp}}) {
      Bytes packet = with_extensions(headers, protocol, 8);
      packet[packet.size() - 8] = static_cast<uint8_t>(type);
      CHECK(reason_of(packet) == kGood);
    }
  }
  context = "each length of a packet with all of it";
  const Bytes whole =
      with_extensions({{kHop, padding}, {kRouting, routing(4, 0)}, {kFragment, fragment(0, true)}}, kTcp, 24);
  for (size_t size = 40; size < whole.size(); size++) {
    Bytes cut(whole.begin(), whole.begin() + static_cast<long>(size));  // a sanitizer detects reads behind these bytes
    store_be16(&cut[4], static_cast<uint16_t>(size - 40));
    CHECK(reason_of(cut).has_value());
  }
  context = "an address of one host";
  const auto is_one = [](std::initializer_list<uint8_t> first, uint8_t last, uint8_t tenth = 0) {
    uint8_t bytes[16] = {};
    std::copy(first.begin(), first.end(), bytes);
    bytes[10] = bytes[11] = tenth;
    bytes[15] = last;
    return is_one_host(Address::v6(bytes));
  };
  CHECK(!is_one({}, 0) && !is_one({}, 1) && !is_one({}, 9) && is_one({}, 9, 0xfe) && is_one({0, 0x64, 0xff, 0x9b}, 9));
  CHECK(!is_one({0xff, 2}, 1) && !is_one({0xfe, 0x80}, 1) && !is_one({0xfe, 0xbf}, 1) && is_one({0xfe, 0x7f}, 1));
  CHECK(is_one({0xfe, 0xc0}, 1) && is_one({0xfd}, 0) && is_one({0x20, 1}, 1));
  context.clear();
}

/// Compares ICMP errors about IPv6 packets of every length byte by byte, and tests packets about which no error may be
/// sent.
static void test_icmp_ipv6() {
  constexpr uint8_t kIcmp = 58;
  const Address source = ipv6(0x0a050100);
  Fields f;
  f.v6 = true;
  f.tcp = false;
  const struct {
    IcmpError error;
    uint8_t type;
    uint32_t mtu;
  } told[] = {{kNetUnreachable, 1, 0}, {kTimeExceeded, 3, 0}, {too_big(1400), 2, 1400}};
  for (const auto& one : told) {
    for (const size_t payload : {0u, 1u, 100u, 1183u, 1184u, 1185u, 1400u, 60'000u}) {
      context = "ICMPv6 type " + std::to_string(one.type) + " about " + std::to_string(payload);
      f.payload = payload;
      Bytes packet = build(f);
      const size_t quote = std::min<size_t>(packet.size(), 1232);
      Bytes expected(48);
      expected[0] = 0x60;
      store_be16(&expected[4], static_cast<uint16_t>(8 + quote));
      expected[6] = kIcmp;
      expected[7] = 64;
      expected[8] = 0xfd;
      store_be32(&expected[20], 0x0a050100);
      std::copy_n(packet.begin() + 8, 16, expected.begin() + 24);
      expected[40] = one.type;
      store_be32(&expected[44], one.mtu);
      expected.insert(expected.end(), packet.begin(), packet.begin() + static_cast<long>(quote));
      store_be16(&expected[42], static_cast<uint16_t>(~transport_sum(expected)));
      Bytes room(kMaxIcmpErrorBytes + 1, 0xee);
      const size_t size = write_icmp_error(one.error, source, packet.data(), read(packet), room.data());
      CHECK(size == expected.size() && std::equal(expected.begin(), expected.end(), room.begin()));
      CHECK(std::all_of(room.begin() + static_cast<long>(size), room.end(), [](uint8_t byte) { return byte == 0xee; }));
    }
  }
  uint8_t out[kMaxIcmpErrorBytes];
  const auto is_told = [&](Bytes packet) {
    return write_icmp_error(kTimeExceeded, source, packet.data(), read(packet), out) > 0;
  };
  const Bytes padding{0, 0, 1, 4, 0, 0, 0, 0}, first{0, 0, 0, 1, 1, 2, 3, 4}, later{0, 0, 0, 8, 1, 2, 3, 4};
  for (int type = 0; type < 256; type++) {
    context = "about ICMPv6 of type " + std::to_string(type);
    for (const bool behind : {false, true}) {
      Bytes packet = with_extensions(
          behind ? std::vector<std::pair<uint8_t, Bytes>>{{0, padding}} : std::vector<std::pair<uint8_t, Bytes>>{},
          kIcmp, 8);
      packet[packet.size() - 8] = static_cast<uint8_t>(type);
      CHECK(is_told(packet) == (type >= 128 && type != 137));
    }
  }
  context = "about what there is no error of";
  CHECK(!is_told(with_extensions({}, kIcmp, 0)));
  CHECK(is_told(with_extensions({{44, first}}, IPPROTO_UDP, 8)) &&
        !is_told(with_extensions({{44, later}}, IPPROTO_UDP, 8)));
  CHECK(!is_told(with_extensions({{60, Bytes{0, 9, 1, 4, 0, 0, 0, 0}}}, IPPROTO_UDP, 8)));
  for (const auto& [at, first_byte, second] :
       {std::tuple{8u, 0xff, 0x02}, {24u, 0xff, 0x02}, {8u, 0xfe, 0x80}, {24u, 0xfe, 0x80}}) {
    f.payload = 10;
    Bytes packet = build(f);
    CHECK(is_told(packet));
    packet[at] = static_cast<uint8_t>(first_byte);
    packet[at + 1] = static_cast<uint8_t>(second);
    CHECK(!is_told(packet));
  }
  Bytes mapped = build(f);
  std::fill_n(mapped.begin() + 8, 10, uint8_t{0});
  mapped[18] = mapped[19] = 0xff;
  CHECK(!is_told(mapped));
  context.clear();
}

/// CircleGuard must stop a packet if its destination is a peer's address and its datagram would enter the tunnel again.
static void test_circle() {
  const auto peer = [](bool v6, uint32_t subnet, uint32_t endpoint, bool over_v6) {
    Bytes prefix(16);
    prefix[0] = 0xfd;
    store_be32(&prefix[12], subnet);
    Bytes four(4);
    store_be32(&four[0], subnet);
    Bytes r = v6 ? record(6, 120, prefix, endpoint) : record(4, 24, four, endpoint);
    if (over_v6) move_to_ipv6(r, ipv6(endpoint));
    return r;
  };
  constexpr uint32_t kOutside = 0xc0a84d02, kX = 0x0a050200, kY = 0x0a050300, kZ = 0x0a050400;
  struct Row {
    const char* what;
    uint32_t x, y, z;  ///< the addresses of three peers, each with a subnet
    uint32_t to;       ///< the destination of the packet
    bool is_stopped;
  };
  constexpr Row kRows[] = {
      {"no peer inside", kOutside, kOutside + 1, kOutside + 2, kX + 9, false},
      {"X inside itself, a packet for a container", kX + 9, kOutside, kOutside + 1, kX + 7, false},
      {"X inside itself, its datagram", kX + 9, kOutside, kOutside + 1, kX + 9, true},
      {"X behind Y, its datagram", kY + 9, kOutside, kOutside + 1, kY + 9, false},
      {"X behind Y, a packet for a container of X", kY + 9, kOutside, kOutside + 1, kX + 7, false},
      {"X and Y inside each other, X's datagram", kY + 9, kX + 9, kOutside, kY + 9, true},
      {"X and Y inside each other, Y's datagram", kY + 9, kX + 9, kOutside, kX + 9, true},
      {"three in a ring", kY + 9, kZ + 9, kX + 9, kY + 9, true},
      {"X behind Y behind Z", kY + 9, kZ + 9, kOutside, kY + 9, true},
      {"X behind Y behind Z, Y's datagram", kY + 9, kZ + 9, kOutside, kZ + 9, false},
  };
  for (const bool v6 : {false, true}) {
    for (const Row& row : kRows) {
      context = std::string(row.what) + (v6 ? ", IPv6" : ", IPv4");
      Bytes records = peer(v6, kX, row.x, v6);
      for (const Bytes& more : {peer(v6, kY, row.y, v6), peer(v6, kZ, row.z, v6)}) {
        records.insert(records.end(), more.begin(), more.end());
      }
      PeerTables tables(1, records);
      CircleGuard guard;
      guard.begin(tables.current());
      // The rule must ignore the source and the protocol, because NAT or IPsec may have changed them.
      for (const bool tcp : {false, true}) {
        for (const uint16_t fragment : {uint16_t{0}, uint16_t{0x2000}, uint16_t{5}}) {
          Fields f;
          f.v6 = v6;
          f.tcp = tcp;
          f.destination = row.to;
          f.fragment = fragment;
          Bytes packet = build(f);
          const Packet shape = read(packet);
          const Endpoint* endpoint = tables.current().find(destination_of(packet.data(), shape));
          CHECK(endpoint && guard.stops(*endpoint, packet.data(), shape) == row.is_stopped);
        }
      }
    }
  }
  // IPv4 packets may be in IPv6 datagrams, and the reverse.
  context = "families that carry each other";
  Bytes records = peer(false, kX, kY + 9, true);
  const Bytes other = peer(true, kY, kX + 9, false);
  records.insert(records.end(), other.begin(), other.end());
  PeerTables tables(1, records);
  CircleGuard guard;
  guard.begin(tables.current());
  for (const bool v6 : {false, true}) {
    Fields f;
    f.v6 = v6;
    f.tcp = false;
    f.destination = v6 ? kY + 9 : kX + 9;
    Bytes packet = build(f);
    const Packet shape = read(packet);
    const Endpoint* endpoint = tables.current().find(destination_of(packet.data(), shape));
    CHECK(endpoint && guard.stops(*endpoint, packet.data(), shape));
  }
  context.clear();
}

/// Tests is_for_link() with link-local and multicast destinations at the edges of each range.
static void test_for_link() {
  const auto v4 = [](uint8_t first, uint8_t last) {
    const uint8_t address[4] = {first, 255, 255, last};
    return is_for_link(address, 4);
  };
  CHECK(!v4(223, 255) && v4(224, 0) && v4(239, 255) && !v4(240, 1) && v4(255, 255) && !v4(255, 254) && !v4(10, 255));
  const auto v6 = [](uint8_t first, uint8_t second) {
    const uint8_t address[16] = {first, second};
    return is_for_link(address, 6);
  };
  CHECK(v6(0xff, 0x02) && v6(0xfe, 0x80) && v6(0xfe, 0xbf) && !v6(0xfe, 0x7f) && !v6(0xfe, 0xc0) && !v6(0xfd, 0x80));
}

static void test_peers() {
  for (int round = 0; round < 200; round++) {
    const uint8_t version = random_below(2) ? 4 : 6;
    const uint8_t width = version == 4 ? 32 : 128;
    struct Entry {
      Bytes subnet;
      uint8_t bits;
      uint32_t endpoint;
    };
    std::vector<Entry> entries;
    Bytes records;
    const uint32_t count = random_below(60);
    for (uint32_t i = 0; i < count; i++) {
      Entry entry{Bytes(width / 8), static_cast<uint8_t>(random_below(3) ? width - 8 : random_below(width + 1u)),
                  i + 1};
      for (auto& byte : entry.subnet) byte = static_cast<uint8_t>(random_below(3));
      const Bytes r = record(version, entry.bits, entry.subnet, entry.endpoint);
      records.insert(records.end(), r.begin(), r.end());
      entries.push_back(entry);
    }
    const PeerTables tables(0, records);
    const PeerTable& table = tables.current();
    const auto matches = [](const Entry& entry, const Bytes& address) {
      for (int bit = 0; bit < entry.bits; bit++) {
        const int byte = bit / 8, mask = 0x80 >> bit % 8;
        if ((entry.subnet[static_cast<size_t>(byte)] ^ address[static_cast<size_t>(byte)]) & mask) return false;
      }
      return true;
    };
    for (int probe = 0; probe < 200; probe++) {
      Bytes address(width / 8);
      for (auto& byte : address) byte = static_cast<uint8_t>(random_below(3));
      const Entry* best = nullptr;
      for (const Entry& entry : entries) {
        if (matches(entry, address) && (!best || entry.bits >= best->bits)) best = &entry;
      }
      const Endpoint* found = table.find(version, address.data());
      CHECK((found != nullptr) == (best != nullptr));
      if (found && best) CHECK(found->is_at(ipv4(best->endpoint)));
    }
  }
}

/// A map must find all entries that were put and not removed, however full its pages are. Pages must not change after
/// settle().
static void test_paged_map() {
  for (const uint32_t stride : {1u, 256u, 65'536u}) {
    PagedMap<uint32_t, uint32_t> map;
    std::map<uint32_t, uint32_t> model, before;
    Garbage garbage;
    const PagedMap<uint32_t, uint32_t>::Pages* settled = nullptr;
    const uint32_t keys = 30'000;
    const auto is_as = [&](const auto& pages, const std::map<uint32_t, uint32_t>& expected) {
      size_t wrong = 0;
      for (uint32_t key = 0; key < keys; key++) {
        const auto found = expected.find(key * stride);
        wrong += pages.find(key * stride) != (found == expected.end() ? 0 : found->second);
      }
      return wrong == 0;
    };
    // Fills the map, changes it randomly, and empties it.
    for (int step = 0; step < 12; step++) {
      for (int i = 0; i < 10'000; i++) {
        const uint32_t key = random_below(keys) * stride, most = step < 4 ? 10 : step < 8 ? 2 : 1;
        const uint32_t value = random_below(most) == 0 ? 0 : 1 + random_below(5);
        map.put(key, value, garbage);
        if (value == 0) {
          model.erase(key);
        } else {
          model[key] = value;
        }
      }
      CHECK(map.size() == model.size() && is_as(map, model) && map.longest_run() <= 64);
      std::map<uint32_t, uint32_t> each;
      map.for_each([&](uint32_t key, uint32_t value) { CHECK(each.emplace(key, value).second); });
      CHECK(each == model);
      if (settled) CHECK(is_as(*settled, before));
      if (step % 3 != 0) continue;
      garbage.clear();
      settled = map.pages();
      map.settle();
      before = model;
    }
    PagedMap<uint32_t, uint32_t> moved(std::move(map));
    CHECK(moved.size() == model.size() && is_as(moved, model));
  }
}

/// For up to `most` peers, a look-up must take few probes, regardless of the bits in which their prefixes differ.
static void test_peer_spread(uint32_t most) {
  for (const uint8_t version : {uint8_t{4}, uint8_t{6}}) {
    for (const uint8_t bits : {uint8_t{20}, uint8_t{24}, uint8_t{28}, uint8_t{56}, uint8_t{64}, uint8_t{96}}) {
      if (version == 4 && bits > 32) continue;
      for (const uint32_t count : {100u, 4000u, most}) {
        for (const uint32_t stride : {1u, 3u, 256u}) {
          if (bits == 20 && uint64_t{count} * stride >= 1u << 20) continue;
          Bytes records;
          for (uint32_t i = 0; i < count; i++) {
            Bytes subnet(version == 4 ? 4 : 16);
            const uint64_t number = uint64_t{i} * stride;
            for (int bit = 0; bit < bits && bit < 64; bit++) {
              const int at = bits - 1 - bit;
              if (number >> bit & 1) subnet[static_cast<size_t>(at / 8)] |= static_cast<uint8_t>(0x80 >> at % 8);
            }
            const Bytes r = record(version, bits, subnet, i + 1);
            records.insert(records.end(), r.begin(), r.end());
          }
          CHECK(PeerTables(0, records).longest_run() <= 64);
        }
      }
    }
  }
}

/// Turns a peer's record into one that removes the peer.
static Bytes gone(Bytes record) {
  record[3] = 1;
  return record;
}

/// After any sequence of set() and change(), the table must equal a table made from the remaining records. A peer with
/// an unchanged address must keep its path MTU.
static void test_peer_changes() {
  struct Entry {
    Bytes record;
    size_t learnt;
  };
  for (int round = 0; round < 30; round++) {
    PeerTables tables(1);
    PeerTables::Reader reader = tables.reader(0);
    std::map<Bytes, Entry> model;  // the expected peers, by family, prefix length and subnet
    const auto name = [](const Bytes& r) { return Bytes{r[0], r[1], r[8], r[9], r[10], r[11], r[23]}; };
    const auto random_record = [&] {
      const uint8_t version = random_below(4) ? 4 : 6, width = version == 4 ? 32 : 128;
      // The choice of subnets is small, so that some occur twice and many have the same length.
      const uint8_t bits = random_below(4) ? width : static_cast<uint8_t>(width - 8);
      Bytes subnet(width / 8);
      subnet[0] = 10;
      subnet[2] = static_cast<uint8_t>(random_below(8));
      if (bits == width) subnet.back() = static_cast<uint8_t>(1 + random_below(round % 2 ? 250 : 6));
      Bytes r = record(version, bits, subnet, 0xc0000200 + random_below(20));
      store_be16(&r[6], static_cast<uint16_t>(random_below(3) ? 0 : 1200 + random_below(2)));
      store(&r[56], random_below(5));
      r[40] = static_cast<uint8_t>(random_below(2));
      return r;
    };
    const auto put = [&](std::map<Bytes, Entry>& into, const Bytes& r) {
      const auto said = into.find(name(r)), known = model.find(name(r));
      const Entry* before = said != into.end() ? &said->second : known != model.end() ? &known->second : nullptr;
      const bool is_path_same = before && load<uint32_t>(&before->record[60]) == load<uint32_t>(&r[60]);
      into[name(r)] = {r, is_path_same ? before->learnt : 0};
    };
    for (int step = 0; step < 60; step++) {
      const bool is_whole = random_below(10) == 0;
      Bytes records;
      const auto say = [&](const Bytes& r) { records.insert(records.end(), r.begin(), r.end()); };
      if (is_whole) {
        std::map<Bytes, Entry> next;
        for (const auto& [_, entry] : model) {
          if (random_below(10)) say(entry.record), put(next, entry.record);
        }
        for (uint32_t more = random_below(30); more > 0; more--) {
          const Bytes r = random_record();
          say(r);
          put(next, r);
        }
        model = next;
        tables.set(records);
      } else {
        for (uint32_t more = random_below(step < 10 ? 60 : 4); more > 0; more--) {
          const Bytes r = random_record();
          const bool is_gone = random_below(3) == 0;
          say(is_gone ? gone(r) : r);
          if (is_gone) {
            model.erase(name(r));
          } else {
            put(model, r);
          }
        }
        tables.change(records);
      }
      Bytes left;
      for (const auto& [_, entry] : model) left.insert(left.end(), entry.record.begin(), entry.record.end());
      const PeerTables anew(0, left);
      const PeerTable& table = reader.acquire();
      CHECK(&table == &tables.current());
      CHECK(tables.size() == model.size() && anew.size() == model.size());
      for (int probe = 0; probe < 100; probe++) {
        const Bytes r = random_record();
        const Endpoint *found = table.find(r[0], &r[8]), *expected = anew.current().find(r[0], &r[8]);
        CHECK((found != nullptr) == (expected != nullptr));
        if (found && expected) {
          CHECK(found->to() == expected->to() && found->limit == expected->limit && found->slot == expected->slot &&
                found->encap == expected->encap);
        }
        const Address host = ipv4(0xc0000200 + random_below(24));
        for (const uint8_t version : {uint8_t{4}, uint8_t{6}}) {
          CHECK(table.has_endpoint_at(host, version) == anew.current().has_endpoint_at(host, version));
        }
      }
      for (auto& [_, entry] : model) {
        const Endpoint* found = table.find(entry.record[0], &entry.record[8]);
        if (!found || !found->is_at(Address::v4(load<uint32_t>(&entry.record[60])))) {
          CHECK(false);
          continue;
        }
        CHECK(found->path.bytes() == entry.learnt);
        if (random_below(3) == 0) found->path.learn(entry.learnt = 600 + random_below(900), 1);
      }
      reader.release();
      CHECK(tables.kept() <= 1);
    }
  }
}

/// After any number of changes, set() must remove the peers that its records do not name.
static void test_peer_rounds() {
  PeerTables tables(0, record(4, 24, {10, 5, 2, 0}, 1));
  for (int i = 0; i < 65'535; i++) tables.change({});
  CHECK(tables.size() == 1);
  tables.set({});
  CHECK(tables.size() == 0);
}

/// The memory of an old table must be kept as long as a reader uses that table, and no longer.
static void test_peer_release() {
  PeerTables tables(2);
  PeerTables::Reader first = tables.reader(0), second = tables.reader(1);
  const auto change = [&](uint32_t endpoint) { tables.change(record(4, 24, {10, 5, 2, 0}, endpoint)); };
  const uint8_t address[4] = {10, 5, 2, 9};
  change(1);
  CHECK(tables.kept() == 0);
  const Endpoint* held = first.acquire().find(4, address);
  for (uint32_t endpoint = 2; endpoint < 50; endpoint++) change(endpoint);
  CHECK(tables.kept() == 48 && held->is_at(ipv4(1)));
  CHECK(second.acquire().find(4, address)->is_at(ipv4(49)));
  change(50);
  first.release();
  change(51);
  CHECK(tables.kept() == 2 && second.acquire().find(4, address)->is_at(ipv4(51)));
  change(52);
  CHECK(tables.kept() == 1);
  second.release();
  change(53);
  CHECK(tables.kept() == 0);
  // A peer that changes often must not need more memory than two tables.
  std::set<const Endpoint*> places;
  for (uint32_t endpoint = 60; endpoint < 160; endpoint++) {
    change(endpoint);
    places.insert(tables.current().find(4, address));
  }
  CHECK(places.size() <= 50 + 2);
}

/// The table that a reader has must not change, whatever set() and change() do meanwhile.
static void test_peer_table_stays() {
  constexpr uint32_t kSubnets = 300;
  for (const uint8_t version : {uint8_t{4}, uint8_t{6}}) {
    const auto subnet = [&](uint32_t number) {
      Bytes bytes(version == 4 ? 4 : 16);
      bytes[0] = version == 4 ? 10 : 0xfd;
      bytes[1] = static_cast<uint8_t>(number >> 8);
      bytes[2] = static_cast<uint8_t>(number);
      return bytes;
    };
    const auto said = [&](uint32_t number, uint32_t endpoint) {
      return record(version, version == 4 ? 24 : 64, subnet(number), endpoint);
    };
    PeerTables tables(1);
    for (uint32_t number = 0; number < kSubnets; number += 2) tables.change(said(number, 1 + number));
    PeerTables::Reader reader = tables.reader(0);
    const PeerTable& table = reader.acquire();
    for (int round = 0; round < 200; round++) {
      const uint32_t number = random_below(kSubnets), other = 1'000 + random_below(10);
      switch (random_below(8)) {
        case 0:
          tables.set(said(number, other));
          break;
        case 1:
        case 2:
          tables.change(gone(said(number, 1)));
          break;
        default:
          tables.change(said(number, random_below(2) ? other : 1 + number));
      }
      size_t wrong = 0;
      for (uint32_t each = 0; each < kSubnets; each++) {
        const Endpoint* found = table.find(version, subnet(each).data());
        wrong += each % 2 == 0 ? !found || !found->is_at(ipv4(1 + each)) : found != nullptr;
        wrong += table.has_endpoint_at(ipv4(1 + each), version) != (each % 2 == 0);
      }
      for (uint32_t each = 1'000; each < 1'010; each++) wrong += table.has_endpoint_at(ipv4(each), version);
      CHECK(wrong == 0);
    }
    reader.release();
  }
}

/// Several threads look up peers while the table changes. A sanitizer detects memory that is freed too early. A reader
/// must see all of a change or nothing of it.
static void test_peer_replacement() {
  PeerTables tables(2);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  const auto both = [](uint32_t endpoint) {
    Bytes records = record(4, 24, {10, 5, 2, 0}, endpoint);
    const Bytes other = record(4, 26, {10, 5, 3, 0}, endpoint);
    records.insert(records.end(), other.begin(), other.end());
    return records;
  };
  const auto read_tables = [&](size_t index) {
    PeerTables::Reader reader = tables.reader(index);
    const uint8_t address[4] = {10, 5, 2, 9}, other[4] = {10, 5, 3, 9};
    while (!done.load()) {
      const PeerTable& table = reader.acquire();
      const Endpoint *found = table.find(4, address), *beside = table.find(4, other);
      if ((found != nullptr) != (beside != nullptr)) wrong++;
      if (found && beside) {
        if (!(found->to() == beside->to()) || !table.has_endpoint_at(found->address(), 4)) wrong++;
        found->path.learn(1400, 1);
      }
      reader.release();
    }
  };
  std::thread first(read_tables, 0), second(read_tables, 1);
  for (uint32_t round = 0; round < 3000; round++) {
    const Bytes one =
        record(4, 24, {10, static_cast<uint8_t>(6 + random_below(40)), static_cast<uint8_t>(round), 0}, round);
    switch (random_below(5)) {
      case 0:
        tables.set({});
        break;
      case 1:
        tables.set(both(0xc0a84d02 + random_below(2)));
        break;
      case 2:
        tables.change(both(0xc0a84d02 + random_below(2)));
        break;
      default:
        tables.change(random_below(3) ? one : gone(one));
    }
  }
  done.store(true);
  first.join();
  second.join();
  CHECK(wrong.load() == 0);
}

/// A peer's traffic must be the sum over all loops, and the time of its last packet the latest of all loops.
static void test_traffic() {
  TrafficRows first, second;
  // The slots include the last one of an array, the first one of the next array, and the last one of all.
  for (const uint32_t slot : {1u, 4095u, 4096u, 65'536u, 1'000'000u, TrafficRows::kMaxSlots - 1}) {
    for (TrafficRows* rows : {&first, &second}) rows->make_room(slot + 1);
    Traffic sum;
    first.sum(slot, sum);
    second.sum(slot, sum);
    CHECK(sum.tx_packets == 0 && sum.rx_bytes == 0 && sum.last_received_ms == 0);
    first.add_received(slot, 1, 100, 5);
    sum = {};
    first.sum(slot, sum);
    second.sum(slot, sum);
    CHECK(sum.rx_packets == 1 && sum.rx_bytes == 100 && sum.last_received_ms == 5);
    second.add_received(slot, 2, 200, 7);
    for (const bool is_reversed : {false, true}) {
      sum = {};
      for (const TrafficRows* rows : {is_reversed ? &second : &first, is_reversed ? &first : &second})
        rows->sum(slot, sum);
      CHECK(sum.rx_packets == 3 && sum.rx_bytes == 300 && sum.last_received_ms == 7);
    }
    first.add_sent(slot, 3, 30);
    first.add_sent(slot, 4, 40);
    first.add_received(slot, 1, 1, 9);
    sum = {};
    for (const TrafficRows* rows : {&first, &second}) rows->sum(slot, sum);
    CHECK(sum.tx_packets == 7 && sum.tx_bytes == 70 && sum.last_received_ms == 9);
  }
  // make_room() must keep existing counts.
  for (const uint32_t slot : {1u, 4095u, 4096u, TrafficRows::kMaxSlots - 1}) {
    Traffic sum;
    for (const TrafficRows* rows : {&first, &second}) rows->sum(slot, sum);
    CHECK(sum.tx_packets == 7 && sum.rx_packets == 4);
  }
  CHECK(PeerTables::traffic_slots({}) == 1);
  Bytes records = record(4, 24, {10, 5, 2, 0}, 1);
  store(&records[56], TrafficRows::kMaxSlots - 1);
  CHECK(PeerTables::traffic_slots(records) == TrafficRows::kMaxSlots);
  store(&records[56], TrafficRows::kMaxSlots);
  CHECK(PeerTables::traffic_slots(records) == 1);
  const uint8_t address[] = {10, 5, 2, 9};
  CHECK(PeerTables(0, records).current().find(4, address)->slot == 0);
}

/// An address must have one family, however it was created, and must be found in each network that contains it.
static void test_addresses() {
  const uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1};
  const Address v4 = ipv4(0xc0000201);
  CHECK(v4.is_v4() && v4.ipv4() == htonl(0xc0000201) && v4 && Address::v6(bytes) == v4);
  CHECK(std::memcmp(&v4, bytes, sizeof bytes) == 0);
  for (const size_t at : {size_t{0}, size_t{9}, size_t{10}, size_t{11}}) {
    uint8_t other[16];
    std::memcpy(other, bytes, sizeof other);
    other[at] ^= 1;
    const Address v6 = Address::v6(other);
    CHECK(!v6.is_v4() && v6.ipv4() == 0 && !(v6 == v4) && v6);
    CHECK(!Net::of(ipv4(0), 0).contains(v6));
    CHECK(SocketAddress(v6, htons(53)).address() == v6 && SocketAddress(v6, 0).family() == AF_INET6);
    CHECK(SocketAddress(v6, 0).size() == sizeof(sockaddr_in6));
  }
  CHECK(!Address() && !Address().is_v4() && ipv4(0) && !(ipv4(0) == Address()));
  const SocketAddress to(v4, htons(8285));
  sockaddr_in raw;
  std::memcpy(&raw, to.raw(), sizeof raw);
  CHECK(raw.sin_family == AF_INET && raw.sin_port == htons(8285) && raw.sin_addr.s_addr == htonl(0xc0000201));
  CHECK(to.size() == sizeof raw && to.address() == v4 && to.port() == htons(8285));
  CHECK(to == SocketAddress(v4, htons(8285)) && !(to == SocketAddress(v4, 1)) && !SocketAddress().address());

  for (size_t bits = 0; bits <= 32; bits++) {
    const uint32_t mask = bits == 0 ? 0 : ~0u << (32 - bits), address = static_cast<uint32_t>(rng());
    const Net net = Net::of(ipv4(address), bits);
    for (int i = 0; i < 50; i++) {
      const uint32_t other = address ^ (random_below(2) ? 1u << random_below(32) : 0);
      CHECK(net.contains(ipv4(other)) == ((other & mask) == (address & mask)));
    }
  }
  uint8_t network[16] = {0xfd, 0, 1};
  for (size_t bits = 17; bits <= 128; bits++) {
    const Net net = Net::of(Address::v6(network), bits);
    for (size_t at = 0; at < 128; at++) {
      uint8_t other[16];
      std::memcpy(other, network, sizeof other);
      other[at / 8] = static_cast<uint8_t>(other[at / 8] ^ 0x80 >> at % 8);
      CHECK(net.contains(Address::v6(other)) == (at >= bits));
    }
  }
}

/// A peer's subnet and endpoint may be of different IP families.
static void test_families() {
  const uint8_t v6[16] = {0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (const uint8_t family : {4, 6}) {
    Bytes subnet(16);
    std::copy(std::begin(v6), std::end(v6), subnet.begin());
    Bytes r = record(family, 8, subnet, 0);
    r[2] = 6;
    std::copy(std::begin(v6), std::end(v6), r.begin() + 24);
    const PeerTables tables(0, r);
    const Endpoint* found = tables.current().find(family, v6);
    CHECK(found && found->is_at(Address::v6(v6)) && found->to().port() == htons(8285));
    const uint8_t other = family == 4 ? 6 : 4;
    CHECK(tables.current().has_endpoint_at(Address::v6(v6), family));
    CHECK(!tables.current().has_endpoint_at(Address::v6(v6), other));
    CHECK(!tables.current().has_endpoint_at(ipv4(1), family));
    CHECK(found && found->to().size() == sizeof(sockaddr_in6));
  }
}

/// If false, `new (std::nothrow)` of arrays fails.
static bool has_memory = true;
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return has_memory ? ::operator new[](size) : nullptr;
}

/// A window must accept each counter once and refuse only old ones; a set of all counters says what is right. A counter
/// within kWindow of the greatest one must be accepted, even while the window is small.
static void test_replay() {
  for (int round = 0; round < 6; round++) {
    ReplayWindow window;
    std::set<uint64_t> came;
    uint64_t next = 0;
    const uint64_t start = round < 2 ? 0 : uint64_t{random_below(1 << 30)} << random_below(20);
    for (int i = 0; i < 20'000; i++) {
      const uint64_t steps[] = {1,
                                2,
                                63,
                                64,
                                65,
                                500,
                                8'128,
                                8'192,
                                20'000,
                                ReplayWindow::kBits - 65,
                                ReplayWindow::kWindow,
                                ReplayWindow::kWindow + 1,
                                ReplayWindow::kBits,
                                2'000'000};
      uint64_t counter = i == 0 ? start : next;
      if (random_below(3) > 0) {
        const uint64_t back = random_below(2) ? random_below(200) : steps[random_below(std::size(steps))];
        counter = next > back ? next - back : 0;
      } else if (random_below(20) == 0) {
        counter = next + steps[random_below(round % 2 ? 7 : std::size(steps))];
      }
      const bool is_new = counter >= next || next - counter <= ReplayWindow::kWindow ||
                          counter / 64 + ReplayWindow::kBits / 64 > (next - 1) / 64;
      CHECK(window.accept(counter) == (is_new && came.insert(counter).second));
      next = std::max(next, counter + 1);
    }
  }
}

/// The packets of one loop may be late by as much as the queues hold: half a million packets of seven other loops
/// overtake one of the eighth. Each packet must be accepted exactly once, in any order of the loops.
static void test_replay_lanes() {
  constexpr uint64_t kPassed = 500'000, kWaiting = 5'000;
  ReplayWindow window;
  std::vector<uint64_t> waiting;
  for (uint64_t counter = 0; counter < kPassed; counter++) {
    if (counter % (kPassed / kWaiting) == 0)
      waiting.push_back(counter);
    else
      CHECK(window.accept(counter));
  }
  for (const uint64_t counter : waiting) CHECK(window.accept(counter));
  for (uint64_t counter = 0; counter < kPassed; counter += 997) CHECK(!window.accept(counter));
}

/// A window needs no extra memory for a few packets, then an eighth of a byte per counter, up to 128 KiB. At each size
/// it can be saved and loaded. Invalid bytes must be refused.
static void test_replay_memory() {
  ReplayWindow window;
  uint64_t next = 0;
  for (const uint64_t upto : {1'000u, 1'024u, 1'025u, 9'000u, 130'000u, 1'048'576u, 3'000'000u}) {
    for (; next < upto; next++) CHECK(next % 3 == 0 || window.accept(next));
    const size_t least = std::min<size_t>(next / 8, ReplayWindow::kBits / 8);
    CHECK(window.grown_bytes() <= ReplayWindow::kBits / 8 && window.grown_bytes() <= 2 * next / 8 + 128);
    CHECK(upto <= 1'024 ? window.grown_bytes() == 0 : window.grown_bytes() >= least);
    SecretWriter out;
    window.save(out);
    SecretBytes saved = out.take();
    ReplayWindow loaded;
    SecretReader in(saved);
    loaded.load(in);
    CHECK(in.is_whole() && loaded.grown_bytes() == window.grown_bytes());
    for (uint64_t back = 1; back <= 700; back++) {
      const uint64_t counter = next - back;
      CHECK(loaded.accept(counter) == (counter % 3 == 0));
    }
    for (const uint64_t size : {0ull, 3ull, 8ull, 24ull, 1ull << 15, ~0ull}) {
      std::memcpy(saved.data() + sizeof(uint64_t), &size, sizeof size);
      SecretReader odd(saved);
      ReplayWindow refused;
      refused.load(odd);
      CHECK(!odd.is_whole());
    }
  }
}

/// A saved window must be small: nearly empty if all counters have arrived, and never longer than the window. Loading
/// must restore it for any pattern of gaps, and refuse invalid lengths.
static void test_replay_saved_bytes() {
  for (const uint64_t gap : {0u, 64u, 1'000u, 7u}) {
    for (const uint64_t upto : {0u, 1u, 63u, 64u, 1'000u, 70'001u, 1'048'576u, 1'048'640u, 3'000'001u}) {
      ReplayWindow window;
      const auto arrives = [&](uint64_t counter) { return gap == 0 || counter % gap != 0; };
      for (uint64_t counter = 0; counter < upto; counter++) CHECK(!arrives(counter) || window.accept(counter));
      SecretWriter out;
      window.save(out);
      SecretBytes saved = out.take();
      CHECK(saved.size() <= (gap == 0 ? 64 : ReplayWindow::kBits / 8 + upto / 64 * 4 + 128));
      ReplayWindow loaded;
      SecretReader in(saved);
      loaded.load(in);
      CHECK(in.is_whole());
      for (uint64_t counter = upto > 200'000 ? upto - 200'000 : 0; counter < upto + 200; counter++)
        CHECK(loaded.accept(counter) == (counter >= upto || (!arrives(counter) && window.accept(counter))));
      if (saved.size() < 32) continue;
      for (const uint64_t odd : {~uint64_t{0}, uint64_t{1} << 61, uint64_t{1} << 20}) {
        std::memcpy(saved.data() + 2 * sizeof(uint64_t), &odd, sizeof odd);
        SecretReader wrong(saved);
        ReplayWindow refused;
        refused.load(wrong);
        CHECK(!wrong.is_whole());
      }
    }
  }
  // load() must refuse two runs of words that together are longer than the window.
  for (const uint64_t second : {8u, 9u}) {
    SecretWriter out;
    for (const uint64_t word : {uint64_t{1024}, uint64_t{16}, uint64_t{8}, uint64_t{0}, second, uint64_t{0}})
      out.put(word);
    const SecretBytes saved = out.take();
    SecretReader in(saved);
    ReplayWindow window;
    window.load(in);
    CHECK(in.is_whole() == (second == 8));
  }
}

/// If a window could not grow for lack of memory, and grows later, it must not accept a counter twice. It cannot know
/// whether the counters in between arrived.
static void test_replay_without_memory() {
  for (const uint64_t upto : {1'100u, 5'000u, 100'000u, 2'000'000u}) {
    ReplayWindow window;
    has_memory = false;
    for (uint64_t counter = 0; counter < upto; counter++) CHECK(window.accept(counter));
    CHECK(window.grown_bytes() == 0);
    has_memory = true;
    CHECK(window.accept(upto) && window.grown_bytes() > 0);
    for (uint64_t counter = 0; counter <= upto; counter++) CHECK(!window.accept(counter));
    for (uint64_t counter = upto + 1; counter < upto + 5'000; counter++) CHECK(window.accept(counter));
    CHECK(!window.accept(upto / 2));
  }
}

/// IndexCode must permute indices like the TypeScript code (test/unit/path/backends/wireguard/indices.test.ts has the
/// same values), and decode them. Without a key, indices are only mixed with the secret.
static void test_index_code() {
  uint8_t key[IndexCode::kKeyBytes];
  for (size_t at = 0; at < sizeof key; at++) key[at] = static_cast<uint8_t>(at * 73 + 41);
  const IndexCode code(0x89abcdef, key), plain(0x89abcdef);
  const struct {
    uint32_t number, low, index;
  } known[] = {{0, 0, 0x866a21e1}, {1, 1, 0xe7ce4209}, {7, 0xabc, 0x6b2f096a}, {0xfffff, 0xfff, 0x70319ca6}};
  for (const auto& [number, low, index] : known) CHECK(code.encode(number << 12 | low) == index);
  CHECK(plain.encode(0x7abc) == (0x7abc ^ 0x89abcdef) && plain.decode(0x7abc ^ 0x89abcdef) == 0x7abc);
  for (int i = 0; i < 10'000; i++) {
    const uint32_t value = random_below(1 << 30) << 2 | random_below(4);
    CHECK(code.decode(code.encode(value)) == value);
  }
}

/// An encrypted packet must decrypt, but not if any byte, the counter or the key differs.
static void test_aead() {
  const auto seal = Aead::create(Aead::Way::kSeal), open = Aead::create(Aead::Way::kOpen);
  CHECK(seal && open && seal->key_number() == 0);
  uint8_t bytes[Key::kBytes] = {1};
  const Key key(bytes);
  bytes[0] = 2;
  const Key other(bytes);
  CHECK(!seal->seal(0, {bytes, 0}));  // the Aead has no key yet
  seal->use(1, key);
  for (const size_t size : {0u, 1u, 15u, 16u, 63u, 64u, 65u, 1'424u, 65'000u}) {
    Bytes plain(size);
    for (uint8_t& byte : plain) byte = static_cast<uint8_t>(random_below(256));
    Bytes sealed = plain;
    sealed.resize(size + Aead::kTagBytes);
    const uint64_t counter = uint64_t{random_below(1 << 30)} << random_below(30);
    CHECK(seal->seal(counter, {sealed.data(), size}));
    CHECK(size < 16 || !std::equal(plain.begin(), plain.end(), sealed.begin()));
    const auto opens = [&](uint64_t with, Bytes copy) {
      return open->open(with, {copy.data(), size}) && std::equal(plain.begin(), plain.end(), copy.begin());
    };
    open->use(1, key);
    CHECK(opens(counter, sealed) && opens(counter, sealed) && !opens(counter + 1, sealed));
    for (const size_t at : {size_t{0}, size / 2, size + 15}) {
      Bytes damaged = sealed;
      damaged[at] ^= 0x40;
      CHECK(!opens(counter, damaged));
    }
    open->use(2, other);
    CHECK(open->key_number() == 2 && !opens(counter, sealed));
  }
}

/// Tests the rules of a session, with virtual time.
static void test_session() {
  using Limits = SessionLimits;
  const auto lane = Aead::create(Aead::Way::kSeal), opening = Aead::create(Aead::Way::kOpen);
  const SocketAddress there(ipv4(0xc0000202), to_be16(51820)), elsewhere(ipv4(0xc0000203), to_be16(51820));
  uint64_t pairs = 100;
  std::map<uint32_t, uint64_t> numbers;  // the number of the last pair with each index
  const auto keys = [](bool is_initiator, uint32_t index) {
    return SessionKeys{
        .is_initiator = is_initiator, .own_index = index, .peer_index = index + 50, .send = {}, .receive = {}};
  };
  const auto make = [&](Session& session, bool is_initiator, uint32_t index, int64_t now) {
    session.set_keys(numbers[index] = ++pairs, keys(is_initiator, index), now);
  };
  const auto comes = [&](Session& session, uint32_t index, uint64_t counter, int64_t now, bool is_data = true) {
    return session.accept(numbers[index], counter, is_data, there, now);
  };

  // The initiator of a handshake requests new keys after two minutes, encrypts for three, and sends a request at most
  // every five seconds.
  {
    Session session;
    session.send_to(there, false);
    int64_t now = 1'000'000;
    Session::Grant grant = session.begin_seal(*lane, true, now);
    CHECK(!grant.is_granted && grant.wants_handshake);
    CHECK(!session.begin_seal(*lane, true, now + 4'999).wants_handshake);
    CHECK(session.begin_seal(*lane, true, now + 5'000).wants_handshake);
    make(session, true, 1, now);
    grant = session.begin_seal(*lane, true, now + Limits::kRekeyAfterMs - 1);
    CHECK(grant.is_granted && grant.counter == 0 && grant.peer_index == 51 && !grant.wants_handshake);
    CHECK(lane->key_number() == pairs);
    grant = session.begin_seal(*lane, true, now + Limits::kRekeyAfterMs);
    CHECK(grant.is_granted && grant.counter == 1 && grant.wants_handshake);
    CHECK(session.begin_seal(*lane, true, now + Limits::kRejectAfterMs - 1).is_granted);
    CHECK(!session.begin_seal(*lane, true, now + Limits::kRejectAfterMs).is_granted);
    CHECK(!session.begin_open(*opening, 1, 0, now + Limits::kRejectAfterMs - 1));
    CHECK(session.begin_open(*opening, 1, 0, now + Limits::kRejectAfterMs) == k_rx_drop_no_session);
    CHECK(session.begin_open(*opening, 1, Limits::kRejectAfterMessages, now) == k_rx_drop_replay);
  }
  {  // The responder of a handshake never requests a new one because of the age of its keys.
    Session session;
    make(session, false, 1, 1'000);
    CHECK(!session.begin_seal(*lane, true, 1'000).is_granted);
    CHECK(comes(session, 1, 0, 1'000).is_confirmed && !comes(session, 1, 1, 1'000).is_confirmed);
    CHECK(!session.begin_seal(*lane, true, 1'000 + Limits::kRejectAfterMs - 1).wants_handshake);
  }
  {  // An initiator that only receives data requests a handshake shortly before its keys expire.
    Session session;
    make(session, true, 1, 1'000);
    CHECK(!comes(session, 1, 0, 1'000 + 164'999).wants_handshake);
    CHECK(comes(session, 1, 1, 1'000 + 165'000).wants_handshake);
    CHECK(!comes(session, 1, 2, 1'000 + 169'999).wants_handshake);
    CHECK(comes(session, 1, 3, 1'000 + 170'000).wants_handshake);
    make(session, true, 2, 1'000 + 171'000);
    CHECK(!comes(session, 1, 4, 1'000 + 176'000).wants_handshake);
  }
  {  // Packets in flight must decrypt with the previous of three pairs; a fourth pair removes the oldest pair.
    Session session;
    make(session, true, 1, 1'000);
    make(session, true, 2, 2'000);
    CHECK(session.begin_seal(*lane, true, 2'000).peer_index == 52);
    make(session, false, 3, 3'000);
    CHECK(!session.begin_open(*opening, 1, 0, 3'000) && !session.begin_open(*opening, 2, 0, 3'000));
    CHECK(session.begin_seal(*lane, true, 3'000).peer_index == 52);
    CHECK(comes(session, 3, 0, 3'000).is_confirmed && session.begin_seal(*lane, true, 3'000).peer_index == 53);
    CHECK(!comes(session, 2, 0, 3'000).reason && comes(session, 2, 0, 3'000).reason == k_rx_drop_replay);
    CHECK(!comes(session, 3, 1, 3'000)
               .reason);  // a late packet of the previous pair does not mean that the peer still uses that pair
    // If both ends initiate simultaneously, the peer's pair must be kept in addition to this host's pair.
    make(session, false, 4, 4'000);
    make(session, true, 5, 4'000);
    CHECK(session.begin_seal(*lane, true, 4'000).peer_index == 55);
    for (const uint32_t index : {3, 4, 5}) CHECK(!session.begin_open(*opening, index, 0, 4'000));
    CHECK(comes(session, 4, 0, 4'000).is_confirmed && session.begin_seal(*lane, true, 4'000).peer_index == 55);
    CHECK(session.begin_open(*opening, 3, 0, 4'000).has_value());
    // Both ends initiate again. Until the peer knows this host's new pair of keys, the peer encrypts with its own new
    // pair, not with this host's old pair.
    make(session, true, 6, 5'000);
    CHECK(!session.begin_open(*opening, 4, 1, 5'000) && session.begin_open(*opening, 5, 0, 5'000));
    CHECK(!comes(session, 6, 0, 5'000).reason);
    make(session, true, 7, 6'000);
    CHECK(!session.begin_open(*opening, 6, 1, 6'000) && session.begin_open(*opening, 4, 1, 6'000));
  }
  {  // If the index of an older pair is used again, the index must stand for the new pair only. A packet that the older
     // pair decrypted just before must count neither for the new pair, nor as the confirmation that the peer has it.
    Session session;
    make(session, true, 1, 1'000);
    CHECK(!session.begin_open(*opening, 1, 7, 1'000));
    const uint64_t older = opening->key_number();
    make(session, false, 1, 2'000);
    CHECK(session.accept(older, 7, true, elsewhere, 2'000).reason == k_rx_drop_no_session);
    CHECK(!session.begin_seal(*lane, true, 2'000).is_granted && !(session.to() == elsewhere));
    CHECK(!session.begin_open(*opening, 1, 7, 2'000) && opening->key_number() == pairs);
    CHECK(comes(session, 1, 7, 2'000).is_confirmed);
  }
  // Data without a reply for 15 seconds must trigger a handshake. Received data must trigger a keepalive after 10
  // seconds.
  {
    Session session;
    make(session, true, 1, 1'000);
    CHECK(session.begin_seal(*lane, true, 1'000).is_granted);
    CHECK(!session.look(0, 15'999).wants_handshake && session.look(0, 16'000).wants_handshake);
    CHECK(!session.look(0, 40'000).wants_handshake);
    CHECK(session.begin_seal(*lane, true, 41'000).is_granted);
    comes(session, 1, 0, 42'000);
    CHECK(!session.look(0, 51'999).keepalive && session.look(0, 52'000).keepalive);
    CHECK(session.begin_seal(*lane, false, 52'000).is_granted);
    CHECK(!session.look(0, 90'000).keepalive && !session.look(0, 90'000).wants_handshake);
    comes(session, 1, 1, 90'000, false);  // the peer expects no reply to a keepalive
    CHECK(!session.look(0, 110'000).keepalive);
    CHECK(!session.look(25'000, 114'999).keepalive && session.look(25'000, 115'000).keepalive);
  }
  // With a persistent keepalive, a handshake must be requested even if no data is sent, provided that the peer has an
  // address.
  {
    Session session;
    CHECK(!session.look(25'000, 100'000).wants_handshake);
    session.send_to(there, false);
    CHECK(session.look(25'000, 100'000).wants_handshake && !session.look(25'000, 101'000).wants_handshake);
  }
  {  // The session must follow the source address of authenticated packets, and return to the address of a new record.
    Session session;
    session.send_to(there, false);
    make(session, true, 1, 1'000);
    CHECK(!session.accept(pairs, 0, true, there, 1'000).has_moved);
    CHECK(session.accept(pairs, 1, true, elsewhere, 1'000).has_moved && session.to() == elsewhere);
    CHECK(session.accept(pairs, 1, true, there, 1'000).reason == k_rx_drop_replay && session.to() == elsewhere);
    session.send_to(there, false);
    CHECK(session.to() == there);
  }
  {  // Packets of a peer that sends from any port must not change its address.
    Session session;
    session.send_to(there, true);
    make(session, true, 1, 1'000);
    const SocketAddress lane(there.address(), to_be16(52'060));
    CHECK(!session.accept(pairs, 0, true, lane, 1'000).has_moved && session.to() == there);
    CHECK(!session.accept(pairs, 1, true, elsewhere, 1'000).has_moved && session.to() == there);
    session.send_to(elsewhere, true);
    CHECK(session.to() == elsewhere);
    session.forget();
    session.send_to(there, false);
    make(session, true, 1, 1'000);
    CHECK(session.accept(pairs, 0, true, lane, 1'000).has_moved && session.to() == lane);
    session.send_to(there, true);
    session.forget();
    make(session, true, 1, 1'000);
    CHECK(session.accept(pairs, 0, true, lane, 1'000).has_moved && session.to() == lane);
  }
  {  // Waiting packets and keys must expire.
    Session session;
    for (size_t i = 0; i < Limits::kMaxStaged; i++) CHECK(session.stage({{}, static_cast<int64_t>(i), 0}));
    CHECK(!session.stage({{}, 500, 0}));
    CHECK(session.look(0, Limits::kStagedMs + 9).expired == 10 && session.stage({{}, 500, 0}));
    CHECK(session.look(0, Limits::kStagedMs + 200).expired == Limits::kMaxStaged - 10);
    CHECK(session.take_staged().size() == 1 && session.take_staged().empty());
    make(session, true, 1, 1'000);
    session.look(0, 1'000 + Limits::kRejectAfterMs - 1);
    CHECK(session.accept(pairs, 0, true, there, 1'000).reason != k_rx_drop_no_session);
    session.look(0, 1'000 + Limits::kRejectAfterMs);
    CHECK(session.accept(pairs, 1, true, there, 1'000).reason == k_rx_drop_no_session);
  }
  {
    Session session;
    make(session, true, 1, 1'000);
    CHECK(session.stage({{}, 1'000, 0}));
    session.forget();
    CHECK(!session.begin_seal(*lane, true, 1'000).is_granted && session.take_staged().empty());
  }
  {  // After forget() a session must be empty, and must decrypt with none of its three pairs of keys.
    Session session;
    make(session, true, 1, 1'000);
    make(session, true, 2, 1'000);
    make(session, false, 3, 1'000);
    session.expect(Session::Expected::kResponse, 4);
    for (const uint32_t index : {1, 2, 3}) CHECK(!session.begin_open(*opening, index, 0, 1'000));
    session.forget();
    for (const uint32_t index : {1, 2, 3}) CHECK(session.begin_open(*opening, index, 0, 1'000) == k_rx_drop_no_session);
    CHECK(!session.expects(Session::Expected::kResponse, 4) && session.is_empty());
  }
}

/// A pair must encrypt up to the last counter, and must neither encrypt nor decrypt with the counters above it.
static void test_last_counter() {
  using Limits = SessionLimits;
  constexpr uint64_t kLast = Limits::kRejectAfterMessages - 1, kSealed = 4'711;
  constexpr int64_t kNowMs = 1'000;
  const auto lane = Aead::create(Aead::Way::kSeal), opening = Aead::create(Aead::Way::kOpen);
  const SocketAddress there(ipv4(0xc0000202), to_be16(51820));
  Session older;
  older.set_keys(1, {.is_initiator = true, .own_index = 7, .send = {}, .receive = {}}, kNowMs);
  for (uint64_t i = 0; i < kSealed; i++) older.begin_seal(*lane, true, kNowMs);
  SecretWriter out;
  older.save(out);
  SecretBytes saved = out.take();
  // The saved counter is replaced by the last one, because no test can encrypt 2^64 packets.
  uint8_t bytes[sizeof kSealed];
  store(bytes, kSealed);
  const auto at = std::search(saved.begin(), saved.end(), std::begin(bytes), std::end(bytes));
  CHECK(at != saved.end() && std::search(at + 1, saved.end(), std::begin(bytes), std::end(bytes)) == saved.end());
  store(&*at, kLast);
  SecretReader in(saved);
  Session session;
  session.load(
      in, [] { return uint64_t{1}; }, [](size_t, StagedBytes&) { return true; }, 0, kNowMs);
  CHECK(in.is_whole());
  CHECK(!session.begin_open(*opening, 7, kLast, kNowMs));
  CHECK(!session.accept(1, kLast, true, there, kNowMs).reason);
  CHECK(session.accept(1, kLast, true, there, kNowMs).reason == k_rx_drop_replay);
  CHECK(session.accept(1, 0, true, there, kNowMs).reason == k_rx_drop_replay);
  CHECK(!session.accept(1, kLast - 1, true, there, kNowMs).reason);
  for (const uint64_t counter : {kLast + 1, UINT64_MAX}) {
    CHECK(session.begin_open(*opening, 7, counter, kNowMs) == k_rx_drop_replay);
  }
  const Session::Grant last = session.begin_seal(*lane, true, kNowMs);
  CHECK(last.is_granted && last.counter == kLast && last.wants_handshake);
  const Session::Grant refused = session.begin_seal(*lane, true, kNowMs + Limits::kRequestEveryMs);
  CHECK(!refused.is_granted && refused.wants_handshake && !session.may_seal(kNowMs));
}

/// StagedBytes must grant bytes up to exactly the limit, and must free its bytes when it is destroyed or overwritten.
static void test_staged_bytes() {
  std::atomic<size_t> taken{0};
  StagedBytes first, second;
  CHECK(StagedBytes::take(taken, 100, 60, first) && StagedBytes::take(taken, 100, 40, second) && taken == 100);
  StagedBytes third;
  CHECK(!StagedBytes::take(taken, 100, 1, third) && taken == 100);
  {
    StagedBytes moved(std::move(first));
    third = std::move(second);
    CHECK(taken == 100);
  }
  CHECK(taken == 40 && StagedBytes::take(taken, 100, 60, first));
  third = {};
  CHECK(taken == 60);
}

/// A session must be found by its number and by the index in a datagram, while other threads create sessions.
static void test_sessions() {
  std::atomic<int> mail{0}, lane{0};
  Sessions sessions(
      0x12345678, [&] { mail++; }, [&] { lane++; });
  const auto of = [](uint8_t third, uint32_t number) {
    Bytes r = record(4, 24, {10, 5, third, 0}, 0xc0000202);
    store_le32(&r[40], number);
    return r;
  };
  for (const uint32_t number : {1u, 255u, 256u, Sessions::kMaxSessions - 1}) {
    CHECK(!sessions.of(number) || number == 255);
    sessions.keep(of(2, number));
    CHECK(sessions.of(number) && sessions.of(number)->to().address() == ipv4(0xc0000202));
    CHECK(sessions.number_of_index(((number << Sessions::kPairBits) | 0xabc) ^ 0x12345678) == number);
  }
  for (const uint32_t number : {0u, Sessions::kMaxSessions, UINT32_MAX}) {
    sessions.keep(of(2, number));
    sessions.set_keys(number, {}, 1'000);
    sessions.forget(number);
    CHECK(!sessions.of(number));
  }
  CHECK(mail == 0 && lane == 0 && sessions.take_ready().empty());
  sessions.for_each([](uint32_t, const Session& session) { CHECK(session.is_empty()); });
  sessions.set_keys(600, {.is_initiator = true, .send = {}, .receive = {}}, 1'000);
  sessions.set_keys(601, {.send = {}, .receive = {}}, 1'000);
  CHECK(lane == 1 && (sessions.take_ready() == std::vector<uint32_t>{600}) && sessions.take_ready().empty());

  std::atomic<bool> done{false};
  std::atomic<uint64_t> carried{0};
  std::vector<std::thread> lanes;
  for (int i = 0; i < 2; i++) {
    lanes.emplace_back([&] {
      const auto sealing = Aead::create(Aead::Way::kSeal), opening = Aead::create(Aead::Way::kOpen);
      uint64_t counter = 0;
      const SocketAddress from(ipv4(0xc0000205), 1);
      while (!done.load()) {
        for (const uint32_t number : {1u, 2u, 300u}) {
          Session* session = sessions.of(number);
          if (!session) continue;
          const Session::Grant grant = session->begin_seal(*sealing, true, 2'000);
          if (grant.is_granted) carried++;
          if (grant.wants_handshake) sessions.mailbox().want(number);
          if (!session->begin_open(*opening, number, counter++, 2'000)) {
            session->accept(opening->key_number(), counter, true, from, 2'000);
          }
          session->stage({{1, 2, 3}, 2'000, 0});
          session->look(1'000, 2'000);
        }
        sessions.take_ready();
      }
    });
  }
  for (uint32_t round = 0; round < 2'000 || carried < 50; round++) {
    const uint32_t number = std::array{1u, 2u, 300u}[round % 3];
    sessions.keep(of(3, number));
    sessions.set_keys(number, {.is_initiator = round % 2 == 0, .own_index = number, .send = {}, .receive = {}}, 1'000);
    if (round % 50 == 0) sessions.forget(number);
    sessions.mailbox().take(1);
  }
  done.store(true);
  for (std::thread& each : lanes) each.join();
}

/// Answers to one session must not use the space for answers to another session, from any sender address.
static void test_mailbox() {
  using enum Mailbox::Origin;
  Mailbox mailbox([] {});
  const Bytes response(92, 2), cookie(64, 3);
  const auto at = [](uint32_t host) { return SocketAddress(ipv4(0xc0000200 + host), to_be16(51820)); };
  size_t places = 0;
  for (uint32_t host = 1; host < 200; host++) places += mailbox.post(at(host), response, kAsked, 7);
  CHECK(places == Mailbox::kPlacesOfSession);
  CHECK(mailbox.post(at(1), cookie, kAsked, 7) && !mailbox.post(at(1), cookie, kAsked, 7));
  CHECK(mailbox.post(at(1), response, kAsked, 8) && !mailbox.post(at(1), response, kAsked, 8));
  // Each host may have one waiting message that answers no session.
  for (uint32_t host = 1; host < 200; host++) CHECK(mailbox.post(at(host), response, kOther));
  CHECK(!mailbox.post(at(1), response, kOther));
  CHECK(mailbox.take(0).control_messages.size() == Mailbox::kPlacesOfSession + 2);
}

/// The mailbox must ring once until JavaScript takes the mail, however many packets report the same.
static void test_mailbox_rings() {
  size_t rung = 0;
  Mailbox mailbox([&] { rung++; });
  const auto at = [](uint16_t port) { return SocketAddress(ipv4(0xc0000201), to_be16(port)); };
  for (uint16_t port = 1; port <= 1'000; port++) mailbox.moved(7, at(port));
  for (uint32_t session = 1; session <= 3; session++) {
    mailbox.want(session);
    mailbox.confirm(session);
  }
  CHECK(mailbox.post(at(1), Bytes(92, 2), Mailbox::Origin::kAsked, 7));
  CHECK(rung == 1);
  const Mailbox::Mail mail = mailbox.take(0);
  CHECK(mail.moved.size() == 1 && mail.moved[0].to == at(1'000));
  CHECK(mail.wanted.size() == 3 && mail.confirmed.size() == 3);
  CHECK(mailbox.take(0).moved.empty());
  mailbox.want(1);
  CHECK(rung == 2);
}

/// The next engine must continue the saved sessions that its records name. Invalid bytes must yield no sessions.
static void test_saved_sessions() {
  using Limits = SessionLimits;
  constexpr uint32_t kSecret = 0x12345678, kNamed = 7, kOther = 600;
  constexpr int64_t kMadeMs = 10'000, kSavedMs = 100'000;
  int rung = 0;
  const auto none = [] {};
  const auto fresh = [&] {
    return std::make_unique<Sessions>(
        kSecret, [&] { rung++; }, none);
  };
  const auto naming = [](std::vector<uint32_t> numbers) {
    Bytes all;
    for (const uint32_t number : numbers) {
      Bytes r = record(4, 24, {10, 5, static_cast<uint8_t>(all.size() / sizeof(PeerRecord)), 0}, 0xc0000202);
      store_le32(&r[40], number);
      r[offsetof(PeerRecord, slot)] = 9;
      all.insert(all.end(), r.begin(), r.end());
    }
    return all;
  };
  const SocketAddress there(ipv4(0xc0000202), to_be16(51820));
  const auto lane = Aead::create(Aead::Way::kSeal), opening = Aead::create(Aead::Way::kOpen);
  const auto key = [](uint8_t byte) { return Key(Bytes(Key::kBytes, byte).data()); };
  const auto pair = [&](bool is_initiator, uint32_t index) {
    const auto byte = static_cast<uint8_t>(index);
    return SessionKeys{is_initiator, index, index + 50, key(byte), key(static_cast<uint8_t>(byte + 100))};
  };
  /// Accepts a packet if there are keys for it.
  const auto comes = [&](Session& session, uint32_t index, uint64_t counter) {
    const auto refused = session.begin_open(*opening, index, counter, kSavedMs);
    return refused ? Session::Accepted{.reason = refused}
                   : session.accept(opening->key_number(), counter, true, there, kSavedMs);
  };
  const auto saved_with = [&](size_t packets) {
    auto sessions = fresh();
    sessions->keep(naming({kNamed, kOther}));
    for (const uint32_t number : {kNamed, kOther}) {
      sessions->set_keys(number, pair(true, number), kMadeMs);
      sessions->set_keys(number, pair(false, number + 1), kMadeMs + 1);
    }
    Session& session = *sessions->of(kNamed);
    for (int i = 0; i < 5; i++) CHECK(session.begin_seal(*lane, true, kSavedMs).counter == static_cast<uint64_t>(i));
    for (const uint64_t counter : {0, 1, 5}) CHECK(!comes(session, kNamed, counter).reason);
    for (size_t i = 0; i < packets; i++) CHECK(session.stage({Bytes(Limits::kAroundBytes + i), kSavedMs, 3}));
    sessions->mailbox().post(there, Bytes(92, 2), Mailbox::Origin::kAsked);
    sessions->mailbox().post(there, Bytes(148, 1), Mailbox::Origin::kOther);
    sessions->mailbox().confirm(kOther);
    sessions->mailbox().want(kOther);
    sessions->mailbox().moved(kNamed, there);
    return sessions->save();
  };
  const SecretBytes saved = saved_with(2);

  rung = 0;
  auto heir = fresh();
  heir->keep(naming({kNamed}));
  CHECK(heir->take_over(saved, naming({kNamed}), kSavedMs) && rung > 0);
  Session& session = *heir->of(kNamed);
  CHECK(session.to().address() == ipv4(0xc0000202));
  const Session::Grant grant = session.begin_seal(*lane, true, kSavedMs);
  CHECK(grant.is_granted && grant.counter == 5 && grant.peer_index == kNamed + 50);
  Bytes text(10 + Aead::kTagBytes, 4);
  CHECK(lane->seal(1, {text.data(), 10}));
  Aead& reader = *opening;
  reader.use(1'000'000, key(kNamed));
  CHECK(reader.open(1, {text.data(), 10}));  // it must be encrypted with the sending key of that pair
  CHECK(comes(session, kNamed, 1).reason == k_rx_drop_replay);
  CHECK(comes(session, kNamed, 5).reason == k_rx_drop_replay);
  CHECK(!comes(session, kNamed, 3).reason);
  CHECK((heir->take_ready() == std::vector<uint32_t>{kNamed}));
  const std::vector<Staged> waiting = session.take_staged();
  CHECK(waiting.size() == 2 && waiting[1].datagram.size() == Limits::kAroundBytes + 1 && waiting[1].slot == 9);
  // The pairs must keep their age, and the peer's pair must still be unconfirmed.
  CHECK(session.begin_seal(*lane, true, kMadeMs + Limits::kRejectAfterMs - 1).wants_handshake);
  CHECK(!session.begin_seal(*lane, true, kMadeMs + Limits::kRejectAfterMs).is_granted);
  CHECK(comes(session, kNamed + 1, 0).is_confirmed);
  CHECK(session.begin_seal(*lane, true, kSavedMs).peer_index == kNamed + 51);
  // A session that no record names must be dropped.
  CHECK(!heir->of(kOther) || heir->of(kOther)->is_empty());
  const Mailbox::Mail mail = heir->mailbox().take(9);
  CHECK(mail.control_messages.size() == 2 && mail.control_messages[0].size == 92 &&
        mail.control_messages[1].bytes[0] == 1);
  CHECK((mail.confirmed == std::vector<uint32_t>{kOther}) && mail.wanted.empty());
  CHECK(mail.moved.size() == 1 && mail.moved[0].session == kNamed && mail.moved[0].to == there);

  // If the saved bytes are truncated or changed, all of them must be refused.
  const auto is_refused_at = [&](int64_t now_ms, const SecretBytes& bytes) {
    auto sessions = fresh();
    sessions->keep(naming({kNamed, kOther}));
    const bool taken = sessions->take_over(bytes, naming({kNamed, kOther}), now_ms);
    if (taken) return false;
    for (const uint32_t number : {kNamed, kOther}) {
      CHECK(sessions->of(number)->is_empty() && sessions->of(number)->to().address() == ipv4(0xc0000202));
      CHECK(!sessions->of(number)->begin_seal(*lane, true, kSavedMs).is_granted);
    }
    CHECK(sessions->take_ready().empty() && sessions->mailbox().take(9).control_messages.empty());
    return true;
  };
  const auto is_refused = [&](const SecretBytes& bytes) { return is_refused_at(kSavedMs, bytes); };
  CHECK(!is_refused(saved) && is_refused({}));
  for (size_t size = 0; size < saved.size(); size += size < 64 || size + 64 > saved.size() ? 1 : 13) {
    CHECK(is_refused({saved.begin(), saved.begin() + static_cast<ptrdiff_t>(size)}));
  }
  SecretBytes longer = saved, another = saved;
  longer.push_back(0);
  another[0] ^= 2;
  CHECK(is_refused(longer) && is_refused(another));
  // Saved times that are in the future must be refused.
  CHECK(is_refused_at(kSavedMs - 1, saved));
  CHECK(!is_refused(saved_with(Limits::kMaxStaged)));
  // If both ends initiated simultaneously, the later pair must stay the current one.
  for (const bool ours_is_later : {false, true}) {
    auto sessions = fresh();
    sessions->keep(naming({kNamed}));
    sessions->set_keys(kNamed, pair(!ours_is_later, ours_is_later ? 2 : 1), kMadeMs);
    sessions->set_keys(kNamed, pair(ours_is_later, ours_is_later ? 1 : 2), kMadeMs + 1);
    const SecretBytes bytes = sessions->save();
    auto next = fresh();
    next->keep(naming({kNamed}));
    CHECK(next->take_over(bytes, naming({kNamed}), kSavedMs));
    CHECK(comes(*next->of(kNamed), 2, 0).is_confirmed);
    CHECK(next->of(kNamed)->begin_seal(*lane, true, kSavedMs).peer_index == (ours_is_later ? 51u : 52u));
  }
  {
    SecretWriter small;
    Session one;
    one.stage({Bytes(Limits::kAroundBytes - 1), kSavedMs, 0});
    one.save(small);
    const SecretBytes bytes = small.take();
    SecretReader in(bytes);
    Session two;
    two.load(
        in, [] { return uint64_t{1}; }, [](size_t, StagedBytes&) { return true; }, 0, kSavedMs);
    CHECK(!in.is_good() && two.is_empty());
  }
  // Random bytes must not cause a read out of bounds. If they are accepted, the sessions must be usable.
  for (int round = 0; round < 3'000; round++) {
    SecretBytes junk = saved;
    for (int changes = 1 + static_cast<int>(random_below(4)); changes > 0; changes--) {
      junk[random_below(random_below(2) == 0 ? 128 : junk.size())] = static_cast<uint8_t>(random_below(256));
    }
    auto sessions = fresh();
    sessions->keep(naming({kNamed, kOther}));
    sessions->take_over(junk, naming({kNamed, kOther}), kSavedMs);
    for (const uint32_t number : {kNamed, kOther}) {
      Session& any = *sessions->of(number);
      any.begin_seal(*lane, true, kSavedMs);
      for (const uint32_t index : {number, number + 1}) {
        comes(any, index, 9);
      }
      any.look(1'000, kSavedMs);
      any.take_staged();
    }
    sessions->mailbox().take(9);
  }
}

static void test_endpoints() {
  Bytes records;
  for (const uint32_t endpoint : {0xc0000205u, 0xc0000202u, 0xc0000205u}) {
    const Bytes r = record(4, 24, {10, 5, static_cast<uint8_t>(records.size() / sizeof(PeerRecord)), 0}, endpoint);
    records.insert(records.end(), r.begin(), r.end());
  }
  const PeerTables tables(0, records);
  const PeerTable& table = tables.current();
  for (const auto& [address, is_there] :
       {std::pair{0xc0000202u, true}, {0xc0000205u, true}, {0xc0000203u, false}, {0x050200c0u, false}, {0u, false}}) {
    CHECK(table.has_endpoint_at(ipv4(address), 4) == is_there && !table.has_endpoint_at(ipv4(address), 6));
  }
  const uint8_t second[] = {10, 5, 1, 9};
  CHECK(table.find(4, second)->is_at(ipv4(0xc0000202)) && !table.find(4, second)->is_at(ipv4(0xc0000205)));
  // A limit below the packet size that always fits must be ignored.
  for (const uint16_t limit : {uint16_t{0}, uint16_t{499}, uint16_t{500}, uint16_t{65535}}) {
    Bytes limited = record(4, 24, {10, 5, 1, 0}, 0xc0000202);
    store_be16(&limited[6], limit);
    CHECK(PeerTables(0, limited).current().find(4, second)->limit == (limit >= 500 ? limit : 0));
  }
  Bytes v6 = record(4, 24, {10, 5, 1, 0}, 0xc0000202);
  move_to_ipv6(v6, ipv6(7));
  const PeerTables tables_v6(0, v6);
  const PeerTable& by_v6 = tables_v6.current();
  CHECK(!by_v6.has_endpoint_at(ipv4(0xc0000202), 4) && !by_v6.find(4, second)->is_at(ipv4(0xc0000202)));
  // Both addresses of a peer must be found as long as a record has them, whichever of them is the destination of
  // datagrams.
  const auto has = [&](const PeerTables& of, const Address& address) {
    const bool is_at = of.current().find(4, second)->is_at(address);
    CHECK(of.current().has_endpoint_at(address, 4) == is_at);
    return is_at;
  };
  const Address four = ipv4(0xc0000202), six = ipv6(7);
  Bytes by_four = record(4, 24, {10, 5, 1, 0}, 0xc0000202), by_six = by_four;
  const Bytes alone = by_four;
  for (Bytes* each : {&by_four, &by_six}) store(&(*each)[24], six);
  by_six[2] = 6;
  PeerTables both(0, by_four);
  CHECK(has(both, four) && has(both, six) && !has(both, ipv6(8)) && !has(both, Address()));
  CHECK(both.current().find(4, second)->to().family() == AF_INET);
  both.change(by_six);
  CHECK(has(both, four) && has(both, six) && both.current().find(4, second)->to().family() == AF_INET6);
  both.change(alone);
  CHECK(has(both, four) && !has(both, six));
  both.set(by_six);
  both.set({});
  CHECK(!both.current().has_endpoint_at(four, 4) && !both.current().has_endpoint_at(six, 4));
}

/// Returns an IPv6 address that has this number in both halves.
static Address v6_of(uint32_t number) { return Address::of_words(uint64_t{number} << 32 | 0xfd, number); }

/// Each unknown sender must be reported once, with fields that belong together, while another thread notes senders.
static void test_strangers() {
  {
    UnknownSenders unknown_senders;
    size_t told = 0;
    const auto count = [&](const UnknownSender&) { told++; };
    const Address other = v6_of(4);
    unknown_senders.note({ipv4(1), ipv4(2), ipv4(3), k_rx_drop_destination});
    unknown_senders.note({ipv4(1), ipv4(9), ipv4(9), k_rx_drop_destination});
    unknown_senders.note({ipv4(1), ipv4(5), ipv4(6), k_rx_drop_spoofed_source});
    unknown_senders.note({other, v6_of(2), v6_of(3), k_rx_drop_unknown_sender});
    bool first = false, second = false, third = false;
    unknown_senders.take([&](const UnknownSender& s) {
      const bool is_first = s.source == ipv4(2) && s.destination == ipv4(3) && s.reason == k_rx_drop_destination;
      const bool is_second = s.source == ipv4(5) && s.destination == ipv4(6) && s.reason == k_rx_drop_spoofed_source;
      first |= s.from == ipv4(1) && is_first;
      second |= s.from == ipv4(1) && is_second;
      third |= s.from == other && s.source == v6_of(2) && s.destination == v6_of(3);
    });
    CHECK(first && second && third);
    unknown_senders.take(count);
    CHECK(told == 0);
    unknown_senders.note({ipv4(1), ipv4(2), ipv4(3), k_rx_drop_destination});
    unknown_senders.take(count);
    CHECK(told == 1);
    // Of many senders only a few are reported, and the last one must be among them.
    told = 0;
    bool last = false;
    for (uint32_t i = 0; i < 100'000; i++) unknown_senders.note({ipv4(i), ipv4(i), ipv4(i), k_rx_drop_unknown_sender});
    unknown_senders.take([&](const UnknownSender& s) {
      told++;
      last |= s.from == ipv4(99'999);
    });
    CHECK(told == 64 && last);
  }
  UnknownSenders unknown_senders;
  std::atomic<bool> done{false};
  std::thread thread([&] {
    for (uint32_t i = 0; !done.load(); i++) {
      const uint32_t from = i % 300;
      unknown_senders.note({v6_of(from), v6_of(~from), v6_of(from), k_rx_drop_destination});
    }
  });
  size_t wrong = 0, told = 0;
  while (told < 3000) {
    unknown_senders.take([&](const UnknownSender& s) {
      told++;
      const auto from = static_cast<uint32_t>(s.from.low());
      wrong += !(s.source == v6_of(~from)) || !(s.destination == s.from) || s.reason != k_rx_drop_destination;
    });
  }
  done.store(true);
  thread.join();
  CHECK(wrong == 0);
}

/// Tests which fields of a drop are kept, how many drops are kept, and how many of a flood.
static void test_drops() {
  static int64_t now_us;
  now_us = 5'000'000;
  std::vector<uint64_t> row(kCounterCount);
  Drops drops(CounterRow(row.data()), [] { return now_us; });
  std::vector<KeptDrop> all;
  const auto read_from = [&](uint64_t number) {
    all.clear();
    return drops.read(number, [&](const KeptDrop& kept) { all.push_back(kept); });
  };
  const uint64_t first = read_from(0);
  CHECK(all.empty());

  Bytes bytes(300);
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(i);
  const std::span<const uint8_t> whole(bytes);
  const auto add = [&](const Dropped& dropped) {
    drops.begin_turn();
    drops.add(dropped);
  };
  add({.reason = k_tx_drop_no_route});
  now_us += 7;
  add({.reason = k_rx_drop_tun, .packets = 3, .bytes = whole.first(21), .peer = v6_of(7)});
  add({.reason = k_rx_drop_not_ours, .bytes = whole.first(20), .more = whole.subspan(20), .encap_bytes = 22});
  const uint64_t next = read_from(0);
  CHECK(next == first + 3 && all.size() == 3);
  CHECK(all[0].reason == k_tx_drop_no_route && all[0].at_us == 5'000'000 && all[0].packets == 1);
  CHECK(all[0].size == 0 && all[0].length == 0 && !all[0].peer && all[0].encap_bytes == 0);
  CHECK(all[1].reason == k_rx_drop_tun && all[1].at_us == 5'000'007 && all[1].packets == 3 && all[1].length == 21);
  CHECK(all[1].size == 21 && all[1].peer == v6_of(7));
  CHECK(std::equal(bytes.begin(), bytes.begin() + 21, all[1].bytes.begin()));
  CHECK(all[2].size == KeptDrop::kMaxBytes && all[2].length == 300 && all[2].encap_bytes == 22);
  CHECK(std::equal(all[2].bytes.begin(), all[2].bytes.end(), bytes.begin()));
  CHECK(row[k_tx_drop_no_route] == 1 && row[k_rx_drop_tun] == 3 && row[k_rx_drop_not_ours] == 1);
  CHECK(read_from(next) == next && all.empty());
  CHECK(read_from(next - 1) == next && all.size() == 1 && all[0].encap_bytes == 22);

  // A flood must be counted in full. A burst is kept, then one drop per interval, each replacing the oldest.
  for (int i = 0; i < 100'000; i++) add({.reason = k_tx_drop_ttl});
  CHECK(row[k_tx_drop_ttl] == 100'000);
  CHECK(read_from(0) == first + Drops::kSlots && all.size() == Drops::kSlots && all[0].reason == k_tx_drop_no_route);
  for (int i = 0; i < 10; i++) {
    now_us += Drops::kEveryUs;
    for (int j = 0; j < 1000; j++) add({.reason = k_tx_drop_circle});
  }
  CHECK(read_from(0) == first + Drops::kSlots + 10 && all.size() == Drops::kSlots);
  for (size_t i = 0; i < all.size(); i++) {
    CHECK(all[i].reason == (i < Drops::kSlots - 10 ? k_tx_drop_ttl : k_tx_drop_circle));
  }
  // The clock is read once per batch. The numbers of the next engine must be higher.
  now_us += 60'000'000;
  drops.begin_turn();
  drops.add({.reason = k_tx_drop_ttl});
  now_us += 1;
  drops.add({.reason = k_tx_drop_ttl});
  read_from(first + Drops::kSlots + 10);
  CHECK(all.size() == 2 && all[0].at_us == all[1].at_us);
  CHECK(Drops(CounterRow(row.data()), [] { return now_us; }).read(0, [](const KeptDrop&) {}) > read_from(0));
}

/// Tests reads right after the machine's start, and drops of a datagram that ends within the encapsulation's header.
static void test_drops_at_start() {
  std::vector<uint64_t> row(kCounterCount);
  Drops drops(CounterRow(row.data()), [] { return int64_t{3}; });
  const Bytes bytes(22, 7);
  for (const size_t size : {22u, 10u, 0u}) {
    drops.begin_turn();
    drops.add({.reason = k_rx_drop_not_ours, .bytes = std::span(bytes).first(size), .encap_bytes = 14});
    std::vector<KeptDrop> all;
    drops.read(0, [&](const KeptDrop& kept) { all.push_back(kept); });
    CHECK(all.back().size == size && all.back().encap_bytes == std::min<size_t>(size, 14) && all.back().at_us == 3);
  }
  std::vector<size_t> sizes;
  CHECK(drops.read(0, [&](const KeptDrop& kept) { sizes.push_back(kept.size); }) == 6);
  CHECK((sizes == std::vector<size_t>{22, 10, 0}));
}

/// Drops that are read while another thread writes must be complete and in order.
static void test_drops_while_written() {
  static std::atomic<int64_t> now_us;  // the simulated time, which advances so fast that every drop is kept
  now_us = 1;
  std::vector<uint64_t> row(kCounterCount);
  Drops drops(CounterRow(row.data()), [] { return now_us += Drops::kEveryUs; });
  std::atomic<bool> done{false};
  std::thread thread([&] {
    for (uint32_t i = 1; !done.load(); i++) {
      const Bytes bytes(i % KeptDrop::kMaxBytes + 1, static_cast<uint8_t>(i));
      drops.begin_turn();
      drops.add({.reason = i % 2 ? k_rx_drop_ttl : k_tx_drop_ttl,
                 .packets = i,
                 .bytes = bytes,
                 .peer = v6_of(i),
                 .encap_bytes = i % 2});
    }
  });
  size_t wrong = 0, told = 0;
  while (told < 100'000) {
    uint32_t last = 0;
    // Reads from the oldest slot, which is the next one to be overwritten.
    drops.read(0, [&](const KeptDrop& kept) {
      told++;
      const uint32_t i = kept.packets;
      wrong += i <= last || kept.length != kept.size || !(kept.peer == v6_of(i)) || kept.encap_bytes != i % 2 ||
               kept.reason != (i % 2 ? k_rx_drop_ttl : k_tx_drop_ttl) || kept.size != i % KeptDrop::kMaxBytes + 1;
      for (size_t at = 0; at < kept.size; at++) wrong += kept.bytes[at] != static_cast<uint8_t>(i);
      last = i;
    });
  }
  done.store(true);
  thread.join();
  CHECK(wrong == 0);
}

static void test_segment_rules() {
  for (const bool v6 : {false, true}) {
    Fields f;
    f.v6 = v6;
    f.payload = 2500;
    f.flags = kAck | kPsh | kFin | kCwr;
    f.tcp_options = Bytes(12, 1);
    f.sequence = 0xfffffff0;  // so that the sequence number wraps around
    f.id = 0xffff;
    Bytes whole = build(f);
    VirtioHeader virtio;
    virtio.flags = kVirtioNeedsCsum;
    virtio.gso_type = static_cast<uint8_t>((v6 ? kGsoTcp6 : kGsoTcp4) | kGsoEcn);
    virtio.gso_size = 1000;
    virtio.csum_start = v6 ? 40 : 20;
    virtio.csum_offset = 16;
    virtio.hdr_len = 3;  // a wrong value, which segment.h must ignore
    const auto packets = cut(virtio, whole);
    CHECK(packets.size() == 3);
    const size_t ip = v6 ? 40 : 20;
    for (size_t i = 0; i < packets.size(); i++) {
      const Bytes& p = packets[i];
      const bool last = i + 1 == packets.size();
      CHECK(transport_sum(p) == 0xffff);
      CHECK(p.size() == ip + 32 + (last ? 500 : 1000));
      CHECK(load_be32(&p[ip + 4]) == static_cast<uint32_t>(0xfffffff0 + i * 1000));
      CHECK(p[ip + 13] == (kAck | (last ? kPsh | kFin : 0) | (i == 0 ? kCwr : 0)));
      if (v6) {
        CHECK(load_be16(&p[4]) == p.size() - 40);
      } else {
        CHECK(load_be16(&p[2]) == p.size());
        CHECK(load_be16(&p[4]) == static_cast<uint16_t>(0xffff + i));
        CHECK(reference_fold(reference_sum(p.data(), 20)) == 0xffff);
      }
      CHECK(std::equal(p.begin() + static_cast<long>(ip + 32), p.end(),
                       whole.begin() + static_cast<long>(ip + 32 + i * 1000)));
    }
  }
  // Malformed superpackets must be refused.
  struct Refusal {
    const char* why;
    uint8_t type;
    uint16_t size, start;
    Fields fields;
  };
  Fields udp, fragment, v6, large;
  udp.tcp = false;
  fragment.fragment = 0x2000;
  v6.v6 = true;
  large.ip_options = Bytes(40, 1);
  large.tcp_options = Bytes(40, 1);
  large.ip_options[0] = 1;
  Fields empty, v6_udp = udp;
  empty.payload = 0;
  v6_udp.v6 = true;
  for (const Refusal& r :
       {Refusal{"size 0", kGsoTcp4, 0, 20, {}}, Refusal{"old UFO", 3, 100, 20, udp},
        Refusal{"TCPv6 type on IPv4", kGsoTcp6, 100, 20, {}}, Refusal{"TCPv4 type on IPv6", kGsoTcp4, 100, 40, v6},
        Refusal{"a fragment", kGsoTcp4, 100, 20, fragment}, Refusal{"no payload", kGsoTcp4, 100, 20, empty},
        Refusal{"transport inside the IP header", kGsoTcp4, 100, 12, {}},
        Refusal{"transport beyond the packet", kGsoTcp4, 100, 900, {}},
        Refusal{"a datagram inside the IP header", kGsoUdp, 100, 12, udp},
        Refusal{"a datagram behind options that IPv4 has not", kGsoUdp, 100, 24, udp},
        Refusal{"a datagram inside the IPv6 header", kGsoUdp, 100, 12, v6_udp}}) {
    context = r.why;
    Bytes bytes = build(r.fields);
    VirtioHeader virtio;
    virtio.flags = kVirtioNeedsCsum;
    virtio.gso_type = r.type;
    virtio.gso_size = r.size;
    virtio.csum_start = r.start;
    Segmenter segments;
    CHECK(!segments.begin(virtio, bytes.data(), read(bytes)));
  }
  // Headers of the maximum IPv6 length are accepted, one byte more is refused.
  for (const size_t more : {0u, 1u}) {
    Fields f;
    f.v6 = true;
    f.tcp = false;
    f.payload = 40 + 512 + 60 - 48 + 28;
    Bytes bytes = build(f);
    VirtioHeader virtio;
    virtio.flags = kVirtioNeedsCsum;
    virtio.gso_type = kGsoUdp;
    virtio.gso_size = 10;
    virtio.csum_start = static_cast<uint16_t>(40 + 512 + 60 - 8 + more);
    Segmenter segments;
    CHECK(segments.begin(virtio, bytes.data(), read(bytes)) == (more == 0));
    if (more == 0) CHECK(segments.header_bytes() == 612 && segments.count() == 3);
  }
  context = "a TCP header of less than five words";
  {
    Bytes bytes = build({});
    bytes[32] = 0x40;
    VirtioHeader virtio;
    virtio.gso_type = kGsoTcp4;
    virtio.gso_size = 10;
    Segmenter segments;
    CHECK(!segments.begin(virtio, bytes.data(), read(bytes)));
  }
  context.clear();
  // A computed checksum of 0 stays 0 for TCP. For UDP it becomes 0xffff, because 0 means "no checksum".
  for (const bool tcp : {true, false}) {
    Fields f;
    f.tcp = tcp;
    Bytes right = build(f);
    const size_t payload = tcp ? 40 : 28, field = tcp ? 36 : 26;
    const uint32_t wanted = load_be16(&right[payload]) + load_be16(&right[field]);
    store_be16(&right[payload], reference_fold(wanted));
    store_be16(&right[field], 0);
    CHECK(transport_sum(right) == 0xffff);
    if (!tcp) store_be16(&right[field], 0xffff);
    Bytes open = right;
    store(&open[field], checksum_fold(pseudo_header_sum(&open[12], 8, open[9], open.size() - 20)));
    VirtioHeader virtio = open_sum(read(open));
    Bytes cut_once = open;
    CHECK(finish_checksum(virtio, open.data(), read(open)) && open == right);
    virtio.gso_type = tcp ? kGsoTcp4 : kGsoUdp;
    virtio.gso_size = 1000;
    const auto packets = cut(virtio, cut_once);
    CHECK(packets.size() == 1 && packets[0] == right);
  }
  // finish_checksum() must complete checksums, and refuse invalid offsets.
  for (const bool tcp : {true, false}) {
    Fields f;
    f.tcp = tcp;
    const Bytes right = build(f);
    Bytes open = right;
    const uint16_t field = tcp ? 16 : 6;
    store(&open[20u + field],
          checksum_fold(pseudo_header_sum(&open[12], 8, open[9], static_cast<uint32_t>(open.size() - 20))));
    VirtioHeader virtio;
    virtio.csum_start = 20;
    virtio.csum_offset = field;
    Bytes sent = open, unflagged = open;
    CHECK(finish_checksum(virtio, open.data(), read(open)));
    CHECK(open == right);
    // first_as_sent() must complete a checksum only if the header of the TUN says that the checksum is missing.
    Packet packet = read(sent);
    first_as_sent(virtio, unflagged.data(), packet, {});
    CHECK(unflagged == sent);
    virtio.flags = kVirtioNeedsCsum;
    CHECK(first_as_sent(virtio, sent.data(), packet, {}).size() == sent.size() && sent == right);
    virtio.csum_offset = static_cast<uint16_t>(open.size() - 20 - 2);  // the checksum would be the last two bytes
    CHECK(finish_checksum(virtio, open.data(), read(open)));
    virtio.csum_offset++;
    CHECK(!finish_checksum(virtio, open.data(), read(open)));
    virtio.csum_offset = field;
    virtio.csum_start = static_cast<uint16_t>(open.size());
    CHECK(!finish_checksum(virtio, open.data(), read(open)));
    virtio.csum_start = static_cast<uint16_t>(open.size() - 1);
    CHECK(!finish_checksum(virtio, open.data(), read(open)));
    virtio.csum_start = 19;  // the checksum would start inside the IP header
    CHECK(!finish_checksum(virtio, open.data(), read(open)));
  }
}

/// Tests each reason not to join two packets: they would be joined, except for one change to the second.
static void test_coalesce_reasons() {
  struct Reason {
    const char* why;
    bool joins;
    void (*change)(Fields& first, Fields& second);
  };
  const Reason reasons[] = {
      {"nothing", true, [](Fields&, Fields&) {}},
      {"a shorter last packet", true, [](Fields&, Fields& b) { b.payload = 1; }},
      {"PSH on the last", true, [](Fields&, Fields& b) { b.flags |= kPsh; }},
      {"ECE on both", true,
       [](Fields& a, Fields& b) {
         a.flags |= kEce;
         b.flags |= kEce;
       }},
      {"any identification with DF", true, [](Fields&, Fields& b) { b.id = 7; }},
      {"no DF, next identification", true, [](Fields& a, Fields& b) { a.fragment = b.fragment = 0; }},
      {"sequence wraps", true,
       [](Fields& a, Fields& b) {
         a.sequence = 0xffffffff - 49;
         b.sequence = 50;
       }},
      {"same options", true, [](Fields& a, Fields& b) { a.tcp_options = b.tcp_options = Bytes(12, 1); }},
      {"a longer packet", false, [](Fields&, Fields& b) { b.payload = 101; }},
      {"an empty packet", false, [](Fields&, Fields& b) { b.payload = 0; }},
      {"an empty first packet", false,
       [](Fields& a, Fields& b) {
         a.payload = 0;
         b.sequence = 1000;
       }},
      {"a gap", false, [](Fields&, Fields& b) { b.sequence++; }},
      {"a repetition", false, [](Fields&, Fields& b) { b.sequence = 1000; }},
      {"another source", false, [](Fields&, Fields& b) { b.source++; }},
      {"another destination", false, [](Fields&, Fields& b) { b.destination++; }},
      {"another source port", false, [](Fields&, Fields& b) { b.source_port++; }},
      {"another destination port", false, [](Fields&, Fields& b) { b.destination_port++; }},
      {"another TOS", false, [](Fields&, Fields& b) { b.tos = 0x10; }},
      {"another ECN", false, [](Fields&, Fields& b) { b.tos = 3; }},
      {"another TTL", false, [](Fields&, Fields& b) { b.ttl--; }},
      {"DF on one", false, [](Fields&, Fields& b) { b.fragment = 0; }},
      {"no DF, a gap in the identification", false,
       [](Fields& a, Fields& b) {
         a.fragment = b.fragment = 0;
         b.id = 102;
       }},
      {"another acknowledgement", false, [](Fields&, Fields& b) { b.acknowledgement++; }},
      {"another window", false, [](Fields&, Fields& b) { b.window++; }},
      {"another urgent pointer", false, [](Fields&, Fields& b) { b.urgent++; }},
      {"other options", false,
       [](Fields& a, Fields& b) {
         a.tcp_options = Bytes(12, 1);
         b.tcp_options = Bytes(12, 0);
       }},
      {"options on one", false, [](Fields&, Fields& b) { b.tcp_options = Bytes(12, 1); }},
      {"SYN", false, [](Fields&, Fields& b) { b.flags |= kSyn; }},
      {"FIN", false, [](Fields&, Fields& b) { b.flags |= kFin; }},
      {"RST", false, [](Fields&, Fields& b) { b.flags |= kRst; }},
      {"URG", false, [](Fields&, Fields& b) { b.flags |= kUrg; }},
      {"CWR", false, [](Fields&, Fields& b) { b.flags |= kCwr; }},
      {"CWR on the first", false, [](Fields& a, Fields&) { a.flags |= kCwr; }},
      {"CWR on both", false, [](Fields& a, Fields& b) { a.flags = b.flags = kAck | kCwr; }},
      {"ECE on one", false, [](Fields&, Fields& b) { b.flags |= kEce; }},
      {"no ACK", false, [](Fields& a, Fields& b) { a.flags = b.flags = 0; }},
      {"PSH on the first", false, [](Fields& a, Fields&) { a.flags |= kPsh; }},
      {"IP options", false, [](Fields& a, Fields& b) { a.ip_options = b.ip_options = Bytes(4, 1); }},
      {"a fragment", false, [](Fields&, Fields& b) { b.fragment = 0x2000; }},
      {"a first fragment", false, [](Fields& a, Fields&) { a.fragment = 0x2000; }},
      {"UDP, equal sizes", true, [](Fields& a, Fields& b) { a.tcp = b.tcp = false; }},
      {"UDP, a shorter last", true,
       [](Fields& a, Fields& b) {
         a.tcp = b.tcp = false;
         b.payload = 9;
       }},
      {"UDP, a longer last", false,
       [](Fields& a, Fields& b) {
         a.tcp = b.tcp = false;
         b.payload = 101;
       }},
      {"UDP without checksum", false,
       [](Fields& a, Fields& b) { a.tcp = b.tcp = a.udp_checksum = b.udp_checksum = false; }},
      {"UDP without payload", false,
       [](Fields& a, Fields& b) {
         a.tcp = b.tcp = false;
         a.payload = b.payload = 0;
       }},
      {"UDP and TCP", false, [](Fields&, Fields& b) { b.tcp = false; }},
  };
  for (const bool v6 : {false, true}) {
    for (const Reason& reason : reasons) {
      context = std::string(reason.why) + (v6 ? " (IPv6)" : "");
      Fields first, second;
      second.sequence = 1100;
      second.id = 101;
      reason.change(first, second);
      const bool only_v4 = first.fragment != 0x4000 || second.fragment != 0x4000 || !first.ip_options.empty();
      if (v6 && only_v4) continue;
      first.v6 = second.v6 = v6;
      std::vector<Bytes> packets{build(first), build(second)};
      const auto before = packets;
      const auto writes = coalesce(packets);
      CHECK(writes.size() == (reason.joins ? 1u : 2u));
      size_t at = 0;
      for (const auto& write : writes) {
        for (Bytes packet : write) {
          if (at < before.size() && !v6 && load_be16(&packet[6]) == 0x4000) {  // with DF the identification may differ
            store_be16(&packet[4], load_be16(&before[at][4]));
            store(&packet[10], ipv4_header_checksum(packet.data(), (packet[0] & 15) * 4u));
          }
          CHECK(at < before.size() && packet == before[at]);
          at++;
        }
      }
    }
  }
  context.clear();
  // A damaged packet must not be joined, and must stay damaged.
  for (const size_t which : {0u, 1u, 2u}) {
    Fields f;
    std::vector<Bytes> packets;
    for (int i = 0; i < 3; i++) {
      packets.push_back(build(f));
      f.sequence += 100;
      f.id++;
    }
    packets[which][139] ^= 1;
    const auto before = packets;
    std::vector<Bytes> after;
    for (const auto& write : coalesce(packets)) after.insert(after.end(), write.begin(), write.end());
    CHECK(after == before);
  }
  Fields small;
  small.tcp = false;
  small.payload = 1;
  std::vector<Bytes> many;
  for (int i = 0; i < 300; i++) {
    many.push_back(build(small));
    small.id++;
  }
  CHECK(coalesce(many).size() == 3);
  CoalesceLimits old;
  old.udp_segments = 64;
  CHECK(coalesce(many, old).size() == 5);
  CoalesceLimits none;
  none.udp = false;
  CHECK(coalesce(many, none).size() == 300);
  Fields byte;
  byte.payload = 1;
  std::vector<Bytes> stream;
  for (size_t i = 0; i < 2 * Coalescer::kMaxRun + 1; i++, byte.sequence++) stream.push_back(build(byte));
  CHECK(coalesce(stream).size() == 3);
  CoalesceLimits no_tcp;
  no_tcp.tcp = false;
  stream.resize(300);
  CHECK(coalesce(stream, no_tcp).size() == 300);
  // Joins packets up to the longest IPv4 packet with all headers; one byte more must not be joined.
  for (const bool tcp : {true, false}) {
    const size_t headers = tcp ? 40 : 28;
    for (const size_t over : {0u, 1u, 2u}) {
      context = std::string(tcp ? "TCP" : "UDP") + ", longer than 65534 by " + std::to_string(over);
      Fields f;
      f.tcp = tcp;
      f.payload = 1000;
      std::vector<Bytes> packets;
      for (size_t left = 65534 + over - headers; left > 0; left -= f.payload, f.id++) {
        f.payload = std::min<size_t>(left, 1000);
        packets.push_back(build(f));
        f.sequence += static_cast<uint32_t>(f.payload);
      }
      const auto writes = coalesce(packets);
      CHECK(writes.size() == (over == 2 ? 2u : 1u));
      CHECK(writes.back().size() == (over == 2 ? 1u : packets.size()));
    }
  }
  context.clear();
  // Without DF each identification must be one more than the previous one, also that of the third packet.
  for (const uint16_t third : {102, 101}) {
    Fields f;
    f.fragment = 0;
    std::vector<Bytes> packets;
    for (const uint16_t id : {uint16_t{100}, uint16_t{101}, third}) {
      f.id = id;
      packets.push_back(build(f));
      f.sequence += 100;
    }
    CHECK(coalesce(packets).size() == (third == 102 ? 1u : 2u));
  }
}

/// Corrects the checksums of a packet after a change, and cuts it to the length in its header. Returns false if it is
/// no longer a valid packet.
static bool mend(Bytes& bytes) {
  Packet packet;
  if (!read_packet(bytes.data(), bytes.size(), packet)) return false;
  bytes.resize(packet.total);
  if (packet.version == 4) {
    store_be16(&bytes[10], 0);
    store_be16(&bytes[10], static_cast<uint16_t>(~reference_fold(reference_sum(bytes.data(), packet.ip_bytes))));
  }
  const size_t field = packet.ip_bytes + (packet.protocol == IPPROTO_TCP ? 16u : 6u);
  if (field + 2 > bytes.size()) return true;
  store_be16(&bytes[field], 0);
  const uint16_t sum = static_cast<uint16_t>(~transport_sum(bytes));
  store_be16(&bytes[field], sum == 0 && packet.protocol == IPPROTO_UDP ? 0xffff : sum);
  return true;
}

/// Two packets must come out unchanged if the second differs in one byte of its headers, or if both are changed
/// equally. Addresses and ports select the slot of the flow table, so all values of each byte are tried.
static void test_coalesce_bytes(int rounds) {
  enum class Changed { kSecond, kBoth };
  size_t joined = 0;
  for (int round = 0; round < rounds; round++) {
    for (const auto& [v6, fragment] : {std::pair{false, 0x4000}, {false, 0}, {true, 0x4000}}) {
      for (const bool tcp : {true, false}) {
        Fields f;
        f.v6 = v6;
        f.tcp = tcp;
        f.fragment = static_cast<uint16_t>(fragment);
        f.source = static_cast<uint32_t>(rng());
        f.destination = static_cast<uint32_t>(rng());
        f.source_port = static_cast<uint16_t>(rng());
        f.acknowledgement = static_cast<uint32_t>(rng());
        f.payload = 20;
        if (tcp && round % 2) f.tcp_options = Bytes(12, 1);
        const Bytes first = build(f);
        f.sequence += 20;
        f.id++;
        const Bytes second = build(f);
        const size_t ip = v6 ? 40 : 20, flow = v6 ? 8 : 12;
        for (size_t at = 0; at < first.size() - 20; at++) {
          const bool is_in_flow = at >= flow && at < ip + 4;
          for (int change = 1; change < 256; change += is_in_flow ? 1 : change) {
            for (const Changed changed : {Changed::kSecond, Changed::kBoth}) {
              if (changed == Changed::kBoth && (change & (change - 1))) continue;
              std::vector<Bytes> packets{first, second};
              if (changed == Changed::kBoth) packets[0][at] ^= static_cast<uint8_t>(change);
              packets[1][at] ^= static_cast<uint8_t>(change);
              if (!mend(packets[0]) || !mend(packets[1])) continue;
              const auto before = packets;
              std::vector<Bytes> after;
              const auto writes = coalesce(packets);
              joined += writes.size() == 1;
              for (const auto& write : writes) after.insert(after.end(), write.begin(), write.end());
              if (after.size() == 2 && before[1][0] >> 4 == 4 && (before[1][6] & 0x40)) {
                // with DF the identification may differ
                std::copy_n(before[1].begin() + 4, 2, after[1].begin() + 4);
                mend(after[1]);
              }
              if (after == before) continue;
              context = std::string(v6 ? "IPv6" : "IPv4") + (tcp ? " TCP" : " UDP") + ", byte " + std::to_string(at) +
                        " by " + std::to_string(change) + (changed == Changed::kBoth ? " in both" : "");
              CHECK(!"what comes out is what came in");
            }
          }
        }
      }
    }
  }
  context.clear();
  CHECK(joined > 0);
}

/// A superpacket may continue past packets of other flows, but not past a packet that may belong to its own flow: a
/// fragment, or a packet with extension headers.
static void test_coalesce_past() {
  struct Row {
    const char* what;
    bool v6;
    uint8_t protocol;
    uint16_t fragment;
    bool is_passed;
  };
  constexpr Row rows[] = {
      {"ICMP", false, 1, 0x4000, true},
      {"a protocol that is 0", false, 0, 0x4000, true},
      {"a first fragment", false, 6, 0x2000, false},
      {"a last fragment", false, 17, 0x0010, false},
      {"a fragment of ICMP", false, 1, 0x0010, false},
      {"ICMPv6", true, 58, 0, true},
      {"ESP", true, 50, 0, true},
      {"hop-by-hop options", true, 0, 0, false},
      {"a routing header", true, 43, 0, false},
      {"an IPv6 fragment", true, 44, 0, false},
      {"destination options", true, 60, 0, false},
  };
  for (const Row& row : rows) {
    for (const bool v6 : {false, true}) {
      context = std::string(row.what) + (v6 ? " between those of IPv6" : " between those of IPv4");
      Fields f, between;
      f.v6 = v6;
      between.v6 = row.v6;
      between.fragment = row.fragment;
      between.source++;
      std::vector<Bytes> packets{build(f), build(between)};
      packets[1][row.v6 ? 6u : 9u] = row.protocol;
      CHECK(mend(packets[1]));
      f.sequence += 100;
      f.id++;
      packets.push_back(build(f));
      const auto before = packets;
      const auto writes = coalesce(packets);
      CHECK(writes.size() == (row.is_passed ? 2 : 3) && writes[0].size() == (row.is_passed ? 2 : 1));
      CHECK(writes[1][0] == before[1]);
    }
  }
  context.clear();
}

/// A packet that another kernel left without a checksum or unsegmented is written unchanged or joined. Both ways it
/// must be possible to complete it.
static void test_coalesce_undone() {
  Coalescer coalescer;
  const auto singly = [&](size_t index) {
    std::vector<Bytes> packets;
    coalescer.each_packet(index, [&](std::span<uint8_t> header, std::span<uint8_t> payload) {
      packets.emplace_back(header.begin(), header.end());
      packets.back().insert(packets.back().end(), payload.begin(), payload.end());
    });
    return packets;
  };
  const auto open = [](Bytes& bytes) {
    const Packet packet = read(bytes);
    const VirtioHeader virtio = open_sum(packet);
    store(&bytes[size_t{virtio.csum_start} + virtio.csum_offset],
          checksum_fold(pseudo_header_sum(source_address(bytes.data(), packet), 2 * address_bytes(packet),
                                          packet.protocol, packet.total - packet.ip_bytes)));
    return virtio;
  };
  for (const bool v6 : {false, true}) {
    for (const bool tcp : {true, false}) {
      context = std::string(tcp ? "TCP" : "UDP") + (v6 ? " by IPv6" : "");
      coalescer.clear();
      Fields f;
      f.v6 = v6;
      f.tcp = tcp;
      std::vector<Bytes> right, undone;
      std::vector<VirtioHeader> headers;
      // The packets are: two that will be joined, a superpacket of two segments, and a complete packet.
      for (const size_t payload : {size_t{100}, size_t{100}, size_t{150}, size_t{100}}) {
        f.payload = payload;
        f.source_port = payload == 150 ? 5 : right.size() == 3 ? 6 : 1111;
        right.push_back(build(f));
        undone.push_back(right.back());
        headers.push_back(right.size() == 4 ? VirtioHeader() : open(undone.back()));
        if (payload == 150) {
          headers.back().gso_type = !tcp ? kGsoUdp : v6 ? kGsoTcp6 : kGsoTcp4;
          headers.back().gso_size = 100;
        }
        f.sequence += static_cast<uint32_t>(payload);
        f.id++;
      }
      const auto expected = cut(headers[2], undone[2]);
      for (size_t i = 0; i < undone.size(); i++) coalescer.add(undone[i].data(), read(undone[i]), {}, headers[i]);
      CHECK(coalescer.writes() == 3);
      for (size_t i = 0; i < 3; i++) {
        CHECK(coalescer.is_udp(i) == !tcp && coalescer.run_packets(i) == (i == 2 ? 1 : 2));
        CHECK(coalescer.is_uncut(i) == (i == 1) && coalescer.is_open(i) == (i == 1));
      }
      iovec iov[Coalescer::kMaxIovecs];
      CHECK(coalescer.write(1, iov) == 2 && std::memcmp(iov[0].iov_base, &headers[2], sizeof headers[2]) == 0);
      CHECK(iov[1].iov_base == undone[2].data() && iov[1].iov_len == undone[2].size());
      CHECK(singly(1) == expected && expected.size() == 2);
      CHECK((singly(0) == std::vector<Bytes>{right[0], right[1]}) && (singly(2) == std::vector<Bytes>{right[3]}));
      // A single packet without a checksum follows.
      coalescer.clear();
      Bytes alone = right[0];
      const VirtioHeader virtio = open(alone);
      coalescer.add(alone.data(), read(alone), {}, virtio);
      CHECK(coalescer.writes() == 1 && coalescer.is_open(0) && !coalescer.is_uncut(0) && coalescer.run_packets(0) == 1);
      CHECK((singly(0) == std::vector<Bytes>{right[0]}));
    }
  }
  context.clear();
}

/// Packets of flows that differ only in one address, in turn, must hardly hinder each other's joining.
static void test_coalesce_beside() {
  constexpr uint32_t kStreams = 16, kEach = 4;
  for (const bool v6 : {false, true}) {
    for (const bool by_source : {false, true}) {
      std::vector<Bytes> packets;
      for (uint32_t i = 0; i < kEach; i++) {
        for (uint32_t stream = 0; stream < kStreams; stream++) {
          Fields f;
          f.v6 = v6;
          (by_source ? f.source : f.destination) += stream;
          f.id = static_cast<uint16_t>(100 + i);
          f.sequence = 1000 + i * 100;
          packets.push_back(build(f));
        }
      }
      CHECK(coalesce(packets).size() <= 2 * kStreams);  // two flows of 64 packets may have the same hash
    }
  }
}

/// Packets of many flows in random order must come out unchanged, and each flow in its order.
static void test_coalesce_property(int rounds) {
  for (int round = 0; round < rounds; round++) {
    std::vector<Fields> flows;
    const uint32_t flow_count = 1 + random_below(20);
    for (uint32_t i = 0; i < flow_count; i++) {
      Fields f;
      f.v6 = random_below(3) == 0;
      f.tcp = random_below(2);
      f.source_port = static_cast<uint16_t>(1000 + i);
      f.payload = 1 + random_below(1400);
      f.fragment = random_below(2) ? 0x4000 : 0;
      f.tcp_options = Bytes(random_below(4) * 4, 1);
      flows.push_back(f);
    }
    std::vector<Bytes> packets;
    const uint32_t count = random_below(3000);
    for (uint32_t i = 0; i < count; i++) {
      Fields& f = flows[random_below(flow_count)];
      Fields one = f;
      if (random_below(20) == 0) one.payload = 1 + random_below(static_cast<uint32_t>(f.payload));
      if (random_below(30) == 0) one.flags |= kPsh;
      if (random_below(50) == 0) one.flags = static_cast<uint8_t>(random_below(256));
      if (random_below(50) == 0) one.tos = static_cast<uint8_t>(random_below(256));
      if (random_below(50) == 0) f.sequence += random_below(3);
      if (random_below(60) == 0) one.fragment = 0x2000;
      packets.push_back(build(one));
      if (random_below(100) == 0) packets.back().back() ^= 0x55;
      f.sequence += static_cast<uint32_t>(one.payload);
      f.id++;
    }
    const auto before = packets;
    std::map<std::pair<bool, uint16_t>, std::vector<Bytes>> in, out;
    const auto sort = [](auto& into, const Bytes& packet) {
      const bool v6 = packet[0] >> 4 == 6;
      into[{v6, load_be16(&packet[v6 ? 40u : 20u])}].push_back(packet);
    };
    size_t total = 0;
    for (const Bytes& packet : before) sort(in, packet);
    for (const auto& write : coalesce(packets)) {
      total += write.size();
      for (const Bytes& packet : write) sort(out, packet);
    }
    CHECK(total == before.size());
    CHECK(in == out);
  }
}

static void test_icmp() {
  Fields f;
  f.tcp = false;
  Bytes packet = build(f);
  uint8_t out[kMaxIcmpErrorBytes];
  const Address source = ipv4(0x0a050100);
  const size_t whole = 28 + packet.size();
  CHECK(write_icmp_error(kNetUnreachable, source, packet.data(), read(packet), out) == whole);
  CHECK(out[8] == 8 && out[9] == 1 && out[20] == 3 && load<uint32_t>(out + 12) == source.ipv4());
  CHECK(reference_fold(reference_sum(out, 20)) == 0xffff);
  CHECK(reference_fold(reference_sum(out + 20, whole - 20)) == 0xffff);
  // Type and code must follow RFC 792 and RFC 1191, and the destination must be the packet's sender.
  struct Told {
    IcmpError error;
    uint8_t type, code;
    uint16_t mtu;
  };
  for (const Told& told :
       {Told{kNetUnreachable, 3, 0, 0}, Told{kTimeExceeded, 11, 0, 0}, Told{too_big(1400), 3, 4, 1400}}) {
    CHECK(write_icmp_error(told.error, source, packet.data(), read(packet), out) == whole);
    CHECK(out[20] == told.type && out[21] == told.code && load_be16(out + 24) == 0 && load_be16(out + 26) == told.mtu);
    CHECK(load_be32(out + 16) == f.source && std::equal(packet.begin(), packet.end(), out + 28));
  }
  // The error must be complete for long and short packets, independent of the buffer's earlier contents, and no byte
  // behind it may be written.
  for (const size_t options : {0u, 12u, 40u}) {
    for (const size_t behind : {0u, 1u, 8u, 9u, 100u, 487u, 488u, 489u, 516u, 527u, 528u, 529u, 4'000u, 65'000u}) {
      context = std::to_string(options) + " bytes of options, " + std::to_string(behind) + " behind the header";
      f.ip_options = Bytes(options, 1);
      packet = build(f);
      packet.resize(20 + options + behind, 0x5a);
      store_be16(&packet[2], static_cast<uint16_t>(packet.size()));
      const size_t quote = std::min<size_t>(20 + options + behind, 576 - 28);
      Bytes expected(28);
      expected[0] = 0x45;
      store_be16(&expected[2], static_cast<uint16_t>(28 + quote));
      expected[8] = 8;
      expected[9] = IPPROTO_ICMP;
      store_be32(&expected[12], 0x0a050100);
      store_be32(&expected[16], f.source);
      store_be16(&expected[10], static_cast<uint16_t>(~reference_fold(reference_sum(expected.data(), 20))));
      expected[20] = 3;
      expected[21] = 4;
      store_be16(&expected[26], 1400);
      expected.insert(expected.end(), packet.begin(), packet.begin() + static_cast<long>(quote));
      store_be16(&expected[22], static_cast<uint16_t>(~reference_fold(reference_sum(&expected[20], 8 + quote))));
      Bytes room(kMaxIcmpErrorBytes + 1, 0xee);
      const size_t size = write_icmp_error(too_big(1400), source, packet.data(), read(packet), room.data());
      CHECK(size == expected.size() && std::equal(expected.begin(), expected.end(), room.begin()));
      CHECK(std::all_of(room.begin() + static_cast<long>(size), room.end(), [](uint8_t byte) { return byte == 0xee; }));
    }
  }
  context = "about ICMP";
  for (const auto& [type, size, is_told] : {std::tuple{8, 28u, true},
                                            {8, 21u, true},
                                            {8, 20u, false},
                                            {0, 28u, false},
                                            {3, 28u, false},
                                            {11, 28u, false}}) {
    packet = build({});
    packet[9] = IPPROTO_ICMP;
    packet[20] = static_cast<uint8_t>(type);
    store_be16(&packet[2], static_cast<uint16_t>(size));
    CHECK((write_icmp_error(kTimeExceeded, source, packet.data(), read(packet), out) > 0) == is_told);
  }
  context.clear();
}

/// Each feature must have one bit and one name, and kAllFeatures must contain all of them.
static void test_features() {
  uint32_t seen = 0;
  for (const FeatureName& each : kFeatureNames) {
    CHECK(each.feature != 0 && (each.feature & (each.feature - 1)) == 0 && !(seen & each.feature));
    seen |= each.feature;
    Features features(kAllFeatures);
    features.drop(each.feature);
    CHECK(!features.has(each.feature) && features.bits() == (kAllFeatures & ~each.feature));
  }
  CHECK(seen == kAllFeatures);
}

/// The limits per sender and for all senders must hold for any number of threads.
static void test_icmp_limit() {
  constexpr uint64_t kSecret = 0x5eed;
  constexpr bool kOurs = true, kOthers = false;
  const auto allowed_by = [](IcmpLimit& limit, uint32_t sender, bool is_ours, int64_t now_ms, int tries) {
    int count = 0;
    while (tries-- > 0) count += limit.allows(ipv4(sender), is_ours, now_ms);
    return count;
  };
  {
    IcmpLimit limit(kSecret);
    const auto allowed = [&](uint32_t sender, int64_t now_ms, int tries) {
      return allowed_by(limit, sender, kOthers, now_ms, tries);
    };
    CHECK(allowed(1, 1'000, 1'000) == 50);
    CHECK(allowed(1, 1'009, 1'000) == 0);
    CHECK(allowed(1, 1'075, 1'000) == 7);
    CHECK(allowed(1, 3'600'000, 1'000) == 50);
    CHECK(allowed(2, 3'600'000, 1'000) == 50);
    int all = 0;
    for (uint32_t sender = 1; sender < 10'000; sender++) all += allowed(sender, 7'200'000, 1);
    CHECK(all == 500);
    // IPv6 senders that differ in one bit have separate limits. Outside this node's subnet only the first 64 bits
    // distinguish senders.
    for (const uint64_t secret : {kSecret, uint64_t{0}}) {
      for (const bool is_ours : {kOurs, kOthers}) {
        IcmpLimit six(secret);
        for (int bit = 0; bit < 128; bit++) {
          const uint64_t flip = uint64_t{1} << bit % 64, high = bit < 64 ? flip : 0, low = bit < 64 ? 0 : flip;
          int told = 0;
          for (int i = 0; i < 100; i++) told += six.allows(Address::of_words(0xfd ^ high, 1 ^ low), is_ours, 1'000);
          // The first ten senders outside this node's subnet have used up the limit that all such senders share.
          CHECK(told == (is_ours ? 50 : bit < 10 ? 50 : 0));
        }
        int told = 0;
        for (int i = 0; i < 1'000; i++) told += six.allows(Address::of_words(0xfd, uint64_t(i)), is_ours, 3'600'000);
        CHECK(told == (is_ours ? 1'000 : 50));
      }
    }
    // The shared limit must not apply to senders in this node's subnet.
    for (uint32_t sender = 0x0a050100; sender < 0x0a050140; sender++) {
      CHECK(allowed_by(limit, sender, kOurs, 7'200'000, 1'000) == 50);
    }
    CHECK(allowed(20'000, 7'200'010, 1'000) == 10);
    // Four threads use the limit simultaneously.
    std::atomic<int> together{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) threads.emplace_back([&] { together += allowed(7, 10'800'000, 1'000); });
    for (auto& thread : threads) thread.join();
    CHECK(together == 50);
    // Two threads whose clocks differ slightly share a limit.
    CHECK(allowed(9, 14'400'001, 1'000) == 50);
    CHECK(allowed(9, 14'400'000, 1'000) == 0);
    CHECK(allowed(9, 14'399'000, 1'000) == 0);
    CHECK(allowed(9, 14'400'011, 1'000) == 1);
    together = 0;
    threads.clear();
    for (int i = 0; i < 4; i++) {
      threads.emplace_back([&, i] {
        for (int turn = 0; turn < 1'000; turn++) together += allowed(10, 18'000'009 - (turn + i) % 10, 1);
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(together == 50);
    // Tests times that exceed 32 bits of milliseconds, and a sender whose last error was weeks ago.
    constexpr int64_t kWrap = int64_t{1} << 32;
    CHECK(allowed(8, kWrap - 5, 1'000) == 50);
    CHECK(allowed(8, kWrap + 5, 1'000) == 1);
    CHECK(allowed(8, kWrap + kWrap / 2 + 100, 1'000) == 50);
  }
  // A sender of five packets per second must get an error for each, while one sender, twelve senders, a whole subnet,
  // or any number of addresses send too much.
  const auto told = [&](uint64_t secret, bool is_ours, auto others) {
    IcmpLimit limit(secret);
    int count = 0;
    for (int64_t ms = 1'000; ms < 21'000; ms++) {
      others([&](uint32_t sender, bool ours) { limit.allows(ipv4(sender), ours, ms); }, ms);
      if (ms % 200 == 77) count += limit.allows(ipv4(0x0a050102), is_ours, ms);
    }
    return count;
  };
  for (const uint64_t secret : {kSecret, uint64_t{0}, ~uint64_t{0}}) {
    context = "secret " + std::to_string(secret);
    CHECK(told(secret, kOurs, [](auto ask, int64_t) { ask(0x0a050103, true); }) == 100);
    CHECK(told(secret, kOurs, [](auto ask, int64_t) {
            for (uint32_t i = 0; i < 12; i++) ask(0x11000000 + i * 7919, false);
          }) == 100);
    CHECK(told(secret, kOurs, [](auto ask, int64_t) {
            for (uint32_t host = 0; host < 256; host++) {
              if (host != 2) ask(0x0a050100 + host, true);
            }
          }) == 100);
    CHECK(told(secret, kOurs, [](auto ask, int64_t ms) {
            for (uint32_t i = 0; i < 100; i++) ask(0x30000000 + static_cast<uint32_t>(ms) * 100 + i, false);
          }) == 100);
  }
  context.clear();
  for (const int64_t less_ms : {59'999, 10'000, 2'000, -2'000, -59'999}) {
    for (const uint32_t sender : {0x0a050102u, 0xc0000201u}) {
      IcmpLimit limit(kSecret);
      constexpr int64_t kRound = int64_t{1} << 32, kNow = 5'000'000;
      CHECK(allowed_by(limit, sender, true, kNow, 100) == IcmpLimit::kSenderBurst);
      CHECK(allowed_by(limit, sender, true, kNow + kRound - less_ms, 100) == IcmpLimit::kSenderBurst);
    }
  }
  IcmpLimits limits(kSecret);
  for (const IcmpKind kind : {IcmpKind::kOutward, IcmpKind::kInward, IcmpKind::kTooBig}) {
    CHECK(allowed_by(limits[kind], 1, kOthers, 1'000, 1'000) == 50);
    int all = 50;
    for (uint32_t sender = 2; sender < 1'000; sender++) all += allowed_by(limits[kind], sender, kOthers, 1'000, 1);
    CHECK(all == 500);
  }
}

/// Tests the inner mark that results from each pair of outer and inner ECN mark (RFC 6040, figure 4).
static void test_ecn() {
  constexpr int kDrop = -1;
  constexpr int expected[4][4] = {
      // the columns are the outer mark: Not-ECT, ECT(1), ECT(0), CE
      {kNotEct, kNotEct, kNotEct, kDrop},
      {kEct1, kEct1, kEct1, kCe},
      {kEct0, kEct1, kEct0, kCe},
      {kCe, kCe, kCe, kCe},
  };
  for (const bool v6 : {false, true}) {
    for (const uint8_t dscp : {0, 0xb8, 0xfc}) {
      for (uint8_t inner = 0; inner < 4; inner++) {
        for (uint8_t outer = 0; outer < 4; outer++) {
          context = "inner " + std::to_string(inner) + ", outer " + std::to_string(outer) + (v6 ? ", IPv6" : "");
          Fields f;
          f.v6 = v6;
          f.tos = dscp | inner;
          Bytes bytes = build(f);
          const Packet packet = read(bytes);
          CHECK(ecn_of(bytes.data(), packet) == inner);
          const bool goes_on = take_ecn(static_cast<Ecn>(outer), bytes.data(), packet);
          CHECK(goes_on == (expected[inner][outer] != kDrop));
          // Only the mark and the checksum may have changed.
          f.tos = static_cast<uint8_t>(dscp | (goes_on ? expected[inner][outer] : inner));
          CHECK(bytes == build(f));
        }
      }
    }
  }
  context.clear();
}

/// Sums the traffic of one peer in two loops.
static void test_traffic_sums() {
  for (const bool turned : {false, true}) {
    TrafficRows first, second;
    first.add_sent(0, 1, 100);
    first.add_received(0, 2, 200, 5'000);
    second.add_received(0, 3, 300, 6'000);
    Traffic sum;
    for (const TrafficRows* rows : {turned ? &second : &first, turned ? &first : &second}) rows->sum(0, sum);
    CHECK(sum.tx_packets == 1 && sum.tx_bytes == 100);
    CHECK(sum.rx_packets == 5 && sum.rx_bytes == 500);
    CHECK(sum.last_received_ms == 6'000);  // the later time of the two loops, in either order
    TrafficRows silent;
    silent.sum(0, sum);
    CHECK(sum.last_received_ms == 6'000);
  }
}

/// Tests weft's reaction to each refusal, and what is turned off afterwards. The table contains every rule.
static void test_refusals() {
  enum class Effect { kNone, kLongRuns, kOff };  // kLongRuns and kOff apply to the endpoint of a message, or to the TUN
  struct Row {
    Way way;
    int error;
    uint32_t joined_by;
    size_t packets;
    Then then;
    Counter counted;
    Effect taken;  // the effect if the kernel accepted any packet singly; otherwise there is no effect
  };
  constexpr Way kUp = Way::kPeers, kDown = Way::kTun;
  constexpr Effect kNone = Effect::kNone;
  const Row rows[] = {
      {kUp, EIO, kUdpGso, 2, Then::kSingly, k_udp_gso_refusals, Effect::kOff},
      {kUp, EIO, kUdpGso, 128, Then::kSingly, k_udp_gso_refusals, Effect::kOff},
      {kUp, EIO, 0, 1, Then::kDrop, k_tx_drop_refused, kNone},
      {kUp, EINVAL, kUdpGso, 128, Then::kSingly, k_udp_gso_refusals, Effect::kLongRuns},
      {kUp, EINVAL, kUdpGso, 65, Then::kSingly, k_udp_gso_refusals, Effect::kLongRuns},
      {kUp, EINVAL, kUdpGso, 64, Then::kSingly, k_udp_gso_refusals, Effect::kOff},
      {kUp, EINVAL, kUdpGso, 2, Then::kSingly, k_udp_gso_refusals, Effect::kOff},
      {kUp, EINVAL, 0, 1, Then::kDrop, k_tx_drop_refused, kNone},
      {kUp, EMSGSIZE, kUdpGso, 2, Then::kSingly, k_udp_gso_refusals, Effect::kOff},
      {kUp, EMSGSIZE, 0, 1, Then::kDrop, k_tx_drop_too_big, kNone},
      {kUp, EAGAIN, kUdpGso, 2, Then::kDrop, k_tx_drop_socket_full, kNone},
      {kUp, EAGAIN, 0, 1, Then::kDrop, k_tx_drop_socket_full, kNone},
      {kUp, ENOBUFS, kUdpGso, 128, Then::kDrop, k_tx_drop_socket_full, kNone},
      {kUp, ENOMEM, 0, 1, Then::kDrop, k_tx_drop_socket_full, kNone},
      {kUp, EPERM, kUdpGso, 2, Then::kDrop, k_tx_drop_refused, kNone},
      {kUp, ENETUNREACH, 0, 1, Then::kDrop, k_tx_drop_refused, kNone},
      {kUp, EBADFD, 0, 1, Then::kDrop, k_tx_drop_refused, kNone},
      {kDown, EINVAL, kCoalesceTcp, 2, Then::kSingly, k_coalesce_refusals, Effect::kOff},
      {kDown, EINVAL, kCoalesceTcp, 100, Then::kSingly, k_coalesce_refusals, Effect::kOff},
      {kDown, EINVAL, kCoalesceUdp, 64, Then::kSingly, k_coalesce_refusals, Effect::kOff},
      {kDown, EINVAL, kCoalesceUdp, 65, Then::kSingly, k_coalesce_refusals, Effect::kLongRuns},
      {kDown, EIO, kCoalesceTcp, 2, Then::kSingly, k_coalesce_refusals, kNone},
      {kDown, EAGAIN, kCoalesceUdp, 128, Then::kSingly, k_coalesce_refusals, kNone},
      {kDown, EINVAL, 0, 1, Then::kDrop, k_rx_drop_tun, kNone},
      {kDown, EIO, 0, 1, Then::kDrop, k_rx_drop_tun, kNone},
      {kDown, EBADFD, 0, 1, Then::kGiveUp, k_rx_drop_tun, kNone},
      {kDown, EBADFD, kCoalesceTcp, 30, Then::kGiveUp, k_rx_drop_tun, kNone},
  };
  const auto never_asked = [] {
    CHECK(!"the clock is asked only where something is remembered");
    return int64_t{0};
  };
  const auto now = [] { return int64_t{1'000}; };
  const Endpoint here = endpoint_at(SocketAddress(ipv4(0x0a000001), htons(8285)));
  const Endpoint there = endpoint_at(SocketAddress(ipv4(0x0a000002), htons(8285)));
  for (const Row& row : rows) {
    for (const bool taken : {true, false}) {
      context = std::string(row.way == kUp ? "to peers, " : "to the TUN, ") + std::to_string(row.error) + ", " +
                std::to_string(row.packets) + " packets, " + (taken ? "taken singly" : "not taken singly");
      const Attempt attempt{row.way, row.joined_by, row.packets};
      const Consequence& consequence = consequence_of(attempt, row.error);
      CHECK(consequence.then == row.then);
      CHECK(consequence.counted == row.counted);
      if (row.then != Then::kSingly) CHECK(consequence.off == Off::kNothing);
      const Effect effect = taken ? row.taken : kNone;
      Features features(kAllFeatures);
      Learnt learnt(&features);
      CHECK(learnt.udp_segments_to(here, never_asked) == 128);
      if (row.way == kUp) {
        learnt.learn(consequence, taken, here, 1500, now());
      } else {
        learnt.learn(consequence, attempt, taken);
      }
      const bool off = row.way == kDown && effect == Effect::kOff;
      CHECK(features.bits() == (off ? kAllFeatures & ~row.joined_by : kAllFeatures));
      CHECK(learnt.udp_segments() == (row.way == kDown && effect == Effect::kLongRuns ? 64 : 128));
      const uint16_t to_here = row.way == kDown || effect == kNone ? 128 : effect == Effect::kOff ? 1 : 64;
      CHECK(learnt.udp_segments_to(here, now) == to_here);
      CHECK(learnt.udp_segments_to(there, never_asked) == 128);
    }
  }
  context.clear();
}

/// The refusals of an endpoint must be remembered for less than a minute, for a limited number of endpoints,
/// independently of each other.
static void test_learnt() {
  const auto endpoint = [](uint32_t number) { return endpoint_at(SocketAddress(ipv4(number), htons(8285))); };
  const Consequence fewer{Then::kSingly, k_udp_gso_refusals, Off::kLongRuns};
  const Consequence none{Then::kSingly, k_udp_gso_refusals, Off::kFeature};
  Features features(kAllFeatures);
  Learnt learnt(&features);
  const auto most = [&](uint32_t number, int64_t now) {
    return learnt.udp_segments_to(endpoint(number), [now] { return now; });
  };
  CHECK(kRememberedMs <= 60'000);
  learnt.learn(fewer, true, endpoint(1), 1500, 1'000);
  CHECK(most(1, 1'000 + kRememberedMs - 1) == 64);
  CHECK(most(1, 1'000 + kRememberedMs) == 128);
  learnt.learn(none, true, endpoint(1), 1500, 2'000);  // the entry of endpoint 1 is renewed
  CHECK(most(1, 2'000 + kRememberedMs - 1) == 1);
  for (uint32_t i = 2; i <= 64; i++) learnt.learn(none, true, endpoint(i), 1500, 2'000 + i);
  for (uint32_t i = 1; i <= 64; i++) CHECK(most(i, 3'000) == 1);
  CHECK(most(65, 3'000) == 128);
  // Add one endpoint too many. Endpoints without an entry must get no joined messages, and existing entries must stay
  // valid.
  learnt.learn(fewer, true, endpoint(3), 1500, 3'000);
  learnt.learn(none, true, endpoint(65), 1500, 3'000);
  for (const uint32_t other : {65u, 66u, 1'000u}) {
    CHECK(most(other, 3'000 + kRememberedMs - 1) == 1);
    CHECK(most(other, 3'000 + kRememberedMs) == 128);
  }
  CHECK(most(3, 3'000) == 64 && most(2, 3'000) == 1);
  // An expired entry is replaced by the new endpoint.
  const int64_t later = 2'002 + kRememberedMs;
  learnt.learn(fewer, true, endpoint(70), 1500, later);
  CHECK(most(70, later) == 64 && most(71, later + 2'000) == 128);
  CHECK(features.bits() == kAllFeatures);
}

/// Tests how long a path MTU is valid, and which refusals it explains.
static void test_path_mtu() {
  PathMtu path;
  CHECK(path.bytes() == 0 && path.is_due(0) && path.is_due(1'000'000));
  CHECK(!path.explains(1500, 1'000));  // the MTU is unknown, so it explains nothing
  path.learn(1500, 1'000);
  CHECK(path.bytes() == 1500 && !path.is_due(1'499) && path.is_due(1'500));
  path.learn(0, 1'500);  // 0 means that the kernel knows no MTU, for example because there is no route
  CHECK(path.bytes() == 0 && !path.is_due(1'999) && path.is_due(2'000));
  path.learn(1 << 20, 2'000);
  CHECK(path.bytes() == 65535);
  // The MTU has decreased: refusals in all threads must cause only one query.
  path.learn(1500, 3'000);
  CHECK(path.explains(1500, 3'010) && path.is_due(3'010));
  CHECK(path.explains(1500, 3'010) && path.is_due(3'010));
  path.learn(1280, 3'011);
  CHECK(path.bytes() == 1280 && !path.is_due(3'011));
  CHECK(path.explains(1500, 3'012) && !path.is_due(3'012));
  // If a datagram fits the confirmed MTU, the MTU does not explain the refusal.
  CHECK(!path.explains(1280, 3'013) && !path.explains(1280, 3'510));
  CHECK(path.explains(1280, 3'511) && path.is_due(3'511));
  path.learn(1280, 3'512);
  CHECK(!path.explains(1280, 4'011) && path.explains(1280, 4'012));
  path.learn(1280, 4'013);
  path.learn(1280, 4'600);  // the MTU is queried regularly, also without a refusal
  CHECK(path.explains(1280, 4'601) && path.is_due(4'601));

  // A refusal that the path MTU explains must not turn off joining.
  for (const int error : {EMSGSIZE, EINVAL}) {
    Features features(kAllFeatures);
    Learnt learnt(&features);
    const Endpoint here = endpoint_at(SocketAddress(ipv4(0x0a000001), htons(8285)));
    const Consequence& consequence = consequence_of({Way::kPeers, kUdpGso, 10}, error);
    const auto most = [&] { return learnt.udp_segments_to(here, [] { return int64_t{1'000}; }); };
    here.path.learn(1500, 1'000);
    learnt.learn(consequence, true, here, 1500, 1'000);
    CHECK(most() == 128 && here.path.is_due(1'000));
    here.path.learn(1500, 1'001);
    learnt.learn(consequence, true, here, 1500, 1'002);
    CHECK(most() == 1);
  }
}

/// Reassembled fragments must equal the packet. No fragment may exceed the MTU, and each must pass the filter.
static void test_fragments(int rounds) {
  for (int round = 0; round < 50 * rounds; round++) {
    Fields f;
    f.tcp = false;
    f.id = static_cast<uint16_t>(random_below(65536));
    f.payload = 8 + random_below(random_below(10) ? 3'000 : 60'000);
    // Only the first and the last of these options are copied into each fragment (RFC 791 section 3.1).
    if (random_below(3) == 0) f.ip_options = {148, 4, 0, 0, 1, 7, 7, 4, 0, 0, 0, 0, 1, 136, 4, 1, 2, 0, 0, 0};
    const uint16_t offset = random_below(3) ? 0 : static_cast<uint16_t>(random_below(500));
    const bool more = random_below(3) == 0;
    f.fragment = static_cast<uint16_t>(offset | (more ? 0x2000 : 0));
    if (more) f.payload = f.payload / 8 * 8;
    Bytes packet = build(f);
    const size_t ip_bytes = 20 + f.ip_options.size(), mtu = 256 + random_below(1'300);
    // The UDP header is in the header piece, as for a segment, or in the payload piece.
    const size_t header = ip_bytes + (random_below(2) ? 8 : 0);
    Fragmenter fragments({packet.data(), header, packet.data() + header, packet.size() - header}, ip_bytes, mtu);
    Bytes whole(packet.begin(), packet.begin() + static_cast<long>(ip_bytes));
    size_t count = 0;
    while (!fragments.done()) {
      Bytes bytes(fragments.header_bytes());
      const Segment one = fragments.next(bytes.data());
      bytes.resize(one.header_bytes);
      bytes.insert(bytes.end(), one.payload, one.payload + one.payload_bytes);
      CHECK(bytes.size() <= mtu && load_be16(&bytes[2]) == bytes.size());
      Packet shape;
      CHECK(!inspect(bytes, shape) && shape.ip_bytes == ip_bytes);
      const uint16_t word = load_be16(&bytes[6]);
      CHECK((word & 0x1fffu) == offset + (whole.size() - ip_bytes) / 8);
      whole.insert(whole.end(), bytes.begin() + static_cast<long>(ip_bytes), bytes.end());
      CHECK(((word & 0x2000) != 0) == (more || whole.size() < packet.size()));
      if (!f.ip_options.empty()) {
        Bytes options(bytes.begin() + 20, bytes.begin() + static_cast<long>(ip_bytes));
        Bytes expected = f.ip_options;
        if (count > 0) std::fill(expected.begin() + 5, expected.begin() + 12, uint8_t{1});
        CHECK(options == expected);
      }
      count++;
    }
    CHECK(whole == packet && (count > 1) == (packet.size() > mtu));
  }
}

/// Tests the options of later fragments. Options that exceed the header, and all options behind them, must stay
/// unchanged.
static void test_fragment_options() {
  const struct {
    Bytes options, later;
  } rows[] = {
      {{7, 4, 4, 0}, {1, 1, 1, 1}}, {{148, 4, 0, 0}, {148, 4, 0, 0}}, {{1, 7, 3, 4}, {1, 1, 1, 1}},
      {{7, 3, 4, 0}, {1, 1, 1, 0}}, {{7, 2, 148, 2}, {1, 1, 148, 2}}, {{7, 5, 4, 0}, {7, 5, 4, 0}},
      {{1, 1, 1, 7}, {1, 1, 1, 7}}, {{7, 0, 4, 0}, {7, 0, 4, 0}},     {{0, 7, 3, 4}, {0, 7, 3, 4}},
      {{7, 2, 7, 3}, {1, 1, 7, 3}},
  };
  for (const auto& row : rows) {
    Fields f;
    f.tcp = false;
    f.payload = 600;
    f.fragment = 0;
    f.ip_options = row.options;
    Bytes packet = build(f);
    Fragmenter fragments({packet.data(), 24, packet.data() + 24, packet.size() - 24}, 24, 300);
    for (size_t count = 0; !fragments.done(); count++) {
      Bytes header(fragments.header_bytes());
      fragments.next(header.data());
      CHECK(Bytes(header.begin() + 20, header.begin() + 24) == (count == 0 ? row.options : row.later));
      CHECK(reference_fold(reference_sum(header.data(), 24)) == 0xffff);
    }
  }
}

/// A simulated core. The test sets how long a yield takes, when the next packet comes, and how late a sleeping thread
/// wakes.
struct Core {
  mutable int64_t now = 7'000'000'000;
  int64_t turn_us = 0;
  int64_t packet_at = 0;
  mutable int turns = 0, sleeps = 0, looks = 0, times = 0;
  int64_t now_us() const { return times++, now; }
  void give_way() const { turns++, now += turn_us; }
  int look(int milliseconds) const {
    looks++;
    if (milliseconds < 0) sleeps++, now = std::max(now, packet_at);
    return now >= packet_at ? 1 : 0;
  }
  /// Waits for a packet that arrives after `gap_us`. `is_let_in` is false if the filter refuses it.
  void wait(Waiting& waiting, int64_t gap_us, bool is_let_in = true) {
    turns = sleeps = looks = times = 0;
    packet_at = now + gap_us;
    CHECK(waiting.wait([this](int milliseconds) { return look(milliseconds); }, *this) == 1);
    CHECK(now >= packet_at);
    if (is_let_in) waiting.found_worth();
  }
};

static void test_waiting() {
  constexpr int64_t kWindow = 50;
  {
    context = "packets that come soon are not slept for";
    Waiting waiting(kWindow);
    Core core{.turn_us = 5};
    for (int i = 0; i < 1'000; i++) {
      core.wait(waiting, 20);
      CHECK(core.turns == 4 && core.sleeps == 0);
    }
    core.wait(waiting, 0);  // the packet has already arrived
    CHECK(core.turns == 0 && core.sleeps == 0);
  }
  {
    context = "packets far apart cost one look after the first";
    Waiting waiting(kWindow);
    Core core{.turn_us = 1};
    core.wait(waiting, 10'000);
    CHECK(core.turns == kWindow && core.sleeps == 1);
    for (int i = 0; i < 1'000; i++) {
      core.wait(waiting, 10'000);
      CHECK(core.turns == 0 && core.sleeps == 1);
    }
    // After a long pause the thread sleeps until the first packet, and polls for a packet that follows soon.
    core.wait(waiting, 30);
    CHECK(core.turns == 0 && core.sleeps == 1);
    core.wait(waiting, 30);
    CHECK(core.turns == 30 && core.sleeps == 0);
  }
  {
    context = "in vain, no more than its share of a core";
    Waiting waiting(kWindow);
    Core core{.turn_us = 1};
    const int64_t start = core.now;
    int64_t spent = 0;
    for (int i = 0; i < 10'000; i++) core.wait(waiting, kWindow + i % 2'000), spent += core.turns;
    CHECK(spent * Waiting::kNearWindows / 10 < core.now - start);
    Waiting worst(kWindow);
    const int64_t begin = core.now;
    spent = 0;
    for (int i = 0; i < 10'000; i++) core.wait(worst, kWindow * (Waiting::kNearWindows + 1)), spent += core.turns;
    CHECK(spent * Waiting::kNearWindows <= core.now - begin);
  }
  {
    context = "a late turn ends it for a while, each more for twice as long";
    Waiting waiting(kWindow);
    Core core;
    for (int64_t rest = Waiting::kShortestRestUs; rest < 4 * Waiting::kLongestRestUs; rest *= 2) {
      core.turn_us = Waiting::kLateUs + 1;
      core.wait(waiting, 30);
      CHECK(core.turns == 1);
      const int64_t end = core.now + std::min(rest, Waiting::kLongestRestUs);
      while (core.now + 1'000 < end) {
        core.wait(waiting, 1'000);
        CHECK(core.turns == 0 && core.sleeps == 1);
      }
      core.wait(waiting, 1'000);
    }
    // After enough short yields, the time without polling is back at its minimum.
    core.turn_us = 5;
    for (int i = 0; i < Waiting::kGoodTurns; i++) core.wait(waiting, 20);
    core.turn_us = Waiting::kLateUs + 1;
    core.wait(waiting, 30);
    const int64_t end = core.now + Waiting::kShortestRestUs;
    while (core.now < end) core.wait(waiting, 1'000);
    core.turn_us = 5;
    core.wait(waiting, 20);
    CHECK(core.turns == 4 && core.sleeps == 0);
  }
  {
    context = "a turn as long as it may take is not late";
    Waiting waiting(10 * Waiting::kLateUs);
    Core core{.turn_us = Waiting::kLateUs};
    for (int i = 0; i < 10; i++) {
      core.wait(waiting, 2 * Waiting::kLateUs);
      CHECK(core.turns == 2 && core.sleeps == 0);
    }
  }
  for (const int good : {Waiting::kGoodTurns - 1, Waiting::kGoodTurns}) {
    context = std::to_string(good) + " turns between two late ones";
    Waiting waiting(kWindow);
    Core core{.turn_us = Waiting::kLateUs + 1};
    core.wait(waiting, 30);
    core.now += Waiting::kShortestRestUs;
    core.turn_us = 1;
    for (int i = 0; i < good; i++) {
      core.wait(waiting, 1);
      CHECK(core.turns == 1);
    }
    core.turn_us = Waiting::kLateUs + 1;
    core.wait(waiting, 30);
    const bool is_forgotten = good == Waiting::kGoodTurns;
    core.turn_us = 1;
    core.now += Waiting::kShortestRestUs - 1;
    core.wait(waiting, 1);
    CHECK(core.sleeps == 1);
    core.wait(waiting, 1);
    CHECK(core.turns == is_forgotten);
    core.now += Waiting::kShortestRestUs;
    core.wait(waiting, 1);
    CHECK(core.turns == 1);
  }
  for (const int64_t more : {0, 1}) {
    context = "a sleep as long as it may be, and by " + std::to_string(more);
    Waiting waiting(kWindow);
    Core core{.turn_us = 1};
    core.wait(waiting, kWindow + Waiting::kNearWindows * kWindow + more);
    CHECK(core.turns == kWindow && core.sleeps == 1);
    core.wait(waiting, 20);
    CHECK(core.turns == (more == 0 ? 20 : 0));
  }
  {
    context = "what is refused is not looked again for, however much comes";
    Waiting waiting(kWindow);
    Core core{.turn_us = 5};
    core.wait(waiting, 20);
    int turns = 0;
    for (int i = 0; i < 10'000; i++) {
      core.wait(waiting, 20, false);
      turns += core.turns;
    }
    // the thread polled for the rest of the polling time after the last forwarded packet
    CHECK(turns * core.turn_us <= kWindow + core.turn_us);
  }
  {
    context = "what is refused meanwhile takes nothing from a conversation";
    Waiting waiting(kWindow);
    Core core{.turn_us = 5};
    for (int i = 0; i < 1'000; i++) {
      core.wait(waiting, 20, false);
      CHECK(core.turns == 4 && core.sleeps == 0);
      core.wait(waiting, 20);
      CHECK(core.turns == 4 && core.sleeps == 0);
    }
    // A packet came after the polling time, but soon. So the thread must poll for the next one, regardless of wake-ups
    // in between.
    for (int i = 0; i < 10; i++) core.wait(waiting, 100, false);
    core.wait(waiting, 100);
    CHECK(core.sleeps == 1);
    core.wait(waiting, 20);
    CHECK(core.turns == 4 && core.sleeps == 0);
    // After a long pause the thread must not poll, even if refused packets came without a pause.
    for (int i = 0; i < 100; i++) core.wait(waiting, 100, false);
    core.wait(waiting, 100);
    core.wait(waiting, 20);
    CHECK(core.turns == 0 && core.sleeps == 1);
  }
  {
    context = "switched off, it asks nothing";
    Waiting waiting(0);
    Core core{.turn_us = 5};
    core.wait(waiting, 20);
    CHECK(core.turns == 0 && core.sleeps == 1 && core.looks == 1 && core.times == 0);
  }
  context.clear();
}

/// Returns a SYN with correct checksum whose options are `before`, then an MSS option.
static Bytes syn(const Bytes& before, uint16_t mss, uint8_t flags = kSyn) {
  Bytes options = before;
  for (const uint8_t byte : {uint8_t{2}, uint8_t{4}, static_cast<uint8_t>(mss >> 8), static_cast<uint8_t>(mss)}) {
    options.push_back(byte);
  }
  while (options.size() % 4 != 0) options.push_back(0);
  Bytes packet(kIpv4HeaderBytes + kTcpHeaderBytes, 0);
  packet[0] = 0x45;
  packet[8] = 64;
  packet[9] = IPPROTO_TCP;
  for (size_t i = 12; i < 20; i++) packet[i] = static_cast<uint8_t>(10 + i);
  packet[kIpv4HeaderBytes + 12] = static_cast<uint8_t>((kTcpHeaderBytes + options.size()) / 4 << 4);
  packet[kIpv4HeaderBytes + 13] = flags;
  packet.insert(packet.end(), options.begin(), options.end());
  store_be16(packet.data() + 2, static_cast<uint16_t>(packet.size()));
  return packet;
}

static uint16_t tcp_sum(const Bytes& packet) {
  const size_t size = packet.size() - kIpv4HeaderBytes;
  const uint64_t pseudo = pseudo_header_sum(packet.data() + 12, 8, IPPROTO_TCP, static_cast<uint32_t>(size));
  return checksum_fold(checksum_add(pseudo, packet.data() + kIpv4HeaderBytes, size));
}

/// The MSS must be lowered at any position, and the checksum must be correct afterwards. All else must stay unchanged.
static void test_mss() {
  for (const uint8_t flags : {uint8_t{kSyn}, uint8_t{kAck}}) {
    Fields f;
    f.payload = 0;
    f.flags = flags;
    Bytes bare = build(f);  // a header without options is left unchanged
    CHECK(is_tcp_syn(bare.data(), read(bare)) == (flags == kSyn));
  }
  for (const Bytes& before : {Bytes{}, Bytes{1}, Bytes{1, 1}, Bytes{1, 1, 1}, Bytes{3, 3, 7}, Bytes{4, 2, 1}}) {
    for (const uint16_t mss : {uint16_t{536}, uint16_t{1432}, uint16_t{1433}, uint16_t{1460}, uint16_t{65495}}) {
      for (const bool open : {false, true}) {
        Bytes packet = syn(before, mss);
        if (!open) {
          const uint16_t sum = static_cast<uint16_t>(~tcp_sum(packet));
          store(packet.data() + kIpv4HeaderBytes + kTcpChecksum, sum);
          CHECK(tcp_sum(packet) == 0xffff);
        }
        Bytes expected = packet;
        Packet read;
        CHECK(read_packet(packet.data(), packet.size(), read) && is_tcp_syn(packet.data(), read));
        clamp_mss(packet.data(), read, 1432, open);
        const size_t at = kIpv4HeaderBytes + kTcpHeaderBytes + before.size() + 2;
        CHECK(load_be16(packet.data() + at) == std::min<uint16_t>(mss, 1432));
        if (!open) CHECK(tcp_sum(packet) == 0xffff);
        store_be16(expected.data() + at, std::min<uint16_t>(mss, 1432));
        const size_t checksum = kIpv4HeaderBytes + kTcpChecksum;
        if (!open) std::copy_n(packet.begin() + checksum, 2, expected.begin() + checksum);
        CHECK(packet == expected);
      }
    }
  }
  // Other packets than a SYN, truncated packets, and options that exceed their header must stay unchanged.
  Bytes data = syn({}, 1460, kAck);
  Packet read;
  CHECK(read_packet(data.data(), data.size(), read) && !is_tcp_syn(data.data(), read));
  for (const Bytes& odd : {Bytes{2}, Bytes{2, 0}, Bytes{9, 1}, Bytes{9, 200}, Bytes{0}, Bytes{0, 2}}) {
    Bytes packet = syn(odd, 1460);
    const Bytes was = packet;
    CHECK(read_packet(packet.data(), packet.size(), read));
    if (odd.size() == 2 || odd[0] == 0) {
      clamp_mss(packet.data(), read, 1432, false);
      CHECK(packet == was);
    }
  }
  Bytes cut = syn({}, 1460);
  cut[kIpv4HeaderBytes + 12] = 0xf0;
  CHECK(read_packet(cut.data(), cut.size(), read));
  clamp_mss(cut.data(), read, 1432, false);
}

/// Tests the MSS option at every position, options that look similar, and any initial checksum.
static void test_mss_places() {
  const struct {
    Bytes options, became;
  } rows[] = {
      {{2, 4, 5, 180}, {2, 4, 5, 152}},
      {{3, 3, 7, 2, 4, 5, 180, 0}, {3, 3, 7, 2, 4, 5, 152, 0}},
      {{5, 4, 2, 4, 2, 4, 5, 180}, {5, 4, 2, 4, 2, 4, 5, 152}},
      {{2, 4, 5, 180, 2, 4, 5, 180}, {2, 4, 5, 152, 2, 4, 5, 180}},
      {{1, 1, 1, 2}, {}},
      {{1, 1, 2, 4}, {}},
      {{1, 2, 4, 5}, {}},
      {{8, 4, 5, 180}, {}},
      {{2, 6, 5, 180, 5, 180, 1, 1}, {}},
      {{0, 1, 1, 1, 2, 4, 5, 180}, {}},
      {{8, 1, 1, 1, 2, 4, 5, 180}, {}},
      {{8, 0, 1, 1, 2, 4, 5, 180}, {}},
      {{8, 9, 1, 1, 2, 4, 5, 180}, {}},
      {{8, 8, 1, 1, 2, 4, 5, 180}, {}},
  };
  for (const auto& row : rows) {
    for (int round = 0; round < 300; round++) {
      Fields f;
      f.flags = kSyn;
      f.tcp_options = row.options;
      f.source = static_cast<uint32_t>(rng());
      f.sequence = static_cast<uint32_t>(rng());
      const Bytes before = build(f);
      Bytes packet = before;
      // A truncated option would be complete if the bytes behind the header were read as part of it.
      const uint8_t behind[] = {4, 5, 180, 180};
      const size_t payload = 40 + row.options.size();
      std::copy(std::begin(behind), std::end(behind), packet.begin() + static_cast<long>(payload));
      CHECK(mend(packet));
      Bytes expected = packet;
      clamp_mss(packet.data(), read(packet), 1432, false);
      const Bytes& options = row.became.empty() ? row.options : row.became;
      std::copy(options.begin(), options.end(), expected.begin() + 40);
      std::copy_n(packet.begin() + 36, 2, expected.begin() + 36);
      CHECK(packet == expected && transport_sum(packet) == 0xffff);
    }
  }
}

/// The filter must report the peer of each packet that enters, regardless of refused packets in between.
static void test_filter() {
  Bytes records = record(4, 24, {10, 5, 2, 0}, 0xc0000202);
  const Bytes other = record(4, 24, {10, 5, 3, 0}, 0xc0000203);
  records.insert(records.end(), other.begin(), other.end());
  for (const uint32_t number : {2u, 3u}) {
    Bytes subnet(16);
    subnet[0] = 0xfd;
    store_be32(&subnet[12], 0x0a050000 | number << 8);
    const Bytes six = record(6, 120, subnet, 0xc0000200 | number);
    records.insert(records.end(), six.begin(), six.end());
  }
  const PeerTables tables(0, records);
  uint8_t first6[16] = {0xfd};
  store_be32(first6 + 12, 0x0a050209);
  const Endpoint* one6 = tables.current().find(6, first6);
  const uint8_t first[] = {10, 5, 2, 9}, second[] = {10, 5, 3, 9};
  const Endpoint* one = tables.current().find(4, first);
  const Endpoint* two = tables.current().find(4, second);
  const SocketAddress from_one(ipv4(0xc0000202), 1), from_two(ipv4(0xc0000203), 1), from_none(ipv4(0xc0000204), 1);
  for (const VerifySource verify : {VerifySource::kStrict, VerifySource::kInner, VerifySource::kOff}) {
    context = "verify " + std::to_string(static_cast<int>(verify));
    UnknownSenders unknown_senders;
    Filter filter(options_of(verify), &unknown_senders);
    const auto reason_of = [&](uint32_t source, uint32_t destination = 0x0a050102, bool v6 = false) {
      Fields f;
      f.v6 = v6;
      f.source = source;
      f.destination = destination;
      Bytes bytes = build(f);
      return filter.reason_to_drop(bytes.data(), read(bytes));
    };
    const bool is_strict = verify == VerifySource::kStrict, is_off = verify == VerifySource::kOff;
    filter.begin(tables.current());
    for (int turn = 0; turn < 2; turn++) {
      filter.begin_message(from_one);
      CHECK(!reason_of(0x0a050207) && filter.peer() == one);
      // A source of another peer, then the first source again, both from the same sender.
      CHECK(reason_of(0x0a050307) == (is_strict ? std::optional(k_rx_drop_spoofed_source) : std::nullopt));
      CHECK(!reason_of(0x0a050207) && filter.peer() == one);
      CHECK(reason_of(0x0a050207, 0x0a050302) == (is_off ? std::nullopt : std::optional(k_rx_drop_destination)));
      CHECK(!reason_of(0x0a050207) && filter.peer() == one);
      for (const int again : {1, 2}) {
        CHECK(!reason_of(0x0a050207, 0x0a050102, true) && filter.peer() == one6);
        CHECK(reason_of(0x0a050207, 0x0a050302, true) ==
              (is_off ? std::nullopt : std::optional(k_rx_drop_destination)));
        if (again == 1) CHECK(!reason_of(0x0a050207) && filter.peer() == one);
      }
      CHECK(reason_of(0x0a050307, 0x0a050102, true) ==
            (is_strict ? std::optional(k_rx_drop_spoofed_source) : std::nullopt));
      CHECK(!reason_of(0x0a050207, 0x0a050102, true) && filter.peer() == one6);
      CHECK(!reason_of(0xc6336401, 0x0a050102, true) && filter.peer() == nullptr);
      CHECK(reason_of(0x0a050907, 0x0a050102, true) ==
            (is_off ? std::nullopt : std::optional(k_rx_drop_unknown_sender)));
      CHECK(!reason_of(0x0a050207) && filter.peer() == one);
      // A node may send from its own address outside the network, which belongs to no peer's subnet. A source inside
      // the network that belongs to no peer is refused.
      CHECK(!reason_of(0xc6336401) && filter.peer() == nullptr);
      CHECK(reason_of(0x0a050907) == (is_off ? std::nullopt : std::optional(k_rx_drop_unknown_sender)));
      // Check the same packets from other senders.
      filter.begin_message(from_two);
      CHECK(reason_of(0x0a050207) == (is_strict ? std::optional(k_rx_drop_spoofed_source) : std::nullopt));
      CHECK(!reason_of(0x0a050307) && filter.peer() == two);
      CHECK(!reason_of(0xc6336401) && filter.peer() == nullptr);
      filter.begin_message(from_none);
      CHECK(reason_of(0x0a050307) == (is_strict ? std::optional(k_rx_drop_spoofed_source) : std::nullopt));
      CHECK(reason_of(0xc6336401) == (is_off ? std::nullopt : std::optional(k_rx_drop_unknown_sender)));
    }
  }
  context.clear();
}

/// Runs the tests with several threads, for ThreadSanitizer.
static void test_threads() {
  test_peer_replacement();
  test_strangers();
  test_drops_while_written();
  test_icmp_limit();
  test_index_code();
  test_replay();
  test_replay_lanes();
  test_replay_memory();
  test_replay_saved_bytes();
  test_replay_without_memory();
  if (Aead::create(Aead::Way::kSeal)) {
    test_aead();
    test_session();
    test_last_counter();
    test_staged_bytes();
    test_sessions();
    test_mailbox();
    test_mailbox_rings();
    test_saved_sessions();
  } else {
    std::fputs("no OpenSSL in this process: what needs keys is left out\n", stderr);
  }
}

/// Usage: `core_test SEED ROUNDS`, or `core_test SEED threads`.
int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  test_threads();
  if (argc > 2 && std::string_view(argv[2]) == "threads") return verdict(seed);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 40;
  test_numbers();
  test_fold();
  test_checksum();
  test_read_packet();
  test_read_limits();
  test_inspect();
  test_inspect_ipv6();
  test_icmp_ipv6();
  test_circle();
  test_for_link();
  test_peers();
  test_paged_map();
  // With sanitizers this test takes 8 s for 60,000 peers, so builds with sanitizers use 15,000.
  test_peer_spread(rounds < 8 ? 15'000 : 60'000);
  test_peer_changes();
  test_peer_rounds();
  test_peer_table_stays();
  test_peer_release();
  test_filter();
  test_traffic();
  test_endpoints();
  test_addresses();
  test_families();
  test_drops();
  test_drops_at_start();
  test_segment_rules();
  test_coalesce_reasons();
  test_coalesce_bytes(std::min(rounds, 8));
  test_coalesce_past();
  test_coalesce_undone();
  test_coalesce_beside();
  test_coalesce_property(rounds);
  test_features();
  test_icmp();
  test_refusals();
  test_learnt();
  test_path_mtu();
  test_fragments(rounds);
  test_fragment_options();
  test_mss();
  test_mss_places();
  test_waiting();
  test_ecn();
  test_traffic_sums();
  return verdict(seed);
}
