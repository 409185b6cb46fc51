// all.h - the table of encapsulations. engine.cc makes engines from it, and the tests of rules that hold for each
// encapsulation (no circles, bounded turns) iterate over it. Each encapsulation has a file in encap/ and a line here.
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
  /// Builds an array with one row per encapsulation; `each` makes the row.
  template <typename Function>
  static constexpr auto rows(Function each) {
    return std::array{each.template operator()<Each>()...};
  }
};

using Encapsulations = EncapsulationList<FlannelUdp, Vxlan, Wireguard>;

}  // namespace weft
