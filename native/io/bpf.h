// bpf.h - loads eBPF programs and their maps with bpf(2).
//
// weft does not use libbpf, because libbpf needs libelf, and because the programs need neither BTF nor CO-RE
// (docs/design/kernel-way.md). src/path/tunnel/kernel-way-object.ts reads the object file.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "system.h"

namespace weft {

/// The object file of the programs of the kernel's way for this machine's byte order; empty if weft was built without
/// clang.
std::span<const uint8_t> kernel_way_object();

struct BpfMap {
  uint32_t type, key_bytes, value_bytes, entries, flags;
  std::string name;  ///< at most 15 characters
};

Failure create_map(const BpfMap& map, Fd& fd);
Failure update_map(int fd, const uint8_t* key, const uint8_t* value);
Failure delete_from_map(int fd, const uint8_t* key);
/// Reads a value. `value` has room for one value of each possible CPU if the map has a value for each CPU.
Failure look_up_in_map(int fd, const uint8_t* key, uint8_t* value);
/// Loads a program for tc. If the kernel refuses, `log` has the end of the verifier's report.
Failure load_program(std::span<const uint8_t> instructions, const std::string& name, Fd& fd, std::string& log);

/// A run of a program on a packet that no interface has.
struct TestRun {
  std::span<const uint8_t> packet;
  std::span<uint8_t> context;  ///< a struct __sk_buff, which the kernel reads and writes
  std::span<uint8_t> out;      ///< room for the packet after the run
  size_t out_bytes = 0;
  uint32_t result = 0;
};
Failure test_program(int fd, TestRun& run);
/// Returns how many programs are attached to the interface with tcx, which run before those of tc; 0 if the kernel has
/// no tcx (before Linux 6.6).
uint32_t tcx_programs(uint32_t index, bool is_egress);

}  // namespace weft
