// bpf.h - exports the functions that load eBPF programs and attach them to interfaces.
#pragma once

#include <napi.h>

namespace weft {

void export_bpf(Napi::Env env, Napi::Object exports);

}  // namespace weft
