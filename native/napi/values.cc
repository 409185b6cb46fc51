// values.cc - converts between JavaScript objects and the C++ types that correspond to addon.d.ts.
#include "values.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <uv.h>

namespace weft {

Napi::Error to_error(Napi::Env env, const SystemError& failure) {
  Napi::Error error = Napi::Error::New(env, std::string(failure.call) + ": " + strerror(failure.number));
  error.Set("code", uv_err_name(-failure.number));
  error.Set("syscall", failure.call);
  return error;
}

std::vector<std::string_view> names_of(uint32_t features) {
  std::vector<std::string_view> names;
  for (const FeatureName& each : kFeatureNames) {
    if (features & each.feature) names.push_back(each.name);
  }
  return names;
}

Napi::Array to_array(Napi::Env env, const std::vector<std::string_view>& names) {
  Napi::Array array = Napi::Array::New(env);
  for (const std::string_view name : names) array.Set(array.Length(), std::string(name));
  return array;
}

std::vector<int> to_numbers(const Napi::Array& array) {
  std::vector<int> numbers;
  for (uint32_t i = 0; i < array.Length(); i++) numbers.push_back(array.Get(i).As<Napi::Number>().Int32Value());
  return numbers;
}

uint32_t features_of(const Napi::Array& names) {
  uint32_t features = 0;
  for (uint32_t i = 0; i < names.Length(); i++) {
    const std::string name = names.Get(i).As<Napi::String>();
    for (const FeatureName& each : kFeatureNames) {
      if (each.name == name) features |= each.feature;
    }
  }
  return features;
}

Address to_address(const Napi::Value& value) {
  if (value.IsNumber()) return Address::v4(to_be32(value.As<Napi::Number>().Uint32Value()));
  if (value.IsBigInt()) {
    int sign;
    uint64_t words[2] = {};  // the words of a bigint, the lower 64 bits first
    size_t count = std::size(words);
    value.As<Napi::BigInt>().ToWords(&sign, &count, words);
    return Address::of_words(to_be64(words[1]), to_be64(words[0]));
  }
  const std::string text = value.As<Napi::String>();
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return Address::v4(v4.s_addr);
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 ? Address::v6(v6.s6_addr) : Address();
}

Napi::Value to_value(Napi::Env env, const Address& address) {
  if (address.is_v4() || !address) return Napi::Number::New(env, to_be32(address.ipv4()));
  const uint64_t words[] = {to_be64(address.low()), to_be64(address.high())};
  return Napi::BigInt::New(env, 0, std::size(words), words);
}

std::string to_text(const Address& address) {
  if (!address) return "";
  const SocketAddress socket(address, 0);
  char text[INET6_ADDRSTRLEN];
  const void* bytes = address.is_v4()
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(socket.raw())->sin_addr)
                          : &reinterpret_cast<const sockaddr_in6*>(socket.raw())->sin6_addr;
  return inet_ntop(socket.family(), bytes, text, sizeof text);
}

namespace {

Net to_net(const Napi::Value& value) {
  const auto net = value.As<Napi::Object>();
  return Net::of(to_address(net.Get("address")), net.Get("prefixLength").As<Napi::Number>().Uint32Value());
}

/// Reads an object with the optional members `ipv4` and `ipv6`. `read` converts the value of each member.
template <typename T>
ByFamily<T> by_family(const Napi::Value& value, T (*read)(const Napi::Value&)) {
  const auto given = value.As<Napi::Object>();
  ByFamily<T> result;
  if (const Napi::Value ipv4 = given.Get("ipv4"); !ipv4.IsUndefined()) result.ipv4 = read(ipv4);
  if (const Napi::Value ipv6 = given.Get("ipv6"); !ipv6.IsUndefined()) result.ipv6 = read(ipv6);
  return result;
}

}  // namespace

ByFamily<Address> to_addresses(const Napi::Value& value) { return by_family(value, to_address); }
ByFamily<Net> to_nets(const Napi::Value& value) { return by_family(value, to_net); }

FilterOptions to_filter(const Napi::Object& filter) {
  const std::string verify = filter.Get("verifySource").As<Napi::String>();
  return {verify == "off"     ? VerifySource::kOff
          : verify == "inner" ? VerifySource::kInner
                              : VerifySource::kStrict,
          to_nets(filter.Get("network")), to_nets(filter.Get("subnet"))};
}

SessionKeys to_keys(const Napi::Object& given) {
  const auto number = [&](const char* name) { return given.Get(name).As<Napi::Number>().Uint32Value(); };
  const auto key = [&](const char* name) { return Key(given.Get(name).As<Napi::Uint8Array>().Data()); };
  return {.is_initiator = given.Get("isInitiator").ToBoolean(),
          .own_index = number("ownIndex"),
          .peer_index = number("peerIndex"),
          .send = key("sendKey"),
          .receive = key("receiveKey")};
}

Napi::Object to_object(Napi::Env env, const SocketAddress& address) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("address", to_value(env, address.address()));
  object.Set("port", to_be16(address.port()));
  return object;
}

Napi::Object to_object(Napi::Env env, const KeptDrop& kept, int64_t since_1970_us) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("atUs", static_cast<double>(kept.at_us + since_1970_us));
  object.Set("reason", std::string(kCounterNames[kept.reason]));
  object.Set("packets", kept.packets);
  object.Set("length", kept.length);
  object.Set("peer", to_value(env, kept.peer));
  object.Set("encapBytes", static_cast<double>(kept.encap_bytes));
  object.Set("headers", Napi::Buffer<uint8_t>::Copy(env, kept.bytes.data(), kept.size));
  return object;
}

Napi::Object to_object(Napi::Env env, LoopSockets sockets) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("receiver", sockets.receiver.release());
  if (sockets.sender) object.Set("sender", sockets.sender.release());
  return object;
}

Napi::Object to_object(Napi::Env env, Descriptors descriptors) {
  Napi::Object object = Napi::Object::New(env);
  Napi::Array loops = Napi::Array::New(env);
  for (LoopDescriptors& fds : descriptors.loops) {
    Napi::Object loop = Napi::Object::New(env), sockets = Napi::Object::New(env);
    if (fds.sockets.ipv4.receiver) sockets.Set("ipv4", to_object(env, std::move(fds.sockets.ipv4)));
    if (fds.sockets.ipv6.receiver) sockets.Set("ipv6", to_object(env, std::move(fds.sockets.ipv6)));
    loop.Set("tun", fds.tun.release());
    loop.Set("sockets", sockets);
    loops.Set(loops.Length(), loop);
  }
  object.Set("tunName", descriptors.tun_name);
  object.Set("features", to_array(env, names_of(descriptors.features)));
  object.Set("loops", loops);
  if (descriptors.handover_state) object.Set("handoverState", descriptors.handover_state.release());
  return object;
}

namespace {

Fd to_fd(const Napi::Value& value) {
  Fd fd(value.IsNumber() ? value.As<Napi::Number>().Int32Value() : -1);
  if (fd) fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  return fd;
}

LoopSockets to_sockets(const Napi::Value& value) {
  const auto sockets = value.As<Napi::Object>();
  return {to_fd(sockets.Get("receiver")), to_fd(sockets.Get("sender"))};
}

}  // namespace

Descriptors to_descriptors(const Napi::Object& object) {
  Descriptors descriptors;
  descriptors.tun_name = object.Get("tunName").As<Napi::String>();
  descriptors.features = features_of(object.Get("features").As<Napi::Array>());
  const auto loops = object.Get("loops").As<Napi::Array>();
  for (uint32_t i = 0; i < loops.Length(); i++) {
    const auto loop = loops.Get(i).As<Napi::Object>();
    descriptors.loops.push_back({to_fd(loop.Get("tun")), by_family(loop.Get("sockets"), to_sockets)});
  }
  descriptors.handover_state = to_fd(object.Get("handoverState"));
  return descriptors;
}

}  // namespace weft
