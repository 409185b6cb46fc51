// ingress.cc - peers to TUN.
#include "ingress.h"

#include <errno.h>

#include <algorithm>

#include "checksum.h"
#include "icmp.h"
#include "linux_compat.h"

namespace weft {

namespace {

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int));
constexpr uint16_t kOldUdpSegments = 64;

/// The datagram size that the kernel joined by, or 0 when it joined nothing.
size_t gro_size(msghdr& message) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO) {
      int size;
      std::memcpy(&size, CMSG_DATA(control), sizeof size);
      return size > 0 ? static_cast<size_t>(size) : 0;
    }
  }
  return 0;
}

}  // namespace

Ingress::Ingress(const Path& path)
    : path_(path),
      buffers_(kMessages * kMessageBytes),
      messages_(kMessages),
      iovecs_(kMessages),
      sources_(kMessages),
      controls_(kMessages * kControlBytes),
      write_iovecs_(Coalescer::kMaxIovecs) {}

Pump Ingress::pump() {
  Pump pump;
  const size_t slots = path_.naive ? 1 : kMessages;
  features_ = path_.features->bits();
  limits_.tcp = features_ & kCoalesceTcp;
  limits_.udp = features_ & kCoalesceUdp;
  for (size_t i = 0; i < slots; i++) {
    iovecs_[i] = {buffers_.data() + i * kMessageBytes, kMessageBytes};
    msghdr& header = messages_[i].msg_hdr;
    header = {};
    header.msg_name = &sources_[i];
    header.msg_namelen = sizeof sources_[i];
    header.msg_iov = &iovecs_[i];
    header.msg_iovlen = 1;
    header.msg_control = controls_.data() + i * kControlBytes;
    header.msg_controllen = kControlBytes;
  }
  int count;
  do {
    count = recvmmsg(path_.socket, messages_.data(), static_cast<unsigned>(slots), MSG_DONTWAIT, nullptr);
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    // ECONNREFUSED and its like report an earlier send; the socket goes on.
    if (errno == EBADF || errno == ENOTSOCK || errno == EFAULT) pump.failure = SystemError{"recvmmsg", errno};
    return pump;
  }
  for (int i = 0; i < count; i++) {
    msghdr& header = messages_[static_cast<size_t>(i)].msg_hdr;
    if (header.msg_flags & MSG_TRUNC) {
      path_.counters.add(k_rx_drop_truncated);
      continue;
    }
    uint8_t* at = static_cast<uint8_t*>(header.msg_iov->iov_base);
    size_t left = messages_[static_cast<size_t>(i)].msg_len;
    const size_t step = gro_size(header);
    do {
      const size_t size = step > 0 ? std::min(step, left) : left;
      receive(at, size, sources_[static_cast<size_t>(i)], header.msg_namelen);
      at += size;
      left -= size;
    } while (left > 0);
  }
  flush();
  path_.counters.add(k_rx_messages, static_cast<uint64_t>(count));
  path_.counters.add(k_rx_batches);
  pump.items = static_cast<size_t>(count);
  pump.more = pump.items == slots;
  pump.failure = failure_;
  return pump;
}

void Ingress::receive(uint8_t* bytes, size_t size, const sockaddr_in6& from, socklen_t from_bytes) {
  Packet packet;
  if (read_packet(bytes, size, packet) != Shape::kOk) return path_.counters.add(k_rx_drop_malformed);
  if (packet.hop_limit <= 1) {
    path_.counters.add(k_rx_drop_ttl);
    return send_time_exceeded(bytes, packet, from, from_bytes);
  }
  if (packet.version == 4) {
    decrement_ipv4_ttl(bytes);
  } else {
    bytes[7]--;
  }
  if (coalescer_.full()) flush();
  coalescer_.add(bytes, packet, limits_);
}

void Ingress::send_time_exceeded(const uint8_t* bytes, const Packet& packet, const sockaddr_in6& from,
                                 socklen_t from_bytes) {
  uint8_t out[kMaxIcmpErrorBytes];
  const size_t size = write_icmp_error(kIcmpTimeExceeded, 0, path_.tun_address, bytes, packet, out);
  if (size > 0 &&
      sendto(path_.socket, out, size, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&from), from_bytes) > 0) {
    path_.counters.add(k_rx_time_exceeded_sent);
  }
}

void Ingress::flush() {
  for (size_t i = 0; i < coalescer_.writes(); i++) {
    const size_t packets = coalescer_.run_packets(i);
    const size_t count = coalescer_.write(i, write_iovecs_.data());
    size_t bytes = 0;
    for (size_t j = 1; j < count; j++) bytes += write_iovecs_[j].iov_len;
    // Without the virtio header nothing was joined, and the packet stands alone behind it.
    const size_t skip = features_ & kTunHeader ? 0 : 1;
    const ssize_t written = writev(path_.tun, write_iovecs_.data() + skip, static_cast<int>(count - skip));
    if (written >= 0) {
      path_.counters.add(k_tun_writes);
      path_.counters.add(k_rx_packets, packets);
      path_.counters.add(k_rx_bytes, bytes);
    } else if (errno == EBADFD) {
      failure_ = SystemError{"write to the TUN", errno};
    } else if (packets > 1) {
      write_singly(i);
    } else {
      path_.counters.add(k_rx_drop_tun);
    }
  }
  coalescer_.clear();
}

void Ingress::write_singly(size_t index) {
  // Refused as a whole but taken singly: it is the joining that the kernel does not want. A TUN that is down refuses
  // both, and says nothing about joining.
  const bool unwanted = errno == EINVAL;
  bool taken = false;
  path_.counters.add(k_coalesce_refusals);
  coalescer_.each_packet(index, [&](uint8_t* bytes, size_t size) { taken |= write_packet(bytes, size); });
  if (!unwanted || !taken) return;
  if (coalescer_.is_udp(index) && coalescer_.run_packets(index) > kOldUdpSegments) {
    limits_.udp_segments = kOldUdpSegments;
  } else {
    path_.features->drop(coalescer_.is_udp(index) ? kCoalesceUdp : kCoalesceTcp);
  }
}

bool Ingress::write_packet(uint8_t* bytes, size_t size) {
  VirtioHeader virtio;
  iovec iov[2] = {{&virtio, sizeof virtio}, {bytes, size}};
  const int skip = features_ & kTunHeader ? 0 : 1;
  if (writev(path_.tun, iov + skip, 2 - skip) < 0) {
    path_.counters.add(k_rx_drop_tun);
    return false;
  }
  path_.counters.add(k_tun_writes);
  path_.counters.add(k_rx_packets);
  path_.counters.add(k_rx_bytes, size);
  return true;
}

}  // namespace weft
