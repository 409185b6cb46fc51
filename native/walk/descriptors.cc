// descriptors.cc - opens the sockets and the TUN queues of all loop threads, and determines the features that all of
// them have.
#include "descriptors.h"

#include <algorithm>

#include "../io/tun.h"

namespace weft {

Failure open_sockets(const OpenOptions& options, LoopSockets& result) {
  const bool several = options.workers > 1;
  const int asked_bytes = std::max(kReceiveBufferBytes / static_cast<int>(options.workers), kLeastReceiveBufferBytes);
  result.sockets = std::vector<UdpSocket>(options.workers);
  result.senders = std::vector<UdpSocket>(options.workers);
  for (size_t i = 0; i < options.workers; i++) {
    const Share share = !several ? Share::kNo : i == 0 ? Share::kBegin : Share::kJoin;
    if (Failure failure = open_udp(options.bind_address, share, asked_bytes, options.features, result.sockets[i])) {
      return failure;
    }
    if (!several) break;
    if (Failure failure = open_sender(options.bind_address, i, options.features, result.senders[i])) return failure;
  }
  // If the kernel refuses, it spreads datagrams by its own hash of addresses and ports, which is less even, but also
  // keeps each flow in order.
  if (several) spread_by_source(result.sockets[0], options.bind_address, options.workers);
  result.features = result.sockets[0].features;
  result.receive_buffer = {asked_bytes, result.sockets[0].receive_buffer_bytes};
  return {};
}

Failure open_descriptors(const OpenOptions& options, Descriptors& result, ReceiveBuffer& receive_buffer) {
  uint32_t wanted = options.features;
  if (!(wanted & kTunHeader)) wanted &= ~(kTunCsum | kTunTso | kTunUso | kCoalesceTcp | kCoalesceUdp);
  const bool several = options.workers > 1;
  std::vector<Tun> tuns(options.workers);
  LoopSockets opened;
  if (Failure failure = open_sockets(options, opened)) return failure;
  std::string name = options.tun_name;
  for (Tun& tun : tuns) {
    if (Failure failure = open_tun(name, several, wanted, tun)) return failure;
    name = tun.name;
  }
  uint32_t granted = wanted & (kCoalesceTcp | kCoalesceUdp);
  granted |= tuns[0].features | opened.features;
  // A kernel without USO neither sends nor accepts UDP superpackets on a TUN, so UDP packets must not be joined for it.
  if (!(granted & kTunUso) && (wanted & kTunUso)) granted &= ~kCoalesceUdp;

  receive_buffer = opened.receive_buffer;
  result.tun_name = name;
  result.features = granted;
  result.loops.clear();
  for (size_t i = 0; i < options.workers; i++) {
    result.loops.push_back(
        {std::move(tuns[i].fd), std::move(opened.sockets[i].fd), std::move(opened.senders[i].fd), Fd(), Fd()});
  }
  return {};
}

}  // namespace weft
