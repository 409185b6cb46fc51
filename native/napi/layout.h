// layout.h - what both languages count on, told by the one that has it.
#pragma once

#include <napi.h>

namespace weft {

Napi::Object layout_of(Napi::Env env);

}  // namespace weft
