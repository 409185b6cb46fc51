// forge.cc - sends datagrams as fast as possible, possibly with a forged source, for tests of the filter.
//
// Usage: forge ADDRESS PORT COUNT [FROM [AS]]
//
// Standard input has one datagram per line, in hex. The program sends them repeatedly in this order until it has sent
// COUNT datagrams, and prints how many the kernel accepted. Port 0 sends IPv4 ICMP messages. FROM is the source port.
// AS is a source address of the same IP family, which may be forged.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace {

/// An IPv4 or IPv6 address with a port.
struct Place {
  bool parse(const char* text, int port) {
    const auto number = htons(static_cast<uint16_t>(port));
    if (inet_pton(AF_INET, text, &ipv4.sin_addr) == 1) {
      ipv4.sin_family = AF_INET;
      ipv4.sin_port = number;
      return true;
    }
    if (inet_pton(AF_INET6, text, &ipv6.sin6_addr) != 1) return false;
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = number;
    return true;
  }
  int family() const { return any.sa_family; }
  socklen_t size() const { return family() == AF_INET ? sizeof ipv4 : sizeof ipv6; }
  union {
    sockaddr_in6 ipv6{};
    sockaddr_in ipv4;
    sockaddr any;
  };
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  Place to, from;
  const int port = std::atoi(argv[2]);
  if (!to.parse(argv[1], port)) return 2;
  const size_t count = std::strtoul(argv[3], nullptr, 10);
  const bool icmp = port == 0;
  const int fd = socket(to.family(), (icmp ? SOCK_RAW : SOCK_DGRAM) | SOCK_CLOEXEC, icmp ? IPPROTO_ICMP : 0);
  if (fd < 0) return 2;

  if (argc > 4) {
    const bool is_ipv4 = to.family() == AF_INET;
    const int on = 1, level = is_ipv4 ? IPPROTO_IP : IPPROTO_IPV6, option = is_ipv4 ? IP_TRANSPARENT : IPV6_TRANSPARENT;
    if (argc > 5 && setsockopt(fd, level, option, &on, sizeof on) < 0) return 2;
    if (!from.parse(argc > 5 ? argv[5] : is_ipv4 ? "0.0.0.0" : "::", std::atoi(argv[4]))) return 2;
    if (bind(fd, &from.any, from.size()) < 0) return 2;
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
      messages[i].msg_hdr = {&to.any, to.size(), &pieces[(sent + i) % pieces.size()], 1, nullptr, 0, 0};
    }
    const int result = sendmmsg(fd, messages, static_cast<unsigned>(batch), 0);
    taken += result > 0 ? static_cast<size_t>(result) : 0;
    // If the kernel refused the first datagram, it counts as sent and is not repeated.
    sent += result > 0 ? static_cast<size_t>(result) : 1;
  }
  std::printf("%zu\n", taken);
}
