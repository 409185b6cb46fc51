// host.h - the exports that need no engine.
#pragma once

#include <napi.h>

namespace weft {

void export_host(Napi::Env env, Napi::Object exports);

}  // namespace weft
