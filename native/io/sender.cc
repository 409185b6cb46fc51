// sender.cc - merges datagrams into runs (the datagrams of one message), sends the runs, and handles the errors of a
// run.
#include "sender.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>

#include "linux_compat.h"
#include "udp.h"

namespace weft {

namespace {

/// The space in bytes for the two control messages of a message: the size of its datagrams, and the ECN mark.
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int));

msghdr header_for(const SocketAddress& to, iovec* iovecs, size_t count) {
  msghdr header{};
  header.msg_name = const_cast<sockaddr*>(to.raw());
  header.msg_namelen = to.size();
  header.msg_iov = iovecs;
  header.msg_iovlen = count;
  return header;
}

template <typename T>
void add_control(msghdr& header, uint8_t* room, int level, int type, T value) {
  header.msg_control = room;
  auto* control = reinterpret_cast<cmsghdr*>(room + header.msg_controllen);
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(control), &value, sizeof value);
  header.msg_controllen += CMSG_SPACE(sizeof value);
}

/// Sets the ECN mark of the outer header, with DSCP 0 like the kernel's vxlan device. The value for IPv4 is a single
/// byte, so byte order does not matter.
void add_ecn(msghdr& header, uint8_t* room, uint8_t version, Ecn ecn) {
  if (ecn == kNotEct) return;
  if (version == 6) return add_control(header, room, IPPROTO_IPV6, IPV6_TCLASS, int{ecn});
  add_control(header, room, IPPROTO_IP, IP_TOS, static_cast<uint8_t>(ecn));
}

/// True if the sockets of all families are the same socket.
bool are_one(const ByFamily<Sockets>& sockets) {
  int only = -1;
  for (const uint8_t version : kIpVersions) {
    for (const int fd : {sockets.of(version).sender, sockets.of(version).known}) {
      if (fd >= 0 && only >= 0 && fd != only) return false;
      if (fd >= 0) only = fd;
    }
  }
  return true;
}

Attempt attempt_of(size_t datagrams) { return {Way::kPeers, datagrams > 1 ? kUdpGso : 0u, datagrams}; }

}  // namespace

Sender::Sender(const ByFamily<Sockets>& sockets, size_t header_bytes, size_t trailer_bytes, size_t max_room_bytes,
               Features* features, CounterRow counters, Drops* drops, TrafficRows* traffic, bool is_encrypted)
    : sockets_(sockets),
      has_one_socket_(are_one(sockets)),
      header_bytes_(header_bytes),
      trailer_bytes_(trailer_bytes),
      encap_bytes_(header_bytes + trailer_bytes),
      features_(features),
      counters_(counters),
      drops_(drops),
      traffic_(traffic),
      is_encrypted_(is_encrypted),
      learnt_(features),
      room_size_(kMaxDatagrams * max_room_bytes),
      room_(std::make_unique_for_overwrite<uint8_t[]>(room_size_)),
      iovecs_(std::make_unique_for_overwrite<iovec[]>(kMaxIovecs)),
      runs_(std::make_unique_for_overwrite<Run[]>(kMaxMessages)),
      messages_(std::make_unique_for_overwrite<mmsghdr[]>(kMaxMessages)),
      controls_(std::make_unique_for_overwrite<uint8_t[]>(kMaxMessages * kControlBytes)) {}

uint8_t* Sender::room(size_t bytes) {
  if (room_used_ + bytes > room_size_ || iovecs_used_ + kMaxPieces > kMaxIovecs || runs_used_ == kMaxMessages) {
    send();
  }
  uint8_t* room = room_.get() + room_used_;
  room_used_ += bytes;
  return room;
}

void Sender::prepare() {
  for (size_t i = 0; i < runs_used_; i++) {
    const Run& run = runs_[i];
    const size_t end = i + 1 < runs_used_ ? runs_[i + 1].first_iovec : iovecs_used_;
    msghdr& header = messages_[i].msg_hdr;
    header = header_for(run.to(), &iovecs_[run.first_iovec], end - run.first_iovec);
    uint8_t* controls = controls_.get() + i * kControlBytes;
    if (run.datagrams > 1) add_control(header, controls, IPPROTO_UDP, UDP_SEGMENT, run.datagram_bytes);
    add_ecn(header, controls, run.version, run.ecn);
  }
}

void Sender::flush() {
  send();
  waited_ = false;
}

size_t Sender::alike_from(size_t first) const {
  if (has_one_socket_) return runs_used_ - first;
  size_t end = first + 1;
  while (end < runs_used_ && socket_for(runs_[end]) == socket_for(runs_[first])) end++;
  return end - first;
}

bool Sender::again(int socket, int error) {
  if (error == EINTR) return true;
  if (error != EAGAIN || waited_) return false;
  waited_ = true;
  pollfd room{socket, POLLOUT, 0};
  poll(&room, 1, kPatienceMs);
  return true;
}

void Sender::send() {
  prepare();
  size_t sent = 0;
  while (sent < runs_used_) {
    const int socket = socket_for(runs_[sent]);
    const int count = sendmmsg(socket, &messages_[sent], static_cast<unsigned>(alike_from(sent)), MSG_DONTWAIT);
    counters_.add(k_tx_batches);
    if (count > 0) {
      for (int i = 0; i < count; i++, sent++) count_sent(runs_[sent], runs_[sent].datagrams, runs_[sent].bytes);
    } else if (!again(socket, errno)) {
      // The kernel rejected the first of these messages, so handle that message alone. The loop then continues with the
      // messages after it.
      refused(runs_[sent++], errno);
    }
  }
  runs_used_ = 0;
  iovecs_used_ = 0;
  room_used_ = 0;
}

void Sender::refused(const Run& run, int error) {
  const Attempt attempt = attempt_of(run.datagrams);
  const Consequence& consequence = consequence_of(attempt, error);
  if (consequence.then != Then::kSingly) {
    return each_datagram(run, [&](std::span<iovec> iov, size_t) { drop(consequence.counted, run.to(), iov); });
  }
  counters_.add(consequence.counted);
  const bool taken = send_singly(run);
  learnt_.learn(consequence, taken, *run.endpoint, kOuterBytes + run.datagram_bytes, now_ms());
}

/// Sends the datagrams of a rejected run (datagrams that were merged into one message) one by one. Returns true if the
/// kernel accepted at least one datagram.
bool Sender::send_singly(const Run& run) {
  bool taken = false;
  const int socket = socket_for(run);
  each_datagram(run, [&](std::span<iovec> iov, size_t size) {
    msghdr header = header_for(run.to(), iov.data(), iov.size());
    alignas(cmsghdr) uint8_t controls[kControlBytes];
    add_ecn(header, controls, run.version, run.ecn);
    ssize_t result;
    do {
      result = sendmsg(socket, &header, MSG_DONTWAIT);
    } while (result < 0 && again(socket, errno));
    if (result < 0) return drop(consequence_of(attempt_of(1), errno).counted, run.to(), iov);
    count_sent(run, 1, size);
    taken = true;
  });
  return taken;
}

/// Calls `each` for each datagram of a run, that is, of the datagrams in one message, with its pieces (header first)
/// and its size.
template <typename Each>
void Sender::each_datagram(const Run& run, Each each) {
  iovec* iov = &iovecs_[run.first_iovec];
  for (size_t left = run.bytes; left > 0;) {
    const size_t size = std::min<size_t>(left, run.datagram_bytes);
    size_t count = 0;
    for (size_t bytes = 0; bytes < size; count++) bytes += iov[count].iov_len;
    each(std::span(iov, count), size);
    iov += count;
    left -= size;
  }
}

void Sender::drop(Counter reason, const SocketAddress& to, std::span<const iovec> datagram) {
  const auto bytes = [](const iovec& piece) {
    return std::span(static_cast<const uint8_t*>(piece.iov_base), piece.iov_len);
  };
  const size_t encap_bytes = is_encrypted_ ? header_bytes_ : 0;
  const auto first = bytes(datagram[0]).subspan(header_bytes_ - encap_bytes);
  drops_->add({.reason = reason,
               .bytes = datagram.size() > 1 ? first : first.first(first.size() - trailer_bytes_),
               .more = datagram.size() > 1 ? bytes(datagram[1]) : std::span<const uint8_t>(),
               .peer = to.address(),
               .encap_bytes = encap_bytes,
               .is_encrypted = is_encrypted_});
}

void Sender::count_sent(const Run& run, uint64_t datagrams, uint64_t bytes) {
  const uint64_t inner_bytes = bytes - datagrams * encap_bytes_;
  counters_.add(k_tx_messages);
  counters_.add(k_tx_packets, datagrams);
  counters_.add(k_tx_bytes, inner_bytes);
  traffic_->add_sent(run.endpoint->slot, datagrams, inner_bytes);
}

}  // namespace weft
