// virtio.h - the header before every packet that is read from or written to a TUN opened with IFF_VNET_HDR.
//
// weft has its own definitions, because <linux/virtio_net.h> of Linux 6.1 does not compile as C++ and lacks the UDP
// type (virtio 1.2 section 5.1.6, Linux 6.2). Fields are in host byte order, because weft does not use TUNSETVNETLE and
// TUNSETVNETBE.
#pragma once

#include <cstdint>

namespace weft {

struct VirtioHeader {
  uint8_t flags = 0;
  uint8_t gso_type = 0;
  uint16_t hdr_len = 0;  ///< the length of the headers: only a hint, which must not be trusted in packets from the TUN
  uint16_t gso_size = 0;
  uint16_t csum_start = 0;
  uint16_t csum_offset = 0;
};
static_assert(sizeof(VirtioHeader) == 10);

constexpr uint8_t kVirtioNeedsCsum = 1;  ///< the checksum field contains only the pseudo-header's sum

constexpr uint8_t kGsoNone = 0;
constexpr uint8_t kGsoTcp4 = 1;
constexpr uint8_t kGsoTcp6 = 4;
constexpr uint8_t kGsoUdp = 5;  ///< UDP segmentation offload (USO). Type 3 is the older UFO, which weft never requests.
constexpr uint8_t kGsoEcn = 0x80;  ///< with a TCP type: CWR is set only on the first segment

}  // namespace weft
