// loop_test.cc - tests the thread of a loop with simulated directions: which of their functions it calls, and when.
// Also tests the end of an engine whose threads wake each other. core.test.ts builds and runs it.
#include "../../native/walk/loop.cc"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <thread>

#include "../../native/engine.cc"
#include "packets.h"

using namespace weft;

namespace {

struct Ends {
  Ends() { CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, fds) == 0); }
  ~Ends() {
    for (const int fd : fds) close(fd);
  }
  void send() const { CHECK(::send(fds[1], "x", 1, 0) == 1); }
  int fds[2];
};

/// A direction that takes one message per batch, and returns the result that the test chose.
struct Told final : Direction {
  explicit Told(int from) : fd(from) {}
  Pump pump() override {
    Pump pump;
    char byte;
    if (recv(fd, &byte, 1, 0) <= 0) return pump;
    pump.items = 1;
    pump.carried = carried.load();
    pump.refused = refused.load();
    nice.store(getpriority(PRIO_PROCESS, 0));
    if (fails) pump.failure = SystemError{"a test", EIO};
    turns++;
    counted_after = false;
    return pump;
  }
  void count() override { counted_after = true; }
  int tick_ms() const override { return every_ms; }
  bool tick() override {
    ticks++;
    return true;
  }
  void rest() override { rests++; }
  int fd;
  int every_ms = -1;
  std::atomic<size_t> carried{1}, refused{0}, turns{0}, ticks{0}, rests{0};
  std::atomic<int> nice{0};
  std::atomic<bool> fails{false};
  bool counted_after = false;  // written by the loop's thread; the test reads it after join()
};

/// Returns the sources of a loop with one socket.
std::vector<Source> sources_of(std::unique_ptr<Told> egress, std::unique_ptr<Told> ingress) {
  std::vector<Source> sources;
  for (std::unique_ptr<Told>* each : {&egress, &ingress}) {
    const int fd = (*each)->fd;
    sources.push_back({fd, std::move(*each)});
  }
  return sources;
}

struct Rig {
  explicit Rig(LoopOptions options, int tick_ms = -1) {
    auto out = std::make_unique<Told>(tun.fds[0]), in = std::make_unique<Told>(socket.fds[0]);
    egress = out.get();
    ingress = in.get();
    ingress->every_ms = tick_ms;
    loop = std::make_unique<Loop>(0, sources_of(std::move(out), std::move(in)), options, fault);
    CHECK(!loop->start());
  }
  /// Sends a message, and waits until the loop has processed it.
  void turn(const Ends& ends, Told& direction) {
    const size_t before = direction.turns;
    ends.send();
    while (direction.turns == before) std::this_thread::yield();
  }
  Ends tun, socket;
  Told *egress, *ingress;
  Fault fault;
  std::unique_ptr<Loop> loop;
};

/// The loop must count the socket's drops until its end, because the next engine counts only later drops.
void test_counts_at_the_end() {
  Rig stopped({0, 0});
  stopped.turn(stopped.socket, *stopped.ingress);
  stopped.turn(stopped.tun, *stopped.egress);
  stopped.loop->stop();
  CHECK(stopped.ingress->counted_after);
  // After a failure the loop's thread has already ended, so it does not count.
  Rig rig({0, 0});
  rig.ingress->fails = true;
  rig.turn(rig.socket, *rig.ingress);
  pollfd told{rig.fault.event(), POLLIN, 0};
  CHECK(poll(&told, 1, -1) == 1);
  rig.loop->stop();
  CHECK(rig.ingress->counted_after);
}

/// The loop must call tick() at intervals without traffic, and after each batch. It must not call tick() of a direction
/// without a timer.
void test_ticks() {
  for (const int64_t poll_us : {0, 100}) {
    Rig idle({0, poll_us}, 1);
    while (idle.ingress->ticks < 3) std::this_thread::yield();
    Rig rig({0, poll_us}, 3'600'000);
    rig.turn(rig.socket, *rig.ingress);
    while (rig.ingress->ticks == 0) std::this_thread::yield();
    CHECK(rig.egress->ticks == 0);
    // After tick() returned true, the loop must call rest() of all directions.
    while (rig.ingress->rests == 0 || rig.egress->rests == 0) std::this_thread::yield();
  }
  Rig without({0, 0});
  for (int i = 0; i < 3; i++) without.turn(without.socket, *without.ingress);
  without.loop->stop();
  CHECK(without.ingress->ticks == 0);
}

/// If no descriptor is left, the start of a loop or an engine must fail with the error of the refused system call.
void test_without_descriptors() {
  const Ends tun, socket;
  rlimit usual;
  CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const auto next = [] {
    const Fd fd(open("/dev/null", O_RDONLY));
    return static_cast<rlim_t>(fd.get());
  };
  const auto allow = [&](rlim_t more) {
    const rlimit limit{next() + more, usual.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  };
  Fault fault;
  for (const rlim_t spare : {rlim_t{0}, rlim_t{1}}) {
    auto sources = sources_of(std::make_unique<Told>(tun.fds[0]), std::make_unique<Told>(socket.fds[0]));
    allow(spare);
    Loop loop(0, std::move(sources), {}, fault);
    if (spare == 0) CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);  // from now on descriptors are available again
    errno = 0;
    const Failure failure = loop.start();
    CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
    CHECK(failure && failure->number == EMFILE);
    CHECK(failure && std::string(failure->call) == (spare == 0 ? "eventfd" : "epoll_create1"));
  }
  for (const rlim_t spare : {rlim_t{0}, rlim_t{1}}) {
    RunOptions options;
    options.encapsulation = "udp";
    std::vector<uint64_t> counters(kCounterCount);
    std::unique_ptr<Engine> engine;
    Descriptors descriptors;
    descriptors.loops.push_back({Fd(dup(tun.fds[0])), {.ipv4 = {Fd(dup(socket.fds[0])), Fd()}}});
    allow(spare);
    const Failure failure = Engine::run(std::move(descriptors), options, counters.data(), engine);
    CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
    CHECK(failure && failure->number == EMFILE && std::string(failure->call) == "eventfd");
  }
}

/// The thread must run at the requested priority, and the process must keep its own.
void test_priority() {
  // The requested nice value must not be 0, which would mean "do not change it".
  const int usual = getpriority(PRIO_PROCESS, 0), own = usual == 5 ? -5 : usual - 5;
  Rig rig({own, 0});
  if (rig.loop->priority_refused()) {
    std::fprintf(stderr, "skipped: priority: it is not allowed here\n");
    return;
  }
  rig.turn(rig.socket, *rig.ingress);
  CHECK(rig.ingress->nice == own && getpriority(PRIO_PROCESS, 0) == usual);
}

/// While the engine ends, a thread that gets new keys wakes another Loop, possibly after the end of that Loop's thread.
void test_lanes_end() {
  constexpr uint32_t kSessions = 512, kSecret = 77;
  const auto sealing = Aead::create(Aead::Way::kSeal);
  for (int round = 0; round < 20; round++) {
    Ends tuns[2];
    Descriptors descriptors;
    for (Ends& tun : tuns) {
      UdpSocket socket;
      CHECK(!open_udp(SocketAddress(Address::v4(to_be32(INADDR_LOOPBACK)), 0), Share::kNo, 8 << 20, 0, socket));
      descriptors.loops.push_back({Fd(dup(tun.fds[0])), {.ipv4 = {std::move(socket.fd), Fd()}}});
    }
    const int last = descriptors.loops.back().sockets.ipv4.receiver.get();
    const SocketAddress to = bound_address(last);
    RunOptions options;
    options.encapsulation = "wireguard";
    store_le32(&options.own.encap[Wireguard::kSecret], kSecret);
    std::vector<uint64_t> counters(2 * kCounterCount);
    std::unique_ptr<Engine> engine;
    CHECK(!Engine::run(std::move(descriptors), options, counters.data(), engine));
    for (uint32_t session = 1; session <= kSessions; session++) {
      const uint32_t index = session << Sessions::kPairBits ^ kSecret;
      engine->sessions()->set_keys(session, {.own_index = index, .send = {}, .receive = {}}, now_ms());
      uint8_t datagram[kEncapBytes<Wireguard>] = {4};
      store_le32(&datagram[4], index);
      sealing->use(1, Key());
      CHECK(sealing->seal(0, {datagram + Wireguard::kHeaderBytes, 0}));
      CHECK(send_now(last, to, datagram));
    }
    if (round % 2 == 0) {
      CHECK(engine->release({}).loops.size() == 2);
    } else {
      engine.reset();
    }
  }
}

/// WireGuard: all threads share the counter of a session. To a peer that requires the well-known port, they must send
/// through the socket of the first loop. A fair queue (fq) treats each socket as a flow, and flows overtake each other.
/// Encapsulations without sessions have no counter, so each loop uses its own socket.
void test_one_socket_for_a_session() {
  for (const bool has_sessions : {false, true}) {
    Ends tuns[2];
    Descriptors descriptors;
    const SocketAddress here(Address::v4(to_be32(INADDR_LOOPBACK)), 0);
    // Each loop has another port here, so that the test can distinguish their datagrams.
    uint16_t ports[2];
    for (int lane = 0; lane < 2; lane++) {
      UdpSocket socket;
      CHECK(!open_udp(here, Share::kNo, 1 << 20, 0, socket));
      ports[lane] = bound_address(socket.fd.get()).port();
      descriptors.loops.push_back({Fd(dup(tuns[lane].fds[0])), {.ipv4 = {std::move(socket.fd), Fd()}}});
    }
    UdpSocket peer;
    CHECK(!open_udp(here, Share::kNo, 1 << 20, 0, peer));
    PeerRecord record{};
    record.subnet_family = record.outer = 4;
    record.prefix_length = 24;
    record.flags = PeerRecord::kFromKnownPort;
    store(record.port, bound_address(peer.fd.get()).port());
    store_be32(record.subnet, 0x0a050200);
    store_be32(record.ipv4, INADDR_LOOPBACK);
    store_le32(record.encap, 1);
    RunOptions options;
    options.encapsulation = has_sessions ? "wireguard" : "udp";
    options.peers = {reinterpret_cast<const uint8_t*>(&record), sizeof record};
    std::vector<uint64_t> counters(2 * kCounterCount);
    std::unique_ptr<Engine> engine;
    CHECK(!Engine::run(std::move(descriptors), options, counters.data(), engine));
    if (has_sessions)
      engine->sessions()->set_keys(1, {.is_initiator = true, .own_index = 1 << 12, .send = {}, .receive = {}},
                                   now_ms());
    Fields fields;
    fields.tcp = false;
    fields.destination = 0x0a050202;
    fields.payload = 100;
    const Bytes packet = build(fields);
    for (const int lane : {0, 1, 1, 0}) {
      CHECK(send(tuns[lane].fds[1], packet.data(), packet.size(), 0) == static_cast<ssize_t>(packet.size()));
      for (;;) {
        pollfd comes{peer.fd.get(), POLLIN, 0};
        CHECK(poll(&comes, 1, 60'000) == 1);
        uint8_t bytes[512];
        SocketAddress from;
        socklen_t size = SocketAddress::kRoom;
        const ssize_t got = recvfrom(peer.fd.get(), bytes, sizeof bytes, MSG_DONTWAIT, from.raw(), &size);
        if (got < static_cast<ssize_t>(packet.size())) continue;  // skips a keepalive, which begins a session
        CHECK(from.port() == ports[has_sessions ? 0 : lane]);
        break;
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = seed_of(argc, argv);
  test_counts_at_the_end();
  test_ticks();
  test_priority();
  test_lanes_end();
  test_without_descriptors();
  test_one_socket_for_a_session();
  return verdict(seed);
}
