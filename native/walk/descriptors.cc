// descriptors.cc - the sockets and the TUN queues of all loops, and which features they have in common.
#include "descriptors.h"

#include <algorithm>

#include "../io/tun.h"

namespace weft {

Failure open_descriptors(const OpenOptions& options, Descriptors& result, ReceiveBuffer& receive_buffer) {
  uint32_t wanted = options.features;
  if (!(wanted & kTunHeader)) wanted &= ~(kTunCsum | kTunTso | kTunUso | kCoalesceTcp | kCoalesceUdp);
  const bool several = options.workers > 1;
  receive_buffer.asked_bytes =
      std::max(kReceiveBufferBytes / static_cast<int>(options.workers), kLeastReceiveBufferBytes);
  std::vector<Tun> tuns(options.workers);
  std::vector<UdpSocket> sockets(options.workers), senders(options.workers);
  for (size_t i = 0; i < options.workers; i++) {
    const Share share = !several ? Share::kNo : i == 0 ? Share::kBegin : Share::kJoin;
    if (Failure failure = open_udp(options.bind_address, share, receive_buffer.asked_bytes, wanted, sockets[i])) {
      return failure;
    }
    if (!several) break;
    if (Failure failure = open_sender(options.bind_address, i, wanted, senders[i])) return failure;
  }
  // Refused, the kernel spreads by its own hash of addresses and ports: less evenly, and flows keep their order too.
  if (several) spread_by_source(sockets[0], options.bind_address, options.workers);
  std::string name = options.tun_name;
  for (Tun& tun : tuns) {
    if (Failure failure = open_tun(name, several, wanted, tun)) return failure;
    name = tun.name;
  }
  uint32_t granted = wanted & (kCoalesceTcp | kCoalesceUdp);
  granted |= tuns[0].features | sockets[0].features;
  // A kernel that does not know USO refuses UDP superpackets in both directions.
  if (!(granted & kTunUso) && (wanted & kTunUso)) granted &= ~kCoalesceUdp;

  receive_buffer.granted_bytes = sockets[0].receive_buffer_bytes;
  result.tun_name = name;
  result.features = granted;
  result.loops.clear();
  for (size_t i = 0; i < options.workers; i++) {
    result.loops.push_back({std::move(tuns[i].fd), std::move(sockets[i].fd), std::move(senders[i].fd)});
  }
  return {};
}

}  // namespace weft
