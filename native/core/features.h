// features.h - the kernel offloads that the engine uses, each of which the kernel may refuse.
//
// A feature is on when it was wanted and the kernel took it, and goes off at run time when the kernel refuses to do
// what it had promised. Joining packets also needs the device's switches (io/tun.h), which an operator may change at
// any time. The threads read the bits once per batch, and JavaScript reads them at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace weft {

enum Feature : uint32_t {
  kTunHeader = 1 << 0,    ///< The TUN uses virtio headers. All other tun features need this one (Linux 2.6.27).
  kTunCsum = 1 << 1,      ///< packets from the TUN may lack their checksum
  kTunTso = 1 << 2,       ///< TCP superpackets from the TUN
  kTunUso = 1 << 3,       ///< UDP superpackets from the TUN (Linux 6.2)
  kUdpGso = 1 << 4,       ///< many datagrams in one message to the kernel, UDP_SEGMENT (Linux 4.18)
  kUdpGro = 1 << 5,       ///< many datagrams in one message from the kernel, UDP_GRO (Linux 5.0)
  kCoalesceTcp = 1 << 6,  ///< TCP packets joined for the TUN
  kCoalesceUdp = 1 << 7,  ///< UDP packets joined for the TUN; the kernel must know USO
  kTunSteering = 1 << 8,  ///< flows stay in order if they have fragments (io/steering.h); needs several lanes
};

struct FeatureName {
  Feature feature;
  std::string_view name;
};

constexpr std::array<FeatureName, 9> kFeatureNames{{
    {kTunHeader, "tun-header"},
    {kTunCsum, "tun-csum"},
    {kTunTso, "tun-tso"},
    {kTunUso, "tun-uso"},
    {kUdpGso, "udp-gso"},
    {kUdpGro, "udp-gro"},
    {kCoalesceTcp, "coalesce-tcp"},
    {kCoalesceUdp, "coalesce-udp"},
    {kTunSteering, "tun-steering"},
}};

constexpr uint32_t kAllFeatures = (1 << kFeatureNames.size()) - 1;

/// The features in use. Any thread may drop a feature for good. JavaScript's thread may suspend features and resume
/// them.
class Features {
 public:
  explicit Features(uint32_t bits) : bits_(bits) {}
  bool has(Feature feature) const { return in_use() & feature; }
  /// The granted features, less those that failed since.
  uint32_t bits() const { return bits_.load(std::memory_order_relaxed); }
  /// The granted features that neither failed nor are suspended.
  uint32_t in_use() const { return bits() & ~held_.load(std::memory_order_relaxed); }
  /// Adds features that the kernel granted later. Must be called before a thread runs.
  void add(uint32_t features) { bits_.fetch_or(features, std::memory_order_relaxed); }
  void drop(uint32_t features) { bits_.fetch_and(~features, std::memory_order_relaxed); }
  /// Suspends these features and resumes all others.
  void hold(uint32_t features) { held_.store(features, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> bits_;
  std::atomic<uint32_t> held_{0};
};

}  // namespace weft
