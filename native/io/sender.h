// sender.h - sends datagrams to peers. Consecutive datagrams of one size to one peer form a run, which is sent as one
// message (UDP_SEGMENT). One sendmmsg call sends all messages of a batch.
//
// The caller must keep headers, payloads, trailers and endpoints valid until they are sent. No function allocates
// memory or locks.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "../core/counters.h"
#include "../core/drops.h"
#include "../core/encapsulation.h"
#include "../core/features.h"
#include "../core/peers.h"
#include "../core/refusals.h"
#include "../core/traffic.h"
#include "clock.h"
#include "udp.h"

namespace weft {

/// The destination of a datagram and the fields of its outer header.
struct Outer {
  const Endpoint& peer;
  uint8_t version;  ///< the IP version, 4 or 6; the peer's host has an address of this version
  Ecn ecn;          ///< the ECN mark of the outer header

  const SocketAddress& to() const { return peer.hosts.of(version); }
};

class Sender {
 public:
  /// `header_bytes` and `trailer_bytes` are the lengths of the encapsulation's header and trailer, which do not count
  /// as traffic. `max_room_bytes` is the largest size that may be passed to room(). `is_encrypted` is true if the
  /// datagrams are encrypted. The sender then keeps only the encapsulation's header of a dropped datagram.
  Sender(const ByFamily<Sockets>& sockets, size_t header_bytes, size_t trailer_bytes, size_t max_room_bytes,
         Features* features, CounterRow counters, Drops* drops, TrafficRows* traffic, bool is_encrypted = false);

  /// Returns `bytes` bytes of memory for the header and the trailer of one more datagram. If the buffers are full,
  /// first sends the datagrams that were added, and then reuses their memory.
  uint8_t* room(size_t bytes);
  /// Adds a datagram for which room() was called. `payload` may be empty. The space for the trailer is after `header`.
  /// Drops a datagram that exceeds the maximum length.
  template <size_t kTrailerBytes>
  void add(const Outer& outer, std::span<uint8_t> header, std::span<uint8_t> payload);
  /// Sends the datagrams that were added. If the socket buffer is full, waits until the kernel has sent some datagrams.
  /// Waits only once per batch, and at most kPatienceMs. The wait slows down programs that send too many packets. It is
  /// limited, because the thread may also serve the ingress.
  void send();
  /// Sends like send(), and ends the batch. In each batch the sender waits at most once until a full socket buffer has
  /// room again, so the next batch may wait too.
  void flush();
  size_t gathered() const { return gathered_; }

 private:
  /// The maximum number of datagrams that send() sends together. kMaxMessages is the maximum number of messages.
  static constexpr size_t kMaxDatagrams = 2048;
  static constexpr size_t kMaxMessages = 256;
  /// The maximum number of pieces of a datagram: header, payload and trailer.
  static constexpr size_t kMaxPieces = 3;
  static constexpr size_t kMaxIovecs = kMaxDatagrams * kMaxPieces;
  static constexpr int kPatienceMs = 10;

  struct Run {
    const Endpoint* endpoint;
    uint32_t first_iovec;
    uint32_t bytes;
    uint16_t datagram_bytes;  // the size of all datagrams except the last
    uint16_t datagrams;
    uint16_t most;    // the maximum number of datagrams that this run may get
    uint8_t version;  // the IP version of all datagrams
    Ecn ecn;          // the ECN mark of the outer header of all datagrams

    const SocketAddress& to() const { return endpoint->hosts.of(version); }
  };

  /// Returns the socket that sends a run, that is, the datagrams of one message: the socket in the run's IP family with
  /// the source port that the run's endpoint requires.
  int socket_for(const Run& run) const {
    const Sockets& sockets = sockets_.of(run.version);
    return run.endpoint->is_from_known_port ? sockets.known : sockets.sender;
  }
  /// Returns how many messages (runs) from `first` on use the same socket, so that one sendmmsg call can send all of
  /// them.
  size_t alike_from(size_t first) const;

  void prepare();
  /// True if the caller must try again after `error`: the call was interrupted, or the socket buffer was full and
  /// again() has waited until it had room.
  bool again(int socket, int error);
  void refused(const Run& run, int error);
  bool send_singly(const Run& run);
  void drop(Counter reason, const SocketAddress& to, std::span<const iovec> datagram);
  template <typename Each>
  void each_datagram(const Run& run, Each each);
  void count_sent(const Run& run, uint64_t datagrams, uint64_t bytes);

  ByFamily<Sockets> sockets_;
  bool has_one_socket_;                                // true if all datagrams leave from the same socket
  size_t header_bytes_, trailer_bytes_, encap_bytes_;  // encap_bytes_ is the sum of the other two
  Features* features_;
  CounterRow counters_;
  Drops* drops_;
  TrafficRows* traffic_;
  bool is_encrypted_;
  Learnt learnt_;
  bool waited_ = false;  // true if this batch has already waited for a full socket buffer
  size_t room_size_;
  // The memory for headers and trailers. A thread writes to these buffers only when it uses them, so an idle thread
  // uses no physical memory for them.
  std::unique_ptr<uint8_t[]> room_;
  size_t room_used_ = 0;
  std::unique_ptr<iovec[]> iovecs_;
  size_t iovecs_used_ = 0;
  std::unique_ptr<Run[]> runs_;
  size_t runs_used_ = 0;
  size_t gathered_ = 0;
  std::unique_ptr<mmsghdr[]> messages_;
  std::unique_ptr<uint8_t[]> controls_;
};

template <size_t kTrailerBytes>
void Sender::add(const Outer& outer, std::span<uint8_t> header, std::span<uint8_t> payload) {
  const Endpoint& endpoint = outer.peer;
  const size_t size = header.size() + payload.size() + kTrailerBytes;
  uint8_t* trailer = header.data() + header.size();
  if (size > kMaxDatagramBytes) {
    const iovec pieces[] = {{header.data(), header.size()}, {payload.data(), payload.size()}, {trailer, kTrailerBytes}};
    return drop(k_tx_drop_too_big, outer.to(), pieces);
  }
  gathered_++;
  Run* last = runs_used_ > 0 ? &runs_[runs_used_ - 1] : nullptr;
  const bool joins = last && last->datagrams < last->most && last->endpoint == &endpoint &&
                     last->version == outer.version && last->ecn == outer.ecn && size <= last->datagram_bytes &&
                     last->bytes + size <= kMaxDatagramBytes;
  if (!joins) {
    last = &runs_[runs_used_++];
    // The kernel refuses a message of several datagrams that exceed the path MTU, after it has copied the message. The
    // kernel fragments such a datagram if the message has only this datagram.
    const bool may_join = features_->has(kUdpGso) && endpoint.path.fits(kOuterBytes + size);
    const uint16_t most = may_join ? learnt_.udp_segments_to(endpoint, now_ms) : uint16_t{1};
    *last = {&endpoint, static_cast<uint32_t>(iovecs_used_), 0, static_cast<uint16_t>(size), 0, most, outer.version,
             outer.ecn};
  }
  if (payload.empty()) {
    iovecs_[iovecs_used_++] = {header.data(), header.size() + kTrailerBytes};
  } else {
    iovecs_[iovecs_used_++] = {header.data(), header.size()};
    iovecs_[iovecs_used_++] = {payload.data(), payload.size()};
    if constexpr (kTrailerBytes > 0) iovecs_[iovecs_used_++] = {trailer, kTrailerBytes};
  }
  last->bytes += static_cast<uint32_t>(size);
  last->datagrams++;
  // In a message with UDP_SEGMENT only the last datagram may be shorter than the rest, so a shorter datagram ends the
  // run.
  if (size < last->datagram_bytes) last->most = last->datagrams;
}

}  // namespace weft
