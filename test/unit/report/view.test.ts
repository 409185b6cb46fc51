// view.test.ts - the view that a node serves to the others, and parsing the views of others.

import { describe, expect, it } from 'vitest'
import { Secret } from '../../../src/base/secret.ts'
import type { Status } from '../../../src/report/status.ts'
import { MOST_SEEN, readView, viewOf, type NodeView } from '../../../src/report/view.ts'
import { soundStatus } from '../../support/facts.ts'
import { peerWith, statusWith } from '../../support/page-status.ts'

const AT = '2026-11-22T10:00:00.000Z'
const reread = (view: object): NodeView => readView(JSON.stringify(view))

it('a view has the node, its configuration and its results for each peer, and can be parsed again', () => {
  const list = [
    peerWith(2, { roundTripMs: 1.5, lossPercent: 10 }),
    peerWith(3, { state: 'programmed' }),
    peerWith(4, { state: 'programmed', lossPercent: null }),
    peerWith(5, { state: 'stored', passesBytes: 1300 }),
  ]
  const view = viewOf(statusWith(list), AT)
  expect(view).toMatchObject({
    schema: 1,
    at: AT,
    version: soundStatus.daemon.version,
    hostname: 'a',
    lease: '10.5.1.0-24',
    // The state is that of `weft status`; problems of the peers are in `seen`.
    state: 'impaired',
    trouble: null,
    mtu: soundStatus.dataPath!.mtu,
    peers: 4,
    config: { network: '10.5.0.0/16', backendType: soundStatus.config!.backendType, subnetLength: '24' },
  })
  expect(
    view.seen.map(({ lease, reach, roundTripMs, lossPercent, passesBytes }) => [
      lease,
      reach,
      roundTripMs,
      lossPercent,
      passesBytes,
    ]),
  ).toEqual([
    ['10.5.2.0-24', 'reached', 1.5, 10, null],
    ['10.5.3.0-24', 'silent', expect.anything(), 100, null],
    ['10.5.4.0-24', 'unknown', expect.anything(), null, null],
    ['10.5.5.0-24', 'stored', expect.anything(), null, 1300],
  ])
  expect(reread(view)).toEqual(view)
})

it('a view leaves out the longest packet of a narrow path if senders of longer packets get an ICMP error', () => {
  const narrow = { path: 'narrow', passesBytes: 1372 } as const
  const list = [
    peerWith(2, { ...narrow, pathMtu: 1372 }), // weftd knows this path MTU, and sends an ICMP error for longer packets
    peerWith(3, narrow),
    peerWith(4, { ...narrow, pathMtu: 1400 }),
    peerWith(5, { path: 'whole', passesBytes: 1472 }),
  ]
  expect(viewOf(statusWith(list), AT).seen.map(({ passesBytes }) => passesBytes)).toEqual([null, 1372, 1372, 1472])
})

it('a view has no lines of the log, nothing about store and lease, and no secret', () => {
  const config = { ...soundStatus.config!, backend: { Type: 'wireguard', PSK: new Secret('sesame') } }
  const events = [{ at: AT, level: 'warn', text: 'it rains' } as const]
  const text = JSON.stringify(viewOf({ ...soundStatus, config, events }, AT))
  expect(text).not.toMatch(/sesame|it rains|\/var\/lib/)
  expect(text).toContain('"backend.PSK":"<hidden>"')
})

it.each([
  [[{ by: 'peers', what: '1 peer does not answer' }], null],
  [
    [
      { by: 'rules', what: 'iptables failed' },
      { by: 'peers', what: '1 peer does not answer' },
      { by: 'store', what: 'the store does not answer' },
    ],
    'iptables failed; the store does not answer',
  ],
] as const)('a node impaired by %j tells its peers its own problems: %s', (impairments, trouble) => {
  const all = impairments.map(({ what }) => what).join('; ')
  const status: Status = { ...soundStatus, state: 'impaired', impairments, trouble: all }
  expect(viewOf(status, AT)).toMatchObject({ state: 'impaired', trouble })
})

describe('the configuration in a view', () => {
  const configOf = (backend: Readonly<Record<string, unknown>>) =>
    viewOf({ ...soundStatus, config: { ...soundStatus.config!, backend } }, AT).config

  it('has only members with a value, and has the type of the backend once', () => {
    const backend = { type: 'vxlan', vni: 1, directrouting: true, gbp: false, port: null }
    const { subnetMin, subnetMax } = soundStatus.config!
    expect(configOf(backend)).toEqual({
      network: '10.5.0.0/16',
      subnetLength: '24',
      subnetMin,
      subnetMax,
      backendType: 'udp',
      'backend.vni': '1',
      'backend.directrouting': 'true',
      'backend.gbp': 'false',
    })
  })

  it('has at most 64 members, and at most 300 characters of a name and a value', () => {
    const long = 'x'.repeat(400)
    const config = configOf({ [long]: 1, text: long, list: [long] })
    expect(Object.keys(config).map((name) => name.length)).toContain(300)
    expect(config['backend.text']).toBe('x'.repeat(300))
    expect(config['backend.list']).toBe(`["${'x'.repeat(298)}`)
    const many = configOf(Object.fromEntries(Array.from({ length: 100 }, (_, at) => [`k${at}`, at])))
    expect(Object.keys(many)).toHaveLength(64)
  })
})

it('a view prefers peers with problems if there are very many peers', () => {
  const list = Array.from({ length: MOST_SEEN + 5 }, (_, at) => peerWith(2, { lease: `k${at}` }))
  list[MOST_SEEN + 4] = peerWith(3, { state: 'programmed' })
  const { peers, seen } = viewOf(statusWith(list), AT)
  expect([peers, seen.length, seen[0]!.reach]).toEqual([MOST_SEEN + 5, MOST_SEEN, 'silent'])
  // If all peers fit, they keep their order.
  const fitting = viewOf(statusWith(list.slice(5)), AT)
  expect([fitting.peers, fitting.seen[0]!.reach, fitting.seen.at(-1)!.reach]).toEqual([MOST_SEEN, 'reached', 'silent'])
})

it('the view of a waiting daemon has the reason', () => {
  const waiting: Status = {
    ...soundStatus,
    state: 'starting',
    trouble: 'a lease',
    node: null,
    config: null,
    lease: null,
  }
  expect(viewOf({ ...waiting, peers: null, dataPath: null }, AT)).toMatchObject({
    hostname: null,
    lease: null,
    state: 'starting',
    trouble: 'a lease',
    mtu: null,
    config: {},
    seen: [],
  })
})

describe('the view of another node', () => {
  it.each([
    ['', 'its view is not JSON'],
    ['{', 'its view is not JSON'],
    ['[]', 'its answer is not a view of a node'],
    ['null', 'its answer is not a view of a node'],
    ['"text"', 'its answer is not a view of a node'],
    ['{}', 'its view does not have version 1'],
    ['{"schema":2}', 'its view does not have version 1'],
    ['{"schema":1}', 'its view has no valid time'],
    ['{"schema":1,"at":"soon"}', 'its view has no valid time'],
    ['['.repeat(500_000), 'its view is not JSON'],
  ])('is refused as %.20s', (text, why) => expect(() => readView(text)).toThrow(why))

  it.each([
    ['0', 0],
    ['0.4', 0.4],
    ['1e999', null],
    ['-0.1', null],
    ['"1"', null],
    ['null', null],
  ])('has the number %s as %s', (text, number) => {
    const seen = `[{"lease":"k","reach":"reached","roundTripMs":${text},"lossPercent":${text}}]`
    const view = readView(`{"schema":1,"at":"${AT}","mtu":${text},"seen":${seen}}`)
    expect([view.mtu, view.seen[0]!.roundTripMs, view.seen[0]!.lossPercent]).toEqual([number, number, number])
  })

  it.each<[unknown]>([[[]], ['text'], [7], [null]])('has no configuration and no peers if these are %j', (junk) => {
    const view = reread({ schema: 1, at: AT, config: junk, seen: junk })
    expect([view.config, view.seen, view.peers]).toEqual([{}, [], 0])
  })

  it('is limited in every dimension', () => {
    const long = 'x'.repeat(60_000)
    const junk = {
      schema: 1,
      at: AT,
      version: 3,
      hostname: long,
      lease: {},
      state: [],
      trouble: 7,
      mtu: -1,
      peers: 'many',
      config: {
        network: long,
        list: [1],
        [long]: 'long',
        ...Object.fromEntries(Array.from({ length: 500 }, (_, at) => [`k${at}`, ''])),
      },
      seen: [
        null,
        3,
        [],
        {},
        { lease: 'k' },
        { lease: 3, reach: 'reached' },
        { lease: 'k', reach: 'toString' },
        { lease: 'k', reach: 'reached', roundTripMs: 'fast', lossPercent: -3, passesBytes: '1e999' },
      ],
    }
    const view = reread(junk)
    expect(view).toMatchObject({ version: '', hostname: 'x'.repeat(300), lease: null, state: '', trouble: null })
    expect(view).toMatchObject({ mtu: null, peers: 1, config: { network: 'x'.repeat(300), list: '' } })
    expect(Object.keys(view.config)).toHaveLength(64)
    expect(view.config['x'.repeat(300)]).toBe('long')
    expect(view.seen).toEqual([
      { lease: 'k', reach: 'reached', roundTripMs: null, lossPercent: null, passesBytes: null },
    ])
    const many = Array.from({ length: 3 * MOST_SEEN }, () => ({ lease: 'k', reach: 'silent' }))
    expect(reread({ schema: 1, at: AT, seen: many, config: [] }).seen).toHaveLength(MOST_SEEN)
  })
})
