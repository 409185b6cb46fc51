// peers.cc - changes the peer table, and frees the old tables that readers no longer use.
#include "peers.h"

#include <algorithm>

namespace weft {

namespace {

/// Returns a word whose upper `bits` bits are ones; `bits` below 0 count as 0, above 64 as 64.
uint64_t ones(int bits) { return bits <= 0 ? 0 : ~0ull << (64 - std::min(bits, 64)); }

template <typename Key>
Key mask_of(uint8_t bits);
template <>
uint32_t mask_of(uint8_t bits) {
  return static_cast<uint32_t>(ones(bits) >> 32);
}
template <>
Prefix mask_of(uint8_t bits) {
  return {ones(bits), ones(bits - 64)};
}

Endpoint endpoint_of(const PeerRecord& record) {
  Endpoint endpoint{};
  for (const uint8_t version : kIpVersions) endpoint.hosts.of(version) = record.host(version);
  endpoint.outer = record.outer == 4 ? 4 : 6;
  const uint16_t limit = load_be16(record.limit);
  endpoint.limit = limit >= PathMtu::kAlwaysFits ? limit : 0;
  std::memcpy(endpoint.encap.data(), record.encap, endpoint.encap.size());
  endpoint.slot = record.usable_slot();
  endpoint.is_from_known_port = record.is_from_known_port();
  return endpoint;
}

bool is_same(const Endpoint& a, const Endpoint& b) {
  return a.hosts == b.hosts && a.outer == b.outer && a.encap == b.encap && a.slot == b.slot && a.limit == b.limit &&
         a.is_from_known_port == b.is_from_known_port;
}

}  // namespace

PeerTables::PeerTables(size_t readers, std::span<const uint8_t> records) : hazards_(readers) {
  tables_.emplace_back();
  apply(records, true);
}

void PeerTables::set(std::span<const uint8_t> records) { apply(records, true); }
void PeerTables::change(std::span<const uint8_t> records) { apply(records, false); }

void PeerTables::free_with_current(Garbage garbage) {
  for (auto& each : garbage) tables_.back().pages.push_back(std::move(each));
}

void PeerTables::apply(std::span<const uint8_t> records, bool is_whole) {
  if (is_whole) round_++;
  each_record(records, [&](const PeerRecord& record) {
    const auto apply_to = [&]<typename Key>(Lengths<Key>& lengths, const Key& address) {
      Subnets<Key>& subnets = lengths[record.prefix_length];
      const Key prefix = PeerTable::masked(address, mask_of<Key>(record.prefix_length));
      if (record.is_gone()) {
        put<Key>(subnets, prefix, nullptr, subnets.find(prefix));
      } else {
        put(subnets, prefix, endpoint_of(record));
      }
    };
    if (record.subnet_family == 4) {
      apply_to(v4_, PeerTable::read_ipv4(record.subnet));
    } else {
      apply_to(v6_, PeerTable::read_ipv6(record.subnet));
    }
  });
  if (is_whole) {
    keep_only_round(v4_);
    keep_only_round(v6_);
  }
  publish();
}

/// Sets the endpoint of a subnet. If the subnet already has an equal endpoint, keeps that object, and only marks the
/// object as part of the current set of records.
template <typename Key>
void PeerTables::put(Subnets<Key>& subnets, const Key& prefix, const Endpoint& wanted) {
  Endpoint* before = subnets.find(prefix);
  if (before && is_same(*before, wanted)) {
    before->round = round_;
    return;
  }
  Endpoint* endpoint = new_endpoint(wanted);
  // The peer has the same address as before, so its path MTU is still valid; only its packet length limit, port or MAC
  // changed.
  if (before && before->address() == wanted.address()) endpoint->path.take_over(before->path);
  put(subnets, prefix, endpoint, before);
}

template <typename Key>
void PeerTables::put(Subnets<Key>& subnets, const Key& prefix, Endpoint* endpoint, Endpoint* before) {
  subnets.put(prefix, endpoint, tables_.back().pages);
  if (before) tables_.back().endpoints.push_back(before);
  constexpr uint64_t kOne = PeerTable::one_of(std::is_same_v<Key, uint32_t> ? 4 : 6);
  for (const uint8_t version : kIpVersions) {
    const Address now = endpoint ? endpoint->hosts.of(version).address() : Address();
    const Address was = before ? before->hosts.of(version).address() : Address();
    if (now == was) continue;
    if (now) count_host(now, kOne);
    if (was) count_host(was, -kOne);
  }
}

void PeerTables::count_host(const Address& address, uint64_t change) {
  hosts_.put(address, hosts_.find(address) + change, tables_.back().pages);
}

/// Removes the entries that were missing in the last complete set of records.
template <typename Key>
void PeerTables::keep_only_round(Lengths<Key>& lengths) {
  for (auto& [bits, subnets] : lengths) {
    std::vector<std::pair<Key, Endpoint*>> gone;
    subnets.for_each([&](const Key& prefix, Endpoint* endpoint) {
      if (endpoint->round != round_) gone.emplace_back(prefix, endpoint);
    });
    for (const auto& [prefix, endpoint] : gone) put<Key>(subnets, prefix, nullptr, endpoint);
  }
}

Endpoint* PeerTables::new_endpoint(const Endpoint& wanted) {
  if (free_.empty()) {
    endpoints_.push_back(wanted);
    free_.push_back(&endpoints_.back());
  }
  Endpoint* endpoint = free_.back();
  free_.pop_back();
  *endpoint = wanted;
  endpoint->round = round_;
  return endpoint;
}

/// Removes the maps of prefix lengths that no subnet has any more, because each map costs every look-up one hash probe.
template <typename Key>
void PeerTables::drop_empty(Lengths<Key>& lengths) {
  for (auto at = lengths.begin(); at != lengths.end();) {
    at->second.settle();
    if (at->second.size() > 0) {
      ++at;
      continue;
    }
    // The map is freed later, because readers of the published table still use its pages.
    auto* emptied = new Subnets<Key>(std::move(at->second));
    tables_.back().pages.push_back({emptied, [](void* old) { delete static_cast<Subnets<Key>*>(old); }});
    at = lengths.erase(at);
  }
}

void PeerTables::publish() {
  drop_empty(v4_);
  drop_empty(v6_);
  hosts_.settle();
  auto table = std::make_unique<PeerTable>();
  for (const auto& [bits, subnets] : v4_) table->v4_.push_back({mask_of<uint32_t>(bits), subnets.pages()});
  for (const auto& [bits, subnets] : v6_) table->v6_.push_back({mask_of<Prefix>(bits), subnets.pages()});
  table->hosts_ = hosts_.pages();
  tables_.push_back({std::move(table), {}, {}});
  current_.store(tables_.back().table.get(), std::memory_order_seq_cst);
  free_unheld();
}

/// Frees tables that no reader uses, the oldest first. With a table, frees the pages and endpoints that the next table
/// no longer uses. Older tables may share these pages, so a table is kept while a reader uses an older one.
void PeerTables::free_unheld() {
  const auto is_held = [this](const PeerTable* table) {
    return std::any_of(hazards_.begin(), hazards_.end(),
                       [&](const auto& hazard) { return hazard.load(std::memory_order_seq_cst) == table; });
  };
  while (tables_.size() > 1) {
    Kept& oldest = tables_.front();
    if (oldest.table && is_held(oldest.table.get())) return;
    free_.insert(free_.end(), oldest.endpoints.begin(), oldest.endpoints.end());
    tables_.pop_front();
  }
}

size_t PeerTables::size() const {
  size_t size = 0;
  for (const auto& [bits, subnets] : v4_) size += subnets.size();
  for (const auto& [bits, subnets] : v6_) size += subnets.size();
  return size;
}

uint32_t PeerTables::traffic_slots(std::span<const uint8_t> records) {
  uint32_t highest = 0;
  each_record(records, [&](const PeerRecord& record) { highest = std::max(highest, record.usable_slot()); });
  return highest + 1;
}

size_t PeerTables::longest_run() const {
  size_t longest = 0;
  for (const auto& [bits, subnets] : v4_) longest = std::max(longest, subnets.longest_run());
  for (const auto& [bits, subnets] : v6_) longest = std::max(longest, subnets.longest_run());
  return longest;
}

}  // namespace weft
