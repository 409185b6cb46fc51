// own_memory.h - returns memory that the process no longer needs to the kernel.
#pragma once

namespace weft {

/// Returns freed memory of malloc, and unmaps the clean pages of the program's own files. The kernel maps those pages
/// again from the page cache when they are used. Takes some milliseconds. Failures are ignored.
void give_back_memory();

}  // namespace weft
