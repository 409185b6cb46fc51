// status.test.ts - the numbers above the peers, and that docs/status-json.md and docs/other-json.md have exactly the fields of the JSON.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { parseAddress, parseNet } from '../../../src/net/address.ts'
import { Hour, historyReport } from '../../../src/report/hour.ts'
import { eventsReport } from '../../../src/report/peer-events.ts'
import {
  briefly,
  conditionOf,
  conditionText,
  countPeers,
  devicesText,
  dropsOf,
  isSendingOnly,
  knownWhole,
  placeIn,
  sidesOf,
  startingReport,
  worstOf,
  type PeerSide,
  type PeerState,
  type PeerStatus,
} from '../../../src/report/status.ts'
import { dualPeer, silentSide, soundPeer, soundStatus } from '../../support/facts.ts'
import { installRig, ready, start, nodeStatus, ofFamilies, store, dataPaths, until } from '../../support/node-rig.ts'
import { beginningWith } from '../../support/snapshot.ts'

installRig()

const peer = (state: PeerStatus['state'], probedSecondsAgo: number | null = null): PeerStatus => ({
  lease: '10.5.2.0-24',
  subnet: '10.5.2.0/24',
  publicIp: '192.0.2.2',
  ipv6Subnet: null,
  publicIpv6: null,
  endpoint: null,
  way: null,
  type: '',
  state,
  held: false,
  unusable: false,
  since: '',
  txPackets: 0,
  txBytes: 0,
  rxPackets: 0,
  rxBytes: 0,
  heardSecondsAgo: null,
  roundTripMs: null,
  lossPercent: null,
  probedSecondsAgo,
  unansweredSeconds: null,
  pathMtu: null,
  path: null,
  passesBytes: null,
  pathSince: null,
  session: null,
  name: null,
  families: { ipv4: null, ipv6: null },
})

it.each([
  ['no peer', [], null, 1],
  ['no peer, with probes', [], 10, 1],
  ['all programmed', [peer('programmed')], null, 1],
  ['one of two programmed', [peer('programmed'), peer('stored')], null, 0.5],
  ['none probed yet', [peer('programmed'), peer('programmed')], 10, 1],
  [
    'one of two that were probed answers, of four',
    [peer('answering', 1), peer('programmed', 1), peer('programmed'), peer('stored')],
    10,
    0.375,
  ],
] as const)('tells how whole the network is: %s', (_name, list, probeSeconds, whole) => {
  expect(countPeers(list, probeSeconds).whole).toBe(whole)
})

it('distinguishes drops from other counters', () => {
  expect(dropsOf({ tx_packets: 5, tx_drop_ttl: 0, rx_drop_tun: 3 })).toEqual({ rx_drop_tun: 3 })
})

/** Returns the names of all fields, as in `a.b[].c`, without members whose names the network or the counters decide. */
function fieldsOf(of: unknown, name = ''): string[] {
  const counts = ['dataPath.counters', 'dataPath.drops', 'dataPath.recent.drops', 'peerEvents']
  const isOpen = ['config.backend', 'lease.published', ...counts].includes(name)
  const isOfTexts = ['dataPath.features', 'dataPath.families'].includes(name)
  if (typeof of !== 'object' || of === null || isOpen || isOfTexts) return [name]
  if (Array.isArray(of)) return of.length === 0 ? [] : fieldsOf(of[0], `${name}[]`)
  return Object.entries(of).flatMap(([key, each]) => fieldsOf(each, name === '' ? key : `${name}.${key}`))
}

/** Returns the fields in the table of a section. */
function documentedIn(file: string, heading: string): string[] {
  const page = readFileSync(join(packageRoot, file), 'utf8')
  const section = page.split(`\n${heading}\n`)[1]!.split('\n## ')[0]!
  return [...section.matchAll(/^\| `([^`]+)` \|/gm)].map(([, name = '']) => name)
}

it('documents exactly the fields of events and history', () => {
  const nothing = { afterSeconds: null, movedFrom: null, bytes: null, roundTripMs: null, usualMs: null }
  const event = { at: '', what: 'silent', peer: '', publicIp: '', family: 'ipv4', ...nothing } as const
  const { node: past, ...history } = historyReport(new Hour(), '', '')
  const names = Object.keys(past).map((name) => `node.${name}`)
  const page = 'docs/other-json.md'
  expect(documentedIn(page, '## Events of peers')).toEqual(fieldsOf(eventsReport('', [event])))
  expect(documentedIn(page, '## The last hour').toSorted()).toEqual([...Object.keys(history), ...names].toSorted())
})

it('documents exactly the fields of the status', async () => {
  store.put('10.5.0.64-26&fd00:5:0:7::-64', JSON.stringify({ PublicIP: '192.0.2.2', PublicIPv6: '2001:db8::2' }))
  start(ofFamilies('ipv4', 'ipv6'))
  await ready()
  dataPaths[0]!.rounds = { 'weft-loop0': 1 }
  const session = { publicKey: 'K', handshakeAt: undefined, ageMs: undefined, txBytes: 0, rxBytes: 0 }
  const nothing = { txPackets: 0, txBytes: 0, rxPackets: 0, rxBytes: 0, lastReceivedAt: undefined }
  dataPaths[0]!.traffic = { ...nothing, sessions: { ipv4: session, ipv6: session } }
  dataPaths[0]!.unknownKeys = [{ publicKey: 'L', from: { address: 1, port: 1 }, at: 0 }]
  let node = await nodeStatus()
  await until(() => {
    void nodeStatus().then((newest) => (node = newest))
    return node.dataPath!.threads.length === 1
  }, 3000)
  await until(() => {
    void nodeStatus().then((newest) => (node = newest))
    return node.dataPath!.recent !== null
  }, 3000)
  dataPaths[0]!.lacking = { ipv6: 'no device' } // a cause that impairs it
  node = await nodeStatus()
  const documented = documentedIn('docs/status-json.md', '## Fields')
  // The page describes the fields of a family as the same fields of the peer.
  const families = 'peers.list[].families'
  const fields = [...new Set(fieldsOf(node).map((name) => name.replace(/(?<=list\[\])\.families\.ipv[46]/, '')))]
  const objects = new Set(['node', families])
  expect(documented.filter((name) => !objects.has(name) && !fields.includes(name))).toEqual([])
  expect(documented).toContain(families)
  expect(fields.filter((name) => !documented.includes(name))).toEqual([])
})

it('the status has unknown counts without probes, and does not count unused peers as probed', () => {
  const list = [peer('answering', 1), peer('programmed', 1), peer('stored', 1), peer('programmed')]
  expect(countPeers(list, 10)).toMatchObject({ stored: 4, programmed: 3, answering: 1, probed: 2, probeSeconds: 10 })
  expect(countPeers(list, null)).toMatchObject({ answering: null, probed: null, probeSeconds: null, whole: 0.75 })
})

it('the status of a waiting daemon has only its store and the reason', () => {
  expect(startingReport('etcd', beginningWith('a lease'))).toMatchObject({
    state: 'starting',
    trouble: 'a lease',
    repairs: 0,
    subnetFileWritten: false,
    node: null,
    peers: null,
    store: {
      name: 'etcd',
      reachable: false,
      comparedSecondsAgo: null,
      held: 0,
      holds: 0,
      configGone: false,
      configDiffers: false,
    },
  })
})

it('shows no reason if the reason is the name of the state', () => {
  expect(startingReport('etcd', beginningWith('starting')).summary).toBe('starting')
})

it('reports that a daemon forwards with the last known state', () => {
  expect(startingReport('etcd', beginningWith('waits for a lease', true), soundStatus.dataPath)).toMatchObject({
    state: 'forwarding',
    trouble: 'waits for a lease',
    impairments: [],
    summary: 'forwarding as last known; waits for a lease',
  })
  expect(startingReport('etcd', { ...beginningWith('waits for a lease'), leaving: 'it stops' })).toMatchObject({
    state: 'leaving',
    trouble: 'it stops',
    summary: 'leaving; it stops',
  })
})

describe('the families of a peer', () => {
  const side = (state: PeerState, lossPercent: number | null = null): PeerSide => ({
    endpoint: null,
    way: null,
    state,
    roundTripMs: null,
    lossPercent,
    probedSecondsAgo: null,
    unansweredSeconds: null,
    pathMtu: null,
    path: null,
    passesBytes: null,
    pathSince: null,
    session: null,
  })
  const [stored, silent, programmed] = [side('stored'), side('programmed', 100), side('programmed')]
  const [well, lossy] = [side('answering', 0), side('answering', 30)]
  const wordOf = (condition: string): string => (condition === 'stored' ? 'only stored' : condition)
  const both = (ipv4: PeerSide, ipv6: PeerSide): PeerStatus => ({
    ...peer('stored'),
    ...worstOf([ipv4, ipv6]),
    families: { ipv4, ipv6 },
  })
  it.each([
    [stored, silent, 0, 'IPv4 only stored, IPv6 silent'],
    [programmed, silent, 1, 'IPv4 programmed, IPv6 silent'],
    [well, silent, 1, 'IPv6 silent'],
    [stored, well, 0, 'IPv4 only stored'],
    [well, programmed, 1, 'IPv6 programmed'],
    [silent, silent, 0, 'silent'],
    [well, well, 0, 'answering'],
    [well, lossy, 1, 'answering'],
    [lossy, well, 0, 'answering'],
  ])('%#: reports the worse family, and one word if both are equal', (ipv4, ipv6, worse, text) => {
    const told = both(ipv4, ipv6)
    expect(worstOf([ipv4, ipv6])).toBe([ipv4, ipv6][worse])
    expect(conditionText(told, wordOf)).toBe(text)
    expect(sidesOf(told)).toEqual({ ipv4, ipv6 })
  })
  it('are those of the peer itself if it has one, even without the field', () => {
    const four = peer('answering')
    const six = { ...four, subnet: 'fd00:5:0:7::/64' }
    expect([four, { ...four, families: { ipv4: stored, ipv6: null } }].map(sidesOf)).toEqual([
      { ipv4: four },
      { ipv4: { ...four, families: { ipv4: stored, ipv6: null } } },
    ])
    const only = { ...six, families: { ipv4: null, ipv6: stored } }
    expect([six, only].map(sidesOf)).toEqual([{ ipv6: six }, { ipv6: only }])
    expect(conditionText(six, wordOf)).toBe('answering')
  })
  it('are IPv4 alone if the peer names no families, and this version cannot read its subnet', () => {
    const strange = { ...peer('stored'), subnet: '10.5.2.0/24 via tomorrow' }
    expect(sidesOf(strange)).toEqual({ ipv4: strange })
  })
  it('have no worst one if there is none', () => expect(worstOf([])).toBeUndefined())
})

describe('a path', () => {
  const long = { path: 'narrow', pathMtu: 1_472 } as const
  it.each([
    ['narrow', 'passes only short packets, and senders learn nothing', { ...long, passesBytes: 1_372 }],
    ['narrow', 'passes no length that weftd has found', { ...long, passesBytes: null }],
    ['narrow', 'has no known MTU', { ...long, passesBytes: 1_372, pathMtu: null }],
    ['answering', 'passes what its MTU allows, so senders get an ICMP error', { ...long, passesBytes: 1_472 }],
    ['answering', 'is whole', { path: 'whole', passesBytes: 1_472 }],
    ['silent', 'is silent since long packets were lost', { ...long, ...silentSide, passesBytes: 1_372 }],
    ['programmed', 'is no longer probed', { ...long, state: 'programmed', lossPercent: null, passesBytes: 1_372 }],
  ] as const)('is %s if it %s', (condition, _what, part) => {
    const told = { ...soundPeer, ...part }
    expect(conditionOf(told)).toBe(condition)
    expect(countPeers([told, soundPeer], 10).narrow).toBe(condition === 'narrow' ? 1 : 0)
  })
})

describe('a silent peer', () => {
  const sending = { ...soundPeer, ...silentSide, heardSecondsAgo: 3, unansweredSeconds: 90 }
  it.each([
    [true, 10, 'sends packets', {}],
    [true, null, 'sends packets to a node that does not probe', {}],
    [true, 10, 'sent a packet two seconds after the first lost probe', { unansweredSeconds: 5 }],
    [false, 10, 'sent its last packet within a second of the first lost probe', { unansweredSeconds: 4 }],
    [true, 10, 'sent its last packet 29 s ago', { heardSecondsAgo: 29 }],
    [false, 10, 'sent its last packet three intervals ago', { heardSecondsAgo: 30 }],
    [true, 20, 'sent its last packet less than three long intervals ago', { heardSecondsAgo: 59 }],
    [false, 20, 'sent its last packet three long intervals ago', { heardSecondsAgo: 60 }],
    [true, 1, 'sent its last packet less than three default intervals ago', { heardSecondsAgo: 29 }],
    [false, 10, 'never sent a packet', { heardSecondsAgo: null }],
    [false, 10, 'has lost no probe', { unansweredSeconds: null }],
    [false, 10, 'answers again', { state: 'answering' }],
  ] as const)('counts as sending only: %s, probed every %s s, if it %s', (is, probeSeconds, _what, part) => {
    expect(isSendingOnly({ ...sending, ...part }, probeSeconds)).toBe(is)
  })
  it('does not count as "sending only" if the family that answers may have sent the packets', () => {
    const heard = { heardSecondsAgo: 3, unansweredSeconds: 90 }
    expect(isSendingOnly({ ...dualPeer({}, silentSide), ...heard }, 10)).toBe(false)
    expect(isSendingOnly({ ...dualPeer(silentSide, silentSide), ...heard }, 10)).toBe(true)
  })
})

it('finds the subnet and the address of a node in each family', () => {
  const dual = dualPeer()
  expect(placeIn(dual, 'ipv4')).toEqual({ subnet: parseNet('10.5.2.0/24'), publicIp: parseAddress('192.0.2.2') })
  expect(placeIn(dual, 'ipv6')).toEqual({ subnet: parseNet('fd00:5:0:2::/64'), publicIp: parseAddress('2001:db8::2') })
  expect(placeIn(soundPeer, 'ipv6')).toEqual({ subnet: undefined, publicIp: undefined })
})

it('shortens the names of hosts to 40 characters', () => {
  expect(briefly('h'.repeat(40))).toBe('h'.repeat(40))
  expect(briefly('h'.repeat(41))).toBe(`${'h'.repeat(39)}…`)
})

it.each([
  [undefined, 'there is no peer', [], 10],
  [undefined, 'no peer has been probed', [peer('programmed')], 10],
  [undefined, 'weftd does not probe', [peer('programmed')], null],
  [1, 'all probed peers answer', [peer('answering', 1), peer('programmed')], 10],
  [0.5, 'the data path lacks a peer, although none has been probed', [peer('stored'), peer('programmed')], null],
  [0, 'no peer answers', [peer('programmed', 1)], 10],
] as const)('knows that the part %s of the network is reached if %s', (whole, _what, list, probeSeconds) => {
  expect(knownWhole(countPeers(list, probeSeconds))).toBe(whole)
})

it.each([
  [{ device: 'flannel0' }, 'flannel0'],
  [{ device: 'flannel0', devices: { ipv4: 'flannel0', ipv6: null } }, 'flannel0'],
  [{ device: 'flannel.1', devices: { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' } }, 'flannel.1 and flannel-v6.1'],
  [{ device: null, devices: { ipv4: null, ipv6: null } }, null],
])('the devices of %j are named %s', (path, text) => expect(devicesText(path)).toBe(text))
