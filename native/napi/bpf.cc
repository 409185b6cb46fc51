// bpf.cc - converts the arguments and results of the functions in io/bpf.h and io/traffic_control.h.
#include "bpf.h"

#include "../io/bpf.h"
#include "../io/traffic_control.h"
#include "background.h"
#include "values.h"

namespace weft {

namespace {

using Bytes = Napi::Uint8Array;

std::span<uint8_t> span_of(const Napi::Value& value) {
  Bytes bytes = value.As<Bytes>();
  return {bytes.Data(), bytes.ByteLength()};
}

uint32_t number_in(const Napi::Object& object, const char* name) {
  return object.Get(name).As<Napi::Number>().Uint32Value();
}

/// Returns the descriptor that a call opened, and that JavaScript must close. Throws if the call failed.
Napi::Value to_value(Napi::Env env, const Failure& failure, Fd& fd) {
  if (!failure) return Napi::Number::New(env, fd.release());
  to_error(env, *failure).ThrowAsJavaScriptException();
  return env.Undefined();
}

Napi::Value create_map_of(const Napi::CallbackInfo& info) {
  const Napi::Object map = info[0].As<Napi::Object>();
  Fd fd;
  const Failure failure =
      create_map({number_in(map, "type"), number_in(map, "keyBytes"), number_in(map, "valueBytes"),
                  number_in(map, "entries"), number_in(map, "flags"), map.Get("name").As<Napi::String>()},
                 fd);
  return to_value(info.Env(), failure, fd);
}

void update_map_of(const Napi::CallbackInfo& info) {
  const Failure failure = update_map(info[0].As<Napi::Number>(), span_of(info[1]).data(), span_of(info[2]).data());
  if (failure) to_error(info.Env(), *failure).ThrowAsJavaScriptException();
}

Napi::Value delete_from_map_of(const Napi::CallbackInfo& info) {
  const Failure failure = delete_from_map(info[0].As<Napi::Number>(), span_of(info[1]).data());
  if (failure && failure->number != ENOENT) to_error(info.Env(), *failure).ThrowAsJavaScriptException();
  return Napi::Boolean::New(info.Env(), !failure);
}

Napi::Value look_up_in_map_of(const Napi::CallbackInfo& info) {
  const Failure failure = look_up_in_map(info[0].As<Napi::Number>(), span_of(info[1]).data(), span_of(info[2]).data());
  if (failure && failure->number != ENOENT) to_error(info.Env(), *failure).ThrowAsJavaScriptException();
  return Napi::Boolean::New(info.Env(), !failure);
}

Napi::Value load_program_of(const Napi::CallbackInfo& info) {
  Fd fd;
  std::string log;
  const Failure failure = load_program(span_of(info[0]), info[1].As<Napi::String>(), fd, log);
  if (!failure) return Napi::Number::New(info.Env(), fd.release());
  Napi::Error error = to_error(info.Env(), *failure);
  error.Set("log", log);
  error.ThrowAsJavaScriptException();
  return info.Env().Undefined();
}

Napi::Value test_program_of(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  constexpr size_t kMostBytes = 9000;
  std::vector<uint8_t> out(kMostBytes);
  TestRun run{.packet = span_of(info[1]), .context = span_of(info[2]), .out = out};
  if (const Failure failure = test_program(info[0].As<Napi::Number>(), run)) {
    to_error(env, *failure).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  Napi::Object result = Napi::Object::New(env);
  result.Set("result", static_cast<int32_t>(run.result));
  result.Set("packet", Napi::Buffer<uint8_t>::Copy(env, out.data(), run.out_bytes));
  return result;
}

Hook hook_of(const Napi::Object& hook) { return {number_in(hook, "index"), hook.Get("isEgress").As<Napi::Boolean>()}; }

Hook hook_in(const Napi::CallbackInfo& info) { return hook_of(info[0].As<Napi::Object>()); }

Napi::Value attach_program_of(const Napi::CallbackInfo& info) {
  return in_background(info.Env(),
                       [hook = hook_in(info), program = info[1].As<Napi::Number>().Int32Value(),
                        name = info[2].As<Napi::String>().Utf8Value()] { return attach_program(hook, program, name); });
}

Napi::Value detach_program_of(const Napi::CallbackInfo& info) {
  return in_background(info.Env(), [hook = hook_in(info)] { return detach_program(hook); });
}

Napi::Value list_filters_of(const Napi::CallbackInfo& info) {
  return in_background<std::vector<TcFilter>>(
      info.Env(), [hook = hook_in(info)](std::vector<TcFilter>& filters) { return list_filters(hook, filters); },
      [](Napi::Env env, const std::vector<TcFilter>& filters) {
        Napi::Array list = Napi::Array::New(env);
        for (const TcFilter& each : filters) {
          Napi::Object filter = Napi::Object::New(env);
          filter.Set("priority", each.priority);
          filter.Set("kind", each.kind);
          filter.Set("name", each.name);
          list.Set(list.Length(), filter);
        }
        return list;
      });
}

Napi::Value tcx_programs_of(const Napi::CallbackInfo& info) {
  return in_background<uint32_t>(
      info.Env(),
      [hook = hook_in(info)](uint32_t& count) {
        count = tcx_programs(hook.index, hook.is_egress);
        return Failure{};
      },
      [](Napi::Env env, uint32_t count) { return Napi::Number::New(env, count); });
}

Napi::Value active_features_of(const Napi::CallbackInfo& info) {
  return in_background<std::string>(
      info.Env(),
      [name = info[0].As<Napi::String>().Utf8Value()](std::string& features) {
        features = active_features(name);
        return Failure{};
      },
      [](Napi::Env env, const std::string& features) { return Napi::String::New(env, features); });
}

Napi::Value set_offload_of(const Napi::CallbackInfo& info) {
  const Offload offload = info[1].As<Napi::String>().Utf8Value() == "gro" ? Offload::kGro : Offload::kTso;
  return in_background(info.Env(),
                       [name = info[0].As<Napi::String>().Utf8Value(), offload,
                        is_on = info[2].As<Napi::Boolean>().Value()] { return set_offload(name, offload, is_on); });
}

Napi::Value kernel_way_object_of(const Napi::CallbackInfo& info) {
  const std::span<const uint8_t> object = kernel_way_object();
  if (object.empty()) return info.Env().Undefined();
  return Napi::Buffer<uint8_t>::Copy(info.Env(), object.data(), object.size());
}

}  // namespace

void export_bpf(Napi::Env env, Napi::Object exports) {
  exports.Set("kernelWayObject", Napi::Function::New<kernel_way_object_of>(env));
  exports.Set("createMap", Napi::Function::New<create_map_of>(env));
  exports.Set("updateMap", Napi::Function::New<update_map_of>(env));
  exports.Set("deleteFromMap", Napi::Function::New<delete_from_map_of>(env));
  exports.Set("lookUpInMap", Napi::Function::New<look_up_in_map_of>(env));
  exports.Set("loadProgram", Napi::Function::New<load_program_of>(env));
  exports.Set("testProgram", Napi::Function::New<test_program_of>(env));
  exports.Set("attachProgram", Napi::Function::New<attach_program_of>(env));
  exports.Set("detachProgram", Napi::Function::New<detach_program_of>(env));
  exports.Set("listFilters", Napi::Function::New<list_filters_of>(env));
  exports.Set("tcxPrograms", Napi::Function::New<tcx_programs_of>(env));
  exports.Set("activeFeatures", Napi::Function::New<active_features_of>(env));
  exports.Set("setOffload", Napi::Function::New<set_offload_of>(env));
}

}  // namespace weft
