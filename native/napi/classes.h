// classes.h - base class of the objects that JavaScript owns.
//
// When the environment ends (a worker thread, process.exit), a cleanup hook stops every object that JavaScript has not
// stopped, because the end of a worker unloads this code.
#pragma once

#include <napi.h>

namespace weft {

/// The constructors, stored per environment.
struct Classes {
  Napi::FunctionReference engine;
  Napi::FunctionReference watcher;
};

/// Stops an object when the environment ends, unless it was stopped before.
template <typename T>
class WithCleanup : public Napi::ObjectWrap<T> {
 public:
  explicit WithCleanup(const Napi::CallbackInfo& info) : Napi::ObjectWrap<T>(info), environment_(info.Env()) {
    napi_add_env_cleanup_hook(environment_, &WithCleanup::clean_up, static_cast<T*>(this));
    this->Ref();  // keeps the object alive until release()
  }

 protected:
  /// Must be called once, when the object is stopped.
  void release() {
    napi_remove_env_cleanup_hook(environment_, &WithCleanup::clean_up, static_cast<T*>(this));
    this->Unref();
  }

 private:
  static void clean_up(void* self) { static_cast<T*>(self)->shut_down(); }
  napi_env environment_;
};

}  // namespace weft
