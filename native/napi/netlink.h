// netlink.h - netlink sockets for JavaScript: requests to the kernel, and the kernel's reports.
#pragma once

#include <napi.h>

namespace weft {

Napi::Function define_netlink_socket(Napi::Env env);
Napi::Function define_netlink_monitor(Napi::Env env);
void export_netlink(Napi::Env env, Napi::Object exports);

}  // namespace weft
