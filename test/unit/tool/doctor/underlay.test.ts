// underlay.test.ts - weft doctor and weft explain judge the routes between the hosts themselves if a peer is silent.

import { expect, it } from 'vitest'
import { formatAddress, parseAddress } from '../../../../src/net/address.ts'
import { countPeers, type Status } from '../../../../src/report/status.ts'
import { diagnose } from '../../../../src/tool/doctor/checks.ts'
import { explain } from '../../../../src/tool/doctor/explain.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { underlayQueries } from '../../../../src/tool/doctor/route-queries.ts'
import { checkUnderlay } from '../../../../src/tool/doctor/underlay.ts'
import { link, route, silentSide, sound, soundDual, soundPeer, soundStatus as status } from '../../../support/facts.ts'
import { routesBy, rulesIn } from '../../../support/kernel-routes.ts'

type Changed = Parameters<typeof routesBy>[0]

const silent: Facts = {
  ...sound,
  status: { ...status, peers: countPeers([{ ...soundPeer, ...silentSide }], 10) },
  answers: new Map(),
}
const found = (changed: Changed, from: Facts = silent): string[] =>
  diagnose({ ...from, kernelRoutes: routesBy(changed) })
    .flatMap(({ findings = [] }) => findings)
    .map(({ name, detail }) => `${name}: ${detail}`)
const stops = (changed: Changed, isOutward = true, from: Facts = silent): string[] => {
  const facts = { ...from, kernelRoutes: routesBy(changed) }
  const [one, two] = ['10.5.1.2', '10.5.2.2'].map((text) => parseAddress(text)!) as [number, number]
  const [source, destination] = isOutward ? [one, two] : [two, one]
  const by = route('', isOutward ? 'flannel0' : 'cni0')
  return explain({ source, destination, status: facts.status!, facts, route: by })
    .filter(({ step }) => step === 'underlay')
    .map(({ says }) => says)
}

it.each<[string, Changed, string]>([
  [
    'another interface',
    { underlay: { device: 'tun7', table: 52 } },
    'packets to 192.0.2.2 go to tun7, by the table 52 and the rule "5270: from all lookup 52", and not to eth0',
  ],
  [
    'a gateway in place of the link',
    { underlay: { gateway: '192.0.2.253' } },
    'packets to 192.0.2.2 go via 192.0.2.253, although the host is on the link of eth0',
  ],
  [
    'this host, which has the address of the peer',
    { underlay: { device: 'lo', type: 'local', table: 255 } },
    'packets to 192.0.2.2 stay on this host, which has the address too',
  ],
  ['nothing, because a rule prohibits them', { underlay: 'EACCES' }, 'packets to 192.0.2.2: Permission denied'],
  ['nothing, because of a blackhole', { underlay: 'EINVAL' }, 'packets to 192.0.2.2: a blackhole drops them'],
  ['nothing, as IPv6 shows it', { underlay: { type: 'blackhole' } }, ': the route has the type blackhole'],
  [
    'no container, because of rp_filter',
    { 'from underlay': 'EXDEV' },
    'packets from 192.0.2.2 that arrive on eth0: rp_filter: the route back uses another interface',
  ],
  ['no container, because they are refused', { 'from underlay': 'EINVAL' }, 'that arrive on eth0: Invalid argument'],
])('the packets between the hosts go to %s', (_where, changed, detail) => {
  expect(found(changed)).toEqual([
    expect.stringContaining(detail),
    'peer-silent: 10.5.2.0/24 at 192.0.2.2:8285: the route to its host, or from its host, is wrong here: see `underlay-route`',
  ])
  expect(found(changed)[0]).toMatch(/^underlay-route: 10\.5\.2\.0\/24: /)
  // The fault stops only the packets of one direction.
  expect(stops(changed, 'underlay' in changed)).toEqual([expect.stringContaining(detail)])
  expect(stops(changed, !('underlay' in changed))).toEqual([])
  // A peer that answers proves that the route is right.
  expect([found(changed, sound), stops(changed, true, sound)]).toEqual([[], []])
})

it('the remedy for the silent peer is the remedy for the route, unless its port is closed too', () => {
  const fixes = (reaches: Facts['reaches']) =>
    diagnose({ ...silent, reaches, kernelRoutes: routesBy({ underlay: { device: 'tun7' } }) })
      .flatMap(({ findings = [] }) => findings)
      .flatMap(({ name, fix }) => (name === 'peer-silent' ? fix : []))
  expect(fixes(new Map())).toEqual(['first remove the fault that `underlay-route` names'])
  const refused = { port: 'refused', portNumber: 8285, isPinged: true, isOffLink: false } as const
  expect(fixes(new Map([['10.5.2.0-24', refused]]))).toEqual([expect.stringContaining('check that weftd runs there')])
})

it('a route through a gateway is right if the host of the peer is on another link', () => {
  const links = [...sound.links.slice(1), { ...link('eth0', 1500, '192.0.2.1'), addresses: { ipv4: [], ipv6: [] } }]
  const routed = found({ underlay: { gateway: '198.51.100.254' } }, { ...silent, links })
  expect(routed).toEqual([expect.stringMatching(/^peer-silent: /)])
  expect(found({})).toEqual([expect.stringMatching(/^peer-silent: /)])
})

it('a route is right if a peer that answers proves it, or if it leads to the router of the host', () => {
  // A provider may isolate the hosts of a link, which then reach each other only through its router.
  const router = { underlay: { gateway: '192.0.2.254' } }
  expect(found(router, { ...silent, defaultGateways: ['192.0.2.254'] })).toEqual([
    expect.stringMatching(/^peer-silent: /),
  ])
  expect(found({ underlay: { gateway: '192.0.2.253', table: 100 } })).toEqual([expect.stringMatching(/^peer-silent: /)])
  const other = { ...soundPeer, lease: '10.5.3.0-24', subnet: '10.5.3.0/24', publicIp: '192.0.2.3' }
  const elsewhere = { underlay: { device: 'eth1' } }
  const byPeers = (peers: readonly (typeof soundPeer)[]): string[] => {
    const { answers, rules } = routesBy(elsewhere)
    const to = parseAddress('192.0.2.3')!
    const others = answers.map((each) => ({ ...each, lease: other.lease, query: { ...each.query, to } }))
    const facts = { ...silent, status: { ...status, peers: countPeers(peers, 10) } }
    return diagnose({ ...facts, kernelRoutes: { answers: [...answers, ...others], rules } })
      .flatMap(({ findings = [] }) => findings)
      .map(({ name }) => name)
      .filter((name) => name === 'underlay-route')
  }
  const off = { ...soundPeer, ...silentSide }
  expect(byPeers([off, other])).toEqual([])
  expect(byPeers([off, { ...other, ...silentSide }])).toHaveLength(2)
})

it('is not examined if the external interface has lost its address, which another finding reports', () => {
  const addressGone = { ipv4: 'eth0 lost its address 192.0.2.1', ipv6: null }
  const facts = { ...silent, status: { ...silent.status!, dataPath: { ...status.dataPath!, addressGone } } }
  expect(found({ underlay: { device: 'eth1' } }, facts)).toEqual([
    expect.stringMatching(/^address-gone: /),
    expect.stringMatching(/^peer-silent: /),
  ])
})

it('looks up the packets of the kernel for vxlan on the interface to which they are bound', () => {
  const oifOf = (backendType: string, engine: string) =>
    underlayQueries(
      { ...status, config: { ...status.config!, backendType }, dataPath: { ...status.dataPath!, engine } },
      sound.links,
    )[0]!.query.oif
  expect([oifOf('vxlan', 'kernel'), oifOf('vxlan', 'native'), oifOf('wireguard', 'kernel')]).toEqual([
    { name: 'eth0' },
    undefined,
    undefined,
  ])
})

const textOf = (of: Status, links = sound.links): string[] =>
  underlayQueries(of, links).map(({ direction, query: { to, from, iif } }) =>
    [direction, formatAddress(to), from === undefined ? '' : formatAddress(from), iif?.name ?? ''].join(' '),
  )

it('looks up the packets in both directions once for each peer and underlay', () => {
  expect(textOf(status)).toEqual(['underlay 192.0.2.2 192.0.2.1 ', 'from underlay 192.0.2.1 192.0.2.2 eth0'])
  expect(textOf(soundDual.status, soundDual.links).length).toBeGreaterThan(0)
  expect(textOf({ ...status, node: { ...status.node!, externalInterface: null } })).toEqual([])
  expect(textOf({ ...status, dataPath: { ...status.dataPath!, engine: 'none' } })).toEqual([])
})

it.each([
  ['unreachable', 'ENETUNREACH', 'Network is unreachable, by the rule "100: from all to 192.0.2.2 unreachable"'],
  ['blackhole', 'EINVAL', 'a blackhole drops them, by the rule "100: from all to 192.0.2.2 blackhole"'],
  // A route drops the packets, because the kernel has another error for the rule.
  ['unreachable', 'EINVAL', 'a blackhole drops them'],
])('a rule with the action %s is named only as the cause of its error: %s', (action, errno, says) => {
  const rules = { ipv4: rulesIn(`100:	from all to 192.0.2.2 ${action}`) }
  const [one] = checkUnderlay({ ...silent, kernelRoutes: { ...routesBy({ underlay: errno }), rules } })
  expect(one?.detail).toBe(`10.5.2.0/24: packets to 192.0.2.2: ${says}`)
})

it('looks up the packets with the port of the backend, by which policy rules may select them', () => {
  const ports = (of: Status): readonly unknown[] => underlayQueries(of, sound.links).map(({ query }) => query.part)
  const [usual, mapped] = [
    { protocol: 17, dport: 8285 },
    { protocol: 17, dport: 9999 },
  ]
  expect(ports(status)).toEqual([usual, usual])
  expect(ports({ ...status, peers: countPeers([{ ...soundPeer, endpoint: '192.0.2.2:9999' }], 10) })).toEqual([
    mapped,
    usual,
  ])
  expect(ports({ ...status, config: { ...status.config!, backendType: 'host-gw' } })).toEqual([undefined, undefined])
})

it('does not look up the packets of a public address that this host does not have', () =>
  expect(textOf({ ...status, node: { ...status.node!, publicIp: '203.0.113.1' } })).toEqual(['underlay 192.0.2.2  ']))
