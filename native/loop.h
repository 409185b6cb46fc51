// loop.h - the threads of one loop: when each of them runs, sleeps, and ends.
//
// A loop is one TUN queue, one socket and a thread. While it is quiet that thread serves both directions, because an
// idle ping then costs no wake-up across CPUs. When both directions are busy and it has used up a core, the TUN side
// (egress) moves to a second thread, and comes back after a quiet while (core/waiting.h says when). A direction is only
// ever run by the thread that holds it; it is handed over through an eventfd, whose write and read order everything
// before and after.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/waiting.h"
#include "direction.h"
#include "io/event.h"
#include "io/thread.h"

namespace weft {

/// Holds the first failure of any loop and tells about it through an eventfd.
class Fault {
 public:
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

/// How often a thread has gone round its loop. Written by that thread alone, so a plain store is enough, on a line that
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

class Loop {
 public:
  Loop(size_t number, const Path& path, std::unique_ptr<Direction> egress, std::unique_ptr<Direction> ingress,
       Fault& fault);
  /// Stops and joins.
  ~Loop();

  /// `naive`: one thread and one packet a system call (naive.cc).
  Failure start(bool naive);
  void stop();
  void ask_threads(std::vector<ThreadRounds>& threads) const;

 private:
  void run();
  void run_helper();
  void run_naive();
  /// False when the path cannot go on, which is told.
  bool pump(Direction& direction, size_t& items);
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  std::string thread_name(const char* kind) const { return kind + std::to_string(number_); }

  size_t number_;
  Path path_;
  std::unique_ptr<Direction> egress_;
  std::unique_ptr<Direction> ingress_;
  Fault& fault_;
  Fd epoll_;
  Event wake_;         // the loop's thread: stop, or the TUN side comes back, or go round once
  Event helper_wake_;  // the helper: take the TUN side, or stop, or go round once
  std::atomic<bool> stopping_{false};
  std::atomic<bool> helper_has_tun_{false};
  LoopWaiting waiting_;
  Rounds rounds_;
  Rounds helper_rounds_;
  Thread thread_;
  Thread helper_;
};

}  // namespace weft
