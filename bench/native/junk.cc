// junk.cc - acts as a host that is not in the cluster: sends packets that weftd drops, at an even rate, until it is
// killed.
//
// `junk ADDRESS PORT RATE FROM LANES` sends RATE datagrams a second in small bursts, from the source ports FROM to FROM
// + LANES - 1 in turn. Each datagram contains an IPv4 packet from 10.5.0.9, which no node has, to 10.5.0.1.
#include <arpa/inet.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../../native/core/checksum.h"
#include "../../native/io/system.h"

int main(int argc, char** argv) {
  using namespace weft;
  constexpr int64_t kBatch = 16;
  if (argc != 6) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(argv[2])));
  const long rate = std::atol(argv[3]), lanes = std::atol(argv[5]);
  if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1 || rate < 1 || lanes < 1) return 2;
  std::vector<Fd> sockets;
  for (long lane = 0; lane < lanes; lane++) {
    Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_port = htons(static_cast<uint16_t>(std::atol(argv[4]) + lane));
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from) < 0) {
      std::perror("junk: bind");
      return 1;
    }
    sockets.push_back(std::move(fd));
  }
  uint8_t packet[58] = {0x45, 0, 0, sizeof packet, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 5, 0, 9, 10, 5, 0, 1};
  store(packet + 10, ipv4_header_checksum(packet, 20));

  iovec bytes{packet, sizeof packet};
  mmsghdr messages[kBatch]{};
  for (mmsghdr& each : messages) {
    each.msg_hdr.msg_name = &to;
    each.msg_hdr.msg_namelen = sizeof to;
    each.msg_hdr.msg_iov = &bytes;
    each.msg_hdr.msg_iovlen = 1;
  }

  constexpr int64_t kTickNs = 50'000;  // the interval between two bursts, as in traffic.cc
  timespec start;
  clock_gettime(CLOCK_MONOTONIC, &start);
  int64_t sent = 0, batch = 0;
  for (int64_t tick = 1;; tick++) {
    const int64_t ns = tick * kTickNs;
    const int64_t due = static_cast<int64_t>(static_cast<double>(rate) * static_cast<double>(ns) / 1e9);
    while (sent < due) {
      const int fd = sockets[static_cast<size_t>(batch++ % lanes)].get();
      const auto count = static_cast<unsigned>(std::min<int64_t>(due - sent, kBatch));
      sendmmsg(fd, messages, count, MSG_DONTWAIT);
      sent += count;  // Datagrams that this kernel rejected count as sent, like datagrams that the network loses.
    }
    const int64_t at = start.tv_nsec + ns;
    const timespec next{start.tv_sec + static_cast<time_t>(at / 1'000'000'000), static_cast<long>(at % 1'000'000'000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, nullptr) == EINTR) {
    }
  }
}
