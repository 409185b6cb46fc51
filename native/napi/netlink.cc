// netlink.cc - exchanges netlink messages in a thread of libuv's pool, and watches for the kernel's reports on the
// event loop.
#include "netlink.h"

#include <errno.h>
#include <net/if.h>

#include <memory>

#include "../core/secret_bytes.h"
#include "../io/netlink.h"
#include "background.h"
#include "classes.h"
#include "values.h"
#include "watch.h"

namespace weft {

namespace {

/// Returns an answer for JavaScript; undefined for an acknowledgement without messages.
Napi::Value to_value(Napi::Env env, const NetlinkAnswer& answer) {
  if (answer.error == 0 && answer.messages.empty() && !answer.is_interrupted) return env.Undefined();
  Napi::Object object = Napi::Object::New(env);
  object.Set("data", Napi::Buffer<uint8_t>::Copy(env, answer.messages.data(), answer.messages.size()));
  object.Set("errno", answer.error);
  if (!answer.explanation.empty()) object.Set("explanation", answer.explanation);
  if (answer.is_interrupted) object.Set("isInterrupted", true);
  return object;
}

class SocketHandle : public Napi::ObjectWrap<SocketHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "NetlinkSocket",
        {InstanceMethod<&SocketHandle::exchange>("exchange"), InstanceAccessor<&SocketHandle::port>("port")});
  }
  explicit SocketHandle(const Napi::CallbackInfo& info)
      : ObjectWrap(info), socket_(std::make_shared<NetlinkSocket>(info[0].As<Napi::Number>().Int32Value())) {}

 private:
  Napi::Value exchange(const Napi::CallbackInfo& info) {
    const auto given = info[0].As<Napi::Uint8Array>();
    // A request may contain the private key of a WireGuard device.
    SecretBytes requests(given.Data(), given.Data() + given.ByteLength());
    return in_background<std::vector<NetlinkAnswer>>(
        info.Env(),
        [socket = socket_, requests = std::move(requests)](std::vector<NetlinkAnswer>& answers) mutable {
          return socket->exchange(requests, answers);
        },
        [](Napi::Env env, const std::vector<NetlinkAnswer>& answers) {
          Napi::Array list = Napi::Array::New(env, answers.size());
          for (uint32_t at = 0; at < answers.size(); at++) {
            Napi::HandleScope scope(env);
            list.Set(at, to_value(env, answers[at]));
          }
          return list;
        });
  }
  Napi::Value port(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), socket_->port()); }
  std::shared_ptr<NetlinkSocket> socket_;  // shared with an exchange in the background, which may outlive this object
};

class MonitorHandle : public WithCleanup<MonitorHandle> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "NetlinkMonitor", {InstanceMethod<&MonitorHandle::stop>("stop")});
  }
  explicit MonitorHandle(const Napi::CallbackInfo& info) : WithCleanup(info) {
    callback_ = Napi::Persistent(info[2].As<Napi::Function>());
    const auto tell = [this](Napi::Env env) { hand_over(env); };
    const int protocol = info[0].As<Napi::Number>().Int32Value();
    Failure failure = reports_.open(protocol, to_numbers(info[1].As<Napi::Array>()));
    if (!failure) failure = Watcher::start(info.Env(), reports_.fd(), tell, watcher_);
    if (!failure) return;
    release();
    to_error(info.Env(), *failure).ThrowAsJavaScriptException();
  }
  void shut_down() {
    watcher_.reset();
    reports_ = {};
  }

 private:
  void hand_over(Napi::Env env) {
    std::vector<uint8_t> messages;
    const bool is_complete = reports_.receive(messages);
    // libuv stopped watching the socket because the socket had an error. receive() has read that error, so watch the
    // socket again.
    if (!is_complete) watcher_->restart();
    if (messages.empty() && is_complete) return;
    const auto buffer = Napi::Buffer<uint8_t>::Copy(env, messages.data(), messages.size());
    callback_.MakeCallback(env.Global(), {buffer, Napi::Boolean::New(env, !is_complete)});
  }
  void stop(const Napi::CallbackInfo&) {
    if (!watcher_) return;
    shut_down();
    release();
  }
  NetlinkReports reports_;
  std::unique_ptr<Watcher> watcher_;
  Napi::FunctionReference callback_;
};

Napi::Value open_netlink(const Napi::CallbackInfo& info) {
  return info.Env().GetInstanceData<Classes>()->netlink_socket.New({info[0]});
}

Napi::Value interface_index(const Napi::CallbackInfo& info) {
  const std::string name = info[0].As<Napi::String>();
  const unsigned index = if_nametoindex(name.c_str());
  const int error = errno;
  if (index == 0 && error != ENODEV && error != ENXIO)
    to_error(info.Env(), {"if_nametoindex", error}).ThrowAsJavaScriptException();
  return Napi::Number::New(info.Env(), index);
}

Napi::Value interface_name(const Napi::CallbackInfo& info) {
  char name[IF_NAMESIZE] = "";
  if_indextoname(info[0].As<Napi::Number>().Uint32Value(), name);
  return Napi::String::New(info.Env(), name);
}

Napi::Value watch_netlink(const Napi::CallbackInfo& info) {
  return info.Env().GetInstanceData<Classes>()->netlink_monitor.New({info[0], info[1], info[2]});
}

}  // namespace

Napi::Function define_netlink_socket(Napi::Env env) { return SocketHandle::define(env); }
Napi::Function define_netlink_monitor(Napi::Env env) { return MonitorHandle::define(env); }

void export_netlink(Napi::Env env, Napi::Object exports) {
  exports.Set("openNetlink", Napi::Function::New<open_netlink>(env));
  exports.Set("interfaceIndex", Napi::Function::New<interface_index>(env));
  exports.Set("interfaceName", Napi::Function::New<interface_name>(env));
  exports.Set("watchNetlink", Napi::Function::New<watch_netlink>(env));
}

}  // namespace weft
