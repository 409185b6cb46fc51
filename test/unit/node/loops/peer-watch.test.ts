// peer-watch.test.ts - the events of a peer, from one check to the next.

import { describe, expect, it } from 'vitest'
import { PeerWatch, type Looked } from '../../../../src/node/loops/peer-watch.ts'
import { createPeerEvents, type PeerEvent } from '../../../../src/report/peer-events.ts'

/** A watch at 1,000,000 ms of its clock, and a clock of the day beside it that can be set. */
function newWatch(events = createPeerEvents()) {
  const time = { now: 1_000_000, day: Date.parse('2026-11-23T03:00:00Z') }
  const watch = new PeerWatch(events, () => new Date(time.day).toISOString())
  let known: Looked = {
    lease: '10.5.2.0-24',
    peer: '10.5.2.0/24',
    publicIp: '192.0.2.2',
    family: 'ipv4',
    probed: undefined,
    length: undefined,
  }
  const look = (more: Partial<Looked> = {}): void => {
    known = { ...known, ...more }
    watch.look(known, time.now)
  }
  return {
    watch,
    events,
    time,
    look,
    pass(ms: number): void {
      time.now += ms
      time.day += ms
    },
    answers(roundTripMs = 10, lossPercent = 0): void {
      look({ probed: { isAnswering: true, roundTripMs, lossPercent, at: time.now, unansweredSince: undefined } })
    },
    falls(): void {
      look({
        probed: { isAnswering: false, roundTripMs: 10, lossPercent: 20, at: time.now, unansweredSince: undefined },
      })
    },
    told: (): [PeerEvent['what'], number | null][] =>
      events.list().map(({ what, afterSeconds }) => [what, afterSeconds]),
  }
}
type Rig = ReturnType<typeof newWatch>

describe('a peer that falls silent', () => {
  it('is reported once, and once when it is back, with the duration', () => {
    const rig = newWatch()
    rig.answers()
    expect(rig.told()).toEqual([])
    for (let times = 0; times < 3; times++) {
      rig.pass(10_000)
      rig.falls()
    }
    expect([...rig.watch.silent()]).toEqual(['10.5.2.0-24'])
    rig.pass(180_000)
    rig.answers()
    rig.pass(10_000)
    rig.answers()
    expect(rig.told()).toEqual([
      ['silent', null],
      ['back', 200],
    ])
    expect(rig.events.list()[0]).toEqual({
      at: '2026-11-23T03:00:10.000Z',
      what: 'silent',
      peer: '10.5.2.0/24',
      publicIp: '192.0.2.2',
      family: 'ipv4',
      afterSeconds: null,
      movedFrom: null,
      bytes: null,
      roundTripMs: null,
      usualMs: null,
    })
    expect([...rig.watch.silent()]).toEqual([])
  })

  it('is known by its new lease key if the key changes, as when the network gets a second family', () => {
    const rig = newWatch()
    rig.answers()
    rig.look({ lease: '10.5.2.0-24&fd00:5:0:2::-64' })
    rig.falls()
    expect([...rig.watch.silent()]).toEqual(['10.5.2.0-24&fd00:5:0:2::-64'])
  })

  it('at the first check is reported too', () => {
    const rig = newWatch()
    rig.falls()
    expect(rig.told()).toEqual([['silent', null]])
  })

  it('has the right duration even if the wall clock is set back meanwhile', () => {
    const rig = newWatch()
    rig.falls()
    rig.time.now += 60_000
    rig.time.day -= 86_400_000
    rig.answers()
    expect(rig.told()[1]).toEqual(['back', 60])
  })

  it('is reported once despite a restart, and its return is reported with the whole duration', () => {
    const before = newWatch()
    before.falls()
    const after = newWatch(before.events)
    after.pass(300_000)
    after.falls()
    after.pass(10_000)
    after.answers()
    expect(after.told()).toEqual([
      ['silent', null],
      ['back', 310],
    ])
    expect(after.told()).toHaveLength(2)
    // If the clock was set back over the restart, nothing is concluded.
    after.falls()
    const later = newWatch(after.events)
    later.time.day -= 86_400_000
    later.answers()
    expect(later.told().at(-1)).toEqual(['back', null])
  })

  it('again after a restart is reported again, if the earlier process reported its return', () => {
    const before = newWatch()
    before.falls()
    before.answers()
    const after = newWatch(before.events)
    after.falls()
    expect(after.told().map(([what]) => what)).toEqual(['silent', 'back', 'silent'])
  })

  it('and is back within the same millisecond was silent for 0 s', () => {
    const rig = newWatch()
    rig.falls()
    rig.answers()
    expect(rig.told()).toEqual([
      ['silent', null],
      ['back', 0],
    ])
  })

  it('over a restart, but still sends, is reported as one-way by the process that receives its packets', () => {
    const before = newWatch()
    before.falls()
    const after = newWatch(before.events)
    after.falls()
    after.pass(10_000)
    after.look({ heardAt: after.time.now })
    expect(after.told().map(([what]) => what)).toEqual(['silent', 'one-way'])
  })

  it('but still sends, is reported once, after packets have arrived that cannot have been in flight before', () => {
    const rig = newWatch()
    rig.answers()
    rig.falls()
    const fell = rig.time.now
    rig.pass(10_000)
    rig.look({ heardAt: fell + 2_000 })
    expect(rig.told()).toHaveLength(1)
    rig.look({ heardAt: fell + 2_001 })
    rig.look({ heardAt: fell + 9_000 })
    expect(rig.told().map(([what]) => what)).toEqual(['silent', 'one-way'])
    expect([...rig.watch.silent()]).toEqual([])
    rig.answers()
    rig.falls()
    rig.look({ heardAt: rig.time.now + 5_000 })
    expect(rig.told().map(([what]) => what)).toEqual(['silent', 'one-way', 'back', 'silent', 'one-way'])
  })
})

it('reports once the address from which a peer moved', () => {
  const rig = newWatch()
  rig.answers()
  rig.look({ publicIp: '192.0.2.7' })
  rig.look()
  expect(rig.events.list()).toEqual([
    expect.objectContaining({ what: 'moved', movedFrom: '192.0.2.2', publicIp: '192.0.2.7' }),
  ])
})

it('reports nothing about a peer that was not probed yet, and has no reading of it', () => {
  const rig = newWatch()
  rig.look()
  rig.look({ heardAt: rig.time.now })
  expect(rig.told()).toEqual([])
  expect([...rig.watch.readings()]).toEqual([])
  expect([...rig.watch.silent()]).toEqual([])
})

describe('a path', () => {
  const narrow = (since: number, bytes: number | undefined = 1372) => ({ length: { isWhole: false, bytes, since } })
  it('that becomes narrow is reported when its length is known, and later that it is whole again, with the duration', () => {
    const rig = newWatch()
    rig.answers()
    rig.look({ length: { isWhole: true, bytes: 1472, since: rig.time.now } })
    rig.pass(10_000)
    const since = rig.time.now
    rig.look({ length: { isWhole: false, bytes: undefined, since } })
    expect(rig.told()).toEqual([])
    rig.look(narrow(since))
    rig.look(narrow(since, 1252))
    rig.pass(30_000)
    rig.look({ length: { isWhole: true, bytes: 1472, since: rig.time.now } })
    expect(rig.told()).toEqual([
      ['narrow', null],
      ['whole', 30],
    ])
    expect(rig.events.list()[0]!.bytes).toBe(1372)
  })

  it('to a peer that was not probed yet is reported too', () => {
    const rig = newWatch()
    rig.look(narrow(rig.time.now))
    expect(rig.told()).toEqual([['narrow', null]])
  })

  it('that becomes narrow again after a restart is reported again', () => {
    const whole = (since: number) => ({ length: { isWhole: true, bytes: 1472, since } })
    const before = newWatch()
    before.answers()
    before.look(narrow(before.time.now))
    before.look(whole(before.time.now))
    const after = newWatch(before.events)
    after.answers()
    after.look(narrow(after.time.now))
    expect(after.told().map(([what]) => what)).toEqual(['narrow', 'whole', 'narrow'])
  })

  it('of a peer that is silent is not blamed', () => {
    const rig = newWatch()
    rig.falls()
    rig.look(narrow(rig.time.now))
    expect(rig.told()).toEqual([['silent', null]])
  })

  it('that is still narrow after a restart is not reported again', () => {
    const before = newWatch()
    before.answers()
    before.look(narrow(before.time.now))
    const after = newWatch(before.events)
    after.answers()
    after.look(narrow(after.time.now))
    after.pass(60_000)
    after.look({ length: { isWhole: true, bytes: 1472, since: after.time.now } })
    expect(after.told()).toEqual([
      ['narrow', null],
      ['whole', 60],
    ])
  })
})

describe('the round trip', () => {
  const times = (rig: Rig, number: number, ms: number): void => {
    for (let done = 0; done < number; done++) {
      rig.pass(10_000)
      rig.answers(ms)
      rig.look() // the same result again counts for nothing
    }
  }
  it('is reported when it more than doubles, and when it is normal again', () => {
    const rig = newWatch()
    times(rig, 20, 10)
    times(rig, 2, 25)
    times(rig, 1, 10)
    times(rig, 2, 25)
    expect(rig.told()).toEqual([])
    times(rig, 1, 25)
    times(rig, 5, 25)
    expect(rig.events.list()).toEqual([expect.objectContaining({ what: 'slow', roundTripMs: 25, usualMs: 10 })])
    times(rig, 3, 14)
    expect(rig.told()).toEqual([
      ['slow', null],
      ['usual', 80],
    ])
  })

  it('is learnt from the first ten probes, as their mean', () => {
    const learns = (number: number) => {
      const rig = newWatch()
      for (let done = 0; done < number; done++) times(rig, 1, done % 2 === 0 ? 8 : 12)
      times(rig, 3, 30)
      return rig.events.list()
    }
    expect(learns(9)).toEqual([])
    expect(learns(10)).toEqual([expect.objectContaining({ what: 'slow', roundTripMs: 30, usualMs: 10 })])
  })

  it('counts once per probe, however often weftd looks at its result', () => {
    const rig = newWatch()
    times(rig, 10, 10)
    times(rig, 2, 25)
    for (let looks = 0; looks < 5; looks++) rig.look()
    expect(rig.told()).toEqual([])
    rig.pass(10_000)
    rig.answers(25)
    expect(rig.told()).toEqual([['slow', null]])
  })

  it.each([
    // The usual round trip, one that is not slow, a slow one, one that is still not normal, and a normal one, in ms.
    [10, 20, 20.1, 15, 14.9], // twice the usual round trip, and half as long again
    [100, 200, 201, 150, 149],
    [1, 3, 3.01, 3, 2.99], // 2 ms more
    [0.5, 2.49, 2.51, 2.5, 2.49],
  ])(
    'that is usually %d ms is not slow at %d ms but at %d ms, and then not normal at %d ms but at %d ms',
    (usual, notSlow, slow, notNormal, normal) => {
      const other = newWatch()
      times(other, 10, usual)
      times(other, 3, notSlow)
      expect(other.told()).toEqual([])
      const rig = newWatch()
      times(rig, 10, usual)
      for (let done = 0; done < 3; done++) {
        times(rig, 2, slow)
        times(rig, 1, usual)
      }
      expect(rig.told()).toEqual([])
      times(rig, 3, slow)
      expect(rig.told().map(([what]) => what)).toEqual(['slow'])
      times(rig, 5, notNormal)
      expect(rig.told().map(([what]) => what)).toEqual(['slow'])
      times(rig, 3, normal)
      expect(rig.told().map(([what]) => what)).toEqual(['slow', 'usual'])
    },
  )

  it('that grows slowly is the new usual one, and no event', () => {
    const rig = newWatch()
    times(rig, 10, 10)
    times(rig, 100, 18)
    times(rig, 10, 25)
    expect(rig.told()).toEqual([])
  })

  it('that was slow for a while is compared with the same usual one as before', () => {
    const rig = newWatch()
    times(rig, 10, 10)
    times(rig, 3, 30)
    times(rig, 3, 10)
    times(rig, 3, 30)
    expect(rig.events.list().map(({ what, usualMs }) => [what, usualMs])).toEqual([
      ['slow', 10],
      ['usual', 10],
      ['slow', 10],
    ])
  })

  it('of probes before a peer fell silent is not counted again while it is silent', () => {
    const rig = newWatch()
    times(rig, 10, 1)
    for (let done = 0; done < 5; done++) {
      rig.pass(10_000)
      rig.falls() // the last round trip was 10 ms
    }
    expect(rig.told().map(([what]) => what)).toEqual(['silent'])
  })

  it('of less than two milliseconds more is noise', () => {
    const rig = newWatch()
    times(rig, 20, 0.1)
    times(rig, 20, 2)
    expect(rig.told()).toEqual([])
  })

  it('that stays long counts as normal after an hour', () => {
    const rig = newWatch()
    times(rig, 20, 10)
    times(rig, 400, 40)
    expect(rig.told()).toEqual([
      ['slow', null],
      ['usual', 3600],
    ])
    times(rig, 20, 40)
    times(rig, 3, 90)
    expect(rig.told().at(-1)).toEqual(['slow', null])
  })
})

it('returns the newest event of each peer, and forgets removed peers', () => {
  const rig = newWatch()
  rig.answers(7, 10)
  rig.watch.look(
    {
      lease: '10.5.3.0-24',
      peer: '10.5.3.0/24',
      publicIp: '192.0.2.3',
      family: 'ipv4',
      length: undefined,
      probed: { isAnswering: false, roundTripMs: 3, lossPercent: 100, at: 1, unansweredSince: undefined },
    },
    rig.time.now,
  )
  expect([...rig.watch.readings()]).toEqual([
    { roundTripMs: 7, lossPercent: 10 },
    { roundTripMs: undefined, lossPercent: 100 },
  ])
  expect([...rig.watch.silent()]).toEqual(['10.5.3.0-24'])
  rig.watch.keep(new Set(['ipv4 10.5.2.0/24']))
  expect([...rig.watch.readings()]).toHaveLength(1)
  expect([...rig.watch.silent()]).toEqual([])
})
