// classes.h - the base class of the C++ objects that JavaScript owns.
//
// When a Node.js environment ends (a worker thread, process.exit), a cleanup hook stops every such object that
// JavaScript has not stopped. Otherwise the object's threads would continue to run, although the end of a worker thread
// unloads their code.
#pragma once

#include <napi.h>

namespace weft {

/// The constructors of the JavaScript classes, stored per Node.js environment.
struct Classes {
  Napi::FunctionReference engine;
  Napi::FunctionReference watcher;
  Napi::FunctionReference netlink_socket;
  Napi::FunctionReference netlink_monitor;
};

/// Calls shut_down() on the object when the Node.js environment ends, unless JavaScript stopped the object before.
template <typename T>
class WithCleanup : public Napi::ObjectWrap<T> {
 public:
  explicit WithCleanup(const Napi::CallbackInfo& info) : Napi::ObjectWrap<T>(info), environment_(info.Env()) {
    napi_add_env_cleanup_hook(environment_, &WithCleanup::clean_up, static_cast<T*>(this));
    this->Ref();  // keeps the JavaScript object alive until release()
  }

 protected:
  /// Must be called exactly once, when the object is stopped. Afterwards JavaScript may collect the object as garbage.
  void release() {
    napi_remove_env_cleanup_hook(environment_, &WithCleanup::clean_up, static_cast<T*>(this));
    this->Unref();
  }

 private:
  static void clean_up(void* self) { static_cast<T*>(self)->shut_down(); }
  napi_env environment_;
};

}  // namespace weft
