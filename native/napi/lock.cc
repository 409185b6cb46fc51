// lock.cc - takes open-file-description locks, either immediately or by waiting in a thread of libuv's pool.
#include "lock.h"

#include <errno.h>
#include <fcntl.h>

#include "background.h"
#include "values.h"

namespace weft {

namespace {

struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

Failure wait_for_lock(int fd) {
  struct flock lock = whole_file();
  while (fcntl(fd, F_OFD_SETLKW, &lock) < 0)
    if (errno != EINTR) return SystemError{"fcntl F_OFD_SETLKW", errno};
  return {};
}

Napi::Value lock_file(const Napi::CallbackInfo& info) {
  return in_background(info.Env(), [fd = info[0].As<Napi::Number>().Int32Value()] { return wait_for_lock(fd); });
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
