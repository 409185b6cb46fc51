// host.cc - the functions for JavaScript that do not need a running engine: for TUNs, Unix sockets, echo requests, path
// MTUs and the exit of the process.
#include "host.h"

#include <errno.h>
#include <unistd.h>

#include <array>

#include "../io/clock.h"
#include "../io/echo.h"
#include "../io/own_memory.h"
#include "../io/path_probe.h"
#include "../io/tun.h"
#include "../io/unix_socket.h"
#include "values.h"

namespace weft {

namespace {

Napi::Value open_plain_tun(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Tun tun;
  Failure failure = open_tun(info[0].As<Napi::String>(), false, 0, tun);
  if (!failure) failure = set_persistent(tun.fd.get(), info[1].As<Napi::Boolean>());
  if (failure) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  Napi::Object result = Napi::Object::New(env);
  result.Set("name", tun.name);
  result.Set("fd", tun.fd.release());
  return result;
}

Napi::Value tun_name_of(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), tun_name(info[0].As<Napi::Number>()));
}

void set_tun_persistent(const Napi::CallbackInfo& info) {
  const Failure failure = set_persistent(info[0].As<Napi::Number>(), info[1].As<Napi::Boolean>());
  if (failure) to_error(info.Env(), *failure).ThrowAsJavaScriptException();
}

Napi::Value path_mtu(const Napi::CallbackInfo& info) {
  constexpr uint16_t kAnyPort = 1;
  PathProbe probe(SocketAddress(to_address(info[0]), 0));
  const SocketAddress to(to_address(info[1]), to_be16(kAnyPort));
  return Napi::Number::New(info.Env(), static_cast<double>(probe.ask(to)));
}

Napi::Value session_clock(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(session_us()) / 1'000);
}

void notify_manager(const Napi::CallbackInfo& info) {
  const std::string socket = info[0].As<Napi::String>();
  const std::string message = info[1].As<Napi::String>();
  const std::vector<int> fds = to_numbers(info[2].As<Napi::Array>());
  if (Failure failure = notify(socket, message, fds)) to_error(info.Env(), *failure).ThrowAsJavaScriptException();
}

/// Returns the descriptor that a call opened; undefined if the call failed with EAGAIN, because no connection waited to
/// be accepted.
Napi::Value to_value(Napi::Env env, const Failure& failure, Fd& fd) {
  if (!failure) return Napi::Number::New(env, fd.release());
  if (failure->number != EAGAIN) to_error(env, *failure).ThrowAsJavaScriptException();
  return env.Undefined();
}

Napi::Value listen_unix(const Napi::CallbackInfo& info) {
  Fd fd;
  const Failure failure = listen_at(info[0].As<Napi::String>().Utf8Value(), fd);
  return to_value(info.Env(), failure, fd);
}

Napi::Value connect_unix(const Napi::CallbackInfo& info) {
  Fd fd;
  // connect() fails with EAGAIN if the listener's queue is full. Throw that as an error, although to_value() returns
  // undefined for EAGAIN.
  if (Failure failure = connect_to(info[0].As<Napi::String>().Utf8Value(), fd)) {
    to_error(info.Env(), *failure).ThrowAsJavaScriptException();
    return info.Env().Undefined();
  }
  return Napi::Number::New(info.Env(), fd.release());
}

Napi::Value accept_unix(const Napi::CallbackInfo& info) {
  Fd fd;
  const Failure failure = accept_from(info[0].As<Napi::Number>(), fd);
  return to_value(info.Env(), failure, fd);
}

Napi::Value peer_pid_of(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), peer_pid(info[0].As<Napi::Number>()));
}

void send_parcel_of(const Napi::CallbackInfo& info) {
  const std::string text = info[1].As<Napi::String>();
  const std::vector<int> fds = to_numbers(info[2].As<Napi::Array>());
  const Failure failure = send_parcel(info[0].As<Napi::Number>(), text, fds);
  if (failure) to_error(info.Env(), *failure).ThrowAsJavaScriptException();
}

Napi::Value receive_parcel_from(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Parcel parcel;
  if (Failure failure = receive_parcel(info[0].As<Napi::Number>(), parcel)) {
    if (failure->number != EAGAIN) to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  Napi::Object result = Napi::Object::New(env);
  Napi::Array fds = Napi::Array::New(env);
  for (Fd& fd : parcel.fds) fds.Set(fds.Length(), fd.release());
  result.Set("text", parcel.text);
  result.Set("fds", fds);
  return result;
}

Napi::Value open_echo_socket(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Echo echo;
  if (Failure failure = open_echo(to_address(info[0]), echo)) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  Napi::Object result = Napi::Object::New(env);
  result.Set("raw", echo.raw);
  result.Set("mark", echo.mark);
  result.Set("fd", echo.fd.release());
  return result;
}

EchoSocket to_echo(const Napi::Object& echo) {
  return {echo.Get("fd").As<Napi::Number>(), echo.Get("raw").As<Napi::Boolean>(),
          echo.Get("mark").As<Napi::Number>().Uint32Value()};
}

void send_echo_request(const Napi::CallbackInfo& info) {
  const auto sequence = static_cast<uint16_t>(info[2].As<Napi::Number>().Uint32Value());
  const size_t bytes = info[3].IsNumber() ? info[3].As<Napi::Number>().Uint32Value() : 0;
  if (Failure failure = send_echo(to_echo(info[0].As<Napi::Object>()), to_address(info[1]), sequence, bytes)) {
    to_error(info.Env(), *failure).ThrowAsJavaScriptException();
  }
}

Napi::Value echo_packet(const Napi::CallbackInfo& info) {
  std::array<uint8_t, kMaxEchoBytes> packet;
  const auto sequence = static_cast<uint16_t>(info[3].As<Napi::Number>().Uint32Value());
  const uint8_t outer = info[4].As<Napi::Number>().Uint32Value() == 4 ? 4 : 6;
  const size_t size = write_echo(to_echo(info[0].As<Napi::Object>()), to_address(info[1]), to_address(info[2]),
                                 sequence, outer, packet);
  return Napi::Buffer<uint8_t>::Copy(info.Env(), packet.data(), size);
}

Napi::Value take_echo_answers(const Napi::CallbackInfo& info) {
  std::array<EchoAnswer, 64> room;
  const auto answers = take_echoes(to_echo(info[0].As<Napi::Object>()), room);
  Napi::Array array = Napi::Array::New(info.Env(), answers.size());
  for (uint32_t at = 0; at < answers.size(); at++) {
    Napi::Object answer = Napi::Object::New(info.Env());
    answer.Set("from", to_text(answers[at].from));
    answer.Set("sequence", answers[at].sequence);
    answer.Set("microseconds", static_cast<double>(answers[at].microseconds));
    array.Set(at, answer);
  }
  return array;
}

void give_back(const Napi::CallbackInfo&) { give_back_memory(); }

void exit_now(const Napi::CallbackInfo& info) { _exit(info[0].As<Napi::Number>().Int32Value()); }

}  // namespace

void export_host(Napi::Env env, Napi::Object exports) {
  exports.Set("openTun", Napi::Function::New<open_plain_tun>(env));
  exports.Set("tunName", Napi::Function::New<tun_name_of>(env));
  exports.Set("setTunPersistent", Napi::Function::New<set_tun_persistent>(env));
  exports.Set("pathMtu", Napi::Function::New<path_mtu>(env));
  exports.Set("sessionMs", Napi::Function::New<session_clock>(env));
  exports.Set("notify", Napi::Function::New<notify_manager>(env));
  exports.Set("openEcho", Napi::Function::New<open_echo_socket>(env));
  exports.Set("sendEcho", Napi::Function::New<send_echo_request>(env));
  exports.Set("echoPacket", Napi::Function::New<echo_packet>(env));
  exports.Set("takeEchoes", Napi::Function::New<take_echo_answers>(env));
  exports.Set("listenUnix", Napi::Function::New<listen_unix>(env));
  exports.Set("connectUnix", Napi::Function::New<connect_unix>(env));
  exports.Set("acceptUnix", Napi::Function::New<accept_unix>(env));
  exports.Set("peerPid", Napi::Function::New<peer_pid_of>(env));
  exports.Set("sendParcel", Napi::Function::New<send_parcel_of>(env));
  exports.Set("receiveParcel", Napi::Function::New<receive_parcel_from>(env));
  exports.Set("giveBackMemory", Napi::Function::New<give_back>(env));
  exports.Set("exitNow", Napi::Function::New<exit_now>(env));
}

}  // namespace weft
