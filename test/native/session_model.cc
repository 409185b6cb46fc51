// session_model.cc - simulates the WireGuard sessions of two hosts over a network that loses, duplicates, delays and
// reorders datagrams, while hosts restart and one host changes its address. It runs thousands of random schedules in
// virtual time, with a simplified handshake. core.test.ts builds and runs it.
//
// Usage: session_model SEED SCHEDULES
//
// In every schedule, no counter may be used twice for encryption, and no packet may be accepted twice. A host may never
// have more than three pairs of keys, and must have none after three minutes of silence. After the disturbances have
// ended, the hosts must soon exchange all packets again, at their current addresses. A host's address is learnt from
// its data, or only from its handshakes if its data comes from any port. schedules.test.ts tests the handshakes in
// JavaScript (src/path/backends/wireguard/handshakes.ts).
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>

#include "../../native/core/session.h"
#include "checks.h"

using namespace weft;

namespace {

using Limits = SessionLimits;
using Bytes = std::vector<uint8_t>;

constexpr uint16_t kPort = 1, kLanePort = 2;
constexpr int64_t kMostTroubleMs = 300'000, kStepMs = 500;
/// The minimum interval between two initiations, its random extension, how long a handshake is retried, and the minimum
/// interval between two accepted initiations.
constexpr int64_t kInitiateMs = 5'000, kJitterMs = 333, kAttemptMs = 90'000, kAcceptEveryMs = 20;
/// A host notices silence after 15 s, and an initiation may have been sent (and lost) right before the disturbances
/// ended.
constexpr int64_t kRecoveryMs = Limits::kSilenceMs + kInitiateMs + kJitterMs + 2'000;

struct Datagram {
  enum class Type : uint8_t { kInitiation, kResponse, kData } type;
  uint32_t index = 0;                ///< the receiver's index of the pair of keys
  uint32_t sender = 0;               ///< the sender's index of the pair of keys
  uint64_t number = 0;               ///< the timestamp of an initiation, the keys of a response, or the counter of data
  Bytes bytes = {};                  ///< the encrypted data with its tag
  SocketAddress from = {}, to = {};  ///< source and destination address of the datagram
};

/// The state that both hosts of one schedule share.
struct World {
  int64_t now = 1'000'000;
  int64_t calm_at = 0;
  uint32_t loss = 0, twice = 0, delay_ms = 1;  // the probability of loss and of duplication, in percent
  bool any_port = false;                       // true if a host sends data from any port, as with several loops
  uint32_t last_index = 0;
  uint64_t last_keys = 0, last_pair = 0, last_packet = 0, last_order = 0;
  // the key and the counter of each encrypted packet, to detect that a counter is used twice
  std::set<std::pair<uint64_t, uint64_t>> sealed;
  std::set<uint64_t> delivered;
  struct Event {
    int64_t at;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const { return std::pair(at, order) > std::pair(other.at, other.order); }
  };
  std::priority_queue<Event> events;

  bool is_calm() const { return now >= calm_at; }
  void later(int64_t ms, std::function<void()> what) { events.push({now + ms, ++last_order, std::move(what)}); }
};

class Host {
 public:
  Host(World& world, uint8_t address) : world_(world), leased_(Address::v4(address), kPort), at_(leased_) {}
  void connect(Host& other) {
    other_ = &other;
    start();
  }

  /// Starts or restarts a host. After a restart it knows only the time of its last handshake, and the other host's
  /// address from the lease.
  void start() {
    session_ = std::make_unique<Session>();
    found_at(other_->leased_);
    pending_ = 0;
    wanted_ms_.reset();
    due_ms_ = 0;
    completed_ms_ = accepted_ms_ = -kAttemptMs;
    greatest_ = 0;
  }

  /// Changes the host's address, while its lease keeps the old one.
  void move() { at_ = SocketAddress(Address::v4(0x0a000000), kPort); }

  void say() {
    Bytes bytes(sizeof(uint64_t) + Aead::kTagBytes);
    store(bytes.data(), ++world_.last_packet);
    if (seal(bytes, true)) return;
    session_->stage({bytes, world_.now, 0});
  }

  void step() {
    if (wanted_ms_ && due_ms_ <= world_.now) {
      if (world_.now - *wanted_ms_ < kAttemptMs)
        initiate();
      else
        wanted_ms_.reset();
    }
    const Session::Due due = session_->look(keepalive_ms, world_.now);
    if (due.wants_handshake) want();
    if (due.keepalive) send_keepalive();
    size_t open = 0;
    for (const uint32_t index : indices_) open += !session_->begin_open(*opening_[0], index, 0, world_.now);
    CHECK(open <= 3);
  }

  void receive(Datagram datagram) {
    const int64_t now = world_.now;
    if (!(datagram.to == at_)) return;
    if (datagram.type == Datagram::Type::kInitiation) {
      if (datagram.number <= greatest_ || now - accepted_ms_ < kAcceptEveryMs) return;
      greatest_ = datagram.number;
      accepted_ms_ = now;
      answered_ = datagram.from;
      const uint64_t keys = ++world_.last_keys;
      const uint32_t index = new_index();
      set_keys(false, keys, index, datagram.sender);
      send({.type = Datagram::Type::kResponse, .index = datagram.sender, .sender = index, .number = keys},
           datagram.from);
    } else if (datagram.type == Datagram::Type::kResponse) {
      if (pending_ == 0 || datagram.index != pending_) return;
      pending_ = 0;
      complete();
      found_at(datagram.from);
      set_keys(true, datagram.number, datagram.index, datagram.sender);
      send_waiting();
    } else {
      open(datagram);
    }
  }

  /// Checks that no key is left three minutes after the last handshake.
  void expect_wiped() {
    session_->look(0, world_.now + Limits::kRejectAfterMs);
    CHECK(session_->is_empty());
  }

  int64_t keepalive_ms = 0;
  size_t delivered = 0, keyed = 0;

 private:
  static Key key_of(uint64_t number, bool is_initiators) {
    uint8_t bytes[Key::kBytes] = {};
    store(bytes, number);
    bytes[31] = is_initiators;
    return Key(bytes);
  }
  uint32_t new_index() { return indices_.emplace_back(++world_.last_index); }

  void set_keys(bool is_initiator, uint64_t keys, uint32_t index, uint32_t peer_index) {
    keyed++;
    session_->set_keys(++world_.last_pair,
                       {.is_initiator = is_initiator,
                        .own_index = index,
                        .peer_index = peer_index,
                        .send = key_of(keys, is_initiator),
                        .receive = key_of(keys, !is_initiator)},
                       world_.now);
    number_of_keys_[world_.last_pair] = 2 * keys + is_initiator;
  }

  void found_at(const SocketAddress& address) { session_->send_to(address, world_.any_port); }

  void send(const Datagram& datagram) { send(datagram, session_->to()); }
  void send(Datagram datagram, const SocketAddress& to) {
    const bool is_from_lane = world_.any_port && datagram.type == Datagram::Type::kData;
    datagram.from = is_from_lane ? SocketAddress(at_.address(), kLanePort) : at_;
    datagram.to = to;
    if (!world_.is_calm() && random_below(100) < world_.loss) return;
    for (int copies = !world_.is_calm() && random_below(100) < world_.twice ? 2 : 1; copies > 0; copies--) {
      const int64_t ms = world_.is_calm() ? 5 : 1 + random_below(world_.delay_ms);
      world_.later(ms, [other = other_, datagram] { other->receive(datagram); });
    }
  }

  void want() {
    if (wanted_ms_ || world_.now - completed_ms_ < kInitiateMs) return;
    wanted_ms_ = world_.now;
    if (due_ms_ <= world_.now) initiate();
  }
  void initiate() {
    due_ms_ = world_.now + kInitiateMs + random_below(kJitterMs + 1);
    pending_ = new_index();
    send({.type = Datagram::Type::kInitiation, .sender = pending_, .number = ++stamp_});
  }
  void complete() {
    wanted_ms_.reset();
    completed_ms_ = world_.now;
  }

  /// Encrypts with a random thread's Aead, which may still contain the key of another pair.
  bool seal(Bytes& bytes, bool is_data) {
    Aead& lane = *sealing_[random_below(2)];
    const Session::Grant grant = session_->begin_seal(lane, is_data, world_.now);
    if (grant.wants_handshake) want();
    if (!grant.is_granted) return false;
    CHECK(world_.sealed.emplace(number_of_keys_.at(lane.key_number()), grant.counter).second);
    CHECK(lane.seal(grant.counter, {bytes.data(), bytes.size() - Aead::kTagBytes}));
    send({.type = Datagram::Type::kData, .index = grant.peer_index, .number = grant.counter, .bytes = bytes});
    return true;
  }
  void send_keepalive() {
    Bytes bytes(Aead::kTagBytes);
    seal(bytes, false);
  }
  void send_waiting() {
    std::vector<Staged> waiting = session_->take_staged();
    if (waiting.empty()) return send_keepalive();
    for (Staged& each : waiting) seal(each.datagram, true);
  }

  void open(Datagram& datagram) {
    Aead& lane = *opening_[random_below(2)];
    if (session_->begin_open(lane, datagram.index, datagram.number, world_.now)) return;
    const size_t size = datagram.bytes.size() - Aead::kTagBytes;
    CHECK(lane.open(datagram.number, {datagram.bytes.data(), size}));
    const Session::Accepted accepted =
        session_->accept(lane.key_number(), datagram.number, size > 0, datagram.from, world_.now);
    if (accepted.reason) return;
    if (size > 0) CHECK(world_.delivered.insert(load<uint64_t>(datagram.bytes.data())).second);
    CHECK(!(world_.any_port && accepted.has_moved));
    delivered += size > 0;
    if (accepted.wants_handshake) want();
    if (!accepted.is_confirmed) return;
    // The address is learnt only now: the initiation may have been a replay from another address, but this packet
    // proves that the peer answered.
    found_at(answered_);
    complete();
    send_waiting();
  }

  World& world_;
  SocketAddress leased_, at_, answered_;
  Host* other_ = nullptr;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Aead> sealing_[2] = {Aead::create(Aead::Way::kSeal), Aead::create(Aead::Way::kSeal)};
  std::unique_ptr<Aead> opening_[2] = {Aead::create(Aead::Way::kOpen), Aead::create(Aead::Way::kOpen)};
  std::vector<uint32_t> indices_;
  std::map<uint64_t, uint64_t> number_of_keys_;  // the keys of each pair, by the pair's number
  uint32_t pending_ = 0;                         // the index of the initiation that has no response yet; 0 for none
  std::optional<int64_t> wanted_ms_;
  int64_t due_ms_ = 0, completed_ms_ = 0, accepted_ms_ = 0;
  uint64_t stamp_ = 0, greatest_ = 0;
};

template <size_t N>
uint32_t one_of(const uint32_t (&values)[N]) {
  return values[random_below(N)];
}

/// Runs one schedule, and returns how many pairs of keys were installed.
size_t run() {
  World world;
  const int64_t trouble_ms = random_below(kMostTroubleMs);
  world.calm_at = world.now + trouble_ms;
  world.loss = one_of({0, 10, 50, 90});
  world.twice = one_of({0, 30});
  world.delay_ms = one_of({5, 400, 7'000});
  world.any_port = random_below(2) == 1;
  Host a(world, 1), b(world, 2);
  Host* const hosts[] = {&a, &b};
  a.connect(b);
  b.connect(a);
  for (Host* host : hosts) host->keepalive_ms = one_of({0, 0, 25'000});
  int64_t talks_at[2];
  for (int64_t& at : talks_at) at = world.now + one_of({0, 0, 500, 60'000, 200'000});
  const auto some_time = [&] { return random_below(static_cast<uint32_t>(trouble_ms + 1)); };
  for (uint32_t restarts = random_below(4); restarts > 0; restarts--)
    world.later(some_time(), [host = hosts[random_below(2)]] { host->start(); });
  const bool moves = random_below(3) == 0;
  if (moves) world.later(some_time(), [host = hosts[random_below(2)]] { host->move(); });
  // The other host learns the new address of a host from its next packets, but not while older packets are still in
  // flight.
  const int64_t settled_at = world.calm_at + (moves ? world.delay_ms : 0);

  const auto run_until = [&](int64_t until) {
    while (!world.events.empty() && world.events.top().at <= until) {
      const World::Event event = world.events.top();
      world.events.pop();
      world.now = std::max(world.now, event.at);
      event.what();
    }
    world.now = until;
  };
  size_t before[2] = {};
  std::optional<int64_t> heard_at[2];
  while (world.now < settled_at + kRecoveryMs) {
    run_until(world.now + kStepMs);
    for (size_t who = 0; who < 2; who++) {
      if (world.is_calm() && hosts[who]->delivered > before[who] && !heard_at[who]) heard_at[who] = world.now;
      before[who] = hosts[who]->delivered;
      hosts[who]->step();
      if (world.is_calm() || world.now >= talks_at[who]) hosts[who]->say();
    }
  }
  for (const auto& at : heard_at) CHECK(at && *at - settled_at <= kRecoveryMs);
  // From now on every packet must arrive. The time is enough for about two rekeyings, whichever host initiates.
  run_until(world.now + kStepMs);
  for (size_t who = 0; who < 2; who++) before[who] = hosts[who]->delivered;
  constexpr size_t kPackets = 500;
  for (size_t packets = 0; packets < kPackets; packets++) {
    for (Host* host : hosts) host->step();
    for (Host* host : hosts) host->say();
    run_until(world.now + kStepMs);
  }
  for (size_t who = 0; who < 2; who++) CHECK(hosts[who]->delivered == before[who] + kPackets);
  for (Host* host : hosts) host->expect_wiped();
  return a.keyed + b.keyed;
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  if (!Aead::create(Aead::Way::kSeal)) {
    std::fputs("no OpenSSL in this process: there are no sessions\n", stderr);
    return verdict(seed);
  }
  const size_t schedules = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1'000;
  size_t keyed = 0;
  for (size_t i = 0; i < schedules && failures == 0; i++) {
    const auto own = static_cast<unsigned>(seed + i);
    rng.seed(own);
    context = "session_model " + std::to_string(own) + " 1";
    keyed += run();
  }
  context.clear();
  CHECK(keyed > 4 * schedules);  // Otherwise the schedules would hardly test anything.
  return verdict(seed);
}
