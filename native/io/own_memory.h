// own_memory.h - returns to the kernel the memory that this process no longer needs.
#pragma once

namespace weft {

/// Gives unused memory of malloc back to the kernel, and unmaps unmodified pages of the program's own files. When the
/// program uses these pages again, the kernel maps them from the page cache. Takes some milliseconds. Ignores failures.
void give_back_memory();

}  // namespace weft
