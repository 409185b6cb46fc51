// receiver.h - receives messages from peers, a batch by one recvmmsg; with UDP_GRO each may hold many datagrams.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "../core/counters.h"
#include "../core/drops.h"
#include "../core/message.h"
#include "../core/peers.h"
#include "system.h"

namespace weft {

class Receiver {
 public:
  static constexpr size_t kMaxMessages = 16;

  /// `encap_bytes` of each datagram stand before the inner packet.
  Receiver(int socket, size_t encap_bytes, CounterRow counters, Drops* drops);

  /// Takes what there is, up to a batch, and returns how many messages came. Does not block.
  size_t receive(Failure& failure);
  /// The messages that came whole, valid until the next receive().
  std::span<Message> messages() { return {whole_.data(), whole_count_}; }

  /// Counts the messages for which the socket had no room until now. The kernel is asked, and does not tell with each
  /// message: SO_RXQ_OVFL ends the thread that reads, by a BUG of hardened usercopy, when a TCP packet of this
  /// machine's own kernel comes inside a message after a drop (Linux 6.18; what CVE-2026-22977 mends is another way to
  /// it).
  void count_overflow();

 private:
  static constexpr size_t kMessageBytes = 65536;

  int socket_;
  size_t encap_bytes_;
  CounterRow counters_;
  Drops* drops_;
  uint32_t overflow_;                   // of the socket, as far as it is counted; wraps around as the kernel's does
  std::unique_ptr<uint8_t[]> buffers_;  // not written to before it is used: a lane that is idle has no memory
  std::vector<mmsghdr> messages_;
  std::vector<iovec> iovecs_;
  std::vector<uint8_t> controls_;
  std::vector<SocketAddress> senders_;
  std::vector<Message> whole_;
  size_t whole_count_ = 0;
};

}  // namespace weft
