// glibc_floor.cc - of a release only: what the compiler's own static libraries take from a newer C library than the release asks for.
//
// libstdc++ 12 and libgcc 12 as Debian 12 builds them; none of it is reached by weft's code.
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

extern "C" {

/// glibc 2.32: whether counts of references need no locked instructions. They are locked.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

/// glibc 2.36; of std::random_device.
__attribute__((visibility("hidden"))) uint32_t arc4random() {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}

/// glibc 2.35: finds the tables by which an exception unwinds. There are none (-fno-exceptions): whatever is thrown ends the process.
__attribute__((visibility("hidden"))) int _dl_find_object(void*, void*) { return -1; }
}
