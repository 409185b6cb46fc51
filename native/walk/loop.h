// loop.h - one loop: a TUN queue, a socket for each IP family in use, and the thread that moves packets between them in
// both directions.
//
// A flow always stays in one loop. The kernel's scheduler prefers threads that have used little CPU time, so a loop
// with few packets runs immediately, however many packets wait in another loop. So a packet of a quiet flow does not
// wait for busy streams in other loops, and weft needs no fair queue of its own.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "../io/event.h"
#include "../io/thread.h"
#include "direction.h"

namespace weft {

/// Stores the first failure of any loop, and signals an eventfd when the failure happens.
class Fault {
 public:
  /// The error with which the eventfd could not be created; empty if it was created.
  Failure failure() const { return event_.failure(); }
  /// The eventfd, which becomes readable when a loop has failed.
  int event() const { return event_.fd(); }
  void report(const SystemError& error) {
    if (reported_.exchange(true)) return;
    error_ = error;
    event_.signal();
  }
  /// The first failure. Valid once event() is readable.
  SystemError error() const { return error_; }

 private:
  Event event_;
  std::atomic<bool> reported_{false};
  SystemError error_{"", 0};
};

/// Counts the iterations of a thread's loop, which shows whether the thread hangs. Only that thread writes the count,
/// so a plain store suffices. The alignment keeps the count on a cache line that no other thread writes.
class alignas(64) Rounds {
 public:
  void add() { count_.store(count() + 1, std::memory_order_relaxed); }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

struct ThreadRounds {
  std::string name;
  uint64_t rounds;
};

struct LoopOptions {
  int nice = 0;         ///< the thread's nice value (setpriority(2)); 0 means that of the process
  int64_t poll_us = 0;  ///< how long the thread polls before it sleeps, in microseconds (core/waiting.h)
};

/// A descriptor that a loop reads, and the egress or ingress object that reads it.
struct Source {
  int fd;
  std::unique_ptr<Direction> direction;
};

class Loop {
 public:
  /// `sources` has the TUN first, then the receiving sockets.
  Loop(size_t number, std::vector<Source> sources, const LoopOptions& options, Fault& fault);
  ~Loop();

  Failure start();
  /// The error with which the kernel rejected the nice value of the thread; empty without an error. Valid after
  /// start().
  Failure priority_refused() const { return thread_.priority_refused(); }
  void stop();
  /// Returns how many iterations the thread's loop has made, and then wakes the thread. If the thread does not hang, a
  /// later call returns a higher number.
  ThreadRounds ask_thread() const;
  /// Wakes the thread, so that it sends the packets for which the encapsulation now has keys.
  void wake() const { wake_.signal(); }

 private:
  void run();
  /// Forwards one batch in one direction, and adds the result to `sum`. If the direction cannot continue, reports the
  /// failure and returns false.
  bool pump(Direction& direction, Pump& sum);
  void count_kernel_drops();
  void tick();
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  std::string name_;
  std::vector<Source> sources_;
  Direction* timed_ = nullptr;  // the direction that runs the encapsulation's timers; null if it has none
  LoopOptions options_;
  Fault& fault_;
  Fd epoll_;
  Event wake_;
  std::atomic<bool> stopping_{false};
  Rounds rounds_;
  Thread thread_;
};

}  // namespace weft
