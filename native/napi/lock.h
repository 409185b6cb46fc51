// lock.h - locks of whole files.
#pragma once

#include <napi.h>

namespace weft {

void export_lock(Napi::Env env, Napi::Object exports);

}  // namespace weft
