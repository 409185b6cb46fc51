// library.h - functions of the OpenSSL that Node brings along, found in the process by name.
//
// Node exports OpenSSL's symbols to addons (doc/api/addons.md), so nothing is linked. OpenSSL promises that their
// prototypes stay within major version 3. What is not there is found before the first packet.
#pragma once

#include <dlfcn.h>

namespace weft {

/// False where the process has none of this name.
template <typename Function>
bool find_in_process(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

}  // namespace weft
