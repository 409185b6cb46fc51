// engine.cc - the JavaScript interface of the engine: its arguments, its methods, and how it is stopped.
//
// The engine's threads never call JavaScript. They signal an eventfd, which the event loop watches. JavaScript owns
// descriptors, which it has as numbers, until it passes them to runEngine().
#include "engine.h"

#include <errno.h>

#include "../engine.h"
#include "../io/clock.h"
#include "../io/handover_state.h"
#include "../io/tun.h"
#include "background.h"
#include "classes.h"
#include "values.h"
#include "watch.h"

namespace weft {

namespace {

class EngineHandle : public WithCleanup<EngineHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "NativeEngine",
        {InstanceMethod<&EngineHandle::set_peers>("setPeers"),
         InstanceMethod<&EngineHandle::change_peers>("changePeers"),
         InstanceMethod<&EngineHandle::ask_threads>("askThreads"),
         InstanceMethod<&EngineHandle::take_unknown_senders>("takeUnknownSenders"),
         InstanceMethod<&EngineHandle::set_keys>("setKeys"),
         InstanceMethod<&EngineHandle::forget_session>("forgetSession"),
         InstanceMethod<&EngineHandle::take_mail>("takeMail"), InstanceMethod<&EngineHandle::send>("send"),
         InstanceMethod<&EngineHandle::follow_switches>("followSwitches"),
         InstanceMethod<&EngineHandle::traffic>("traffic"), InstanceMethod<&EngineHandle::drops>("drops"),
         InstanceMethod<&EngineHandle::release_descriptors>("release"), InstanceMethod<&EngineHandle::stop>("stop"),
         InstanceAccessor<&EngineHandle::offloads>("offloads"), InstanceAccessor<&EngineHandle::tun_name>("tunName")});
  }

  explicit EngineHandle(const Napi::CallbackInfo& info) : WithCleanup(info) {}

  Failure run(Descriptors descriptors, const RunOptions& options, Napi::BigUint64Array counters,
              Napi::Function on_fault, const Napi::Value& on_mail) {
    Failure failure = Engine::run(std::move(descriptors), options, counters.Data(), engine_);
    if (!failure) {
      const auto tell = [this](Napi::Env env) {
        watcher_.reset();
        on_fault_.MakeCallback(env.Global(), {to_error(env, engine_->fault().error()).Value()});
      };
      failure = Watcher::start(Env(), engine_->fault().event(), tell, watcher_);
    }
    if (!failure && engine_->sessions() && on_mail.IsFunction()) {
      const auto tell = [this](Napi::Env env) {
        engine_->mail_event().clear();
        on_mail_.MakeCallback(env.Global(), {});
      };
      failure = Watcher::start(Env(), engine_->mail_event().fd(), tell, mail_watcher_);
      on_mail_ = Napi::Persistent(on_mail.As<Napi::Function>());
    }
    if (failure) {
      watcher_.reset();
      engine_.reset();
      release();
      return failure;
    }
    counters_ = Napi::Persistent(static_cast<Napi::Object>(counters));
    on_fault_ = Napi::Persistent(on_fault);
    return {};
  }

  bool has_kept_sessions() const { return engine_->has_kept_sessions(); }
  Failure steering_refused() const { return engine_->steering_refused(); }
  Failure priority_refused() const { return engine_->priority_refused(); }

  void shut_down() {
    watcher_.reset();
    mail_watcher_.reset();
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
  /// Reads the TUN's offload settings in the background, because the kernel answers only when it has its lock of all
  /// network devices (RTNL).
  Napi::Value follow_switches(const Napi::CallbackInfo& info) {
    if (!engine_) return in_background(info.Env(), [] { return Failure{}; });
    return in_background<JoinSwitches>(
        info.Env(),
        [name = engine_->tun_name()](JoinSwitches& switches) {
          switches = join_switches(name);
          return Failure{};
        },
        [this, self = Napi::Persistent(Value())](Napi::Env env, const JoinSwitches& switches) {
          if (engine_) engine_->set_switches(switches);
          return env.Undefined();
        });
  }
  Napi::Value tun_name(const Napi::CallbackInfo& info) {
    return engine_ ? Napi::String::New(info.Env(), engine_->tun_name()) : info.Env().Undefined();
  }
  Napi::Value ask_threads(const Napi::CallbackInfo& info) {
    Napi::Object rounds = Napi::Object::New(info.Env());
    if (!engine_) return rounds;
    for (const ThreadRounds& thread : engine_->ask_threads()) {
      rounds.Set(thread.name, Napi::Number::New(info.Env(), static_cast<double>(thread.rounds)));
    }
    return rounds;
  }
  Napi::Value take_unknown_senders(const Napi::CallbackInfo& info) {
    Napi::Env env = info.Env();
    Napi::Array unknown_senders = Napi::Array::New(env);
    if (!engine_) return unknown_senders;
    engine_->take_unknown_senders([&](const UnknownSender& sender) {
      Napi::Object object = Napi::Object::New(env);
      object.Set("from", to_value(env, sender.from));
      object.Set("source", to_value(env, sender.source));
      object.Set("destination", to_value(env, sender.destination));
      object.Set("reason", std::string(kCounterNames[sender.reason]));
      unknown_senders.Set(unknown_senders.Length(), object);
    });
    return unknown_senders;
  }
  Napi::Value traffic(const Napi::CallbackInfo& info) {
    const uint32_t slots = engine_ ? engine_->traffic_slots() : 0;
    const uint32_t first = info[0].IsNumber() ? info[0].As<Napi::Number>().Uint32Value() : 0;
    const uint32_t end = info[0].IsNumber() ? std::min(slots, first + 1) : slots;
    auto array = Napi::Float64Array::New(info.Env(), size_t{end > first ? end - first : 0} * kTrafficNumbers);
    const auto now = static_cast<uint64_t>(now_ms());
    double* out = array.Data();
    for (uint32_t slot = first; slot < end; slot++) {
      const Traffic sum = engine_->traffic(slot);
      const double numbers[kTrafficNumbers] = {
          static_cast<double>(sum.tx_packets), static_cast<double>(sum.tx_bytes), static_cast<double>(sum.rx_packets),
          static_cast<double>(sum.rx_bytes),
          sum.last_received_ms == 0 ? -1 : static_cast<double>(now - std::min(now, sum.last_received_ms))};
      out = std::copy(std::begin(numbers), std::end(numbers), out);
    }
    return array;
  }
  void set_keys(const Napi::CallbackInfo& info) {
    if (!engine_ || !engine_->sessions()) return;
    const auto keys = info[1].As<Napi::Object>();
    for (const char* name : {"sendKey", "receiveKey"}) {
      const Napi::Value bytes = keys.Get(name);
      if (bytes.IsTypedArray() && bytes.As<Napi::Uint8Array>().ByteLength() == Key::kBytes) continue;
      return Napi::RangeError::New(info.Env(), "session keys must have 32 bytes").ThrowAsJavaScriptException();
    }
    engine_->sessions()->set_keys(info[0].As<Napi::Number>().Uint32Value(), to_keys(keys), session_ms());
  }
  void forget_session(const Napi::CallbackInfo& info) {
    if (engine_ && engine_->sessions()) engine_->sessions()->forget(info[0].As<Napi::Number>().Uint32Value());
  }
  Napi::Value take_mail(const Napi::CallbackInfo& info) {
    Napi::Env env = info.Env();
    Napi::Array control_messages = Napi::Array::New(env), wanted = Napi::Array::New(env),
                confirmed = Napi::Array::New(env), moved = Napi::Array::New(env);
    if (engine_ && engine_->sessions()) {
      const Mailbox::Mail mail = engine_->sessions()->mailbox().take(info[0].As<Napi::Number>().Uint32Value());
      for (const Mailbox::ControlMessage& message : mail.control_messages) {
        Napi::Object object = to_object(env, message.from);
        object.Set("bytes", Napi::Buffer<uint8_t>::Copy(env, message.bytes.data(), message.size));
        control_messages.Set(control_messages.Length(), object);
      }
      for (const uint32_t session : mail.wanted) wanted.Set(wanted.Length(), session);
      for (const uint32_t session : mail.confirmed) confirmed.Set(confirmed.Length(), session);
      for (const Mailbox::Moved& each : mail.moved) {
        Napi::Object object = to_object(env, each.to);
        object.Set("session", each.session);
        moved.Set(moved.Length(), object);
      }
    }
    Napi::Object mail = Napi::Object::New(env);
    mail.Set("controlMessages", control_messages);
    mail.Set("wanted", wanted);
    mail.Set("confirmed", confirmed);
    mail.Set("moved", moved);
    return mail;
  }
  Napi::Value send(const Napi::CallbackInfo& info) {
    const auto port = static_cast<uint16_t>(info[1].As<Napi::Number>().Uint32Value());
    const auto datagram = info[2].As<Napi::Uint8Array>();
    const SocketAddress to(to_address(info[0]), to_be16(port));
    const bool sent = engine_ && engine_->send(to, {datagram.Data(), datagram.ByteLength()});
    return Napi::Boolean::New(info.Env(), sent);
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
  Napi::Value stop(const Napi::CallbackInfo& info) { return end(info.Env(), false, {}); }
  Napi::Value release_descriptors(const Napi::CallbackInfo& info) {
    if (!info[0].IsTypedArray()) return end(info.Env(), true, {});
    const auto head = info[0].As<Napi::Uint8Array>();
    return end(info.Env(), true, {head.Data(), head.Data() + head.ByteLength()});
  }
  /// Joins the engine's threads in the background, because a hanging thread must not block the event loop. Then closes
  /// the descriptors, or returns them with the saved WireGuard sessions and `head`. If the engine has already ended,
  /// there is nothing to close or return.
  Napi::Value end(Napi::Env env, bool give_back, std::vector<uint8_t> head) {
    watcher_.reset();
    mail_watcher_.reset();
    if (engine_) release();
    return in_background<Descriptors>(
        env,
        [engine = std::move(engine_), give_back, head = std::move(head)](Descriptors& descriptors) mutable -> Failure {
          if (!engine && give_back) return SystemError{"release", EBADF};
          if (engine && give_back) descriptors = engine->release(head);
          engine.reset();
          return {};
        },
        // `counters` is kept alive because the engine's threads write into it.
        [give_back, counters = std::move(counters_)](Napi::Env result_env, Descriptors& descriptors) -> Napi::Value {
          return give_back ? to_object(result_env, std::move(descriptors)) : result_env.Undefined();
        });
  }
  Napi::Value offloads(const Napi::CallbackInfo& info) {
    return to_array(info.Env(), names_of(engine_ ? engine_->features().in_use() : 0));
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Watcher> watcher_, mail_watcher_;
  Napi::ObjectReference counters_;  // kept alive because the engine's threads write into it
  Napi::FunctionReference on_fault_, on_mail_;
};

OpenOptions to_open_options(const Napi::Object& given) {
  OpenOptions options;
  const auto port = static_cast<uint16_t>(given.Get("port").As<Napi::Number>().Uint32Value());
  options.bind_address = SocketAddress(to_address(given.Get("bindAddress")), to_be16(port));
  options.workers = given.Get("workers").As<Napi::Number>().Uint32Value();
  options.features = features_of(given.Get("features").As<Napi::Array>());
  return options;
}

Napi::Value open_sockets_of(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  FamilySockets opened;
  if (Failure failure = open_sockets(to_open_options(info[0].As<Napi::Object>()), opened)) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  Napi::Array loops = Napi::Array::New(env);
  for (LoopSockets& sockets : opened.loops) loops.Set(loops.Length(), to_object(env, std::move(sockets)));
  Napi::Object result = Napi::Object::New(env);
  result.Set("features", to_array(env, names_of(opened.features)));
  result.Set("loops", loops);
  return result;
}

Napi::Value open_descriptors_of(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  const auto given = info[0].As<Napi::Object>();
  OpenOptions options = to_open_options(given);
  options.tun_name = given.Get("tunName").As<Napi::String>();

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

Napi::Value handover_head_of(const Napi::CallbackInfo& info) {
  const std::optional<std::vector<uint8_t>> head = read_handover_head(info[0].As<Napi::Number>().Int32Value());
  if (!head) return info.Env().Undefined();
  return Napi::Buffer<uint8_t>::Copy(info.Env(), head->data(), head->size());
}

Napi::Value run_engine(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Descriptors descriptors = to_descriptors(info[0].As<Napi::Object>());
  const auto given = info[1].As<Napi::Object>();
  const std::string encapsulation = given.Get("encapsulation").As<Napi::String>();
  RunOptions options;
  options.encapsulation = encapsulation;
  options.tun_address = to_addresses(given.Get("tunAddress"));
  options.network_address = to_addresses(given.Get("networkAddress"));
  options.clamp_mss = given.Get("clampMss").As<Napi::Boolean>();
  options.filter = to_filter(given.Get("filter").As<Napi::Object>());
  const auto own = given.Get("ownEnd").As<Napi::Uint8Array>();
  std::memcpy(options.own.encap.data(), own.Data(), std::min(own.ByteLength(), options.own.encap.size()));
  options.own.mtu = given.Get("mtu").As<Napi::Number>().Uint32Value();
  const auto peers = given.Get("peers").As<Napi::Uint8Array>();
  options.peers = {peers.Data(), peers.ByteLength()};
  options.steers = given.Get("steers").ToBoolean();
  options.keeps_sessions = given.Get("keepsSessions").ToBoolean();
  options.loops = {.nice = given.Get("nice").As<Napi::Number>().Int32Value(),
                   .poll_us = given.Get("pollUs").As<Napi::Number>().Int64Value()};

  if (Failure failure = set_persistent(descriptors.loops[0].tun.get(), given.Get("persistent").As<Napi::Boolean>())) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  auto counters = Napi::BigUint64Array::New(env, descriptors.loops.size() * kCounterCount, napi_biguint64_array);
  Napi::Object handle = env.GetInstanceData<Classes>()->engine.New({});
  EngineHandle* engine = EngineHandle::Unwrap(handle);
  if (Failure failure = engine->run(std::move(descriptors), options, counters, info[2].As<Napi::Function>(), info[3])) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  handle.Set("counters", counters);
  handle.Set("hasKeptSessions", engine->has_kept_sessions());
  if (Failure refused = engine->steering_refused()) handle.Set("steeringRefused", to_error(env, *refused).Message());
  if (Failure refused = engine->priority_refused()) handle.Set("priorityRefused", to_error(env, *refused).Message());
  return handle;
}

}  // namespace

Napi::Function define_engine(Napi::Env env) { return EngineHandle::define(env); }

void export_engine(Napi::Env env, Napi::Object exports) {
  exports.Set("openSockets", Napi::Function::New<open_sockets_of>(env));
  exports.Set("openDescriptors", Napi::Function::New<open_descriptors_of>(env));
  exports.Set("handoverHead", Napi::Function::New<handover_head_of>(env));
  exports.Set("runEngine", Napi::Function::New<run_engine>(env));
}

}  // namespace weft
