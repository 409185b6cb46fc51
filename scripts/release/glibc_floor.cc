// glibc_floor.cc - replaces functions of a newer glibc that the compiler's static libraries call, so that a release of
// the addon runs with an older glibc.
//
// The static libraries are libstdc++ 12 and libgcc 12 of Debian 12. weft's own code does not call these functions.
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

extern "C" {

// glibc 2.32 introduced this variable. If it is true, libstdc++ changes reference counts without atomic instructions.
// This replacement is false, which is always safe.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// glibc 2.36 introduced this function, which std::random_device of libstdc++ calls.
__attribute__((visibility("hidden"))) uint32_t arc4random() {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}

// glibc 2.35 introduced this function, which finds the unwind tables for an exception. This replacement finds no
// tables, so an exception would end the process; but the addon is compiled with -fno-exceptions.
__attribute__((visibility("hidden"))) int _dl_find_object(void*, void*) { return -1; }
}
