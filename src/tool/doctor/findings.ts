// findings.ts - the table of all findings of `weft doctor`. Pure. docs/findings-*.md document the same findings; a test
// compares the two.

type Level = 'warning' | 'failure'

interface Possible {
  /** The name of the check that can report this finding (CHECKS in checks.ts). */
  readonly check: string
  readonly level: Level
  /** The meaning of the finding in words, and its effect on the network. */
  readonly means: string
  readonly fix: string
}

const KINDS_OF_STORES = '(etcd, the lease directory or the Kubernetes API)'
/** The remedy for a neighbour table that is nearly full. */
const RAISE_LIMITS =
  'raise net.ipv4.neigh.default.gc_thresh3 (for IPv6 net.ipv6.neigh.default.gc_thresh3), and set gc_thresh2 to half and gc_thresh1 to a quarter of gc_thresh3'
/** The remedy for a rule that changes packets of the network. */
const LEAVE_OUT =
  'delete the rule that this finding names, or exclude packets to the network from the rule (`! -d NETWORK`)'

export const FINDINGS = {
  'daemon-silent': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd does not run, or does not answer: no program repairs routes and firewall rules, and if weftd itself forwards the packets (udp), all packets are lost',
    fix: 'start weftd (`systemctl start weftd`) and read the last lines of its log; if weftd runs with another --status-socket, give weft doctor the same option',
  },
  'daemon-waits': {
    check: 'daemon',
    level: 'failure',
    means: 'weftd is starting: it has no lease yet, and no record of an earlier lease, so it does not forward packets',
    fix: 'the last lines of the log of weftd say what weftd waits for, and which error made it wait',
  },
  'daemon-as-known': {
    check: 'daemon',
    level: 'failure',
    means: `weftd has not reached its store ${KINDS_OF_STORES} since it started: it forwards packets to and from the last known nodes, but it cannot reach new nodes or renew its lease`,
    fix: 'repair the service for which weftd waits, usually the store; do not stop weftd meanwhile, because it forwards packets',
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
    means:
      'weftd does not forward packets, because its data path is not open or one of its threads hangs; or weftd cannot check or repair its data path, so that packets may be lost',
    fix: 'remove the cause that this finding or the log of weftd names; if a thread hangs, restart weftd: `systemctl restart weftd`',
  },
  'rules-failing': {
    check: 'daemon',
    level: 'failure',
    means:
      'weftd cannot make or repair its firewall rules: packets of containers may be dropped, or may leave the network without masquerading',
    fix: 'repair the cause that this finding names, usually the tool (`iptables`, `nft`) or a kernel module that the tool needs; weftd then makes the rules by itself',
  },
  'path-bypassed': {
    check: 'daemon',
    level: 'failure',
    means:
      "packets for other nodes bypass the backend, with wireguard unencrypted: weftd cannot remove a route or device that an earlier backend left, or another route leads past the backend's device",
    fix: 'remove the device or the route that this finding names (`ip link del`, `ip route del`), or stop the daemon that made it; if you want a route past wireguard, set "AllowBypass": true in `Backend` and restart weftd',
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
  'fast-path-off': {
    check: 'daemon',
    level: 'warning',
    means:
      'the network configuration allows a FastPath, but the eBPF programs do not carry packets on this host: weftd carries all packets, which is slower',
    fix: 'remove the cause that this finding names (docs/fast-path.md lists the causes), or set "FastPath": "off" in `Backend`',
  },
  'peers-without-keys': {
    check: 'daemon',
    level: 'failure',
    means: "strongSwan's charon has no keys for some peers: packets to and from these peers are dropped",
    fix: 'accept UDP ports 500 and 4500 and IP protocol 50 (ESP) in the firewalls between the hosts, give all nodes the same PSK, give the bridge of the containers its address in the subnet of the node if charon carries the packets, and see the lines of charon and the output of `swanctl --list-sas`',
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
      'the container or unit of weftd lacks the capability CAP_NET_ADMIN, without which weftd cannot make devices and routes',
    fix: 'for a container, use `docker run --cap-add NET_ADMIN --device /dev/net/tun`; for a systemd unit, set CapabilityBoundingSet=CAP_NET_ADMIN',
  },
  'tun-missing': {
    check: 'tun',
    level: 'failure',
    means: 'this host or container has no /dev/net/tun, without which weftd cannot forward packets',
    fix: 'load the module (`modprobe tun`), or give the container the device (`--device /dev/net/tun`)',
  },
  'tun-forbidden': {
    check: 'tun',
    level: 'failure',
    means: 'weftd may not open /dev/net/tun',
    fix: "on a host, run weftd as root, or give /dev/net/tun the mode 0666 (udev's default) and weftd the capability CAP_NET_ADMIN; in a container, allow the device: `--device /dev/net/tun`; in a pod on a host with SELinux, give weft's pods the type spc_t (docs/kubernetes/security.md)",
  },
  'ipv6-disabled': {
    check: 'families',
    level: 'failure',
    means:
      'net.ipv6.conf.INTERFACE.disable_ipv6 is 1 for an interface that carries IPv6 packets of the network: the kernel removed its IPv6 addresses, and sends and accepts no IPv6 packets on this interface',
    fix: 'run `sysctl -w net.ipv6.conf.INTERFACE.disable_ipv6=0`, find the program or file of /etc/sysctl.d that sets it to 1, and then give the interface its IPv6 address again',
  },
  'address-gone': {
    check: 'families',
    level: 'failure',
    means:
      'the external interface has lost the address to which other nodes send: no packets of that address family pass between this node and other nodes',
    fix: 'give the interface its old address again (check DHCP, or the router whose advertisements gave the address), or a new address; weftd uses a new address by itself, unless --iface names the old address',
  },
  'family-down': {
    check: 'families',
    level: 'failure',
    means:
      'the backend cannot forward IPv4 packets, or cannot forward IPv6 packets, on this host now: packets of containers over that family are lost',
    fix: 'remove the cause that this finding names; weftd tries again every five seconds, and needs no restart',
  },
  'family-not-carried': {
    check: 'families',
    level: 'warning',
    means:
      'the network has IPv6, but the backend carries only IPv4: containers of two hosts reach each other only over IPv4',
    fix: 'if containers need IPv6, use a backend that carries IPv6: udp, vxlan, host-gw or wireguard',
  },
  'no-default-route': {
    check: 'families',
    level: 'warning',
    means:
      'this host has a default route for only one address family (IPv4 or IPv6): over the other family containers cannot leave the network, and each start of weftd waits ten seconds for the missing route',
    fix: 'add a default route of the missing family on the same interface, or name the interface with --iface',
  },
  'forwarding-off': {
    check: 'forwarding',
    level: 'failure',
    means: 'net.ipv4.ip_forward is 0: the kernel forwards no IPv4 packets from or to containers of this host',
    fix: 'run `sysctl -w net.ipv4.ip_forward=1`, and put this setting into a file of /etc/sysctl.d for the next boot',
  },
  'interface-forwarding-off': {
    check: 'forwarding',
    level: 'failure',
    means:
      'net.ipv4.conf.INTERFACE.forwarding is 0 for one interface, although net.ipv4.ip_forward is 1: the kernel forwards no IPv4 packets that arrive on this interface',
    fix: 'run `sysctl -w net.ipv4.conf.INTERFACE.forwarding=1`, and find the program or file of /etc/sysctl.d that sets it to 0',
  },
  'tracking-full': {
    check: 'forwarding',
    level: 'failure',
    means:
      "the kernel's connection tracking table is full, or nearly full: the kernel drops the packets of new connections (its log says `nf_conntrack: table full, dropping packet`)",
    fix: 'raise net.netfilter.nf_conntrack_max, and find with `conntrack -L` which host or container has the many connections',
  },
  'forwarding-off-ipv6': {
    check: 'forwarding',
    level: 'failure',
    means: 'net.ipv6.conf.all.forwarding is 0: the kernel forwards no IPv6 packets from or to containers of this host',
    fix: "run `sysctl -w net.ipv6.conf.all.forwarding=1`, and put this setting into a file of /etc/sysctl.d for the next boot; if the default route comes from a router's advertisements, first set `net.ipv6.conf.INTERFACE.accept_ra=2`, or the kernel removes the route",
  },
  'bridge-filter-off': {
    check: 'forwarding',
    level: 'warning',
    means:
      'iptables does not see packets within a bridge of containers: a pod that connects through a Service to another pod of its own node gets no answer',
    fix: 'run `modprobe br_netfilter` and `sysctl -w net.bridge.bridge-nf-call-iptables=1`; for the next boot, put the module into a file of /etc/modules-load.d and the setting into a file of /etc/sysctl.d',
  },
  'forward-dropped': {
    check: 'firewall',
    level: 'failure',
    means:
      "this host's firewall drops packets that the host forwards between its containers and other containers of the network",
    fix: 'accept both directions: `iptables -I FORWARD -s NETWORK -j ACCEPT` and `iptables -I FORWARD -d NETWORK -j ACCEPT` (for IPv6 with `ip6tables`, for nftables in the chain that this finding names); if weftd runs with --iptables-forward-rules=false, restart it without that option',
  },
  'packets-diverted': {
    check: 'firewall',
    level: 'failure',
    means:
      'a firewall rule changes the destination of packets between containers of two nodes: the packets do not arrive',
    fix: LEAVE_OUT,
  },
  'hops-too-few': {
    check: 'firewall',
    level: 'failure',
    means:
      'a firewall rule sets the TTL (hop limit) of packets between containers of two nodes too low: a host drops the packets',
    fix: LEAVE_OUT,
  },
  'source-refused': {
    check: 'firewall',
    level: 'failure',
    means:
      'a firewall rule changes the source of packets to containers of other nodes: peers drop the packets, because with WireGuard a node may send only from its own subnet',
    fix: LEAVE_OUT,
  },
  'source-changed': {
    check: 'firewall',
    level: 'warning',
    means:
      'a firewall rule changes the source of packets to containers of other nodes: these containers see an address of this host',
    fix: LEAVE_OUT,
  },
  'rule-unjudged': {
    check: 'firewall',
    level: 'warning',
    means: 'a firewall rule drops packets, perhaps of the network, by a condition that weft cannot evaluate',
    fix: 'check which packets the rule drops; if they are packets of the network, accept the network before',
  },
  'rules-missing': {
    check: 'firewall',
    level: 'failure',
    means:
      "weft's firewall rules for one address family (IPv4 or IPv6) are missing, although the rules for the other family exist",
    fix: 'a running weftd restores its rules within seconds; if weftd does not restore them, read the errors in its log',
  },
  'port-dropped': {
    check: 'firewall',
    level: 'failure',
    means:
      "this host's firewall drops packets that other nodes send to this host, or that this host sends to other nodes",
    fix: "accept packets to the backend's port: incoming packets by `iptables -I INPUT -p udp --dport PORT -s NODE -j ACCEPT`, outgoing packets by `iptables -I OUTPUT -p udp --dport PORT -d NODE -j ACCEPT`; for IPv6 use `ip6tables`, and also accept `-p ipv6-icmp`, because IPv6 hosts need it to find each other",
  },
  'discovery-dropped': {
    check: 'firewall',
    level: 'failure',
    means:
      "this host's firewall drops neighbour discovery (ICMPv6), by which this host and its containers find each other on the bridge: no IPv6 packets pass between them",
    fix: 'accept `ipv6-icmp` on the bridge of the containers, in INPUT and OUTPUT of `ip6tables` or in the chain of nftables that this finding names',
  },
  'datagrams-changed': {
    check: 'firewall',
    level: 'failure',
    means:
      "a firewall rule changes the destination of the backend's packets between this host and a silent peer, or changes their source to an address from which the peer accepts no packets: the packets do not reach the data path",
    fix: "delete the rule that this finding names, or exclude the backend's port from the rule: before this rule, insert a rule with the target ACCEPT (in nftables `accept`) for these packets",
  },
  'probes-dropped': {
    check: 'firewall',
    level: 'warning',
    means:
      'the firewall or the kernel of this host drops the echo requests with which nodes probe each other, or the replies: this node reports other nodes as silent, or other nodes report this node as silent, although packets of containers may pass',
    fix: 'accept `icmp` (over IPv6 `ipv6-icmp`) from and to the network: `iptables -I INPUT -p icmp -s NETWORK -j ACCEPT` and `iptables -I OUTPUT -p icmp -d NETWORK -j ACCEPT`; for nftables, add an equivalent rule to the chain that this finding names',
  },
  'iptables-drops': {
    check: 'firewall',
    level: 'warning',
    means:
      'iptables probably drops packets between this node and other nodes: a rule drops the packets, unless an earlier rule accepts them; weft cannot evaluate the conditions of that earlier rule (a mark, a set)',
    fix: "before the rule that this finding names, accept the network in FORWARD and the backend's port in INPUT and OUTPUT, or check that an earlier rule accepts both",
  },
  'nft-drops': {
    check: 'firewall',
    level: 'warning',
    means:
      'the policy or the last rule of an nftables chain drops every packet that no rule of the chain accepts, and weft cannot tell which packets the rules accept',
    fix: "check with `nft list ruleset` that the chain accepts the network in `forward`, and the backend's port in `input` and `output`",
  },
  'program-on-path': {
    check: 'firewall',
    level: 'warning',
    means:
      'packets are lost, and a program, filter or queueing discipline on an interface of this host may be the cause: weft cannot evaluate eBPF programs (XDP, tc, tcx), tc filters and netem',
    fix: 'look at the interface with `bpftool net`, `tc filter show dev DEVICE ingress` (also with `egress`) and `tc qdisc show dev DEVICE`, and if no other finding explains the loss, look for drops in the log of the program that installed it, such as Cilium or an agent of the cloud',
  },
  'ipsec-blocked': {
    check: 'firewall',
    level: 'failure',
    means:
      'an IPsec policy (`ip xfrm policy`) blocks packets to or from other nodes, or demands keys that this host lacks',
    fix: 'configure the program of the policy, such as strongSwan, to leave out the network, or delete the policy',
  },
  'ipsec-unkeyed': {
    check: 'firewall',
    level: 'warning',
    means:
      'an IPsec policy demands keys that this host lacks: the kernel drops packets to or from other nodes until a program gets keys',
    fix: 'read the log of the program of the policy, or let the program leave out the network',
  },
  'foreign-route': {
    check: 'routes',
    level: 'failure',
    means: 'a route that weft did not make sends packets for a part of the network to another destination',
    fix: 'remove the route with `ip route del`, unless you want this route',
  },
  'no-route': {
    check: 'routes',
    level: 'failure',
    means:
      'the route to the network, or to a peer, is missing: the kernel sends packets for these addresses to the default route',
    fix: 'a running weftd restores the route within seconds; if weftd does not restore it, check that the external interface is up and has its address (`ip address`), and read the errors in the log of weftd (`Error adding route`)',
  },
  'policy-route': {
    check: 'routes',
    level: 'failure',
    means:
      'a policy routing rule (`ip rule`) selects another routing table before the main table, and that table sends packets for a part of the network to another destination',
    fix: "configure the program that made the rule so that it excludes the network (for a VPN such as tailscale, do not accept that route), or make the kernel use the main table first: `ip rule add pref N to NETWORK lookup main`, with N below the number of the program's rule",
  },
  'route-refused': {
    check: 'routes',
    level: 'failure',
    means:
      'the kernel of this host refuses to forward packets between its containers and a peer, because of a route or rule that prohibits the packets or because of rp_filter',
    fix: 'run `ip rule`, and `ip route get` for the address that this finding names, and remove the rule or route that refuses the packets; for rp_filter set net.ipv4.conf.DEVICE.rp_filter=2',
  },
  'underlay-route': {
    check: 'routes',
    level: 'failure',
    means:
      'the kernel of this host does not send packets for the host of a silent peer through the external interface, or refuses packets to or from that host, because of a route, a policy routing rule or rp_filter',
    fix: 'run `ip rule`, and `ip route get` for the address that this finding names, and remove the route or rule that leads elsewhere; if another interface is right, name it with --iface',
  },
  'marked-route': {
    check: 'routes',
    level: 'warning',
    means:
      'a policy routing rule (`ip rule`) sends marked packets for a part of the network to another destination, and a firewall rule sets that mark',
    fix: 'check with `iptables-save` and `nft list ruleset` whether that firewall rule marks packets of containers; if it does, exclude the network in that rule',
  },
  'neighbours-full': {
    check: 'neighbours',
    level: 'failure',
    means:
      "the kernel's neighbour table is full, or nearly full: the kernel cannot reach hosts and containers without an entry in the neighbour table (its log says `neighbour table overflow`)",
    fix: RAISE_LIMITS,
  },
  'neighbours-many': {
    check: 'neighbours',
    level: 'warning',
    means:
      "the kernel's neighbour table has more entries than gc_thresh2: the kernel drops old entries within seconds, and must then resolve the addresses again by broadcast",
    fix: `${RAISE_LIMITS}; or probe peers less often (--probe-interval)`,
  },
  'store-away': {
    check: 'store',
    level: 'failure',
    means: `the store ${KINDS_OF_STORES} does not answer: this node still reaches the peers that it knows, but it cannot reach new peers or renew its lease`,
    fix: 'check that the store runs and that this host can reach the store, and read the errors in the log of weftd',
  },
  'store-stale': {
    check: 'store',
    level: 'failure',
    means: `weftd has not compared its leases with the store ${KINDS_OF_STORES} for some minutes: it does not know later changes of leases`,
    fix: 'read the errors in the log of weftd; if the store is a directory on NFS, check that the NFS server answers',
  },
  'lease-unrenewed': {
    check: 'store',
    level: 'failure',
    means: `the store ${KINDS_OF_STORES} answers, but weftd cannot renew this node's lease, or cannot replace a lost lease: without a lease, the other nodes send no packets to this node`,
    fix: 'remove the cause that this finding names: often no subnet is free, or the store refuses writes (the rights of the etcd user, a full etcd, RBAC of Kubernetes, a read-only lease directory). weftd tries again at least once a minute',
  },
  'peers-held': {
    check: 'store',
    level: 'warning',
    means: `most leases vanished from the store ${KINDS_OF_STORES} at the same time; weftd still forwards packets to the nodes of these leases`,
    fix: 'if somebody restored or emptied the store, do not restart any weftd: each running node writes its lease again',
  },
  'config-missing': {
    check: 'store',
    level: 'failure',
    means: `the network configuration in the store ${KINDS_OF_STORES} is missing or invalid: running nodes keep the configuration that they read, but no weftd can start`,
    fix: 'write a valid network configuration with `weft config set`, or in Kubernetes into the ConfigMap; `weft status` on a running node says what is wrong, and `config` in the output of `weft status --json` is the configuration that the node uses',
  },
  'clock-off': {
    check: 'clock',
    level: 'warning',
    means:
      "this host's clock differs from the clock of the server that keeps the leases, or was changed after weftd wrote its lease: leases and certificates appear to end too early or too late",
    fix: 'synchronize the clock of this host by NTP: `timedatectl set-ntp true`, or chrony',
  },
  'config-differs': {
    check: 'config',
    level: 'warning',
    means: `a node runs with another network configuration than that in the store ${KINDS_OF_STORES}: if the backends differ, nodes that restart cannot reach nodes that have not restarted yet`,
    fix: 'if the configuration in the store is right, restart weftd on all nodes that run with another configuration, soon after each other; if the configuration in the store is wrong, write the old configuration back before any weftd restarts: `weft config set`',
  },
  'subnet-twice': {
    check: 'leases',
    level: 'failure',
    means: 'the subnets of two nodes overlap: packets to an address in both subnets reach only one of the two nodes',
    fix: 'delete the wrong lease (`weft lease release SUBNET`), and restart weftd on the node of that lease',
  },
  'address-twice': {
    check: 'leases',
    level: 'failure',
    means:
      'two hosts publish the same public IP: both hosts use the same subnet, and packets reach only one of the two hosts',
    fix: 'give each host an address of its own with --public-ip or --iface, and release the lease that no host uses any more: `weft lease release SUBNET`',
  },
  'peer-unusable': {
    check: 'peers',
    level: 'failure',
    means: 'this node cannot use the lease of another node, so it sends no packets to that node',
    fix: 'the log of weftd says why it cannot use the lease (look for `is not used` or `Ignoring`). If the other node has another backend type, restart weftd on each node that does not run the backend in the stored network configuration. If the other node has the key or MAC address of a third node, give it a key or MAC address of its own. If the other node is gone, release its lease (`weft lease release SUBNET`)',
  },
  'peer-silent': {
    check: 'peers',
    level: 'failure',
    means: 'a peer does not answer probes through the data path',
    fix: "run `weft doctor` on the peer's host: if it finds `probes-dropped`, only the echo requests are lost; check that weftd runs on that host, and that all firewalls on both hosts and between the hosts accept packets to the backend's port, in both directions and from any source port",
  },
  'family-broken': {
    check: 'peers',
    level: 'failure',
    means:
      'this node reaches a peer over only one address family (IPv4 or IPv6), although both nodes have both families',
    fix: "run weft doctor on the peer's host. On both hosts, look for the missing family in the log of weftd, and check that the external interface has an address of that family and that the firewall (`iptables`, `ip6tables`) accepts the backend's port over it",
  },
  'peer-lossy': {
    check: 'peers',
    level: 'warning',
    means: 'a peer did not answer some of the last ten probes',
    fix: 'check whether the underlay between the two hosts also loses packets outside the tunnel, and which packets weftd drops: `weft status`',
  },
  'peers-unasked': {
    check: 'peers',
    level: 'warning',
    means: 'weft cannot probe the peers, so it does not know whether they answer',
    fix: 'set net.ipv4.ping_group_range so that it includes the group of weftd (systemd sets 0 2147483647), or give weftd the capability CAP_NET_RAW; if weftd runs with --probe-interval 0, set another interval',
  },
  'no-handshake': {
    check: 'handshakes',
    level: 'failure',
    means: 'a peer does not answer WireGuard handshakes, so this node has no keys to encrypt packets to the peer',
    fix: "if weftd runs on the peer's host, make all firewalls between the hosts accept the backend's UDP port in both directions. Check that `weft wg` on the peer's host and `weft wg` on this host show the same public key for the peer's host. Compare the clocks of the hosts, because nodes do not answer a host whose clock was set back",
  },
  'handshake-one-way': {
    check: 'handshakes',
    level: 'failure',
    means:
      'handshakes of a peer arrive and this node answers them, but the peer then sends no packet: the answers do not reach the peer, or the peer has another pre-shared key',
    fix: "make all firewalls on both hosts and between them accept packets from this host to the backend's UDP port of the peer. If the pre-shared keys differ, weft doctor on the peer's host reports it",
  },
  'psk-differs': {
    check: 'handshakes',
    level: 'failure',
    means: 'this node cannot decrypt the handshake answers of a peer: the peer has another pre-shared key (`PSK`)',
    fix: 'weftd reads `PSK` only when it starts: restart weftd on all nodes that started before `PSK` was changed, including this node',
  },
  'clock-behind': {
    check: 'handshakes',
    level: 'failure',
    means:
      "handshakes of a peer have an older timestamp than an earlier handshake of that peer: the peer's clock was set back, and this node does not answer until the clock has caught up",
    fix: "correct the peer's clock (`timedatectl set-ntp true`). If the peer's clock is correct now but ran ahead earlier, give the peer a new key: on the peer's host delete its key file and the `.time` files in the same folder, and restart weftd",
  },
  'key-unusable': {
    check: 'handshakes',
    level: 'failure',
    means: 'the WireGuard public key in the lease of a peer is invalid: this node cannot derive a session key from it',
    fix: "delete the key file on the peer's host and restart weftd on that host: weftd then makes and publishes a new key",
  },
  'key-unknown': {
    check: 'handshakes',
    level: 'warning',
    means:
      'a host starts WireGuard handshakes with a public key that no lease has, so this node does not answer that host',
    fix: 'if the host is a node, compare the key that `weft wg` shows on that host with the key in its lease (`weft lease show`). If the two keys differ, restart weftd on that host. If the host has no lease, check that it uses the same store as this node. If the host is not a node, find out who runs it',
  },
  'path-mtu': {
    check: 'mtu',
    level: 'failure',
    means: 'small packets reach a peer, but packets of the full MTU do not: connections open and then stall',
    fix: 'the peer\'s external interface, or a link between the hosts, has a smaller MTU than this host\'s external interface: raise that smaller MTU, or set it on the external interfaces of all nodes. With udp, and with vxlan if weftd and not the kernel sends the packets, weftd can find the largest packet that passes: set `"ProbePathMTU": true` in `Backend`. With wireguard, set the smallest MTU for all nodes as `"MTU"` in `Backend`',
  },
  'mtu-too-large': {
    check: 'mtu',
    level: 'failure',
    means: "the data path's MTU plus the tunnel's headers is larger than the MTU of the external interface",
    fix: "if other hosts have a larger MTU, give this host's external interface the same MTU (`ip link set dev IF mtu N`), because the interface drops longer packets from other hosts. If all hosts have the smaller MTU, remove `MTU` from the network configuration and restart weftd, which then derives the MTU from the interface",
  },
  'mtu-shrunk': {
    check: 'mtu',
    level: 'failure',
    means:
      'the MTU of the external interface is smaller than when weftd started: this node now sends shorter packets, but other nodes still send longer packets, which this host drops',
    fix: 'set the MTU of the interface to its former value (`ip link set dev IF mtu N`); if you want the smaller MTU, set it on the external interfaces of all nodes, and restart weftd on each node',
  },
  'bridge-mtu': {
    check: 'mtu',
    level: 'warning',
    means:
      'a bridge of containers has a larger MTU than the data path: this host fragments long packets, or refuses them if they forbid fragmentation',
    fix: 'give Docker the MTU of subnet.env (`weft docker-opts`) and restart the containers; in Kubernetes delete the pods of this node, so that CNI gives new pods this MTU',
  },
  'bridge-elsewhere': {
    check: 'containers',
    level: 'failure',
    means:
      "a bridge of containers has an address that is not in this node's subnet: packets do not reach the containers of that bridge, and CNI starts no new pods",
    fix: "somebody made the bridge with an older subnet.env: give Docker the new subnet (`weft docker-opts`) and restart Docker, or delete CNI's bridge (`ip link del cni0`) and restart the pods",
  },
  'bridge-unrouted': {
    check: 'containers',
    level: 'failure',
    means: 'containers get no packets, because their bridge is down, or because another bridge has the same addresses',
    fix: 'set the bridge up (`ip link set dev BRIDGE up`), or delete the second bridge, such as docker0 beside cni0',
  },
  'bridge-unaddressed': {
    check: 'containers',
    level: 'failure',
    means: "a bridge lacks the address of the containers' gateway: packets of the containers do not leave the bridge",
    fix: 'give the bridge the first address of the subnet, or delete the bridge and restart its containers',
  },
  'source-unanswered': {
    check: 'crossing',
    level: 'warning',
    means:
      "the bridge of a peer's containers answers this host, but not the bridge of this node's containers: the underlay drops packets whose source is an address of a container, or only the firewall of the peer drops these pings",
    fix: 'ping a container of the peer from a container of this node: if it answers, accept `icmp` from the network in the firewall of the peer; else switch off the source/destination check (AWS), or allow the network in the port security (OpenStack) or the anti-spoofing of the virtual switch, for all hosts, and check that the peer has a route to the subnet of this node',
  },
  'subnet-env-wrong': {
    check: 'containers',
    level: 'failure',
    means:
      'subnet.env is missing, or has another subnet or MTU than weftd uses: containers start with wrong values, or not at all',
    fix: 'check that weftd can write subnet.env; weftd then repairs the file within seconds',
  },
  'unknown-senders': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute weftd dropped packets of hosts that have no lease in the lease directory of this node: these hosts may be nodes that use another directory',
    fix: 'check that all nodes mount the lease directory from the same server, such as NFS (`weft lease ls` must show the same leases on each node); the log of weftd names the senders',
  },
  'source-outside': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute weftd dropped packets of another node because the source of these packets is outside the subnet of that node: with WireGuard a node may send only from its own subnet',
    fix: 'the log of weftd names the other node; start weftd on that node with `--ip-masq`, or let the sending program use the address of the WireGuard device; `weft capture` shows the dropped packets',
  },
  'packets-dropped': {
    check: 'drops',
    level: 'warning',
    means:
      'in the last minute weftd or the kernel dropped packets because a buffer or a queue was full, because datagrams were damaged, because they were too long, because their source address belongs to another node, or because the kernel of this host refused to send them',
    fix: '`weft capture` shows the last dropped packets and the reasons; for tx_drop_queue_full and rx_drop_socket_full, give weftd more CPU time or more `--workers`, or let the senders send more slowly; if UdpInCsumErrors or Udp6InCsumErrors of `nstat -az` grows, rx_drop_socket_full counts damaged datagrams: check the network cards and the senders; for tx_drop_refused, check the OUTPUT rules and the routes of this host',
  },
} as const satisfies Readonly<Record<string, Possible>>

export type FindingName = keyof typeof FINDINGS

export interface Finding {
  readonly name: FindingName
  /** The place of the fault: the peer, rule or value that has it. */
  readonly detail: string
  /** The remedy for this single fault; if it is left out, the remedy in the table FINDINGS applies. */
  readonly fix?: string | undefined
}

export const fixOf = ({ name, fix }: Finding): string => fix ?? FINDINGS[name].fix

/** The remedy for a fault that the finding `cause` explains. */
export const firstRemove = (cause: FindingName): string => `first remove the fault that \`${cause}\` names`

export const each = <T>(name: FindingName, all: readonly T[], detailOf: (one: T) => string): Finding[] =>
  all.map((one) => ({ name, detail: detailOf(one) }))

/** The maximum number of details that the doctor shows for one finding. */
const NAMED = 5

/**
 * Groups findings of one name, so that the doctor explains each name once. `details` has the first NAMED details, and
 * `more` is the number of further details.
 */
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
