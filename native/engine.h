// engine.h - the engine of one data path: it runs its loops on open descriptors, and can return the descriptors for the
// next engine.
//
// An engine has no process-wide state. Each loop is a thread with one queue of the multi-queue TUN and, in each IP
// family in use, one socket of the SO_REUSEPORT group.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/encapsulation.h"
#include "core/peers.h"
#include "core/sessions.h"
#include "io/event.h"
#include "io/tun.h"
#include "walk/descriptors.h"
#include "walk/loop.h"

namespace weft {

struct RunOptions {
  std::string_view encapsulation;     ///< the encapsulation's name in encap/all.h
  ByFamily<Address> tun_address;      ///< the source addresses of ICMP errors to peers
  ByFamily<Address> network_address;  ///< the source addresses of ICMP errors that the engine writes into the TUN
  FilterOptions filter;
  bool clamp_mss = false;  ///< true if the MSS in the SYN of TCP connections is lowered to fit the tunnel (core/mss.h)
  OwnEnd own;
  /// The records of the first peer table, which the engine sets before the threads start, because packets may already
  /// wait in the TUN and in the sockets.
  std::span<const uint8_t> peers;
  /// True if weft, and not the kernel, chooses the TUN queue of each packet, so that flows with fragmented packets stay
  /// in order (io/steering.h).
  bool steers = false;
  /// True if the engine continues the WireGuard sessions that the previous engine saved with the descriptors; false if
  /// it discards them.
  bool keeps_sessions = false;
  LoopOptions loops;
};

std::vector<std::string_view> encapsulation_names();

class Engine {
 public:
  /// Starts the threads. The engine owns the descriptors from now on, even if run() fails. `counters` must have
  /// kCounterCount zeroed values per loop, and must outlive the engine.
  static Failure run(Descriptors descriptors, const RunOptions& options, uint64_t* counters,
                     std::unique_ptr<Engine>& engine);

  const Features& features() const { return features_; }
  /// Sets whether received packets may be merged, as the TUN's switches say. Each loop uses the new values from its
  /// next batch on.
  void set_switches(const JoinSwitches& switches);
  /// The interface name that the TUN has now or, if the TUN was deleted, the last name that it had. Looks up the TUN's
  /// index, because the kernel answers TUNGETIFF only when it has its lock of all network devices (RTNL), for which
  /// JavaScript's thread must not wait. tun_name() stores the name in the engine, so only one thread may call it at a
  /// time: JavaScript's thread, or the thread that ends the engine.
  const std::string& tun_name();
  Fault& fault() { return fault_; }
  void set_peers(std::span<const uint8_t> records);
  void change_peers(std::span<const uint8_t> records);
  Traffic traffic(uint32_t slot) const;
  /// One more than the highest traffic slot (number of a peer's traffic counters) that any peer record has named.
  uint32_t traffic_slots() const { return traffic_slots_; }
  /// The error with which the kernel rejected weft's rule for choosing TUN queues (RunOptions::steers); empty without
  /// an error.
  const Failure& steering_refused() const { return steering_refused_; }
  /// The error with which the kernel rejected the nice value of the threads; empty without an error.
  Failure priority_refused() const { return loops_.empty() ? Failure{} : loops_.front()->priority_refused(); }
  std::vector<ThreadRounds> ask_threads() const;
  /// Calls `each` with each host whose packets the filter has dropped since the last call.
  template <typename Each>
  void take_unknown_senders(Each each) {
    for (UnknownSenders& unknown_senders : unknown_senders_) unknown_senders.take(each);
  }
  /// The dropped packets of all loops, in two elements per loop: egress of the first loop, ingress of the first loop,
  /// egress of the second loop, and so on.
  const std::deque<Drops>& drops() const { return drops_; }
  /// The WireGuard sessions, or null if the encapsulation has none. When their mailbox has something new, mail_event()
  /// is readable.
  Sessions* sessions() { return sessions_.get(); }
  const Event& mail_event() const { return mail_; }
  /// Sends one datagram from weft's well-known port, without blocking. Returns false if the system call failed.
  bool send(const SocketAddress& to, std::span<const uint8_t> datagram) const;
  /// True if the engine took over the WireGuard sessions that the previous engine saved.
  bool has_kept_sessions() const { return has_kept_sessions_; }
  /// Ends the threads and returns the descriptors, still open, for the next engine. With WireGuard one of the
  /// descriptors is a memfd with the saved sessions and `head`, which the next engine can read before it takes the
  /// sessions. After release() the caller may call no other function. If release() is not called, the destructor closes
  /// the descriptors, which deletes the TUN.
  Descriptors release(std::span<const uint8_t> head);
  ~Engine();

 private:
  explicit Engine(Descriptors descriptors);
  void end_loops();
  Path path_of_loop(size_t i, const RunOptions& options, CounterRow counters);
  void find_tun();
  void steer(bool steers);
  void make_room_for(std::span<const uint8_t> records);
  bool take_sessions(const RunOptions& options);

  Descriptors descriptors_;
  unsigned tun_index_ = 0;  // 0 if the TUN was deleted before the engine started
  Event mail_;
  std::unique_ptr<Sessions> sessions_;  // null if the encapsulation has no sessions
  bool has_kept_sessions_ = false;
  PeerTables peers_;
  Features features_;
  Failure steering_refused_;
  Fault fault_;
  IcmpLimits icmp_;
  std::vector<UnknownSenders> unknown_senders_;  // one per loop
  // The drops of each loop in two elements: egress, then ingress. The type is a deque, because threads write into the
  // elements, which must not move.
  std::deque<Drops> drops_;
  std::vector<TrafficRows> traffic_;
  uint32_t traffic_slots_ = 1;
  // loops_ must be the last member, because its destructor ends the threads, which use all other members.
  std::vector<std::unique_ptr<Loop>> loops_;
};

}  // namespace weft
