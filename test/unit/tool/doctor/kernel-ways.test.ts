// kernel-ways.test.ts - what the doctor says of where the kernel sends packets, whatever the main table has.

import { describe, expect, it } from 'vitest'
import { countPeers } from '../../../../src/report/status.ts'
import type { Facts } from '../../../../src/tool/doctor/facts.ts'
import { checkWays } from '../../../../src/tool/doctor/kernel-ways.ts'
import { marksIn, waysToAsk } from '../../../../src/tool/doctor/way-questions.ts'
import { sound, soundDual, soundPeer } from '../../../support/facts.ts'
import { waysBy } from '../../../support/ways.ts'

const found = (part: Partial<Facts>, isTold = false): string[] =>
  checkWays({ ...sound, ...part }, isTold).map(({ name, detail }) => `${name}: ${detail}`)
const by = (changed: Parameters<typeof waysBy>[0], part: Partial<Facts> = {}): string[] =>
  found({ kernelWays: waysBy(changed), ...part })

it('asks for a packet of a container, one of this host, one that comes in, and one with each mark', () => {
  expect(
    waysToAsk(sound.status!, sound.links, ['0x1']).map(({ direction, question }) => [direction, question]),
  ).toEqual([
    ['host', { to: '10.5.2.2' }],
    ['out', { to: '10.5.2.2', from: '10.5.1.2', iif: 'cni0' }],
    ['out', { to: '10.5.2.2', from: '10.5.1.2', iif: 'cni0', mark: '0x1' }],
    ['in', { to: '10.5.1.2', from: '10.5.2.2', iif: 'flannel0' }],
  ])
  const devices = { ipv4: 'flannel.1', ipv6: 'flannel-v6.1' }
  const dual = { ...soundDual.status, dataPath: { ...soundDual.status.dataPath, devices } }
  expect(waysToAsk(dual, soundDual.links, []).map(({ question }) => question.to)).toEqual([
    '10.5.2.2',
    '10.5.2.2',
    '10.5.1.2',
    'fd00:5:0:2::2',
    'fd00:5:0:2::2',
    'fd00:5:0:1::2',
  ])
  // Without containers yet only the host itself can be asked for.
  expect(waysToAsk(sound.status!, [], ['0x1']).map(({ direction }) => direction)).toEqual(['host'])
  const none = { ...sound.status!, dataPath: { ...sound.status!.dataPath!, engine: 'none' } }
  expect(waysToAsk(none, sound.links, [])).toEqual([])
})

const direct = { ...sound.status!, peers: countPeers([{ ...soundPeer, way: 'direct' as const }], 10) }
it('does not ask for packets from a peer that is routed directly: rp_filter asks for the interface by which they come', () => {
  expect(waysToAsk(direct, sound.links, []).map(({ direction }) => direction)).toEqual(['host', 'out'])
})

it('reads the marks that nftables sets', () => {
  expect(
    marksIn('meta mark set 0x00000001\n meta mark set 0x00000001 accept\n ct mark set 0x2\n meta mark 0x3'),
  ).toEqual(['0x00000001'])
})

describe('a rule of policy routing', () => {
  const elsewhere = { device: 'ts0', table: '52' }

  it('for all packets is named once, with the table', () => {
    expect(by({ host: elsewhere, out: elsewhere })).toEqual([
      'policy-route: 10.5.2.0/24 (from cni0) goes to ts0, by the table 52 and the rule "5270: from all lookup 52"',
    ])
    // The main table is right: nothing of it is told, whether or not it is known to be wrong.
    expect(found({ kernelWays: waysBy({ out: elsewhere }) }, true)).toHaveLength(1)
  })

  it('for packets of containers alone is found though the host itself reaches the peer', () => {
    const via = { device: 'eth0', gateway: '192.0.2.254', table: '30400' }
    expect(by({ out: via })).toEqual([
      'policy-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.254, by the table 30400 and the rule "30400: from all iif cni0 lookup 30400"',
    ])
  })

  it('for packets that come in is found', () => {
    expect(by({ in: { device: 'eth0', gateway: '192.0.2.254', table: '52' } })).toEqual([
      'policy-route: from 10.5.2.0/24 (to 10.5.1.2) goes to eth0 via 192.0.2.254, by the table 52 and the rule "5270: from all lookup 52"',
    ])
  })

  it('has the main table asked first, by a rule before it', () => {
    const [one] = checkWays({ ...sound, kernelWays: waysBy({ out: elsewhere }) }, false)
    expect(one!.fix).toContain('`ip rule add pref 5269 to 10.5.0.0/16 lookup main`')
  })

  it('for a mark is a doubt', () => {
    expect(by({ marked: { device: 'eth0', gateway: '192.0.2.254', table: '100' } })).toEqual([
      'marked-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.254, by the table 100 and the rule "30000: from all fwmark 0x1/0x1 lookup 100", if it has the mark 0x1 that a rule of nftables sets',
    ])
  })
})

describe('a refusal of the kernel', () => {
  it('names the rule that prohibits', () => {
    expect(by({ out: 'Permission denied' })).toEqual([
      'route-refused: 10.5.2.0/24 (from cni0): Permission denied, by the rule "100: from all to 10.5.2.0/24 prohibit"',
    ])
  })

  it('by rp_filter is told as that', () => {
    const [one] = checkWays({ ...sound, kernelWays: waysBy({ in: 'Invalid cross-device link' }) }, false)
    expect([one!.name, one!.detail]).toEqual([
      'route-refused',
      'from 10.5.2.0/24 (to 10.5.1.2): rp_filter: the way back is another one',
    ])
    expect(one!.fix).toContain('net.ipv4.conf.flannel0.rp_filter=2')
  })

  it('of what is forwarded is not told where nothing is forwarded', () => {
    expect(by({ out: 'No route to host', in: 'No route to host' }, { isForwarding: false })).toEqual([])
  })
})

describe('a route of the main table', () => {
  it('is told here unless the routes themselves tell it', () => {
    const via = { device: 'eth0', gateway: '192.0.2.254' }
    expect(by({ host: via, out: via })).toEqual(['foreign-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.254'])
    expect(found({ kernelWays: waysBy({ out: via }) }, true)).toEqual([])
    // To the own subnet too: packets for the containers here leave by a gateway.
    expect(by({ in: via })).toEqual(['foreign-route: from 10.5.2.0/24 (to 10.5.1.2) goes to eth0 via 192.0.2.254'])
  })

  it('is right to the peer itself, as host-gw has it, and to an address of this host', () => {
    const toHost = { device: 'eth0', gateway: '192.0.2.2' }
    expect(by({ out: toHost, host: toHost }, { status: direct })).toEqual([])
    // Past a tunnel it is wrong.
    expect(by({ out: toHost, host: toHost })).toEqual([
      'foreign-route: 10.5.2.0/24 (from cni0) goes to eth0 via 192.0.2.2',
    ])
    expect(by({ in: { device: 'lo', type: 'local', table: 'local' } })).toEqual([])
    expect(by({ out: { device: 'lo', type: 'local', table: 'local' } })).toEqual([
      'foreign-route: 10.5.2.0/24 (from cni0) goes to this host itself, which has that address',
    ])
  })

  it('is not judged where nobody asked the kernel', () => expect(found({})).toEqual([]))
})
