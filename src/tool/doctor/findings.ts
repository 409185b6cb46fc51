// findings.ts - all that `weft doctor` can find, as one table: docs/doctor.md has the same, which a test compares. Pure.

type Level = 'warning' | 'failure'

interface Possible {
  /** The name of a check in CHECKS (checks.ts). */
  readonly check: string
  readonly level: Level
  /** The finding in words, and its effect on the network. */
  readonly means: string
  readonly fix: string
}

/** All findings, by the name that programs match. */
export const FINDINGS = {
  'daemon-silent': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd does not run, or does not answer: nobody repairs routes and rules, and with udp no packet gets through',
    fix: 'start it (`systemctl start weftd`) and read the last line of its log; if it runs with another --status-socket, give that one here too',
  },
  'daemon-waits': {
    check: 'daemon',
    level: 'failure',
    means: 'weftd starts, has no lease yet and knows of none from before: it carries no packet',
    fix: 'read in its log what it waits for, and the errors before that',
  },
  'daemon-as-known': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd was started and has not reached its store since: packets to and from the nodes that were last known pass, no new node can be reached, and the lease is not renewed',
    fix: 'mend what it waits for, mostly the store; do not stop weftd meanwhile, since it forwards',
  },
  'daemon-leaves': {
    check: 'daemon',
    level: 'warning',
    means: 'weftd stops, or another one takes over from it',
    fix: 'ask again in a few seconds',
  },
  'data-path-down': {
    check: 'daemon',
    level: 'failure',
    means: 'packets are not forwarded',
    fix: 'read the errors in its log; if a thread hangs, only a restart helps: `systemctl restart weftd`',
  },
  'rules-failing': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd cannot keep its firewall rules right: packets of containers may be dropped, or leave the network without masquerading',
    fix: 'mend what is named, mostly the tool (`iptables`, `nft`) or a module of the kernel that it needs; weftd tries again by itself',
  },
  'path-bypassed': {
    check: 'daemon',
    level: 'failure',
    means:
      'packets leave this host by another way than the backend: what an earlier backend left cannot be removed, or a route leads past the device, with wireguard unencrypted',
    fix: 'remove the device or the route that is named (`ip link del`, `ip route del`), or stop the daemon that made it; if a route past wireguard is wanted, set "AllowBypass": true in `Backend` and restart weftd',
  },
  'not-root': {
    check: 'daemon',
    level: 'warning',
    means: 'some checks need root, and so does asking the peers',
    fix: 'run weft doctor as root',
  },
  'capability-missing': {
    check: 'tun',
    level: 'failure',
    means: 'this container or unit lacks the capability CAP_NET_ADMIN, without which weftd makes no devices and routes',
    fix: 'in a container, `docker run --cap-add NET_ADMIN --device /dev/net/tun`; in a unit, CapabilityBoundingSet=CAP_NET_ADMIN',
  },
  'tun-missing': {
    check: 'tun',
    level: 'failure',
    means: 'there is no /dev/net/tun on this host or in this container, and weftd cannot carry packets without it',
    fix: 'load the module (`modprobe tun`), or give the container the device (`--device /dev/net/tun`)',
  },
  'tun-forbidden': {
    check: 'tun',
    level: 'failure',
    means: '/dev/net/tun may not be opened',
    fix: 'on a host, run weftd as root, or give the device the mode 0666 (the default of udev) and weftd CAP_NET_ADMIN; in a container, allow the device: `--device /dev/net/tun`',
  },
  'address-gone': {
    check: 'families',
    level: 'failure',
    means:
      'the external interface has lost the address by which other nodes reach this one: by that family nothing passes between them',
    fix: 'give it that address again (look at DHCP, or at the router whose advertisements it came by), or another one, which weftd takes by itself unless --iface names the address',
  },
  'family-down': {
    check: 'families',
    level: 'failure',
    means:
      'one of IPv4 and IPv6 cannot be carried on this host now: no packet of a container reaches another host by it',
    fix: 'remove what is named; weftd tries again every five seconds, and needs no restart',
  },
  'family-not-carried': {
    check: 'families',
    level: 'warning',
    means: 'the network has IPv6, and the backend carries IPv4 alone: containers of two hosts reach each other by IPv4',
    fix: 'where containers need IPv6, take a backend that carries it: udp, vxlan, host-gw or wireguard',
  },
  'no-default-route': {
    check: 'families',
    level: 'warning',
    means:
      'this host has a default route for only one of IPv4 and IPv6: over the other family containers reach nothing outside the network, and weftd waits ten seconds for such a route when it starts again',
    fix: 'give it a default route of that family on the same interface, or name the interface with --iface',
  },
  'forwarding-off': {
    check: 'forwarding',
    level: 'failure',
    means: 'net.ipv4.ip_forward is 0: no packet of a container leaves this host, and none reaches one',
    fix: '`sysctl -w net.ipv4.ip_forward=1`; put it into a file of /etc/sysctl.d too, for the next boot',
  },
  'forwarding-off-ipv6': {
    check: 'forwarding',
    level: 'failure',
    means: 'net.ipv6.conf.all.forwarding is 0: no packet of a container leaves this host by IPv6, and none reaches one',
    fix: "`sysctl -w net.ipv6.conf.all.forwarding=1`, and into a file of /etc/sysctl.d; where the default route comes from a router's advertisements, `net.ipv6.conf.INTERFACE.accept_ra=2` first, or it goes",
  },
  'bridge-filter-off': {
    check: 'forwarding',
    level: 'warning',
    means:
      'packets within a bridge of containers pass no iptables: a pod that reaches a pod of its own node by a Service gets no answer',
    fix: '`modprobe br_netfilter` and `sysctl -w net.bridge.bridge-nf-call-iptables=1`; for the next boot, put the module into a file of /etc/modules-load.d and the setting into one of /etc/sysctl.d',
  },
  'forward-dropped': {
    check: 'firewall',
    level: 'failure',
    means: "this host's firewall drops forwarded packets between its containers and those of other nodes",
    fix: 'accept both directions: `iptables -I FORWARD -s NETWORK -j ACCEPT` and the same with `-d`, in nftables the same in the chain that is named, in IPv6 by `ip6tables`; if weftd was started with --iptables-forward-rules=false, start it without',
  },
  'rules-missing': {
    check: 'firewall',
    level: 'failure',
    means: "weft's firewall rules for one of IPv4 and IPv6 are missing, while those for the other are there",
    fix: 'a running weftd puts them back within seconds; if it does not, read the errors in its log',
  },
  'port-dropped': {
    check: 'firewall',
    level: 'failure',
    means: "this host's firewall drops what other nodes send to it, or what it sends to them",
    fix: "let the other nodes in at the backend's port, `iptables -I INPUT -p udp --dport PORT -s NODE -j ACCEPT`, or what goes to them out, the same in OUTPUT with `-d NODE`; of IPv6 by `ip6tables`, and also `-p ipv6-icmp`, without which hosts do not find each other",
  },
  'probes-dropped': {
    check: 'firewall',
    level: 'warning',
    means:
      "this host's firewall drops the echo requests by which other nodes probe it: they take this node for silent, though packets of containers may pass",
    fix: 'accept `icmp` (over IPv6 `ipv6-icmp`) from the network in `INPUT`: `iptables -I INPUT -p icmp -s NETWORK -j ACCEPT`, in nftables the same in the chain that is named',
  },
  'iptables-drops': {
    check: 'firewall',
    level: 'warning',
    means:
      'iptables most likely drops packets between this node and others: it does unless a rule that asks for what weft does not know of a packet (a mark, a set) lets them through',
    fix: "accept the network in FORWARD and the backend's port in INPUT and OUTPUT before the rule that is named, or see that an earlier rule does",
  },
  'nft-drops': {
    check: 'firewall',
    level: 'warning',
    means:
      'an nftables chain drops whatever its rules do not accept, by its policy or by its last rule; weft cannot tell what they accept',
    fix: "check with `nft list ruleset` that it accepts the network in `forward` and the backend's port in `input` and `output`",
  },
  'foreign-route': {
    check: 'routes',
    level: 'failure',
    means: 'a route that weft did not make sends packets for a part of the network somewhere else',
    fix: 'remove it with `ip route del`, unless it is wanted',
  },
  'no-route': {
    check: 'routes',
    level: 'failure',
    means: 'the route to the network, or to a peer, is missing: packets to it leave by the default route',
    fix: 'a running weftd puts it back within seconds; if it does not, read the errors in its log',
  },
  'policy-route': {
    check: 'routes',
    level: 'failure',
    means:
      'a rule of policy routing (`ip rule`) has another table asked before the main one, and that sends packets for a part of the network somewhere else',
    fix: 'have the program that made the rule leave the network out (a VPN such as tailscale: do not accept that route), or have the main table asked first: `ip rule add pref N to NETWORK lookup main`, with N below the number of that rule',
  },
  'route-refused': {
    check: 'routes',
    level: 'failure',
    means:
      'the kernel of this host refuses to forward packets between its containers and a peer: by a route or a rule that prohibits them, or by rp_filter',
    fix: 'see `ip rule` and `ip route get` for the address that is named, and remove what refuses it; for rp_filter set net.ipv4.conf.DEVICE.rp_filter=2',
  },
  'marked-route': {
    check: 'routes',
    level: 'warning',
    means:
      'a rule of policy routing (`ip rule`) sends packets for a part of the network somewhere else if they have a mark, and a rule of nftables sets that mark',
    fix: 'see whether that rule of nftables marks packets of containers (`nft list ruleset`); if so, leave out the network there',
  },
  'neighbours-full': {
    check: 'neighbours',
    level: 'failure',
    means:
      "the kernel's table of neighbours is full or nearly so: hosts and containers that are not in it cannot be reached (`neighbour table overflow` in the kernel's log)",
    fix: 'raise net.ipv4.neigh.default.gc_thresh3 (of IPv6 net.ipv6.neigh.default.gc_thresh3), with gc_thresh2 half of it and gc_thresh1 a quarter',
  },
  'neighbours-many': {
    check: 'neighbours',
    level: 'warning',
    means:
      "the kernel's table of neighbours has more entries than it keeps at ease: old entries are dropped within seconds, and asked for again by broadcast",
    fix: 'raise net.ipv4.neigh.default.gc_thresh3 (of IPv6 net.ipv6.neigh.default.gc_thresh3), with gc_thresh2 half of it and gc_thresh1 a quarter; or probe peers less often (--probe-interval)',
  },
  'store-away': {
    check: 'store',
    level: 'failure',
    means:
      "the store does not answer: known peers can still be reached, new ones cannot, and this node's lease cannot be renewed",
    fix: 'check that it runs and can be reached from here, and read the errors in the log of weftd',
  },
  'store-stale': {
    check: 'store',
    level: 'failure',
    means: 'the leases were not compared with the store for some minutes: changes since then are not known here',
    fix: 'read the errors in the log of weftd; over NFS, check that the server answers',
  },
  'peers-held': {
    check: 'store',
    level: 'warning',
    means: 'most leases vanished from the store at once; packets to their nodes are still forwarded',
    fix: 'if the store was restored or wiped, do not restart anything: each node writes its lease again',
  },
  'config-missing': {
    check: 'store',
    level: 'failure',
    means:
      'the network configuration is gone from the store: nodes that run go on with the one that they have, and no weftd can start',
    fix: 'put it there again: `weft config set`; `weft status --json` of a node that runs shows, as `config`, what it was',
  },
  'clock-off': {
    check: 'clock',
    level: 'warning',
    means:
      "this host's clock differs from the store's, or was set since the lease was written: leases and certificates seem to end too early or too late",
    fix: 'keep it set by NTP: `timedatectl set-ntp true`, or chrony',
  },
  'config-differs': {
    check: 'config',
    level: 'warning',
    means:
      'a node runs by another configuration than the store has: where the backends differ, whoever restarts next and the nodes that have not are cut off from each other',
    fix: 'if the store is right, restart weftd on the nodes that differ, soon after each other; if not, put the old configuration back before anything restarts: `weft config set`',
  },
  'subnet-twice': {
    check: 'leases',
    level: 'failure',
    means:
      'the subnets of two nodes are the same or overlap: packets to an address in both reach only one of the nodes',
    fix: 'delete the lease that is wrong (`weft lease release SUBNET`), and restart its node',
  },
  'address-twice': {
    check: 'leases',
    level: 'failure',
    means: 'two hosts publish the same public IP: both use one subnet, and packets reach only one of them',
    fix: 'give each host its own with --public-ip or --iface, and release the lease that no host uses any more: `weft lease release SUBNET`',
  },
  'peer-unusable': {
    check: 'peers',
    level: 'failure',
    means: 'this node cannot use the lease of another one: no packet goes there',
    fix: 'the log of weftd says why (look for `is not used` or `Ignoring`). If the node has another backend type, restart weftd on each node that does not run the backend in the store. If it has the key or MAC of another node, give it a key or MAC of its own. If it is gone, release its lease (`weft lease release SUBNET`)',
  },
  'peer-silent': {
    check: 'peers',
    level: 'failure',
    means: 'a peer does not answer through the data path',
    fix: "run `weft doctor` on its host: see that weftd runs there, and that the firewalls of both hosts and everything between let packets to the backend's port through, both ways and from any port",
  },
  'family-broken': {
    check: 'peers',
    level: 'failure',
    means: 'a peer is reached by one of IPv4 and IPv6, and not by the other',
    fix: "look for that family on both hosts: in the log of weftd, and whether they have an address of it and let the backend's port through where packets of it arrive (`ip6tables`, or `iptables`); run weft doctor there",
  },
  'peer-lossy': {
    check: 'peers',
    level: 'warning',
    means: 'a peer did not answer some of the last probes',
    fix: 'check whether packets between the two hosts are lost outside the tunnel too, and what weftd drops: `weft status`',
  },
  'peers-unasked': {
    check: 'peers',
    level: 'warning',
    means: 'the peers are not probed: weft does not know whether they answer',
    fix: "set net.ipv4.ping_group_range so that it includes weftd's group (systemd sets 0 2147483647), or grant CAP_NET_RAW; with --probe-interval 0, set another interval",
  },
  'no-handshake': {
    check: 'handshakes',
    level: 'failure',
    means: 'a peer answers no handshake: there are no keys to encrypt packets to it by',
    fix: "if its weftd runs, let the backend's UDP port through between the hosts, both ways; compare the public key that `weft wg` shows there with the one that it shows here, and the clocks: a host whose clock went back is not answered",
  },
  'handshake-one-way': {
    check: 'handshakes',
    level: 'failure',
    means:
      "a peer's handshakes come and are answered, and no packet follows: the answers do not arrive there, or it has another pre-shared key",
    fix: "let what this host sends to the backend's UDP port there through, here, there and on the way; and run weft doctor there: it says so if the pre-shared keys differ",
  },
  'psk-differs': {
    check: 'handshakes',
    level: 'failure',
    means: 'what a peer answers to a handshake cannot be opened: it has another pre-shared key (`PSK`)',
    fix: 'have all nodes run by one configuration: weftd reads `PSK` when it starts, so restart the nodes that were started before it was changed, this one too',
  },
  'clock-behind': {
    check: 'handshakes',
    level: 'failure',
    means:
      "a peer's handshakes are older than one that this node has had from it: its clock went back, and it is not answered until it has caught up",
    fix: 'set its clock (`timedatectl set-ntp true`); if that is right now, and was ahead before, give it a new key: delete its key file with the `.time` files beside it, and restart weftd there',
  },
  'key-unusable': {
    check: 'handshakes',
    level: 'failure',
    means: 'the public key in the lease of a peer is one with which no key can be agreed on',
    fix: 'delete the key file on its host and restart weftd there: it makes another key and publishes that',
  },
  'key-unknown': {
    check: 'handshakes',
    level: 'warning',
    means: 'a host begins handshakes by a key that no lease here has: it is not answered',
    fix: 'if it is a node, compare its key (`weft wg` there) with its lease (`weft lease show`): where they differ, restart weftd there; where it has none, see that it uses the same store as this node; if it is none, find out who it is',
  },
  'path-mtu': {
    check: 'mtu',
    level: 'failure',
    means: 'small packets reach a peer, but packets of the full MTU do not: connections open and then stall',
    fix: 'the peer\'s external interface, or something between the hosts, has a smaller MTU than this host\'s external interface: raise the MTU there, or lower it on the external interfaces of all nodes, or, with udp and with vxlan that weft itself carries, have weft find the largest packet that passes: `"ProbePathMTU": true` in `Backend`; with wireguard, give all nodes the smallest as `"MTU"` in `Backend`',
  },
  'mtu-too-large': {
    check: 'mtu',
    level: 'failure',
    means: "the data path's MTU plus the tunnel's headers is larger than the MTU of the external interface",
    fix: 'if other hosts have a larger MTU, give the interface theirs (`ip link set dev IF mtu N`): what they send is longer than it takes, and is dropped. If this is what they all have, leave MTU out of the network configuration and restart weftd: it takes the MTU from the interface',
  },
  'mtu-shrunk': {
    check: 'mtu',
    level: 'failure',
    means:
      'the external interface takes shorter packets than when weftd started: this node goes by that, but what the others send is as long as before, and is dropped on its way in',
    fix: 'give the interface the MTU that it had (`ip link set dev IF mtu N`); if the new one is meant, give it to the external interfaces of all nodes, and restart weftd on each',
  },
  'bridge-mtu': {
    check: 'mtu',
    level: 'warning',
    means:
      'a bridge of containers has a larger MTU than the data path: long packets are fragmented, or refused if they may not be',
    fix: 'give Docker or CNI the MTU of subnet.env (`weft docker-opts`), and restart the containers',
  },
  'bridge-elsewhere': {
    check: 'containers',
    level: 'failure',
    means:
      "a bridge of containers has an address that is in the network but not in this node's subnet: packets do not find its containers",
    fix: "the bridge was made from an older subnet.env: give Docker the new one (`weft docker-opts`) and restart it, or delete CNI's bridge (`ip link del cni0`) and restart the pods",
  },
  'subnet-env-wrong': {
    check: 'containers',
    level: 'failure',
    means:
      "subnet.env is missing, or does not have weftd's subnet or MTU: containers start with the wrong ones, or not at all",
    fix: 'check that weftd can write the file; it does so within seconds',
  },
  'unknown-senders': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute packets of hosts without a lease in the lease directory of this node were dropped: those hosts may be nodes that use another directory',
    fix: 'see that all nodes mount the lease directory from the same server, such as NFS (`weft lease ls` on each must show the same); the log of weftd names the senders',
  },
  'source-outside': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute packets of another node were dropped because their source is not in its subnet: with WireGuard a node may send from its own subnet alone',
    fix: 'the log of weftd names the node; have it masquerade (`--ip-masq`), or have the program there use the address of the WireGuard device; `weft capture` shows the packets',
  },
  'packets-dropped': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute packets were dropped because a buffer was full, because they were too long, because their source address belongs to another node, or because the kernel here refused to send them',
    fix: '`weft capture` shows the last dropped packets and why; for rx_drop_socket_full, raise net.core.rmem_max; for tx_drop_refused, look at the rules of OUTPUT and the routes of this host',
  },
} as const satisfies Readonly<Record<string, Possible>>

export type FindingName = keyof typeof FINDINGS

export interface Finding {
  readonly name: FindingName
  /** The place where it was seen: which peer, which rule. */
  readonly detail: string
  /** The remedy for this place; if it is left out, the remedy in the table FINDINGS applies. */
  readonly fix?: string | undefined
}

/** Returns the remedy for a finding. */
export const fixOf = ({ name, fix }: Finding): string => fix ?? FINDINGS[name].fix

/** A finding for each place where it was seen. */
export const each = <T>(name: FindingName, all: readonly T[], detailOf: (one: T) => string): Finding[] =>
  all.map((one) => ({ name, detail: detailOf(one) }))

/** Places that a person is shown of one finding. */
const NAMED = 5

/** Findings for a person: one that was seen in several places is explained once, and has the first few of them; `more` counts the rest. */
export function grouped(findings: readonly Finding[]): readonly {
  readonly name: FindingName
  readonly details: readonly string[]
  readonly more: number
  /** The remedies, without repetitions. */
  readonly fixes: readonly string[]
}[] {
  return [...new Set(findings.map(({ name }) => name))].map((name) => {
    const all = findings.filter((one) => one.name === name)
    const details = all.filter(({ detail }) => detail !== '').map(({ detail }) => detail)
    const fixes = [...new Set(all.slice(0, NAMED).map(fixOf))]
    return { name, details: details.slice(0, NAMED), more: Math.max(0, details.length - NAMED), fixes }
  })
}
