// watch.h - descriptors that the event loop watches, for the engine's faults and for JavaScript.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>

#include "../io/system.h"

namespace weft {

/// Calls a JavaScript function from the event loop while a descriptor is readable.
class Watcher {
 public:
  /// Fails where the descriptor is of a kind that cannot be waited for, or is none, or is watched already.
  static Failure start(Napi::Env env, int fd, std::function<void(Napi::Env)> on_readable,
                       std::unique_ptr<Watcher>& result);
  ~Watcher();

 private:
  struct State;
  explicit Watcher(std::shared_ptr<State> state) : state_(std::move(state)) {}

  static void close(State& state);
  static void end_with_environment(napi_async_cleanup_hook_handle, void* state);

  std::shared_ptr<State> state_;
};

/// The class of what watchReadable gives.
Napi::Function define_watcher(Napi::Env env);
void export_watch(Napi::Env env, Napi::Object exports);

}  // namespace weft
