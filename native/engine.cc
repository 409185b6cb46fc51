// engine.cc - creates an engine's loops (forwarding threads) for its encapsulation, and ends them.
#include "engine.h"

#include <errno.h>
#include <net/if.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <utility>

#include "crypto/aead.h"
#include "encap/all.h"
#include "io/clock.h"
#include "io/handover_state.h"
#include "io/steering.h"
#include "io/tun.h"
#include "io/udp.h"
#include "walk/egress.h"
#include "walk/ingress.h"

namespace weft {

namespace {

/// How many directions of a loop read the peer table: the egress, and an ingress for each IP family.
constexpr size_t kReadersPerLoop = 3;
using Readers = std::array<PeerTables::Reader, kReadersPerLoop>;

/// Creates the directions of a loop: the egress, then an ingress for each IP family in which the loop has a socket.
template <Encapsulation Encap>
std::vector<Source> make_sources(const Path& path, const OwnEnd& own, Sessions* sessions, const Readers& readers) {
  const auto make = [&] {
    if constexpr (HasSessions<Encap>)
      return Encap(own, *sessions);
    else
      return Encap(own);
  };
  std::vector<Source> sources;
  sources.push_back({path.tun, std::make_unique<Egress<Encap>>(path, readers[0], make())});
  for (const uint8_t version : kIpVersions) {
    const int fd = path.sockets.of(version).receiver;
    const PeerTables::Reader& reader = readers[sources.size()];
    if (fd >= 0) sources.push_back({fd, std::make_unique<Ingress<Encap>>(path, version, reader, make())});
  }
  return sources;
}

/// Returns a random number for IcmpLimits, which assigns a rate-limit slot to each sender by a hash with this number.
/// So a sender cannot guess which other senders share its slot. If the kernel has no entropy yet, the number is easier
/// to guess: it depends on the time and on an address in memory.
uint64_t secret() {
  uint64_t bits = static_cast<uint64_t>(monotonic_us()) ^ reinterpret_cast<uintptr_t>(&bits);
  [[maybe_unused]] const ssize_t got = getrandom(&bits, sizeof bits, GRND_NONBLOCK);
  return bits;
}

struct Row {
  std::string_view name;
  bool has_sessions;
  std::vector<Source> (*make)(const Path&, const OwnEnd&, Sessions*, const Readers&);
};
constexpr auto kEncapsulations = Encapsulations::rows([]<typename Encap>() {
  return Row{Encap::kName, HasSessions<Encap>, make_sources<Encap>};
});

}  // namespace

std::vector<std::string_view> encapsulation_names() {
  std::vector<std::string_view> names;
  for (const Row& row : kEncapsulations) names.push_back(row.name);
  return names;
}

Engine::Engine(Descriptors descriptors)
    : descriptors_(std::move(descriptors)),
      peers_(kReadersPerLoop * descriptors_.loops.size()),
      features_(descriptors_.features),
      icmp_(secret()),
      unknown_senders_(descriptors_.loops.size()),
      traffic_(descriptors_.loops.size()) {}

Failure Engine::run(Descriptors descriptors, const RunOptions& options, uint64_t* counters,
                    std::unique_ptr<Engine>& result) {
  const auto* encapsulation =
      std::ranges::find_if(kEncapsulations, [&](const auto& each) { return each.name == options.encapsulation; });
  if (encapsulation == kEncapsulations.end()) return SystemError{"encapsulation", EPROTONOSUPPORT};

  std::unique_ptr<Engine> engine(new Engine(std::move(descriptors)));
  if (Failure failure = engine->fault_.failure()) return failure;
  if (Failure failure = engine->mail_.failure()) return failure;
  if (encapsulation->has_sessions) {
    if (!Aead::create(Aead::Way::kSeal) || !Aead::create(Aead::Way::kOpen)) {
      return SystemError{"ChaCha20-Poly1305 of OpenSSL", ENOSYS};
    }
    Engine* self = engine.get();
    engine->sessions_ = std::make_unique<Sessions>(
        Wireguard::indices_of(options.own), [self] { self->mail_.signal(); }, [self] { self->loops_.front()->wake(); });
  }
  engine->steer(options.steers);
  engine->find_tun();
  engine->set_switches(join_switches(engine->tun_name()));
  engine->set_peers(options.peers);
  engine->has_kept_sessions_ = engine->take_sessions(options);
  for (size_t i = 0; i < engine->descriptors_.loops.size(); i++) {
    const Path path = engine->path_of_loop(i, options, CounterRow(counters + i * kCounterCount));
    const auto reader = [&](size_t at) { return engine->peers_.reader(kReadersPerLoop * i + at); };
    std::vector<Source> sources =
        encapsulation->make(path, options.own, engine->sessions_.get(), {reader(0), reader(1), reader(2)});
    engine->loops_.push_back(std::make_unique<Loop>(i, std::move(sources), options.loops, engine->fault_));
  }
  for (auto& loop : engine->loops_) {
    if (Failure failure = loop->start()) return failure;
  }
  // Wake the first thread, because packets that waited for WireGuard keys in the previous engine may be sent now.
  if (engine->has_kept_sessions_) engine->loops_.front()->wake();
  result = std::move(engine);
  return {};
}

/// Returns the descriptors and objects that loop `i` uses. Must be called once for each loop, in order.
Path Engine::path_of_loop(size_t i, const RunOptions& options, CounterRow counters) {
  const LoopDescriptors& fds = descriptors_.loops[i];
  Drops& tx_drops = drops_.emplace_back(counters, monotonic_us);
  Drops& rx_drops = drops_.emplace_back(counters, monotonic_us);
  Path path{.tun = fds.tun.get(),
            .tun_address = options.tun_address,
            .network_address = options.network_address,
            .features = &features_,
            .counters = counters,
            .traffic = &traffic_[i],
            .tx_drops = &tx_drops,
            .rx_drops = &rx_drops,
            .filter = options.filter,
            .unknown_senders = &unknown_senders_[i],
            .icmp = &icmp_,
            .clamp_mtu = options.clamp_mss ? options.own.mtu : 0};
  for (const uint8_t version : kIpVersions) {
    const LoopSockets& own = fds.sockets.of(version);
    const LoopSockets& known = sessions_ ? descriptors_.loops.front().sockets.of(version) : own;
    path.sockets.of(version) = {.receiver = own.receiver.get(),
                                .sender = own.sender ? own.sender.get() : own.receiver.get(),
                                .known = known.receiver.get()};
  }
  return path;
}

const std::string& Engine::tun_name() {
  char name[IF_NAMESIZE];
  if (if_indextoname(tun_index_, name)) descriptors_.tun_name = name;
  return descriptors_.tun_name;
}

void Engine::set_switches(const JoinSwitches& switches) {
  features_.hold((switches.tcp ? 0u : kCoalesceTcp) | (switches.udp ? 0u : kCoalesceUdp));
}

/// Finds the TUN's index and present name, because another program may have renamed the TUN since weft opened it.
void Engine::find_tun() {
  const std::string name = weft::tun_name(descriptors_.loops.front().tun.get());
  if (!name.empty()) descriptors_.tun_name = name;
  tun_index_ = if_nametoindex(descriptors_.tun_name.c_str());
}

/// Sets the rule by which the TUN chooses the queue of a packet. Each engine sets the rule when it starts, even on an
/// inherited TUN, because `steers` may differ from that of the previous engine. So an engine does not hand over the
/// feature kTunSteering.
void Engine::steer(bool steers) {
  const int tun = descriptors_.loops.front().tun.get();
  if (descriptors_.loops.size() == 1) return;
  if (!steers) return steer_by_kernel(tun);
  steering_refused_ = steer_by_addresses(tun);
  if (!steering_refused_) features_.add(kTunSteering);
}

/// Takes the WireGuard sessions that the previous engine saved. Takes them even if this engine cannot use them, so that
/// no other process can encrypt with their keys.
bool Engine::take_sessions(const RunOptions& options) {
  const Fd handover_state = std::move(descriptors_.handover_state);
  const std::optional<SecretBytes> saved = handover_state ? take_handover_state(handover_state.get()) : std::nullopt;
  return saved && sessions_ && options.keeps_sessions && sessions_->take_over(*saved, options.peers, session_ms());
}

void Engine::make_room_for(std::span<const uint8_t> records) {
  traffic_slots_ = std::max(traffic_slots_, PeerTables::traffic_slots(records));
  for (TrafficRows& rows : traffic_) rows.make_room(traffic_slots_);
  if (sessions_) sessions_->keep(records);
}

void Engine::set_peers(std::span<const uint8_t> records) {
  make_room_for(records);
  peers_.set(records);
}

void Engine::change_peers(std::span<const uint8_t> records) {
  make_room_for(records);
  peers_.change(records);
}

bool Engine::send(const SocketAddress& to, std::span<const uint8_t> datagram) const {
  if (sessions_) Wireguard::sends(*sessions_, datagram);
  return send_now(descriptors_.loops.front().sockets.of(to.address()).receiver.get(), to, datagram);
}

Traffic Engine::traffic(uint32_t slot) const {
  Traffic sum;
  if (slot >= traffic_slots_) return sum;
  for (const TrafficRows& rows : traffic_) rows.sum(slot, sum);
  return sum;
}

std::vector<ThreadRounds> Engine::ask_threads() const {
  std::vector<ThreadRounds> threads;
  for (const auto& loop : loops_) threads.push_back(loop->ask_thread());
  return threads;
}

/// All threads must end before the first Loop is destroyed, because any thread may wake any other Loop.
void Engine::end_loops() {
  for (auto& loop : loops_) loop->stop();
  loops_.clear();
}

Engine::~Engine() { end_loops(); }

Descriptors Engine::release(std::span<const uint8_t> head) {
  end_loops();
  tun_name();  // the next process gets the present name
  descriptors_.features = features_.bits() & ~kTunSteering;
  if (sessions_) descriptors_.handover_state = write_handover_state(head, sessions_->save());
  sessions_.reset();
  return std::move(descriptors_);
}

}  // namespace weft
