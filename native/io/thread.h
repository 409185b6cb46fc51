// thread.h - a thread that the kernel may refuse, which std::thread would throw.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <string>

#include "system.h"

namespace weft {

/// Joins when it is destroyed: whoever has one sees to it that it ends.
class Thread {
 public:
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { join(); }

  /// Starts it, once. It takes no signals: those are for Node's main thread. Fails with EAGAIN where threads are
  /// limited (pids cgroup, RLIMIT_NPROC).
  Failure start(const std::string& name, std::function<void()> body) {
    body_ = std::move(body);
    const auto run = [](void* self) -> void* {
      static_cast<Thread*>(self)->body_();
      return nullptr;
    };
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread_, nullptr, run, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0) return SystemError{"pthread_create", error};
    started_ = true;
    pthread_setname_np(thread_, name.c_str());
    return {};
  }
  bool started() const { return started_; }
  void join() {
    if (std::exchange(started_, false)) pthread_join(thread_, nullptr);
  }

 private:
  std::function<void()> body_;
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace weft
