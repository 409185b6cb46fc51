// values.h - converts values between JavaScript and C++: errors, lists, and the types of addon.d.ts.
#pragma once

#include <napi.h>

#include <string>
#include <string_view>
#include <vector>

#include "../core/address.h"
#include "../core/drops.h"
#include "../core/filter.h"
#include "../core/session.h"
#include "../io/system.h"
#include "../walk/descriptors.h"

namespace weft {

Napi::Error to_error(Napi::Env env, const SystemError& failure);
std::vector<std::string_view> names_of(uint32_t features);
Napi::Array to_array(Napi::Env env, const std::vector<std::string_view>& names);
std::vector<int> to_numbers(const Napi::Array& array);
uint32_t features_of(const Napi::Array& names);
/// Reads an IP address: a number is IPv4 in host byte order, a bigint is IPv6, a string is either family. Returns ::
/// for anything else.
Address to_address(const Napi::Value& value);
/// Returns an IP address for JavaScript: a number for IPv4 (host byte order), a bigint for IPv6, 0 for ::.
Napi::Value to_value(Napi::Env env, const Address& address);
/// Formats an IP address like inet_ntop(3); :: becomes an empty string.
std::string to_text(const Address& address);
ByFamily<Address> to_addresses(const Napi::Value& value);
ByFamily<Net> to_nets(const Napi::Value& value);
FilterOptions to_filter(const Napi::Object& filter);
/// Copies the keys, which must have 32 bytes each, from a JavaScript object. The caller must wipe its own copies.
SessionKeys to_keys(const Napi::Object& given);
Napi::Object to_object(Napi::Env env, const SocketAddress& address);
/// Converts a dropped packet that the engine kept to a JavaScript object. `since_1970_us` is added to the monotonic
/// time of the drop, which gives microseconds since 1970.
Napi::Object to_object(Napi::Env env, const KeptDrop& kept, int64_t since_1970_us);
/// Converts a loop's sockets in one IP family to descriptor numbers. From now on JavaScript must close the sockets.
Napi::Object to_object(Napi::Env env, LoopSockets sockets);
/// Converts the descriptors to numbers for JavaScript. From now on JavaScript must close the descriptors.
Napi::Object to_object(Napi::Env env, Descriptors descriptors);
/// Takes over descriptors that JavaScript had as numbers. Sets close-on-exec, because a descriptor may come from
/// another process, and commands that weftd starts must not inherit it.
Descriptors to_descriptors(const Napi::Object& object);

}  // namespace weft
