// handover_state.h - the state that an engine passes to the next engine. The state is in a memfd (anonymous memory with
// a descriptor), which can be sent to another process or kept by a service manager. The state has a head, which may be
// read several times, and a secret body, which exactly one process gets.
//
// A process that takes the body first seals the memfd against further seals (memfd_create(2), F_SEAL_SEAL). The kernel
// allows this seal only once, so two processes never both get the body, regardless of when one of them dies. The
// process wipes the body as soon as it has read it. Any process may read the head first, which shows whether the
// process can use the body.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "../core/secret_bytes.h"
#include "system.h"

namespace weft {

/// Writes head and body of the hand-over state into a new memfd. Returns no descriptor if the kernel has no memory; in
/// that case no state is passed on.
Fd write_handover_state(std::span<const uint8_t> head, std::span<const uint8_t> body);
/// Returns the head of the hand-over state. Returns nothing if the memfd has another format, or if a process has
/// already taken the body.
std::optional<std::vector<uint8_t>> read_handover_head(int fd);
/// Takes the body out of the hand-over state, so that no other process can take it. Returns nothing if the memfd has
/// another format, or if a process has already taken the body. The bytes are untrusted input.
std::optional<SecretBytes> take_handover_state(int fd);

}  // namespace weft
