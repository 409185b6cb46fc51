// layout.cc - exports the layout of peer records, and the limits that the dgram engine shares with the native engine.
// TypeScript code that works without the addon has copies of these values. test/native/layout.test.ts compares the
// copies with the originals.
#include "layout.h"

#include <initializer_list>
#include <utility>

#include "../core/counters.h"
#include "../core/drops.h"
#include "../core/icmp.h"
#include "../core/peers.h"
#include "../walk/direction.h"

namespace weft {

namespace {

Napi::Object numbers(Napi::Env env, std::initializer_list<std::pair<const char*, size_t>> members) {
  Napi::Object object = Napi::Object::New(env);
  for (const auto& [name, value] : members) object.Set(name, static_cast<double>(value));
  return object;
}

}  // namespace

Napi::Object layout_of(Napi::Env env) {
  Napi::Object layout = Napi::Object::New(env);
  layout.Set("peerRecord", numbers(env, {{"bytes", sizeof(PeerRecord)},
                                         {"subnetFamily", offsetof(PeerRecord, subnet_family)},
                                         {"prefixLength", offsetof(PeerRecord, prefix_length)},
                                         {"outer", offsetof(PeerRecord, outer)},
                                         {"flags", offsetof(PeerRecord, flags)},
                                         {"port", offsetof(PeerRecord, port)},
                                         {"limit", offsetof(PeerRecord, limit)},
                                         {"subnet", offsetof(PeerRecord, subnet)},
                                         {"ipv6", offsetof(PeerRecord, ipv6)},
                                         {"encap", offsetof(PeerRecord, encap)},
                                         {"slot", offsetof(PeerRecord, slot)},
                                         {"ipv4", offsetof(PeerRecord, ipv4)},
                                         {"isGone", PeerRecord::kGone},
                                         {"isFromKnownPort", PeerRecord::kFromKnownPort}}));
  layout.Set("traffic", numbers(env, {{"slots", TrafficRows::kMaxSlots}, {"numbers", kTrafficNumbers}}));
  layout.Set("drops", numbers(env, {{"kept", Drops::kSlots},
                                    {"everyUs", static_cast<size_t>(Drops::kEveryUs)},
                                    {"headerBytes", KeptDrop::kMaxBytes}}));
  layout.Set("path", numbers(env, {{"askEveryMs", static_cast<size_t>(PathMtu::kAskEveryMs)},
                                   {"alwaysFits", PathMtu::kAlwaysFits},
                                   {"least", kLeastMtu},
                                   {"outerBytes", kOuterBytes}}));
  layout.Set("icmp", numbers(env, {{"senderBurst", static_cast<size_t>(IcmpLimit::kSenderBurst)},
                                   {"senderEveryMs", static_cast<size_t>(IcmpLimit::kSenderEveryMs)},
                                   {"burst", static_cast<size_t>(IcmpLimit::kBurst)},
                                   {"everyMs", static_cast<size_t>(IcmpLimit::kEveryMs)}}));
  return layout;
}

}  // namespace weft
