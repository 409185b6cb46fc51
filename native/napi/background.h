// background.h - does work that may block, such as a system call that waits for a lock of the kernel, in a thread of
// libuv's pool, and returns a promise to JavaScript.
#pragma once

#include <napi.h>

#include <utility>

#include "../io/system.h"
#include "values.h"

namespace weft {

template <typename Out, typename Work, typename Finish>
class BackgroundWorker : public Napi::AsyncWorker {
 public:
  BackgroundWorker(Napi::Env env, Work work, Finish finish)
      : AsyncWorker(env),
        work_(std::move(work)),
        finish_(std::move(finish)),
        promise_(Napi::Promise::Deferred::New(env)) {}
  Napi::Promise promise() const { return promise_.Promise(); }

 protected:
  void Execute() override { failure_ = work_(out_); }
  void OnOK() override {
    if (failure_) return promise_.Reject(to_error(Env(), *failure_).Value());
    promise_.Resolve(finish_(Env(), out_));
  }

 private:
  Work work_;
  Finish finish_;
  Out out_{};
  Failure failure_;
  Napi::Promise::Deferred promise_;
};

/// Calls `work`, which takes an `Out&` and returns a Failure, in a thread of libuv's pool. Then calls `finish` on the
/// event loop with the environment and the `Out`, and resolves the promise with its result. If `work` fails, rejects
/// the promise instead. `work` must not use JavaScript values. Both functions are destroyed on the event loop.
template <typename Out, typename Work, typename Finish>
Napi::Promise in_background(Napi::Env env, Work work, Finish finish) {
  // The worker deletes itself when it is done.
  auto* worker = new BackgroundWorker<Out, Work, Finish>(env, std::move(work), std::move(finish));
  const Napi::Promise promise = worker->promise();
  worker->Queue();
  return promise;
}

/// Calls `work` without arguments in a thread of libuv's pool. Resolves the promise with undefined.
template <typename Work>
Napi::Promise in_background(Napi::Env env, Work work) {
  struct Nothing {};
  return in_background<Nothing>(
      env, [work = std::move(work)](Nothing&) mutable { return work(); },
      [](Napi::Env result_env, Nothing&) { return result_env.Undefined(); });
}

}  // namespace weft
