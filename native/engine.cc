// engine.cc - the threads' lives.
#include "engine.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

namespace weft {

namespace {

/// After so much quiet the TUN side comes back from its own thread.
constexpr int kQuietMs = 20;
/// Fewer items than this in kQuietMs count as quiet.
constexpr size_t kQuietItems = 8;

/// Followed by the loop's number; with two digits no longer than the 15 characters that the kernel keeps.
constexpr const char* kLoopThread = "weft-loop";
constexpr const char* kTunThread = "weft-tun";

int64_t clock_us(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000 + now.tv_nsec / 1'000;
}

int64_t now_us() { return clock_us(CLOCK_MONOTONIC); }

void signal_event(const Fd& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event.get(), &one, sizeof one);
}

void clear_event(const Fd& event) {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(event.get(), &count, sizeof count);
}

Fd open_event() { return Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }

bool watch(const Fd& epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(epoll.get(), operation, fd, &event) == 0;
}

/// Starts a thread that takes no signals: those are for Node's main thread.
template <typename Body>
Failure spawn(std::thread& thread, const std::string& name, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread = std::thread(body);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name.c_str());
  return {};
}

}  // namespace

Fault::Fault() : event_(open_event()) {}

void Fault::report(const SystemError& error) {
  if (reported_.exchange(true)) return;
  error_ = error;
  signal_event(event_);
}

Loop::Loop(size_t number, Tun tun, UdpSocket socket, UdpSocket sender, const EngineOptions& options, Features& features,
           CounterRow counters, PeerTables::Reader peers, Fault& fault)
    : number_(number),
      tun_(std::move(tun)),
      socket_(std::move(socket)),
      sender_(std::move(sender)),
      path_{tun_.fd.get(),
            socket_.fd.get(),
            sender_.fd ? sender_.fd.get() : socket_.fd.get(),
            options.tun_address,
            options.naive,
            &features,
            counters},
      egress_(path_, peers),
      ingress_(path_),
      fault_(fault) {}

Loop::~Loop() { stop(); }

Failure Loop::start() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = open_event();
  helper_wake_ = open_event();
  if (!epoll_ || !wake_ || !helper_wake_) return SystemError{"eventfd", errno};
  if (!watch(epoll_, EPOLL_CTL_ADD, path_.tun, EPOLLIN) || !watch(epoll_, EPOLL_CTL_ADD, path_.socket, EPOLLIN) ||
      !watch(epoll_, EPOLL_CTL_ADD, wake_.get(), EPOLLIN)) {
    return SystemError{"epoll_ctl", errno};
  }
  if (path_.naive) return spawn(thread_, thread_name(kLoopThread), [this] { run_naive(); });
  if (path_.features->has(kTwoThreads)) {
    if (Failure failure = spawn(helper_, thread_name(kTunThread), [this] { run_helper(); })) return failure;
  }
  return spawn(thread_, thread_name(kLoopThread), [this] { run(); });
}

void Loop::ask_threads(std::vector<ThreadRounds>& threads) const {
  // Read before it is woken: whatever the thread does at this moment, one more round is still to come.
  threads.push_back({thread_name(kLoopThread), rounds_.count()});
  signal_event(wake_);
  if (!helper_.joinable()) return;
  threads.push_back({thread_name(kTunThread), helper_rounds_.count()});
  signal_event(helper_wake_);
}

void Loop::stop() {
  stopping_.store(true);
  signal_event(wake_);
  signal_event(helper_wake_);
  if (thread_.joinable()) thread_.join();
  if (helper_.joinable()) helper_.join();
}

void Loop::run() {
  bool has_tun = true;
  epoll_event events[3];
  while (!stopping_.load(std::memory_order_relaxed)) {
    rounds_.add();
    const int count = epoll_wait(epoll_.get(), events, 3, -1);
    if (count < 0 && errno != EINTR) return fault_.report({"epoll_wait", errno});
    size_t tun_items = 0, socket_items = 0;
    for (int i = 0; i < count; i++) {
      const int fd = events[i].data.fd;
      if (fd == path_.socket) {
        const Pump pump = ingress_.pump();
        if (pump.failure) return fault_.report(*pump.failure);
        socket_items += pump.items;
      } else if (fd == path_.tun && has_tun) {
        const Pump pump = egress_.pump();
        if (pump.failure) return fault_.report(*pump.failure);
        tun_items += pump.items;
      } else if (fd == wake_.get()) {
        clear_event(wake_);
        if (!has_tun && !helper_has_tun_.load(std::memory_order_acquire)) {
          has_tun = true;
          watch(epoll_, EPOLL_CTL_MOD, path_.tun, EPOLLIN);
        }
      }
    }
    if (has_tun && helper_.joinable() && load_.add(tun_items, socket_items, clock_us)) {
      has_tun = false;
      watch(epoll_, EPOLL_CTL_MOD, path_.tun, 0);
      path_.counters.add(k_thread_handovers);
      helper_has_tun_.store(true, std::memory_order_release);
      signal_event(helper_wake_);
    }
  }
}

void Loop::run_helper() {
  pollfd sleep{helper_wake_.get(), POLLIN, 0};
  pollfd tun{path_.tun, POLLIN, 0};
  while (!stopping_.load(std::memory_order_relaxed)) {
    helper_rounds_.add();
    if (!helper_has_tun_.load(std::memory_order_acquire)) {
      poll(&sleep, 1, -1);
      clear_event(helper_wake_);
      continue;
    }
    size_t items = 0;
    int64_t since = now_us();
    while (!stopping_.load(std::memory_order_relaxed)) {
      helper_rounds_.add();
      // The time-out bounds both the return of the TUN side and how long stop() waits.
      const int ready = poll(&tun, 1, kQuietMs);
      if (ready > 0) {
        const Pump pump = egress_.pump();
        if (pump.failure) return fault_.report(*pump.failure);
        items += pump.items;
        if (items >= kQuietItems) {
          items = 0;
          since = now_us();
          continue;
        }
      }
      if (now_us() - since >= kQuietMs * 1'000) break;
    }
    helper_has_tun_.store(false, std::memory_order_release);
    signal_event(wake_);
  }
}

void Loop::run_naive() {
  epoll_event events[3];
  while (!stopping_.load(std::memory_order_relaxed)) {
    const int count = epoll_wait(epoll_.get(), events, 3, -1);
    if (count < 0 && errno != EINTR) return fault_.report({"epoll_wait", errno});
    for (int i = 0; i < count; i++) {
      if (events[i].data.fd == wake_.get()) clear_event(wake_);
    }
    bool more = true;
    while (more && !stopping_.load(std::memory_order_relaxed)) {
      rounds_.add();
      const Pump out = egress_.pump();
      const Pump in = ingress_.pump();
      if (out.failure) return fault_.report(*out.failure);
      if (in.failure) return fault_.report(*in.failure);
      more = out.items + in.items > 0;
    }
  }
}

Failure Engine::start(const EngineOptions& options, uint64_t* counters, std::unique_ptr<Engine>& result) {
  uint32_t wanted = options.naive ? 0 : options.features;
  if (!(wanted & kTunHeader)) wanted &= ~(kTunCsum | kTunTso | kTunUso | kCoalesceTcp | kCoalesceUdp);
  const bool several = options.workers > 1;
  std::vector<Tun> tuns(options.workers);
  std::vector<UdpSocket> sockets(options.workers), senders(options.workers);
  std::string name = options.tun_name;
  uint32_t granted = wanted & (kCoalesceTcp | kCoalesceUdp | kTwoThreads);
  for (size_t i = 0; i < options.workers; i++) {
    if (Failure failure = open_udp(options.bind_address, several, wanted, sockets[i])) return failure;
    if (!several) break;
    if (Failure failure = open_sender(options.bind_address, i, wanted, senders[i])) return failure;
  }
  // Refused, the kernel spreads by its own hash of addresses and ports: less evenly, and flows keep their order too.
  if (several) spread_by_source(sockets[0], options.bind_address, options.workers);
  for (size_t i = 0; i < options.workers; i++) {
    if (Failure failure = open_tun(name, several, wanted, tuns[i])) return failure;
    name = tuns[i].name;
  }
  granted |= tuns[0].features | sockets[0].features;
  // A kernel that does not know USO refuses UDP superpackets in both directions.
  if (!(granted & kTunUso) && (wanted & kTunUso)) granted &= ~kCoalesceUdp;

  std::unique_ptr<Engine> engine(new Engine(options.workers, granted));
  engine->tun_name_ = name;
  engine->receive_buffer_bytes_ = sockets[0].receive_buffer_bytes;
  engine->send_buffer_bytes_ = sockets[0].send_buffer_bytes;
  for (size_t i = 0; i < options.workers; i++) {
    engine->loops_.push_back(std::make_unique<Loop>(
        i, std::move(tuns[i]), std::move(sockets[i]), std::move(senders[i]), options, engine->features_,
        CounterRow(counters + i * kCounterCount), engine->peers_.reader(i), engine->fault_));
  }
  for (auto& loop : engine->loops_) {
    if (Failure failure = loop->start()) return failure;
  }
  result = std::move(engine);
  return {};
}

}  // namespace weft
