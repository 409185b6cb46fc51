// classes.h - the objects that JavaScript holds of ours, and how each is stopped.
//
// When the environment ends (a worker, process.exit), what nobody has stopped is stopped by a cleanup hook: a worker's
// end unloads this code.
#pragma once

#include <napi.h>

namespace weft {

/// The environment's own.
struct Classes {
  Napi::FunctionReference engine;
  Napi::FunctionReference watcher;
};

/// Stops something when the environment ends, if nobody has before.
template <typename T>
class WithCleanup : public Napi::ObjectWrap<T> {
 public:
  explicit WithCleanup(const Napi::CallbackInfo& info) : Napi::ObjectWrap<T>(info), environment_(info.Env()) {
    napi_add_env_cleanup_hook(environment_, &WithCleanup::clean_up, static_cast<T*>(this));
    this->Ref();  // lives until stopped
  }

 protected:
  /// Call once, when stopped.
  void release() {
    napi_remove_env_cleanup_hook(environment_, &WithCleanup::clean_up, static_cast<T*>(this));
    this->Unref();
  }

 private:
  static void clean_up(void* self) { static_cast<T*>(self)->shut_down(); }
  napi_env environment_;
};

}  // namespace weft
