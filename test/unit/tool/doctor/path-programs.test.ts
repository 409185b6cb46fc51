// path-programs.test.ts - weft doctor names eBPF programs and tc filters only if packets of the network are lost.

import { expect, it } from 'vitest'
import { countPeers, type PeerStatus } from '../../../../src/report/status.ts'
import type { Facts, Reach } from '../../../../src/tool/doctor/facts.ts'
import { checkPrograms } from '../../../../src/tool/doctor/path-programs.ts'
import { dualPeer, silentSide, sound, soundDual, soundPeer, soundStatus } from '../../../support/facts.ts'

const programs = [
  { device: 'eth0', what: 'an XDP program' },
  { device: 'cni0', what: 'a tc filter' },
]
const withPeers = (...list: PeerStatus[]): Facts => ({
  ...sound,
  programs,
  answers: new Map(),
  status: { ...soundStatus, peers: countPeers(list, 10) },
})
const withDual = (peer: PeerStatus, answers: Facts['answers'] = new Map()): Facts => ({
  ...soundDual,
  programs,
  answers,
  status: { ...soundDual.status, peers: countPeers([peer], 10) },
})
const isNamed = (facts: Facts): boolean => {
  const details = checkPrograms(facts).map(({ name, detail }) => `${name}: ${detail}`)
  expect([[], ['program-on-path: eth0: an XDP program', 'program-on-path: cni0: a tc filter']]).toContainEqual(details)
  return details.length > 0
}
const off: PeerStatus = { ...soundPeer, ...silentSide, lease: 'off', subnet: '10.5.3.0/24' }
const reach = (part: Partial<Reach>): Facts['reaches'] =>
  new Map([[off.lease, { port: undefined, portNumber: 8285, isPinged: undefined, isOffLink: false, ...part }]])
const answers = (small: boolean, large: boolean): Facts['answers'] =>
  new Map([[soundPeer.lease, { ipv4: { small, large } }]])
const bridge = { family: 'ipv4', lease: soundPeer.lease, to: 1, fromBridge: 2, fromHost: 3 } as const

it.each<[string, Facts, boolean]>([
  ['nothing is lost', withPeers(soundPeer), false],
  ['there is no status', { ...withPeers(), status: undefined }, false],
  ['the peers are not known yet', { ...withPeers(), status: { ...soundStatus, peers: null } }, false],
  ['a peer loses a few probes', withPeers({ ...soundPeer, lossPercent: 19 }), false],
  ['a peer loses many probes', withPeers({ ...soundPeer, lossPercent: 20 }), true],
  ['the loss is not known', withPeers({ ...soundPeer, lossPercent: null }), false],
  ['a peer is not probed yet', withPeers({ ...soundPeer, state: 'programmed', lossPercent: null }), false],
  ['a peer is in the store alone', withPeers({ ...soundPeer, state: 'stored', lossPercent: 100 }), false],
  ['a peer answers small packets alone', { ...withPeers(soundPeer), answers: answers(true, false) }, true],
  ['a peer answers all packets of weft doctor', { ...withPeers(soundPeer), answers: answers(true, true) }, false],
  [
    'a peer in the store alone answers no packets of weft doctor',
    { ...withPeers({ ...soundPeer, state: 'stored' }), answers: answers(false, false) },
    false,
  ],
  ['no peer answers', withPeers(off), true],
  ['no peer answers weft doctor', { ...withPeers(soundPeer), answers: answers(false, false) }, true],
  [
    'a peer answers weft doctor, but not weftd',
    { ...withPeers({ ...soundPeer, ...silentSide, lossPercent: 10 }), answers: answers(true, true) },
    false,
  ],
  ['one of two peers is off', withPeers(soundPeer, off), false],
  ['one of two peers answers only pings', { ...withPeers(soundPeer, off), reaches: reach({ isPinged: true }) }, true],
  ['one of two peers answers no pings', { ...withPeers(soundPeer, off), reaches: reach({ isPinged: false }) }, false],
  ['no peer answers, and the port is refused', { ...withPeers(off), reaches: reach({ port: 'refused' }) }, false],
  [
    'one of two peers answers pings, and its port is refused',
    { ...withPeers(soundPeer, off), reaches: reach({ isPinged: true, port: 'refused' }) },
    false,
  ],
  ['no peer answers over IPv6', withDual(dualPeer({}, silentSide)), true],
  ['a peer loses packets of IPv6', withDual(dualPeer({}, { lossPercent: 50 })), true],
  ['both families of a peer answer', withDual(dualPeer()), false],
  [
    'no bridge of a peer answers the bridge of this node, but one answers this host',
    { ...withPeers(soundPeer), bridgeAnswers: [{ ...bridge, isBridgeAnswered: false, isHostAnswered: true }] },
    true,
  ],
  [
    'the bridge of a peer answers the bridge of this node alone',
    { ...withPeers(soundPeer), bridgeAnswers: [{ ...bridge, isBridgeAnswered: true, isHostAnswered: false }] },
    false,
  ],
  [
    'the bridge of a peer does not answer, because it has no containers',
    { ...withPeers(soundPeer), bridgeAnswers: [{ ...bridge, isBridgeAnswered: false, isHostAnswered: false }] },
    false,
  ],
])('%s', (_name, facts, isExpected) => expect(isNamed(facts)).toBe(isExpected))

it('nothing is named on a host without programs', () => {
  const { programs: _programs, ...none } = withPeers(off)
  expect(checkPrograms(none)).toEqual([])
})
