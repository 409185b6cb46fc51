// lock.cc - takes open-file-description locks, either immediately or by waiting in a thread of libuv's pool.
#include "lock.h"

#include <errno.h>
#include <fcntl.h>

#include "values.h"

namespace weft {

namespace {

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

class LockWorker : public Napi::AsyncWorker {
 public:
  LockWorker(Napi::Env env, int fd) : AsyncWorker(env), fd_(fd), promise_(Napi::Promise::Deferred::New(env)) {}
  Napi::Promise promise() const { return promise_.Promise(); }

 protected:
  void Execute() override {
    struct flock lock = whole_file();
    while (fcntl(fd_, F_OFD_SETLKW, &lock) < 0) {
      if (errno == EINTR) continue;
      error_ = errno;
      return;
    }
  }
  void OnOK() override {
    if (error_) return promise_.Reject(to_error(Env(), {"fcntl F_OFD_SETLKW", error_}).Value());
    promise_.Resolve(Env().Undefined());
  }

 private:
  int fd_;
  int error_ = 0;
  Napi::Promise::Deferred promise_;
};

Napi::Value lock_file(const Napi::CallbackInfo& info) {
  // The LockWorker deletes itself when it is done.
  auto* worker = new LockWorker(info.Env(), info[0].As<Napi::Number>().Int32Value());
  worker->Queue();
  return worker->promise();
}

Napi::Value try_lock_file(const Napi::CallbackInfo& info) {
  struct flock lock = whole_file();
  if (fcntl(info[0].As<Napi::Number>().Int32Value(), F_OFD_SETLK, &lock) == 0)
    return Napi::Boolean::New(info.Env(), true);
  if (errno != EAGAIN && errno != EACCES)
    to_error(info.Env(), {"fcntl F_OFD_SETLK", errno}).ThrowAsJavaScriptException();
  return Napi::Boolean::New(info.Env(), false);
}

}  // namespace

void export_lock(Napi::Env env, Napi::Object exports) {
  exports.Set("lockFile", Napi::Function::New<lock_file>(env));
  exports.Set("tryLockFile", Napi::Function::New<try_lock_file>(env));
}

}  // namespace weft
