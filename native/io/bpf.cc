// bpf.cc - calls bpf(2) to load programs, and to create, read and change maps.
#include "bpf.h"

#include <errno.h>
#include <linux/bpf.h>
#include <sys/syscall.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#if __has_include("kernel_way_object.h")
#include "kernel_way_object.h"  // native/bpf/build.mjs writes it during the build of the addon
#else
namespace weft {
constexpr std::span<const uint8_t> kKernelWayLittle, kKernelWayBig;
}
#endif

namespace weft {

namespace {

long call_bpf(int command, bpf_attr& attributes) { return syscall(SYS_bpf, command, &attributes, sizeof attributes); }

bpf_attr no_attributes() {
  bpf_attr attributes;
  std::memset(&attributes, 0, sizeof attributes);
  return attributes;
}

void set_name(char (&to)[BPF_OBJ_NAME_LEN], const std::string& name) {
  std::memcpy(to, name.data(), std::min(name.size(), sizeof to - 1));
}

Failure change_entry(int command, const char* call, int fd, const uint8_t* key, const uint8_t* value) {
  bpf_attr attributes = no_attributes();
  attributes.map_fd = static_cast<uint32_t>(fd);
  attributes.key = reinterpret_cast<uintptr_t>(key);
  attributes.value = reinterpret_cast<uintptr_t>(value);
  if (call_bpf(command, attributes) < 0) return SystemError{call, errno};
  return {};
}

}  // namespace

std::span<const uint8_t> kernel_way_object() {
  return std::endian::native == std::endian::little ? kKernelWayLittle : kKernelWayBig;
}

Failure create_map(const BpfMap& map, Fd& fd) {
  bpf_attr attributes = no_attributes();
  attributes.map_type = map.type;
  attributes.key_size = map.key_bytes;
  attributes.value_size = map.value_bytes;
  attributes.max_entries = map.entries;
  attributes.map_flags = map.flags;
  set_name(attributes.map_name, map.name);
  fd = Fd(static_cast<int>(call_bpf(BPF_MAP_CREATE, attributes)));
  if (!fd) return SystemError{"bpf BPF_MAP_CREATE", errno};
  return {};
}

Failure update_map(int fd, const uint8_t* key, const uint8_t* value) {
  return change_entry(BPF_MAP_UPDATE_ELEM, "bpf BPF_MAP_UPDATE_ELEM", fd, key, value);
}

Failure delete_from_map(int fd, const uint8_t* key) {
  return change_entry(BPF_MAP_DELETE_ELEM, "bpf BPF_MAP_DELETE_ELEM", fd, key, nullptr);
}

Failure look_up_in_map(int fd, const uint8_t* key, uint8_t* value) {
  return change_entry(BPF_MAP_LOOKUP_ELEM, "bpf BPF_MAP_LOOKUP_ELEM", fd, key, value);
}

Failure load_program(std::span<const uint8_t> instructions, const std::string& name, Fd& fd, std::string& log) {
  bpf_attr attributes = no_attributes();
  attributes.prog_type = BPF_PROG_TYPE_SCHED_CLS;
  attributes.insn_cnt = static_cast<uint32_t>(instructions.size() / sizeof(bpf_insn));
  attributes.insns = reinterpret_cast<uintptr_t>(instructions.data());
  attributes.license = reinterpret_cast<uintptr_t>("Apache-2.0");
  set_name(attributes.prog_name, name);
  fd = Fd(static_cast<int>(call_bpf(BPF_PROG_LOAD, attributes)));
  if (fd) return {};
  const SystemError failure{"bpf BPF_PROG_LOAD", errno};
  // The verifier writes its report only into a buffer that the call provides, and the report of a valid program is
  // long. So first load the program without a buffer. If the kernel rejects the program, load it again with a buffer,
  // to get the report.
  constexpr size_t kLogBytes = 1 << 20, kShownBytes = 400;
  const auto text = std::make_unique<char[]>(kLogBytes);
  attributes.log_buf = reinterpret_cast<uintptr_t>(text.get());
  attributes.log_size = kLogBytes;
  attributes.log_level = 1;
  fd = Fd(static_cast<int>(call_bpf(BPF_PROG_LOAD, attributes)));
  if (fd) return {};
  log.assign(text.get(), strnlen(text.get(), kLogBytes));
  if (log.size() > kShownBytes) log.erase(0, log.size() - kShownBytes);
  return failure;
}

Failure test_program(int fd, TestRun& run) {
  bpf_attr attributes = no_attributes();
  attributes.test.prog_fd = static_cast<uint32_t>(fd);
  attributes.test.data_in = reinterpret_cast<uintptr_t>(run.packet.data());
  attributes.test.data_size_in = static_cast<uint32_t>(run.packet.size());
  attributes.test.data_out = reinterpret_cast<uintptr_t>(run.out.data());
  attributes.test.data_size_out = static_cast<uint32_t>(run.out.size());
  attributes.test.ctx_in = attributes.test.ctx_out = reinterpret_cast<uintptr_t>(run.context.data());
  attributes.test.ctx_size_in = attributes.test.ctx_size_out = static_cast<uint32_t>(run.context.size());
  attributes.test.repeat = 1;
  if (call_bpf(BPF_PROG_TEST_RUN, attributes) < 0) return SystemError{"bpf BPF_PROG_TEST_RUN", errno};
  run.out_bytes = attributes.test.data_size_out;
  run.result = attributes.test.retval;
  return {};
}

uint32_t tcx_programs(uint32_t index, bool is_egress) {
  constexpr uint32_t kTcxIngress = 46, kTcxEgress = 47;  // Linux 6.6, include/uapi/linux/bpf.h
  bpf_attr attributes = no_attributes();
  attributes.query.target_fd = index;
  attributes.query.attach_type = is_egress ? kTcxEgress : kTcxIngress;
  return call_bpf(BPF_PROG_QUERY, attributes) < 0 ? 0 : attributes.query.prog_cnt;
}

}  // namespace weft
