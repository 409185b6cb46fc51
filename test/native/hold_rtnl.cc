// hold_rtnl.cc - holds the kernel's lock of all network devices (RTNL) until its standard input ends, at most 30 s.
//
// The ioctl SIOCETHTOOL holds this lock while it reads the rest of its request. This rest is on a page that
// userfaultfd(2) watches, so the ioctl waits in the page fault until this program provides the page. Prints "held" when
// the lock is held. Exits with 77 if the kernel does not let this program watch page faults of the kernel.
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <linux/userfaultfd.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>

namespace {

constexpr int kMostMs = 30'000;
constexpr int kUnsupported = 77;

[[noreturn]] void fail(const char* what, int code = 1) {
  std::perror(what);
  _exit(code);
}

/// Waits for the page fault, reports it, and provides the page when the standard input ends.
void serve(int faults, void* page, size_t bytes) {
  uffd_msg message;
  if (read(faults, &message, sizeof message) != sizeof message) fail("read of a page fault");
  std::puts("held");
  std::fflush(stdout);
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  poll(&input, 1, kMostMs);
  uffdio_zeropage zero = {{reinterpret_cast<uint64_t>(page), bytes}, 0, 0};
  if (ioctl(faults, UFFDIO_ZEROPAGE, &zero) < 0) fail("UFFDIO_ZEROPAGE");
}

}  // namespace

int main() {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const int faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api = {UFFD_API, 0, 0};
  if (faults < 0 || ioctl(faults, UFFDIO_API, &api) < 0) fail("userfaultfd", kUnsupported);
  auto* pages =
      static_cast<uint8_t*>(mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (pages == MAP_FAILED) fail("mmap");
  // Only the command is on the first page, which exists: the kernel reads the command before it takes the lock.
  uint8_t* command = pages + bytes - sizeof(uint32_t);
  const uint32_t features = ETHTOOL_GFEATURES;
  std::memcpy(command, &features, sizeof features);
  uffdio_register watched = {{reinterpret_cast<uint64_t>(pages + bytes), bytes}, UFFDIO_REGISTER_MODE_MISSING, 0};
  if (ioctl(faults, UFFDIO_REGISTER, &watched) < 0) fail("UFFDIO_REGISTER");
  std::thread server(serve, faults, pages + bytes, bytes);
  const int asking = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request = {};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_data = reinterpret_cast<char*>(command);
  if (ioctl(asking, SIOCETHTOOL, &request) < 0) fail("SIOCETHTOOL");
  server.join();
  return 0;
}
