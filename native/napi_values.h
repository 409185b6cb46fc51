// napi_values.h - values between JavaScript and C++: errors, lists, what addon.d.ts describes.
#pragma once

#include <napi.h>

#include <string_view>
#include <vector>

#include "core/address.h"
#include "core/drops.h"
#include "core/filter.h"
#include "descriptors.h"
#include "io/system.h"

namespace weft {

Napi::Error to_error(Napi::Env env, const SystemError& failure);
std::vector<std::string_view> names_of(uint32_t features);
Napi::Array to_array(Napi::Env env, const std::vector<std::string_view>& names);
std::vector<int> to_numbers(const Napi::Array& array);
uint32_t features_of(const Napi::Array& names);
/// Of a number, IPv4 in host order, or of text, of either family; none where it is neither.
Address to_address(const Napi::Value& value);
/// IPv4 in host order; 0 of none, and of IPv6, which JavaScript has no number for.
uint32_t to_number(const Address& address);
Net to_net(const Napi::Value& value);
FilterOptions to_filter(const Napi::Object& filter);
/// `since_1970_us` is added to the time of the threads' clock.
Napi::Object to_object(Napi::Env env, const KeptDrop& kept, int64_t since_1970_us);
/// The descriptors are JavaScript's from now on.
Napi::Object to_object(Napi::Env env, Descriptors descriptors);
/// They are C++'s from now on, and no command that is run has them: those that another process opened may be inherited.
Descriptors to_descriptors(const Napi::Object& object);

}  // namespace weft
