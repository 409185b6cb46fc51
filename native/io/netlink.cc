// netlink.cc - implements the netlink sockets that netlink.h declares.
#include "netlink.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>

namespace weft {

namespace {

/// The size in bytes of the receive buffer of a netlink socket. With CAP_NET_ADMIN the size may exceed the limit
/// net.core.rmem_max.
constexpr int kReceiveBytes = 4 << 20;
/// The longest wait for a message of the kernel, which answers immediately unless it hangs.
constexpr timeval kPatience = {10, 0};
/// The maximum number of bytes, of changes and of reading requests in one send. The bytes must fit into the default
/// send buffer (net.core.wmem_default, 212,992 bytes). The answers must fit into the smallest receive buffer, which is
/// twice as large. The answer to a change takes about 800 bytes of that buffer, the answer to a reading request up to
/// 10,000 bytes.
constexpr size_t kMostBytes = 64 << 10, kMostChanges = 128, kMostGets = 32;
/// The maximum number of times that weft repeats a listing, if changes of the listed objects interrupt the listing each
/// time.
constexpr int kRepeats = 4;
/// The initial size of the buffer for recv(2). The kernel fills up to 32 KiB with each part of a listing.
constexpr size_t kBufferBytes = 32 << 10;
/// NetlinkReports::receive() receives no further reports after it has this number of bytes.
constexpr size_t kMostReportBytes = 1 << 20;

void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

void enlarge_receive_buffer(int fd) {
  const int bytes = kReceiveBytes;
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
    set_option(fd, SOL_SOCKET, SO_RCVBUF, kReceiveBytes);
}

/// Binds a netlink socket to a port that the kernel chooses, and stores the socket's address in `own`.
Failure bind_to_free_port(int fd, sockaddr_nl& own) {
  own = {};
  own.nl_family = AF_NETLINK;
  socklen_t length = sizeof own;
  if (bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) < 0) return SystemError{"bind AF_NETLINK", errno};
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) < 0)
    return SystemError{"getsockname AF_NETLINK", errno};
  return {};
}

/// Receives one message of any length, and makes `buffer` larger if necessary. Returns the number of its bytes; 0 for a
/// message that another process sent. Returns -1 if recv(2) fails.
ssize_t receive_one(int fd, SecretBytes& buffer) {
  ssize_t size;
  do size = recv(fd, nullptr, 0, MSG_PEEK | MSG_TRUNC);
  while (size < 0 && errno == EINTR);
  if (size < 0) return -1;
  if (static_cast<size_t>(size) > buffer.size()) buffer.resize(std::max(kBufferBytes, static_cast<size_t>(size)));
  if (buffer.empty()) buffer.resize(kBufferBytes);
  sockaddr_nl from = {};
  socklen_t length = sizeof from;
  do size = recvfrom(fd, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
  while (size < 0 && errno == EINTR);
  return size >= 0 && from.nl_pid != 0 ? 0 : size;
}

bool is_listing(uint16_t flags) { return (flags & NLM_F_DUMP) == NLM_F_DUMP && !(flags & NLM_F_ACK); }

void set_flag(nlmsghdr& header, uint16_t flag, bool is_set) {
  header.nlmsg_flags = static_cast<uint16_t>(is_set ? header.nlmsg_flags | flag : header.nlmsg_flags & ~flag);
}

nlmsghdr header_of(std::span<const uint8_t> message) {
  nlmsghdr header;
  std::memcpy(&header, message.data(), sizeof header);
  return header;
}

/// Returns true for a request of rtnetlink that reads an object. In rtnetlink each kind of object has four types in the
/// order NEW, DEL, GET, SET. For all other netlink protocols the result is always true.
bool is_get(int protocol, uint16_t type) { return protocol != NETLINK_ROUTE || (type & 3) == (RTM_GETLINK & 3); }

/// Returns the number of requests, from the beginning of `requests`, that one send may contain.
size_t batch_size(int protocol, std::span<const std::span<uint8_t>> requests) {
  size_t count = 0, bytes = 0, gets = 0;
  for (const auto request : requests) {
    const nlmsghdr header = header_of(request);
    // A listing is sent alone, because the kernel prepares only one listing at a time on a socket.
    if (is_listing(header.nlmsg_flags)) return std::max<size_t>(count, 1);
    bytes += NLMSG_ALIGN(request.size());
    gets += is_get(protocol, header.nlmsg_type);
    if (count > 0 && (bytes > kMostBytes || count == kMostChanges || gets > kMostGets)) return count;
    count++;
  }
  return count;
}

/// Returns the kernel's error text from the attributes after an error (NLMSGERR_ATTR_MSG).
std::string explanation_in(std::span<const uint8_t> attributes) {
  while (attributes.size() >= sizeof(nlattr)) {
    nlattr attribute;
    std::memcpy(&attribute, attributes.data(), sizeof attribute);
    if (attribute.nla_len < sizeof attribute || attribute.nla_len > attributes.size()) break;
    if ((attribute.nla_type & NLA_TYPE_MASK) == NLMSGERR_ATTR_MSG) {
      const auto* text = reinterpret_cast<const char*>(attributes.data() + sizeof attribute);
      return {text, strnlen(text, attribute.nla_len - sizeof attribute)};
    }
    attributes = attributes.subspan(std::min<size_t>(attributes.size(), NLA_ALIGN(attribute.nla_len)));
  }
  return {};
}

/// Reads the last message of an answer (NLMSG_ERROR or NLMSG_DONE). The message begins with an error number and ends
/// with attributes. In between, NLMSG_ERROR has the request's header and, unless NLM_F_CAPPED is set, the request's
/// body.
void read_end(const nlmsghdr& header, std::span<const uint8_t> body, NetlinkAnswer& answer) {
  int32_t error = 0;
  if (body.size() >= sizeof error) std::memcpy(&error, body.data(), sizeof error);
  if (error < 0 && error > -4096) answer.error = -error;
  if (answer.error == 0 || !(header.nlmsg_flags & NLM_F_ACK_TLVS)) return;
  size_t before = sizeof error;
  if (header.nlmsg_type == NLMSG_ERROR) {
    if (body.size() < sizeof(nlmsgerr)) return;
    const nlmsghdr request = header_of(body.subspan(sizeof error));
    before = sizeof(nlmsgerr);
    if (!(header.nlmsg_flags & NLM_F_CAPPED) && request.nlmsg_len > sizeof request)
      before += NLMSG_ALIGN(size_t{request.nlmsg_len} - sizeof request);
  }
  if (before <= body.size()) answer.explanation = explanation_in(body.subspan(before));
}

}  // namespace

void NetlinkAnswers::take(std::span<const uint8_t> bytes) {
  each_netlink_message(
      bytes, [this](const nlmsghdr& header, std::span<const uint8_t> message) { take_message(header, message); });
}

void NetlinkAnswers::take_message(const nlmsghdr& header, std::span<const uint8_t> message) {
  const uint32_t at = header.nlmsg_seq - first_;
  if (at >= answers_.size() || at < complete_) return;
  NetlinkAnswer& answer = answers_[at];
  if (header.nlmsg_flags & NLM_F_DUMP_INTR) answer.is_interrupted = true;
  if (header.nlmsg_type == NLMSG_ERROR || header.nlmsg_type == NLMSG_DONE) {
    read_end(header, message.subspan(sizeof header), answer);
    while (complete_ <= at) answers_[complete_++].is_complete = true;
  } else if (header.nlmsg_type >= NLMSG_MIN_TYPE) {
    answer.messages.insert(answer.messages.end(), message.begin(), message.end());
    answer.messages.resize(NLMSG_ALIGN(answer.messages.size()));
  }
}

Failure NetlinkSocket::open() {
  Fd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol_));
  if (!fd) return SystemError{"socket AF_NETLINK", errno};
  enlarge_receive_buffer(fd.get());
  if (setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience) < 0)
    return SystemError{"setsockopt SO_RCVTIMEO", errno};
  // Ignore failures, because netlink also works without these options. Linux before 4.12 lacks some of them, and Linux
  // before 4.20 lacks strict checks.
  for (const int option : {NETLINK_EXT_ACK, NETLINK_CAP_ACK, NETLINK_GET_STRICT_CHK})
    set_option(fd.get(), SOL_NETLINK, option, 1);
  sockaddr_nl own = {};
  if (Failure failure = bind_to_free_port(fd.get(), own)) return failure;
  fd_ = std::move(fd);
  port_ = own.nl_pid;
  return {};
}

void NetlinkSocket::close() {
  port_ = 0;
  fd_.reset();
}

Failure NetlinkSocket::exchange(std::span<uint8_t> bytes, std::vector<NetlinkAnswer>& answers) {
  std::vector<std::span<uint8_t>> requests;
  const bool is_whole = each_netlink_message(bytes, [&](const nlmsghdr&, std::span<const uint8_t> message) {
    requests.push_back(bytes.subspan(static_cast<size_t>(message.data() - bytes.data()), message.size()));
  });
  if (!is_whole) return SystemError{"netlink requests", EINVAL};
  answers.assign(requests.size(), {});
  if (!fd_) {
    if (const Failure failure = open()) {
      for (NetlinkAnswer& answer : answers) answer.error = failure->number;
      return {};
    }
  }
  for (size_t at = 0; at < requests.size();) {
    const auto left = std::span<const std::span<uint8_t>>(requests).subspan(at);
    const size_t count = batch_size(protocol_, left);
    const Failure failure = exchange_some(left.first(count), std::span(answers).subspan(at, count));
    if (failure) {
      // After a failed exchange, its answers may still arrive on this socket, and its listing may still run. So the
      // next exchange needs a new socket.
      close();
      for (NetlinkAnswer& answer : std::span(answers).subspan(at))
        if (!answer.is_complete) answer.error = failure->number;
      break;
    }
    at += count;
  }
  if (protocol_ == NETLINK_GENERIC) explicit_bzero(buffer_.data(), buffer_.size());
  return {};
}

Failure NetlinkSocket::exchange_some(std::span<const std::span<uint8_t>> requests, std::span<NetlinkAnswer> answers) {
  const bool lists = is_listing(header_of(requests.front()).nlmsg_flags);
  for (int repeats = 0;; repeats++) {
    const uint32_t first = sequence_ + 1;
    for (const std::span<uint8_t> request : requests) {
      nlmsghdr header = header_of(request);
      header.nlmsg_seq = ++sequence_;
      const bool is_last = request.data() == requests.back().data();
      // Request an acknowledgement (NLM_F_ACK) only for the last change. The kernel handles requests in order, so this
      // acknowledgement also covers all earlier changes. If a change fails, the kernel reports the error even without
      // NLM_F_ACK.
      const bool is_covered = !is_last && !is_get(protocol_, header.nlmsg_type);
      if (!lists) set_flag(header, NLM_F_ACK, !is_covered);
      std::memcpy(request.data(), &header, sizeof header);
    }
    const auto* end = requests.back().data() + requests.back().size();
    sockaddr_nl kernel = {};
    kernel.nl_family = AF_NETLINK;
    if (sendto(fd_.get(), requests.front().data(), static_cast<size_t>(end - requests.front().data()), 0,
               reinterpret_cast<sockaddr*>(&kernel), sizeof kernel) < 0)
      return SystemError{"send", errno};
    NetlinkAnswers collected(first, answers);
    if (Failure failure = receive(collected)) return failure;
    if (!lists || !answers.front().is_interrupted || repeats == kRepeats) return {};
    answers.front() = {};
  }
}

Failure NetlinkSocket::receive(NetlinkAnswers& answers) {
  while (!answers.is_complete()) {
    const ssize_t size = receive_one(fd_.get(), buffer_);
    // The receive timeout (SO_RCVTIMEO) has expired.
    if (size < 0 && errno == EAGAIN) return SystemError{"recv", ETIMEDOUT};
    if (size < 0) return SystemError{"recv", errno};
    answers.take(std::span(buffer_).first(static_cast<size_t>(size)));
  }
  return {};
}

Failure NetlinkReports::open(int protocol, std::span<const int> groups) {
  Fd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol));
  if (!fd) return SystemError{"socket AF_NETLINK", errno};
  enlarge_receive_buffer(fd.get());
  // Bind the socket, because the kernel sends no reports to port number 0, the port of a socket without an address
  // (net/netlink/af_netlink.c, do_one_broadcast).
  sockaddr_nl own = {};
  if (Failure failure = bind_to_free_port(fd.get(), own)) return failure;
  for (const int group : groups) {
    if (setsockopt(fd.get(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) < 0)
      return SystemError{"setsockopt NETLINK_ADD_MEMBERSHIP", errno};
  }
  fd_ = std::move(fd);
  return {};
}

bool NetlinkReports::receive(std::vector<uint8_t>& messages) {
  bool is_complete = true;
  while (messages.size() < kMostReportBytes) {
    const ssize_t size = receive_one(fd_.get(), buffer_);
    if (size < 0 && errno == EAGAIN) break;
    if (size < 0) is_complete = false;
    // ENOBUFS means that the kernel dropped reports. The reports before and after them can still be received.
    if (size < 0 && errno != ENOBUFS) break;
    if (size <= 0) continue;
    messages.insert(messages.end(), buffer_.begin(), buffer_.begin() + size);
    messages.resize(NLMSG_ALIGN(messages.size()));
  }
  return is_complete;
}

}  // namespace weft
