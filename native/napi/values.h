// values.h - values between JavaScript and C++: errors, lists, what addon.d.ts describes.
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
/// Reads a number as IPv4 in host order, a bigint as IPv6, or a text as either family; none for anything else.
Address to_address(const Napi::Value& value);
/// A number of IPv4 in host order, a bigint of IPv6; 0 of none.
Napi::Value to_value(Napi::Env env, const Address& address);
/// As inet_ntop(3) prints it; empty of none.
std::string to_text(const Address& address);
/// Reads an object with `ipv4`, `ipv6`, or both.
ByFamily<Address> to_addresses(const Napi::Value& value);
ByFamily<Net> to_nets(const Napi::Value& value);
FilterOptions to_filter(const Napi::Object& filter);
/// Keys are of 32 bytes; they are copied, and the caller's to wipe.
SessionKeys to_keys(const Napi::Object& given);
/// `address` and `port`.
Napi::Object to_object(Napi::Env env, const SocketAddress& address);
/// `since_1970_us` is added to the time of the threads' clock.
Napi::Object to_object(Napi::Env env, const KeptDrop& kept, int64_t since_1970_us);
/// The descriptors are JavaScript's from now on.
Napi::Object to_object(Napi::Env env, Descriptors descriptors);
/// They are C++'s from now on, and no command that is run has them: those that another process opened may be inherited.
Descriptors to_descriptors(const Napi::Object& object);

}  // namespace weft
