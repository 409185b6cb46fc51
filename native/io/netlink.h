// netlink.h - exchanges requests and answers with the kernel over netlink sockets, and receives the kernel's reports
// (netlink(7), rtnetlink(7)).
#pragma once

#include <linux/netlink.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "../core/secret_bytes.h"
#include "system.h"

namespace weft {

/// Calls `each(header, message)` with each complete message. Returns false if the last message is truncated or if its
/// length is invalid. `message` includes the header, and not the padding after the message.
template <typename Each>
bool each_netlink_message(std::span<const uint8_t> bytes, Each each) {
  while (bytes.size() >= sizeof(nlmsghdr)) {
    nlmsghdr header;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.nlmsg_len < sizeof header || header.nlmsg_len > bytes.size()) return false;
    each(header, bytes.first(header.nlmsg_len));
    bytes = bytes.subspan(std::min<size_t>(bytes.size(), NLMSG_ALIGN(size_t{header.nlmsg_len})));
  }
  return bytes.empty();
}

/// The kernel's answer to one request. An answer about a WireGuard device contains the device's keys, so the memory of
/// `messages` is wiped when it is freed.
struct NetlinkAnswer {
  SecretBytes messages;         ///< one after another, each padded to 4 bytes, without the acknowledgement
  int error = 0;                ///< errno; 0 if the kernel accepted the request
  std::string explanation;      ///< the kernel's explanation (NLMSGERR_ATTR_MSG); empty if the kernel gave none
  bool is_interrupted = false;  ///< true if the objects changed while the kernel listed them (NLM_F_DUMP_INTR)
  bool is_complete = false;
};

/// Assigns the messages of the kernel to the requests that they answer, by their sequence numbers. The kernel answers
/// in order, so the end of an answer completes all answers before it.
class NetlinkAnswers {
 public:
  /// The first answer has the sequence number `first`, each further answer the next number.
  NetlinkAnswers(uint32_t first, std::span<NetlinkAnswer> answers) : first_(first), answers_(answers) {}

  /// Takes the bytes that one call of recv(2) returned. Ignores malformed messages and messages with other sequence
  /// numbers.
  void take(std::span<const uint8_t> bytes);
  bool is_complete() const { return complete_ == answers_.size(); }

 private:
  void take_message(const nlmsghdr& header, std::span<const uint8_t> message);

  uint32_t first_;
  std::span<NetlinkAnswer> answers_;
  size_t complete_ = 0;  ///< the number of complete answers; all further answers are incomplete
};

/// A socket for requests to one subsystem of the kernel. Only one thread may use it at a time, except for `port`.
class NetlinkSocket {
 public:
  /// `protocol` is a protocol of netlink(7), such as NETLINK_ROUTE.
  explicit NetlinkSocket(int protocol) : protocol_(protocol) {}

  /// Sends the requests and returns their answers in the same order. Fills in the sequence numbers. A request with the
  /// flag NLM_F_DUMP and without NLM_F_ACK is a listing, which is repeated a few times if changes of the listed objects
  /// interrupt it. If the kernel does not answer a request, that request and all later requests get answers with the
  /// error ETIMEDOUT. If the socket cannot be opened, each answer has the errno of that failure. Fails, and sends
  /// nothing, only if the bytes are not a list of requests.
  Failure exchange(std::span<uint8_t> requests, std::vector<NetlinkAnswer>& answers);
  /// The port number of the socket, which no other socket of the network namespace and protocol has; 0 if the socket is
  /// not open. The kernel's report of a change has the port of the socket that requested the change (nlmsg_pid). Any
  /// thread may call this function.
  uint32_t port() const { return port_; }

 private:
  Failure open();
  void close();
  /// Sends one batch of requests, and waits for all answers.
  Failure exchange_some(std::span<const std::span<uint8_t>> requests, std::span<NetlinkAnswer> answers);
  Failure receive(NetlinkAnswers& answers);

  int protocol_;
  Fd fd_;
  std::atomic<uint32_t> port_ = 0;
  uint32_t sequence_ = 0;  ///< the sequence number of the last request
  SecretBytes buffer_;
};

/// Receives the kernel's reports to multicast groups. The socket does not block.
class NetlinkReports {
 public:
  /// Joins the multicast groups of a netlink protocol whose numbers are in `groups`, such as RTNLGRP_* of NETLINK_ROUTE
  /// (linux/rtnetlink.h).
  Failure open(int protocol, std::span<const int> groups);
  int fd() const { return fd_.get(); }
  /// Appends the reports that have arrived, at most about 1 MB of them, to `messages`. Returns false if reports were
  /// lost, because the kernel dropped reports that were not received in time (ENOBUFS), or because recv(2) failed.
  bool receive(std::vector<uint8_t>& messages);

 private:
  Fd fd_;
  SecretBytes buffer_;
};

}  // namespace weft
