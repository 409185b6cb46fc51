// vxlan.h - VXLAN (RFC 7348), compatible with the kernel's vxlan devices as flannel configures them: 8 bytes of VXLAN
// header, 14 bytes of Ethernet header, then the packet.
//
// MAC addresses are static: a peer's MAC is in its record, and there is no ARP (pkg/backend/vxlan/device.go). Like the
// kernel, weft drops a frame whose destination MAC is not this host's.
//
// If a kernel's vxlan device sends to a socket on the same machine, over veth or virtio, the device skips work that it
// does for a physical network. Observed with Linux 6.18:
// - TCP and UDP checksums contain only the pseudo-header's sum, because the packet never reaches a device that would
//   complete them.
// - A TCP superpacket arrives as one datagram without its segment size. weft assumes a size that fits every link of a
//   container, because the kernel would drop larger segments after it has segmented the superpacket.
// - A UDP superpacket arrives as one datagram, and the kernel reports its segment size in place of the size of merged
//   datagrams (UDP_GRO). The length in the inner packet's header shows whether the datagram is a superpacket.
#pragma once

#include <string_view>

#include "../core/encapsulation.h"
#include "../core/segment.h"

namespace weft {

class Vxlan {
 public:
  static constexpr std::string_view kName = "vxlan";
  static constexpr size_t kHeaderBytes = 22;
  static constexpr size_t kTrailerBytes = 0;
  static constexpr bool kRoutes = false;
  static constexpr bool kCopiesEcn = true;

  /// `own.encap` contains this host's MAC (6 bytes) and the VNI (3 bytes, big-endian). A peer's record contains the
  /// peer's MAC.
  explicit Vxlan(const OwnEnd& own) : mtu_(own.mtu) {
    std::memcpy(own_mac_, own.encap.data(), kMacBytes);
    std::memcpy(vxlan_ + kVni, own.encap.data() + kMacBytes, kVniBytes);
  }

  Sealed seal(const Endpoint& peer, const Packet& packet, std::span<uint8_t> bytes, std::span<uint8_t>) const {
    uint8_t* out = bytes.data();
    std::memcpy(out, vxlan_, sizeof vxlan_);
    std::memcpy(out + kDestination, peer.encap.data(), kMacBytes);
    std::memcpy(out + kSource, own_mac_, kMacBytes);
    store_be16(out + kEtherType, ether_type(packet));
    return Sealed::datagram();
  }

  Opened open(Message& message) const {
    const std::span<uint8_t> frame = is_one(message) ? message.take_all() : message.take();
    if (frame.size() < kHeaderBytes) return Opened::drop(k_rx_drop_malformed);
    if (!is_ours(frame.data())) return Opened::drop(k_rx_drop_not_ours);
    Packet packet;
    if (!read_inner(frame, packet) || load_be16(frame.data() + kEtherType) != ether_type(packet)) {
      return Opened::drop(k_rx_drop_malformed);
    }
    const std::span<uint8_t> inner = frame.subspan(kHeaderBytes);
    return Opened::packet(inner, undone(inner.data(), packet, message.joined_bytes));
  }

 private:
  static constexpr size_t kMacBytes = 6, kVniBytes = 3;
  static constexpr uint8_t kHasVni = 8;
  static constexpr uint16_t kIpv4Type = 0x0800, kIpv6Type = 0x86dd;
  /// The minimum MTU of an IPv6 link in bytes (RFC 8200 section 5).
  static constexpr size_t kLeastMtu = 1280;
  static constexpr size_t kVni = 4, kDestination = 8, kSource = 14, kEtherType = 20;

  static uint16_t ether_type(const Packet& packet) { return packet.version == 4 ? kIpv4Type : kIpv6Type; }

  /// True if the frame is valid for this host. Of the VXLAN flags only the one that marks the VNI as valid is checked,
  /// because receivers must ignore all other flags (RFC 7348 section 5).
  bool is_ours(const uint8_t* bytes) const {
    const uint16_t type = load_be16(bytes + kEtherType);
    return (bytes[0] & kHasVni) && std::memcmp(bytes + kVni, vxlan_ + kVni, kVniBytes) == 0 &&
           std::memcmp(bytes + kDestination, own_mac_, kMacBytes) == 0 && (type == kIpv4Type || type == kIpv6Type);
  }

  static bool read_inner(std::span<uint8_t> frame, Packet& packet) {
    return frame.size() > kHeaderBytes && read_packet(frame.data() + kHeaderBytes, frame.size() - kHeaderBytes, packet);
  }

  /// True if the message is a single packet, although the kernel reports several merged datagrams.
  static bool is_one(const Message& message) {
    Packet packet;
    return message.joined_bytes > 0 && message.joined_bytes < message.size &&
           read_inner({message.bytes, message.size}, packet) && kHeaderBytes + packet.total == message.size;
  }

  /// Returns a virtio header that names the work which the sender's kernel left undone: computing the checksum, and
  /// perhaps segmenting. The value of the checksum field shows whether the checksum is incomplete. A complete checksum
  /// that happens to look incomplete has the same value after it is computed again.
  VirtioHeader undone(const uint8_t* bytes, const Packet& packet, size_t segment_bytes) const {
    const bool tcp = packet.protocol == IPPROTO_TCP;
    const size_t least = packet.ip_bytes + (tcp ? kTcpHeaderBytes : kUdpHeaderBytes);
    if ((!tcp && packet.protocol != IPPROTO_UDP) || packet.fragment || packet.total < least) return {};
    const size_t offset = tcp ? kTcpChecksum : kUdpChecksum;
    const uint64_t sum = pseudo_header_sum(source_address(bytes, packet), 2 * address_bytes(packet), packet.protocol,
                                           packet.total - packet.ip_bytes);
    if (load<uint16_t>(bytes + packet.ip_bytes + offset) != checksum_fold(sum)) return {};

    VirtioHeader virtio = open_sum(packet);
    const size_t transport_bytes = tcp ? static_cast<size_t>(bytes[packet.ip_bytes + 12] >> 4) * 4 : kUdpHeaderBytes;
    const size_t headers = packet.ip_bytes + transport_bytes;
    if (packet.total <= headers || headers - packet.ip_bytes < (tcp ? kTcpHeaderBytes : kUdpHeaderBytes)) return virtio;
    const size_t link = std::min(mtu_, kLeastMtu);
    if (tcp && packet.total > mtu_ && link > headers) {
      virtio.gso_type = packet.version == 4 ? kGsoTcp4 : kGsoTcp6;
      if (bytes[packet.ip_bytes + 13] & kCwr) virtio.gso_type |= kGsoEcn;
      virtio.gso_size = static_cast<uint16_t>(link - headers);
    } else if (!tcp && segment_bytes > 0 && segment_bytes < packet.total - headers) {
      virtio.gso_type = kGsoUdp;
      virtio.gso_size = static_cast<uint16_t>(segment_bytes);
    }
    virtio.hdr_len = static_cast<uint16_t>(headers);
    return virtio;
  }

  size_t mtu_;
  uint8_t own_mac_[kMacBytes];
  uint8_t vxlan_[8] = {kHasVni};
};
static_assert(Encapsulation<Vxlan>);

}  // namespace weft
