// naive.cc - a simple tunnel that moves one packet with each system call, as flanneld's udp backend does (run_proxy in
// pkg/backend/udp/proxy_amd64.c). The benchmark compares the native engine with this tunnel.
//
// `naive LOCAL REMOTE` takes two IPv4 addresses. It makes the TUN naive0, prints `ready`, and carries the TUN's packets
// in UDP datagrams to and from REMOTE. One thread alternates between the two directions, one packet each, and polls if
// there are no packets. The thread checks the header of each packet and decrements the packet's TTL. It uses no
// offloads, and does not check the source of packets.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

constexpr uint16_t kPort = 8285;
constexpr ssize_t kIpv4HeaderBytes = 20;

[[noreturn]] void fail(const char* what) {
  perror(what);
  exit(1);
}

sockaddr_in endpoint(const char* address) {
  sockaddr_in made{};
  made.sin_family = AF_INET;
  made.sin_port = htons(kPort);
  if (inet_pton(AF_INET, address, &made.sin_addr) != 1) {
    fprintf(stderr, "naive: %s is no IPv4 address\n", address);
    exit(2);
  }
  return made;
}

int open_tun() {
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tun < 0) fail("/dev/net/tun");
  ifreq request{};
  strcpy(request.ifr_name, "naive0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(tun, TUNSETIFF, &request) < 0) fail("TUNSETIFF");
  return tun;
}

/// Returns the ones' complement sum over an IPv4 header, which is 0xffff if the header's checksum is right.
uint32_t header_sum(const uint8_t* header, ssize_t bytes) {
  uint32_t sum = 0;
  for (ssize_t i = 0; i < bytes; i += 2) sum += static_cast<uint32_t>(header[i] << 8 | header[i + 1]);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

/// Checks an IPv4 header and decrements its TTL. Returns false if the packet must be dropped.
bool forward(uint8_t* packet, ssize_t bytes) {
  if (bytes < kIpv4HeaderBytes || packet[0] >> 4 != 4) return false;
  const ssize_t header_bytes = (packet[0] & 0xf) * 4;
  if (header_bytes < kIpv4HeaderBytes || header_bytes > bytes || header_sum(packet, header_bytes) != 0xffff)
    return false;
  if (packet[8] <= 1) return false;
  packet[8]--;
  // The TTL is the high byte of its 16-bit word. So decrementing it by 1 adds 0x100 to the checksum (RFC 1624).
  uint32_t checksum = static_cast<uint32_t>(packet[10] << 8 | packet[11]) + 0x100;
  checksum = (checksum & 0xffff) + (checksum >> 16);
  packet[10] = static_cast<uint8_t>(checksum >> 8);
  packet[11] = static_cast<uint8_t>(checksum);
  return true;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    fprintf(stderr, "usage: naive LOCAL REMOTE\n");
    return 2;
  }
  const sockaddr_in local = endpoint(words[1]);
  const sockaddr_in remote = endpoint(words[2]);
  const int tun = open_tun();
  const int udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (udp < 0) fail("socket");
  if (bind(udp, reinterpret_cast<const sockaddr*>(&local), sizeof local) < 0) fail("bind");
  puts("ready");
  fflush(stdout);

  static uint8_t packet[65536];
  pollfd waits[2] = {{tun, POLLIN, 0}, {udp, POLLIN, 0}};
  for (;;) {
    if (poll(waits, 2, -1) < 0 && errno != EINTR) fail("poll");
    for (bool moved = true; moved;) {
      moved = false;
      ssize_t bytes = read(tun, packet, sizeof packet);
      if (bytes > 0) {
        moved = true;
        if (forward(packet, bytes))
          sendto(udp, packet, static_cast<size_t>(bytes), 0, reinterpret_cast<const sockaddr*>(&remote), sizeof remote);
      }
      bytes = recv(udp, packet, sizeof packet, 0);
      if (bytes > 0) {
        moved = true;
        // A packet is lost if its write to the TUN fails.
        if (forward(packet, bytes) && write(tun, packet, static_cast<size_t>(bytes)) < 0) continue;
      }
    }
  }
}
