// naive.cc - the loop as flanneld's is: one thread, which moves one packet each way in turn until there are none and
// then polls; for the benchmark to compare with (pkg/backend/udp/proxy_amd64.c, run_proxy).
#include <errno.h>
#include <poll.h>

#include "loop.h"

namespace weft {

void Loop::run_naive() {
  pollfd waits[3] = {{path_.tun, POLLIN, 0}, {path_.socket, POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
  const int tick_ms = ingress_->tick_ms();
  while (!stopping()) {
    if (poll(waits, 3, tick_ms) < 0 && errno != EINTR) return fault_.report({"poll", errno});
    if (waits[2].revents != 0) {
      wake_.clear();
      ingress_->count();
    }
    Pump sum;
    do {
      rounds_.add();
      sum = {};
      if (!pump(*egress_, sum) || !pump(*ingress_, sum)) return;
    } while (sum.items > 0 && !stopping());
    if (tick_ms >= 0) ingress_->tick();
  }
}

}  // namespace weft
