// layout.h - exports the layouts and limits that TypeScript shares with C++.
#pragma once

#include <napi.h>

namespace weft {

Napi::Object layout_of(Napi::Env env);

}  // namespace weft
