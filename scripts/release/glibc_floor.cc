// glibc_floor.cc - replacements for functions of a newer glibc that the compiler's static libraries need. Only a release uses them.
//
// The libraries are libstdc++ 12 and libgcc 12 of Debian 12. weft's code does not call any of these functions.
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

extern "C" {

/// glibc 2.32: true if reference counts need no atomic instructions. It is false here, so they are atomic.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

/// glibc 2.36: used by std::random_device.
__attribute__((visibility("hidden"))) uint32_t arc4random() {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}

/// glibc 2.35: finds the unwind tables of an exception. It finds none here (-fno-exceptions), so an exception ends the process.
__attribute__((visibility("hidden"))) int _dl_find_object(void*, void*) { return -1; }
}
