// engine.h - the loops of one data path, on descriptors that it is given: run, told of peers, released.
//
// Nothing in a loop is process-wide: several run side by side on a multi-queue TUN and a SO_REUSEPORT group.
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
  ByFamily<Address> tun_address;   ///< as Path has it, and the next
  ByFamily<Address> network_address;
  FilterOptions filter;
  bool clamp_mss = false;  ///< TCP is to begin with segments that fit (core/mss.h)
  OwnEnd own;
  std::span<const uint8_t> peers;  ///< the first table: packets may be waiting in the descriptors
  bool steers = false;             ///< lanes are chosen so that fragments stay in order (io/steering.h)
  bool keeps_sessions = false;     ///< those that came with the descriptors are gone on with; else they end
  LoopOptions loops;
};

/// The names of all encapsulations.
std::vector<std::string_view> encapsulation_names();

class Engine {
 public:
  /// Starts the threads. The descriptors are the engine's from now on, also when this fails. `counters` has
  /// kCounterCount values a loop, zeroed, and outlives the engine.
  static Failure run(Descriptors descriptors, const RunOptions& options, uint64_t* counters,
                     std::unique_ptr<Engine>& engine);

  const Features& features() const { return features_; }
  /// Reads the device's switches (io/tun.h) and joins received packets accordingly, from each loop's next batch on.
  void follow_switches();
  Fault& fault() { return fault_; }
  /// Sets the peers, as PeerTables does.
  void set_peers(std::span<const uint8_t> records);
  void change_peers(std::span<const uint8_t> records);
  /// The traffic to and from a peer, by its slot.
  Traffic traffic(uint32_t slot) const;
  /// One more than the highest slot that was given.
  uint32_t traffic_slots() const { return traffic_slots_; }
  /// The reason why the TUN does not choose lanes by `steers`.
  const Failure& steering_refused() const { return steering_refused_; }
  /// The reason why the threads have not the priority that was asked for.
  Failure priority_refused() const { return loops_.empty() ? Failure{} : loops_.front()->priority_refused(); }
  /// Asks each thread, as Loop::ask_thread.
  std::vector<ThreadRounds> ask_threads() const;
  /// Calls `each` with the strangers of all loops since the last call.
  template <typename Each>
  void take_strangers(Each each) {
    for (Strangers& strangers : strangers_) strangers.take(each);
  }
  /// The drops of each direction of each loop, in an order that stays.
  const std::deque<Drops>& drops() const { return drops_; }
  /// The sessions, of an encapsulation that has some; else null. Their mail makes mail_event() readable.
  Sessions* sessions() { return sessions_.get(); }
  const Event& mail_event() const { return mail_; }
  /// Sends one datagram from the port that peers know. False when the kernel refused.
  bool send(const SocketAddress& to, std::span<const uint8_t> datagram) const;
  /// True when it goes on with the sessions that came with the descriptors.
  bool has_kept_sessions() const { return has_kept_sessions_; }
  /// Joins the threads and gives the descriptors back, open, for another engine, with the sessions, which are none here
  /// any more; `head` is for who is to go on with those. Nothing else may be asked of this one afterwards. An engine
  /// that is destroyed instead closes them, with which the TUN disappears.
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
  std::unique_ptr<Sessions> sessions_;  // null for an encapsulation without
  bool has_kept_sessions_ = false;
  PeerTables peers_;
  Features features_;
  Failure steering_refused_;
  Fault fault_;
  IcmpLimits icmp_;
  std::vector<Strangers> strangers_;  // one for each loop, as the next
  std::deque<Drops> drops_;           // two a loop: out, in; never moved, since threads write into them
  std::vector<TrafficRows> traffic_;
  uint32_t traffic_slots_ = 1;
  std::vector<std::unique_ptr<Loop>> loops_;  // last: they use all of the above
};

}  // namespace weft
