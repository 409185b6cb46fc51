// peer_changes.cc - `peer_changes COUNT` measures the CPU time of changing one peer in a table of COUNT peers, and
// prints one line of JSON.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "../../native/core/peers.h"

using namespace weft;

namespace {

constexpr size_t kBytes = sizeof(PeerRecord);
constexpr size_t kChanges = 400;
constexpr uint8_t kBits = 28;

double cpu_ms() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void write_record(uint8_t* record, size_t index, size_t host) {
  record[0] = record[2] = 4;
  record[1] = kBits;
  store_be16(record + 4, 8285);
  store_be32(record + 8, 0x0a000000 + (static_cast<uint32_t>(index) << (32 - kBits)));
  store_be32(record + offsetof(PeerRecord, ipv4), 0xac100000 + static_cast<uint32_t>(host));
}

double heap_mib() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd) / (1 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  const size_t count = argc > 1 ? static_cast<size_t>(std::atol(argv[1])) : 60'000;
  std::vector<uint8_t> records(count * kBytes);
  for (size_t i = 0; i < count; i++) write_record(&records[i * kBytes], i, i);
  const double empty = heap_mib();
  PeerTables tables(2);
  tables.set(records);
  const double table = heap_mib() - empty;
  double before = cpu_ms();
  tables.set(records);
  const double set = cpu_ms() - before;
  std::mt19937 random(1);
  std::vector<double> times;
  std::vector<uint8_t> record(kBytes);
  for (size_t i = 0; i < kChanges; i++) {
    write_record(record.data(), random() % count, count + i);
    before = cpu_ms();
    tables.change(record);
    times.push_back(cpu_ms() - before);
  }
  std::sort(times.begin(), times.end());
  std::printf("{\"change\":%.4f,\"changeMost\":%.4f,\"set\":%.2f,\"tableMiB\":%.1f}\n", times[kChanges / 2],
              times[kChanges * 99 / 100], set, table);
}
