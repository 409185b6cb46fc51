// peers.cc - building, asking and replacing the peer table.
#include "peers.h"

#include <algorithm>
#include <bit>
#include <map>

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

uint32_t PeerTable::hash(const Prefix& prefix) {
  // Multiplicative hashing by the golden ratio; the top bits are the mixed ones.
  return static_cast<uint32_t>(((prefix.high ^ prefix.low * 0xc2b2ae3d27d4eb4full) * 0x9e3779b97f4a7c15ull) >> 32);
}

PeerTable::PeerTable(std::span<const uint8_t> records) {
  const size_t count = records.size() / kRecordBytes;
  endpoints_.reserve(count);
  std::map<uint8_t, std::vector<Slot>, std::greater<>> by_length[2];
  for (size_t i = 0; i < count; i++) {
    const uint8_t* record = records.data() + i * kRecordBytes;
    const uint8_t version = record[0];
    const uint8_t bits = record[1];
    Endpoint endpoint{};
    if (record[2] == 4) {
      endpoint.address.v4.sin_family = AF_INET;
      endpoint.address.v4.sin_port = load<uint16_t>(record + 4);
      endpoint.address.v4.sin_addr.s_addr = load<uint32_t>(record + 24);
      endpoint.address_bytes = sizeof(sockaddr_in);
    } else {
      endpoint.address.v6.sin6_family = AF_INET6;
      endpoint.address.v6.sin6_port = load<uint16_t>(record + 4);
      std::memcpy(&endpoint.address.v6.sin6_addr, record + 24, 16);
      endpoint.address_bytes = sizeof(sockaddr_in6);
    }
    endpoints_.push_back(endpoint);
    const Prefix mask = mask_of(bits);
    Prefix prefix = read_prefix(version, record + 8);
    prefix = {prefix.high & mask.high, prefix.low & mask.low};
    by_length[version == 6][bits].push_back({prefix, static_cast<uint32_t>(endpoints_.size())});
  }
  for (int family = 0; family < 2; family++) {
    for (auto& [bits, entries] : by_length[family]) {
      Length length{bits, mask_of(bits), 0, {}};
      const size_t slots = std::bit_ceil(entries.size() * 2);  // at most half full: short probes
      length.slot_mask = static_cast<uint32_t>(slots - 1);
      length.slots.resize(slots, Slot{{0, 0}, 0});
      for (const Slot& entry : entries) {
        uint32_t at = hash(entry.prefix) & length.slot_mask;
        while (length.slots[at].endpoint != 0 && length.slots[at].prefix != entry.prefix) {
          at = (at + 1) & length.slot_mask;
        }
        length.slots[at] = entry;
      }
      (family == 0 ? v4_ : v6_).push_back(std::move(length));
    }
  }
}

const Endpoint* PeerTable::find(uint8_t version, const uint8_t* destination) const {
  const Prefix address = read_prefix(version, destination);
  for (const Length& length : version == 4 ? v4_ : v6_) {
    const Prefix prefix{address.high & length.mask.high, address.low & length.mask.low};
    for (uint32_t at = hash(prefix) & length.slot_mask; length.slots[at].endpoint != 0;
         at = (at + 1) & length.slot_mask) {
      if (length.slots[at].prefix == prefix) return &endpoints_[length.slots[at].endpoint - 1];
    }
  }
  return nullptr;
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
