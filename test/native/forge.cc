// forge.cc - sends datagrams as fast as it can, for tests of who is let in.
//
//   forge ADDRESS PORT COUNT [FROM]   the datagrams on stdin, a line of hex each, in turn, until COUNT were sent;
//   prints
//                                     how many the kernel took. To port 0: ICMP messages. FROM: the port they leave by
#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(argv[2])));
  const size_t count = std::strtoul(argv[3], nullptr, 10);
  const bool icmp = to.sin_port == 0;
  const int fd = socket(AF_INET, (icmp ? SOCK_RAW : SOCK_DGRAM) | SOCK_CLOEXEC, icmp ? IPPROTO_ICMP : 0);
  if (fd < 0 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) return 2;

  if (argc > 4) {
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_port = htons(static_cast<uint16_t>(std::atoi(argv[4])));
    if (bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) < 0) return 2;
  }

  std::vector<std::string> datagrams;
  for (std::string line; std::getline(std::cin, line);) {
    std::string bytes;
    for (size_t at = 0; at + 1 < line.size(); at += 2) {
      bytes.push_back(static_cast<char>(std::stoi(line.substr(at, 2), nullptr, 16)));
    }
    datagrams.push_back(bytes);
  }
  if (datagrams.empty()) return 2;

  constexpr size_t kBatch = 64;
  std::vector<iovec> pieces;
  for (std::string& datagram : datagrams) pieces.push_back({datagram.data(), datagram.size()});
  mmsghdr messages[kBatch] = {};
  size_t sent = 0, taken = 0;
  while (sent < count) {
    const size_t batch = std::min(kBatch, count - sent);
    for (size_t i = 0; i < batch; i++) {
      messages[i].msg_hdr = {&to, sizeof to, &pieces[(sent + i) % pieces.size()], 1, nullptr, 0, 0};
    }
    const int result = sendmmsg(fd, messages, static_cast<unsigned>(batch), 0);
    taken += result > 0 ? static_cast<size_t>(result) : 0;
    sent += result > 0 ? static_cast<size_t>(result) : 1;  // the first is what was refused
  }
  std::printf("%zu\n", taken);
}
