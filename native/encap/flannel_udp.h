// flannel_udp.h - flannel's udp backend: the payload of a datagram is the inner packet, without a header
// (pkg/backend/udp/proxy_amd64.c).
#pragma once

#include <string_view>

#include "../core/encapsulation.h"

namespace weft {

struct FlannelUdp {
  static constexpr std::string_view kName = "udp";
  static constexpr size_t kHeaderBytes = 0;
  static constexpr size_t kTrailerBytes = 0;
  static constexpr bool kRoutes = true;
  static constexpr bool kCopiesEcn = false;
  explicit FlannelUdp(const OwnEnd&) {}
  Sealed seal(const Endpoint&, const Packet&, std::span<uint8_t>, std::span<uint8_t>) const {
    return Sealed::datagram();
  }
  Opened open(Message& message) const { return Opened::packet(message.take()); }
};
static_assert(Encapsulation<FlannelUdp>);

}  // namespace weft
