// egress.cc - TUN to peers.
#include "egress.h"

#include <errno.h>

#include <algorithm>

#include "checksum.h"
#include "icmp.h"
#include "linux_compat.h"

namespace weft {

namespace {

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(uint16_t));

}  // namespace

Egress::Egress(const Path& path, PeerTables::Reader peers)
    : path_(path),
      peers_(peers),
      reads_(kReadBudgetBytes + kMaxReadBytes),
      headers_(kMaxDatagrams * kMaxHeadersBytes),
      iovecs_(kMaxDatagrams * 2),
      messages_(kMaxMessages),
      batch_(kMaxMessages),
      controls_(kMaxMessages * kControlBytes),
      refused_(kMaxRefused) {}

Pump Egress::pump() {
  Pump pump;
  const size_t max_reads = path_.naive ? 1 : kMaxReads;
  table_ = &peers_.acquire();
  features_ = path_.features->bits();
  size_t used = 0;
  while (pump.items < max_reads && used < kReadBudgetBytes) {
    const ssize_t size = read(path_.tun, reads_.data() + used, kMaxReadBytes);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) pump.failure = SystemError{"read from the TUN", errno};  // EBADFD: the device was deleted
      break;
    }
    forward(reads_.data() + used, static_cast<size_t>(size));
    used += static_cast<size_t>(size);
    pump.items++;
  }
  pump.more = pump.items == max_reads || used >= kReadBudgetBytes;
  flush();
  path_.counters.add(k_tun_reads, pump.items);
  peers_.release();
  return pump;
}

void Egress::forward(uint8_t* bytes, size_t size) {
  VirtioHeader virtio;
  if (features_ & kTunHeader) {
    if (size < sizeof virtio) return path_.counters.add(k_tx_drop_malformed);
    std::memcpy(&virtio, bytes, sizeof virtio);
    bytes += sizeof virtio;
    size -= sizeof virtio;
  }
  Packet packet;
  if (read_packet(bytes, size, packet) != Shape::kOk) return path_.counters.add(k_tx_drop_malformed);

  const Endpoint* endpoint = table_->find(packet.version, destination_address(bytes, packet));
  if (!endpoint) {
    path_.counters.add(k_tx_drop_no_route);
    return send_icmp(kIcmpUnreachable, kIcmpNetUnreachable, bytes, packet, k_tx_unreachable_sent);
  }
  if (packet.hop_limit <= 1) {
    path_.counters.add(k_tx_drop_ttl);
    return send_icmp(kIcmpTimeExceeded, 0, bytes, packet, k_tx_time_exceeded_sent);
  }
  if (packet.version == 4) {
    decrement_ipv4_ttl(bytes);
  } else {
    bytes[7]--;
  }

  if (virtio.gso_type == kGsoNone) {
    if ((virtio.flags & kVirtioNeedsCsum) && !finish_checksum(virtio, bytes, packet)) {
      return path_.counters.add(k_tx_drop_malformed);
    }
    make_room(0);
    return add(*endpoint, bytes, packet.total, nullptr, 0);
  }
  Segmenter segments;
  if (!segments.begin(virtio, bytes, packet)) return path_.counters.add(k_tx_drop_malformed);
  while (!segments.done()) {
    make_room(segments.header_bytes());
    const Segment segment = segments.next(headers_.data() + headers_used_);
    headers_used_ += segment.header_bytes;
    add(*endpoint, segment.header, segment.header_bytes, segment.payload, segment.payload_bytes);
  }
}

void Egress::send_icmp(uint8_t type, uint8_t code, const uint8_t* bytes, const Packet& packet, Counter counter) {
  uint8_t out[sizeof(VirtioHeader) + kMaxIcmpErrorBytes] = {};
  const size_t before = features_ & kTunHeader ? sizeof(VirtioHeader) : 0;
  const size_t size = write_icmp_error(type, code, path_.tun_address, bytes, packet, out + before);
  if (size > 0 && write(path_.tun, out, before + size) > 0) path_.counters.add(counter);
}

void Egress::make_room(size_t header_bytes) {
  if (headers_used_ + header_bytes > headers_.size() || iovecs_used_ + 2 > iovecs_.size() ||
      messages_used_ == messages_.size()) {
    flush();
  }
}

void Egress::add(const Endpoint& endpoint, uint8_t* header, size_t header_bytes, uint8_t* payload,
                 size_t payload_bytes) {
  const size_t size = header_bytes + payload_bytes;
  Message* last = messages_used_ > 0 ? &messages_[messages_used_ - 1] : nullptr;
  const bool joins = last && last->open && last->endpoint == &endpoint && size <= last->datagram_bytes &&
                     last->datagrams < max_run_ && last->bytes + size <= kMaxRunBytes;
  if (!joins) {
    last = &messages_[messages_used_++];
    *last = {&endpoint, static_cast<uint32_t>(iovecs_used_),
             0,         static_cast<uint16_t>(size),
             0,         (features_ & kUdpGso) && !path_.naive && !refuses_gso(endpoint)};
  }
  iovecs_[iovecs_used_++] = {header, header_bytes};
  if (payload_bytes > 0) iovecs_[iovecs_used_++] = {payload, payload_bytes};
  last->bytes += static_cast<uint32_t>(size);
  last->datagrams++;
  if (size < last->datagram_bytes) last->open = false;  // only the last of a run may be shorter
}

void Egress::flush() {
  for (size_t i = 0; i < messages_used_; i++) {
    const Message& message = messages_[i];
    const size_t end = i + 1 < messages_used_ ? messages_[i + 1].first_iovec : iovecs_used_;
    msghdr& header = batch_[i].msg_hdr;
    header = {};
    header.msg_name = const_cast<void*>(static_cast<const void*>(&message.endpoint->address));
    header.msg_namelen = message.endpoint->address_bytes;
    header.msg_iov = &iovecs_[message.first_iovec];
    header.msg_iovlen = end - message.first_iovec;
    if (message.datagrams > 1) {
      header.msg_control = controls_.data() + i * kControlBytes;
      header.msg_controllen = kControlBytes;
      cmsghdr* control = CMSG_FIRSTHDR(&header);
      control->cmsg_level = IPPROTO_UDP;
      control->cmsg_type = UDP_SEGMENT;
      control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
      std::memcpy(CMSG_DATA(control), &message.datagram_bytes, sizeof(uint16_t));
    }
  }
  size_t sent = 0;
  while (sent < messages_used_) {
    const int count = sendmmsg(path_.sender, &batch_[sent], static_cast<unsigned>(messages_used_ - sent), 0);
    path_.counters.add(k_tx_batches);
    if (count > 0) {
      for (int i = 0; i < count; i++) count_sent(messages_[sent++]);
      continue;
    }
    if (errno == EINTR) continue;
    // The first message was refused: it alone is dealt with, then the rest goes on.
    const Message& message = messages_[sent++];
    const int error = errno;
    if (message.datagrams > 1 && (error == EIO || error == EINVAL || error == EMSGSIZE)) {
      path_.counters.add(k_udp_gso_refusals);
      if (error == EIO) refuse_gso(*message.endpoint);
      if (error == EINVAL && message.datagrams > kOldMaxRunDatagrams) {
        max_run_ = kOldMaxRunDatagrams;
      } else if (error == EINVAL) {
        path_.features->drop(kUdpGso);
      }
      send_singly(message);
    } else {
      count_send_error(error, message.datagrams);
    }
  }
  messages_used_ = 0;
  iovecs_used_ = 0;
  headers_used_ = 0;
}

void Egress::send_singly(const Message& message) {
  iovec* iov = &iovecs_[message.first_iovec];
  size_t left = message.bytes;
  while (left > 0) {
    const size_t size = std::min<size_t>(left, message.datagram_bytes);
    size_t count = 0;
    for (size_t bytes = 0; bytes < size; count++) bytes += iov[count].iov_len;
    msghdr header{};
    header.msg_name = const_cast<void*>(static_cast<const void*>(&message.endpoint->address));
    header.msg_namelen = message.endpoint->address_bytes;
    header.msg_iov = iov;
    header.msg_iovlen = count;
    ssize_t result;
    do {
      result = sendmsg(path_.sender, &header, 0);
    } while (result < 0 && errno == EINTR);
    if (result < 0) {
      count_send_error(errno, 1);
    } else {
      count_sent({message.endpoint, 0, static_cast<uint32_t>(size), static_cast<uint16_t>(size), 1, false});
    }
    iov += count;
    left -= size;
  }
}

void Egress::count_sent(const Message& message) {
  path_.counters.add(k_tx_messages);
  path_.counters.add(k_tx_packets, message.datagrams);
  path_.counters.add(k_tx_bytes, message.bytes);
}

void Egress::count_send_error(int error, uint64_t packets) {
  switch (error) {
    case EMSGSIZE:
      return path_.counters.add(k_tx_drop_too_big, packets);
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
      return path_.counters.add(k_tx_drop_socket_full, packets);
    default:
      return path_.counters.add(k_tx_drop_refused, packets);
  }
}

bool Egress::refuses_gso(const Endpoint& endpoint) const {
  for (size_t i = 0; i < refused_used_; i++) {
    if (std::memcmp(&refused_[i], &endpoint.address, endpoint.address_bytes) == 0) return true;
  }
  return false;
}

void Egress::refuse_gso(const Endpoint& endpoint) {
  if (refuses_gso(endpoint)) return;
  if (refused_used_ == refused_.size()) return path_.features->drop(kUdpGso);
  std::memcpy(&refused_[refused_used_++], &endpoint.address, endpoint.address_bytes);
}

}  // namespace weft
