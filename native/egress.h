// egress.h - the walk of a packet from the TUN to its peer.
//
//   read      up to 64 packets or 256 KiB, each with its virtio header
//   decide    inner destination to endpoint; without one an ICMP error goes back into the TUN; TTL less one
//   cut       a superpacket into (header, slice of payload) pairs, no payload copied; checksums completed
//   gather    datagrams of one size for one endpoint in a row are a run: one message with UDP_SEGMENT
//   send      all messages of the batch with one sendmmsg
//
// Bytes live in the read arena from a pump to its end, and nothing outlives a pump. No allocation, no lock.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <vector>

#include "counters.h"
#include "engine_features.h"
#include "packet.h"
#include "peers.h"
#include "segment.h"
#include "system.h"
#include "virtio.h"

namespace weft {

/// What both directions of a loop are given; all of it outlives them.
struct Path {
  int tun;
  int socket;            ///< receives, on the port that peers know
  int sender;            ///< sends: the same socket, or one with a source port of its own
  uint32_t tun_address;  ///< IPv4, network order: the source of ICMP errors
  bool naive;            ///< one packet for each system call
  Features* features;
  CounterRow counters;
};

/// What one pump did.
struct Pump {
  size_t items = 0;   ///< reads or messages
  bool more = false;  ///< the batch was full: there is probably more
  Failure failure;    ///< the path cannot go on
};

class Egress {
 public:
  Egress(const Path& path, PeerTables::Reader peers);

  /// Moves one batch. Does not block, but for a full socket buffer (udp.h).
  Pump pump();

 private:
  static constexpr size_t kMaxReads = 64;
  static constexpr size_t kReadBudgetBytes = 256 << 10;
  static constexpr size_t kMaxReadBytes = sizeof(VirtioHeader) + 65535;
  /// Datagrams and messages gathered before they must be sent.
  static constexpr size_t kMaxDatagrams = 2048;
  static constexpr size_t kMaxMessages = 256;
  /// UDP_SEGMENT takes 128 segments since Linux 6.9 and 64 before, and one message's payload ends at 65,507 bytes.
  static constexpr uint16_t kMaxRunDatagrams = 128;
  static constexpr uint16_t kOldMaxRunDatagrams = 64;
  static constexpr size_t kMaxRunBytes = 65507;
  static constexpr size_t kMaxRefused = 64;

  struct Message {
    const Endpoint* endpoint;
    uint32_t first_iovec;
    uint32_t bytes;
    uint16_t datagram_bytes;  // of all datagrams but the last
    uint16_t datagrams;
    bool open;  // may take another datagram
  };

  void forward(uint8_t* read, size_t size);
  void send_icmp(uint8_t type, uint8_t code, const uint8_t* bytes, const Packet& packet, Counter counter);
  /// Sends what is gathered if a datagram with that much header might not fit beside it. Before its header is
  /// written: sending forgets the headers that were.
  void make_room(size_t header_bytes);
  void add(const Endpoint& endpoint, uint8_t* header, size_t header_bytes, uint8_t* payload, size_t payload_bytes);
  void flush();
  void send_singly(const Message& message);
  void count_send_error(int error, uint64_t packets);
  void count_sent(const Message& message);
  bool refuses_gso(const Endpoint& endpoint) const;
  void refuse_gso(const Endpoint& endpoint);

  Path path_;
  PeerTables::Reader peers_;
  const PeerTable* table_ = nullptr;  // during a pump
  uint32_t features_ = 0;             // likewise
  uint16_t max_run_ = kMaxRunDatagrams;

  std::vector<uint8_t> reads_;
  std::vector<uint8_t> headers_;
  size_t headers_used_ = 0;
  std::vector<iovec> iovecs_;
  size_t iovecs_used_ = 0;
  std::vector<Message> messages_;
  size_t messages_used_ = 0;
  std::vector<mmsghdr> batch_;
  std::vector<uint8_t> controls_;

  // Endpoints to which GSO does not work (a route whose device computes no checksums, an xfrm policy). They are few;
  // when they are not, GSO goes off altogether.
  std::vector<sockaddr_in6> refused_;
  size_t refused_used_ = 0;
};

}  // namespace weft
