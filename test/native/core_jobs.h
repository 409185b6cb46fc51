// core_jobs.h - makes native/core callable with bytes only, for the model test and the fuzzer.
//
// The input is a sequence of jobs, the output a sequence of answers, in this machine's byte order. A job is one byte
// that selects it, then its arguments. A `packet` is a length (uint32) and its bytes. The run ends at truncated input.
//
//   S virtio packet    cut a superpacket; answers the number of packets (uint32, or kRefused) and the packets
//   F virtio packet    complete a checksum; answers as S, with one packet
//   C count packets    join packets of one batch; answers the number of writes, each with its virtio header
//   I packet           the ICMP error for a packet; answers as S, with one packet
//   P packet           a peer table of these records, a look-up of each one's subnet; answers the number found
#pragma once

#include <string>
#include <vector>

#include "../../native/core/coalesce.h"
#include "../../native/core/icmp.h"
#include "../../native/core/peers.h"
#include "../../native/core/segment.h"

namespace weft {

constexpr uint32_t kRefused = UINT32_MAX;

class Jobs {
 public:
  Jobs(const uint8_t* bytes, size_t size) : at_(bytes), end_(bytes + size) {}

  std::vector<uint8_t> run() {
    char job;
    while (take(job)) {
      VirtioHeader virtio;
      std::vector<uint8_t> bytes;
      if (job == 'S' && take(virtio) && take_packet(bytes)) {
        segment(virtio, bytes);
      } else if (job == 'F' && take(virtio) && take_packet(bytes)) {
        finish(virtio, bytes);
      } else if (job == 'C') {
        coalesce();
      } else if (job == 'I' && take_packet(bytes)) {
        icmp(bytes);
      } else if (job == 'P' && take_packet(bytes)) {
        look_up(bytes);
      }
    }
    return std::move(answers_);
  }

 private:
  template <typename T>
  bool take(T& value) {
    if (static_cast<size_t>(end_ - at_) < sizeof value) return false;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return true;
  }
  bool take_packet(std::vector<uint8_t>& bytes) {
    uint32_t size;
    if (!take(size) || size > static_cast<size_t>(end_ - at_)) return false;
    bytes.assign(at_, at_ + size);
    at_ += size;
    return true;
  }
  void answer(const void* bytes, size_t size) {
    const auto* from = static_cast<const uint8_t*>(bytes);
    answers_.insert(answers_.end(), from, from + size);
  }
  void answer(uint32_t value) { answer(&value, sizeof value); }

  void segment(const VirtioHeader& virtio, std::vector<uint8_t>& bytes) {
    Packet packet;
    Segmenter segments;
    if (!read_packet(bytes.data(), bytes.size(), packet) || !segments.begin(virtio, bytes.data(), packet))
      return answer(kRefused);
    answer(static_cast<uint32_t>(segments.count()));
    while (!segments.done()) {
      // on the heap, so that a sanitizer detects writes beyond the end
      std::vector<uint8_t> header(segments.header_bytes());
      const Segment one = segments.next(header.data());
      answer(static_cast<uint32_t>(one.header_bytes + one.payload_bytes));
      answer(one.header, one.header_bytes);
      answer(one.payload, one.payload_bytes);
    }
  }

  void finish(const VirtioHeader& virtio, std::vector<uint8_t>& bytes) {
    Packet packet;
    if (!read_packet(bytes.data(), bytes.size(), packet) || !finish_checksum(virtio, bytes.data(), packet))
      return answer(kRefused);
    answer(1);
    answer(packet.total);
    answer(bytes.data(), packet.total);
  }

  void coalesce() {
    uint32_t count;
    if (!take(count)) return;
    std::vector<std::vector<uint8_t>> packets;
    static Coalescer coalescer;  // static, because it is large; each batch leaves it empty
    coalescer.clear();
    while (count-- > 0 && !coalescer.full()) {
      packets.emplace_back();
      Packet packet;
      if (!take_packet(packets.back())) break;
      if (!read_packet(packets.back().data(), packets.back().size(), packet)) continue;
      coalescer.add(packets.back().data(), packet, {});
    }
    answer(static_cast<uint32_t>(coalescer.writes()));
    std::vector<iovec> iov(Coalescer::kMaxIovecs);
    for (size_t i = 0; i < coalescer.writes(); i++) {
      const size_t pieces = coalescer.write(i, iov.data());
      uint32_t size = 0;
      for (size_t j = 1; j < pieces; j++) size += static_cast<uint32_t>(iov[j].iov_len);
      answer(iov[0].iov_base, iov[0].iov_len);
      answer(size);
      for (size_t j = 1; j < pieces; j++) answer(iov[j].iov_base, iov[j].iov_len);
    }
  }

  void icmp(std::vector<uint8_t>& bytes) {
    Packet packet;
    if (!read_packet(bytes.data(), bytes.size(), packet)) return answer(kRefused);
    std::vector<uint8_t> out(kMaxIcmpErrorBytes);
    const size_t size = write_icmp_error(kTimeExceeded, Address::v4(0x0105050a), bytes.data(), packet, out.data());
    if (size == 0) return answer(kRefused);
    answer(1);
    answer(static_cast<uint32_t>(size));
    answer(out.data(), size);
  }

  void look_up(std::vector<uint8_t>& records) {
    // The native code trusts JavaScript to pass whole records with prefix lengths that fit their family (addon.d.ts).
    // So the input is changed to fulfil that.
    records.resize(records.size() / sizeof(PeerRecord) * sizeof(PeerRecord));
    for (size_t at = 0; at < records.size(); at += sizeof(PeerRecord)) {
      records[at] = records[at] % 2 ? 4 : 6;
      records[at + 1] %= records[at] == 4 ? 33 : 129;
    }
    const PeerTables tables(0, records);
    const PeerTable& table = tables.current();
    uint32_t found = 0;
    for (size_t at = 0; at < records.size(); at += sizeof(PeerRecord)) {
      found += table.find(records[at], &records[at + 8]) != nullptr;
    }
    answer(found);
  }

  const uint8_t* at_;
  const uint8_t* end_;
  std::vector<uint8_t> answers_;
};

}  // namespace weft
