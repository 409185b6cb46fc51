// packets.h - builds packets and peer records for the native tests. It computes checksums independently of native/.
#pragma once

#include <algorithm>
#include <vector>

#include "../../native/core/filter.h"
#include "../../native/core/packet.h"
#include "../../native/core/peers.h"
#include "../../native/io/udp.h"
#include "checks.h"

using namespace weft;
using Bytes = std::vector<uint8_t>;

struct Fields {
  bool v6 = false;
  bool tcp = true;
  uint8_t tos = 0, ttl = 60;
  uint16_t id = 100, fragment = 0x4000;
  uint32_t source = 0x0a050102, destination = 0x0a050202;
  uint16_t source_port = 1111, destination_port = 2222;
  uint32_t sequence = 1000, acknowledgement = 7;
  uint8_t flags = kAck;
  uint16_t window = 500, urgent = 0;
  Bytes ip_options, tcp_options;
  bool udp_checksum = true;
  size_t payload = 100;
  uint8_t fill = 0;
};

inline uint64_t reference_sum(const uint8_t* bytes, size_t size, uint64_t sum = 0) {
  for (size_t i = 0; i + 1 < size; i += 2) sum += static_cast<uint64_t>(bytes[i] << 8 | bytes[i + 1]);
  if (size % 2) sum += static_cast<uint64_t>(bytes[size - 1] << 8);
  return sum;
}
inline uint16_t reference_fold(uint64_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

/// Returns the sum over pseudo-header and transport layer, computed by definition: 0xffff if the checksum field is
/// right.
inline uint16_t transport_sum(const Bytes& packet) {
  const bool v6 = packet[0] >> 4 == 6;
  const size_t ip = v6 ? 40 : (packet[0] & 15) * 4u;
  const size_t size = packet.size() - ip;
  uint64_t sum = reference_sum(packet.data() + (v6 ? 8 : 12), v6 ? 32 : 8);
  sum += (v6 ? packet[6] : packet[9]) + size;
  return reference_fold(reference_sum(packet.data() + ip, size, sum));
}

inline Bytes build(const Fields& f) {
  const size_t ip = f.v6 ? 40 : 20 + f.ip_options.size();
  const size_t transport = f.tcp ? 20 + f.tcp_options.size() : 8;
  Bytes p(ip + transport + f.payload);
  uint8_t* t = p.data() + ip;
  if (f.v6) {
    p[0] = static_cast<uint8_t>(0x60 | f.tos >> 4);
    p[1] = static_cast<uint8_t>(f.tos << 4);
    store_be16(&p[4], static_cast<uint16_t>(p.size() - 40));
    p[6] = f.tcp ? IPPROTO_TCP : IPPROTO_UDP;
    p[7] = f.ttl;
    p[8] = p[24] = 0xfd;
    store_be32(&p[20], f.source);
    store_be32(&p[36], f.destination);
  } else {
    p[0] = static_cast<uint8_t>(0x40 | ip / 4);
    p[1] = f.tos;
    store_be16(&p[2], static_cast<uint16_t>(p.size()));
    store_be16(&p[4], f.id);
    store_be16(&p[6], f.fragment);
    p[8] = f.ttl;
    p[9] = f.tcp ? IPPROTO_TCP : IPPROTO_UDP;
    store_be32(&p[12], f.source);
    store_be32(&p[16], f.destination);
    std::copy(f.ip_options.begin(), f.ip_options.end(), p.begin() + 20);
    store_be16(&p[10], static_cast<uint16_t>(~reference_fold(reference_sum(p.data(), ip))));
  }
  store_be16(t, f.source_port);
  store_be16(t + 2, f.destination_port);
  for (size_t i = 0; i < f.payload; i++) t[transport + i] = static_cast<uint8_t>(f.fill + i * 7 + f.sequence);
  if (f.tcp) {
    store_be32(t + 4, f.sequence);
    store_be32(t + 8, f.acknowledgement);
    t[12] = static_cast<uint8_t>(transport / 4 << 4);
    t[13] = f.flags;
    store_be16(t + 14, f.window);
    store_be16(t + 18, f.urgent);
    std::copy(f.tcp_options.begin(), f.tcp_options.end(), t + 20);
    store_be16(t + 16, static_cast<uint16_t>(~transport_sum(p)));
  } else {
    store_be16(t + 4, static_cast<uint16_t>(8 + f.payload));
    if (f.udp_checksum) {
      const uint16_t sum = static_cast<uint16_t>(~transport_sum(p));
      store_be16(t + 6, sum ? sum : 0xffff);
    }
  }
  return p;
}

inline Packet read(Bytes& bytes) {
  Packet packet;
  CHECK(read_packet(bytes.data(), bytes.size(), packet));
  return packet;
}

/// Returns the record of a peer with the given subnet. `host` is the IPv4 address of its host in host order.
inline Bytes record(uint8_t version, uint8_t bits, const Bytes& subnet, uint32_t host) {
  PeerRecord r{};
  r.subnet_family = version;
  r.prefix_length = bits;
  r.outer = 4;
  store_be16(r.port, 8285);
  std::copy(subnet.begin(), subnet.end(), r.subnet);
  store_be32(r.ipv4, host);
  Bytes bytes(sizeof r);
  store(bytes.data(), r);
  return bytes;
}
/// Changes a record: its host has only this IPv6 address.
inline void move_to_ipv6(Bytes& record, const Address& host) {
  record[offsetof(PeerRecord, outer)] = 6;
  store(&record[offsetof(PeerRecord, ipv6)], host);
  store_be32(&record[offsetof(PeerRecord, ipv4)], 0);
}
inline Endpoint endpoint_at(const SocketAddress& to) {
  Endpoint endpoint{};
  endpoint.outer = to.family() == AF_INET ? 4 : 6;
  endpoint.hosts.of(endpoint.outer) = to;
  return endpoint;
}
/// Returns the sockets of a path that uses one IP family.
inline ByFamily<Sockets> sockets_of(uint8_t version, int receiver, int sender) {
  ByFamily<Sockets> sockets;
  sockets.of(version) = {.receiver = receiver, .sender = sender, .known = receiver};
  return sockets;
}
inline Address ipv4(uint32_t host_order) { return Address::v4(to_be32(host_order)); }
/// Returns an IPv6 address as build() makes it from an IPv4 address: fd00:: with this number at its end.
inline Address ipv6(uint32_t host_order) {
  uint8_t bytes[16] = {0xfd};
  store_be32(bytes + 12, host_order);
  return Address::v6(bytes);
}
/// Returns filter options with the network 10.5.0.0/16, the subnet 10.5.1.0/24, and similar IPv6 networks.
inline FilterOptions options_of(VerifySource verify) {
  const auto of = [](uint32_t address, size_t bits) {
    return ByFamily<Net>{Net::of(ipv4(address), bits), Net::of(ipv6(address), 96 + bits)};
  };
  return {verify, of(0x0a050000, 16), of(0x0a050100, 24)};
}
