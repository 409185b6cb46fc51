// steering.cc - assembles and loads the eBPF program that chooses the TUN queue of a packet.
#include "steering.h"

#include <errno.h>
#include <linux/bpf.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>
#include <vector>

#include "linux_compat.h"

namespace weft {

namespace {

/// Assembles an eBPF program. Register r6 points to the packet, r9 is the hash's factor, r7 and r8 hold values. Loads
/// write to r0 and overwrite r1.
class Assembler {
 public:
  using Label = size_t;
  static constexpr uint8_t kLoaded = 0, kLost = 1, kPacket = 6, kSum = 7, kValue = 8, kFactor = 9;

  Assembler() {
    move(kPacket, 1);
    put({.code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = kFactor, .src_reg = 0, .off = 0, .imm = 0x7f4a7c15});
    put({.code = 0, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = static_cast<int32_t>(0x9e3779b9)});
  }
  /// Loads the field at offset `at` of the packet, in host byte order. A packet that is too short for the field goes to
  /// the first queue.
  void load(uint8_t size, int32_t at) {
    put({.code = uint8_t(BPF_LD | BPF_ABS | size), .dst_reg = 0, .src_reg = 0, .off = 0, .imm = at});
  }
  /// Loads the field that is `at` bytes after the offset in register kValue.
  void load_behind_value(uint8_t size, int32_t at) {
    put({.code = uint8_t(BPF_LD | BPF_IND | size), .dst_reg = 0, .src_reg = kValue, .off = 0, .imm = at});
  }
  void move(uint8_t to, uint8_t from) { by_register(BPF_MOV, to, from); }
  void by_register(uint8_t operation, uint8_t to, uint8_t from) {
    put({.code = uint8_t(BPF_ALU64 | operation | BPF_X), .dst_reg = to, .src_reg = from, .off = 0, .imm = 0});
  }
  void by_number(uint8_t operation, uint8_t to, int32_t number) {
    put({.code = uint8_t(BPF_ALU64 | operation | BPF_K), .dst_reg = to, .src_reg = 0, .off = 0, .imm = number});
  }
  void mix(uint8_t value) {
    by_register(BPF_MUL, value, kFactor);
    move(kLost, value);
    by_number(BPF_RSH, kLost, 32);
    by_register(BPF_XOR, value, kLost);
    by_register(BPF_MUL, value, kFactor);
  }
  /// Adds the loaded value to the hash's sum. The sum is the same if source and destination are swapped.
  void add_loaded() {
    mix(kLoaded);
    by_register(BPF_ADD, kSum, kLoaded);
  }
  /// Emits a jump that is taken if the comparison `operation` of the loaded value with `number` is true. The jump leads
  /// to the instruction that follows the call of land() with the returned label.
  Label jump(uint8_t operation, int32_t number) {
    put({.code = uint8_t(BPF_JMP | operation | BPF_K), .dst_reg = kLoaded, .src_reg = 0, .off = 0, .imm = number});
    return code_.size() - 1;
  }
  void land(std::initializer_list<Label> from) {
    for (const Label each : from) code_[each].off = static_cast<int16_t>(code_.size() - each - 1);
  }
  void exit() { put({.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}); }
  const std::vector<bpf_insn>& code() const { return code_; }

 private:
  void put(const bpf_insn& instruction) { code_.push_back(instruction); }

  std::vector<bpf_insn> code_;
};

std::vector<bpf_insn> program() {
  using A = Assembler;
  constexpr int32_t kTcp = 6, kFragmentBits = 0x3fff;
  A a;
  a.by_number(BPF_MOV, A::kSum, 0);
  a.load(BPF_B, 0);
  a.by_number(BPF_RSH, A::kLoaded, 4);
  const auto is_v6 = a.jump(BPF_JEQ, 6);
  // For IPv4, add the source and the destination address to the hash's sum. For unfragmented TCP, also add the two
  // ports, which may follow IP options.
  for (const int32_t at : {12, 16}) {
    a.load(BPF_W, at);
    a.add_loaded();
  }
  a.load(BPF_B, 9);
  const auto is_other = a.jump(BPF_JNE, kTcp);
  a.load(BPF_H, 6);
  a.by_number(BPF_AND, A::kLoaded, kFragmentBits);
  const auto is_fragment = a.jump(BPF_JNE, 0);
  a.load(BPF_B, 0);
  a.by_number(BPF_AND, A::kLoaded, 15);
  a.by_number(BPF_LSH, A::kLoaded, 2);
  a.move(A::kValue, A::kLoaded);
  for (const int32_t at : {0, 2}) {
    a.load_behind_value(BPF_H, at);
    a.add_loaded();
  }
  const auto is_done = a.jump(BPF_JA, 0);
  a.land({is_v6});
  // For IPv6, add each address to the hash's sum as four words in order. If TCP follows the IP header directly, also
  // add the two ports.
  for (const int32_t address : {8, 24}) {
    a.by_number(BPF_MOV, A::kValue, 0);
    for (const int32_t word : {0, 4, 8, 12}) {
      a.load(BPF_W, address + word);
      a.by_register(BPF_XOR, A::kValue, A::kLoaded);
      a.mix(A::kValue);
    }
    a.by_register(BPF_ADD, A::kSum, A::kValue);
  }
  a.load(BPF_B, 6);
  const auto is_other6 = a.jump(BPF_JNE, kTcp);
  for (const int32_t at : {40, 42}) {
    a.load(BPF_H, at);
    a.add_loaded();
  }
  a.land({is_other, is_fragment, is_done, is_other6});
  a.mix(A::kSum);
  a.move(A::kLoaded, A::kSum);
  a.by_number(BPF_RSH, A::kLoaded, 33);
  a.exit();
  return a.code();
}

}  // namespace

Failure steer_by_addresses(int tun) {
  const std::vector<bpf_insn> code = program();
  bpf_attr attributes;
  std::memset(&attributes, 0, sizeof attributes);
  attributes.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
  attributes.insn_cnt = static_cast<uint32_t>(code.size());
  attributes.insns = reinterpret_cast<uintptr_t>(code.data());
  attributes.license = reinterpret_cast<uintptr_t>("Apache-2.0");
  const Fd loaded(static_cast<int>(syscall(SYS_bpf, BPF_PROG_LOAD, &attributes, sizeof attributes)));
  if (!loaded) return SystemError{"bpf BPF_PROG_LOAD", errno};
  int fd = loaded.get();
  if (ioctl(tun, TUNSETSTEERINGEBPF, &fd) < 0) return SystemError{"ioctl TUNSETSTEERINGEBPF", errno};
  return {};
}

void steer_by_kernel(int tun) {
  int none = -1;
  ioctl(tun, TUNSETSTEERINGEBPF, &none);
}

}  // namespace weft
