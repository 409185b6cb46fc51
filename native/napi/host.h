// host.h - the functions for JavaScript that do not need a running engine.
#pragma once

#include <napi.h>

namespace weft {

void export_host(Napi::Env env, Napi::Object exports);

}  // namespace weft
