// engine.h - the threads: when each of them runs, sleeps, and ends.
//
// A loop is one TUN queue, one socket and a thread. While it is quiet that thread serves both directions, because an
// idle ping then costs no wake-up across CPUs. When both directions are busy and it has used up a core, the TUN side
// (Egress) moves to a second thread, and comes back after a quiet while. An Egress is only ever run by the thread that
// holds it; it is handed over through an eventfd, whose write and read order everything before and after.
//
// Nothing in a loop is process-wide: `workers` loops run side by side on a multi-queue TUN and a SO_REUSEPORT group.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "egress.h"
#include "ingress.h"
#include "load.h"
#include "tun.h"
#include "udp.h"

namespace weft {

struct EngineOptions {
  std::string tun_name;
  sockaddr_in bind_address{};
  uint32_t tun_address = 0;  ///< network order
  size_t workers = 1;
  bool naive = false;
  uint32_t features = kAllFeatures;  ///< those wanted
};

/// Holds the first failure of any loop and tells about it through an eventfd.
class Fault {
 public:
  Fault();
  /// Becomes readable once, when a loop has failed.
  int event() const { return event_.get(); }
  void report(const SystemError& error);
  /// Valid once event() is readable.
  SystemError error() const { return error_; }

 private:
  Fd event_;
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
  /// `sender` has no descriptor where the loop sends by the socket that it receives by.
  Loop(size_t number, Tun tun, UdpSocket socket, UdpSocket sender, const EngineOptions& options, Features& features,
       CounterRow counters, PeerTables::Reader peers, Fault& fault);
  /// Stops and joins.
  ~Loop();

  Failure start();
  void stop();
  void ask_threads(std::vector<ThreadRounds>& threads) const;

 private:
  void run();
  void run_naive();
  void run_helper();
  std::string thread_name(const char* kind) const { return kind + std::to_string(number_); }

  size_t number_;
  Tun tun_;
  UdpSocket socket_;
  UdpSocket sender_;
  Path path_;
  Egress egress_;
  Ingress ingress_;
  Fault& fault_;
  Fd epoll_;
  Fd wake_;         // the loop's thread: stop, or the TUN side comes back, or go round once
  Fd helper_wake_;  // the helper: take the TUN side, or stop, or go round once
  std::atomic<bool> stopping_{false};
  std::atomic<bool> helper_has_tun_{false};
  Load load_;
  Rounds rounds_;
  Rounds helper_rounds_;
  std::thread thread_;
  std::thread helper_;
};

class Engine {
 public:
  /// Opens everything and starts the threads. `counters` has kCounterCount values a worker, zeroed, and outlives the
  /// engine.
  static Failure start(const EngineOptions& options, uint64_t* counters, std::unique_ptr<Engine>& engine);
  ~Engine() { stop(); }

  const std::string& tun_name() const { return tun_name_; }
  const Features& features() const { return features_; }
  int receive_buffer_bytes() const { return receive_buffer_bytes_; }
  int send_buffer_bytes() const { return send_buffer_bytes_; }
  Fault& fault() { return fault_; }
  void set_peers(std::span<const uint8_t> records) { peers_.replace(std::make_unique<const PeerTable>(records)); }
  /// Tells each thread's rounds until now, then wakes it: a thread that is alive goes round once more.
  std::vector<ThreadRounds> ask_threads() const {
    std::vector<ThreadRounds> threads;
    for (const auto& loop : loops_) loop->ask_threads(threads);
    return threads;
  }
  /// Joins the threads and closes the descriptors, with which the TUN disappears. Idempotent.
  void stop() { loops_.clear(); }

 private:
  Engine(size_t workers, uint32_t features) : peers_(workers), features_(features) {}

  PeerTables peers_;
  Features features_;
  Fault fault_;
  std::string tun_name_;
  int receive_buffer_bytes_ = 0;
  int send_buffer_bytes_ = 0;
  std::vector<std::unique_ptr<Loop>> loops_;  // last: they use all of the above
};

}  // namespace weft
