// kernel_layout.h - checks at compile time that the C library's structures have the layout of the kernel's system
// calls, and that the processor has the atomic accesses that the engine needs. The layout and the processor's accesses
// differ between architectures and C libraries.
#pragma once

#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace weft {

/// The size of a pointer, of `size_t` and of `long`. It is 4 or 8 bytes.
constexpr size_t kWordBytes = sizeof(void*);
static_assert(sizeof(size_t) == kWordBytes && sizeof(long) == kWordBytes);

// Counters are read and written by several threads without a lock. A processor without 64-bit atomic accesses, such as
// ARMv6, would call functions of libatomic, which lock. Compile for ARMv7 (`-march=armv7-a`).
static_assert(__atomic_always_lock_free(sizeof(uint64_t), nullptr), "this processor has no 64-bit atomic accesses");
static_assert(alignof(uint64_t) == 8, "an atomic access needs an aligned word");
static_assert(std::endian::native == std::endian::little || std::endian::native == std::endian::big);

// The sizes and offsets are from include/linux/socket.h (user_msghdr, mmsghdr, cmsghdr) and include/uapi/linux/uio.h.
static_assert(sizeof(iovec) == 2 * kWordBytes && offsetof(iovec, iov_len) == kWordBytes);
static_assert(sizeof(msghdr) == 7 * kWordBytes);
static_assert(offsetof(msghdr, msg_namelen) == kWordBytes && offsetof(msghdr, msg_iov) == 2 * kWordBytes);
static_assert(offsetof(msghdr, msg_control) == 4 * kWordBytes && offsetof(msghdr, msg_flags) == 6 * kWordBytes);
static_assert(sizeof(mmsghdr) == 8 * kWordBytes && offsetof(mmsghdr, msg_len) == 7 * kWordBytes);
static_assert(sizeof(cmsghdr) == kWordBytes + 8 && offsetof(cmsghdr, cmsg_type) == kWordBytes + 4);
static_assert(CMSG_SPACE(sizeof(int)) == kWordBytes + 8 + kWordBytes, "control messages are aligned to a word");

// The sizes and offsets are from include/uapi/linux/in.h, in6.h, un.h and if.h.
static_assert(sizeof(sockaddr_in) == 16 && offsetof(sockaddr_in, sin_addr) == 4);
static_assert(sizeof(sockaddr_in6) == 28 && offsetof(sockaddr_in6, sin6_addr) == 8);
static_assert(offsetof(sockaddr_in6, sin6_scope_id) == 24);
static_assert(sizeof(sockaddr_un) == 110 && offsetof(sockaddr_un, sun_path) == 2);
static_assert(sizeof(ifreq) == (kWordBytes == 8 ? 40 : 32) && offsetof(ifreq, ifr_flags) == 16);

// On 32-bit processors too, the C library's `time_t` must have 64 bits, because a 32-bit time overflows in 2038. A
// `timespec` with 64-bit times has the layout of the kernel's __kernel_timespec (include/uapi/linux/time_types.h).
// glibc before 2.34 has only 32-bit times on 32-bit processors, so the following check is left out with such a glibc.
// musl has 64-bit times since version 1.2.
#if !defined(__GLIBC__) || __GLIBC__ > 2 || __GLIBC_MINOR__ >= 34
static_assert(sizeof(time_t) == 8 && sizeof(timespec) == 16, "compile with -D_FILE_OFFSET_BITS=64 -D_TIME_BITS=64");
#endif
static_assert(sizeof(off_t) == 8, "compile with -D_FILE_OFFSET_BITS=64");

}  // namespace weft
