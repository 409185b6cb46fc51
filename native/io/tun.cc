// tun.cc - TUNSETIFF and TUNSETOFFLOAD.
#include "tun.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <cstring>

#include "linux_compat.h"

namespace weft {

namespace {

/// Asks for the offloads in `wanted`, fewer and fewer until the kernel agrees. What a kernel knows is found out by
/// asking: versions tell nothing about vendor kernels. TSO needs CSUM; USO4 and USO6 go together or not at all.
uint32_t negotiate_offloads(int fd, uint32_t wanted) {
  if (!(wanted & kTunCsum)) return 0;
  const auto accepts = [fd](uint32_t features) {
    unsigned long flags = TUN_F_CSUM;
    if (features & kTunTso) flags |= TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    if (features & kTunUso) flags |= TUN_F_USO4 | TUN_F_USO6;
    return ioctl(fd, TUNSETOFFLOAD, flags) == 0;
  };
  for (const uint32_t without : {0u, kTunUso | 0u, kTunTso | 0u, kTunTso | kTunUso}) {
    const uint32_t features = wanted & (kTunCsum | kTunTso | kTunUso) & ~without;
    if (accepts(features)) return features;
  }
  return 0;
}

}  // namespace

Failure open_tun(const std::string& name, bool multi_queue, uint32_t wanted, Tun& tun) {
  Fd fd(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return SystemError{"open /dev/net/tun", errno};
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  // TUNSETOFFLOAD succeeds without IFF_VNET_HDR too and would then leave us packets without checksums and no way to
  // tell: offloads are asked for with the header only.
  const bool header = wanted & kTunHeader;
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (header) request.ifr_flags |= IFF_VNET_HDR;
  if (multi_queue) request.ifr_flags |= IFF_MULTI_QUEUE;
  if (ioctl(fd.get(), TUNSETIFF, &request) < 0) {
    return SystemError{"ioctl TUNSETIFF", errno};
  }
  tun.features = header ? kTunHeader | negotiate_offloads(fd.get(), wanted) : 0;
  tun.name = request.ifr_name;
  tun.fd = std::move(fd);
  return {};
}

Failure set_persistent(int tun, bool persistent) {
  if (ioctl(tun, TUNSETPERSIST, static_cast<unsigned long>(persistent)) < 0) {
    return SystemError{"ioctl TUNSETPERSIST", errno};
  }
  return {};
}

}  // namespace weft
