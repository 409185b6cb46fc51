// core_pipe.cc - reads jobs from standard input and writes answers to standard output (core_jobs.h). model.test.ts
// builds and runs it.
#include <unistd.h>

#include "core_jobs.h"

int main() {
  std::vector<uint8_t> in, piece(1 << 20);
  for (ssize_t size; (size = read(STDIN_FILENO, piece.data(), piece.size())) > 0;) {
    in.insert(in.end(), piece.begin(), piece.begin() + size);
  }
  const std::vector<uint8_t> out = weft::Jobs(in.data(), in.size()).run();
  for (size_t sent = 0; sent < out.size();) {
    const ssize_t size = write(STDOUT_FILENO, out.data() + sent, out.size() - sent);
    if (size <= 0) return 1;
    sent += static_cast<size_t>(size);
  }
  return 0;
}
