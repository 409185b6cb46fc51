// layout.h - the layouts and limits that both languages share.
#pragma once

#include <napi.h>

namespace weft {

Napi::Object layout_of(Napi::Env env);

}  // namespace weft
