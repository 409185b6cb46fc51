// features.h - the kernel offloads that the engine uses. The kernel may lack any of these offloads.
//
// A feature is on if weftd requested it and the kernel granted it. A feature is turned off at run time if a system call
// that uses the feature fails. Merging packets also needs the TUN's switches (io/tun.h), which an operator may change
// at any time. The loop threads read the features once per batch, JavaScript reads them at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace weft {

enum Feature : uint32_t {
  /// The TUN puts a virtio header before each packet (Linux 2.6.27). All other TUN features need it.
  kTunHeader = 1 << 0,
  kTunCsum = 1 << 1,      ///< The TUN may deliver packets without their checksum.
  kTunTso = 1 << 2,       ///< The TUN may deliver TCP superpackets.
  kTunUso = 1 << 3,       ///< The TUN may deliver UDP superpackets (Linux 6.2).
  kUdpGso = 1 << 4,       ///< A message to the kernel may contain many datagrams (UDP_SEGMENT, Linux 4.18).
  kUdpGro = 1 << 5,       ///< A message from the kernel may contain many datagrams (UDP_GRO, Linux 5.0).
  kCoalesceTcp = 1 << 6,  ///< The engine merges TCP packets before it writes them to the TUN.
  /// The engine merges UDP packets before it writes them to the TUN. The kernel must support UDP segmentation offload
  /// (USO) for TUNs.
  kCoalesceUdp = 1 << 7,
  /// Flows with fragmented packets stay in order across TUN queues (io/steering.h). Needs several forwarding threads.
  kTunSteering = 1 << 8,
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

/// The features in use. Any thread may turn a feature off for the rest of the engine's life. JavaScript's thread may
/// suspend and resume features.
class Features {
 public:
  explicit Features(uint32_t bits) : bits_(bits) {}
  bool has(Feature feature) const { return in_use() & feature; }
  /// The granted features that have not failed since.
  uint32_t bits() const { return bits_.load(std::memory_order_relaxed); }
  /// The granted features that have neither failed nor been suspended.
  uint32_t in_use() const { return bits() & ~held_.load(std::memory_order_relaxed); }
  /// Adds features that the kernel granted after this object was constructed. Must be called before the loop threads
  /// run.
  void add(uint32_t features) { bits_.fetch_or(features, std::memory_order_relaxed); }
  void drop(uint32_t features) { bits_.fetch_and(~features, std::memory_order_relaxed); }
  /// Suspends the features in `features` and resumes all others.
  void hold(uint32_t features) { held_.store(features, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> bits_;
  std::atomic<uint32_t> held_{0};
};

}  // namespace weft
