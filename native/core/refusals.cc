// refusals.cc - the table, and what is remembered of it.
#include "refusals.h"

#include <errno.h>

#include <algorithm>

namespace weft {

namespace {

constexpr int kAnyError = 0;
/// Packets, joined or not.
constexpr uint32_t kAnything = 0;

struct Rule {
  Way way;
  int error;
  uint32_t joined_by;  ///< any of these features
  size_t above;        ///< more packets than this
  Consequence consequence;
};

constexpr uint32_t kCoalesce = kCoalesceTcp | kCoalesceUdp;

using enum Way;
using enum Then;
using enum Off;
using enum Whom;
using enum When;

// clang-format off
/// The first that fits counts.
constexpr Rule kRules[] = {
    // way   error      joined by     above            then     counted              off        whom       when
    //
    // A route whose device computes no checksums, or an xfrm policy (Linux 6.18, net/ipv4/udp.c, udp_send_skb).
    {kPeers, EIO,       kUdpGso,      1,               {kSingly, k_udp_gso_refusals,  kFeature,  kEndpoint, kAlways}},
    // More segments than this kernel takes; else one that does not do what it offered.
    {kPeers, EINVAL,    kUdpGso,      kOldUdpSegments, {kSingly, k_udp_gso_refusals,  kLongRuns, kAll,      kAlways}},
    {kPeers, EINVAL,    kUdpGso,      1,               {kSingly, k_udp_gso_refusals,  kFeature,  kAll,      kAlways}},
    // Larger than the path's MTU: singly, the kernel may fragment them.
    {kPeers, EMSGSIZE,  kUdpGso,      1,               {kSingly, k_udp_gso_refusals}},
    {kPeers, EMSGSIZE,  kAnything,    0,               {kDrop,   k_tx_drop_too_big}},
    {kPeers, EAGAIN,    kAnything,    0,               {kDrop,   k_tx_drop_socket_full}},
    {kPeers, ENOBUFS,   kAnything,    0,               {kDrop,   k_tx_drop_socket_full}},
    {kPeers, ENOMEM,    kAnything,    0,               {kDrop,   k_tx_drop_socket_full}},
    {kPeers, kAnyError, kAnything,    0,               {kDrop,   k_tx_drop_refused}},
    // The device was deleted.
    {kTun,   EBADFD,    kAnything,    0,               {kGiveUp, k_rx_drop_tun}},
    // Refused as a whole but taken singly: it is the joining that the kernel does not want. A TUN that is down refuses
    // both, and says nothing about joining.
    {kTun,   EINVAL,    kCoalesceUdp, kOldUdpSegments, {kSingly, k_coalesce_refusals, kLongRuns, kAll, kSinglesTaken}},
    {kTun,   EINVAL,    kCoalesce,    1,               {kSingly, k_coalesce_refusals, kFeature,  kAll, kSinglesTaken}},
    {kTun,   kAnyError, kCoalesce,    1,               {kSingly, k_coalesce_refusals}},
    {kTun,   kAnyError, kAnything,    0,               {kDrop,   k_rx_drop_tun}},
};
// clang-format on

constexpr bool fits(const Rule& rule, const Attempt& attempt, int error) {
  return rule.way == attempt.way && (rule.error == kAnyError || rule.error == error) &&
         (rule.joined_by == kAnything || (rule.joined_by & attempt.joined_by)) && attempt.packets > rule.above;
}

// What holds for all holds for ever, since a feature is never switched on again.
static_assert(std::ranges::all_of(kRules, [](const Rule& rule) {
  return rule.consequence.whom == Whom::kEndpoint || rule.consequence.for_ms == kForever;
}));

}  // namespace

const Consequence& consequence_of(const Attempt& attempt, int error) {
  return std::ranges::find_if(kRules, [&](const Rule& rule) { return fits(rule, attempt, error); })->consequence;
}

void Learnt::learn(const Consequence& consequence, const Attempt& attempt, bool taken, const Endpoint* endpoint,
                   int64_t now_ms) {
  if (consequence.off == Off::kNothing || (consequence.when == When::kSinglesTaken && !taken)) return;
  if (consequence.off == Off::kLongRuns) {
    udp_segments_ = kOldUdpSegments;
    return;
  }
  if (consequence.whom == Whom::kAll || !endpoint) return features_->drop(attempt.joined_by);
  // Its own entry, or one that holds no longer, or a new one.
  size_t at = 0;
  while (at < used_ && !same(refused_[at].address, *endpoint)) at++;
  if (at == used_) {
    at = 0;
    while (at < used_ && refused_[at].until_ms > now_ms) at++;
  }
  if (at == refused_.size()) return features_->drop(attempt.joined_by);
  if (at == used_) used_++;
  std::memcpy(&refused_[at].address, &endpoint->address, endpoint->address_bytes);
  refused_[at].until_ms = consequence.for_ms == kForever ? kForever : now_ms + consequence.for_ms;
}

}  // namespace weft
