// core_test.cc - the pure core by table and by property, to be run under sanitizers; core.test.ts builds and runs it.
#include <arpa/inet.h>
#include <errno.h>

#include <atomic>
#include <map>
#include <string_view>
#include <thread>

#include "../../native/core/checksum.h"
#include "../../native/core/coalesce.h"
#include "../../native/core/drops.h"
#include "../../native/core/ecn.h"
#include "../../native/core/fragment.h"
#include "../../native/core/icmp.h"
#include "../../native/core/inspect.h"
#include "../../native/core/mss.h"
#include "../../native/core/nested.h"
#include "../../native/core/peers.h"
#include "../../native/core/precedence.h"
#include "../../native/core/refusals.h"
#include "../../native/core/segment.h"
#include "../../native/core/sessions.h"
#include "../../native/core/strangers.h"
#include "../../native/core/traffic.h"
#include "../../native/core/waiting.h"
#include "packets.h"

/// What the kernel would make of a write: the packets, cut by segment.h.
static std::vector<Bytes> cut(const VirtioHeader& virtio, Bytes bytes) {
  std::vector<Bytes> packets;
  const Packet packet = read(bytes);
  if (virtio.gso_type == kGsoNone) return {bytes};
  Segmenter segments;
  CHECK(segments.begin(virtio, bytes.data(), packet));
  const size_t expected = segments.count();
  while (!segments.done()) {
    uint8_t header[kMaxHeadersBytes];
    const Segment segment = segments.next(header);
    Bytes one(segment.header, segment.header + segment.header_bytes);
    one.insert(one.end(), segment.payload, segment.payload + segment.payload_bytes);
    packets.push_back(one);
  }
  CHECK(packets.size() == expected);
  return packets;
}

/// Runs packets through a coalescer and gives the writes, each with the packets that it is cut into again.
static std::vector<std::vector<Bytes>> coalesce(std::vector<Bytes>& packets, CoalesceLimits limits = {}) {
  static Coalescer coalescer;
  std::vector<std::vector<Bytes>> writes;
  const auto drain = [&] {
    for (size_t i = 0; i < coalescer.writes(); i++) {
      iovec iov[Coalescer::kMaxIovecs];
      const size_t count = coalescer.write(i, iov);
      VirtioHeader virtio;
      std::memcpy(&virtio, iov[0].iov_base, sizeof virtio);
      Bytes whole;
      for (size_t j = 1; j < count; j++) {
        const auto* from = static_cast<const uint8_t*>(iov[j].iov_base);
        whole.insert(whole.end(), from, from + iov[j].iov_len);
      }
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

// ---- the tests ----

static void test_checksum() {
  // Callers add a few words more: the largest sum leaves room for them.
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
    if (read_packet(bytes.data(), bytes.size(), packet) == Shape::kOk) {
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

/// Why a packet from a peer may not go on.
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
    packet.resize(packet.size() + 7);  // what is behind it is not looked at
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
  context = "each bit of a header";
  for (size_t bit = 0; bit < 8 * 32; bit++) {
    if (bit == 5) continue;  // makes it IPv6
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
  store_be16(&packet[4], load_be16(&packet[10]));  // which makes it 0
  store_be16(&packet[10], 0);
  CHECK(!reason_of(packet));
  store_be16(&packet[10], 0xffff);  // as flanneld's decrement may leave it
  CHECK(!reason_of(packet));
  context = "IPv6";
  f.v6 = true;
  packet = build(f);
  CHECK(!reason_of(packet));
  packet.resize(packet.size() - 1);
  CHECK(reason_of(packet) == k_rx_drop_malformed);
  context.clear();
}

/// Which packets out of the TUN are our own datagrams around our own datagrams.
constexpr uint32_t kOwn = 0xc0a84d01, kOther = 0xc0a84d02;
static void test_nested() {
  /// A datagram around what is given, with so many bytes before it.
  const auto around = [](const Bytes& packet, size_t encap_bytes, uint32_t source = kOwn, uint16_t port = 8285,
                         uint16_t fragment = 0) {
    Fields f;
    f.tcp = false;
    f.source = source;
    f.destination_port = port;
    f.fragment = fragment;
    f.payload = encap_bytes + packet.size();
    Bytes datagram = build(f);
    std::copy(packet.begin(), packet.end(), datagram.end() - static_cast<long>(packet.size()));
    return datagram;
  };
  const auto is_circle = [](Bytes bytes, size_t encap_bytes) {
    return is_nested_twice(ipv4(kOwn), encap_bytes, bytes.data(), read(bytes));
  };
  Fields f;
  f.tcp = false;
  f.source = kOwn;  // what the host itself says to a container
  f.destination_port = 53;
  const Bytes packet = build(f);
  for (const size_t encap : {size_t{0}, size_t{22}}) {
    CHECK(!is_circle(packet, encap));
    CHECK(!is_circle(around(packet, encap), encap));
    const Bytes once = around(build({}), encap);
    CHECK(!is_circle(once, encap));
    CHECK(is_circle(around(once, encap), encap));
    CHECK(is_circle(around(once, encap, kOwn, 8285, 0x2000), encap));
    CHECK(!is_circle(around(once, encap, kOther), encap));
    CHECK(!is_circle(around(once, encap, kOwn, 53), encap));
    CHECK(!is_circle(around(once, encap, kOwn, 8285, 0x0010), encap));  // it does not tell what it is of
    CHECK(is_circle(around(around(once, encap, kOwn, 1, 0x0010), encap), encap));
    CHECK(!is_circle(around(around(once, encap, kOther), encap), encap));
    // All that may be missing at the end.
    Bytes cut = around(once, encap);
    for (size_t size = cut.size(); size >= 28; size--) {
      cut.resize(size);
      store_be16(&cut[2], static_cast<uint16_t>(size));
      CHECK(is_circle(cut, encap) == (size >= 28 + encap + 24));
    }
  }
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

/// A look-up is a few probes, however many peers there are, and wherever in its bits their prefixes differ.
static void test_peer_spread() {
  for (const uint8_t version : {uint8_t{4}, uint8_t{6}}) {
    for (const uint8_t bits : {uint8_t{20}, uint8_t{24}, uint8_t{28}, uint8_t{56}, uint8_t{64}, uint8_t{96}}) {
      if (version == 4 && bits > 32) continue;
      for (const uint32_t count : {100u, 4000u, 60000u}) {
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

/// The record that takes a subnet's peer away.
static Bytes gone(Bytes record) {
  record[3] = 1;
  return record;
}

/// Whatever is set and changed after one another, the table is the one that the records left would make; and a peer
/// that is sent to the same address as before keeps what was learnt of the path.
static void test_peer_changes() {
  struct Entry {
    Bytes record;
    size_t learnt;
  };
  for (int round = 0; round < 30; round++) {
    PeerTables tables(1);
    PeerTables::Reader reader = tables.reader(0);
    std::map<Bytes, Entry> model;  // by family, prefix length and subnet
    const auto name = [](const Bytes& r) { return Bytes{r[0], r[1], r[8], r[9], r[10], r[11], r[23]}; };
    const auto random_record = [&] {
      const uint8_t version = random_below(4) ? 4 : 6, width = version == 4 ? 32 : 128;
      // Long enough for two to be one subnet by what stands in it only, and many of one length.
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
      const bool is_path_same = before && load<uint32_t>(&before->record[24]) == load<uint32_t>(&r[24]);
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
          CHECK(found->to == expected->to && found->limit == expected->limit && found->slot == expected->slot &&
                found->encap == expected->encap);
        }
        const Address host = ipv4(0xc0000200 + random_below(24));
        CHECK(table.has_endpoint_at(host) == anew.current().has_endpoint_at(host));
      }
      for (auto& [_, entry] : model) {
        const Endpoint* found = table.find(entry.record[0], &entry.record[8]);
        if (!found || !found->is_at(Address::v4(load<uint32_t>(&entry.record[24])))) {
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

/// What a table of before has is kept for as long as a reader has that table, and no longer.
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
}

/// Readers look up while the table is changed; what was freed too early shows under the sanitizers, and what was
/// changed together is seen together.
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
        if (!(found->to == beside->to) || !table.has_endpoint_at(found->address())) wrong++;
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

/// What the loops counted of a peer is one sum, and it was heard when the last of them heard it.
static void test_traffic() {
  TrafficRows first, second;
  // The last of a chunk, the first of the next, and the last that there is.
  for (const uint32_t slot : {1u, 4095u, 4096u, 65'536u, 1'000'000u, TrafficRows::kMaxSlots - 1}) {
    for (TrafficRows* rows : {&first, &second}) rows->make_room(slot + 1);
    Traffic sum;
    first.sum(slot, sum);
    second.sum(slot, sum);
    CHECK(sum.tx_packets == 0 && sum.rx_bytes == 0 && sum.heard_ms == 0);
    first.add_received(slot, 1, 100, 5);
    sum = {};
    first.sum(slot, sum);
    second.sum(slot, sum);
    CHECK(sum.rx_packets == 1 && sum.rx_bytes == 100 && sum.heard_ms == 5);
    second.add_received(slot, 2, 200, 7);
    for (const bool is_reversed : {false, true}) {
      sum = {};
      for (const TrafficRows* rows : {is_reversed ? &second : &first, is_reversed ? &first : &second})
        rows->sum(slot, sum);
      CHECK(sum.rx_packets == 3 && sum.rx_bytes == 300 && sum.heard_ms == 7);
    }
    first.add_sent(slot, 3, 30);
    first.add_sent(slot, 4, 40);
    first.add_received(slot, 1, 1, 9);
    sum = {};
    for (const TrafficRows* rows : {&first, &second}) rows->sum(slot, sum);
    CHECK(sum.tx_packets == 7 && sum.tx_bytes == 70 && sum.heard_ms == 9);
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

/// An address is one of its family, whichever way it came in, and is in the networks that have it.
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

/// A subnet and an endpoint may each be of either family, and what is asked of a peer is asked of both.
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
    CHECK(found && found->is_at(Address::v6(v6)) && found->to.port() == htons(8285));
    CHECK(tables.current().has_endpoint_at(Address::v6(v6)) && !tables.current().has_endpoint_at(ipv4(1)));
    CHECK(found && found->to.size() == sizeof(sockaddr_in6));
  }
}

/// What is kept of a peer is its own: for as long as its slot is, and no longer than somebody has a table with it.
static void test_sessions() {
  static std::atomic<int> alive;
  struct Session {
    Session() { alive++; }
    ~Session() { alive--; }
    std::atomic<uint32_t> owner{0};
  };
  alive = 0;
  {
    Sessions<Session> sessions;
    PeerTables tables(1);
    const auto of = [](uint8_t third, uint32_t slot, uint32_t endpoint = 1) {
      Bytes r = record(4, 24, {10, 5, third, 0}, endpoint);
      store(&r[56], slot);
      return r;
    };
    const auto say = [&](const Bytes& records, bool is_whole = true) {
      tables.free_with_current(sessions.keep(records));
      is_whole ? tables.set(records) : tables.change(records);
    };
    // The last of a chunk, the first of the next, and the last that there is.
    for (const uint32_t slot : {1u, 4095u, 4096u, TrafficRows::kMaxSlots - 1}) {
      say(of(2, slot));
      CHECK(sessions.of(slot) && sessions.of(slot)->owner == 0);
      sessions.of(slot)->owner = slot;
    }
    CHECK(alive == 4 && !sessions.of(2) && !sessions.of(0) && !sessions.of(100'000));
    say(of(3, TrafficRows::kMaxSlots));  // there is no such slot
    say(of(3, 0));
    CHECK(alive == 4 && !sessions.of(0));
    Session* kept = sessions.of(1);
    say(of(2, 1));
    say(of(2, 1, 9), false);
    say(gone(of(2, 1)), false);
    say({});
    say(of(2, 1));
    CHECK(sessions.of(1) == kept && kept->owner == 1 && alive == 4);
    PeerTables::Reader reader = tables.reader(0);
    reader.acquire();
    say(of(3, 1));
    CHECK(sessions.of(1) != kept && sessions.of(1)->owner == 0 && kept->owner == 1 && alive == 5);
    say(of(3, 1));
    CHECK(alive == 5);
    reader.acquire();
    say(of(3, 1));
    CHECK(alive == 4);
    uint32_t slots = 0;
    sessions.for_each([&](uint32_t slot, const Session& session) { slots += session.owner == slot; });
    CHECK(slots == 3);

    // By threads that use what they have a table of while slots are given to others.
    std::atomic<bool> done{false};
    std::atomic<int> used{0};
    reader.release();
    std::thread thread([&] {
      const uint8_t address[] = {10, 5, 2, 9}, other[] = {10, 5, 3, 9};
      while (!done.load()) {
        const PeerTable& table = reader.acquire();
        for (const uint8_t* each : {address, other}) {
          const Endpoint* peer = table.find(4, each);
          if (Session* session = peer ? sessions.of(peer->slot) : nullptr) used += session->owner++ == 0;
        }
        sessions.for_each([&](uint32_t, Session& session) { session.owner++; });
        reader.release();
      }
    });
    for (uint32_t round = 0; round < 2'000 || used < 50; round++) {
      say(of(static_cast<uint8_t>(2 + round % 2), 5000 + random_below(4) * 4096), random_below(2));
    }
    done.store(true);
    thread.join();
  }
  CHECK(alive == 0);
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
    CHECK(table.has_endpoint_at(ipv4(address)) == is_there);
  }
  const uint8_t second[] = {10, 5, 1, 9};
  CHECK(table.find(4, second)->is_at(ipv4(0xc0000202)) && !table.find(4, second)->is_at(ipv4(0xc0000205)));
  Bytes v6 = record(4, 24, {10, 5, 1, 0}, 0xc0000202);
  v6[2] = 6;
  const PeerTables tables_v6(0, v6);
  const PeerTable& by_v6 = tables_v6.current();
  CHECK(!by_v6.has_endpoint_at(ipv4(0xc0000202)) && !by_v6.find(4, second)->is_at(ipv4(0xc0000202)));
}

/// Of IPv6, by a number that both halves have.
static Address v6_of(uint32_t number) { return Address::of_words(uint64_t{number} << 32 | 0xfd, number); }

/// Who was noted is told once, with what belongs together, while others are noted.
static void test_strangers() {
  {
    Strangers strangers;
    size_t told = 0;
    const auto count = [&](const Stranger&) { told++; };
    const Address other = v6_of(1);
    strangers.note({ipv4(1), ipv4(2), ipv4(3), k_rx_drop_destination});
    strangers.note({ipv4(1), ipv4(9), ipv4(9), k_rx_drop_destination});
    strangers.note({ipv4(1), ipv4(5), ipv4(6), k_rx_drop_spoofed_source});
    strangers.note({other, v6_of(2), v6_of(3), k_rx_drop_unknown_sender});
    bool first = false, second = false, third = false;
    strangers.take([&](const Stranger& s) {
      const bool is_first = s.source == ipv4(2) && s.destination == ipv4(3) && s.reason == k_rx_drop_destination;
      const bool is_second = s.source == ipv4(5) && s.destination == ipv4(6) && s.reason == k_rx_drop_spoofed_source;
      first |= s.from == ipv4(1) && is_first;
      second |= s.from == ipv4(1) && is_second;
      third |= s.from == other && s.source == v6_of(2) && s.destination == v6_of(3);
    });
    CHECK(first && second && third);
    strangers.take(count);
    CHECK(told == 0);
    strangers.note({ipv4(1), ipv4(2), ipv4(3), k_rx_drop_destination});
    strangers.take(count);
    CHECK(told == 1);
    // However many there are, it is a few that are told, and one who goes on is among them.
    told = 0;
    bool last = false;
    for (uint32_t i = 0; i < 100'000; i++) strangers.note({ipv4(i), ipv4(i), ipv4(i), k_rx_drop_unknown_sender});
    strangers.take([&](const Stranger& s) {
      told++;
      last |= s.from == ipv4(99'999);
    });
    CHECK(told == 64 && last);
  }
  Strangers strangers;
  std::atomic<bool> done{false};
  std::thread thread([&] {
    for (uint32_t i = 0; !done.load(); i++) {
      const uint32_t from = i % 300;
      strangers.note({v6_of(from), v6_of(~from), v6_of(from), k_rx_drop_destination});
    }
  });
  size_t wrong = 0, told = 0;
  while (told < 3000) {
    strangers.take([&](const Stranger& s) {
      told++;
      const auto from = static_cast<uint32_t>(s.from.low());
      wrong += !(s.source == v6_of(~from)) || !(s.destination == s.from) || s.reason != k_rx_drop_destination;
    });
  }
  done.store(true);
  thread.join();
  CHECK(wrong == 0);
}

/// What is kept of drops: whose, how much, the last; and of a flood a few.
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

  // A flood is counted, and kept as far as there is room at once; then one in so long, each in the place of the oldest.
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
  // The clock is asked once a turn, and another engine's numbers are higher.
  now_us += 60'000'000;
  drops.begin_turn();
  drops.add({.reason = k_tx_drop_ttl});
  now_us += 1;
  drops.add({.reason = k_tx_drop_ttl});
  read_from(first + Drops::kSlots + 10);
  CHECK(all.size() == 2 && all[0].at_us == all[1].at_us);
  CHECK(Drops(CounterRow(row.data()), [] { return now_us; }).read(0, [](const KeptDrop&) {}) > read_from(0));
}

/// What is read while others are written belongs together, and comes in order.
static void test_drops_while_written() {
  static std::atomic<int64_t> now_us;  // goes on so far with each that all are kept
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
    // From the oldest on, which is the one that is written over.
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
    f.sequence = 0xfffffff0;  // wraps
    f.id = 0xffff;
    Bytes whole = build(f);
    VirtioHeader virtio;
    virtio.flags = kVirtioNeedsCsum;
    virtio.gso_type = static_cast<uint8_t>((v6 ? kGsoTcp6 : kGsoTcp4) | kGsoEcn);
    virtio.gso_size = 1000;
    virtio.csum_start = v6 ? 40 : 20;
    virtio.csum_offset = 16;
    virtio.hdr_len = 3;  // a lie: not to be trusted
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
  // What is refused.
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
  Fields empty;
  empty.payload = 0;
  for (const Refusal& r :
       {Refusal{"size 0", kGsoTcp4, 0, 20, {}}, Refusal{"old UFO", 3, 100, 20, udp},
        Refusal{"TCPv6 type on IPv4", kGsoTcp6, 100, 20, {}}, Refusal{"TCPv4 type on IPv6", kGsoTcp4, 100, 40, v6},
        Refusal{"a fragment", kGsoTcp4, 100, 20, fragment}, Refusal{"no payload", kGsoTcp4, 100, 20, empty},
        Refusal{"transport inside the IP header", kGsoTcp4, 100, 12, {}},
        Refusal{"transport beyond the packet", kGsoTcp4, 100, 900, {}}}) {
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
  context.clear();
  // A checksum left open, and offsets that lie.
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
    CHECK(finish_checksum(virtio, open.data(), read(open)));
    CHECK(open == right);
    virtio.csum_start = static_cast<uint16_t>(open.size());
    CHECK(!finish_checksum(virtio, open.data(), read(open)));
    virtio.csum_start = static_cast<uint16_t>(open.size() - 1);
    CHECK(!finish_checksum(virtio, open.data(), read(open)));
    virtio.csum_start = 19;  // inside the IP header
    CHECK(!finish_checksum(virtio, open.data(), read(open)));
  }
}

/// Every reason not to join: two packets that would join but for one change to the second.
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
          if (at < before.size() && !v6 &&
              load_be16(&packet[6]) == 0x4000) {  // the identification means nothing with DF
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
  // A damaged packet is never joined, and comes out as damaged as it was.
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
  // Limits.
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
  // Of a packet as IPv4 can have it, with all its headers: as many bytes, and one more.
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
  // The identification of each is the next one's less one: of the third too.
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

/// Streams of many flows, mixed: what comes out again are the same packets, each flow in its order.
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
  CHECK(write_icmp_error(kNetUnreachable, source, packet.data(), read(packet), out) == 56);
  CHECK(out[8] == 8 && out[9] == 1 && out[20] == 3 && load<uint32_t>(out + 12) == source.ipv4());
  CHECK(reference_fold(reference_sum(out, 20)) == 0xffff);
  CHECK(reference_fold(reference_sum(out + 20, 36)) == 0xffff);
  f.ip_options = Bytes(40, 1);
  packet = build(f);
  CHECK(write_icmp_error(kNetUnreachable, source, packet.data(), read(packet), out) == 20 + 8 + 60 + 8);
}

/// How many errors each sender may have told, and all of them, of however many threads.
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
    // Those of our own subnet have no part in that, on either side.
    for (uint32_t sender = 0x0a050100; sender < 0x0a050140; sender++) {
      CHECK(allowed_by(limit, sender, kOurs, 7'200'000, 1'000) == 50);
    }
    CHECK(allowed(20'000, 7'200'010, 1'000) == 10);
    // As it is asked by all loops at once.
    std::atomic<int> together{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) threads.emplace_back([&] { together += allowed(7, 10'800'000, 1'000); });
    for (auto& thread : threads) thread.join();
    CHECK(together == 50);
    // Each thread reads the time when it begins a batch, so that one is behind another.
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
    // Times beyond 32 bits of milliseconds, and a sender of weeks before.
    constexpr int64_t kWrap = int64_t{1} << 32;
    CHECK(allowed(8, kWrap - 5, 1'000) == 50);
    CHECK(allowed(8, kWrap + 5, 1'000) == 1);
    CHECK(allowed(8, kWrap + kWrap / 2 + 100, 1'000) == 50);
  }
  // Of one who asks five times a second each is told, whatever the others do: one of them without end, twelve at once,
  // all of a subnet, as many addresses as there are.
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
  // One kind takes nothing of another.
  IcmpLimits limits(kSecret);
  for (const IcmpKind kind : {IcmpKind::kOutward, IcmpKind::kInward, IcmpKind::kTooBig}) {
    CHECK(allowed_by(limits[kind], 1, kOthers, 1'000, 1'000) == 50);
    int all = 50;
    for (uint32_t sender = 2; sender < 1'000; sender++) all += allowed_by(limits[kind], sender, kOthers, 1'000, 1);
    CHECK(all == 500);
  }
}

/// What the outer header says of congestion, and the inner one, and what comes of both: RFC 6040, figure 4.
static void test_ecn() {
  constexpr int kDrop = -1;
  constexpr int expected[4][4] = {
      // by outer Not-ECT, ECT(1), ECT(0), CE
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
          // Nothing else of it is changed, and its sum is that of the packet that it is now.
          f.tos = static_cast<uint8_t>(dscp | (goes_on ? expected[inner][outer] : inner));
          CHECK(bytes == build(f));
        }
      }
    }
  }
  context.clear();
}

/// What is counted of one peer by two loops.
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
    CHECK(sum.heard_ms == 6'000);  // the later, whichever comes first
    TrafficRows silent;
    silent.sum(0, sum);
    CHECK(sum.heard_ms == 6'000);
  }
}

/// What follows from each refusal, and what is then tried no more. The table is the policy, row by row.
static void test_refusals() {
  enum class Effect { kNone, kLongRuns, kOff };  // of the endpoint when it was a message, else of the TUN
  struct Row {
    Way way;
    int error;
    uint32_t joined_by;
    size_t packets;
    Then then;
    Counter counted;
    Effect taken;  // when any of the singles went through; when none did, nothing follows
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
  Endpoint here{}, there{};
  here.to = SocketAddress(ipv4(0x0a000001), htons(8285));
  there.to = SocketAddress(ipv4(0x0a000002), htons(8285));
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

/// What is remembered of endpoints: for less than a minute, and of so many; none harms another.
static void test_learnt() {
  const auto endpoint = [](uint32_t number) {
    Endpoint endpoint{};
    endpoint.to = SocketAddress(ipv4(number), htons(8285));
    return endpoint;
  };
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
  learnt.learn(none, true, endpoint(1), 1500, 2'000);  // again: its own entry, for as long from now on
  CHECK(most(1, 2'000 + kRememberedMs - 1) == 1);
  for (uint32_t i = 2; i <= 64; i++) learnt.learn(none, true, endpoint(i), 1500, 2'000 + i);
  for (uint32_t i = 1; i <= 64; i++) CHECK(most(i, 3'000) == 1);
  CHECK(most(65, 3'000) == 128);
  // One too many: nothing is joined to any that has no place, for as long; those that have keep what they have.
  learnt.learn(fewer, true, endpoint(3), 1500, 3'000);
  learnt.learn(none, true, endpoint(65), 1500, 3'000);
  for (const uint32_t other : {65u, 66u, 1'000u}) {
    CHECK(most(other, 3'000 + kRememberedMs - 1) == 1);
    CHECK(most(other, 3'000 + kRememberedMs) == 128);
  }
  CHECK(most(3, 3'000) == 64 && most(2, 3'000) == 1);
  // The place of one whose time is over is free.
  const int64_t later = 2'002 + kRememberedMs;
  learnt.learn(fewer, true, endpoint(70), 1500, later);
  CHECK(most(70, later) == 64 && most(71, later + 2'000) == 128);
  CHECK(features.bits() == kAllFeatures);
}

/// What the kernel says of a path, for how long, and what of a refusal it explains.
static void test_path_mtu() {
  PathMtu path;
  CHECK(path.bytes() == 0 && path.is_due(0) && path.is_due(1'000'000));
  CHECK(!path.explains(1500, 1'000));  // nothing is known, so that nothing is to be asked again
  path.learn(1500, 1'000);
  CHECK(path.bytes() == 1500 && !path.is_due(1'499) && path.is_due(1'500));
  path.learn(0, 1'500);  // no route, say
  CHECK(path.bytes() == 0 && !path.is_due(1'999) && path.is_due(2'000));
  path.learn(1 << 20, 2'000);
  CHECK(path.bytes() == 65535);
  // It has become less: what was on its way is refused, by all threads, and it is asked once.
  path.learn(1500, 3'000);
  CHECK(path.explains(1500, 3'010) && path.is_due(3'010));
  CHECK(path.explains(1500, 3'010) && path.is_due(3'010));
  path.learn(1280, 3'011);
  CHECK(path.bytes() == 1280 && !path.is_due(3'011));
  CHECK(path.explains(1500, 3'012) && !path.is_due(3'012));
  // What fits by its answer is not the path's fault.
  CHECK(!path.explains(1280, 3'013) && !path.explains(1280, 3'510));
  path.learn(1280, 3'511);
  CHECK(path.explains(1280, 3'600) && path.is_due(3'600));

  // A refusal that it explains teaches nothing of joining.
  for (const int error : {EMSGSIZE, EINVAL}) {
    Features features(kAllFeatures);
    Learnt learnt(&features);
    Endpoint here{};
    here.to = SocketAddress(ipv4(0x0a000001), htons(8285));
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

/// Fragments, put together again, are the packet; none is longer than it may be, and each is let in.
static void test_fragments(int rounds) {
  for (int round = 0; round < 50 * rounds; round++) {
    Fields f;
    f.tcp = false;
    f.id = static_cast<uint16_t>(random_below(65536));
    f.payload = 8 + random_below(random_below(10) ? 3'000 : 60'000);
    // The first and the last of these are copied into each fragment (RFC 791 section 3.1).
    if (random_below(3) == 0) f.ip_options = {148, 4, 0, 0, 1, 7, 7, 4, 0, 0, 0, 0, 1, 136, 4, 1, 2, 0, 0, 0};
    const uint16_t offset = random_below(3) ? 0 : static_cast<uint16_t>(random_below(500));
    const bool more = random_below(3) == 0;
    f.fragment = static_cast<uint16_t>(offset | (more ? 0x2000 : 0));
    if (more) f.payload = f.payload / 8 * 8;
    Bytes packet = build(f);
    const size_t ip_bytes = 20 + f.ip_options.size(), mtu = 256 + random_below(1'300);
    // Its UDP header stands with the IP header, as a segment's does, or with the payload.
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

/// A core as a test says: what a turn given away takes, when the next packet comes, how long a sleep overshoots.
struct Core {
  mutable int64_t now = 7'000'000'000;
  int64_t turn_us = 0;
  int64_t packet_at = 0;
  mutable int turns = 0, sleeps = 0;
  int64_t now_us() const { return now; }
  void give_way() const { turns++, now += turn_us; }
  int look(int milliseconds) const {
    if (milliseconds < 0) sleeps++, now = std::max(now, packet_at);
    return now >= packet_at ? 1 : 0;
  }
  /// Waits for a packet that comes so long after now, and is let in or not.
  void wait(Waiting& waiting, int64_t gap_us, bool is_let_in = true) {
    turns = sleeps = 0;
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
    core.wait(waiting, 0);  // one that is there already
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
    // The first that comes near again is slept for, the next is not.
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
    // Turns that are not late make it forget.
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
    context = "what is refused is not looked again for, however much comes";
    Waiting waiting(kWindow);
    Core core{.turn_us = 5};
    core.wait(waiting, 20);
    int turns = 0;
    for (int i = 0; i < 10'000; i++) {
      core.wait(waiting, 20, false);
      turns += core.turns;
    }
    CHECK(turns * core.turn_us <= kWindow + core.turn_us);  // what was left of the window after the one that was let in
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
    // One that comes after the window, but near: the next is looked for again, whatever woke it in between.
    for (int i = 0; i < 10; i++) core.wait(waiting, 100, false);
    core.wait(waiting, 100);
    CHECK(core.sleeps == 1);
    core.wait(waiting, 20);
    CHECK(core.turns == 4 && core.sleeps == 0);
    // One that comes after long is not, though what was refused came without a pause.
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
    CHECK(core.turns == 0 && core.sleeps == 1);
  }
  context.clear();
}

/// A thread is as other programs are while nearly all is refused, and at no other time.
static void test_precedence() {
  int64_t now = 5'000'000;
  size_t looks = 0;
  const auto clock = [&] { return looks++, now; };
  Precedence precedence;
  int changes = 0;
  /// So many of each a second, in turns of 1 ms, for so long.
  const auto run = [&](size_t carried, size_t refused, int64_t ms) {
    size_t carries = 0, refuses = 0;
    for (int64_t i = 0; i < ms; i++, now += 1'000) {
      carries += carried;
      refuses += refused;
      const bool first = precedence.goes_first();
      const bool changed = precedence.count(carries / 1'000, refuses / 1'000, clock);
      CHECK(changed == (first != precedence.goes_first()));
      changes += changed;
      carries %= 1'000;
      refuses %= 1'000;
    }
    return precedence.goes_first();
  };
  CHECK(run(1'000'000, 0, 1'000) && looks == 0);  // the clock costs nobody who is let in
  CHECK(run(0, 1'000, 1'000));
  CHECK(!run(0, 2'000, 1'000) && changes == 1);
  CHECK(run(0, 1'000, 1'000) && changes == 2);
  CHECK(!run(0, 100'000, 300) && !run(6'000, 100'000, 300) && changes == 3);
  CHECK(run(7'000, 100'000, 300) && changes == 4);
  CHECK(!run(0, 100'000, 300) && changes == 5);
  // The first that is let in after the flood goes first again.
  now += 10'000'000;
  CHECK(run(1'000, 0, 1) && changes == 6);
  looks = 0;
  CHECK(run(1'000, 0, 1'000) && looks == 0);
}

/// A SYN whose options begin with `before`, then the maximum segment size, with a checksum that is right.
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

/// What a connection begins with is lowered wherever it stands, and the sum is right after it; nothing else is touched.
static void test_mss() {
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
        CHECK(read_packet(packet.data(), packet.size(), read) == Shape::kOk && is_tcp_syn(packet.data(), read));
        clamp_mss(packet.data(), read, 1432, open);
        const size_t at = kIpv4HeaderBytes + kTcpHeaderBytes + before.size() + 2;
        CHECK(load_be16(packet.data() + at) == std::min<uint16_t>(mss, 1432));
        if (!open) CHECK(tcp_sum(packet) == 0xffff);
        store_be16(expected.data() + at, std::min<uint16_t>(mss, 1432));
        const size_t checksum = kIpv4HeaderBytes + kTcpChecksum;
        std::copy_n(packet.begin() + checksum, 2, expected.begin() + checksum);
        CHECK(packet == expected);
      }
    }
  }
  // What is no SYN, what is cut off, and options that leave their header.
  Bytes data = syn({}, 1460, kAck);
  Packet read;
  CHECK(read_packet(data.data(), data.size(), read) == Shape::kOk && !is_tcp_syn(data.data(), read));
  for (const Bytes& odd : {Bytes{2}, Bytes{2, 0}, Bytes{9, 1}, Bytes{9, 200}, Bytes{0}}) {
    Bytes packet = syn(odd, 1460);
    const Bytes was = packet;
    CHECK(read_packet(packet.data(), packet.size(), read) == Shape::kOk);
    if (odd.size() == 2 || odd[0] == 0) {
      clamp_mss(packet.data(), read, 1432, false);
      CHECK(packet == was);
    }
  }
  Bytes cut = syn({}, 1460);
  cut[kIpv4HeaderBytes + 12] = 0xf0;
  CHECK(read_packet(cut.data(), cut.size(), read) == Shape::kOk);
  clamp_mss(cut.data(), read, 1432, false);
}

/// Those that have several threads: all that ThreadSanitizer can say something of.
static void test_threads() {
  test_peer_replacement();
  test_strangers();
  test_drops_while_written();
  test_icmp_limit();
  test_sessions();
}

/// `core_test SEED ROUNDS`, or `core_test SEED threads`.
int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  test_threads();
  if (argc > 2 && std::string_view(argv[2]) == "threads") return verdict(seed);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 40;
  test_checksum();
  test_read_packet();
  test_inspect();
  test_nested();
  test_peers();
  test_peer_spread();
  test_peer_changes();
  test_peer_release();
  test_traffic();
  test_endpoints();
  test_addresses();
  test_families();
  test_drops();
  test_segment_rules();
  test_coalesce_reasons();
  test_coalesce_property(rounds);
  test_icmp();
  test_refusals();
  test_learnt();
  test_path_mtu();
  test_fragments(rounds);
  test_mss();
  test_waiting();
  test_precedence();
  test_ecn();
  test_traffic_sums();
  return verdict(seed);
}
