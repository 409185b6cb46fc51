// micro.cc - measures functions of native/ that do no I/O, and the speed of memory. Prints one line of JSON per
// function, such as {"name":"checksum","label":"1400 B","bytes":1400,"ns":...,"cycles":...,"clock":"cycles"}.
//
// Cycles come from perf_event_open(2). If micro has no permission for perf_event_open(2), "cycles" are ticks of the x86
// time-stamp counter, which has a fixed rate; on other processors there are no cycles. Each function is measured in
// cache, on one buffer, and out of cache, on many buffers in random order, which together are larger than any cache.
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <random>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "../../native/core/checksum.h"
#include "../../native/core/coalesce.h"
#include "../../native/core/packet.h"
#include "../../native/core/peers.h"
#include "../../native/core/segment.h"
#include "../../native/io/system.h"

namespace {

using namespace weft;

constexpr size_t kArenaBytes = 256 << 20;
constexpr uint64_t kRunNs = 10'000'000;
constexpr size_t kSizes[] = {64, 1400, 65536};
constexpr size_t kSegmentBytes = 1400;
constexpr size_t kSegments = 46;  // the number of TCP segments in an IPv4 superpacket of 64 KiB

uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

/// Prevents the compiler from removing the computation of a result that is not used.
template <typename T>
void use(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

class CycleClock {
 public:
  CycleClock() {
    perf_event_attr about{};
    about.type = PERF_TYPE_HARDWARE;
    about.size = sizeof about;
    about.config = PERF_COUNT_HW_CPU_CYCLES;
    about.exclude_kernel = 1;
    perf_ = Fd(static_cast<int>(syscall(SYS_perf_event_open, &about, 0, -1, -1, PERF_FLAG_FD_CLOEXEC)));
  }
  const char* name() const {
    if (perf_) return "cycles";
#if defined(__x86_64__)
    return "tsc";
#else
    return "none";
#endif
  }
  uint64_t read() const {
    uint64_t value = 0;
    if (perf_ && ::read(perf_.get(), &value, sizeof value) == sizeof value) return value;
#if defined(__x86_64__)
    return __rdtsc();
#else
    return 0;
#endif
  }

 private:
  Fd perf_;
};

class Bench {
 public:
  Bench() : arena_(kArenaBytes) {
    std::mt19937_64 random(1);
    for (size_t at = 0; at < arena_.size(); at += sizeof(uint64_t)) store(&arena_[at], random());
  }

  /// Measures `once(buffer)` in cache and out of cache. Each buffer starts with the bytes of `content`. `touched` is
  /// the number of bytes that a call reads or writes.
  template <typename Once>
  void run(const char* name, const std::string& label, size_t bytes, size_t touched,
           const std::vector<uint8_t>& content, Once once) {
    const size_t stride = (bytes + 63) / 64 * 64;
    std::vector<uint32_t> order(arena_.size() / stride);
    std::iota(order.begin(), order.end(), 0);
    for (const uint32_t index : order) std::copy(content.begin(), content.end(), &arena_[index * stride]);
    measure(name, label, touched, [&](size_t) { once(arena_.data()); });
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    measure(name, label + ", cold", touched, [&](size_t call) { once(&arena_[order[call % order.size()] * stride]); });
  }

  /// Calls `once(n)` with n = 0, 1, 2, ... and prints the mean time of a call.
  template <typename Once>
  void measure(const char* name, const std::string& label, size_t bytes, Once once) {
    size_t calls = 0;
    size_t batch = 1;
    // Warm up for a quarter of kRunNs, and double the number of calls between two readings of the clock.
    for (uint64_t start = now_ns(); now_ns() - start < kRunNs / 4; batch *= 2) {
      for (size_t i = 0; i < batch; i++) once(calls++);
    }
    const size_t from = calls;
    const uint64_t start = now_ns();
    const uint64_t cycles = clock_.read();
    while (now_ns() - start < kRunNs) {
      for (size_t i = 0; i < batch / 4 + 1; i++) once(calls++);
    }
    const auto count = static_cast<double>(calls - from);
    std::printf("{\"name\":\"%s\",\"label\":\"%s\",\"bytes\":%zu,\"ns\":%.3f,\"cycles\":%.3f,\"clock\":\"%s\"}\n", name,
                label.c_str(), bytes, static_cast<double>(now_ns() - start) / count,
                static_cast<double>(clock_.read() - cycles) / count, clock_.name());
  }

 private:
  CycleClock clock_;
  std::vector<uint8_t> arena_;
};

/// A TCP superpacket over IPv4 with its virtio header, as a read from the TUN returns it.
struct Superpacket {
  VirtioHeader virtio{kVirtioNeedsCsum, kGsoTcp4, 40, kSegmentBytes, 20, 16};
  Packet packet;
  std::vector<uint8_t> bytes;

  Superpacket() : bytes(40 + kSegments * kSegmentBytes, 0x5a) {
    std::fill_n(bytes.begin(), 40, uint8_t{0});
    bytes[0] = 0x45;
    store_be16(&bytes[2], static_cast<uint16_t>(bytes.size()));
    bytes[6] = 0x40;  // sets DF
    bytes[8] = 64;
    bytes[9] = IPPROTO_TCP;
    store_be32(&bytes[12], 0x0a050102);
    store_be32(&bytes[16], 0x0a050202);
    bytes[32] = 5 << 4;
    bytes[33] = kAck;
    store(&bytes[10], ipv4_header_checksum(bytes.data(), 20));
    read_packet(bytes.data(), bytes.size(), packet);
  }

  /// Segments the superpacket and returns its segments one after another in one buffer. All segments have the same
  /// size.
  std::vector<uint8_t> cut() {
    std::vector<uint8_t> result((40 + kSegmentBytes) * kSegments);
    uint8_t* at = result.data();
    Segmenter segmenter;
    segmenter.begin(virtio, bytes.data(), packet);
    while (!segmenter.done()) {
      const Segment segment = segmenter.next(at);
      std::copy_n(segment.payload, segment.payload_bytes, at + segment.header_bytes);
      at += segment.header_bytes + segment.payload_bytes;
    }
    return result;
  }
};

void memory(Bench& bench) {
  std::vector<uint8_t> target(65536);
  for (const size_t size : kSizes) {
    const std::string label = std::to_string(size) + " B";
    bench.run("memcpy", label, size, size, {}, [&](uint8_t* buffer) {
      std::memcpy(target.data(), buffer, size);
      use(target[0]);
    });
    bench.run("read", label, size, size, {}, [&](const uint8_t* buffer) {
      // Use four sums, because each addition to a single sum would wait for the previous addition.
      uint64_t a = 0, b = 0, c = 0, d = 0;
      size_t at = 0;
      for (; at + 32 <= size; at += 32) {
        a += load<uint64_t>(buffer + at);
        b += load<uint64_t>(buffer + at + 8);
        c += load<uint64_t>(buffer + at + 16);
        d += load<uint64_t>(buffer + at + 24);
      }
      for (; at < size; at += 8) a += load<uint64_t>(buffer + at);
      a += b + c + d;
      use(a);
    });
    bench.run("checksum", label, size, size, {}, [&](const uint8_t* buffer) { use(checksum_add(0, buffer, size)); });
  }
}

void packets(Bench& bench) {
  Superpacket super;
  const std::vector<uint8_t> cut = super.cut();
  const std::string label = std::to_string(kSegments) + " x " + std::to_string(kSegmentBytes) + " B";
  constexpr size_t kPacket = 40 + kSegmentBytes;

  bench.run("parse", "1 packet", kPacket, 0, {cut.begin(), cut.begin() + kPacket}, [](const uint8_t* buffer) {
    Packet packet;
    use(read_packet(buffer, kPacket, packet));
    use(packet);
  });

  bench.run("segment", label, super.bytes.size(), super.bytes.size(), super.bytes, [&](uint8_t* buffer) {
    uint8_t header[kMaxHeadersBytes];
    Segmenter segmenter;
    segmenter.begin(super.virtio, buffer, super.packet);
    while (!segmenter.done()) use(segmenter.next(header));
  });

  Coalescer coalescer;
  std::vector<iovec> iovecs(Coalescer::kMaxIovecs);
  const CoalesceLimits limits;
  bench.run("coalesce", label, cut.size(), cut.size(), cut, [&](uint8_t* buffer) {
    for (size_t i = 0; i < kSegments; i++) {
      Packet packet;
      read_packet(buffer + i * kPacket, kPacket, packet);
      coalescer.add(buffer + i * kPacket, packet, limits);
    }
    if (coalescer.writes() != 1) std::abort();  // If the packets were not merged, the measurement is invalid.
    use(coalescer.write(0, iovecs.data()));
    coalescer.clear();
  });
}

/// Returns the records of `count` peers with the subnets 10.0.0.0/24, 10.0.1.0/24 and so on, in the layout of
/// src/path/engine/peers.ts.
std::vector<uint8_t> peer_records(size_t count) {
  std::vector<uint8_t> records(count * sizeof(PeerRecord));
  for (size_t i = 0; i < count; i++) {
    uint8_t* record = &records[i * sizeof(PeerRecord)];
    record[0] = record[2] = 4;
    record[1] = 24;
    store_be16(record + 4, 8285);
    store_be32(record + 8, 0x0a000000 + (static_cast<uint32_t>(i) << 8));
    store_be32(record + offsetof(PeerRecord, ipv4), 0xc0a80000 + static_cast<uint32_t>(i));
  }
  return records;
}

void lookups(Bench& bench) {
  for (const size_t count : {10, 1'000, 100'000}) {
    const PeerTables tables(0, peer_records(count));
    const PeerTable& table = tables.current();
    std::vector<uint32_t> wanted(1 << 16);
    std::mt19937 random(1);
    for (uint32_t& address : wanted) {
      address = to_be32(0x0a000002 + ((random() % static_cast<uint32_t>(count)) << 8));
      if (!table.find(4, reinterpret_cast<const uint8_t*>(&address))) std::abort();
    }
    bench.measure("lookup", std::to_string(count) + " peers", 0, [&](size_t call) {
      use(table.find(4, reinterpret_cast<const uint8_t*>(&wanted[call % wanted.size()])));
    });
  }
}

}  // namespace

int main() {
  Bench bench;
  memory(bench);
  packets(bench);
  lookups(bench);
}
