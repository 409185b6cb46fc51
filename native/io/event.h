// event.h - an eventfd that one thread signals and for which another thread waits.
#pragma once

#include <errno.h>
#include <sys/eventfd.h>

#include <cstdint>

#include "system.h"

namespace weft {

class Event {
 public:
  Event() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), error_(fd_ ? 0 : errno) {}
  Failure failure() const { return error_ == 0 ? Failure{} : SystemError{"eventfd", error_}; }
  /// The eventfd, readable from a signal() to the next clear(); negative if it could not be created.
  int fd() const { return fd_.get(); }
  void signal() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof one);
  }
  void clear() const {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(fd_.get(), &count, sizeof count);
  }

 private:
  Fd fd_;
  int error_;
};

}  // namespace weft
