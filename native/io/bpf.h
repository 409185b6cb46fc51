// bpf.h - loads eBPF programs and their maps with bpf(2).
//
// weft does not use libbpf. libbpf would require the additional library libelf, and weft's programs do not need
// libbpf's features BTF and CO-RE (docs/design/kernel-way.md). src/path/tunnel/kernel-way-object.ts reads the object
// file.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "system.h"

namespace weft {

/// The object file with the eBPF programs of FastPath (native/bpf) in this machine's byte order; empty if weft was
/// built without clang.
std::span<const uint8_t> kernel_way_object();

struct BpfMap {
  uint32_t type, key_bytes, value_bytes, entries, flags;
  std::string name;  ///< at most 15 characters
};

Failure create_map(const BpfMap& map, Fd& fd);
Failure update_map(int fd, const uint8_t* key, const uint8_t* value);
Failure delete_from_map(int fd, const uint8_t* key);
/// Reads the value of a key in a map. If the map has a value for each CPU, `value` has room for the values of all
/// possible CPUs.
Failure look_up_in_map(int fd, const uint8_t* key, uint8_t* value);
/// Loads an eBPF program for tc. If the kernel rejects the program, `log` has the end of the verifier's report.
Failure load_program(std::span<const uint8_t> instructions, const std::string& name, Fd& fd, std::string& log);

/// A test run of an eBPF program on a packet that no interface received (BPF_PROG_TEST_RUN).
struct TestRun {
  std::span<const uint8_t> packet;
  std::span<uint8_t> context;  ///< a struct __sk_buff, which the kernel reads and writes
  std::span<uint8_t> out;      ///< room for the packet after the run
  size_t out_bytes = 0;
  uint32_t result = 0;
};
Failure test_program(int fd, TestRun& run);
/// Returns how many eBPF programs are attached to the interface with tcx, whose programs run before those of tc; 0 if
/// the kernel has no tcx (before Linux 6.6).
uint32_t tcx_programs(uint32_t index, bool is_egress);

}  // namespace weft
