// notify.h - one datagram to a Unix socket, which Node has no way to send.
#pragma once

#include <string_view>

#include "system.h"

namespace weft {

/// `name` is a path, or '@' and a name in the abstract namespace (unix(7)). Does not block.
Failure notify(std::string_view name, std::string_view message);

}  // namespace weft
