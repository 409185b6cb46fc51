// engine.h - the engine of one data path: it runs the loops on the descriptors that it is given, and hands them back.
//
// No state is process-wide: several loops run side by side on a multi-queue TUN and a SO_REUSEPORT group.
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
#include "walk/descriptors.h"
#include "walk/loop.h"

namespace weft {

struct RunOptions {
  std::string_view encapsulation;  ///< its name in encap/all.h
  ByFamily<Address> tun_address;   ///< The source addresses of ICMP errors, as in Path.
  ByFamily<Address> network_address;
  FilterOptions filter;
  bool clamp_mss = false;  ///< True if the MSS of new TCP connections is lowered to what fits (core/mss.h).
  OwnEnd own;
  /// The first peer table. It is set before the threads start, because packets may already wait in the descriptors.
  std::span<const uint8_t> peers;
  bool steers = false;  ///< True if lanes are chosen so that flows with fragments stay in order (io/steering.h).
  /// True if the engine continues the sessions that came with the descriptors; otherwise those sessions end.
  bool keeps_sessions = false;
  LoopOptions loops;
};

std::vector<std::string_view> encapsulation_names();

class Engine {
 public:
  /// Starts the threads. The engine owns the descriptors from now on, even if this fails. `counters` has kCounterCount
  /// zeroed values per loop, and must outlive the engine.
  static Failure run(Descriptors descriptors, const RunOptions& options, uint64_t* counters,
                     std::unique_ptr<Engine>& engine);

  const Features& features() const { return features_; }
  /// Reads the device's switches (io/tun.h). From the next batch on, each loop joins received packets as the switches
  /// allow.
  void follow_switches();
  Fault& fault() { return fault_; }
  void set_peers(std::span<const uint8_t> records);
  void change_peers(std::span<const uint8_t> records);
  Traffic traffic(uint32_t slot) const;
  /// One more than the highest slot in use.
  uint32_t traffic_slots() const { return traffic_slots_; }
  /// Why the TUN does not choose lanes by `steers`; empty if it does.
  const Failure& steering_refused() const { return steering_refused_; }
  /// Why the threads do not run at the requested priority; empty if they do.
  Failure priority_refused() const { return loops_.empty() ? Failure{} : loops_.front()->priority_refused(); }
  std::vector<ThreadRounds> ask_threads() const;
  /// Calls `each` with the unknown senders of all loops since the last call.
  template <typename Each>
  void take_unknown_senders(Each each) {
    for (UnknownSenders& unknown_senders : unknown_senders_) unknown_senders.take(each);
  }
  /// The drops of each direction of each loop, in a fixed order.
  const std::deque<Drops>& drops() const { return drops_; }
  /// The sessions, or null if the encapsulation has none. mail_event() becomes readable when their mailbox has
  /// something.
  Sessions* sessions() { return sessions_.get(); }
  const Event& mail_event() const { return mail_; }
  /// Sends one datagram from the well-known port. Returns false if the kernel refused it.
  bool send(const SocketAddress& to, std::span<const uint8_t> datagram) const;
  /// True if the engine continues the sessions that came with the descriptors.
  bool has_kept_sessions() const { return has_kept_sessions_; }
  /// Joins the threads, and returns the descriptors, still open, for another engine. The saved sessions go with the
  /// descriptors, and `head` describes them to the successor. Nothing else may be called afterwards. The destructor
  /// closes the descriptors instead, which deletes the TUN.
  Descriptors release(std::span<const uint8_t> head);
  ~Engine();

 private:
  explicit Engine(Descriptors descriptors);
  void end_loops();
  void steer(bool steers);
  void make_room_for(std::span<const uint8_t> records);
  bool take_sessions(const RunOptions& options);

  Descriptors descriptors_;
  Event mail_;
  std::unique_ptr<Sessions> sessions_;  // null if the encapsulation has no sessions
  bool has_kept_sessions_ = false;
  PeerTables peers_;
  Features features_;
  Failure steering_refused_;
  Fault fault_;
  IcmpLimits icmp_;
  std::vector<UnknownSenders> unknown_senders_;  // one per loop
  std::deque<Drops> drops_;  // Two per loop: egress, then ingress. They must not move, because threads write into them.
  std::vector<TrafficRows> traffic_;
  uint32_t traffic_slots_ = 1;
  std::vector<std::unique_ptr<Loop>> loops_;  // last, because the loops use everything above
};

}  // namespace weft
