// traffic_control.cc - sends the rtnetlink messages that attach, detach and list tc's eBPF programs.
#include "traffic_control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/netlink.h>
#include <linux/pkt_cls.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "netlink.h"

namespace weft {

namespace {

/// The priority and the handle of weft's filters. Filters with a lower priority number run earlier. The number is high,
/// because weft's programs redirect packets, which filters after them do not see.
constexpr uint32_t kPriority = 4096, kHandle = 1;
constexpr size_t kMessageBytes = 512;

/// A message of rtnetlink for a qdisc or a filter.
class Request {
 public:
  Request(uint16_t type, uint16_t flags, uint32_t index, uint32_t parent, uint32_t handle) {
    header()->nlmsg_type = type;
    header()->nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
    header()->nlmsg_len = NLMSG_LENGTH(sizeof(tcmsg));
    about()->tcm_family = AF_UNSPEC;
    about()->tcm_ifindex = static_cast<int>(index);
    about()->tcm_parent = parent;
    about()->tcm_handle = handle;
  }
  tcmsg* about() { return static_cast<tcmsg*>(NLMSG_DATA(header())); }
  rtattr* add(uint16_t type, const void* value, size_t bytes) {
    auto* attribute = reinterpret_cast<rtattr*>(bytes_.data() + NLMSG_ALIGN(header()->nlmsg_len));
    attribute->rta_type = type;
    attribute->rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes));
    if (bytes > 0) std::memcpy(RTA_DATA(attribute), value, bytes);
    header()->nlmsg_len = NLMSG_ALIGN(header()->nlmsg_len) + RTA_ALIGN(attribute->rta_len);
    return attribute;
  }
  void add(uint16_t type, const std::string& text) { add(type, text.c_str(), text.size() + 1); }
  void add(uint16_t type, uint32_t number) { add(type, &number, sizeof number); }
  /// Ends the attribute `outer`, which contains all attributes that were added after it.
  void end(rtattr* outer) {
    const auto* end = bytes_.data() + header()->nlmsg_len;
    outer->rta_len = static_cast<uint16_t>(end - reinterpret_cast<const uint8_t*>(outer));
  }
  std::span<uint8_t> bytes() { return std::span(bytes_).first(header()->nlmsg_len); }

 private:
  nlmsghdr* header() { return reinterpret_cast<nlmsghdr*>(bytes_.data()); }

  alignas(nlmsghdr) std::array<uint8_t, kMessageBytes> bytes_ = {};
};

/// Sends a request, and calls `each` with each message of the answer.
template <typename Each>
Failure exchange(Request& request, Each each) {
  NetlinkSocket socket(NETLINK_ROUTE);
  std::vector<NetlinkAnswer> answers;
  if (Failure failure = socket.exchange(request.bytes(), answers)) return failure;
  if (answers.front().error) return SystemError{"rtnetlink", answers.front().error};
  SecretBytes& messages = answers.front().messages;
  each_netlink_message(messages, [&](const nlmsghdr&, std::span<const uint8_t> message) {
    each(reinterpret_cast<nlmsghdr*>(messages.data() + (message.data() - messages.data())));
  });
  return {};
}

Failure ask(Request& request) {
  return exchange(request, [](nlmsghdr*) {});
}

uint32_t parent_of(const Hook& hook) {
  return TC_H_MAKE(TC_H_CLSACT, hook.is_egress ? TC_H_MIN_EGRESS : TC_H_MIN_INGRESS);
}

Request filter_request(uint16_t type, uint16_t flags, const Hook& hook) {
  Request request(type, flags, hook.index, parent_of(hook), kHandle);
  request.about()->tcm_info = TC_H_MAKE(kPriority << 16, htons(ETH_P_ALL));
  request.add(TCA_KIND, "bpf");
  return request;
}

std::string text_in(const rtattr* attribute) {
  const auto* text = static_cast<const char*>(RTA_DATA(attribute));
  return {text, strnlen(text, RTA_PAYLOAD(attribute))};
}

template <typename Each>
void each_attribute(rtattr* at, size_t bytes, Each each) {
  auto left = static_cast<int>(bytes);
  for (; RTA_OK(at, left); at = RTA_NEXT(at, left)) each(at);
}

Failure call_ethtool(const std::string& interface, void* command) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  std::memcpy(request.ifr_name, interface.c_str(), std::min(interface.size(), sizeof request.ifr_name - 1));
  request.ifr_data = static_cast<char*>(command);
  if (!socket) return SystemError{"socket", errno};
  if (ioctl(socket.get(), SIOCETHTOOL, &request) < 0) return SystemError{"ioctl SIOCETHTOOL", errno};
  return {};
}

}  // namespace

Failure attach_program(const Hook& hook, int program, const std::string& name) {
  Request qdisc(RTM_NEWQDISC, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, hook.index, TC_H_CLSACT,
                TC_H_MAKE(TC_H_CLSACT, 0));
  qdisc.add(TCA_KIND, "clsact");
  if (const Failure failure = ask(qdisc); failure && failure->number != EEXIST) return failure;
  Request request = filter_request(RTM_NEWTFILTER, NLM_F_ACK | NLM_F_CREATE, hook);
  rtattr* options = request.add(TCA_OPTIONS, nullptr, 0);
  request.add(TCA_BPF_FD, static_cast<uint32_t>(program));
  request.add(TCA_BPF_NAME, name);
  request.add(TCA_BPF_FLAGS, uint32_t{TCA_BPF_FLAG_ACT_DIRECT});
  request.end(options);
  return ask(request);
}

Failure detach_program(const Hook& hook) {
  Request request = filter_request(RTM_DELTFILTER, NLM_F_ACK, hook);
  const Failure failure = ask(request);
  // Ignore the error numbers with which the kernel reports that the qdisc, the filter or the interface is missing,
  // because in these cases no program is attached.
  if (failure && (failure->number == ENOENT || failure->number == EINVAL || failure->number == ENODEV)) return {};
  return failure;
}

Failure list_filters(const Hook& hook, std::vector<TcFilter>& filters) {
  Request request(RTM_GETTFILTER, NLM_F_DUMP, hook.index, parent_of(hook), 0);
  return exchange(request, [&](nlmsghdr* message) {
    if (message->nlmsg_type != RTM_NEWTFILTER || message->nlmsg_len < NLMSG_LENGTH(sizeof(tcmsg))) return;
    auto* about = static_cast<tcmsg*>(NLMSG_DATA(message));
    // The kernel lists each priority as an entry without a handle before the entries of the filters. Skip that entry.
    if (about->tcm_handle == 0) return;
    TcFilter filter{static_cast<uint16_t>(about->tcm_info >> 16), {}, {}};
    each_attribute(TCA_RTA(about), TCA_PAYLOAD(message), [&](rtattr* at) {
      if (at->rta_type == TCA_KIND) filter.kind = text_in(at);
      if (at->rta_type != TCA_OPTIONS) return;
      each_attribute(static_cast<rtattr*>(RTA_DATA(at)), RTA_PAYLOAD(at), [&](rtattr* option) {
        if (option->rta_type == TCA_BPF_NAME && filter.kind == "bpf") filter.name = text_in(option);
      });
    });
    filters.push_back(std::move(filter));
  });
}

std::string active_features(const std::string& interface) {
  constexpr size_t kMostBlocks = 16;
  // The layout of struct ethtool_gfeatures, whose flexible array cannot have a size here.
  struct {
    uint32_t command, size;
    ethtool_get_features_block blocks[kMostBlocks];
  } features = {ETHTOOL_GFEATURES, kMostBlocks, {}};
  if (call_ethtool(interface, &features)) return {};
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(features.size, kMostBlocks); i++) {
    char block[9];
    std::snprintf(block, sizeof block, "%08x", features.blocks[i].active);
    text += block;
  }
  return text;
}

Failure set_offload(const std::string& interface, Offload offload, bool is_on) {
  ethtool_value value = {offload == Offload::kGro ? uint32_t{ETHTOOL_SGRO} : uint32_t{ETHTOOL_STSO}, is_on};
  return call_ethtool(interface, &value);
}

}  // namespace weft
