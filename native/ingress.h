// ingress.h - the walk of a packet from its peer to the TUN.
//
//   receive   recvmmsg, with UDP_GRO a message holds many datagrams of one size
//   split     into datagrams, where they lie
//   check     the shape of the inner packet; TTL less one
//   join      packets of one flow into superpackets (coalesce.h)
//   write     each with its virtio header, in order
#pragma once

#include "coalesce.h"
#include "egress.h"

namespace weft {

class Ingress {
 public:
  explicit Ingress(const Path& path);

  /// Moves one batch. Does not block.
  Pump pump();

 private:
  static constexpr size_t kMessages = 16;
  static constexpr size_t kMessageBytes = 65536;

  void receive(uint8_t* bytes, size_t size, const sockaddr_in6& from, socklen_t from_bytes);
  void send_time_exceeded(const uint8_t* bytes, const Packet& packet, const sockaddr_in6& from, socklen_t from_bytes);
  void flush();
  void write_singly(size_t index);
  bool write_packet(uint8_t* bytes, size_t size);

  Path path_;
  uint32_t features_ = 0;  // during a pump
  CoalesceLimits limits_;
  Coalescer coalescer_;
  Failure failure_;
  std::vector<uint8_t> buffers_;
  std::vector<mmsghdr> messages_;
  std::vector<iovec> iovecs_;
  std::vector<sockaddr_in6> sources_;
  std::vector<uint8_t> controls_;
  std::vector<iovec> write_iovecs_;
};

}  // namespace weft
