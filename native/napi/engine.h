// engine.h - opening descriptors and running an engine on them.
#pragma once

#include <napi.h>

namespace weft {

/// The class of what runEngine gives.
Napi::Function define_engine(Napi::Env env);
void export_engine(Napi::Env env, Napi::Object exports);

}  // namespace weft
