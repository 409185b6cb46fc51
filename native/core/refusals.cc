// refusals.cc - the table of weft's reactions to the errors with which the kernel rejects packets, and the code that
// remembers these errors.
#include "refusals.h"

#include <errno.h>

#include <algorithm>

namespace weft {

namespace {

constexpr int kAnyError = 0;
/// The value of `joined_by` in a rule that matches merged and single packets.
constexpr uint32_t kAnything = 0;

struct Rule {
  Way way;
  int error;
  /// The features of which at least one must have merged the packets for the rule to match; kAnything always matches.
  uint32_t joined_by;
  size_t above;  ///< the rule matches attempts with more packets than this
  Consequence consequence;
};

constexpr uint32_t kCoalesce = kCoalesceTcp | kCoalesceUdp;

using enum Way;
using enum Then;
using enum Off;

// clang-format off
/// The first rule that matches an attempt and its errno applies.
constexpr Rule kRules[] = {
    // The columns of this table are the failed call, its errno, the features that merged the packets, and the number of
    // packets above which the rule applies. The reaction follows: the next attempt, the counter, and the feature that
    // is turned off.
    //
    // EIO: the route's device computes no checksums, or there is an xfrm policy (Linux 6.18, net/ipv4/udp.c,
    // udp_send_skb).
    {kPeers, EIO,       kUdpGso,      1,               {kSingly, k_udp_gso_refusals,  kFeature}},
    // EINVAL with more than kOldUdpSegments packets: the kernel supports fewer segments in one message. EINVAL with
    // fewer packets: Linux before 6.14 rejects segments longer than the path MTU. A blackhole route gives EINVAL even
    // for single packets (net/ipv4/fib_semantics.c, fib_props).
    {kPeers, EINVAL,    kUdpGso,      kOldUdpSegments, {kSingly, k_udp_gso_refusals,  kLongRuns}},
    {kPeers, EINVAL,    kUdpGso,      1,               {kSingly, k_udp_gso_refusals,  kUnlessPath}},
    // EMSGSIZE: a datagram is longer than the path MTU. If weft sends the datagrams one by one, the kernel may fragment
    // them. The kernel rejects a merged message only after it has copied the message, so each further attempt to merge
    // would cost CPU time.
    {kPeers, EMSGSIZE,  kUdpGso,      1,               {kSingly, k_udp_gso_refusals,  kUnlessPath}},
    {kPeers, EMSGSIZE,  kAnything,    0,               {kDrop,   k_tx_drop_too_big}},
    {kPeers, EAGAIN,    kAnything,    0,               {kDrop,   k_tx_drop_socket_full}},
    {kPeers, ENOBUFS,   kAnything,    0,               {kDrop,   k_tx_drop_socket_full}},
    {kPeers, ENOMEM,    kAnything,    0,               {kDrop,   k_tx_drop_socket_full}},
    {kPeers, kAnyError, kAnything,    0,               {kDrop,   k_tx_drop_refused}},
    // EBADFD: the TUN was deleted, so the loop cannot continue.
    {kTun,   EBADFD,    kAnything,    0,               {kGiveUp, k_rx_drop_tun}},
    // If the TUN is down, the kernel rejects the single packets with the same errno as the merged packets. In that case
    // weft continues to merge packets.
    {kTun,   EINVAL,    kCoalesceUdp, kOldUdpSegments, {kSingly, k_coalesce_refusals, kLongRuns}},
    {kTun,   EINVAL,    kCoalesce,    1,               {kSingly, k_coalesce_refusals, kFeature}},
    {kTun,   kAnyError, kCoalesce,    1,               {kSingly, k_coalesce_refusals}},
    {kTun,   kAnyError, kAnything,    0,               {kDrop,   k_rx_drop_tun}},
};
// clang-format on

constexpr bool fits(const Rule& rule, const Attempt& attempt, int error) {
  return rule.way == attempt.way && (rule.error == kAnyError || rule.error == error) &&
         (rule.joined_by == kAnything || (rule.joined_by & attempt.joined_by)) && attempt.packets > rule.above;
}

}  // namespace

const Consequence& consequence_of(const Attempt& attempt, int error) {
  return std::ranges::find_if(kRules, [&](const Rule& rule) { return fits(rule, attempt, error); })->consequence;
}

void Learnt::learn(const Consequence& consequence, const Attempt& attempt, bool taken) {
  if (!taken) return;
  if (consequence.off == Off::kLongRuns) udp_segments_ = kOldUdpSegments;
  if (consequence.off == Off::kFeature) features_->drop(attempt.joined_by);
}

void Learnt::learn(const Consequence& consequence, bool taken, const Endpoint& endpoint, size_t bytes, int64_t now_ms) {
  if (!taken || consequence.off == Off::kNothing) return;
  if (consequence.off == Off::kUnlessPath && endpoint.path.explains(bytes, now_ms)) return;
  size_t at = find(endpoint);
  if (at == refused_.size()) {
    at = static_cast<size_t>(std::ranges::min_element(refused_, {}, &Refused::until_ms) - refused_.begin());
    if (refused_[at].until_ms > now_ms) {
      others_until_ms_ = now_ms + kRememberedMs;
      return;
    }
  } else if (at == used_) {
    used_++;
  }
  refused_[at].to = endpoint.to();
  refused_[at].udp_segments = consequence.off == Off::kLongRuns ? kOldUdpSegments : uint16_t{1};
  refused_[at].until_ms = now_ms + kRememberedMs;
}

}  // namespace weft
