// outages.test.ts - outages from public reports, with the recorded facts. weft doctor names each cause and never ends with "nothing wrong
// found", and explain never says that the packet would get through.

import { expect, it } from 'vitest'
import type { Route } from '../../../../src/host/kernel.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { verdictOf } from '../../../../src/report/page/model.ts'
import { countPeers, type Status } from '../../../../src/report/status.ts'
import { diagnose } from '../../../../src/tool/doctor/checks.ts'
import { explain } from '../../../../src/tool/doctor/explain.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import type { FindingName } from '../../../../src/tool/doctor/findings.ts'
import { toText } from '../../../../src/tool/weft/doctor.ts'
import { isWell } from '../../../../src/tool/weft/status.ts'
import { route as routeTo, silentSide, sound, soundPeer, soundStatus as status } from '../../../support/facts.ts'
import { routesBy } from '../../../support/kernel-routes.ts'

interface Outage {
  readonly what: string
  readonly facts: Partial<Facts>
  readonly finds: readonly FindingName[]
  /** The kernel's route for a packet from a container to one of the peer, and for the opposite direction. */
  readonly out?: Partial<Route> & { readonly byRule?: string; readonly refused?: string }
  readonly back?: Partial<Route> & { readonly refused?: string }
  /** True if the fault is not on the path of the packet, so that explain cannot find it. */
  readonly isUnexplained?: true
  /** True if the status alone shows the fault, so that the page is red and `weft status` exits with 3. */
  readonly isSeen?: true
}

const silentPeers = countPeers([{ ...soundPeer, ...silentSide }], 10)
const silent: Partial<Facts> = {
  status: {
    ...status,
    state: 'impaired',
    impairments: [{ by: 'peers', what: 'the only peer does not answer' }],
    peers: silentPeers,
  },
  answers: new Map([['10.5.2.0-24', { ipv4: { small: false, large: false } }]]),
}
const chain = (hook: string, ...rules: readonly string[]): string =>
  `table inet firewalld {\n\tchain filter_${hook} {\n\t\ttype filter hook ${hook} priority filter + 10; policy accept;\n${rules
    .map((rule) => `\t\t${rule}\n`)
    .join('')}\t}\n}\n`
const FIREWALLD = [
  'ct state { established, related } accept',
  'iifname "lo" accept',
  'reject with icmpx admin-prohibited',
]
const CLOUD = [
  '-P INPUT ACCEPT',
  '-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT',
  '-A INPUT -p icmp -j ACCEPT',
  '-A INPUT -i lo -j ACCEPT',
  '-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT',
  '-A INPUT -j REJECT --reject-with icmp-host-prohibited',
].join('\n')
const narrow = { ...soundPeer, path: 'narrow', passesBytes: 1372 } as const
const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })

const OUTAGES: readonly Outage[] = [
  {
    what: 'firewalld rejects what is forwarded (flannel#2055)',
    facts: { nft: chain('forward', ...FIREWALLD) },
    finds: ['forward-dropped'],
  },
  {
    what: 'firewalld rejects what comes in',
    facts: { ...silent, nft: chain('input', ...FIREWALLD) },
    finds: ['port-dropped', 'peer-silent'],
    isSeen: true,
  },
  {
    what: "a cloud's rules let in answers alone (k3s#977, #4847)",
    facts: { ...silent, iptables: CLOUD },
    finds: ['port-dropped', 'peer-silent'],
    isSeen: true,
  },
  {
    what: "a cloud's rules reject what is forwarded",
    facts: { iptables: '-P FORWARD ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited' },
    finds: ['forward-dropped'],
  },
  {
    what: "tailscale's table is asked first (k3s#7772, tailscale#297)",
    facts: {
      ...silent,
      kernelRoutes: routesBy({ host: { device: 'ts0', table: 52 }, out: { device: 'ts0', table: 52 } }),
    },
    finds: ['policy-route', 'peer-silent'],
    out: { device: 'ts0', byRule: '5270: from all lookup 52' },
    isSeen: true,
  },
  {
    what: 'a rule for the bridge of containers (rke2#1053)',
    facts: { kernelRoutes: routesBy({ out: { device: 'eth0', gateway: '192.0.2.254', table: 30400 } }) },
    finds: ['policy-route'],
    out: { device: 'eth0', gateway: '192.0.2.254', byRule: '30400: from all iif cni0 lookup 30400' },
  },
  {
    what: 'a stale route to the own subnet (flannel#1546)',
    facts: { kernelRoutes: routesBy({ in: { device: 'eth0', gateway: '192.0.2.254' } }) },
    finds: ['foreign-route'],
    back: { device: 'eth0', gateway: '192.0.2.254' },
  },
  {
    what: 'strict rp_filter, where the way back is another one',
    facts: { kernelRoutes: routesBy({ in: 'EXDEV' }) },
    finds: ['route-refused'],
    back: { device: 'cni0', refused: 'Invalid cross-device link' },
  },
  {
    what: 'long packets are lost',
    facts: { ...withStatus({ peers: countPeers([narrow], 10) }), answers: new Map() },
    finds: ['path-mtu'],
    isSeen: true,
  },
  {
    what: 'a full table of neighbours (kops#4533)',
    facts: { neighbours: [{ family: 'ipv4', entries: 1024, thresholds: [128, 512, 1024] }] },
    finds: ['neighbours-full'],
    isUnexplained: true,
  },
  {
    what: 'a firewall that accepts only the packets of the tunnel on their way out',
    facts: {
      ...silent,
      iptables: '-P OUTPUT DROP\n-A OUTPUT -o lo -j ACCEPT\n-A OUTPUT -o eth0 -p udp -m udp --dport 8285 -j ACCEPT',
    },
    finds: ['probes-dropped', 'peer-silent'],
    isSeen: true,
  },
  {
    what: 'a firewall that drops the replies to the probes of other nodes',
    facts: { iptables: '-A OUTPUT -p icmp -m icmp --icmp-type 0 -j REJECT --reject-with icmp-port-unreachable' },
    finds: ['probes-dropped'],
    isUnexplained: true,
  },
  {
    what: 'a kernel that answers no echo requests (net.ipv4.icmp_echo_ignore_all)',
    facts: { ignoredEchoes: ['ipv4'] },
    finds: ['probes-dropped'],
    isUnexplained: true,
  },
  {
    what: 'a rule that redirects a range of ports, such as that of a proxy, also redirects the port of the backend',
    facts: {
      ...silent,
      iptables: '*nat\n-A PREROUTING -i eth0 -p udp -m udp --dport 8000:50000 -j REDIRECT --to-ports 443\nCOMMIT',
    },
    finds: ['datagrams-changed', 'peer-silent'],
    isSeen: true,
  },
  {
    what: 'a VPN takes the packets between the hosts, but not those of containers',
    facts: { ...silent, kernelRoutes: routesBy({ underlay: { device: 'tun7', table: 52 } }) },
    finds: ['underlay-route', 'peer-silent'],
    isSeen: true,
  },
  {
    what: 'strict rp_filter drops the packets of the host of the peer',
    facts: { ...silent, kernelRoutes: routesBy({ 'from underlay': 'EXDEV' }) },
    finds: ['underlay-route', 'peer-silent'],
    isSeen: true,
  },
  {
    what: 'a full table of tracked connections (nf_conntrack: table full, dropping packet)',
    facts: { tracking: { entries: 262_140, limit: 262_144 } },
    finds: ['tracking-full'],
  },
  {
    what: 'one interface whose packets the kernel does not forward',
    facts: { unforwarded: ['cni0'], kernelRoutes: routesBy({ out: 'EHOSTUNREACH' }) },
    finds: ['interface-forwarding-off'],
    out: { refused: 'No route to host' },
  },
  {
    what: 'iptables marks the packets of containers, and a policy rule routes marked packets to a VPN',
    facts: {
      iptables: '*mangle\n-A PREROUTING -i cni0 -j MARK --set-xmark 0x1/0xffffffff\nCOMMIT',
      kernelRoutes: routesBy({ marked: { device: 'tun7', table: 100 } }),
    },
    finds: ['policy-route'],
  },
  {
    what: 'a program such as crowdsec blocks the host of the peer for some hours',
    facts: {
      ...silent,
      nft: 'table ip crowdsec {\n\tset blacklists {\n\t\ttype ipv4_addr\n\t\tflags timeout\n\t\telements = { 192.0.2.2 timeout 4h expires 3h59m58s }\n\t}\n\n\tchain c {\n\t\ttype filter hook input priority filter - 10; policy accept;\n\t\tip saddr @blacklists counter packets 9 bytes 540 drop\n\t}\n}\n',
    },
    finds: ['port-dropped', 'peer-silent'],
    isSeen: true,
  },
  {
    what: 'a lease directory that is not shared',
    facts: withStatus({
      store: { ...status.store, name: 'directory' },
      dataPath: {
        ...status.dataPath!,
        recent: { seconds: 60, packets: 0, drops: { rx_drop_unknown_sender: 40 } },
      },
    }),
    finds: ['unknown-senders'],
    isUnexplained: true,
  },
]

const told = ({ byRule, refused }: { readonly byRule?: string; readonly refused?: string }) => ({ byRule, refused })
const plain = (_tone: unknown, text: string): string => text
const [here, there] = ['10.5.1.2', '10.5.2.2'].map((text) => parseIpv4(text)!) as [number, number]
const route = (device: string, part: Partial<Route> = {}): Route => ({ ...routeTo('', device), ...part })

it.each(OUTAGES)('$what', ({ facts: part, finds, out = {}, back = {}, isUnexplained, isSeen }) => {
  const facts: Facts = { ...sound, ...part }
  const found = diagnose(facts)
  expect([...new Set(found.flatMap(({ findings = [] }) => findings.map(({ name }) => name)))]).toEqual(finds)
  expect(toText(found, plain)).not.toContain('nothing wrong found')
  const about = { status: facts.status!, facts }
  const steps = [
    ...explain({ source: here, destination: there, ...about, ...told(out), route: route('flannel0', out) }),
    ...explain({ source: there, destination: here, ...about, ...told(back), route: route('cni0', back) }),
  ]
  expect(steps.every(({ passes }) => passes === true)).toBe(isUnexplained === true)
  // The page and `weft status` show the faults that the status contains, and are not red without a finding.
  expect([verdictOf(facts.status!).tone === 'bad', !isWell(facts.status!)]).toEqual([isSeen === true, isSeen === true])
})

it('finds nothing on a healthy host with the same facts', () => {
  const facts = { ...sound, kernelRoutes: routesBy({}) }
  expect(toText(diagnose(facts), plain)).toContain('nothing wrong found\n')
  const ways = [
    explain({ source: here, destination: there, status, facts, route: route('flannel0') }),
    explain({ source: there, destination: here, status, facts, route: route('cni0') }),
  ]
  expect(ways.flat().filter(({ passes }) => passes !== true)).toEqual([])
})
