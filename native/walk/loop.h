// loop.h - one loop: a TUN queue, a socket for each family in use, and the thread that moves packets between them in
// both directions.
//
// Several loops are lanes. A flow stays in its loop. The kernel's scheduler serves the loops' threads by the time that
// each has used, so a loop with little to do runs immediately, however many packets wait in another loop. A lone packet
// does not wait behind eight streams, and weft needs no fair queue of its own.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "../io/event.h"
#include "../io/thread.h"
#include "direction.h"

namespace weft {

/// Holds the first failure of any loop, and reports it through an eventfd.
class Fault {
 public:
  /// Why the eventfd could not be created; empty if it could.
  Failure failure() const { return event_.failure(); }
  /// Becomes readable when a loop has failed.
  int event() const { return event_.fd(); }
  void report(const SystemError& error) {
    if (reported_.exchange(true)) return;
    error_ = error;
    event_.signal();
  }
  /// Valid once event() is readable.
  SystemError error() const { return error_; }

 private:
  Event event_;
  std::atomic<bool> reported_{false};
  SystemError error_{"", 0};
};

/// The number of rounds of a thread's loop. Only that thread writes it, so a plain store suffices. The alignment keeps
/// it on a cache line that no other thread writes.
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
  int nice = 0;         ///< The thread's nice value (setpriority(2)); 0 means that of the process.
  int64_t poll_us = 0;  ///< How long the thread polls before it sleeps, in microseconds (core/waiting.h).
};

class Loop {
 public:
  /// `other_ingress` receives from the path's second socket, if there is one.
  Loop(size_t number, const Path& path, std::unique_ptr<Direction> egress, std::unique_ptr<Direction> ingress,
       const LoopOptions& options, Fault& fault, std::unique_ptr<Direction> other_ingress = nullptr);
  ~Loop();

  Failure start();
  /// Why the thread does not run at the requested priority; empty if it does. Valid after start().
  Failure priority_refused() const { return thread_.priority_refused(); }
  void stop();
  /// Returns the number of rounds so far, then wakes the thread. If the thread is alive, the number increases.
  ThreadRounds ask_thread() const;
  /// Wakes the thread, so that it sends what the encapsulation has ready.
  void wake() const { wake_.signal(); }

 private:
  void run();
  /// Moves one batch and adds the result to `sum`. Reports a failure and returns false if the path cannot continue.
  bool pump(Direction& direction, Pump& sum);
  void count_kernel_drops();
  void tick();
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  std::string name_;
  Path path_;
  std::unique_ptr<Direction> egress_;
  std::unique_ptr<Direction> ingress_;
  std::unique_ptr<Direction> other_ingress_;  // null if datagrams are of one family
  LoopOptions options_;
  Fault& fault_;
  Fd epoll_;
  Event wake_;
  std::atomic<bool> stopping_{false};
  Rounds rounds_;
  Thread thread_;
};

}  // namespace weft
