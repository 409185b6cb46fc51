#!/bin/sh
# flanneld.sh - the image's /opt/bin/flanneld: finds out which kind of iptables the host uses, and becomes weftd.
#
# The kernel holds rules of the nf_tables kind and of the legacy one side by side, and a packet must pass both. Which one the
# host's other programs write is told as in flannel's image (github.com/kubernetes-sigs/iptables-wrappers): by a chain that
# kubelet makes for this, else by where more rules are, of both families. Once for the daemon's life: a change below it would
# leave rules behind.
opt=${0%/bin/*}

kubelets() { printf '%s\n' "$1" | grep -Eq '^:KUBE-(IPTABLES-HINT|KUBELET-CANARY) '; }
rules() { printf '%s\n' "$1" | grep -c '^-A'; }

# What one kind shows of both families; fails where IPv4's cannot be had. Without -t no table is made that was not there.
saved() { iptables-"$1"-save 2>/dev/null || return; ip6tables-"$1"-save 2>/dev/null || :; }
nft=$(saved nft) && has_nft=yes
legacy=$(saved legacy) && has_legacy=yes

kind=nft
if kubelets "$nft"; then
  : # whatever else there is
elif [ -z "$has_legacy" ]; then
  # The legacy tables of this network namespace (net/netfilter/x_tables.c), for which asking takes CAP_NET_RAW.
  [ -z "$(cat /proc/net/ip_tables_names /proc/net/ip6_tables_names 2>/dev/null)" ] ||
    echo 'flanneld: there are rules of the legacy kind of iptables, or were, and they cannot be read; if the host uses it,' \
      'add --cap-add NET_RAW -v /run/xtables.lock:/run/xtables.lock' >&2
elif [ -z "$has_nft" ] || kubelets "$legacy" || [ "$(rules "$legacy")" -gt "$(rules "$nft")" ]; then
  kind=legacy
fi

export PATH="$opt/weft/iptables/$kind:$PATH"
exec "$opt/weft/bin/flanneld" "$@"
