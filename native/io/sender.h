// sender.h - sends datagrams to peers: those of one size for one endpoint in a row as a run, which is one message with
// UDP_SEGMENT, and all messages of a batch by one sendmmsg.
//
// What is added is borrowed until it is sent: headers, payload, trailers and endpoints. No allocation, no lock.
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

/// What datagrams of one family leave by: the lane's own socket, and for those that must come from the port that peers
/// know, one of that port. They may be one; -1 where there are none.
struct SendSockets {
  int own = -1;
  int known = -1;
};

class Sender {
 public:
  /// The bytes of the inner packet alone are counted, which stands between a header and a trailer. `max_room_bytes`
  /// is the most that is asked of room() at once. `other` sends to peers of the other family than the sockets'.
  Sender(SendSockets sockets, SendSockets other, size_t header_bytes, size_t trailer_bytes, size_t max_room_bytes,
         Features* features, CounterRow counters, Drops* drops, TrafficRows* traffic);

  /// Makes room for one datagram more and returns so many bytes of memory, for its header and its trailer. Sends what
  /// is gathered when there is no room: what was added before is then no longer borrowed.
  uint8_t* room(size_t bytes);
  /// Gathers one datagram, for which room() was made, whose outer header is to say `ecn`. `payload` may be empty; the
  /// trailer, of the encapsulation's length, lies behind `header`. One that is too long for a datagram is dropped.
  template <size_t kTrailerBytes>
  void add(const Endpoint& endpoint, Ecn ecn, std::span<uint8_t> header, std::span<uint8_t> payload);
  /// Sends what is gathered, as room() does of itself. Once in a batch, however often it sends, a full socket buffer is
  /// waited for: that moment pushes back on those who send too much, and is the longest that the other direction, which
  /// may be this thread's, waits for this one.
  void send();
  /// The same, and ends the batch.
  void flush();
  /// The number of datagrams gathered until now.
  size_t gathered() const { return gathered_; }

 private:
  /// Datagrams and messages gathered before they must be sent.
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
    uint16_t datagram_bytes;  // of all datagrams but the last
    uint16_t datagrams;
    uint16_t most;  // datagrams that it may have
    Ecn ecn;        // of all of them, whose outer header is one
  };

  /// The socket of an endpoint's family, by the port that it asks for.
  int socket_to(const Endpoint& endpoint) const {
    const SendSockets& sockets = other_.own < 0 || endpoint.to.family() == family_ ? sockets_ : other_;
    return endpoint.is_from_known_port ? sockets.known : sockets.own;
  }
  /// The number of runs from `first` on that go by one socket.
  size_t alike_from(size_t first) const;

  void prepare();
  /// True when an error is to be followed by another try at once: an interruption, or a full socket that was waited
  /// for.
  bool again(int socket, int error);
  void refused(const Run& run, int error);
  bool send_singly(const Run& run);
  void drop(Counter reason, const Endpoint& endpoint, std::span<const iovec> datagram);
  template <typename Each>
  void each_datagram(const Run& run, Each each);
  void count_sent(const Run& run, uint64_t datagrams, uint64_t bytes);

  SendSockets sockets_, other_;
  sa_family_t family_;                                 // of the first, where there are two
  size_t header_bytes_, trailer_bytes_, encap_bytes_;  // the last is both
  Features* features_;
  CounterRow counters_;
  Drops* drops_;
  TrafficRows* traffic_;
  Learnt learnt_;
  bool waited_ = false;  // in this batch
  size_t room_size_;
  // Not written to before they are used, as all that is large here: a lane that is idle has no memory.
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
  if (size < last->datagram_bytes) last->most = last->datagrams;  // only the last of a run may be shorter
}

}  // namespace weft
