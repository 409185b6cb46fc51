// naive.cc - the loop as flanneld's is: one thread, which moves one packet each way in turn until there are none and
// then polls; for the benchmark to compare with (pkg/backend/udp/proxy_amd64.c, run_proxy).
#include <errno.h>
#include <poll.h>

#include "loop.h"

namespace weft {

void Loop::run_naive() {
  // A descriptor that is none is passed over (poll(2)).
  pollfd waits[4] = {
      {wake_.fd(), POLLIN, 0}, {path_.tun, POLLIN, 0}, {path_.socket, POLLIN, 0}, {path_.other_socket, POLLIN, 0}};
  const int tick_ms = ingress_->tick_ms();
  while (!stopping()) {
    if (poll(waits, 4, tick_ms) < 0 && errno != EINTR) return fault_.report({"poll", errno});
    if (waits[0].revents != 0) {
      wake_.clear();
      count_what_is_told();
    }
    Pump sum;
    do {
      rounds_.add();
      sum = {};
      if (!pump(*egress_, sum) || !pump(*ingress_, sum)) return;
      if (other_ingress_ && !pump(*other_ingress_, sum)) return;
    } while (sum.items > 0 && !stopping());
    if (tick_ms >= 0) tick();
  }
}

}  // namespace weft
