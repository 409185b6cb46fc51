// loop.cc - the forwarding thread, which runs a loop.
#include "loop.h"

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>

#include "../core/waiting.h"
#include "../io/clock.h"

namespace weft {

namespace {

/// The beginning of the thread's name; the loop's number follows. The kernel allows 15 characters for the name.
constexpr const char* kThreadName = "weft-loop";

/// Makes epoll_wait() return `source` when `fd` is readable.
bool watch(const Fd& epoll, int fd, Source* source) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = source;
  return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Loop::Loop(size_t number, std::vector<Source> sources, const LoopOptions& options, Fault& fault)
    : name_(kThreadName + std::to_string(number)), sources_(std::move(sources)), options_(options), fault_(fault) {
  const auto timed = std::ranges::find_if(sources_, [](const Source& each) { return each.direction->tick_ms() >= 0; });
  if (timed != sources_.end()) timed_ = timed->direction.get();
}

Loop::~Loop() { stop(); }

Failure Loop::start() {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return SystemError{"epoll_create1", errno};
  if (Failure failure = wake_.failure()) return failure;
  if (!watch(epoll_, wake_.fd(), nullptr)) return SystemError{"epoll_ctl", errno};
  for (Source& source : sources_) {
    if (!watch(epoll_, source.fd, &source)) return SystemError{"epoll_ctl", errno};
  }
  return thread_.start(name_, options_.nice, [this] { run(); });
}

ThreadRounds Loop::ask_thread() const {
  // Read the count before the wake-up, because the woken thread increases the count.
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
  for (const Source& source : sources_) source.direction->count();
}

void Loop::tick() {
  if (!timed_ || !timed_->tick()) return;
  for (const Source& source : sources_) source.direction->rest();
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
  const int tick_ms = timed_ ? timed_->tick_ms() : -1;
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
      const auto* source = static_cast<const Source*>(events[i].data.ptr);
      if (!source) {
        wake_.clear();
        count_kernel_drops();
      } else if (!pump(*source->direction, sum)) {
        return;
      }
    }
    tick();
    if (sum.carried > 0) waiting.found_worth();
  }
}

}  // namespace weft
