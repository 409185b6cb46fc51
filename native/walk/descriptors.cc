// descriptors.cc - opens the sockets and the TUN queues of all loop threads, and determines the features that all of
// them have.
#include "descriptors.h"

#include <algorithm>

#include "../io/tun.h"

namespace weft {

Failure open_sockets(const OpenOptions& options, FamilySockets& result) {
  const bool several = options.workers > 1;
  const int asked_bytes = std::max(kReceiveBufferBytes / static_cast<int>(options.workers), kLeastReceiveBufferBytes);
  result.loops = std::vector<LoopSockets>(options.workers);
  for (size_t i = 0; i < options.workers; i++) {
    const Share share = !several ? Share::kNo : i == 0 ? Share::kBegin : Share::kJoin;
    UdpSocket receiver, sender;
    if (Failure failure = open_udp(options.bind_address, share, asked_bytes, options.features, receiver)) {
      return failure;
    }
    if (i == 0) {
      result.features = receiver.features;
      result.receive_buffer = {asked_bytes, receiver.receive_buffer_bytes};
    }
    result.loops[i].receiver = std::move(receiver.fd);
    if (!several) break;
    if (Failure failure = open_sender(options.bind_address, i, options.features, sender)) return failure;
    result.loops[i].sender = std::move(sender.fd);
  }
  // If the kernel rejects the rule of spread_by_source(), it distributes datagrams to the sockets by its own hash of
  // addresses and ports. This hash distributes the datagrams less evenly, but also keeps each flow in order.
  if (several) spread_by_source(result.loops[0].receiver, options.bind_address, options.workers);
  return {};
}

Failure open_descriptors(const OpenOptions& options, Descriptors& result, ReceiveBuffer& receive_buffer) {
  uint32_t wanted = options.features;
  if (!(wanted & kTunHeader)) wanted &= ~(kTunCsum | kTunTso | kTunUso | kCoalesceTcp | kCoalesceUdp);
  const bool several = options.workers > 1;
  std::vector<Tun> tuns(options.workers);
  FamilySockets opened;
  if (Failure failure = open_sockets(options, opened)) return failure;
  std::string name = options.tun_name;
  for (Tun& tun : tuns) {
    if (Failure failure = open_tun(name, several, wanted, tun)) return failure;
    name = tun.name;
  }
  uint32_t granted = wanted & (kCoalesceTcp | kCoalesceUdp);
  granted |= tuns[0].features | opened.features;
  // A kernel without USO neither sends nor accepts UDP superpackets on a TUN, so the engine must not merge UDP packets
  // for that TUN.
  if (!(granted & kTunUso) && (wanted & kTunUso)) granted &= ~kCoalesceUdp;

  receive_buffer = opened.receive_buffer;
  result.tun_name = name;
  result.features = granted;
  result.loops.clear();
  for (size_t i = 0; i < options.workers; i++) {
    LoopDescriptors& loop = result.loops.emplace_back(LoopDescriptors{std::move(tuns[i].fd), {}});
    loop.sockets.of(options.bind_address.address().is_v4() ? 4 : 6) = std::move(opened.loops[i]);
  }
  return {};
}

}  // namespace weft
