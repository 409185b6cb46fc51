// own_memory.h - gives back to the kernel the memory that this process no longer needs.
#pragma once

namespace weft {

/// Returns memory that malloc has freed to the kernel, and unmaps unmodified pages of the program's own files. The
/// kernel maps those pages again from the page cache when they are used. Takes some milliseconds. Failures are ignored.
void give_back_memory();

}  // namespace weft
