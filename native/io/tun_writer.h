// tun_writer.h - writes merged and single packets to a TUN, each with a virtio header before it.
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

/// Writes one complete packet, whose last part may be in `payload`. `header` is true if the TUN uses virtio headers.
/// Returns false if the write failed.
bool write_packet(int tun, bool header, std::span<uint8_t> packet, std::span<uint8_t> payload = {});

class TunWriter {
 public:
  TunWriter(int tun, Features* features, CounterRow counters, Drops* drops);

  CoalesceLimits limits() const;
  /// Writes all packets of a Coalescer in order, merged or singly, and clears the Coalescer. Fails only if the TUN was
  /// deleted.
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
