// core_steady.cc - counts memory allocations and locks while egress and ingress carry 100,000 packets each: there must
// be none. core.test.ts builds and runs it.
//
// malloc and pthread_mutex_lock are replaced for the whole program. Unix message sockets replace the TUN and the UDP
// socket.
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>

#include "../../native/core/checksum.h"
#include "../../native/encap/flannel_udp.h"
#include "../../native/walk/egress.h"
#include "../../native/walk/ingress.h"

static bool counting = false;
static size_t allocations = 0, locks = 0;
static bool has_memory = true;

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* malloc(size_t size) {
  allocations += counting;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  allocations += counting;
  return has_memory ? __libc_calloc(count, size) : nullptr;
}
void* realloc(void* old, size_t size) {
  allocations += counting;
  return __libc_realloc(old, size);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static const auto real = reinterpret_cast<int (*)(pthread_mutex_t*)>(&pthread_mutex_trylock);
  locks += counting;
  while (real(mutex) == EBUSY) {
  }
  return 0;
}
}

using namespace weft;

namespace {

constexpr size_t kPackets = 100'000;
constexpr size_t kPayload = 1400, kSegments = 44, kHeaders = 40;

int message_pair(int fds[2]) { return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds); }

/// Writes IPv4 and TCP headers with correct checksums before a payload of zeroes.
void write_headers(uint8_t* packet, size_t payload, uint32_t sequence) {
  const uint8_t headers[kHeaders] = {0x45, 0, 0, 0, 0, 1,  0x40, 0, 64, IPPROTO_TCP, 0, 0, 10, 5, 1,    2,    10, 5,
                                     2,    2, 4, 0, 0, 80, 0,    0, 0,  0,           0, 0, 0,  7, 0x50, kAck, 1,  0};
  std::memcpy(packet, headers, sizeof headers);
  store_be16(packet + 2, static_cast<uint16_t>(kHeaders + payload));
  store_be32(packet + 24, sequence);
  store(packet + 10, ipv4_header_checksum(packet, kIpv4HeaderBytes));
  const uint64_t sum = pseudo_header_sum(packet + 12, 8, IPPROTO_TCP, static_cast<uint32_t>(20 + payload));
  store(packet + 36, static_cast<uint16_t>(~checksum_fold(checksum_add(sum, packet + 20, 20 + payload))));
}

size_t drain(int fd) {
  static uint8_t buffer[1 << 17];
  size_t count = 0;
  while (recv(fd, buffer, sizeof buffer, 0) > 0) count++;
  return count;
}

}  // namespace

int main() {
  int tun[2], udp[2];
  if (message_pair(tun) < 0 || message_pair(udp) < 0) return 2;
  for (const int fd : {tun[0], tun[1], udp[0], udp[1]}) {
    const int bytes = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
  }
  Features features(kAllFeatures & ~kUdpGso);  // a Unix socket does not support UDP_SEGMENT
  PeerTables peers(2);
  std::vector<uint8_t> record(sizeof(PeerRecord));
  record[0] = 4;
  record[2] = 6;
  peers.set(record);
  std::vector<uint64_t> row(kCounterCount);
  UnknownSenders unknown_senders;
  TrafficRows traffic;
  Drops tx_drops(CounterRow(row.data()), monotonic_us), rx_drops(CounterRow(row.data()), monotonic_us);
  IcmpLimits icmp{1};
  // A Unix socket has no address, so the filter cannot compare the sender with the peer's address.
  const FilterOptions filter{VerifySource::kInner,
                             {.ipv4 = Net::of(Address::v4(to_be32(0x0a050000)), 16)},
                             {.ipv4 = Net::of(Address::v4(to_be32(0x0a050200)), 24)}};
  const Path path{.tun = tun[0],
                  .sockets = {.ipv6 = {udp[0], udp[0], udp[0]}},
                  .tun_address = {Address::v4(1), {}},
                  .network_address = {Address::v4(2), {}},
                  .features = &features,
                  .counters = CounterRow(row.data()),
                  .traffic = &traffic,
                  .tx_drops = &tx_drops,
                  .rx_drops = &rx_drops,
                  .filter = filter,
                  .unknown_senders = &unknown_senders,
                  .icmp = &icmp};
  Egress<FlannelUdp> egress(path, peers.reader(0), FlannelUdp(OwnEnd{}));
  Ingress<FlannelUdp> ingress(path, 6, peers.reader(1), FlannelUdp(OwnEnd{}));

  std::vector<uint8_t> superpacket(sizeof(VirtioHeader) + kHeaders + kSegments * kPayload);
  VirtioHeader virtio;
  virtio.flags = kVirtioNeedsCsum;
  virtio.gso_type = kGsoTcp4;
  virtio.gso_size = kPayload;
  virtio.csum_start = 20;
  virtio.csum_offset = 16;
  std::memcpy(superpacket.data(), &virtio, sizeof virtio);
  std::vector<uint8_t> datagram(kHeaders + kPayload);

  counting = true;
  uint32_t sequence = 0;
  while (row[k_tx_packets] < kPackets) {
    write_headers(superpacket.data() + sizeof virtio, kSegments * kPayload, sequence);
    if (send(tun[1], superpacket.data(), superpacket.size(), 0) < 0 || egress.pump().failure) return 2;
    drain(udp[1]);
  }
  while (row[k_rx_packets] < kPackets) {
    for (int i = 0; i < 16; i++, sequence += kPayload) {
      write_headers(datagram.data(), kPayload, sequence);
      if (i == 15) {
        datagram[14] = 2;  // the inner source is in this node's own subnet, so the packet is dropped
        store(datagram.data() + 10, ipv4_header_checksum(datagram.data(), kIpv4HeaderBytes));
      }
      if (send(udp[1], datagram.data(), datagram.size(), 0) < 0) return 2;
    }
    if (ingress.pump().failure) return 2;
    drain(tun[1]);
  }
  counting = false;
  if (row[k_rx_drop_spoofed_source] == 0) std::printf("nothing was dropped\n");
  // True if most packets were joined, as on a busy machine.
  const bool joined = row[k_tun_writes] * 10 < row[k_rx_packets];
  std::printf("%zu allocations, %zu locks%s\n", allocations, locks, joined ? "" : ", nothing joined");
  void* one = malloc(1);
  counting = true;
  free(malloc(1));
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  counting = false;
  free(one);
  if (allocations == 0 || locks == 0) std::printf("the counters count nothing\n");

  // If calloc has no memory, a peer's traffic is not counted, and the counts of other peers do not change.
  constexpr uint32_t kFar = 9'000;
  TrafficRows short_of_memory;
  has_memory = false;
  short_of_memory.make_room(kFar + 1);
  TrafficRows without;
  has_memory = true;
  for (TrafficRows* rows : {&short_of_memory, &without}) {
    rows->add_sent(kFar, 1, 100);
    rows->add_received(kFar, 1, 100, 1);
  }
  without.add_sent(0, 1, 100);
  short_of_memory.add_sent(1, 1, 100);
  Traffic of_far, of_first;
  for (const TrafficRows* rows : {&short_of_memory, &without}) rows->sum(kFar, of_far);
  short_of_memory.sum(1, of_first);
  if (of_far.tx_packets != 0 || of_far.last_received_ms != 0 || of_first.tx_packets != 1)
    std::printf("traffic is miscounted\n");
  // When there is memory again, the next peer table makes the slots usable.
  short_of_memory.make_room(kFar + 1);
  short_of_memory.add_sent(kFar, 1, 100);
  short_of_memory.sum(kFar, of_far);
  if (of_far.tx_packets != 1) std::printf("traffic is not counted again\n");
  return 0;
}
