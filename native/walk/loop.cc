// loop.cc - the thread that runs a loop.
#include "loop.h"

#include <errno.h>
#include <sys/epoll.h>

#include "../core/waiting.h"
#include "../io/clock.h"

namespace weft {

namespace {

/// The thread's name, which the loop's number follows. The kernel allows 15 characters.
constexpr const char* kThreadName = "weft-loop";

bool watch(const Fd& epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Loop::Loop(size_t number, const Path& path, std::unique_ptr<Direction> egress, std::unique_ptr<Direction> ingress,
           const LoopOptions& options, Fault& fault, std::unique_ptr<Direction> other_ingress)
    : name_(kThreadName + std::to_string(number)),
      path_(path),
      egress_(std::move(egress)),
      ingress_(std::move(ingress)),
      other_ingress_(std::move(other_ingress)),
      options_(options),
      fault_(fault) {}

Loop::~Loop() { stop(); }

Failure Loop::start() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return SystemError{"epoll_create1", errno};
  if (Failure failure = wake_.failure()) return failure;
  if (!watch(epoll_, path_.tun) || !watch(epoll_, path_.socket) || !watch(epoll_, wake_.fd())) {
    return SystemError{"epoll_ctl", errno};
  }
  if (other_ingress_ && !watch(epoll_, path_.other_socket)) return SystemError{"epoll_ctl", errno};
  return thread_.start(name_, options_.nice, [this] { run(); });
}

ThreadRounds Loop::ask_thread() const {
  // The count must be read before the wake-up, because the woken thread increases it.
  ThreadRounds rounds{name_, rounds_.count()};
  wake_.signal();
  return rounds;
}

void Loop::stop() {
  stopping_.store(true);
  wake_.signal();
  if (!thread_.started()) return;
  thread_.join();
  count_kernel_drops();
}

void Loop::count_kernel_drops() {
  ingress_->count();
  if (other_ingress_) other_ingress_->count();
}

void Loop::tick() {
  if (!ingress_->tick()) return;
  for (Direction* each : {egress_.get(), ingress_.get(), other_ingress_.get()}) {
    if (each) each->rest();
  }
}

bool Loop::pump(Direction& direction, Pump& sum) {
  const Pump pump = direction.pump();
  if (pump.failure) fault_.report(*pump.failure);
  sum.items += pump.items;
  sum.carried += pump.carried;
  sum.refused += pump.refused;
  return !pump.failure;
}

void Loop::run() {
  constexpr int kDescriptors = 4;
  epoll_event events[kDescriptors];
  const int tick_ms = ingress_->tick_ms();
  const auto look = [&](int milliseconds) {
    return epoll_wait(epoll_.get(), events, kDescriptors, milliseconds < 0 ? tick_ms : milliseconds);
  };
  Waiting waiting(options_.poll_us);
  while (!stopping()) {
    rounds_.add();
    const int count = waiting.wait(look, ThreadClock{});
    if (count < 0 && errno != EINTR) return fault_.report({"epoll_wait", errno});
    Pump sum;
    for (int i = 0; i < count; i++) {
      const int fd = events[i].data.fd;
      if (fd == wake_.fd()) {
        wake_.clear();
        count_kernel_drops();
      } else if (!pump(fd == path_.tun ? *egress_ : fd == path_.socket ? *ingress_ : *other_ingress_, sum)) {
        return;
      }
    }
    if (tick_ms >= 0) tick();
    if (sum.carried > 0) waiting.found_worth();
  }
}

}  // namespace weft
