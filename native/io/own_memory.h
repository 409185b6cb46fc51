// own_memory.h - what this process holds of memory and does not need.
#pragma once

namespace weft {

/// Gives back to the kernel what malloc keeps of freed memory, and the pages of the program's own files, which come
/// again from the page cache when they are used. Takes some milliseconds. Does as much as it can: nothing depends on
/// it.
void give_back_memory();

}  // namespace weft
