// unknowns.test.ts - each check that was not possible has a reason, and the last line of weft doctor counts these checks.

import { expect, it } from 'vitest'
import type { Status } from '../../../../src/report/status.ts'
import { CHECKS, diagnose } from '../../../../src/tool/doctor/checks.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { toText } from '../../../../src/tool/weft/doctor.ts'
import { sound, soundStatus as status } from '../../../support/facts.ts'

const plain = (_tone: unknown, text: string): string => text
const whys = (part: Partial<Facts>): Record<string, string> =>
  Object.fromEntries(
    diagnose({ ...sound, ...part }).flatMap(({ check, findings, why }) =>
      findings === undefined ? [[check, why ?? '']] : [],
    ),
  )
const withStatus = (part: Partial<Status>): Partial<Facts> => ({ status: { ...status, ...part } })
const lastLine = (part: Partial<Facts>): string =>
  toText(diagnose({ ...sound, ...part }), plain)
    .trimEnd()
    .split('\n')
    .at(-1)!

it.each<[string, Partial<Facts>, Record<string, RegExp>]>([
  [
    'neither tool can be read',
    { iptables: undefined, nft: undefined, isRoot: false },
    { firewall: /neither iptables nor nft can be read: run weft doctor as root/ },
  ],
  [
    'only root may open the TUN device, and this user is not root',
    { tunProblem: 'EACCES', isRoot: false },
    { tun: /^this user may not open \/dev\/net\/tun: run weft doctor as root$/ },
  ],
  [
    'the store lets nobody in',
    { store: undefined, whyStoreUnknown: 'etcd: no TLS connection; check --etcd-cafile' },
    { config: /^etcd: no TLS connection; check --etcd-cafile$/ },
  ],
  ['the limits of neighbours are not seen', { neighbours: undefined }, { neighbours: /was not read/ }],
  [
    'there is no configuration yet',
    withStatus({ config: null, node: null }),
    { firewall: /^weftd has no network configuration yet$/, routes: /configuration/, store: /configuration/ },
  ],
  [
    'weftd may not be asked',
    { status: undefined, isForbidden: true, store: undefined },
    { peers: /^this user may not query weftd: run weft doctor as root$/ },
  ],
  [
    'weftd is dead, and nothing is left of it',
    { status: undefined, silence: 'no weftd answers', store: undefined },
    {
      peers: /^weftd does not answer \(no weftd answers\), and no earlier weftd left a status/,
      drops: /only a running weftd/,
    },
  ],
])('gives the reason if %s', (_name, part, expected) => {
  const found = whys(part)
  for (const [check, why] of Object.entries(expected)) expect(found[check], check).toMatch(why)
  for (const [check, why] of Object.entries(found)) expect(why, check).not.toBe('')
})

const NO_STATUS = { status: undefined, store: undefined, storeAheadMs: undefined }
const withPath = (part: Partial<NonNullable<Status['dataPath']>>): Partial<Facts> =>
  withStatus({ dataPath: { ...status.dataPath!, ...part } })
const hostGw = { ...status.config!, backendType: 'host-gw' }
const unanswered = { lease: '10.5.2.0-24', family: 'ipv4', to: 1, fromBridge: 2, fromHost: 3 } as const

it.each<[string, Partial<Facts>, Record<string, RegExp>]>([
  [
    'weftd does not answer, and left no status',
    { ...NO_STATUS, silence: 'no socket' },
    {
      families: /^weftd does not answer \(no socket\), and/,
      store: /^weftd does not answer \(no socket\), and/,
      leases: /^weftd does not answer \(no socket\), and/,
      mtu: /^weftd does not answer \(no socket\), and/,
      crossing: /^weftd does not answer \(no socket\), and/,
      handshakes: /^only a running weftd knows this, and it does not answer$/,
      drops: /^only a running weftd knows this, and it does not answer$/,
      clock: /^the store does not report its time, and there is no lease .*`timedatectl`/,
      config: /needs the store flags or variables of weftd$/,
    },
  ],
  [
    'weftd did not answer for an unknown reason',
    { ...NO_STATUS, silence: '' },
    { leases: /^weftd does not answer, and no earlier weftd left a status$/ },
  ],
  [
    'weftd left a status, but does not answer',
    { ...withStatus({ dataPath: { ...status.dataPath!, open: false } }), silence: 'no socket', store: undefined },
    {
      store: /^only a running weftd knows this/,
      peers: /^weftd does not carry packets, so peers cannot be probed$/,
      drops: /^only a running weftd knows this/,
    },
  ],
  [
    'weftd left a status, and weft doctor cannot connect to the store',
    { silence: 'no socket', store: undefined, whyStoreUnknown: 'etcd: no TLS connection' },
    { store: /^etcd: no TLS connection$/, config: /^etcd: no TLS connection$/ },
  ],
  [
    'weftd has no lease yet',
    withStatus({ node: null, lease: null, peers: null }),
    { firewall: /^weftd has no lease yet$/, containers: /^weftd has no lease yet$/, mtu: /^weftd has no lease yet$/ },
  ],
  [
    'the subnet of the node is not an address',
    withStatus({ node: { ...status.node!, subnet: 'of tomorrow' } }),
    { routes: /^the network of this node cannot be read$/, containers: /^the network of this node cannot be read$/ },
  ],
  [
    'something else carries the packets',
    withPath({ engine: 'none' }),
    { routes: /^something other than weft carries the packets of this backend$/ },
  ],
  [
    'the backend makes no routes',
    withStatus({
      config: { ...status.config!, backendType: 'ipsec' },
      dataPath: { ...status.dataPath!, engine: 'kernel', device: null, devices: { ipv4: null, ipv6: null } },
    }),
    { routes: /^the backend ipsec makes no routes to other nodes$/ },
  ],
  [
    'the data path is not open',
    withPath({ open: false }),
    { routes: /^the data path is not open$/, containers: /^the data path is not open$/ },
  ],
  [
    'the data path of a backend that this weft does not know is not open',
    {
      ...withStatus({
        config: { ...status.config!, backendType: 'of-tomorrow' },
        dataPath: { ...status.dataPath!, open: false },
      }),
    },
    { routes: /^the data path is not open$/ },
  ],
  [
    'an older weftd does not report what carries the packets',
    withPath({ engine: null }),
    { routes: /^weftd does not report the facts that this check needs$/ },
  ],
  ['there is no data path', withStatus({ dataPath: null }), { routes: /^the data path is not open$/ }],
  [
    'weftd does not know its peers yet',
    withStatus({ peers: null, config: hostGw }),
    {
      leases: /^weftd does not know its peers yet$/,
      peers: /^weftd does not know its peers yet$/,
      handshakes: /^weftd does not know its peers yet$/,
      crossing: /^weftd does not know its peers yet$/,
    },
  ],
  ['the data path has no MTU', withPath({ mtu: null }), { mtu: /^the data path has no MTU yet$/ }],
  ['weftd started a moment ago', withPath({ recent: null }), { drops: /^weftd has counted for too short a time$/ }],
  [
    'the limits of neighbours belong to another network namespace',
    { neighbours: [{ family: 'ipv4', entries: 7, thresholds: undefined }] },
    { neighbours: /gc_thresh3 cannot be seen in this network namespace/ },
  ],
  [
    'the store answers with an error',
    { store: { problem: 'etcd: connection refused' } },
    { config: /^etcd: connection refused$/ },
  ],
  [
    'weft doctor has no access to the store',
    { ...NO_STATUS, whyStoreUnknown: 'no lease directory given' },
    { config: /^no lease directory given$/ },
  ],
  [
    'this host has no bridge of containers',
    withStatus({ config: hostGw }),
    { crossing: /^the bridges of peers were not probed: this node has no bridge of containers/ },
  ],
  [
    'no bridge of a peer answered',
    {
      ...withStatus({ config: hostGw }),
      bridgeAnswers: [{ ...unanswered, isBridgeAnswered: false, isHostAnswered: false }],
    },
    { crossing: /^no bridge of a peer answers the bridge of this node or this host/ },
  ],
])('names the fact that each check lacks if %s', (_name, part, expected) =>
  expect(whys(part)).toMatchObject(
    Object.fromEntries(Object.entries(expected).map(([check, why]) => [check, expect.stringMatching(why)])),
  ),
)

it('gives each check a reason of its own for each missing fact', () => {
  const nothing: Partial<Facts> = {
    status: undefined,
    store: undefined,
    neighbours: undefined,
    storeAheadMs: undefined,
  }
  const missing: readonly Partial<Facts>[] = [
    nothing,
    { ...nothing, isForbidden: true },
    { ...nothing, silence: 'dead' },
    ...(['config', 'node', 'dataPath', 'peers', 'lease'] as const).map((part) => withStatus({ [part]: null })),
    withStatus({ dataPath: { ...status.dataPath!, mtu: null } }),
    withStatus({ dataPath: { ...status.dataPath!, open: false } }),
    withStatus({ dataPath: { ...status.dataPath!, engine: 'none' } }),
    withStatus({ dataPath: { ...status.dataPath!, recent: null } }),
  ]
  for (const part of missing)
    for (const [check, why] of Object.entries(whys(part)))
      expect(why, check).not.toMatch(/^$|does not report the facts/)
  expect(CHECKS.map(({ name }) => name)).toContain('neighbours')
})

it('lists the impossible checks at the end', () => {
  expect(lastLine({})).toBe('nothing wrong found')
  expect(lastLine({ neighbours: undefined })).toBe('nothing wrong found; 1 check could not be made (neighbours)')
  expect(lastLine({ neighbours: undefined, iptables: undefined, nft: undefined })).toBe(
    'nothing wrong found; 2 checks could not be made (firewall, neighbours)',
  )
  expect(lastLine({ neighbours: undefined, iptables: '-P FORWARD DROP' })).toBe(
    '1 failure, 0 warnings; 1 check could not be made (neighbours)',
  )
  const text = toText(diagnose({ ...sound, status: undefined, silence: 'no socket' }), plain)
  expect(text.match(/no earlier weftd left a status/g)).toHaveLength(1)
  expect(text).toMatch(/^leases +unknown {2}for the same reason as \w+$/m)
  expect(toText(diagnose({ ...sound, neighbours: undefined }), plain)).toContain(
    "neighbours  unknown  the kernel's neighbour table was not read (`ip neighbour`)\n",
  )
})
