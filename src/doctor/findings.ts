// findings.ts - all that `weft doctor` can find, as one table: docs/doctor.md has the same, which a test compares. Pure.

export type Level = 'warning' | 'failure'

interface Possible {
  /** Of CHECKS (checks.ts). */
  readonly check: string
  readonly level: Level
  /** What it is, and what it does to the network. */
  readonly means: string
  readonly fix: string
}

/** By the name that programs match. */
export const FINDINGS = {
  'daemon-silent': {
    ...{ check: 'daemon', level: 'failure' },
    means: 'weftd does not run, or does not answer: routes and rules are not kept, and with udp no packet crosses',
    fix: 'start it (`systemctl start weftd`), and read the last line of its log; a second daemon on the host has its socket elsewhere: --status-socket',
  },
  'daemon-waits': {
    ...{ check: 'daemon', level: 'failure' },
    means: 'weftd has no lease yet: no packet crosses, unless it forwards as last known',
    fix: 'see what it waits for, and the errors above it in its log',
  },
  'data-path-down': {
    ...{ check: 'daemon', level: 'failure' },
    means: 'packets are not forwarded',
    fix: 'see the errors in its log; where a thread hangs only a restart mends that: `systemctl restart weftd`',
  },
  'not-root': {
    ...{ check: 'daemon', level: 'warning' },
    means: 'not all can be looked at, and nobody can be asked',
    fix: 'run weft doctor as root',
  },
  'tun-missing': {
    ...{ check: 'tun', level: 'failure' },
    means: 'the kernel or this container has no /dev/net/tun, without which weftd cannot carry packets',
    fix: 'load the module (`modprobe tun`), or give the container the device (`--device /dev/net/tun`)',
  },
  'tun-forbidden': {
    ...{ check: 'tun', level: 'failure' },
    means: '/dev/net/tun may not be opened',
    fix: 'in a container, allow the device: `--device /dev/net/tun`; else see its mode, which is 0666',
  },
  'forwarding-off': {
    ...{ check: 'forwarding', level: 'failure' },
    means: 'net.ipv4.ip_forward is 0: no packet of a container leaves this host, and none comes in',
    fix: '`sysctl -w net.ipv4.ip_forward=1`, and in /etc/sysctl.d for the next boot',
  },
  'forward-dropped': {
    ...{ check: 'firewall', level: 'failure' },
    means: "the FORWARD chain drops packets between this node's containers and others",
    fix: 'start weftd without --iptables-forward-rules=false, or accept both directions: `iptables -I FORWARD -s NETWORK -j ACCEPT`, and `-d`',
  },
  'port-dropped': {
    ...{ check: 'firewall', level: 'failure' },
    means: "this host's firewall drops what other nodes send to it",
    fix: "let the other nodes in at the backend's port: `iptables -I INPUT -p udp --dport PORT -s NODE -j ACCEPT`",
  },
  'nft-drops': {
    ...{ check: 'firewall', level: 'warning' },
    means: 'a chain of nftables drops what its rules do not accept; weft does not read its rules',
    fix: "see that it accepts the network in `forward` and the backend's port in `input`: `nft list ruleset`",
  },
  'foreign-route': {
    ...{ check: 'routes', level: 'failure' },
    means: "a route that is not weft's takes packets to a part of the network elsewhere",
    fix: 'remove it with `ip route del`, unless it is wanted',
  },
  'no-route': {
    ...{ check: 'routes', level: 'failure' },
    means: 'there is no route to the network, or to a peer: packets to it leave by the default route',
    fix: 'weftd puts it back within seconds while it runs; see the errors in its log',
  },
  'store-away': {
    ...{ check: 'store', level: 'failure' },
    means:
      'the store does not answer: known peers are reached on, new ones are not, and the lease ends when it is not renewed',
    fix: 'see whether it runs and can be reached from here, and the errors in the log of weftd',
  },
  'store-stale': {
    ...{ check: 'store', level: 'failure' },
    means: 'the leases were not compared with the store for minutes: what changed meanwhile is not known',
    fix: 'see the errors in the log of weftd; over NFS see that the server answers',
  },
  'peers-held': {
    ...{ check: 'store', level: 'warning' },
    means: 'most leases vanished from the store at once; their nodes are still forwarded to',
    fix: 'if the store was restored or wiped, restart nothing: each node writes its lease again',
  },
  'clock-off': {
    ...{ check: 'clock', level: 'warning' },
    means:
      "this host's clock differs from the store's, or from its own when the lease was written: leases and certificates seem to end at other times",
    fix: 'have it set: `timedatectl set-ntp true`, chrony or the like',
  },
  'subnet-twice': {
    ...{ check: 'leases', level: 'failure' },
    means: 'two nodes have one subnet, or parts of one: packets to what both have reach only one of them',
    fix: 'delete the lease that is wrong (`weft lease release SUBNET`), and restart its node',
  },
  'address-twice': {
    ...{ check: 'leases', level: 'failure' },
    means: 'two hosts say that they have one public IP: both hold one subnet, and packets reach only one of them',
    fix: 'give each its own with --public-ip or --iface, and release the lease that nobody holds: `weft lease release SUBNET`',
  },
  'peer-unusable': {
    ...{ check: 'peers', level: 'failure' },
    means: 'a node has a lease that this one cannot use: no packet goes there',
    fix: 'read why in the log of weftd (`is not used`, `Ignoring`); all nodes must have one backend type',
  },
  'peer-silent': {
    ...{ check: 'peers', level: 'failure' },
    means: 'a peer does not answer through the data path',
    fix: "see whether its daemon runs, and whether both hosts' firewalls, and what is between them, let the backend's port pass, both ways; run weft doctor there",
  },
  'peer-lossy': {
    ...{ check: 'peers', level: 'warning' },
    means: 'of the last probes of a peer some were lost',
    fix: 'see whether packets are lost between the hosts too, and what is dropped: `weft status`',
  },
  'peers-unasked': {
    ...{ check: 'peers', level: 'warning' },
    means: 'nobody asks the peers whether they answer',
    fix: 'set net.ipv4.ping_group_range to include the group of weftd (systemd sets 0 2147483647), grant CAP_NET_RAW, or set --probe-interval',
  },
  'path-mtu': {
    ...{ check: 'mtu', level: 'failure' },
    means: 'small packets reach a peer, and those of the full MTU do not: connections open and then stall',
    fix: 'the external interface of the peer, or something between the hosts, takes less than this host\'s: raise the MTU there, or lower that of the external interface on all nodes; or have weft look for what it takes: `"ProbePathMTU": true` in `Backend`',
  },
  'mtu-too-large': {
    ...{ check: 'mtu', level: 'failure' },
    means: "the data path's MTU and what stands before each packet are more than the external interface takes",
    fix: 'restart weftd, which takes the MTU from the interface; leave MTU out of the network configuration',
  },
  'bridge-mtu': {
    ...{ check: 'mtu', level: 'warning' },
    means: "containers' bridge has a larger MTU than the data path: packets are cut, or refused where they may not be",
    fix: 'give Docker or CNI the MTU of subnet.env (`weft docker-opts`), and start the containers again',
  },
  'bridge-elsewhere': {
    ...{ check: 'containers', level: 'failure' },
    means:
      "a bridge of containers has an address of the network that is outside of this node's subnet: nothing finds its containers",
    fix: 'it was made by an older subnet.env: give Docker the new one (`weft docker-opts`, restart it), or delete the bridge of CNI (`ip link del cni0`) and start the pods again',
  },
  'subnet-env-wrong': {
    ...{ check: 'containers', level: 'failure' },
    means:
      'subnet.env is missing, or says another subnet or MTU than weftd has: containers start with the wrong one, or not at all',
    fix: 'see that weftd can write it; it does within seconds',
  },
  'packets-dropped': {
    ...{ check: 'drops', level: 'warning' },
    means: 'packets were dropped for want of room, or because of what they said',
    fix: '`weft capture` shows the last of them, each with its reason; for rx_drop_socket_full raise net.core.rmem_max',
  },
} as const satisfies Readonly<Record<string, Possible>>

export type FindingName = keyof typeof FINDINGS

export interface Finding {
  readonly name: FindingName
  /** What was seen: of which peer, by which rule. */
  readonly detail: string
}
