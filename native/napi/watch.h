// watch.h - watches descriptors on Node's event loop, to report failures of the engine, and for descriptors that
// JavaScript names.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>

#include "../io/system.h"

namespace weft {

class Watcher {
 public:
  /// Calls `on_readable` when `fd` has input. Fails if the descriptor cannot be polled, is invalid, or is already
  /// watched.
  static Failure start(Napi::Env env, int fd, std::function<void(Napi::Env)> on_readable,
                       std::unique_ptr<Watcher>& result);
  ~Watcher();
  /// Watches the descriptor again. libuv stops watching a descriptor that has an error, such as a netlink socket whose
  /// reports the kernel dropped (ENOBUFS). Returns 0, or a negative error number of libuv.
  int restart();

 private:
  struct State;
  explicit Watcher(std::shared_ptr<State> state) : state_(std::move(state)) {}

  static void close(State& state);
  static void end_with_environment(napi_async_cleanup_hook_handle, void* state);

  std::shared_ptr<State> state_;
};

Napi::Function define_watcher(Napi::Env env);
void export_watch(Napi::Env env, Napi::Object exports);

}  // namespace weft
