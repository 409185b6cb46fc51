// all.h - the table of encapsulations: engine.cc makes engines of it, and the tests of what holds for each of them (no
// circle, a bounded turn) go through it. Each is a file of encap/ and a line here.
#pragma once

#include <array>

#include "flannel_udp.h"
#include "vxlan.h"
#include "wireguard.h"

namespace weft {

template <Encapsulation... Each>
struct EncapsulationList {
  /// Calls `each` with every encapsulation as its template argument.
  template <typename Function>
  static void for_each(Function each) {
    (each.template operator()<Each>(), ...);
  }
  /// A row for every encapsulation, as `each` makes it.
  template <typename Function>
  static constexpr auto rows(Function each) {
    return std::array{each.template operator()<Each>()...};
  }
};

using Encapsulations = EncapsulationList<FlannelUdp, Vxlan, Wireguard>;

}  // namespace weft
