// sender.h - sends datagrams to peers: those of one size for one endpoint in a row as a run, which is one message with
// UDP_SEGMENT, and all messages of a batch by one sendmmsg.
//
// What is added is borrowed until it is sent: headers, payload and endpoints. No allocation, no lock.
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

namespace weft {

class Sender {
 public:
  /// `encap_bytes` of each datagram stand before the inner packet, whose bytes alone are counted. `max_header_bytes` is
  /// the most that is asked of room() at once.
  Sender(int socket, size_t encap_bytes, size_t max_header_bytes, Features* features, CounterRow counters, Drops* drops,
         TrafficRows* traffic);

  /// Makes room for one datagram more and returns `header_bytes` of memory for its header. Sends what is gathered when
  /// there is no room: what was added before is then no longer borrowed.
  uint8_t* room(size_t header_bytes);
  /// Gathers one datagram, for which room() was made, whose outer header is to say `ecn`. `payload` may be empty. One
  /// that is too long for a datagram is dropped.
  void add(const Endpoint& endpoint, Ecn ecn, std::span<uint8_t> header, std::span<uint8_t> payload);
  /// Sends what is gathered, as room() does of itself. Once in a batch, however often it sends, a full socket buffer is
  /// waited for: that moment pushes back on those who send too much, and is the longest that the other direction, which
  /// may be this thread's, waits for this one.
  void send();
  /// The same, and ends the batch.
  void flush();
  /// How many datagrams were gathered until now.
  size_t gathered() const { return gathered_; }

 private:
  /// Datagrams and messages gathered before they must be sent.
  static constexpr size_t kMaxDatagrams = 2048;
  static constexpr size_t kMaxMessages = 256;
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

  void prepare();
  /// Whether to try at once again after an error: an interruption, or a full socket that was waited for.
  bool again(int error);
  void refused(const Run& run, int error);
  bool send_singly(const Run& run);
  void drop(Counter reason, const Endpoint& endpoint, std::span<const iovec> datagram);
  template <typename Each>
  void each_datagram(const Run& run, Each each);
  void count_sent(const Run& run, uint64_t datagrams, uint64_t bytes);

  int socket_;
  size_t encap_bytes_;
  Features* features_;
  CounterRow counters_;
  Drops* drops_;
  TrafficRows* traffic_;
  Learnt learnt_;
  bool waited_ = false;  // in this batch
  size_t headers_size_;
  std::unique_ptr<uint8_t[]> headers_;  // not written to before it is used: a lane that is idle has no memory
  size_t headers_used_ = 0;
  std::vector<iovec> iovecs_;
  size_t iovecs_used_ = 0;
  std::vector<Run> runs_;
  size_t runs_used_ = 0;
  size_t gathered_ = 0;
  std::vector<mmsghdr> messages_;
  std::vector<uint8_t> controls_;
};

}  // namespace weft
