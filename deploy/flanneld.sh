#!/bin/sh
# flanneld.sh - the image's /opt/bin/flanneld: chooses the kind of iptables that the host uses, and starts weftd.
#
# The kernel applies the rules of iptables-nft and of legacy iptables, and a packet must pass both. This script chooses as
# flannel's image does (github.com/kubernetes-sigs/iptables-wrappers): the kind that has a chain of kubelet for this purpose,
# else the kind with more rules, IPv4 and IPv6 together. weftd keeps the choice until it ends, because a change would leave
# rules behind.
opt=${0%/bin/*}

kubelets() { printf '%s\n' "$1" | grep -Eq '^:KUBE-(IPTABLES-HINT|KUBELET-CANARY) '; }
rules() { printf '%s\n' "$1" | grep -c '^-A'; }

# Prints the IPv4 and IPv6 rules of one kind; fails if the IPv4 rules cannot be read. Without -t the command creates no tables.
saved() { iptables-"$1"-save 2>/dev/null || return; ip6tables-"$1"-save 2>/dev/null || :; }
nft=$(saved nft) && has_nft=yes
legacy=$(saved legacy) && has_legacy=yes

kind=nft
if kubelets "$nft"; then
  : # kubelet uses iptables-nft
elif [ -z "$has_legacy" ]; then
  # Legacy iptables needs CAP_NET_RAW to read rules. These files list its tables in this network namespace (net/netfilter/x_tables.c).
  [ -z "$(cat /proc/net/ip_tables_names /proc/net/ip6_tables_names 2>/dev/null)" ] ||
    echo 'flanneld: the host has or had rules of legacy iptables, and this container cannot read them; if the host uses legacy iptables,' \
      'add --cap-add NET_RAW -v /run/xtables.lock:/run/xtables.lock' >&2
elif [ -z "$has_nft" ] || kubelets "$legacy" || [ "$(rules "$legacy")" -gt "$(rules "$nft")" ]; then
  kind=legacy
fi

export PATH="$opt/weft/iptables/$kind:$PATH"
exec "$opt/weft/bin/flanneld" "$@"
