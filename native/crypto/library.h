// library.h - finds functions of Node's OpenSSL in the process by name.
//
// Node exports OpenSSL's symbols to addons (doc/api/addons.md), so nothing is linked. OpenSSL keeps the prototypes
// stable within major version 3. The callers find out before the first packet if a function is missing.
#pragma once

#include <dlfcn.h>

namespace weft {

/// Returns false if the process has no function of this name.
template <typename Function>
bool find_in_process(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

}  // namespace weft
