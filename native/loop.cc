// loop.cc - the threads' lives.
#include "loop.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#include "io/clock.h"

namespace weft {

namespace {

/// Followed by the loop's number; with two digits no longer than the 15 characters that the kernel keeps.
constexpr const char* kLoopThread = "weft-loop";
constexpr const char* kTunThread = "weft-tun";

bool watch(const Fd& epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(epoll.get(), operation, fd, &event) == 0;
}

}  // namespace

Loop::Loop(size_t number, const Path& path, std::unique_ptr<Direction> egress, std::unique_ptr<Direction> ingress,
           Fault& fault)
    : number_(number), path_(path), egress_(std::move(egress)), ingress_(std::move(ingress)), fault_(fault) {}

Loop::~Loop() { stop(); }

Failure Loop::start(bool naive) {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || wake_.fd() < 0 || helper_wake_.fd() < 0) return SystemError{"eventfd", errno};
  if (!watch(epoll_, EPOLL_CTL_ADD, path_.tun, EPOLLIN) || !watch(epoll_, EPOLL_CTL_ADD, path_.socket, EPOLLIN) ||
      !watch(epoll_, EPOLL_CTL_ADD, wake_.fd(), EPOLLIN)) {
    return SystemError{"epoll_ctl", errno};
  }
  if (!naive && path_.features->has(kTwoThreads)) {
    if (Failure failure = helper_.start(thread_name(kTunThread), [this] { run_helper(); })) return failure;
  }
  return thread_.start(thread_name(kLoopThread), [this, naive] { naive ? run_naive() : run(); });
}

void Loop::ask_threads(std::vector<ThreadRounds>& threads) const {
  // Read before it is woken: whatever the thread does at this moment, one more round is still to come.
  threads.push_back({thread_name(kLoopThread), rounds_.count()});
  wake_.signal();
  if (!helper_.started()) return;
  threads.push_back({thread_name(kTunThread), helper_rounds_.count()});
  helper_wake_.signal();
}

void Loop::stop() {
  stopping_.store(true);
  wake_.signal();
  helper_wake_.signal();
  thread_.join();
  helper_.join();
}

bool Loop::pump(Direction& direction, size_t& items) {
  const Pump pump = direction.pump();
  if (pump.failure) fault_.report(*pump.failure);
  items += pump.items;
  return !pump.failure;
}

void Loop::run() {
  bool has_tun = true;
  epoll_event events[3];
  while (!stopping()) {
    rounds_.add();
    const int count = epoll_wait(epoll_.get(), events, 3, LoopWaiting::kSleepMs);
    if (count < 0 && errno != EINTR) return fault_.report({"epoll_wait", errno});
    size_t tun_items = 0, socket_items = 0;
    for (int i = 0; i < count; i++) {
      const int fd = events[i].data.fd;
      if (fd == path_.socket) {
        if (!pump(*ingress_, socket_items)) return;
      } else if (fd == path_.tun && has_tun) {
        if (!pump(*egress_, tun_items)) return;
      } else if (fd == wake_.fd()) {
        wake_.clear();
        if (!has_tun && !helper_has_tun_.load(std::memory_order_acquire)) {
          has_tun = true;
          watch(epoll_, EPOLL_CTL_MOD, path_.tun, EPOLLIN);
        }
      }
    }
    if (has_tun && helper_.started() && waiting_.after(tun_items, socket_items, ThreadClock{}) == Next::kHandTunOver) {
      has_tun = false;
      watch(epoll_, EPOLL_CTL_MOD, path_.tun, 0);
      path_.counters.add(k_thread_handovers);
      helper_has_tun_.store(true, std::memory_order_release);
      helper_wake_.signal();
    }
  }
}

void Loop::run_helper() {
  pollfd sleep{helper_wake_.fd(), POLLIN, 0};
  pollfd tun{path_.tun, POLLIN, 0};
  while (!stopping()) {
    helper_rounds_.add();
    if (!helper_has_tun_.load(std::memory_order_acquire)) {
      poll(&sleep, 1, -1);
      helper_wake_.clear();
      continue;
    }
    HelperWaiting waiting(ThreadClock{});
    size_t items = 0;
    do {
      helper_rounds_.add();
      items = 0;
      if (poll(&tun, 1, HelperWaiting::kSleepMs) > 0 && !pump(*egress_, items)) return;
    } while (!stopping() && waiting.after(items, ThreadClock{}) != Next::kGiveTunBack);
    helper_has_tun_.store(false, std::memory_order_release);
    wake_.signal();
  }
}

}  // namespace weft
