// ingress.h - the walk of a packet from its peer to the TUN.
//
//   receive   a batch of messages, each with one datagram or many (io/receiver.h)
//   strip     what the encapsulation put before each packet, where it lies
//   check     the shape of the inner packet; TTL less one
//   join      packets of one flow into superpackets (core/coalesce.h)
//   write     each with its virtio header, in order (io/tun_writer.h)
#pragma once

#include "core/checksum.h"
#include "core/coalesce.h"
#include "core/encapsulation.h"
#include "core/icmp.h"
#include "direction.h"
#include "io/receiver.h"
#include "io/tun_writer.h"

namespace weft {

template <Encapsulation Encap>
class Ingress final : public Direction {
 public:
  /// The claim on the peer table is its own: it may run beside the other direction.
  Ingress(const Path& path, PeerTables::Reader peers, Encap encap = {})
      : path_(path),
        peers_(peers),
        encap_(encap),
        receiver_(path.socket, path.batch, path.counters),
        writer_(path.tun, path.features, path.counters) {}

  Pump pump() override {
    Pump pump;
    pump.items = receiver_.receive(pump.failure);
    limits_ = writer_.limits();
    table_ = &peers_.acquire();
    for (Message& message : receiver_.messages()) {
      do {
        const Stripped stripped = encap_.strip(message);
        if (stripped.drop) {
          path_.counters.add(*stripped.drop);
        } else if (Failure failure = receive(stripped.packet, *message.from)) {
          pump.failure = failure;
        }
      } while (message.size > 0);
    }
    if (Failure failure = writer_.write(coalescer_)) pump.failure = failure;
    peers_.release();
    return pump;
  }

 private:
  Failure receive(std::span<uint8_t> bytes, const Endpoint& from) {
    Failure failure;
    Packet packet;
    if (read_packet(bytes.data(), bytes.size(), packet) != Shape::kOk) {
      path_.counters.add(k_rx_drop_malformed);
    } else if (packet.hop_limit <= 1) {
      path_.counters.add(k_rx_drop_ttl);
      send_time_exceeded(bytes.data(), packet, from);
    } else {
      decrement_hop_limit(bytes.data(), packet);
      if (coalescer_.full()) failure = writer_.write(coalescer_);
      coalescer_.add(bytes.data(), packet, limits_);
    }
    return failure;
  }

  /// Goes to where the datagram came from, with what the encapsulation needs to know of the peer whose packet it was.
  void send_time_exceeded(const uint8_t* bytes, const Packet& packet, const Endpoint& from) {
    uint8_t out[Encap::kHeaderBytes + kMaxIcmpErrorBytes];
    uint8_t* error = out + Encap::kHeaderBytes;
    const size_t size = write_icmp_error(kIcmpTimeExceeded, 0, path_.tun_address, bytes, packet, error);
    Packet about;
    if (size == 0 || read_packet(error, size, about) != Shape::kOk) return;
    const Endpoint* peer = table_->find(packet.version, source_address(bytes, packet));
    Endpoint back = peer ? *peer : Endpoint{};
    back.address = from.address;
    back.address_bytes = from.address_bytes;
    encap_.write(back, about, out);
    if (receiver_.answer(back, {out, Encap::kHeaderBytes + size})) path_.counters.add(k_rx_time_exceeded_sent);
  }

  Path path_;
  PeerTables::Reader peers_;
  const PeerTable* table_ = nullptr;  // during a turn
  Encap encap_;
  Receiver receiver_;
  CoalesceLimits limits_;  // during a turn
  Coalescer coalescer_;
  TunWriter writer_;
};

}  // namespace weft
