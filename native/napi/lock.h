// lock.h - exports open-file-description locks on whole files.
#pragma once

#include <napi.h>

namespace weft {

void export_lock(Napi::Env env, Napi::Object exports);

}  // namespace weft
