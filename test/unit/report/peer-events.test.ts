// peer-events.test.ts - the events of peers: their maximum number, and reading any file.

import fc from 'fast-check'
import { expect, it } from 'vitest'
import {
  createPeerEvents,
  eventsReport,
  eventsText,
  MOST_EVENTS,
  parseEvents,
  PEER_EVENTS,
  peerEventText,
  type PeerEvent,
} from '../../../src/report/peer-events.ts'

const event = (known: Partial<PeerEvent> = {}): PeerEvent => ({
  at: '2026-11-23T03:00:00.000Z',
  what: 'silent',
  peer: '10.5.2.0/24',
  publicIp: '192.0.2.2',
  family: 'ipv4',
  afterSeconds: null,
  movedFrom: null,
  bytes: null,
  roundTripMs: null,
  usualMs: null,
  ...known,
})

it('keeps the events in their order, and counts each kind', () => {
  const events = createPeerEvents()
  const list = [event(), event({ what: 'back', at: '2026-11-23T02:00:00.000Z' }), event({ what: 'silent' })]
  for (const each of list) events.add(each)
  expect(events.list()).toEqual(list)
  expect(events.counts()).toEqual({
    silent: 2,
    back: 1,
    moved: 0,
    narrow: 0,
    whole: 0,
    slow: 0,
    usual: 0,
    rerouted: 0,
    'one-way': 0,
  })
})

it('deletes the oldest event of the peer that has most, so that an unstable peer displaces no other', () => {
  const events = createPeerEvents(10)
  events.add(event({ peer: 'calm' }))
  events.add(event({ peer: 'calm', family: 'ipv6' }))
  for (let number = 0; number < 100; number++) events.add(event({ peer: 'busy', afterSeconds: number }))
  const list = events.list()
  expect(list).toHaveLength(10)
  expect(list.slice(0, 2).map(({ peer, family }) => [peer, family])).toEqual([
    ['calm', 'ipv4'],
    ['calm', 'ipv6'],
  ])
  expect(list.slice(2).map(({ afterSeconds }) => afterSeconds)).toEqual([92, 93, 94, 95, 96, 97, 98, 99])
  expect(events.counts().silent).toBe(102)
})

it('deletes the oldest of all events if all peers have equally many events', () => {
  const events = createPeerEvents(3)
  for (const peer of ['a', 'b', 'c', 'd']) events.add(event({ peer }))
  expect(events.list().map(({ peer }) => peer)).toEqual(['b', 'c', 'd'])
  // Events of an earlier process are older than all events of this process.
  events.adopt([event({ peer: 'e' }), event({ peer: 'f' })])
  expect(events.list().map(({ peer }) => peer)).toEqual(['b', 'c', 'd'])
})

it('keeps only the newest events of an earlier process if there are too many', () => {
  const events = createPeerEvents(3)
  events.adopt(['a', 'a', 'b', 'b', 'b'].map((peer, at) => event({ peer, afterSeconds: at })))
  expect(events.list().map(({ peer, afterSeconds }) => `${peer} ${afterSeconds}`)).toEqual(['b 2', 'b 3', 'b 4'])
})

it('the report has no events before there is a node', () => {
  const at = '2026-11-23T03:00:00.000Z'
  expect(eventsReport(at)).toEqual({ schema: 1, at, events: [] })
  expect(eventsReport(at, [event()])).toEqual({ schema: 1, at, events: [event()] })
})

it('does not change counts that it returned earlier', () => {
  const events = createPeerEvents()
  const before = events.counts()
  events.add(event())
  expect([before.silent, events.counts().silent]).toEqual([0, 1])
})

it('puts the events of an earlier process first, once, and does not count them', () => {
  const events = createPeerEvents(4)
  const older = [event({ peer: 'a' }), event({ peer: 'b' })]
  events.adopt(older)
  events.add(event({ peer: 'c' }))
  // The earlier process wrote one more event before it ended.
  events.adopt([...older, event({ peer: 'b', what: 'back' })])
  expect(events.list().map(({ peer, what }) => `${peer} ${what}`)).toEqual([
    'a silent',
    'b silent',
    'b back',
    'c silent',
  ])
  expect([events.counts().silent, events.counts().back]).toEqual([1, 0])
  expect(events.last({ peer: 'b', family: 'ipv4' }, ['silent', 'back'])!.what).toBe('back')
  expect(events.last({ peer: 'b', family: 'ipv4' }, ['silent'])!.what).toBe('silent')
  expect(events.last({ peer: 'b', family: 'ipv6' }, PEER_EVENTS)).toBeUndefined()
  events.add(event({ peer: 'b', what: 'moved', movedFrom: '192.0.2.9' }))
  expect(events.list().map(({ peer, what }) => `${peer} ${what}`)).toEqual([
    'a silent',
    'b back',
    'c silent',
    'b moved',
  ])
  expect(events.last({ peer: 'b', family: 'ipv4' }, PEER_EVENTS)!.what).toBe('moved')
})

it('reads the events that it wrote', () => {
  const list = PEER_EVENTS.map((what) =>
    event({ what, afterSeconds: 3, bytes: 1372, roundTripMs: 2.5, usualMs: 1, movedFrom: '192.0.2.1' }),
  )
  expect(parseEvents(eventsText(list))).toEqual(list)
  expect(parseEvents(eventsText([]))).toEqual([])
})

it('reads the valid lines of a truncated file and of one with junk', () => {
  const text = eventsText([event(), event({ what: 'back', afterSeconds: 3 })])
  expect(parseEvents(text.slice(0, -20))).toEqual([event()])
  const lines = [
    { version: 1, later: 'field' },
    null,
    7,
    [],
    {},
    { ...event(), what: 'exploded' },
    { ...event(), family: 'ipx' },
    { ...event(), at: 'yesterday' },
    { ...event(), peer: 'x'.repeat(101) },
    { ...event(), publicIp: 5 },
    { ...event(), afterSeconds: -1, bytes: 'many', movedFrom: {}, later: 'field' },
  ]
  expect(parseEvents(lines.map((line) => JSON.stringify(line)).join('\n'))).toEqual([event()])
})

it.each<[object, object]>([
  [
    { afterSeconds: 0, roundTripMs: 0.04 },
    { afterSeconds: 0, roundTripMs: 0.04 },
  ],
  [
    { afterSeconds: '3', bytes: true, usualMs: [7] },
    { afterSeconds: null, bytes: null, usualMs: null },
  ],
  [{ movedFrom: 'x'.repeat(100) }, { movedFrom: 'x'.repeat(100) }],
  [{ movedFrom: 'x'.repeat(101) }, { movedFrom: null }],
  [{ movedFrom: ['192.0.2.9'] }, { movedFrom: null }],
  [{ publicIp: '' }, { publicIp: '' }],
])('reads an event with %j as %j', (written, read) => {
  const line = JSON.stringify({ ...event(), ...written })
  expect(parseEvents(`{"version":1}\n${line}\n`)).toEqual([{ ...event(), ...read }])
})

it('reads a number that is too large as unknown', () => {
  const line = JSON.stringify(event()).replace('"bytes":null', '"bytes":1e999')
  expect(parseEvents(`{"version":1}\n${line}\n`)).toEqual([event()])
})

it.each([{ at: undefined }, { peer: '' }, { peer: undefined }, { publicIp: undefined }, { what: null }, { family: 4 }])(
  'skips an event with %j',
  (differs) => {
    const line = JSON.stringify({ ...event(), ...differs })
    expect(parseEvents(`{"version":1}\n${line}\n`)).toEqual([])
  },
)

it('does not read a file of another version or format', () => {
  for (const text of ['', '\n', '{}', 'junk', '{"version":2}\n', '\0\0\0', '[1]'])
    expect(() => parseEvents(text), text).toThrow('its version is')
  fc.assert(
    fc.property(fc.string(), (text) => {
      const lines = parseEvents(`{"version":1}\n${text}`)
      expect(lines.every(({ what }) => PEER_EVENTS.includes(what))).toBe(true)
    }),
  )
})

it('reads at most the maximum number of events', () => {
  const list = Array.from({ length: MOST_EVENTS + 5 }, (_, at) => event({ afterSeconds: at }))
  expect(parseEvents(eventsText(list)).map(({ afterSeconds }) => afterSeconds)[0]).toBe(5)
  const events = createPeerEvents()
  for (const each of list) events.add(each)
  expect(events.list()).toHaveLength(MOST_EVENTS)
})

it('an event is described in words', () => {
  const words = (known: Partial<PeerEvent>): string => peerEventText(event(known), (seconds) => `${seconds} s`)
  expect(words({})).toBe('no longer answers')
  expect(words({ family: 'ipv6' })).toBe('no longer answers over IPv6')
  expect(words({ what: 'one-way' })).toBe(
    'sends packets, but does not answer: packets to it are lost, or its firewall drops the echo requests',
  )
  expect([words({ what: 'back', afterSeconds: 9 }), words({ what: 'back' })]).toEqual([
    'answers again, after 9 s',
    'answers again',
  ])
  expect(words({ what: 'moved', movedFrom: '192.0.2.9' })).toBe('moved from 192.0.2.9 to 192.0.2.2')
  expect(words({ what: 'narrow', bytes: 1372 })).toBe('packets longer than 1372 bytes do not come back')
  expect(words({ what: 'whole', afterSeconds: 60 })).toBe('long packets come back again, after 60 s')
  expect(words({ what: 'rerouted', publicIp: '192.0.2.2', movedFrom: 'fd77::2' })).toBe(
    'is now reached at 192.0.2.2 instead of fd77::2',
  )
  expect(words({ what: 'slow', roundTripMs: 40, usualMs: 10 })).toBe('round trip of 40 ms, usually 10 ms')
  expect(words({ what: 'usual', roundTripMs: 10, afterSeconds: 60 })).toBe(
    'round trip as usual again, 10 ms, after 60 s',
  )
  const overIpv6 = (what: PeerEvent['what']): string => words({ what, family: 'ipv6', bytes: 1372, roundTripMs: 10 })
  for (const what of ['silent', 'one-way', 'back', 'narrow', 'whole', 'slow', 'usual'] as const)
    expect(overIpv6(what)).toContain(' over IPv6')
})
