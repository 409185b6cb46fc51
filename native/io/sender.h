// sender.h - sends datagrams to peers. Consecutive datagrams of one size to one endpoint form a run, which is one
// message with UDP_SEGMENT. One sendmmsg sends all messages of a batch.
//
// Headers, payloads, trailers and endpoints are borrowed until they are sent. Nothing allocates or locks.
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

namespace weft {

/// The sockets for one family: the lane's own, and one with the well-known port for datagrams that must come from that
/// port. Both may be the same socket; -1 if there is none.
struct SendSockets {
  int own = -1;
  int known = -1;
};

class Sender {
 public:
  /// Counters count inner packets without header and trailer. `max_room_bytes` is the maximum for one call of room().
  /// `other` sends to peers of the other family.
  Sender(SendSockets sockets, SendSockets other, size_t header_bytes, size_t trailer_bytes, size_t max_room_bytes,
         Features* features, CounterRow counters, Drops* drops, TrafficRows* traffic);

  /// Reserves room for one more datagram, and returns `bytes` of memory for its header and its trailer. If the buffers
  /// are full, it sends the gathered datagrams first, and they are no longer borrowed.
  uint8_t* room(size_t bytes);
  /// Adds a datagram after room() was called for it. `ecn` is the mark for its outer header. `payload` may be empty.
  /// The room for the trailer is behind `header`. A datagram that exceeds the maximum length is dropped.
  template <size_t kTrailerBytes>
  void add(const Endpoint& endpoint, Ecn ecn, std::span<uint8_t> header, std::span<uint8_t> payload);
  /// Sends the gathered datagrams. Once per batch it waits for a full socket buffer, for at most kPatienceMs. That
  /// slows down senders of too many packets, and limits the delay of the other direction, which may share the thread.
  void send();
  /// Like send(), and ends the batch.
  void flush();
  size_t gathered() const { return gathered_; }

 private:
  /// The maximum number of datagrams and messages between two sends.
  static constexpr size_t kMaxDatagrams = 2048;
  static constexpr size_t kMaxMessages = 256;
  /// Header, payload, trailer.
  static constexpr size_t kMaxPieces = 3;
  static constexpr size_t kMaxIovecs = kMaxDatagrams * kMaxPieces;
  static constexpr int kPatienceMs = 10;

  struct Run {
    const Endpoint* endpoint;
    uint32_t first_iovec;
    uint32_t bytes;
    uint16_t datagram_bytes;  // the size of all datagrams except the last
    uint16_t datagrams;
    uint16_t most;  // the maximum number of datagrams in this run
    Ecn ecn;        // the mark of the common outer header
  };

  /// Returns the socket for an endpoint's family, and for the port that it requires.
  int socket_to(const Endpoint& endpoint) const {
    const SendSockets& sockets = other_.own < 0 || endpoint.to.family() == family_ ? sockets_ : other_;
    return endpoint.is_from_known_port ? sockets.known : sockets.own;
  }
  /// The number of runs from `first` on that use the same socket.
  size_t alike_from(size_t first) const;

  void prepare();
  /// True if the caller must retry after this error: an interruption, or a full socket that was waited for.
  bool again(int socket, int error);
  void refused(const Run& run, int error);
  bool send_singly(const Run& run);
  void drop(Counter reason, const Endpoint& endpoint, std::span<const iovec> datagram);
  template <typename Each>
  void each_datagram(const Run& run, Each each);
  void count_sent(const Run& run, uint64_t datagrams, uint64_t bytes);

  SendSockets sockets_, other_;
  sa_family_t family_;                                 // the family of sockets_, if there are two families
  size_t header_bytes_, trailer_bytes_, encap_bytes_;  // encap_bytes_ is the sum of the other two
  Features* features_;
  CounterRow counters_;
  Drops* drops_;
  TrafficRows* traffic_;
  Learnt learnt_;
  bool waited_ = false;  // true if this batch has already waited for a full socket
  size_t room_size_;
  // Large buffers stay untouched until they are used, so that an idle lane takes no memory.
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
void Sender::add(const Endpoint& endpoint, Ecn ecn, std::span<uint8_t> header, std::span<uint8_t> payload) {
  const size_t size = header.size() + payload.size() + kTrailerBytes;
  uint8_t* trailer = header.data() + header.size();
  if (size > kMaxDatagramBytes) {
    const iovec pieces[] = {{header.data(), header.size()}, {payload.data(), payload.size()}, {trailer, kTrailerBytes}};
    return drop(k_tx_drop_too_big, endpoint, pieces);
  }
  gathered_++;
  Run* last = runs_used_ > 0 ? &runs_[runs_used_ - 1] : nullptr;
  const bool joins = last && last->datagrams < last->most && last->endpoint == &endpoint && last->ecn == ecn &&
                     size <= last->datagram_bytes && last->bytes + size <= kMaxDatagramBytes;
  if (!joins) {
    last = &runs_[runs_used_++];
    const uint16_t most = features_->has(kUdpGso) ? learnt_.udp_segments_to(endpoint, now_ms) : uint16_t{1};
    *last = {&endpoint, static_cast<uint32_t>(iovecs_used_), 0, static_cast<uint16_t>(size), 0, most, ecn};
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
  if (size < last->datagram_bytes) last->most = last->datagrams;  // Only the last datagram of a run may be shorter.
}

}  // namespace weft
