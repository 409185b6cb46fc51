// watch.cc - watches a descriptor with uv_poll. A cleanup hook delays the end of the Node.js environment until libuv
// has closed the handle.
#include "watch.h"

#include <uv.h>

#include "classes.h"
#include "values.h"

namespace weft {

namespace {

uv_loop_t* event_loop(Napi::Env env) {
  uv_loop_t* loop = nullptr;
  napi_get_uv_event_loop(env, &loop);
  return loop;
}

}  // namespace

struct Watcher::State {
  State(Napi::Env environment, std::function<void(Napi::Env)> callback)
      : env(environment), on_readable(std::move(callback)) {}
  uv_poll_t poll{};
  Napi::Env env;
  std::function<void(Napi::Env)> on_readable;
  napi_async_cleanup_hook_handle hook = nullptr;  // delays the end of the environment until it is removed
  std::shared_ptr<State> open;                    // a reference to this State itself, until libuv has closed the handle
};

Failure Watcher::start(Napi::Env env, int fd, std::function<void(Napi::Env)> on_readable,
                       std::unique_ptr<Watcher>& result) {
  auto state = std::make_shared<State>(env, std::move(on_readable));
  if (const int error = uv_poll_init(event_loop(env), &state->poll, fd)) return SystemError{"uv_poll_init", -error};
  state->poll.data = state.get();
  state->open = state;
  napi_add_async_cleanup_hook(env, &Watcher::end_with_environment, state.get(), &state->hook);
  result.reset(new Watcher(state));
  const int error = result->restart();
  if (error == 0) return {};
  result.reset();
  return SystemError{"uv_poll_start", -error};
}

int Watcher::restart() {
  return uv_poll_start(&state_->poll, UV_READABLE, [](uv_poll_t* poll, int, int) {
    auto* state = static_cast<State*>(poll->data);
    Napi::Env env = state->env;
    Napi::HandleScope scope(env);
    state->on_readable(env);
    // Report an exception of the callback as uncaught. If it stayed pending, the next call into the addon would throw
    // it.
    if (env.IsExceptionPending()) napi_fatal_exception(env, env.GetAndClearPendingException().Value());
  });
}

Watcher::~Watcher() { close(*state_); }

void Watcher::end_with_environment(napi_async_cleanup_hook_handle, void* state) { close(*static_cast<State*>(state)); }

void Watcher::close(State& state) {
  auto* handle = reinterpret_cast<uv_handle_t*>(&state.poll);
  if (uv_is_closing(handle)) return;
  uv_close(handle, [](uv_handle_t* closed) {
    const auto state = std::move(static_cast<State*>(closed->data)->open);
    napi_remove_async_cleanup_hook(state->hook);
  });
}

namespace {

class WatcherHandle : public WithCleanup<WatcherHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "ReadWatcher", {InstanceMethod<&WatcherHandle::stop>("stop")});
  }
  explicit WatcherHandle(const Napi::CallbackInfo& info) : WithCleanup(info) {
    callback_ = Napi::Persistent(info[1].As<Napi::Function>());
    const auto tell = [this](Napi::Env env) { callback_.MakeCallback(env.Global(), {}); };
    const Failure failure = Watcher::start(info.Env(), info[0].As<Napi::Number>().Int32Value(), tell, watcher_);
    if (!failure) return;
    release();
    to_error(info.Env(), *failure).ThrowAsJavaScriptException();
  }
  void shut_down() { watcher_.reset(); }

 private:
  void stop(const Napi::CallbackInfo&) {
    if (!watcher_) return;
    shut_down();
    release();
  }
  std::unique_ptr<Watcher> watcher_;
  Napi::FunctionReference callback_;
};

Napi::Value watch_readable(const Napi::CallbackInfo& info) {
  return info.Env().GetInstanceData<Classes>()->watcher.New({info[0], info[1]});
}

}  // namespace

Napi::Function define_watcher(Napi::Env env) { return WatcherHandle::define(env); }

void export_watch(Napi::Env env, Napi::Object exports) {
  exports.Set("watchReadable", Napi::Function::New<watch_readable>(env));
}

}  // namespace weft
