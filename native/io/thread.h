// thread.h - a thread whose creation may fail with an errno, whereas std::thread would throw an exception.
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

/// A thread that the destructor joins. The owner must first make the thread's function return.
class Thread {
 public:
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { join(); }

  /// Starts the thread. May be called only once. `nice` is the thread's nice value (setpriority(2)); 0 means the nice
  /// value of the calling thread. The thread blocks all signals, because Node.js handles them in its main thread. Fails
  /// with EAGAIN if the number of threads is limited (pids cgroup, RLIMIT_NPROC).
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
  /// The error of setting the thread's nice value; empty without an error. The errno is EACCES if the process lacks
  /// CAP_SYS_NICE and RLIMIT_NICE is too low.
  Failure priority_refused() const {
    return priority_error_ == 0 ? Failure{} : SystemError{"setpriority", priority_error_};
  }
  bool started() const { return started_; }
  void join() {
    if (std::exchange(started_, false)) pthread_join(thread_, nullptr);
  }

 private:
  void run() {
    // The 0 in the call means the calling thread, because on Linux each thread has its own nice value (setpriority(2),
    // C library differences).
    if (nice_ != 0 && setpriority(PRIO_PROCESS, 0, nice_) != 0) priority_error_ = errno;
    begun_.release();
    body_();
  }

  std::function<void()> body_;
  int nice_ = 0;
  int priority_error_ = 0;
  std::binary_semaphore begun_{0};
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace weft
