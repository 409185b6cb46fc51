// tun_writer.h - writes packets to a TUN, joined or one by one, each with its virtio header.
#pragma once

#include <span>
#include <vector>

#include "../core/coalesce.h"
#include "../core/counters.h"
#include "../core/drops.h"
#include "../core/features.h"
#include "../core/refusals.h"
#include "system.h"

namespace weft {

/// Writes one packet that is whole, its payload elsewhere or with the rest. `header` says whether the TUN speaks virtio
/// headers.
bool write_packet(int tun, bool header, std::span<uint8_t> packet, std::span<uint8_t> payload = {});

class TunWriter {
 public:
  TunWriter(int tun, Features* features, CounterRow counters, Drops* drops);

  /// The limits of what may be joined for this TUN at this time.
  CoalesceLimits limits() const;
  /// Writes all that was joined, in order, and clears it. What fails it is that the TUN is gone.
  Failure write(Coalescer& packets);

 private:
  void refused(Coalescer& packets, size_t index, int error, Failure& failure);
  bool takes(const Coalescer& packets, size_t index) const;
  bool write_singly(Coalescer& packets, size_t index);

  int tun_;
  bool header_;
  Features* features_;
  CounterRow counters_;
  Drops* drops_;
  Learnt learnt_;
  std::vector<iovec> iovecs_;
};

}  // namespace weft
