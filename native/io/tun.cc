// tun.cc - opens a TUN with TUNSETIFF, requests offloads with TUNSETOFFLOAD, and reads the device's name and switches
// with ioctls.
#include "tun.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "linux_compat.h"

namespace weft {

namespace {

/// Requests the offloads in `wanted`, then smaller sets until the kernel accepts a set. The kernel's version number
/// does not show which offloads it supports, because vendors backport offloads. TSO needs CSUM; USO4 and USO6 need each
/// other. Requests even an empty set, because a persistent TUN keeps the offloads of the process that had it open
/// before.
uint32_t negotiate_offloads(int fd, uint32_t wanted) {
  const auto accepts = [fd](uint32_t features) {
    unsigned long flags = 0;
    if (features & kTunCsum) flags |= TUN_F_CSUM;
    if (features & kTunTso) flags |= TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    if (features & kTunUso) flags |= TUN_F_USO4 | TUN_F_USO6;
    return ioctl(fd, TUNSETOFFLOAD, flags) == 0;
  };
  if (wanted & kTunCsum) {
    for (const uint32_t without : {0u, kTunUso | 0u, kTunTso | 0u, kTunTso | kTunUso}) {
      const uint32_t features = wanted & (kTunCsum | kTunTso | kTunUso) & ~without;
      if (accepts(features)) return features;
    }
  }
  accepts(0);
  return 0;
}

/// A query to a device with SIOCETHTOOL: a command, followed by space for `count` elements of the answer.
template <typename Command, typename Element>
class Question {
 public:
  Question(uint32_t command, size_t count) : room_(sizeof(Command) + count * sizeof(Element)) {
    std::memcpy(room_.data(), &command, sizeof command);
  }
  Command& head() { return *reinterpret_cast<Command*>(room_.data()); }
  const Element* elements() const { return reinterpret_cast<const Element*>(room_.data() + sizeof(Command)); }
  bool ask(int socket, const std::string& device) {
    ifreq request{};
    device.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(room_.data());
    return ioctl(socket, SIOCETHTOOL, &request) == 0;
  }

 private:
  std::vector<uint8_t> room_;
};

}  // namespace

JoinSwitches join_switches(const std::string& device) {
  struct Name {
    char text[ETH_GSTRING_LEN];
  };
  JoinSwitches switches;
  const Fd socket_fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // The number of an ethtool feature differs between kernel versions, so find the number by the name of the feature.
  Question<ethtool_sset_info, uint32_t> size(ETHTOOL_GSSET_INFO, 1);
  size.head().sset_mask = uint64_t{1} << ETH_SS_FEATURES;
  if (!socket_fd || !size.ask(socket_fd.get(), device) || size.head().sset_mask == 0) return switches;
  const uint32_t count = size.elements()[0];
  Question<ethtool_gstrings, Name> names(ETHTOOL_GSTRINGS, count);
  names.head().string_set = ETH_SS_FEATURES;
  names.head().len = count;
  const uint32_t words = (count + 31) / 32;
  Question<ethtool_gfeatures, ethtool_get_features_block> states(ETHTOOL_GFEATURES, words);
  states.head().size = words;
  if (!names.ask(socket_fd.get(), device) || !states.ask(socket_fd.get(), device)) return switches;
  const auto is_on = [&](std::string_view name) -> std::optional<bool> {
    for (uint32_t at = 0; at < count; at++) {
      const char* text = names.elements()[at].text;
      if (std::string_view(text, strnlen(text, ETH_GSTRING_LEN)) == name)
        return (states.elements()[at / 32].active >> at % 32 & 1) != 0;
    }
    return {};
  };
  switches.tcp = is_on("rx-gro").value_or(true);
  switches.udp = switches.tcp && is_on("rx-udp-gro-forwarding").value_or(false);
  return switches;
}

Failure open_tun(const std::string& name, bool multi_queue, uint32_t wanted, Tun& tun) {
  Fd fd(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return SystemError{"open /dev/net/tun", errno};
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  // Request offloads only together with the virtio header. TUNSETOFFLOAD also succeeds without IFF_VNET_HDR, but then
  // weft could not recognise the packets without a checksum.
  const bool header = wanted & kTunHeader;
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (header) request.ifr_flags |= IFF_VNET_HDR;
  if (multi_queue) request.ifr_flags |= IFF_MULTI_QUEUE;
  if (ioctl(fd.get(), TUNSETIFF, &request) < 0) {
    return SystemError{"ioctl TUNSETIFF", errno};
  }
  tun.features = negotiate_offloads(fd.get(), header ? wanted : 0);
  if (header) tun.features |= kTunHeader;
  tun.name = request.ifr_name;
  tun.fd = std::move(fd);
  return {};
}

std::string tun_name(int tun) {
  ifreq request{};
  return ioctl(tun, TUNGETIFF, &request) < 0 ? std::string() : std::string(request.ifr_name);
}

Failure set_persistent(int tun, bool persistent) {
  if (ioctl(tun, TUNSETPERSIST, static_cast<unsigned long>(persistent)) < 0) {
    return SystemError{"ioctl TUNSETPERSIST", errno};
  }
  return {};
}

}  // namespace weft
