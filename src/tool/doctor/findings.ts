// findings.ts - the table of all findings of `weft doctor`. docs/findings-*.md have the same rows; a test compares them. Pure.

type Level = 'warning' | 'failure'

interface Possible {
  /** The name of a check in CHECKS (checks.ts). */
  readonly check: string
  readonly level: Level
  /** The finding in words, and its effect on the network. */
  readonly means: string
  readonly fix: string
}

export const FINDINGS = {
  'daemon-silent': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd does not run, or does not answer: routes and rules are not repaired, and if weftd itself carries the packets (udp), all are lost',
    fix: 'start weftd (`systemctl start weftd`) and read the last lines of its log; if it runs with another --status-socket, use that option with weft doctor too',
  },
  'daemon-waits': {
    check: 'daemon',
    level: 'failure',
    means: 'weftd is starting: it has no lease yet, and no record of an earlier one, so it does not forward packets',
    fix: 'its log says what it waits for; read the errors before that line',
  },
  'daemon-as-known': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd has not reached its store since it started: it forwards packets to and from the nodes that were last known, but it cannot reach new nodes or renew its lease',
    fix: 'repair what weftd waits for, usually the store; do not stop weftd meanwhile, because it forwards packets',
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
    fix: 'read the errors in the log of weftd; if a thread hangs, restart weftd: `systemctl restart weftd`',
  },
  'rules-failing': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd cannot make or repair its firewall rules: packets of containers may be dropped, or leave the network without masquerading',
    fix: 'repair the cause that is named, usually the tool (`iptables`, `nft`) or a kernel module that it needs; weftd tries again by itself',
  },
  'path-bypassed': {
    check: 'daemon',
    level: 'failure',
    means:
      'packets for other nodes bypass the backend, with wireguard unencrypted: weftd cannot remove what an earlier backend left, or a route leads past the device',
    fix: 'remove the device or the route that is named (`ip link del`, `ip route del`), or stop the daemon that made it; if a route past wireguard is wanted, set "AllowBypass": true in `Backend` and restart weftd',
  },
  'route-unpublished': {
    check: 'daemon',
    level: 'failure',
    means:
      'the cloud or the switch has no route from this node, or a route to another target: packets to its containers do not arrive',
    fix: 'read the last error about the route in the log of weftd (missing permission, full table, route of another node), and see docs/cloud.md; weftd tries again by itself',
  },
  'route-table-full': {
    check: 'daemon',
    level: 'warning',
    means: 'a route table of the cloud or the switch is full, or nearly full: further nodes get no route',
    fix: 'request a higher limit of routes for each table, or change to a backend that has a tunnel',
  },
  'not-root': {
    check: 'daemon',
    level: 'warning',
    means: 'weft doctor does not run as root: it cannot make some checks, and cannot probe the peers',
    fix: 'run weft doctor as root',
  },
  'capability-missing': {
    check: 'tun',
    level: 'failure',
    means:
      'this container or unit lacks the capability CAP_NET_ADMIN, without which weftd cannot make devices and routes',
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
    means: 'weftd may not open /dev/net/tun',
    fix: 'on a host, run weftd as root, or give the device the mode 0666 (the default of udev) and weftd CAP_NET_ADMIN; in a container, allow the device: `--device /dev/net/tun`',
  },
  'address-gone': {
    check: 'families',
    level: 'failure',
    means:
      'the external interface has lost the address to which other nodes send: no packets pass between this node and others over that family',
    fix: 'give the interface the address again (check DHCP, or the router whose advertisements gave it), or another one; weftd uses a new address by itself, unless --iface names the old one',
  },
  'family-down': {
    check: 'families',
    level: 'failure',
    means:
      'the backend cannot carry IPv4, or cannot carry IPv6, on this host now: packets of containers over that family are lost',
    fix: 'remove the cause that is named; weftd tries again every five seconds, and needs no restart',
  },
  'family-not-carried': {
    check: 'families',
    level: 'warning',
    means:
      'the network has IPv6, but the backend carries only IPv4: containers of two hosts reach each other only over IPv4',
    fix: 'if containers need IPv6, use a backend that carries it: udp, vxlan, host-gw or wireguard',
  },
  'no-default-route': {
    check: 'families',
    level: 'warning',
    means:
      'this host has a default route for only one address family (IPv4 or IPv6): containers cannot leave the network over the other, and each start of weftd waits ten seconds for that route',
    fix: 'add a default route of the missing family on the same interface, or name the interface with --iface',
  },
  'forwarding-off': {
    check: 'forwarding',
    level: 'failure',
    means: 'net.ipv4.ip_forward is 0: the kernel forwards no IPv4 packets from or to containers of this host',
    fix: '`sysctl -w net.ipv4.ip_forward=1`; put it into a file of /etc/sysctl.d too, for the next boot',
  },
  'forwarding-off-ipv6': {
    check: 'forwarding',
    level: 'failure',
    means: 'net.ipv6.conf.all.forwarding is 0: the kernel forwards no IPv6 packets from or to containers of this host',
    fix: "`sysctl -w net.ipv6.conf.all.forwarding=1`, and put it into a file of /etc/sysctl.d too; if the default route comes from a router's advertisements, set `net.ipv6.conf.INTERFACE.accept_ra=2` first, or the route is lost",
  },
  'bridge-filter-off': {
    check: 'forwarding',
    level: 'warning',
    means:
      'iptables does not see packets within a bridge of containers: a pod that connects to a pod of its own node through a Service gets no answer',
    fix: '`modprobe br_netfilter` and `sysctl -w net.bridge.bridge-nf-call-iptables=1`; for the next boot, put the module into a file of /etc/modules-load.d and the setting into one of /etc/sysctl.d',
  },
  'forward-dropped': {
    check: 'firewall',
    level: 'failure',
    means: "this host's firewall drops forwarded packets between its containers and those of other nodes",
    fix: 'accept both directions: `iptables -I FORWARD -s NETWORK -j ACCEPT` and the same with `-d` (for IPv6 with `ip6tables`, for nftables in the chain that is named); if weftd was started with --iptables-forward-rules=false, start it without that option',
  },
  'rules-missing': {
    check: 'firewall',
    level: 'failure',
    means: "weft's firewall rules for one address family (IPv4 or IPv6) are missing, while those for the other exist",
    fix: 'a running weftd restores them within seconds; if it does not, read the errors in its log',
  },
  'port-dropped': {
    check: 'firewall',
    level: 'failure',
    means: "this host's firewall drops the packets that other nodes send to it, or those that it sends to other nodes",
    fix: "accept packets to the backend's port: incoming ones by `iptables -I INPUT -p udp --dport PORT -s NODE -j ACCEPT`, outgoing ones by the same in OUTPUT with `-d NODE`; for IPv6 use `ip6tables`, and accept `-p ipv6-icmp` too, because hosts need it to find each other",
  },
  'probes-dropped': {
    check: 'firewall',
    level: 'warning',
    means:
      "this host's firewall drops the echo requests with which other nodes probe it: they report this node as silent, though packets of containers may pass",
    fix: 'accept `icmp` (over IPv6 `ipv6-icmp`) from the network: `iptables -I INPUT -p icmp -s NETWORK -j ACCEPT`, for nftables the same in the chain that is named',
  },
  'iptables-drops': {
    check: 'firewall',
    level: 'warning',
    means:
      'iptables probably drops packets between this node and others: a rule drops them, unless an earlier rule whose conditions weft cannot evaluate (a mark, a set) accepts them',
    fix: "before the rule that is named, accept the network in FORWARD and the backend's port in INPUT and OUTPUT, or check that an earlier rule does",
  },
  'nft-drops': {
    check: 'firewall',
    level: 'warning',
    means:
      'the policy or the last rule of an nftables chain drops every packet that no rule accepts, and weft cannot tell which packets its rules accept',
    fix: "check with `nft list ruleset` that the chain accepts the network in `forward`, and the backend's port in `input` and `output`",
  },
  'foreign-route': {
    check: 'routes',
    level: 'failure',
    means: 'a route that weft did not make sends packets for a part of the network somewhere else',
    fix: 'remove the route with `ip route del`, unless it is wanted',
  },
  'no-route': {
    check: 'routes',
    level: 'failure',
    means: 'the route to the network, or to a peer, is missing: packets to these addresses use the default route',
    fix: 'a running weftd restores the route within seconds; if it does not, read the errors in its log',
  },
  'policy-route': {
    check: 'routes',
    level: 'failure',
    means:
      'a policy routing rule (`ip rule`) selects another table before the main table, and that table sends packets for a part of the network somewhere else',
    fix: 'configure the program that made the rule to leave out the network (for a VPN such as tailscale, do not accept that route), or make the kernel use the main table first: `ip rule add pref N to NETWORK lookup main`, with N below the number of that rule',
  },
  'route-refused': {
    check: 'routes',
    level: 'failure',
    means:
      'the kernel of this host refuses to forward packets between its containers and a peer: by a route or a rule that prohibits them, or by rp_filter',
    fix: 'run `ip rule`, and `ip route get` for the address that is named, and remove the rule or route that refuses it; for rp_filter set net.ipv4.conf.DEVICE.rp_filter=2',
  },
  'marked-route': {
    check: 'routes',
    level: 'warning',
    means:
      'a policy routing rule (`ip rule`) sends marked packets for a part of the network somewhere else, and an nftables rule sets that mark',
    fix: 'check whether that nftables rule marks packets of containers (`nft list ruleset`); if so, exclude the network in it',
  },
  'neighbours-full': {
    check: 'neighbours',
    level: 'failure',
    means:
      "the kernel's neighbour table is full, or nearly full: hosts and containers without an entry cannot be reached (the kernel logs `neighbour table overflow`)",
    fix: 'raise net.ipv4.neigh.default.gc_thresh3 (for IPv6 net.ipv6.neigh.default.gc_thresh3), and set gc_thresh2 to half and gc_thresh1 to a quarter of it',
  },
  'neighbours-many': {
    check: 'neighbours',
    level: 'warning',
    means:
      "the kernel's neighbour table has more entries than gc_thresh2: the kernel drops old entries within seconds, and has to resolve them again by broadcast",
    fix: 'raise net.ipv4.neigh.default.gc_thresh3 (for IPv6 net.ipv6.neigh.default.gc_thresh3), and set gc_thresh2 to half and gc_thresh1 to a quarter of it; or probe peers less often (--probe-interval)',
  },
  'store-away': {
    check: 'store',
    level: 'failure',
    means:
      "the store does not answer: known peers can still be reached, new peers cannot, and this node's lease cannot be renewed",
    fix: 'check that the store runs and can be reached from here, and read the errors in the log of weftd',
  },
  'store-stale': {
    check: 'store',
    level: 'failure',
    means: 'weftd has not compared its leases with the store for some minutes: it does not know of changes since then',
    fix: 'read the errors in the log of weftd; over NFS, check that the server answers',
  },
  'peers-held': {
    check: 'store',
    level: 'warning',
    means: 'most leases vanished from the store at the same time; weftd still forwards packets to their nodes',
    fix: 'if the store was restored or wiped, do not restart any weftd: each running node writes its lease again',
  },
  'config-missing': {
    check: 'store',
    level: 'failure',
    means:
      'the network configuration is gone from the store: running nodes continue with the one that they read, but no weftd can start',
    fix: 'write it again with `weft config set`; `weft status --json` on a running node shows it as `config`',
  },
  'clock-off': {
    check: 'clock',
    level: 'warning',
    means:
      "this host's clock differs from the store's, or was changed after the lease was written: leases and certificates appear to end too early or too late",
    fix: 'synchronize the clock by NTP: `timedatectl set-ntp true`, or chrony',
  },
  'config-differs': {
    check: 'config',
    level: 'warning',
    means:
      'a node runs with a configuration other than the one in the store: if the backends differ, nodes that restart cannot reach nodes that have not restarted yet',
    fix: 'if the configuration in the store is right, restart weftd on the nodes that differ, soon after each other; if not, write the old one back before any weftd restarts: `weft config set`',
  },
  'subnet-twice': {
    check: 'leases',
    level: 'failure',
    means: 'the subnets of two nodes overlap: packets to an address in both subnets reach only one of the nodes',
    fix: 'delete the wrong lease (`weft lease release SUBNET`), and restart weftd on its node',
  },
  'address-twice': {
    check: 'leases',
    level: 'failure',
    means: 'two hosts publish the same public IP: both use one subnet, and packets reach only one of them',
    fix: 'give each host an address of its own with --public-ip or --iface, and release the lease that no host uses any more: `weft lease release SUBNET`',
  },
  'peer-unusable': {
    check: 'peers',
    level: 'failure',
    means: 'this node cannot use the lease of another node, so it sends no packets there',
    fix: 'the log of weftd says why (look for `is not used` or `Ignoring`). If the node has another backend type, restart weftd on each node that does not run the backend in the store. If it has the key or MAC of another node, give it a key or MAC of its own. If it is gone, release its lease (`weft lease release SUBNET`)',
  },
  'peer-silent': {
    check: 'peers',
    level: 'failure',
    means: 'a peer does not answer through the data path',
    fix: "run `weft doctor` on the peer's host: check that weftd runs there, and that all firewalls on both hosts and between them accept packets to the backend's port, both ways and from any source port",
  },
  'family-broken': {
    check: 'peers',
    level: 'failure',
    means: 'a peer can be reached over only one address family (IPv4 or IPv6)',
    fix: "run weft doctor on the peer's host; on both hosts, check the log of weftd for the missing family, that the external interface has an address of it, and that the firewall (`iptables`, `ip6tables`) accepts the backend's port over it",
  },
  'peer-lossy': {
    check: 'peers',
    level: 'warning',
    means: 'a peer did not answer some of the last probes',
    fix: 'check whether packets between the two hosts are lost outside the tunnel too, and which packets weftd drops: `weft status`',
  },
  'peers-unasked': {
    check: 'peers',
    level: 'warning',
    means: 'weft cannot probe the peers, so it does not know whether they answer',
    fix: "set net.ipv4.ping_group_range so that it includes weftd's group (systemd sets 0 2147483647), or grant CAP_NET_RAW; if weftd was started with --probe-interval 0, set another interval",
  },
  'no-handshake': {
    check: 'handshakes',
    level: 'failure',
    means: 'a peer does not answer handshakes, so there are no keys to encrypt packets to it',
    fix: "if weftd runs there, accept the backend's UDP port between the hosts, both ways; compare the public key that `weft wg` shows there with the one that it shows for that peer here; compare the clocks, because a host whose clock was set back gets no answer",
  },
  'handshake-one-way': {
    check: 'handshakes',
    level: 'failure',
    means:
      'handshakes of a peer arrive and this node answers them, but no packet follows: the answers do not reach the peer, or the peer has another pre-shared key',
    fix: "accept packets from this host to the backend's UDP port of the peer in all firewalls, here, there and between; run weft doctor on the peer's host, which reports it if the pre-shared keys differ",
  },
  'psk-differs': {
    check: 'handshakes',
    level: 'failure',
    means: 'this node cannot decrypt the handshake answers of a peer: the peer has another pre-shared key (`PSK`)',
    fix: 'weftd reads `PSK` when it starts: restart weftd on all nodes that were started before `PSK` was changed, including this one',
  },
  'clock-behind': {
    check: 'handshakes',
    level: 'failure',
    means:
      "handshakes of a peer have an older timestamp than one that this node already accepted: the peer's clock was set back, and this node does not answer until the clock has caught up",
    fix: "correct the peer's clock (`timedatectl set-ntp true`); if the clock is right now and was ahead before, give the peer a new key: delete its key file and the `.time` files beside it, and restart weftd there",
  },
  'key-unusable': {
    check: 'handshakes',
    level: 'failure',
    means: 'the public key in the lease of a peer is invalid: no session key can be derived from it',
    fix: "delete the key file on the peer's host and restart weftd there: it makes a new key and publishes it",
  },
  'key-unknown': {
    check: 'handshakes',
    level: 'warning',
    means: 'a host starts handshakes with a key that is in no lease, so this node does not answer',
    fix: 'if the host is a node, compare its key (`weft wg` there) with its lease (`weft lease show`): if they differ, restart weftd there; if it has no lease, check that it uses the same store as this node. If it is not a node, find out who it is',
  },
  'path-mtu': {
    check: 'mtu',
    level: 'failure',
    means: 'small packets reach a peer, but packets of the full MTU do not: connections open and then stall',
    fix: 'the peer\'s external interface, or a link between the hosts, has a smaller MTU than this host\'s external interface: raise the MTU there, or lower it on the external interfaces of all nodes. If weftd carries udp or vxlan, it can find the largest packet that passes: set `"ProbePathMTU": true` in `Backend`. With wireguard, set the smallest MTU for all nodes as `"MTU"` in `Backend`',
  },
  'mtu-too-large': {
    check: 'mtu',
    level: 'failure',
    means: "the data path's MTU plus the tunnel's headers is larger than the MTU of the external interface",
    fix: 'if other hosts have a larger MTU, give the interface the same (`ip link set dev IF mtu N`), because it drops their longer packets. If all hosts have this MTU, remove `MTU` from the network configuration and restart weftd, which then derives the MTU from the interface',
  },
  'mtu-shrunk': {
    check: 'mtu',
    level: 'failure',
    means:
      'the MTU of the external interface is smaller than when weftd started: this node now sends shorter packets, but other nodes still send longer ones, which are dropped here',
    fix: 'restore the MTU of the interface (`ip link set dev IF mtu N`); if the smaller MTU is intended, set it on the external interfaces of all nodes, and restart weftd on each',
  },
  'bridge-mtu': {
    check: 'mtu',
    level: 'warning',
    means:
      'a bridge of containers has a larger MTU than the data path: long packets are fragmented, or refused if fragmentation is forbidden',
    fix: 'give Docker or CNI the MTU of subnet.env (`weft docker-opts`), and restart the containers',
  },
  'bridge-elsewhere': {
    check: 'containers',
    level: 'failure',
    means:
      "a bridge of containers has an address that is in the network but not in this node's subnet: packets do not reach its containers",
    fix: "the bridge was made from an older subnet.env: give Docker the new subnet (`weft docker-opts`) and restart Docker, or delete CNI's bridge (`ip link del cni0`) and restart the pods",
  },
  'subnet-env-wrong': {
    check: 'containers',
    level: 'failure',
    means:
      'subnet.env is missing, or has another subnet or MTU than weftd: containers start with wrong values, or not at all',
    fix: 'check that weftd can write the file; it repairs the file within seconds',
  },
  'unknown-senders': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute weftd dropped packets of hosts that have no lease in the lease directory of this node: these hosts may be nodes that use another directory',
    fix: 'check that all nodes mount the lease directory from the same server, such as NFS (`weft lease ls` must show the same on each); the log of weftd names the senders',
  },
  'source-outside': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute weftd dropped packets of another node because their source is outside the subnet of that node: with WireGuard a node may send only from its own subnet',
    fix: 'the log of weftd names the node; start weftd there with `--ip-masq`, or let the program there use the address of the WireGuard device; `weft capture` shows the packets',
  },
  'packets-dropped': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute weftd dropped packets because a buffer was full, because they were too long, because their source address belongs to another node, or because the kernel of this host refused to send them',
    fix: '`weft capture` shows the last dropped packets and why; for rx_drop_socket_full, raise net.core.rmem_max; for tx_drop_refused, check the OUTPUT rules and the routes of this host',
  },
} as const satisfies Readonly<Record<string, Possible>>

export type FindingName = keyof typeof FINDINGS

export interface Finding {
  readonly name: FindingName
  /** The peer, rule or value that has the fault. */
  readonly detail: string
  /** The remedy for this place; if it is left out, the remedy in the table FINDINGS applies. */
  readonly fix?: string | undefined
}

export const fixOf = ({ name, fix }: Finding): string => fix ?? FINDINGS[name].fix

export const each = <T>(name: FindingName, all: readonly T[], detailOf: (one: T) => string): Finding[] =>
  all.map((one) => ({ name, detail: detailOf(one) }))

/** The maximum number of places shown for one finding. */
const NAMED = 5

/** Groups equal findings, so that each is explained once. `details` has the first few places, and `more` counts the others. */
export function grouped(findings: readonly Finding[]): readonly {
  readonly name: FindingName
  readonly details: readonly string[]
  readonly more: number
  readonly fixes: readonly string[]
}[] {
  return [...new Set(findings.map(({ name }) => name))].map((name) => {
    const all = findings.filter((one) => one.name === name)
    const details = all.filter(({ detail }) => detail !== '').map(({ detail }) => detail)
    const fixes = [...new Set(all.slice(0, NAMED).map(fixOf))]
    return { name, details: details.slice(0, NAMED), more: Math.max(0, details.length - NAMED), fixes }
  })
}
