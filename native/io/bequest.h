// bequest.h - bytes that a process leaves, of which exactly one process gets the body: memory with a descriptor, to be
// sent to another process or kept by a service manager.
//
// Whoever wants the body seals the memory against more seals (memfd_create(2), F_SEAL_SEAL), which the kernel does once
// and refuses to whoever comes second: so there is no moment at which two have it, whichever of them dies when. It is
// wiped as soon as it was read. The head may be read by anybody before, and says whether the body is of use.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "../core/secret_bytes.h"
#include "system.h"

namespace weft {

/// None where the kernel has no room for it: then there is nothing to be had.
Fd leave_bequest(std::span<const uint8_t> head, std::span<const uint8_t> body);
/// Nothing of what is no bequest, or was taken.
std::optional<std::vector<uint8_t>> read_bequest_head(int fd);
/// Nothing of what is no bequest, or was taken; the body's bytes are whatever somebody wrote.
std::optional<SecretBytes> take_bequest(int fd);

}  // namespace weft
