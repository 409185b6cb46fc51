// handover_state.cc - writes and reads the memfd that an engine passes to the next engine: its format, its head and its
// body.
#include "handover_state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3; required if vm.memfd_noexec is 2
#endif

namespace weft {

namespace {

/// The first 64 bits of the memfd, which identify the format. The next 64 bits are the length of the head.
constexpr uint64_t kMark = 0x31'74'73'75'71'65'62'77;
constexpr size_t kStartBytes = 16;
/// The maximum length of the memfd in bytes. A longer memfd is rejected, because saved WireGuard sessions never need as
/// much.
constexpr size_t kMostBytes = size_t{1} << 30;

bool write_all(int fd, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

bool read_all(int fd, size_t from, std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(from));
    if (got <= 0) return false;
    from += static_cast<size_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

struct Form {
  size_t size, head_bytes;
};

/// Reads the lengths of the memfd's head and body. Returns nothing if the memfd has another format, or cannot be
/// sealed.
std::optional<Form> form_of(int fd) {
  struct stat about;
  std::array<uint8_t, kStartBytes> start;
  if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &about) < 0) return {};
  // The file's size has 64 bits even on a processor whose size_t has 32 bits.
  if (about.st_size < off_t{kStartBytes} || about.st_size > off_t{kMostBytes} || !read_all(fd, 0, start)) return {};
  const auto size = static_cast<size_t>(about.st_size);
  const auto head_bytes = load<uint64_t>(&start[8]);
  if (load<uint64_t>(start.data()) != kMark || head_bytes > size - kStartBytes) return {};
  return Form{size, static_cast<size_t>(head_bytes)};
}

void wipe(int fd, size_t size) {
  constexpr std::array<uint8_t, 4096> kZeros{};
  for (size_t at = 0; at < size;) {
    const ssize_t wiped = pwrite(fd, kZeros.data(), std::min(kZeros.size(), size - at), static_cast<off_t>(at));
    if (wiped <= 0) break;
    at += static_cast<size_t>(wiped);
  }
  [[maybe_unused]] const int cut = ftruncate(fd, 0);
}

}  // namespace

Fd write_handover_state(std::span<const uint8_t> head, std::span<const uint8_t> body) {
  constexpr const char* kName = "weft-handover";
  if (head.size() > kMostBytes / 2 || body.size() > kMostBytes / 2 - kStartBytes) return Fd();
  Fd fd(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd) fd = Fd(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::array<uint8_t, kStartBytes> start;
  store(start.data(), kMark);
  store(&start[8], uint64_t{head.size()});
  if (!fd || !write_all(fd.get(), start) || !write_all(fd.get(), head) || !write_all(fd.get(), body)) return Fd();
  return fd;
}

std::optional<std::vector<uint8_t>> read_handover_head(int fd) {
  const std::optional<Form> form = form_of(fd);
  if (!form) return {};
  std::vector<uint8_t> head(form->head_bytes);
  if (!read_all(fd, kStartBytes, head)) return {};
  return head;
}

std::optional<SecretBytes> take_handover_state(int fd) {
  const std::optional<Form> form = form_of(fd);
  if (!form || fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) < 0) return {};
  const size_t from = kStartBytes + form->head_bytes;
  SecretBytes body(form->size - from);
  const bool is_read = read_all(fd, from, body);
  wipe(fd, form->size);
  if (!is_read) return {};
  return body;
}

}  // namespace weft
