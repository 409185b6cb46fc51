// peers.cc - building, asking and replacing the peer table.
#include "peers.h"

#include <algorithm>
#include <array>
#include <bit>

namespace weft {

PeerTable::Prefix PeerTable::read_prefix(uint8_t version, const uint8_t* address) {
  if (version == 4) return {static_cast<uint64_t>(load_be32(address)) << 32, 0};
  return {static_cast<uint64_t>(load_be32(address)) << 32 | load_be32(address + 4),
          static_cast<uint64_t>(load_be32(address + 8)) << 32 | load_be32(address + 12)};
}

PeerTable::Prefix PeerTable::mask_of(uint8_t bits) {
  const uint64_t high = bits == 0 ? 0 : bits >= 64 ? ~0ull : ~0ull << (64 - bits);
  const uint64_t low = bits <= 64 ? 0 : bits >= 128 ? ~0ull : ~0ull << (128 - bits);
  return {high, low};
}

uint32_t PeerTable::Length::home(const Prefix& prefix) const {
  // Multiplicative hashing by the golden ratio. Only the top bits depend on all others, and the low ones not at all:
  // a subnet's host bits are zero, so those of the product are.
  return static_cast<uint32_t>(((prefix.high ^ prefix.low * 0xc2b2ae3d27d4eb4full) * 0x9e3779b97f4a7c15ull) >>
                               (64 - std::bit_width(slot_mask)));
}

PeerTable::PeerTable(std::span<const uint8_t> records) {
  const size_t count = records.size() / kRecordBytes;
  std::array<uint32_t, 256> v4_counts{}, v6_counts{};  // by prefix length
  for (size_t i = 0; i < count; i++) {
    const uint8_t* record = records.data() + i * kRecordBytes;
    (record[0] == 4 ? v4_counts[record[1]] : v6_counts[record[1]])++;
  }
  v4_ = lengths_for(v4_counts);
  v6_ = lengths_for(v6_counts);
  endpoints_.reserve(count);
  ipv4_endpoints_.reserve(count);
  for (size_t i = 0; i < count; i++) insert(records.data() + i * kRecordBytes);
  std::sort(ipv4_endpoints_.begin(), ipv4_endpoints_.end());
}

std::vector<PeerTable::Length> PeerTable::lengths_for(std::span<const uint32_t> counts) {
  std::vector<Length> lengths;
  for (size_t bits = counts.size(); bits-- > 0;) {
    if (counts[bits] == 0) continue;
    const size_t slots = std::bit_ceil(size_t{counts[bits]} * 2);  // at most half full: short probes
    lengths.push_back({static_cast<uint8_t>(bits), mask_of(static_cast<uint8_t>(bits)),
                       static_cast<uint32_t>(slots - 1), std::vector<Slot>(slots)});
  }
  return lengths;
}

void PeerTable::insert(const uint8_t* record) {
  Endpoint endpoint{};
  if (record[2] == 4) {
    endpoint.address.v4.sin_family = AF_INET;
    endpoint.address.v4.sin_port = load<uint16_t>(record + 4);
    endpoint.address.v4.sin_addr.s_addr = load<uint32_t>(record + 24);
    endpoint.address_bytes = sizeof(sockaddr_in);
    ipv4_endpoints_.push_back(endpoint.address.v4.sin_addr.s_addr);
  } else {
    endpoint.address.v6.sin6_family = AF_INET6;
    endpoint.address.v6.sin6_port = load<uint16_t>(record + 4);
    std::memcpy(&endpoint.address.v6.sin6_addr, record + 24, 16);
    endpoint.address_bytes = sizeof(sockaddr_in6);
  }
  const uint16_t limit = load_be16(record + 6);
  endpoint.limit = limit >= PathMtu::kAlwaysFits ? limit : 0;
  std::memcpy(endpoint.encap.data(), record + 40, endpoint.encap.size());
  const uint32_t slot = load<uint32_t>(record + 56);
  endpoint.slot = slot < TrafficRows::kMaxSlots ? slot : 0;
  traffic_slots_ = std::max(traffic_slots_, endpoint.slot + 1);
  endpoints_.push_back(endpoint);
  auto& lengths = record[0] == 4 ? v4_ : v6_;
  Length& length = *std::find_if(lengths.begin(), lengths.end(), [&](const Length& l) { return l.bits == record[1]; });
  const Prefix address = read_prefix(record[0], record + 8);
  const Prefix prefix{address.high & length.mask.high, address.low & length.mask.low};
  uint32_t at = length.home(prefix);
  while (length.slots[at].endpoint != 0 && length.slots[at].prefix != prefix) at = (at + 1) & length.slot_mask;
  length.slots[at] = {prefix, static_cast<uint32_t>(endpoints_.size())};
}

const Endpoint* PeerTable::find(uint8_t version, const uint8_t* destination) const {
  const Prefix address = read_prefix(version, destination);
  for (const Length& length : version == 4 ? v4_ : v6_) {
    const Prefix prefix{address.high & length.mask.high, address.low & length.mask.low};
    for (uint32_t at = length.home(prefix); length.slots[at].endpoint != 0; at = (at + 1) & length.slot_mask) {
      if (length.slots[at].prefix == prefix) return &endpoints_[length.slots[at].endpoint - 1];
    }
  }
  return nullptr;
}

bool PeerTable::has_endpoint_at(uint32_t ipv4) const {
  return std::binary_search(ipv4_endpoints_.begin(), ipv4_endpoints_.end(), ipv4);
}

size_t PeerTable::longest_run() const {
  size_t longest = 0;
  for (const auto* lengths : {&v4_, &v6_}) {
    for (const Length& length : *lengths) {
      size_t run = 0;
      for (const Slot& slot : length.slots) longest = std::max(longest, run = slot.endpoint == 0 ? 0 : run + 1);
    }
  }
  return longest;
}

PeerTables::PeerTables(size_t readers) : hazards_(readers) {
  owned_.push_back(std::make_unique<const PeerTable>(std::span<const uint8_t>{}));
  current_.store(owned_.back().get(), std::memory_order_release);
}

void PeerTables::replace(std::unique_ptr<const PeerTable> table) {
  const PeerTable* newest = table.get();
  current_.store(newest, std::memory_order_seq_cst);
  owned_.push_back(std::move(table));
  std::erase_if(owned_, [this, newest](const auto& old) {
    return old.get() != newest && std::none_of(hazards_.begin(), hazards_.end(), [&](const auto& hazard) {
             return hazard.load(std::memory_order_seq_cst) == old.get();
           });
  });
}

}  // namespace weft
