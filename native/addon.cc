// addon.cc - arguments and life times between JavaScript and the engine. This file and the napi_ ones alone know N-API.
//
// Threads never call into JavaScript: a fault is an eventfd that the event loop watches. When the environment ends (a
// worker, process.exit), engines that run are stopped by a cleanup hook, threads joined and descriptors closed, and
// what libuv still has of ours is waited for: a worker's end unloads this code. Descriptors that JavaScript has as
// numbers are JavaScript's.
#include <errno.h>
#include <fcntl.h>
#include <napi.h>
#include <string.h>
#include <uv.h>

#include "core/counters.h"
#include "engine.h"
#include "io/clock.h"
#include "io/tun.h"
#include "napi_host.h"
#include "napi_values.h"

namespace weft {

namespace {

uv_loop_t* event_loop(Napi::Env env) {
  uv_loop_t* loop = nullptr;
  napi_get_uv_event_loop(env, &loop);
  return loop;
}

/// Calls a JavaScript function from the event loop while a descriptor is readable.
class Watcher {
 public:
  /// Fails where the descriptor is of a kind that cannot be waited for, or is none, or is watched already.
  static Failure start(Napi::Env env, int fd, std::function<void(Napi::Env)> on_readable,
                       std::unique_ptr<Watcher>& result) {
    auto state = std::make_shared<State>(env, std::move(on_readable));
    if (const int error = uv_poll_init(event_loop(env), &state->poll, fd)) return SystemError{"uv_poll_init", -error};
    state->poll.data = state.get();
    state->open = state;
    napi_add_async_cleanup_hook(env, &Watcher::end_with_environment, state.get(), &state->hook);
    result.reset(new Watcher(state));
    const int error = uv_poll_start(&state->poll, UV_READABLE, [](uv_poll_t* poll, int, int) {
      auto* state = static_cast<State*>(poll->data);
      Napi::Env env = state->env;
      Napi::HandleScope scope(env);
      state->on_readable(env);
      // What it threw is nobody's to catch. Left pending, it would be thrown by whatever call into the addon is next.
      if (env.IsExceptionPending()) napi_fatal_exception(env, env.GetAndClearPendingException().Value());
    });
    if (error == 0) return {};
    result.reset();
    return SystemError{"uv_poll_start", -error};
  }
  ~Watcher() { close(*state_); }

 private:
  struct State {
    State(Napi::Env environment, std::function<void(Napi::Env)> callback)
        : env(environment), on_readable(std::move(callback)) {}
    uv_poll_t poll{};
    Napi::Env env;
    std::function<void(Napi::Env)> on_readable;
    napi_async_cleanup_hook_handle hook = nullptr;  // the environment does not end before it is removed
    std::shared_ptr<State> open;                    // itself, until libuv has closed the handle
  };
  explicit Watcher(std::shared_ptr<State> state) : state_(std::move(state)) {}

  static void close(State& state) {
    auto* handle = reinterpret_cast<uv_handle_t*>(&state.poll);
    if (uv_is_closing(handle)) return;
    uv_close(handle, [](uv_handle_t* closed) {
      const auto state = std::move(static_cast<State*>(closed->data)->open);
      napi_remove_async_cleanup_hook(state->hook);
    });
  }
  static void end_with_environment(napi_async_cleanup_hook_handle, void* state) { close(*static_cast<State*>(state)); }

  std::shared_ptr<State> state_;
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

/// Joins the threads in a thread of libuv's pool: one that hangs must not stop the event loop. Then closes the
/// descriptors, or gives them back. Of an engine that was ended before there is nothing to close, and nothing to give.
class EndWorker : public Napi::AsyncWorker {
 public:
  EndWorker(Napi::Env env, std::unique_ptr<Engine> engine, Napi::ObjectReference counters, bool give_back)
      : AsyncWorker(env),
        engine_(std::move(engine)),
        counters_(std::move(counters)),
        give_back_(give_back),
        promise_(Napi::Promise::Deferred::New(env)) {}
  Napi::Promise promise() const { return promise_.Promise(); }

 protected:
  void Execute() override {
    if (!engine_) {
      if (give_back_) failure_ = SystemError{"release", EBADF};
      return;
    }
    if (give_back_) descriptors_ = engine_->release();
    engine_.reset();
  }
  void OnOK() override {
    if (failure_) return promise_.Reject(to_error(Env(), *failure_).Value());
    promise_.Resolve(give_back_ ? to_object(Env(), std::move(descriptors_)) : Env().Undefined());
  }

 private:
  std::unique_ptr<Engine> engine_;
  Napi::ObjectReference counters_;  // the threads write into it until then
  bool give_back_;
  Failure failure_;
  Descriptors descriptors_;
  Napi::Promise::Deferred promise_;
};

class EngineHandle : public WithCleanup<EngineHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "NativeEngine",
        {InstanceMethod<&EngineHandle::set_peers>("setPeers"),
         InstanceMethod<&EngineHandle::change_peers>("changePeers"),
         InstanceMethod<&EngineHandle::ask_threads>("askThreads"),
         InstanceMethod<&EngineHandle::take_strangers>("takeStrangers"),
         InstanceMethod<&EngineHandle::traffic>("traffic"), InstanceMethod<&EngineHandle::drops>("drops"),
         InstanceMethod<&EngineHandle::release_descriptors>("release"), InstanceMethod<&EngineHandle::stop>("stop"),
         InstanceAccessor<&EngineHandle::offloads>("offloads")});
  }

  explicit EngineHandle(const Napi::CallbackInfo& info) : WithCleanup(info) {}

  Failure run(Descriptors descriptors, const RunOptions& options, Napi::BigUint64Array counters,
              Napi::Function on_fault) {
    Failure failure = Engine::run(std::move(descriptors), options, counters.Data(), engine_);
    if (!failure) {
      const auto tell = [this](Napi::Env env) {
        watcher_.reset();
        on_fault_.MakeCallback(env.Global(), {to_error(env, engine_->fault().error()).Value()});
      };
      failure = Watcher::start(Env(), engine_->fault().event(), tell, watcher_);
    }
    if (failure) {
      engine_.reset();
      release();
      return failure;
    }
    counters_ = Napi::Persistent(static_cast<Napi::Object>(counters));
    on_fault_ = Napi::Persistent(on_fault);
    return {};
  }

  Failure priority_refused() const { return engine_->priority_refused(); }

  void shut_down() {
    watcher_.reset();
    engine_.reset();
  }

 private:
  void set_peers(const Napi::CallbackInfo& info) {
    const auto records = info[0].As<Napi::Uint8Array>();
    if (engine_) engine_->set_peers({records.Data(), records.ByteLength()});
  }
  void change_peers(const Napi::CallbackInfo& info) {
    const auto records = info[0].As<Napi::Uint8Array>();
    if (engine_) engine_->change_peers({records.Data(), records.ByteLength()});
  }
  Napi::Value ask_threads(const Napi::CallbackInfo& info) {
    Napi::Object rounds = Napi::Object::New(info.Env());
    if (!engine_) return rounds;
    for (const ThreadRounds& thread : engine_->ask_threads()) {
      rounds.Set(thread.name, Napi::Number::New(info.Env(), static_cast<double>(thread.rounds)));
    }
    return rounds;
  }
  Napi::Value take_strangers(const Napi::CallbackInfo& info) {
    Napi::Env env = info.Env();
    Napi::Array strangers = Napi::Array::New(env);
    if (!engine_) return strangers;
    engine_->take_strangers([&](const Stranger& stranger) {
      Napi::Object object = Napi::Object::New(env);
      object.Set("from", to_number(stranger.from));
      object.Set("source", to_number(stranger.source));
      object.Set("destination", to_number(stranger.destination));
      object.Set("reason", std::string(kCounterNames[stranger.reason]));
      strangers.Set(strangers.Length(), object);
    });
    return strangers;
  }
  Napi::Value traffic(const Napi::CallbackInfo& info) {
    const uint32_t slots = engine_ ? engine_->traffic_slots() : 0;
    const uint32_t first = info[0].IsNumber() ? info[0].As<Napi::Number>().Uint32Value() : 0;
    const uint32_t end = info[0].IsNumber() ? std::min(slots, first + 1) : slots;
    auto array = Napi::Float64Array::New(info.Env(), size_t{end > first ? end - first : 0} * 5);
    const auto now = static_cast<uint64_t>(now_ms());
    double* out = array.Data();
    for (uint32_t slot = first; slot < end; slot++) {
      const Traffic sum = engine_->traffic(slot);
      for (const uint64_t count : {sum.tx_packets, sum.tx_bytes, sum.rx_packets, sum.rx_bytes}) {
        *out++ = static_cast<double>(count);
      }
      *out++ = sum.heard_ms == 0 ? -1 : static_cast<double>(now - std::min(now, sum.heard_ms));
    }
    return array;
  }
  Napi::Value drops(const Napi::CallbackInfo& info) {
    Napi::Env env = info.Env();
    const auto after = info[0].As<Napi::Array>();
    Napi::Array next = Napi::Array::New(env), packets = Napi::Array::New(env);
    const int64_t since_1970_us = day_us() - monotonic_us();
    if (engine_) {
      for (const Drops& drops : engine_->drops()) {
        const Napi::Value from = after.Get(next.Length());
        const uint64_t first = from.IsNumber() ? static_cast<uint64_t>(from.As<Napi::Number>().DoubleValue()) : 0;
        const uint64_t end = drops.read(
            first, [&](const KeptDrop& kept) { packets.Set(packets.Length(), to_object(env, kept, since_1970_us)); });
        next.Set(next.Length(), static_cast<double>(end));
      }
    }
    Napi::Object result = Napi::Object::New(env);
    result.Set("next", next);
    result.Set("packets", packets);
    return result;
  }
  Napi::Value stop(const Napi::CallbackInfo& info) { return end(info.Env(), false); }
  Napi::Value release_descriptors(const Napi::CallbackInfo& info) { return end(info.Env(), true); }
  Napi::Value end(Napi::Env env, bool give_back) {
    watcher_.reset();
    if (engine_) release();
    auto* worker = new EndWorker(env, std::move(engine_), std::move(counters_), give_back);  // deletes itself when done
    worker->Queue();
    return worker->promise();
  }
  Napi::Value offloads(const Napi::CallbackInfo& info) {
    return to_array(info.Env(), names_of(engine_ ? engine_->features().bits() : 0));
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Watcher> watcher_;
  Napi::ObjectReference counters_;  // the threads write into it
  Napi::FunctionReference on_fault_;
};

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

struct Classes {
  Napi::FunctionReference engine;
  Napi::FunctionReference watcher;
};

Napi::Value open_descriptors_of(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  const auto given = info[0].As<Napi::Object>();
  OpenOptions options;
  options.tun_name = given.Get("tunName").As<Napi::String>();
  const auto port = static_cast<uint16_t>(given.Get("port").As<Napi::Number>().Uint32Value());
  options.bind_address = SocketAddress(to_address(given.Get("bindAddress")), to_be16(port));
  options.workers = given.Get("workers").As<Napi::Number>().Uint32Value();
  options.features = features_of(given.Get("features").As<Napi::Array>());

  Descriptors descriptors;
  ReceiveBuffer receive_buffer;
  if (Failure failure = open_descriptors(options, descriptors, receive_buffer)) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  Napi::Object result = to_object(env, std::move(descriptors));
  result.Set("receiveBufferAsked", receive_buffer.asked_bytes);
  result.Set("receiveBufferGranted", receive_buffer.granted_bytes);
  return result;
}

Napi::Value run_engine(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Descriptors descriptors = to_descriptors(info[0].As<Napi::Object>());
  const auto given = info[1].As<Napi::Object>();
  const std::string encapsulation = given.Get("encapsulation").As<Napi::String>();
  RunOptions options;
  options.encapsulation = encapsulation;
  options.tun_address = to_address(given.Get("tunAddress"));
  options.network_address = to_address(given.Get("networkAddress"));
  options.clamp_mss = given.Get("clampMss").As<Napi::Boolean>();
  options.filter = to_filter(given.Get("filter").As<Napi::Object>());
  const auto own = given.Get("ownEnd").As<Napi::Uint8Array>();
  std::memcpy(options.own.encap.data(), own.Data(), std::min(own.ByteLength(), options.own.encap.size()));
  options.own.mtu = given.Get("mtu").As<Napi::Number>().Uint32Value();
  const auto peers = given.Get("peers").As<Napi::Uint8Array>();
  options.peers = {peers.Data(), peers.ByteLength()};
  options.loops = {given.Get("naive").As<Napi::Boolean>(), given.Get("nice").As<Napi::Number>().Int32Value(),
                   given.Get("pollUs").As<Napi::Number>().Int64Value()};

  if (Failure failure = set_persistent(descriptors.loops[0].tun.get(), given.Get("persistent").As<Napi::Boolean>())) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  auto counters = Napi::BigUint64Array::New(env, descriptors.loops.size() * kCounterCount, napi_biguint64_array);
  Napi::Object handle = env.GetInstanceData<Classes>()->engine.New({});
  EngineHandle* engine = EngineHandle::Unwrap(handle);
  if (Failure failure = engine->run(std::move(descriptors), options, counters, info[2].As<Napi::Function>())) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  handle.Set("counters", counters);
  if (Failure refused = engine->priority_refused()) handle.Set("priorityRefused", to_error(env, *refused).Message());
  return handle;
}

Napi::Value watch_readable(const Napi::CallbackInfo& info) {
  return info.Env().GetInstanceData<Classes>()->watcher.New({info[0], info[1]});
}

/// What both ways of locking ask for: the whole file, for writing.
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// Waits for the lock in a thread of libuv's pool.
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
  auto* worker = new LockWorker(info.Env(), info[0].As<Napi::Number>().Int32Value());  // deletes itself when done
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

void exit_now(const Napi::CallbackInfo& info) { _exit(info[0].As<Napi::Number>().Int32Value()); }

Napi::Object init(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(
      new Classes{Napi::Persistent(EngineHandle::define(env)), Napi::Persistent(WatcherHandle::define(env))});
  exports.Set("counterNames", to_array(env, {kCounterNames.begin(), kCounterNames.end()}));
  exports.Set("counterTexts", to_array(env, {kCounterTexts.begin(), kCounterTexts.end()}));
  exports.Set("featureNames", to_array(env, names_of(kAllFeatures)));
  exports.Set("openDescriptors", Napi::Function::New<open_descriptors_of>(env));
  exports.Set("runEngine", Napi::Function::New<run_engine>(env));
  exports.Set("watchReadable", Napi::Function::New<watch_readable>(env));
  exports.Set("lockFile", Napi::Function::New<lock_file>(env));
  exports.Set("tryLockFile", Napi::Function::New<try_lock_file>(env));
  export_host(env, exports);
  exports.Set("exitNow", Napi::Function::New<exit_now>(env));
  return exports;
}

}  // namespace

NODE_API_MODULE(NODE_GYP_MODULE_NAME, init)

}  // namespace weft
