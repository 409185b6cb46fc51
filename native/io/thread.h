// thread.h - a thread that the kernel may refuse, which std::thread would throw.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <functional>
#include <semaphore>
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

  /// Starts it, once, at the priority `nice` of setpriority(2), where 0 stands for that of whoever starts it. It takes
  /// no signals: those are for Node's main thread. Fails with EAGAIN where threads are limited (pids cgroup,
  /// RLIMIT_NPROC).
  Failure start(const std::string& name, int nice, std::function<void()> body) {
    body_ = std::move(body);
    nice_ = nice;
    const auto run = [](void* self) -> void* {
      static_cast<Thread*>(self)->run();
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
    begun_.acquire();
    return {};
  }
  /// Nothing, or why it runs at the priority of whoever started it: EACCES without CAP_SYS_NICE and RLIMIT_NICE.
  Failure priority_refused() const {
    return priority_error_ == 0 ? Failure{} : SystemError{"setpriority", priority_error_};
  }
  /// To be called by the thread itself: it goes on at its own priority, or at that of whoever started it. If the
  /// kernel refuses either, it stays as it is.
  void go_first(bool first) {
    if (nice_ != 0 && priority_error_ == 0) setpriority(PRIO_PROCESS, 0, first ? nice_ : usual_nice_);
  }
  bool started() const { return started_; }
  void join() {
    if (std::exchange(started_, false)) pthread_join(thread_, nullptr);
  }

 private:
  void run() {
    // 0 stands for the calling thread: priorities are a thread's own in Linux (setpriority(2), C library differences).
    usual_nice_ = getpriority(PRIO_PROCESS, 0);
    if (nice_ != 0 && setpriority(PRIO_PROCESS, 0, nice_) != 0) priority_error_ = errno;
    begun_.release();
    body_();
  }

  std::function<void()> body_;
  int nice_ = 0;
  int usual_nice_ = 0;
  int priority_error_ = 0;
  std::binary_semaphore begun_{0};
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace weft
