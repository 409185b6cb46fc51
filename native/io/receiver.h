// receiver.h - receives messages from peers, a batch with each recvmmsg call. With UDP_GRO a message may have several
// datagrams.
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

  /// `encap_bytes` is the length in bytes of the encapsulation's header, which is stored with each dropped packet.
  Receiver(int socket, size_t encap_bytes, CounterRow counters, Drops* drops);

  /// Receives a batch of messages without blocking, and returns their number; 0 if no message waits.
  size_t receive(Failure& failure);
  /// The received messages, without truncated messages; valid until the next receive().
  std::span<Message> messages() { return {whole_.data(), whole_count_}; }

  /// Counts the messages that the kernel dropped since the last call because the socket's buffer was full or their UDP
  /// checksum was wrong: the kernel has one counter for both (sk_drops, net/ipv4/udp.c). Queries the kernel instead of
  /// using SO_RXQ_OVFL, because of a kernel bug: if a TCP packet of this machine's kernel arrives in a message after a
  /// drop, SO_RXQ_OVFL kills the reading thread by a BUG of hardened usercopy (Linux 6.18; the fix of CVE-2026-22977 is
  /// in another code path).
  void count_overflow();

 private:
  static constexpr size_t kMessageBytes = 65536;

  int socket_;
  size_t encap_bytes_;
  CounterRow counters_;
  Drops* drops_;
  // The socket's count of dropped messages at the last count_overflow(). Like the kernel's counter, it wraps around.
  uint32_t overflow_;
  std::unique_ptr<uint8_t[]> buffers_;  // not written until used, so that an idle thread uses no memory
  std::vector<mmsghdr> messages_;
  std::vector<iovec> iovecs_;
  std::vector<uint8_t> controls_;
  std::vector<SocketAddress> senders_;
  std::vector<Message> whole_;
  size_t whole_count_ = 0;
};

}  // namespace weft
