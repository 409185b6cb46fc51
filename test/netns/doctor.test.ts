// doctor.test.ts - `weft doctor` on hosts with one fault each: it names this fault and nothing else, and blames no healthy host. The tests
// also cover what `weft` prints about a real daemon.

import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ended, output } from '../../lab/command.ts'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { FINDINGS, type FindingName } from '../../src/tool/doctor/findings.ts'
import type { Report } from '../../src/tool/weft/bench-text.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, subnetOf, tunAddress, weft, weftOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

const lacks = needs(HOSTS, 'iptables', 'nft')

let lab: Lab
let first: Host
let second: Host
let daemons: Daemon[]
const leases = (): string => join(lab.folder, 'leases')
const args = (): string[] => ['--lease-dir', leases(), '--probe-interval', '1']

const inShell = (host: Host, script: string): Promise<string> => host.output(['sh', '-c', script])
/** Resolves when each host has the other as a peer and has received its answers. */
async function areWell(): Promise<void> {
  for (const host of [first, second])
    await eventually(async () => expect((await statusOf(host)).peers).toMatchObject({ stored: 1, answering: 1 }))
}

beforeAll(async () => {
  if (lacks) return
  lab = await createLab({ hosts: 2 })
  ;[first, second] = lab.hosts as [Host, Host]
  mkdirSync(leases())
  writeFileSync(join(leases(), 'config'), '{"Network":"10.5.0.0/16"}')
  daemons = lab.hosts.map((host) => host.startDaemon({ args: args() }))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  await first.startPod()
  await areWell()
})
afterAll(() => lab?.close())

it('finds nothing wrong with healthy hosts', async () => {
  for (const host of [first, second]) {
    const { code, checks, names } = await doctor(host)
    expect([code, names]).toEqual([0, []])
    // In a namespace the limits of the neighbour table may be hidden.
    const unknown = checks.filter(({ state, check }) => state === 'unknown' && check !== 'neighbours')
    expect(unknown).toEqual([])
  }
})

it('probes a peer given by any of its names, and prints the round-trip time', async () => {
  const subnet = subnetOf(second)
  for (const name of [subnet, subnet.replace('.0/24', '.77'), second.address]) {
    const { code, stdout } = await weft(first, ['ping', name, '--count', '1', '--size', '1472'])
    expect([code, stdout]).toEqual([
      0,
      expect.stringMatching(/^(?:\S+ \()?10\.5\..*: [\d.]+ ms\n1 of 1 answered \(0% lost\)/),
    ])
  }
  expect(await weft(first, ['ping', subnet, '--count', '1', '--size', '1473', '--json'])).toMatchObject({ code: 2 })
  expect(await weft(first, ['ping', '10.5.254.9'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('there is no peer'),
  })
})

it('explains the path of a packet, outgoing and incoming', async () => {
  const [here, there] = [subnetOf(first), subnetOf(second)].map((subnet) => subnet.replace('.0/24', '.2')) as [
    string,
    string,
  ]
  const explain = async (source: string, destination: string) => {
    const { code, stdout, stderr } = await weft(first, ['explain', source, destination, '--json'])
    expect([code, stderr]).toEqual([expect.any(Number), ''])
    const { passes, steps } = JSON.parse(stdout) as {
      passes: boolean | null
      steps: { step: string; passes?: boolean; says: string }[]
    }
    return {
      code,
      passes,
      steps: steps.map(({ step }) => step),
      says: steps.map(({ says }) => says),
      failed: steps.filter((each) => each.passes === false).map(({ step }) => step),
    }
  }
  const outward = ['source', 'destination', 'forwarding', 'firewall', 'route', 'data path', 'mtu', 'peer']
  expect(await explain(here, there)).toMatchObject({ code: 0, passes: true, steps: outward, failed: [] })
  expect(await explain(there, here)).toMatchObject({
    code: 0,
    passes: true,
    failed: [],
    steps: ['source', 'destination', 'firewall', 'data path', 'forwarding', 'firewall', 'route'],
  })
  // An nftables firewall, and a routing table that precedes the main one, affect the packet.
  await inShell(first, `nft '${FIREWALLD}'`)
  expect(await explain(here, there)).toMatchObject({ code: 3, failed: ['firewall'] })
  await inShell(first, 'nft delete table inet firewalld')
  await inShell(first, 'ip route add 10.5.0.0/16 via 192.168.77.254 table 52; ip rule add pref 5270 lookup 52')
  expect(await explain(here, there)).toMatchObject({
    code: 3,
    failed: ['route'],
    says: expect.arrayContaining([
      expect.stringContaining('by the rule "5270: from all lookup 52" instead of flannel0'),
    ]),
  })
  await inShell(first, 'ip rule del pref 5270; ip route flush table 52')
  expect(await explain(here, '10.5.254.9')).toMatchObject({ code: 3, failed: ['data path'] })
  // Without masquerading an answer may not arrive.
  const away = await explain(here, '192.0.2.5')
  expect([away.code, away.passes ?? 'not known', away.failed]).toEqual([0, 'not known', []])
  await inShell(first, `ip route add ${there}/32 via 192.168.77.254; echo 0 > /proc/sys/net/ipv4/ip_forward`)
  expect(await explain(here, there)).toMatchObject({ code: 3, failed: ['forwarding', 'route'] })
  await inShell(first, `ip route del ${there}/32; echo 1 > /proc/sys/net/ipv4/ip_forward`)
})

it('measures outside and inside the tunnel, names the cause that blocks a measurement, and accepts no unknown sender', async () => {
  const words = ['bench', second.address, '--seconds', '0.05', '--pairs', '1', '--streams', '2']
  expect(await weft(first, words)).toMatchObject({
    code: 1,
    stdout: '',
    stderr: expect.stringMatching(
      /no program listens on TCP port 8286 of 192\.168\.77\.2; run `weft bench --listen` on that host$/m,
    ),
  })
  const listener = second.spawn(weftOf(second, ['bench', '--listen']))
  const said: string[] = []
  const lines = createInterface({ input: listener.stdout! }).on('line', (line) => said.push(line))
  await once(lines, 'line')

  const { code, stdout, stderr } = await weft(first, [...words, '--json'])
  expect([code, stderr]).toEqual([0, ''])
  const report = JSON.parse(stdout) as Report
  const paths = { outside: expect.any(Number) as number, inside: expect.any(Number) as number }
  const inUse = { backendType: 'udp', device: 'flannel0', engine: 'native', mtu: 1472, pathMtu: null }
  expect(report).toMatchObject({
    peer: subnetOf(second),
    outside: second.address,
    inside: tunAddress(second),
    isBroken: false,
    tcp: { ...paths, ratio: expect.any(Number) },
    roundTripMs: paths,
    udp: { datagramBytes: 1444 },
    inUse: { here: { ...inUse, subnet: subnetOf(first) }, there: { ...inUse, subnet: subnetOf(second) } },
    drops: { here: expect.any(Object), there: expect.any(Object) },
  })
  for (const path of ['outside', 'inside'] as const) {
    expect(Math.min(report.tcp[path]!, report.roundTripMs[path]!)).toBeGreaterThan(0)
    expect(report.udp[path].lost).toBeLessThan(report.udp[path].sent)
  }

  const rule = (device: string): string => `INPUT -i ${device} -p tcp --dport 8286 -j REJECT`
  await inShell(second, `iptables -A ${rule('eth0')}`)
  expect(await weft(first, words)).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/TCP port 8286 of 192\.168\.77\.2 is reached inside but not outside.*firewall/),
  })
  await inShell(second, `iptables -D ${rule('eth0')}; iptables -A ${rule('flannel0')}`)
  expect(await weft(first, words)).toMatchObject({
    code: 3,
    stdout: expect.stringMatching(
      /is reached outside but not inside.*a ping through the data path is answered: accept/,
    ),
  })
  await inShell(second, `iptables -D ${rule('flannel0')}`)

  // The second host uses the first one's status, so it is not a peer of its own.
  expect(await second.run(weftOf(first, words))).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('refuses: no peer of this node has the public IP 192.168.77.2'),
  })
  const allSaid = once(lines, 'close')
  listener.kill('SIGTERM')
  await Promise.all([ended(listener), allSaid])
  expect(listener.exitCode).toBe(0)
  expect(said).toEqual([
    expect.stringMatching(/^listening at TCP and UDP port 8286.*: weft bench 192\.168\.77\.2$/),
    '192.168.77.1 measures',
    '192.168.77.1 has ended',
    '192.168.77.1 measures',
    '192.168.77.1 has ended',
    expect.stringMatching(/^192\.168\.77\.2 was refused: no peer/),
  ])
})

/** The rules that firewalld creates on RHEL, Alma and Fedora. */
const FIREWALLD = `table inet firewalld {
  chain filter_FORWARD {
    type filter hook forward priority filter + 10; policy accept;
    ct state { established, related } accept; iifname "lo" accept
    jump filter_FORWARD_ZONES; reject with icmpx admin-prohibited
  }
  chain filter_FORWARD_ZONES { goto filter_FWD_public; }
  chain filter_FWD_public { reject with icmpx admin-prohibited; }
}`

/** Each entry breaks the first host and repairs it; `find` lists the only findings there. */
const BROKEN: readonly {
  readonly what: string
  readonly find: readonly FindingName[]
  readonly detail?: RegExp
  readonly break: () => Promise<unknown>
  readonly repair: () => Promise<unknown>
}[] = [
  {
    what: 'no ip_forward',
    find: ['forwarding-off'],
    break: () => inShell(first, 'echo 0 > /proc/sys/net/ipv4/ip_forward'),
    repair: () => inShell(first, 'echo 1 > /proc/sys/net/ipv4/ip_forward'),
  },
  {
    what: 'a port that is closed',
    find: ['port-dropped', 'peer-silent'],
    detail: /^-A INPUT -p udp .*--dport 8285 -j DROP$/,
    break: () => inShell(first, 'iptables -A INPUT -p udp --dport 8285 -j DROP'),
    repair: () => inShell(first, 'iptables -F INPUT'),
  },
  {
    what: 'a firewall of nftables that drops what it does not know',
    find: ['port-dropped', 'peer-silent'],
    detail: /^nft: inet mine in: policy drop$/,
    break: () =>
      inShell(first, "nft 'table inet mine { chain in { type filter hook input priority 0; policy drop; }; }'"),
    repair: () => inShell(first, 'nft delete table inet mine'),
  },
  {
    what: "firewalld's last rule of FORWARD, which rejects",
    find: ['forward-dropped'],
    detail: /^nft: inet firewalld filter_FWD_public: reject with icmpx admin-prohibited$/,
    break: () => inShell(first, `nft '${FIREWALLD}'`),
    repair: () => inShell(first, 'nft delete table inet firewalld'),
  },
  {
    what: "a VPN's table that is asked before the main one",
    find: ['policy-route', 'peer-silent'],
    detail:
      /^10\.5\.\S+ \(from cni0\) goes to eth0 via 192\.168\.77\.254, by the table 52 and the rule "5270: from all lookup 52"$/,
    break: () =>
      inShell(first, 'ip route add 10.5.0.0/16 via 192.168.77.254 table 52; ip rule add pref 5270 lookup 52'),
    repair: async () => {
      await inShell(first, 'ip rule del pref 5270; ip route flush table 52')
      await areWell()
    },
  },
  {
    what: 'a rule for packets of containers alone, while the host itself reaches the peer',
    find: ['policy-route'],
    detail:
      / \(from cni0\) goes to eth0 via 192\.168\.77\.254, by the table 30400 and the rule "30400: from all iif cni0 /,
    break: () =>
      inShell(
        first,
        'ip route add default via 192.168.77.254 table 30400; ip rule add pref 30400 iif cni0 lookup 30400',
      ),
    repair: () => inShell(first, 'ip rule del pref 30400; ip route flush table 30400'),
  },
  {
    what: 'a rule that prohibits the way',
    find: ['route-refused', 'peer-silent'],
    detail: /: Permission denied, by the rule "100: from all to 10\.5\.\S+\/24 prohibit"$/,
    break: () => inShell(first, `ip rule add pref 100 to ${subnetOf(second)} prohibit`),
    repair: async () => {
      await inShell(first, 'ip rule del pref 100')
      await areWell()
    },
  },
  {
    what: 'a route to the host of the peer through a gateway that does not forward',
    find: ['underlay-route', 'peer-silent'],
    detail: /: packets to 192\.168\.77\.2 go via 192\.168\.77\.253, although the host is on the link of eth0$/,
    break: () => inShell(first, 'ip route add 192.168.77.2/32 via 192.168.77.253'),
    repair: async () => {
      await inShell(first, 'ip route del 192.168.77.2/32')
      await areWell()
    },
  },
  {
    what: 'an interface whose packets the kernel does not forward',
    find: ['interface-forwarding-off'],
    detail: /^net\.ipv4\.conf\.cni0\.forwarding is 0$/,
    break: () => inShell(first, 'echo 0 > /proc/sys/net/ipv4/conf/cni0/forwarding'),
    repair: () => inShell(first, 'echo 1 > /proc/sys/net/ipv4/conf/cni0/forwarding'),
  },
  {
    what: 'a kernel that answers no echo requests',
    find: ['probes-dropped'],
    detail: /^net\.ipv4\.icmp_echo_ignore_all is 1/,
    break: () => inShell(first, 'echo 1 > /proc/sys/net/ipv4/icmp_echo_ignore_all'),
    repair: async () => {
      await inShell(first, 'echo 0 > /proc/sys/net/ipv4/icmp_echo_ignore_all')
      await areWell()
    },
  },
  {
    what: 'a firewall that drops the probes of this host, but no packets of containers',
    find: ['probes-dropped', 'peer-silent'],
    detail: /^-A OUTPUT -o flannel0 -j DROP$/,
    break: () => inShell(first, 'iptables -A OUTPUT -o flannel0 -j DROP'),
    repair: async () => {
      await inShell(first, 'iptables -F OUTPUT')
      await areWell()
    },
  },
  {
    what: 'a route that somebody else made',
    find: ['foreign-route', 'peer-silent'],
    detail: /^10\.5\..* goes via 192\.168\.77\.254 to eth0$/,
    break: () => inShell(first, `ip route add ${subnetOf(second)} via 192.168.77.254`),
    repair: () => inShell(first, `ip route del ${subnetOf(second)}`),
  },
  {
    what: 'an external interface that has lost its address',
    find: ['address-gone', 'peer-silent'],
    detail: /^IPv4: eth0 has lost its address 192\.168\.77\.1$/,
    break: () => inShell(first, 'ip address del 192.168.77.1/24 dev eth0'),
    repair: async () => {
      await inShell(first, 'ip address add 192.168.77.1/24 dev eth0; ip route add default via 192.168.77.254')
      await areWell()
      await daemons[0]!.line(/The external interface has an IPv4 address again$/)
    },
  },
  {
    what: 'a path that takes less than the interface',
    find: ['path-mtu'],
    detail:
      /packets of 1472 bytes get no answer( since \S+)?, packets of up to 1372 do; check the external interfaces of both/,
    break: () => inShell(second, 'ip link set eth0 mtu 1400'),
    repair: () => inShell(second, 'ip link set eth0 mtu 1500'),
  },
  {
    what: 'containers with a larger MTU',
    find: ['bridge-mtu'],
    detail: /^cni0 has MTU 1500, the data path 1472$/,
    break: () => inShell(first, 'ip link add spare mtu 1500 type veth peer name spare2; ip link set cni0 mtu 1500'),
    repair: () => inShell(first, 'ip link set cni0 mtu 1472; ip link del spare'),
  },
  {
    what: "Docker's bridge by a stale subnet.env",
    find: ['bridge-elsewhere'],
    detail: /^docker0 has 10\.5\.253\.1, but this node has 10\.5\./,
    break: () => inShell(first, 'ip link add docker0 type bridge && ip address add 10.5.253.1/32 dev docker0'),
    repair: () => inShell(first, 'ip link del docker0'),
  },
  {
    what: "Docker's bridge with the addresses of CNI's bridge",
    find: ['bridge-unrouted'],
    detail: /^packets for 10\.5\.\S+ go to docker0 instead of to cni0$/,
    break: async () => {
      const subnet = subnetOf(first)
      const address = subnet.replace('.0/24', '.1/24')
      await inShell(
        first,
        'ip link add docker0 mtu 1472 type bridge && ip link set docker0 up && ' +
          `ip route del ${subnet} dev cni0 && ip address add ${address} dev docker0 && ip route append ${subnet} dev cni0`,
      )
    },
    repair: () => inShell(first, 'ip link del docker0'),
  },
  {
    what: 'a bridge of containers that is down',
    find: ['bridge-unrouted'],
    detail: /^packets for 10\.5\.\S+ go to flannel0 instead of to cni0, which is down$/,
    break: () => inShell(first, 'ip link set cni0 down'),
    repair: () => inShell(first, 'ip link set cni0 up'),
  },
  {
    what: 'a bridge of containers without an address',
    find: ['bridge-unaddressed'],
    detail: /^cni0 does not have the address 10\.5\.\S+\.1, and has no other address$/,
    break: () => inShell(first, 'ip address flush dev cni0'),
    repair: () => inShell(first, `ip address add ${first.subnetEnv()['FLANNEL_SUBNET']} dev cni0`),
  },
  {
    what: 'subnets of two nodes across each other',
    find: ['subnet-twice', 'peer-silent'],
    break: async () => {
      const part = subnetOf(second).replace('.0/24', '.128-25')
      writeFileSync(join(leases(), 'subnets', part), '{"PublicIP":"192.168.77.9","PublicIPv6":null}')
      await eventually(async () => expect((await statusOf(first)).peers!.programmed).toBe(2))
    },
    repair: async () => {
      rmSync(join(leases(), 'subnets', subnetOf(second).replace('.0/24', '.128-25')))
      await areWell()
    },
  },
  {
    what: 'another host with our address',
    find: ['address-twice'],
    detail: /^192\.168\.77\.1, which \S+ \(10\.5\.254\.0\/24\) publishes too$/,
    break: async () => {
      writeFileSync(join(leases(), 'subnets', '10.5.254.0-24'), '{"PublicIP":"192.168.77.1","PublicIPv6":null}')
      await eventually(async () => expect((await statusOf(first)).peers!.stored).toBe(2))
    },
    repair: async () => {
      rmSync(join(leases(), 'subnets', '10.5.254.0-24'))
      await areWell()
    },
  },
  {
    what: 'a node with another backend in a lease that cannot be used',
    find: ['peer-unusable'],
    detail: /^10\.9\.0\.0\/24 at 192\.168\.77\.8$/,
    break: async () => {
      writeFileSync(join(leases(), 'subnets', '10.9.0.0-24'), '{"PublicIP":"192.168.77.8","PublicIPv6":null}')
      await eventually(async () => expect((await statusOf(first)).peers!.stored).toBe(2))
    },
    repair: async () => {
      rmSync(join(leases(), 'subnets', '10.9.0.0-24'))
      await areWell()
    },
  },
  {
    what: 'a store that is gone',
    find: ['store-away'],
    break: async () => {
      renameSync(leases(), `${leases()}-gone`)
      writeFileSync(leases(), 'no directory')
      await eventually(async () => expect((await statusOf(first)).store.reachable).toBe(false))
    },
    repair: async () => {
      rmSync(leases())
      renameSync(`${leases()}-gone`, leases())
      await eventually(async () => expect((await statusOf(first)).store.reachable).toBe(true))
    },
  },
  {
    what: 'subnet.env that cannot be written',
    find: ['subnet-env-wrong'],
    break: async () => {
      rmSync(first.subnetFile)
      mkdirSync(first.subnetFile)
    },
    repair: async () => {
      rmSync(first.subnetFile, { recursive: true })
      await eventually(() => expect(subnetOf(first)).toMatch(/^10\.5\./))
    },
  },
  {
    what: 'a configuration in the store that nobody runs by yet',
    find: ['config-differs'],
    detail: /^this node runs udp, but the configuration in the store says vxlan$/,
    break: async () => {
      writeFileSync(join(leases(), 'config.new'), '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
      renameSync(join(leases(), 'config.new'), join(leases(), 'config'))
    },
    repair: async () => {
      writeFileSync(join(leases(), 'config.new'), '{"Network":"10.5.0.0/16"}')
      renameSync(join(leases(), 'config.new'), join(leases(), 'config'))
    },
  },
  ...[
    {
      what: 'a peer whose firewall says that it lets nothing in',
      detail: /[;:] a firewall on its host, or between, rejects packets to UDP port 8285$/,
      rules: ['INPUT -p udp --dport 8285 -j REJECT --reject-with icmp-admin-prohibited'],
    },
    {
      what: 'a peer whose firewall drops it without a word',
      detail: /its host is up and answers a ping, and UDP port 8285 is not refused: a firewall drops/,
      rules: ['INPUT -p udp --dport 8285 -j DROP'],
    },
    {
      what: 'a peer whose host answers nothing at all',
      detail:
        /no answer comes from its host, not even to a ping: it is off or cut off, or a firewall drops everything$/,
      rules: ['OUTPUT -j DROP', 'INPUT -j DROP'],
    },
  ].map(({ what, detail, rules }) => ({
    what,
    detail,
    find: ['peer-silent'] as const,
    break: () => inShell(second, rules.map((rule) => `iptables -A ${rule}`).join('; ')),
    repair: async () => {
      await inShell(second, 'iptables -F INPUT; iptables -F OUTPUT')
      await areWell()
    },
  })),
  {
    what: 'a peer whose host is off',
    find: ['peer-silent'],
    detail: /; no host on the link answers for its address: the host is off, cut off, or has another address now$/,
    // The kernel's neighbour entry expires immediately, and not half a minute after the last packet.
    break: async () => {
      await inShell(second, 'ip link set eth0 down')
      await inShell(first, 'ip neigh flush dev eth0')
    },
    repair: async () => {
      await inShell(second, 'ip link set eth0 up')
      await areWell()
    },
  },
  {
    what: 'a peer that was killed',
    find: ['peer-silent'],
    detail: /: its last packet came \d+ s ago; its host is up and refuses UDP port 8285: weftd does not run there/,
    break: () => daemons[1]!.stop('SIGKILL'),
    repair: async () => {
      daemons[1] = second.startDaemon({ args: args() })
      await daemons[1].line(/flannel is ready/)
      await areWell()
    },
  },
]

describe.sequential('weft doctor on a broken host', () => {
  it.each(BROKEN)('reports $what', async ({ find, detail, break: break_, repair }) => {
    await break_()
    try {
      await eventually(async () => {
        const { code, names, details } = await doctor(first)
        expect(names.toSorted()).toEqual([...find].toSorted())
        expect(code).toBe(find.every((name) => FINDINGS[name].level === 'warning') ? 0 : 3)
        if (detail) expect(details).toEqual(expect.arrayContaining([expect.stringMatching(detail)]))
      })
    } finally {
      await repair()
    }
  })

  it('reports nothing after all faults are repaired', async () => {
    await eventually(async () => expect((await doctor(first)).names).toEqual([]))
  })

  it('reports a missing TUN device', async () => {
    const hidden = ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs tmpfs /dev/net && exec "$@"', 'sh']
    const { code, names } = await doctor(first, hidden)
    expect([code, names]).toEqual([3, ['tun-missing']])
  })

  it('reports a FORWARD chain that drops, and rules that an unprivileged user cannot read', async () => {
    await daemons[0]!.stop()
    await inShell(first, 'iptables -F FORWARD; iptables -P FORWARD DROP')
    daemons[0] = first.startDaemon({ args: [...args(), '--iptables-forward-rules=false'] })
    await daemons[0].line(/flannel is ready/)
    await areWell()
    const { code, names, details } = await doctor(first)
    expect([code, names, details[0]]).toEqual([3, ['forward-dropped'], '-P FORWARD DROP'])
  })

  it('packs all outputs into one file, which only its owner can read and which replaces no other', async () => {
    const file = join(lab.folder, 'bundle.tar.gz')
    const bundle = (before: readonly string[] = []) =>
      weft(first, ['doctor', '--subnet-file', first.subnetFile, '--bundle', file], before)
    const { code, stdout } = await bundle()
    expect([code, stdout]).toEqual([3, expect.stringContaining(`all facts are in ${file}; read it`)])
    expect(statSync(file).mode & 0o777).toBe(0o600)
    const names = (await output(['tar', '-tzf', file])).trim().split('\n')
    expect(names.map((name) => name.replace('weft-doctor/', '')).toSorted()).toEqual([
      '',
      'README.txt',
      'about.txt',
      'doctor.json',
      'doctor.txt',
      'firewall.txt',
      'kernel.txt',
      'links.txt',
      'log.txt',
      'net-conf.json',
      'routes.txt',
      'status.json',
      'subnet.env',
      'versions.txt',
    ])
    const read = (name: string): Promise<string> => output(['tar', '-xzOf', file, `weft-doctor/${name}`])
    expect(JSON.parse(await read('status.json'))).toMatchObject({ node: { subnet: subnetOf(first) } })
    expect(await read('routes.txt')).toContain('10.5.0.0/16 dev flannel0')
    expect(await read('firewall.txt')).toContain('-P FORWARD DROP')
    expect(await read('doctor.txt')).toContain('(forward-dropped)')

    const old = readFileSync(file)
    expect(await bundle()).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(/cannot be written: it exists already; name a file/),
    })
    expect(readFileSync(file)).toEqual(old)
    rmSync(file)
    // An incomplete bundle is removed.
    const limited = ['sh', '-c', 'ulimit -f 1 && exec "$@"', 'sh']
    expect(await bundle(limited)).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/bundle\.tar\.gz cannot be made: .*; check that/),
    })
    expect(existsSync(file)).toBe(false)
  })

  it('reports a missing daemon, and still checks everything that the daemon left', async () => {
    await daemons[0]!.stop('SIGKILL')
    const { code, checks, names, details } = await doctor(first)
    expect([code, names]).toEqual([3, ['daemon-silent', 'forward-dropped']])
    expect(details).toEqual(expect.arrayContaining(['the packets of this node are not forwarded']))
    const unknown = checks.filter(({ state }) => state === 'unknown').map(({ check }) => check)
    expect(unknown).toEqual(['neighbours', 'clock', 'peers', 'handshakes', 'drops'])
    await inShell(first, `ip route del 10.5.0.0/16; ip route add ${subnetOf(second)} via 192.168.77.254`)
    expect((await doctor(first)).details).toEqual(
      expect.arrayContaining(['10.5.0.0/16', `${subnetOf(second)} goes via 192.168.77.254 to eth0`]),
    )
    rmSync(`${first.subnetFile}.last-known`)
    renameSync(leases(), `${leases()}-gone`)
    // Only subnet.env and the device are known. The peers are unknown, so none is blamed.
    const alone = await doctor(first)
    expect(alone.names).toEqual(['daemon-silent', 'forward-dropped', 'foreign-route', 'no-route'])
    expect(alone.checks.filter(({ state }) => state === 'unknown').map(({ check }) => check)).toEqual([
      'neighbours',
      'store',
      'clock',
      'config',
      'leases',
      'peers',
      'handshakes',
      'drops',
    ])
    const given = await weft(first, ['doctor', '--json', '--subnet-file', first.subnetFile, '--lease-dir', leases()])
    expect(given.stdout).toContain('"name":"store-away"')
    renameSync(`${leases()}-gone`, leases())
  })

  it('exits as usual if the reader of its output goes away', async () => {
    const words = weftOf(first, ['doctor', '--subnet-file', first.subnetFile]).join(' ')
    expect(await first.output(['bash', '-c', `${words} | true; echo \${PIPESTATUS[0]}`])).toBe('3\n')
  })
})
