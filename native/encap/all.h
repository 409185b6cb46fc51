// all.h - the list of encapsulations. engine.cc makes engines from the list. Tests of rules that hold for every
// encapsulation iterate over the list. Each encapsulation has a file in encap/ and an entry in the list.
#pragma once

#include <array>

#include "flannel_udp.h"
#include "vxlan.h"
#include "wireguard.h"

namespace weft {

template <Encapsulation... Each>
struct EncapsulationList {
  /// Calls `each` once for every encapsulation, with the encapsulation as template argument.
  template <typename Function>
  static void for_each(Function each) {
    (each.template operator()<Each>(), ...);
  }
  /// Builds an array with one element per encapsulation; `each` returns the element.
  template <typename Function>
  static constexpr auto rows(Function each) {
    return std::array{each.template operator()<Each>()...};
  }
};

using Encapsulations = EncapsulationList<FlannelUdp, Vxlan, Wireguard>;

}  // namespace weft
