// findings.ts - the table of all findings of `weft doctor`. docs/findings-*.md have the same rows; a test compares them. Pure.

export type Level = 'warning' | 'failure'

interface Possible {
  /** The name of a check in CHECKS (checks.ts). */
  readonly check: string
  readonly level: Level
  /** The finding in words, and its effect on the network. */
  readonly means: string
  readonly fix: string
}

/** All findings, by the names that programs match. */
export const FINDINGS = {
  'daemon-silent': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd does not run or does not answer. Routes and firewall rules are not repaired; with udp all packets between containers of different hosts are lost',
    fix: 'start weftd (`systemctl start weftd`) and read the last line of its log. If it runs with another --status-socket, give that path to weft doctor too',
  },
  'daemon-waits': {
    check: 'daemon',
    level: 'failure',
    means: 'weftd is starting and has no lease, neither a new one nor one from an earlier run. It forwards no packets',
    fix: 'read in its log what it waits for, and the errors before that line',
  },
  'daemon-as-known': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd has not reached its store since it started. It forwards for the nodes that it knew before; it cannot learn of new nodes or renew its lease',
    fix: 'repair what it waits for, usually the store. Do not stop weftd meanwhile, because it still forwards',
  },
  'daemon-leaves': {
    check: 'daemon',
    level: 'warning',
    means: 'weftd is stopping, or another weftd is taking over from it',
    fix: 'run weft doctor again in a few seconds',
  },
  'data-path-down': {
    check: 'daemon',
    level: 'failure',
    means: 'packets are not forwarded',
    fix: 'read the errors in the log of weftd. If a thread hangs, only a restart helps: `systemctl restart weftd`',
  },
  'rules-failing': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd cannot maintain its firewall rules. Packets of containers may be dropped, or leave the network without masquerading',
    fix: 'repair what the finding names, usually the tool (`iptables` or `nft`) or a kernel module that it needs. weftd tries again by itself',
  },
  'path-bypassed': {
    check: 'daemon',
    level: 'failure',
    means:
      'some packets leave this host past the backend, because of a route or a device that an earlier backend left. With wireguard these packets are not encrypted',
    fix: 'remove the device or route that the finding names (`ip link del`, `ip route del`), or stop the daemon that made it. If a route past wireguard is intended, set "AllowBypass": true in `Backend` and restart weftd',
  },
  'not-root': {
    check: 'daemon',
    level: 'warning',
    means: 'some checks need root, and so do the probes of peers',
    fix: 'run weft doctor as root',
  },
  'capability-missing': {
    check: 'tun',
    level: 'failure',
    means: 'this container or unit lacks the capability CAP_NET_ADMIN. weftd needs it to make devices and routes',
    fix: 'in a container, `docker run --cap-add NET_ADMIN --device /dev/net/tun`; in a unit, CapabilityBoundingSet=CAP_NET_ADMIN',
  },
  'tun-missing': {
    check: 'tun',
    level: 'failure',
    means: '/dev/net/tun does not exist on this host or in this container. weftd needs it to carry packets',
    fix: 'load the module (`modprobe tun`), or give the container the device (`--device /dev/net/tun`)',
  },
  'tun-forbidden': {
    check: 'tun',
    level: 'failure',
    means: 'weftd has no permission to open /dev/net/tun',
    fix: "on a host, run weftd as root, or give the device mode 0666 (udev's default) and weftd CAP_NET_ADMIN. In a container, allow the device: `--device /dev/net/tun`",
  },
  'address-gone': {
    check: 'families',
    level: 'failure',
    means:
      'the external interface has lost the address at which other nodes reach this one. No packets of that family pass between them',
    fix: 'restore that address; check DHCP or the router that advertises it. weftd also accepts another address by itself, unless --iface names the old one',
  },
  'family-down': {
    check: 'families',
    level: 'failure',
    means: 'this host cannot carry one address family (IPv4 or IPv6) now. Its packets from and to containers are lost',
    fix: 'remove the cause that the finding names. weftd tries again every five seconds and needs no restart',
  },
  'family-not-carried': {
    check: 'families',
    level: 'warning',
    means:
      'the network has IPv6, but the backend carries only IPv4. Containers on different hosts reach each other only over IPv4',
    fix: 'if containers need IPv6, choose a backend that carries it: udp, vxlan, host-gw or wireguard',
  },
  'no-default-route': {
    check: 'families',
    level: 'warning',
    means:
      'this host has a default route for only one address family (IPv4 or IPv6). Containers cannot leave the network over the other family, and each start of weftd waits ten seconds for that route',
    fix: 'add a default route of that family on the same interface, or name the interface with --iface',
  },
  'forwarding-off': {
    check: 'forwarding',
    level: 'failure',
    means: 'net.ipv4.ip_forward is 0: no packet of a container leaves this host, and none reaches one',
    fix: '`sysctl -w net.ipv4.ip_forward=1`. Put the setting into a file of /etc/sysctl.d too, so that it survives a reboot',
  },
  'forwarding-off-ipv6': {
    check: 'forwarding',
    level: 'failure',
    means: 'net.ipv6.conf.all.forwarding is 0: no IPv6 packet of a container leaves this host, and none reaches one',
    fix: '`sysctl -w net.ipv6.conf.all.forwarding=1`, and put it into a file of /etc/sysctl.d. If the default route comes from router advertisements, set `net.ipv6.conf.INTERFACE.accept_ra=2` first, or the kernel removes that route',
  },
  'bridge-filter-off': {
    check: 'forwarding',
    level: 'warning',
    means:
      'iptables does not see packets within a bridge of containers. A pod that connects to a pod of its own node through a Service gets no answer',
    fix: '`modprobe br_netfilter` and `sysctl -w net.bridge.bridge-nf-call-iptables=1`. For the next boot, put the module into a file of /etc/modules-load.d and the setting into one of /etc/sysctl.d',
  },
  'forward-dropped': {
    check: 'firewall',
    level: 'failure',
    means: "this host's firewall drops forwarded packets between its containers and those of other nodes",
    fix: 'accept both directions: `iptables -I FORWARD -s NETWORK -j ACCEPT` and the same with `-d`; for IPv6 use `ip6tables`. With nftables, add such rules to the chain that the finding names. If weftd runs with --iptables-forward-rules=false, start it without that flag',
  },
  'rules-missing': {
    check: 'firewall',
    level: 'failure',
    means: "weft's firewall rules for one address family (IPv4 or IPv6) are missing, but those for the other exist",
    fix: 'a running weftd restores them within seconds. If it does not, read the errors in its log',
  },
  'port-dropped': {
    check: 'firewall',
    level: 'failure',
    means: "this host's firewall drops packets from other nodes to the backend's port, or packets to other nodes",
    fix: 'accept packets from other nodes: `iptables -I INPUT -p udp --dport PORT -s NODE -j ACCEPT`. Accept packets to them: the same in OUTPUT with `-d NODE`. For IPv6 use `ip6tables`, and accept `-p ipv6-icmp` too, because hosts need it to find each other',
  },
  'probes-dropped': {
    check: 'firewall',
    level: 'warning',
    means:
      "this host's firewall drops the echo requests of other nodes. They report this node as silent, although packets of containers may pass",
    fix: 'accept `icmp` (for IPv6 `ipv6-icmp`) from the network in `INPUT`: `iptables -I INPUT -p icmp -s NETWORK -j ACCEPT`. With nftables, add such a rule to the chain that the finding names',
  },
  'iptables-drops': {
    check: 'firewall',
    level: 'warning',
    means:
      'iptables probably drops packets between this node and others. weft cannot tell, because some rules depend on marks or sets that it does not know',
    fix: "accept the network in FORWARD and the backend's port in INPUT and OUTPUT before the rule that the finding names, or check that an earlier rule accepts them",
  },
  'nft-drops': {
    check: 'firewall',
    level: 'warning',
    means:
      'an nftables chain drops every packet that its rules do not accept, and weft cannot tell which packets they accept',
    fix: "check with `nft list ruleset` that it accepts the network in `forward`, and the backend's port in `input` and `output`",
  },
  'foreign-route': {
    check: 'routes',
    level: 'failure',
    means: 'a route that weft did not make sends packets for a part of the network elsewhere',
    fix: 'remove it with `ip route del`, unless it is intended',
  },
  'no-route': {
    check: 'routes',
    level: 'failure',
    means: 'the route to the network, or to a peer, is missing. Packets to it follow the default route',
    fix: 'a running weftd restores it within seconds. If it does not, read the errors in its log',
  },
  'policy-route': {
    check: 'routes',
    level: 'failure',
    means:
      'a policy routing rule (`ip rule`) selects a table before the main one, and that table sends packets for a part of the network elsewhere',
    fix: "configure the program that made the rule to leave this network out (with a VPN such as tailscale, do not accept that route). Or let the main table come first: `ip rule add pref N to NETWORK lookup main`, with N below that rule's number",
  },
  'route-refused': {
    check: 'routes',
    level: 'failure',
    means:
      'the kernel of this host refuses to forward packets between its containers and a peer, because of a prohibiting route or rule, or because of rp_filter',
    fix: 'look at `ip rule` and at `ip route get` for the address that the finding names, and remove what refuses it. For rp_filter set net.ipv4.conf.DEVICE.rp_filter=2',
  },
  'marked-route': {
    check: 'routes',
    level: 'warning',
    means:
      'a policy routing rule (`ip rule`) sends marked packets for a part of the network elsewhere, and an nftables rule sets that mark',
    fix: 'check whether that nftables rule marks packets of containers (`nft list ruleset`). If it does, exclude the network from it',
  },
  'neighbours-full': {
    check: 'neighbours',
    level: 'failure',
    means:
      "the kernel's neighbour table is (nearly) full. Hosts and containers that are not in it cannot be reached (`neighbour table overflow` in the kernel's log)",
    fix: 'raise net.ipv4.neigh.default.gc_thresh3 (for IPv6 net.ipv6.neigh.default.gc_thresh3), with gc_thresh2 half of it and gc_thresh1 a quarter',
  },
  'neighbours-many': {
    check: 'neighbours',
    level: 'warning',
    means:
      "the kernel's neighbour table has more entries than its soft limit. The kernel drops old entries within seconds and finds them again by broadcast",
    fix: 'raise net.ipv4.neigh.default.gc_thresh3 (for IPv6 net.ipv6.neigh.default.gc_thresh3), with gc_thresh2 half of it and gc_thresh1 a quarter. Or probe peers less often (--probe-interval)',
  },
  'store-away': {
    check: 'store',
    level: 'failure',
    means:
      "the store does not answer. Known peers can still be reached; new peers cannot, and this node's lease cannot be renewed",
    fix: 'check that the store runs and that this host can reach it, and read the errors in the log of weftd',
  },
  'store-stale': {
    check: 'store',
    level: 'failure',
    means:
      'weftd has not compared its leases with the store for some minutes, and does not know what changed since then',
    fix: 'read the errors in the log of weftd. If the leases are on NFS, check that the server answers',
  },
  'peers-held': {
    check: 'store',
    level: 'warning',
    means: 'most leases vanished from the store at the same time. weftd still forwards packets to their nodes',
    fix: 'if the store was restored or wiped, do not restart anything: each node writes its lease again',
  },
  'config-missing': {
    check: 'store',
    level: 'failure',
    means: 'the network configuration is gone from the store. Running nodes keep theirs, but no weftd can start',
    fix: 'store it again with `weft config set`. `weft status --json` on a running node shows it as `config`',
  },
  'clock-off': {
    check: 'clock',
    level: 'warning',
    means:
      "this host's clock differs from the store's clock, or was set after the lease was written. Leases and certificates seem to end too early or too late",
    fix: 'synchronise the clock by NTP: `timedatectl set-ntp true`, or chrony',
  },
  'config-differs': {
    check: 'config',
    level: 'warning',
    means:
      'a node runs with another configuration than the store has. If the backends differ, restarted nodes and the others cannot reach each other',
    fix: 'if the store is right, restart weftd soon on all nodes that differ. If it is wrong, restore the old configuration before anything restarts: `weft config set`',
  },
  'subnet-twice': {
    check: 'leases',
    level: 'failure',
    means: 'the subnets of two nodes are equal or overlap. Packets to an address in both reach only one of the nodes',
    fix: 'delete the wrong lease (`weft lease release SUBNET`) and restart weftd on its node',
  },
  'address-twice': {
    check: 'leases',
    level: 'failure',
    means: 'two hosts publish the same public IP. Both use one subnet, and packets reach only one of them',
    fix: 'give each host its own address with --public-ip or --iface, and release the lease that no host uses any more: `weft lease release SUBNET`',
  },
  'peer-unusable': {
    check: 'peers',
    level: 'failure',
    means: 'this node cannot use the lease of another node, so it sends no packets there',
    fix: 'the log of weftd says why (search for `is not used` or `Ignoring`). If the node has another backend type, restart weftd on each node that does not run the backend in the store. If it has the key or MAC of another node, give it one of its own. If the node is gone, release its lease (`weft lease release SUBNET`)',
  },
  'peer-silent': {
    check: 'peers',
    level: 'failure',
    means: 'a peer does not answer through the data path',
    fix: "run `weft doctor` on its host. Check that weftd runs there, and that the firewalls of both hosts and between them accept the backend's port, both ways and from any source port",
  },
  'family-broken': {
    check: 'peers',
    level: 'failure',
    means: 'a peer is reached over one address family (IPv4 or IPv6), but not over the other',
    fix: "check that family on both hosts: the log of weftd, the address, and whether the firewall (`ip6tables` or `iptables`) accepts the backend's port. Run weft doctor on the peer's host too",
  },
  'peer-lossy': {
    check: 'peers',
    level: 'warning',
    means: 'a peer did not answer some of the last probes',
    fix: 'check whether packets between the two hosts are lost outside the tunnel too, and what weftd drops (`weft status`)',
  },
  'peers-unasked': {
    check: 'peers',
    level: 'warning',
    means: 'weftd does not probe the peers, so it does not know whether they answer',
    fix: "set net.ipv4.ping_group_range so that it includes weftd's group (systemd sets 0 2147483647), or grant CAP_NET_RAW. With --probe-interval 0, set another interval",
  },
  'no-handshake': {
    check: 'handshakes',
    level: 'failure',
    means: 'a peer answers no handshake, so there are no keys to encrypt packets to it',
    fix: "if weftd runs there, accept the backend's UDP port between the hosts, both ways. Compare that host's public key in `weft wg` on both hosts, and compare the clocks: a peer ignores handshakes from a clock that was set back",
  },
  'handshake-one-way': {
    check: 'handshakes',
    level: 'failure',
    means:
      "this node answers a peer's handshakes, but no packet follows. The answers do not arrive there, or the peer has another pre-shared key",
    fix: "check the firewalls on both hosts and between them: they must accept packets from this host to the backend's UDP port there. Run weft doctor on the peer's host; it says if the pre-shared keys differ",
  },
  'psk-differs': {
    check: 'handshakes',
    level: 'failure',
    means:
      "this node cannot decrypt a peer's answers to handshakes, because the peer has another pre-shared key (`PSK`)",
    fix: 'weftd reads `PSK` when it starts. Restart weftd on all nodes that started before the key was changed, including this one',
  },
  'clock-behind': {
    check: 'handshakes',
    level: 'failure',
    means:
      "a peer's clock went back: its handshakes are older than an earlier one. This node ignores them until that clock has caught up",
    fix: 'set its clock (`timedatectl set-ntp true`). If the clock is right now and was ahead before, give the peer a new key: delete its key file with the `.time` files beside it, and restart weftd there',
  },
  'key-unusable': {
    check: 'handshakes',
    level: 'failure',
    means: "the public key in a peer's lease is not valid, so no session key can be agreed on",
    fix: 'delete the key file on its host and restart weftd there. weftd makes and publishes a new key',
  },
  'key-unknown': {
    check: 'handshakes',
    level: 'warning',
    means: 'a host begins handshakes with a public key that no lease has. This node does not answer it',
    fix: 'find out whether that host is a node. If so, compare its key (`weft wg` there) with its lease (`weft lease show`); if they differ, restart weftd there. If it has no lease here, check that it uses the same store as this node',
  },
  'path-mtu': {
    check: 'mtu',
    level: 'failure',
    means: 'small packets reach a peer, but packets of the full MTU do not: connections open and then stall',
    fix: 'the peer\'s external interface, or a link between the hosts, has a smaller MTU than this host\'s external interface. Raise the MTU there, or lower it on the external interfaces of all nodes. With udp, and with vxlan that weftd carries, weftd can find the largest packet that passes: `"ProbePathMTU": true` in `Backend`. With wireguard, set the smallest MTU as `"MTU"` in `Backend`',
  },
  'mtu-too-large': {
    check: 'mtu',
    level: 'failure',
    means: "the data path's MTU plus the tunnel's headers is larger than the MTU of the external interface",
    fix: 'if other hosts have a larger MTU, give this interface the same (`ip link set dev IF mtu N`), because it drops their longer packets. If all hosts have this MTU, remove MTU from the network configuration and restart weftd, which then derives it from the interface',
  },
  'mtu-shrunk': {
    check: 'mtu',
    level: 'failure',
    means:
      'the external interface takes shorter packets than when weftd started. This node sends shorter packets, but the longer ones of other nodes are dropped on arrival',
    fix: "restore the interface's MTU (`ip link set dev IF mtu N`). If the new MTU is intended, set it on the external interfaces of all nodes, and restart weftd on each",
  },
  'bridge-mtu': {
    check: 'mtu',
    level: 'warning',
    means:
      'a bridge of containers has a larger MTU than the data path. Long packets are fragmented, or refused if they must not be',
    fix: 'give Docker or CNI the MTU of subnet.env (`weft docker-opts`), and restart the containers',
  },
  'bridge-elsewhere': {
    check: 'containers',
    level: 'failure',
    means:
      "a bridge of containers has an address in the network but outside this node's subnet. Packets do not find its containers",
    fix: "the bridge was made from an older subnet.env. Give Docker the new one (`weft docker-opts`) and restart it, or delete CNI's bridge (`ip link del cni0`) and restart the pods",
  },
  'subnet-env-wrong': {
    check: 'containers',
    level: 'failure',
    means:
      "subnet.env is missing, or its subnet or MTU differs from weftd's. New containers get wrong values, or do not start",
    fix: 'check that weftd can write the file; it tries again within seconds',
  },
  'unknown-senders': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute this node dropped packets of hosts that have no lease in its lease directory. They may be nodes that use another directory',
    fix: 'check that all nodes mount the lease directory from the same server (`weft lease ls` must show the same on each). The log of weftd names the senders',
  },
  'source-outside': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute this node dropped packets of another node because their source is not in its subnet. With WireGuard a node may send from its own subnet alone',
    fix: 'the log of weftd names the node. Enable masquerading there (`--ip-masq`), or let the program there use the address of the WireGuard device. `weft capture` shows the packets',
  },
  'packets-dropped': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute packets were dropped because a buffer was full, they were too long, their source belongs to another node, or the kernel refused to send them',
    fix: "`weft capture` shows the last dropped packets and the reasons. For rx_drop_socket_full, raise net.core.rmem_max. For tx_drop_refused, check this host's routes and its OUTPUT rules",
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

/** Returns a finding for each place. */
export const each = <T>(name: FindingName, all: readonly T[], detailOf: (one: T) => string): Finding[] =>
  all.map((one) => ({ name, detail: detailOf(one) }))

/** The maximum number of places that a person is shown for one finding. */
const NAMED = 5

/** Groups findings for a person: a finding with several places appears once, with the first few of them. `more` counts the rest. */
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
