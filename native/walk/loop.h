// loop.h - one loop: a TUN queue, a socket of each family that datagrams are of, and the thread that moves packets
// between them in both directions.
//
// Several loops are lanes. A flow stays in its loop, and the kernel's scheduler serves the loops in turn, by the time
// that each has used: one that has little to do is served at once, however much waits in another. So a lone packet
// does not stand behind eight streams, and no queue of ours has to be fair.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "../io/event.h"
#include "../io/thread.h"
#include "direction.h"

namespace weft {

/// Holds the first failure of any loop and tells about it through an eventfd.
class Fault {
 public:
  /// The reason why the eventfd could not be created; empty if it could.
  Failure failure() const { return event_.failure(); }
  /// Becomes readable once, when a loop has failed.
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

/// The number of rounds of a thread's loop. Written by that thread alone, so a plain store is enough, on a line that
/// no other thread writes.
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
  int nice = 0;         ///< the thread's, as setpriority(2) has it; 0: that of the process
  int64_t poll_us = 0;  ///< for how long it looks again before it sleeps (core/waiting.h)
};

class Loop {
 public:
  /// `other_ingress` receives by the path's other socket, where it has one.
  Loop(size_t number, const Path& path, std::unique_ptr<Direction> egress, std::unique_ptr<Direction> ingress,
       const LoopOptions& options, Fault& fault, std::unique_ptr<Direction> other_ingress = nullptr);
  /// Stops and joins.
  ~Loop();

  Failure start();
  /// The reason why the thread has not the priority that was asked for, once it was started.
  Failure priority_refused() const { return thread_.priority_refused(); }
  void stop();
  /// Tells the rounds until now, then wakes the thread: one that is alive goes round once more.
  ThreadRounds ask_thread() const;
  /// Wakes the thread likewise: what an encapsulation has to send goes then.
  void wake() const { wake_.signal(); }

 private:
  void run();
  /// False when the path cannot go on, which is told.
  bool pump(Direction& direction, Pump& sum);
  void count_what_is_told();
  void tick();
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }

  std::string name_;
  Path path_;
  std::unique_ptr<Direction> egress_;
  std::unique_ptr<Direction> ingress_;
  std::unique_ptr<Direction> other_ingress_;  // null where datagrams are of one family
  LoopOptions options_;
  Fault& fault_;
  Fd epoll_;
  Event wake_;  // stop, or go round once
  std::atomic<bool> stopping_{false};
  Rounds rounds_;
  Thread thread_;
};

}  // namespace weft
