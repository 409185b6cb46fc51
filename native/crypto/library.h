// library.h - finds functions of Node's OpenSSL by name, with dlsym(3).
//
// Node.js exports OpenSSL's symbols to addons (doc/api/addons.md), so the addon does not link OpenSSL. OpenSSL keeps
// the prototypes stable within major version 3. If a function is missing, the callers notice before the first packet.
#pragma once

#include <dlfcn.h>

namespace weft {

/// Sets the pointer `function` to the OpenSSL function called `name`. Returns false if the process has no such
/// function.
template <typename Function>
bool find_in_process(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

}  // namespace weft
