// engine.cc - which encapsulations there are, and the loops made for one.
#include "engine.h"

#include <errno.h>

#include <algorithm>

#include "egress.h"
#include "encap/flannel_udp.h"
#include "encap/vxlan.h"
#include "ingress.h"

namespace weft {

namespace {

/// Larger than any batch.
constexpr size_t kNoLimit = SIZE_MAX;

struct Directions {
  std::unique_ptr<Direction> egress;
  std::unique_ptr<Direction> ingress;
};

template <Encapsulation Encap>
Directions make_directions(const Path& path, const OwnEnd& own, PeerTables::Reader for_egress,
                           PeerTables::Reader for_ingress) {
  return {std::make_unique<Egress<Encap>>(path, for_egress, own),
          std::make_unique<Ingress<Encap>>(path, for_ingress, own)};
}

/// Every encapsulation: a file in encap/ and a line here.
constexpr struct {
  std::string_view name;
  Directions (*make)(const Path&, const OwnEnd&, PeerTables::Reader, PeerTables::Reader);
} kEncapsulations[] = {
    {"udp", make_directions<FlannelUdp>},
    {"vxlan", make_directions<Vxlan>},
};

}  // namespace

Engine::Engine(Descriptors descriptors)
    : descriptors_(std::move(descriptors)),
      peers_(2 * descriptors_.loops.size()),
      features_(descriptors_.features),
      strangers_(descriptors_.loops.size()),
      traffic_(descriptors_.loops.size()) {}

Failure Engine::run(Descriptors descriptors, const RunOptions& options, uint64_t* counters,
                    std::unique_ptr<Engine>& result) {
  const auto* encapsulation =
      std::ranges::find_if(kEncapsulations, [&](const auto& each) { return each.name == options.encapsulation; });
  if (encapsulation == std::end(kEncapsulations)) return SystemError{"encapsulation", EPROTONOSUPPORT};

  std::unique_ptr<Engine> engine(new Engine(std::move(descriptors)));
  engine->set_peers(options.peers);
  for (size_t i = 0; i < engine->descriptors_.loops.size(); i++) {
    const LoopDescriptors& fds = engine->descriptors_.loops[i];
    const CounterRow row(counters + i * kCounterCount);
    Drops& tx_drops = engine->drops_.emplace_back(row, monotonic_us);
    Drops& rx_drops = engine->drops_.emplace_back(row, monotonic_us);
    const Path path{fds.tun.get(),
                    fds.socket.get(),
                    fds.sender ? fds.sender.get() : fds.socket.get(),
                    options.tun_address,
                    options.network_address,
                    options.loops.naive ? 1 : kNoLimit,
                    &engine->features_,
                    row,
                    &engine->traffic_[i],
                    &tx_drops,
                    &rx_drops,
                    options.filter,
                    &engine->strangers_[i],
                    &engine->icmp_,
                    options.clamp_mss ? options.own.mtu : 0};
    Directions made =
        encapsulation->make(path, options.own, engine->peers_.reader(2 * i), engine->peers_.reader(2 * i + 1));
    engine->loops_.push_back(std::make_unique<Loop>(i, path, std::move(made.egress), std::move(made.ingress),
                                                    options.loops, engine->fault_));
  }
  for (auto& loop : engine->loops_) {
    if (Failure failure = loop->start()) return failure;
  }
  result = std::move(engine);
  return {};
}

void Engine::set_peers(std::span<const uint8_t> records) {
  auto table = std::make_unique<const PeerTable>(records);
  traffic_slots_ = std::max(traffic_slots_, table->traffic_slots());
  for (TrafficRows& rows : traffic_) rows.make_room(traffic_slots_);
  peers_.replace(std::move(table));
}

std::vector<Traffic> Engine::traffic() const {
  std::vector<Traffic> sums(traffic_slots_);
  for (uint32_t slot = 0; slot < traffic_slots_; slot++) {
    for (const TrafficRows& rows : traffic_) rows.sum(slot, sums[slot]);
  }
  return sums;
}

std::vector<ThreadRounds> Engine::ask_threads() const {
  std::vector<ThreadRounds> threads;
  for (const auto& loop : loops_) threads.push_back(loop->ask_thread());
  return threads;
}

Descriptors Engine::release() {
  loops_.clear();
  descriptors_.features = features_.bits();
  return std::move(descriptors_);
}

}  // namespace weft
