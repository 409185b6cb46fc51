// receiver.cc - calls recvmmsg and reads the control messages of each message.
#include "receiver.h"

#include <errno.h>
#include <linux/sock_diag.h>

#include <algorithm>

#include "linux_compat.h"
#include "udp.h"

namespace weft {

namespace {

/// The space in bytes for the two control messages of a received message: the size of the datagrams that the kernel
/// merged, and the TOS or traffic class.
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(int));

/// Returns how many messages the socket has dropped since it was opened. An earlier engine may have opened the socket.
uint32_t drops_of(int socket) {
  uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t size = sizeof memory;
  getsockopt(socket, SOL_SOCKET, SO_MEMINFO, memory, &size);
  return memory[SK_MEMINFO_DROPS];
}

/// Reads the size of the datagrams that the kernel merged, and the ECN mark of the first of them. Linux 6.9 and later
/// merge only datagrams with the same TOS (net/ipv4/udp_offload.c, udp_gro_receive_segment), and so do stable versions
/// since 5.15 with the fix of May 2024. On older kernels the mark of the first datagram counts for all merged
/// datagrams.
void read_controls(msghdr& header, Message& message) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control; control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO) {
      int size;
      std::memcpy(&size, CMSG_DATA(control), sizeof size);
      message.joined_bytes = size > 0 ? static_cast<size_t>(size) : 0;
    } else if (control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_TOS) {
      message.ecn = static_cast<Ecn>(*CMSG_DATA(control) & kEcnMask);
    } else if (control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == IPV6_TCLASS) {
      int traffic_class;
      std::memcpy(&traffic_class, CMSG_DATA(control), sizeof traffic_class);
      message.ecn = static_cast<Ecn>(traffic_class & kEcnMask);
    }
  }
}

}  // namespace

Receiver::Receiver(int socket, size_t encap_bytes, CounterRow counters, Drops* drops)
    : socket_(socket),
      encap_bytes_(encap_bytes),
      counters_(counters),
      drops_(drops),
      overflow_(drops_of(socket)),
      buffers_(std::make_unique_for_overwrite<uint8_t[]>(kMaxMessages * kMessageBytes)),
      messages_(kMaxMessages),
      iovecs_(kMaxMessages),
      controls_(kMaxMessages * kControlBytes),
      senders_(kMaxMessages),
      whole_(kMaxMessages) {
  // IP_RECVTOS and IPV6_RECVTCLASS make the kernel report ECN marks; one of the two options fits the socket's family.
  // The receiver sets them, and not the code that opens the socket, because an older version of weftd may have opened
  // the socket. If neither option can be set, outer ECN marks are not copied.
  const int on = 1;
  setsockopt(socket_, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
  setsockopt(socket_, IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof on);
}

size_t Receiver::receive(Failure& failure) {
  for (size_t i = 0; i < kMaxMessages; i++) {
    iovecs_[i] = {buffers_.get() + i * kMessageBytes, kMessageBytes};
    msghdr& header = messages_[i].msg_hdr;
    header = {};
    header.msg_name = senders_[i].raw();
    header.msg_namelen = SocketAddress::kRoom;
    header.msg_iov = &iovecs_[i];
    header.msg_iovlen = 1;
    header.msg_control = controls_.data() + i * kControlBytes;
    header.msg_controllen = kControlBytes;
  }
  whole_count_ = 0;
  int count;
  do {
    count = recvmmsg(socket_, messages_.data(), static_cast<unsigned>(kMaxMessages), MSG_DONTWAIT, nullptr);
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    // Report a failure only for these three errors, after which no later call can succeed. Any other error, such as
    // ECONNREFUSED, says that an earlier datagram could not be sent; the socket stays usable.
    if (errno == EBADF || errno == ENOTSOCK || errno == EFAULT) failure = SystemError{"recvmmsg", errno};
    return 0;
  }
  const size_t received = static_cast<size_t>(count);
  for (size_t i = 0; i < received; i++) {
    msghdr& header = messages_[i].msg_hdr;
    auto* bytes = static_cast<uint8_t*>(header.msg_iov->iov_base);
    const size_t size = messages_[i].msg_len;
    if (header.msg_flags & MSG_TRUNC) {
      drops_->add({.reason = k_rx_drop_truncated,
                   .bytes = {bytes, size},
                   .peer = senders_[i].address(),
                   .encap_bytes = encap_bytes_});
      continue;
    }
    Message& message = whole_[whole_count_++];
    message = {bytes, size, 0, kNotEct, &senders_[i]};
    read_controls(header, message);
  }
  counters_.add(k_rx_messages, received);
  counters_.add(k_rx_batches);
  return received;
}

void Receiver::count_overflow() {
  const uint32_t drops = drops_of(socket_);
  counters_.add(k_rx_drop_socket_full, drops - overflow_);
  overflow_ = drops;
}

}  // namespace weft
