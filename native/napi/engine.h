// engine.h - the functions for JavaScript that open descriptors and run an engine on them.
#pragma once

#include <napi.h>

namespace weft {

Napi::Function define_engine(Napi::Env env);
void export_engine(Napi::Env env, Napi::Object exports);

}  // namespace weft
