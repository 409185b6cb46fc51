// fail-static.test.ts - which listings and changes a view of the leases accepts, and which leases it keeps until a loss is confirmed.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { LeaseView, type ViewChange } from '../../../../src/control/lease/fail-static.ts'
import type { Lease } from '../../../../src/control/lease/lease.ts'
import type { Change, Entry } from '../../../../src/control/lease/subnet-manager.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'

const HOLD_MS = 30_000
const OWN = '10.5.9.0-24'
/** Each lease has an address of its own unless the caller gives one. */
const lease = (key: string, publicIp = `1.2.3.${key.split('.')[2]}`): Lease => ({
  key,
  subnet: { ipv4: parseIpv4Net(key.replace('-', '/'))! },
  attrs: { publicIp: { ipv4: parseIpv4(publicIp)! }, backendType: '' },
})
const key = (third: number): string => `10.5.${third}.0-24`
const entry = (third: number, publicIp?: string): Entry => ({ key: key(third), lease: lease(key(third), publicIp) })
const junk = (third: number): Entry => ({ key: key(third), problem: 'it is junk' })
const put = (third: number, publicIp?: string): Change => ({ kind: 'put', entry: entry(third, publicIp) })
const gone = (third: number): Change => ({ kind: 'delete', key: key(third) })

function newView() {
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  const log = { info: say, warn: say, error: say, v: () => false }
  const view = new LeaseView({ holdMs: HOLD_MS, ownKey: () => OWN, log })
  return {
    view,
    lines,
    thirds: () => [...view.leases.keys()].map((each) => Number(each.split('.')[2])).toSorted((a, b) => a - b),
  }
}
const keysOf = ({ added, changed, removed }: ViewChange) =>
  [added, changed, removed].map((leases) => leases.map((each) => each.key))

describe('a view', () => {
  describe.each(['ipv4', 'ipv6'] as const)('of a lease whose annotations of %s cannot be read', (bad) => {
    const good = bad === 'ipv4' ? 'ipv6' : 'ipv4'
    type Given = Partial<Pick<Lease, 'revision'> & Pick<Lease['attrs'], 'backendType'>> & { readonly last?: number }
    /** Returns a lease with the addresses and the data of both families, which end with the number `last`. */
    const whole = ({ revision = 7n, backendType = 'vxlan', last = 1 }: Given = {}): Lease => ({
      ...lease(key(1)),
      revision,
      attrs: {
        publicIp: { ipv4: parseIpv4(`192.0.2.${last}`)!, ipv6: 0xfdn + BigInt(last) },
        backendType,
        backendData: { ipv4: last },
        backendV6Data: { ipv6: last },
      },
    })
    /** Returns the entry of a lease that lacks the family `bad`. */
    const half = (given: Given = {}): Entry & { readonly lease: Lease } => {
      const { attrs, ...rest } = whole(given)
      const { publicIp, backendType, backendData, backendV6Data } = attrs
      const data = good === 'ipv4' ? { backendData } : { backendV6Data }
      const read = { ...rest, attrs: { publicIp: { [good]: publicIp[good] }, backendType, ...data } }
      return { key: key(1), lease: read, invalid: { family: bad, problem: 'it is junk' } }
    }
    const viewAfter = (before: Lease | undefined, after: Entry) => {
      const { view, lines } = newView()
      if (before) view.list([{ key: key(1), lease: before }], 0)
      view.change([{ kind: 'put', entry: after }], 1)
      return { found: view.leases.get(key(1)), lines }
    }

    it('takes only this family from the previous lease of the same node and backend', () => {
      const [old, now] = [whole({ last: 1 }), whole({ last: 2 })]
      const data = bad === 'ipv4' ? { backendData: { ipv4: 1 } } : { backendV6Data: { ipv6: 1 } }
      const publicIp = { ...now.attrs.publicIp, [bad]: old.attrs.publicIp[bad] }
      const { found, lines } = viewAfter(old, half({ last: 2 }))
      expect(found).toEqual({ ...now, attrs: { ...now.attrs, publicIp, ...data } })
      expect(lines).toEqual([`Ignoring bad subnet node: ${key(1)}: it is junk`])
    })

    it.each<[string, Given | undefined]>([
      ['no previous lease', undefined],
      ['the previous lease of another node', { revision: 6n }],
      ['a previous lease of another backend', { backendType: 'wireguard' }],
    ])('lacks this family after %s', (_what, given) => {
      const entryNow = half({ last: 2 })
      expect(viewAfter(given && whole(given), entryNow).found).toEqual(entryNow.lease)
    })

    it('lacks this family if there is neither a previous lease nor a revision', () => {
      const { revision: _, ...read } = half().lease
      expect(viewAfter(undefined, { ...half(), lease: read }).found).toEqual(read)
    })
  })

  it('holds leases that vanished shortly before the majority for the same time as the majority', () => {
    const { view, thirds } = newView()
    view.list(
      [1, 2, 3, 4, 5].map((third) => entry(third)),
      0,
    )
    view.change([gone(1)], 10_000)
    expect(thirds()).toEqual([2, 3, 4, 5])
    view.change([gone(2), gone(3)], 30_000)
    expect([thirds(), view.waitMs(30_000)]).toEqual([[1, 2, 3, 4, 5], HOLD_MS])
    view.list([entry(4), entry(5)], 30_000 + HOLD_MS - 1)
    expect(thirds()).toEqual([1, 2, 3, 4, 5])
    view.list([entry(4), entry(5)], 30_000 + HOLD_MS)
    expect(thirds()).toEqual([4, 5])
  })

  it('identifies a node by its IPv4 or its IPv6 address, so switching a family on or off is not a loss', () => {
    const { view, lines } = newView()
    const ipv6 = (third: number): bigint => 0xfd00n + BigInt(third)
    const both = (third: number): Entry => {
      const { lease: v4 } = entry(third) as Entry & { lease: Lease }
      const attrs = { ...v4.attrs, publicIp: { ...v4.attrs.publicIp, ipv6: ipv6(third) } }
      return { key: `${third} both`, lease: { ...v4, key: `${third} both`, attrs } }
    }
    const only6 = (third: number): Entry => {
      const { lease: v4 } = entry(third) as Entry & { lease: Lease }
      return {
        key: `${third} 6`,
        lease: { ...v4, key: `${third} 6`, attrs: { ...v4.attrs, publicIp: { ipv6: ipv6(third) } } },
      }
    }
    const all = [1, 2, 3, 4, 5]
    view.list(
      all.map((third) => entry(third)),
      0,
    )
    for (const third of all) {
      view.change([{ kind: 'put', entry: both(third) }], third)
      view.change([gone(third)], third)
    }
    expect([view.held, [...view.leases.keys()]]).toEqual([0, all.map((third) => `${third} both`)])
    view.list(all.map(only6), 100)
    expect([view.held, [...view.leases.keys()]]).toEqual([0, all.map((third) => `${third} 6`)])
    expect(lines).toEqual([])
    view.list([], 200)
    expect(view.held).toBe(5)
    expect(lines).toHaveLength(1)
  })

  it('does not treat two hosts without an address as one host', () => {
    const { view, thirds } = newView()
    const nowhere = (third: number): Entry => {
      const { attrs, ...rest } = lease(key(third))
      return { key: key(third), lease: { ...rest, attrs: { ...attrs, publicIp: {} } } }
    }
    view.list([1, 2, 3, 4].map(nowhere), 0)
    view.change([gone(1), gone(2), gone(3), { kind: 'put', entry: nowhere(5) }], 1)
    expect(thirds()).toEqual([1, 2, 3, 4, 5])
    view.list([nowhere(4), nowhere(5)], 2)
    expect([thirds(), view.held]).toEqual([[1, 2, 3, 4, 5], 3])
  })

  it('reports a lease that was rewritten unchanged as renewed, once', () => {
    const { view } = newView()
    const at = (revision: bigint): Entry => ({ key: key(1), lease: { ...lease(key(1)), revision } })
    expect(view.list([at(1n)], 0).renewed).toEqual([])
    expect(view.list([at(1n)], 1)).toEqual({ added: [], changed: [], removed: [], renewed: [] })
    const put2: Change = { kind: 'put', entry: at(2n) }
    expect(view.change([put2], 2)).toEqual({ added: [], changed: [], removed: [], renewed: [key(1)] })
    expect(view.change([put2], 3).renewed).toEqual([])
    expect(view.leases.get(key(1))?.revision).toBe(2n)
    expect(keysOf(view.change([put(1, '9.9.9.9')], 4))).toEqual([[], [key(1)], []])
  })

  it('knows if its own lease cannot be decoded, until it can', () => {
    const { view } = newView()
    view.list([junk(1)], 0)
    expect(view.isOwnUnreadable).toBe(false)
    view.list([junk(1), { key: OWN, problem: 'it is junk' }], 1)
    expect(view.isOwnUnreadable).toBe(true)
    view.list([entry(9)], 2)
    expect(view.isOwnUnreadable).toBe(false)
  })

  it('reports leases whose value differs, but not a renewal', () => {
    const { view } = newView()
    view.list([entry(1), entry(2)], 0)
    expect(keysOf(view.change([put(1)], 1))).toEqual([[], [], []])
    expect(keysOf(view.list([entry(1, '9.9.9.9'), entry(3)], 2))).toEqual([[key(3)], [key(1)], [key(2)]])
  })

  it('applies only the last change of a key in a batch', () => {
    const { view } = newView()
    view.list([entry(1)], 0)
    expect(keysOf(view.change([gone(1), put(1), put(2), gone(2), put(1, '9.9.9.9')], 1))).toEqual([[], [key(1)], []])
  })

  it('keeps the old lease of a key that cannot be decoded, and logs the key once', () => {
    const { view, lines, thirds } = newView()
    view.list([entry(1), entry(2)], 0)
    view.change([{ kind: 'put', entry: junk(1) }], 1)
    view.list([junk(1), entry(2), junk(3)], 2)
    expect(thirds()).toEqual([1, 2])
    expect(lines).toEqual([key(1), key(3)].map((each) => `Ignoring bad subnet node: ${each}: it is junk`))
    view.change([put(1), { kind: 'put', entry: junk(1) }], 3)
    expect(lines).toHaveLength(3)
    // The key was deleted a moment ago and returns with a value that cannot be decoded.
    view.change([gone(2)], 4)
    expect(thirds()).toEqual([1])
    view.list([junk(1), junk(2)], 5)
    expect(thirds()).toEqual([1, 2])
  })

  it('equals the last listing after any changes, unless most leases are gone', () => {
    const third = fc.integer({ min: 1, max: 5 })
    const change = fc.oneof(
      fc.tuple(third, fc.constantFrom('1.1.1.1', '2.2.2.2')).map(([each, ip]) => put(each, ip)),
      third.map(gone),
    )
    const entries = fc.uniqueArray(third).map((all) => all.map((each) => entry(each, `3.3.3.${each}`)))
    fc.assert(
      fc.property(fc.array(fc.array(change)), entries, (before, last) => {
        const { view } = newView()
        // The batches are far apart, so no loss is counted together with another.
        before.forEach((changes, index) => view.change(changes, index * 2 * HOLD_MS))
        const end = 2 * before.length * HOLD_MS
        view.list(last, end)
        if (view.held > 0) view.list(last, end + 2 * HOLD_MS)
        expect(new Map(view.leases)).toEqual(new Map(last.map((each) => [each.key, each.lease])))
      }),
    )
  })
})

describe('fail-static', () => {
  const five = [entry(1), entry(2), entry(3), entry(4), entry(5)]

  it('keeps leases if more than two and more than half vanish together, until a listing after the hold time still lacks them', () => {
    const { view, lines, thirds } = newView()
    view.list(five, 0)
    expect(keysOf(view.list([entry(1), entry(2)], 1_000))).toEqual([[], [], []])
    expect([view.held, view.waitMs(1_000), lines.length]).toEqual([3, HOLD_MS, 1])
    expect(view.heldKeys).toEqual([key(3), key(4), key(5)])
    view.list([entry(1), entry(2)], 30_999)
    expect(thirds()).toEqual([1, 2, 3, 4, 5])
    expect(keysOf(view.list([entry(1), entry(2)], 31_000))[2]).toEqual([key(3), key(4), key(5)])
    expect([view.held, view.heldKeys, view.waitMs(31_000)]).toEqual([0, [], undefined])
    view.list([entry(1), entry(2)], 32_000)
    expect(lines).toEqual([
      expect.stringMatching(/^3 of 5 leases vanished from the store at once\..* removed in 30 s /),
      'The store still lacks 3 leases; they are removed now',
    ])
  })

  it.each([
    ['if two vanish', [gone(1), gone(2)], 0],
    ['if three vanish', [gone(1), gone(2), gone(3)], 3],
    ['if three vanish and one appears', [gone(1), gone(2), gone(3), put(6)], 0],
    ['if three vanish and one changes', [gone(1), gone(2), gone(3), put(4, '9.9.9.9')], 3],
    ['if three vanish and the own lease appears', [gone(1), gone(2), gone(3), put(9)], 3],
    ['if three vanish, one of them twice', [gone(1), gone(2), gone(3), gone(3), gone(7)], 3],
  ])('holds the right number of five peers %s', (_title, changes, held) => {
    const { view } = newView()
    view.list(five, 0)
    view.change(changes, 1_000)
    expect(view.held).toBe(held)
  })

  it.each(['a listing', 'changes'])('does not count its own lease as a peer that stays or vanishes, in %s', (how) => {
    const { view } = newView()
    view.list([...five, entry(6), entry(9)], 0)
    if (how === 'changes') view.change([gone(1), gone(2), gone(3), gone(9)], 1_000)
    else view.list([entry(4), entry(5), entry(6)], 1_000)
    expect(view.held).toBe(0) // three of six are not more than half, with or without the own lease
    const few = newView().view
    few.list([entry(1), entry(2), entry(3), entry(9)], 0)
    if (how === 'changes') few.change([gone(1), gone(2)], 1_000)
    else few.list([entry(3), entry(9)], 1_000)
    expect(few.held).toBe(0) // the own lease is present, and two losses are too few
    const other = newView().view
    other.list([...five, entry(9)], 0)
    if (how === 'changes') other.change([gone(1), gone(2), gone(3)], 1_000)
    else other.list([entry(4), entry(5), entry(9)], 1_000)
    expect(other.held).toBe(3)
  })

  it('counts losses that are less than the hold time apart, to the millisecond', () => {
    for (const [later, held] of [
      [HOLD_MS - 1, 3],
      [HOLD_MS, 0],
    ] as const) {
      const { view } = newView()
      view.list(five, 0)
      view.change([gone(1)], 0)
      view.change([gone(2), gone(3)], later)
      expect(view.held, String(later)).toBe(held)
      const few = newView().view
      few.list([entry(1), entry(9)], 0)
      few.change([gone(9)], 0)
      few.change([gone(1)], later)
      expect(few.held, String(later)).toBe(held === 0 ? 0 : 1)
    }
  })

  it('does not match a vanished host to another host that once had its address', () => {
    const { view, thirds } = newView()
    view.list([entry(1, '192.0.2.1'), entry(2, '192.0.2.2'), entry(3), entry(4), entry(5)], 0)
    view.change([put(1, '192.0.2.7'), put(2, '192.0.2.1')], 100_000)
    view.change([gone(2), gone(3), gone(4)], 200_000)
    expect([thirds(), view.held]).toEqual([[1, 2, 3, 4, 5], 3])
  })

  it.each([
    ['two of three', [1, 2, 3], [3]],
    ['three of six', [1, 2, 3, 4, 5, 6], [4, 5, 6]],
  ])('removes leases immediately if %s vanish', (_title, all, left) => {
    const { view, lines, thirds } = newView()
    view.list(
      all.map((each) => entry(each)),
      0,
    )
    view.list(
      left.map((each) => entry(each)),
      1,
    )
    expect([thirds(), view.held, lines]).toEqual([left, 0, []])
  })

  it('counts single losses within the hold time, and also restores those that vanished before the majority', () => {
    const { view, thirds } = newView()
    view.list(five, 0)
    view.change([gone(1)], 1_000)
    view.change([gone(2)], 2_000)
    expect(thirds()).toEqual([3, 4, 5])
    expect(keysOf(view.change([gone(3)], 3_000))).toEqual([[key(1), key(2)], [], []])
    expect([thirds(), view.held]).toEqual([[1, 2, 3, 4, 5], 3])
    // A lease that vanishes during the hold is kept too.
    view.change([gone(4)], 4_000)
    expect([thirds(), view.held]).toEqual([[1, 2, 3, 4, 5], 4])
  })

  it('forgets losses older than the hold time', () => {
    const { view, thirds } = newView()
    view.list(five, 0)
    for (const third of [1, 2, 3, 4]) view.change([gone(third)], third * HOLD_MS)
    expect([thirds(), view.held]).toEqual([[5], 0])
  })

  it('keeps the leases that are still missing for the full hold time, although most are back', () => {
    const { view, lines, thirds } = newView()
    view.list(five, 0)
    view.change([gone(1), gone(2), gone(3), gone(4)], 1_000)
    view.change([put(1), put(2, '9.9.9.9')], 2_000)
    expect([thirds(), view.held]).toEqual([[1, 2, 3, 4, 5], 2])
    const back = [entry(1), entry(2, '9.9.9.9'), entry(5)]
    for (const at of [3_000, 30_999]) {
      view.list(back, at)
      expect([thirds(), view.held, view.waitMs(at)]).toEqual([[1, 2, 3, 4, 5], 2, 31_000 - at])
    }
    view.list(back, 31_000)
    expect([thirds(), view.held, view.waitMs(31_000)]).toEqual([[1, 2, 5], 0, undefined])
    expect(lines.at(-1)).toBe('The store still lacks 2 leases; they are removed now')
  })

  it.each(['a listing', 'changes'])(
    'ends the hold as soon as all leases are back in %s, and counts the holds',
    (how) => {
      const { view, lines, thirds } = newView()
      view.list(five, 0)
      for (const times of [1, 2]) {
        view.change([1, 2, 3].map(gone), times * 1_000)
        expect([view.held, view.holds]).toEqual([3, times])
        if (how === 'changes')
          view.change(
            [1, 2, 3].map((third) => put(third)),
            times * 1_000 + 1,
          )
        else view.list(five, times * 1_000 + 1)
        expect([view.held, lines.at(-1)]).toEqual([0, 'All leases that had vanished are back'])
      }
      // A single lease that vanishes after the hold is removed.
      view.change([gone(1)], 3_000)
      expect([thirds(), view.holds]).toEqual([[2, 3, 4, 5], 2])
    },
  )

  it.each([
    ['removes one lease that vanished during the hold', [1, 2, 3], [4], [5], undefined],
    [
      'holds the majority of the rest, which vanished during the hold, for a time of its own',
      [1, 2, 3, 4, 5],
      [6, 7, 8],
      [],
      20_000,
    ],
  ])('%s when the hold ends', (_title, first, later, left, waitMs) => {
    const { view, thirds, lines } = newView()
    view.list(
      [...first, ...later, ...left].map((third) => entry(third)),
      0,
    )
    view.change(first.map(gone), 1_000)
    view.change(later.map(gone), 21_000)
    const rest = left.map((third) => entry(third))
    view.list(rest, 30_999)
    expect(thirds()).toEqual([...first, ...later, ...left])
    view.list(rest, 31_000)
    expect([thirds(), view.waitMs(31_000)]).toEqual([waitMs === undefined ? left : later, waitMs])
    const removed = first.length + (waitMs === undefined ? later.length : 0)
    expect(lines.at(-1)).toBe(`The store still lacks ${removed} leases; they are removed now`)
    view.list(rest, 51_000)
    expect([thirds(), view.held, view.holds]).toEqual([left, 0, 1])
  })

  it.each([1, 2, 3])('keeps %d peers that vanish together with its own key, and removes them without that', (count) => {
    const peers = [1, 2, 3].slice(0, count).map((third) => entry(third, `192.0.2.${third}`))
    const keys = peers.map(({ key: each }) => each)
    for (const how of ['a listing', 'changes', 'our own key last']) {
      const { view, thirds, lines } = newView()
      view.list([...peers, entry(9, '192.0.2.9')], 0)
      if (how === 'a listing') view.list([], 1_000)
      else if (how === 'changes') view.change([gone(9), ...peers.map((_, at) => gone(at + 1))], 1_000)
      else {
        view.change(
          peers.map((_, at) => gone(at + 1)),
          1_000,
        )
        view.change([gone(9)], 1_000)
      }
      expect([view.held, [...view.leases.keys()]], how).toEqual([count, expect.arrayContaining(keys)])
      // The node's own lease is written again immediately, which proves nothing about the peers.
      view.change([put(9, '192.0.2.9')], 2_000)
      view.list([entry(9, '192.0.2.9')], 30_999)
      expect([view.held, thirds().length], how).toEqual([count, count + 1])
      view.list([entry(9, '192.0.2.9')], 31_000)
      expect([view.held, thirds()], how).toEqual([0, [9]])
      expect(lines.at(-1), how).toBe(`The store still lacks ${count} leases; they are removed now`)
    }
    if (count > 2) return
    const { view, thirds } = newView()
    view.list([...peers, entry(9, '192.0.2.9')], 0)
    view.list([entry(9, '192.0.2.9')], 1_000)
    expect([view.held, thirds()]).toEqual([0, [9]])
  })

  it('removes an old lease whose host is back under another key', () => {
    const at = (third: number): Entry => entry(third, `192.0.2.${third}`)
    for (const how of ['a listing', 'changes']) {
      const { view, thirds } = newView()
      view.list([1, 2, 3, 4, 5].map(at), 0)
      view.change([1, 2, 3, 4].map(gone), 1_000)
      expect(view.held).toBe(4)
      const moved = entry(6, '192.0.2.1')
      const { removed } =
        how === 'changes' ? view.change([{ kind: 'put', entry: moved }], 2_000) : view.list([at(5), moved], 2_000)
      expect([removed.map((each) => each.key), thirds(), view.held], how).toEqual([[key(1)], [2, 3, 4, 5, 6], 3])
    }
  })

  it.each(['in one batch', 'in two'])('does not hold the old lease of a host that also has a new one, %s', (how) => {
    const { view, thirds } = newView()
    // Two hosts have two leases each.
    const host = (third: number): string => `192.0.2.${third % 2}`
    view.list(
      [1, 2, 3, 4].map((third) => entry(third, host(third))),
      0,
    )
    const news = [11, 12].map((third) => put(third, host(third)))
    const losses = [1, 2, 3, 4].map(gone)
    if (how === 'in two') view.change(news, 1_000)
    view.change(how === 'in two' ? losses : [...losses, ...news], 2_000)
    expect([thirds(), view.held]).toEqual([[11, 12], 0])
  })

  it('does not count its own lease, and accepts the loss of it immediately', () => {
    const { view, thirds } = newView()
    view.list([...five, entry(9)], 0)
    const { removed } = view.change([gone(9), ...[1, 2, 3].map(gone)], 1_000)
    expect([removed.map((each) => each.key), thirds(), view.held]).toEqual([[OWN], [1, 2, 3, 4, 5], 3])
    view.change([put(9)], 2_000)
    expect(keysOf(view.change([gone(9)], 3_000))[2]).toEqual([OWN])
  })
})
