// own_memory.cc - unmaps pages of the program's files that the process needed only while it started.
//
// The start runs much code of Node.js that never runs again, and the pages of this code count as this process's memory
// until memory is scarce. Only file mappings without a modified page are unmapped, so breakpoints of a debugger and
// code that Node.js moved to larger pages stay. The dynamic loader's lock is held during the unmapping, so that no
// other thread can unload a file and reuse its addresses.
#include "own_memory.h"

#include <inttypes.h>
#include <link.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <memory>
#include <vector>

namespace weft {

namespace {

struct Range {
  uintptr_t from;
  uintptr_t to;
};

/// Returns this process's file mappings that have no modified page (proc_pid_smaps(5)).
std::vector<Range> clean_mappings() {
  std::vector<Range> clean;
  const std::unique_ptr<FILE, int (*)(FILE*)> smaps(fopen("/proc/self/smaps", "re"), fclose);
  if (!smaps) return clean;
  char* line = nullptr;
  size_t room = 0;
  Range range{};
  bool is_file = false;
  while (getline(&line, &room, smaps.get()) > 0) {
    Range next{};
    char rights[5];
    uint64_t inode = 0;
    uint64_t written = 0;
    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*s %" SCNu64, &next.from, &next.to, rights, &inode) == 4) {
      range = next;
      is_file = inode != 0 && rights[1] != 'w';
    } else if (is_file && sscanf(line, "Anonymous: %" SCNu64, &written) == 1 && written == 0) {
      clean.push_back(range);
    }
  }
  free(line);
  return clean;
}

/// Unmaps the unmodified pages of a program's or library's read-only segments.
int drop_segments(dl_phdr_info* info, size_t, void* clean) {
  for (ElfW(Half) at = 0; at < info->dlpi_phnum; at++) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[at];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const uintptr_t from = info->dlpi_addr + segment.p_vaddr;
    for (const Range& range : *static_cast<const std::vector<Range>*>(clean)) {
      if (range.from < from + segment.p_memsz && from < range.to) {
        madvise(reinterpret_cast<void*>(range.from), range.to - range.from, MADV_DONTNEED);
      }
    }
  }
  return 0;
}

}  // namespace

void give_back_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  std::vector<Range> clean = clean_mappings();
  dl_iterate_phdr(drop_segments, &clean);
}

}  // namespace weft
