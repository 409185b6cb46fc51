// publishers.test.ts - one contract for all publishers: how a route is put, kept and withdrawn by an API that fails as its documents say.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, it } from 'vitest'
import { parseIpv4Net } from '../../../../../src/net/ipv4.ts'
import type { Place } from '../../../../../src/path/backends/fabric/publisher.ts'
import { RouteKeeper } from '../../../../../src/path/backends/fabric/route-keeper.ts'
import { FakeAli } from '../../../../support/fake-ali.ts'
import { FakeAws } from '../../../../support/fake-aws.ts'
import { createLogged, type FakeFabric, type Logged } from '../../../../support/fake-fabric.ts'
import { FakeGce } from '../../../../support/fake-gce.ts'
import { FakeSwitch } from '../../../../support/fake-switch.ts'
import { FakeTencent } from '../../../../support/fake-tencent.ts'

const folder = mkdtempSync(join(tmpdir(), 'weft-publishers-'))
const credentialFile = join(folder, 'secret')
afterAll(() => rmSync(folder, { recursive: true }))

const FAKES: readonly (readonly [name: string, make: () => FakeFabric])[] = [
  ['aws-vpc', () => new FakeAws()],
  ['gce', () => new FakeGce()],
  ['ali-vpc', () => new FakeAli()],
  ['tencent-vpc', () => new FakeTencent()],
  ['http', () => new FakeSwitch(credentialFile)],
]

const SUBNET = '10.5.1.0/24'
const never = new AbortController().signal

/** A clock with virtual time, in which a wait takes no real time. */
interface Clock {
  now: number
}

describe.each(FAKES)('the publisher of %s', (_name, make) => {
  let fabric: FakeFabric
  const logs: Logged[] = []
  afterEach(async () => {
    await fabric.close()
    const all = logs.flatMap(({ lines }) => lines).join('\n')
    const shown = fabric.secrets.filter((secret) => all.includes(secret))
    if (shown.length > 0) throw new Error(`the log has ${shown.join(', ')}`)
    logs.length = 0
  })

  const network = parseIpv4Net('10.5.0.0/16')!
  function keeperOf(node: number, subnet = SUBNET, more: Partial<Place> = {}) {
    const logged = createLogged()
    logs.push(logged)
    const clock: Clock = { now: 0 }
    const place = fabric.place(node, subnet, logged.log, more)
    const keeper = new RouteKeeper({
      subnet: place.subnet,
      network,
      make: () => fabric.publisher(place),
      log: logged.log,
      now: () => clock.now,
      wait: async (_signal, ms) => void (clock.now += ms),
    })
    /** Moves the clock until a check is due, and checks. */
    const checkLater = async (): Promise<readonly string[]> => {
      clock.now += 200_000
      return keeper.check()
    }
    return { keeper, checkLater, clock, lines: logged.lines }
  }
  const routesTo = (destination: string) => fabric.routes.filter((route) => route.destination === destination)

  it('adds the route once, and then only checks it', async () => {
    fabric = await make().start()
    const { keeper, checkLater, lines } = keeperOf(1)
    expect(keeper.counters()).toMatchObject({ route_missing: 1n })
    expect(await keeper.check()).toEqual([])
    expect(fabric.changes).toEqual([`put ${SUBNET}`])
    expect(routesTo(SUBNET)).toMatchObject([{ node: 1 }])
    const { length } = fabric.requests
    expect(await keeper.check()).toEqual([]) // not due
    expect(fabric.requests).toHaveLength(length)
    expect(await checkLater()).toEqual([])
    expect(fabric.requests.length).toBeGreaterThan(length)
    expect(fabric.changes).toHaveLength(1)
    expect(keeper.counters()).toEqual({ route_missing: 0n, route_failures: 0n, table_routes: 1n, table_limit: 0n })
    expect(lines.filter((line) => !line.startsWith('info'))).toEqual([])
  })

  it('takes over the route of an earlier run', async () => {
    fabric = await make().start()
    fabric.add(SUBNET, 1)
    await keeperOf(1).keeper.check()
    expect(fabric.changes).toEqual([])
  })

  it('adds a route again that another program removed', async () => {
    fabric = await make().start()
    const { keeper, checkLater } = keeperOf(1)
    await keeper.check()
    fabric.routes = []
    expect(await checkLater()).toEqual([expect.stringMatching(/^the route to 10\.5\.1\.0\/24 was missing in /)])
    expect(routesTo(SUBNET)).toHaveLength(1)
  })

  it('leaves a route that leads elsewhere, and names it', async () => {
    fabric = await make().start()
    fabric.add(SUBNET, 2)
    const { keeper, checkLater, lines } = keeperOf(1)
    await keeper.check()
    expect(fabric.changes).toEqual([])
    expect(lines.at(-1)).toMatch(
      /^error The route to 10\.5\.1\.0\/24 cannot be published: .* has a route to 10\.5\.1\.0\/24 that leads to .*2, not to this node; it stays; remove that route/,
    )
    fabric.routes = []
    await checkLater()
    expect(routesTo(SUBNET)).toMatchObject([{ node: 1 }])
  })

  it('lets one node win if two nodes add a route to one subnet', async () => {
    fabric = await make().start()
    const [one, two] = [keeperOf(1), keeperOf(2)]
    await Promise.all([one.keeper.check(), two.keeper.check()])
    const [winner] = routesTo(SUBNET)
    expect(routesTo(SUBNET)).toHaveLength(1)
    const [won, lost] = winner?.node === 1 ? [one, two] : [two, one]
    expect([won.keeper.counters()['route_missing'], lost.keeper.counters()['route_missing']]).toEqual([0n, 1n])
    expect(lost.lines.at(-1)).toContain('not to this node; it stays')
    await Promise.all([won.checkLater(), lost.checkLater()])
    expect(fabric.changes).toEqual([`put ${SUBNET}`])
  })

  it('checks the table until it shows the change', async () => {
    fabric = await make().start()
    fabric.lag = 4
    const { keeper, clock, lines } = keeperOf(1)
    await keeper.check()
    expect(fabric.changes).toEqual([`put ${SUBNET}`])
    expect(clock.now).toBeGreaterThan(500)
    expect(lines.filter((line) => line.startsWith('error'))).toEqual([])
  })

  it('stops checking the table if it never shows the change', async () => {
    fabric = await make().start()
    fabric.lag = 1_000
    const { keeper, lines } = keeperOf(1)
    await keeper.check()
    expect(lines.at(-1)).toContain('accepted a change and does not show it after 30 s')
    expect(fabric.requests.length).toBeLessThan(60)
  })

  it('waits longer after each refusal for too many requests', async () => {
    fabric = await make().start()
    fabric.throttled = 1_000
    const { keeper, clock, lines } = keeperOf(1)
    const counts: number[] = []
    let before = 0
    for (const seconds of [10, 100, 1_000]) {
      for (; clock.now < seconds * 1000; clock.now += 1_000) await keeper.check()
      const { length } = fabric.requests.filter(({ url }) => !url.pathname.startsWith('/node-'))
      counts.push(length - before)
      before = length
    }
    // Some 3 attempts in 10 s, 4 in the 90 s after them, and one in 90 s later; an attempt sends one or two requests here.
    expect(counts[0]).toBeLessThanOrEqual(10)
    expect(counts[2]).toBeLessThanOrEqual(40)
    expect(lines.filter((line) => line.startsWith('error')).length).toBeGreaterThan(0)
    fabric.throttled = 0
    clock.now += 200_000
    await keeper.check()
    expect(keeper.counters()).toMatchObject({ route_missing: 0n })
  })

  it('keeps the route through an outage', async () => {
    fabric = await make().start()
    const { keeper, checkLater, lines } = keeperOf(1)
    await keeper.check()
    fabric.broken = 3
    await checkLater()
    expect(lines.at(-1)).toMatch(/^error The route to 10\.5\.1\.0\/24 cannot be published: .*; it is tried again$/)
    fabric.broken = 0
    await checkLater()
    expect(keeper.counters()).toMatchObject({ route_missing: 0n, route_failures: 1n })
    expect(fabric.changes).toEqual([`put ${SUBNET}`])
  })

  it('names a missing permission, and continues when the permission was granted', async () => {
    fabric = await make().start()
    fabric.isReadOnly = true
    const { keeper, checkLater, lines } = keeperOf(1)
    await keeper.check()
    expect(fabric.changes).toEqual([])
    if (fabric.type !== 'http') expect(lines.at(-1)).toContain('the permissions in docs/cloud.md')
    fabric.isReadOnly = false
    await checkLater()
    expect(fabric.changes).toEqual([`put ${SUBNET}`])
  })

  it('finds its route on a later page', async () => {
    fabric = await make().start()
    fabric.pageSize = 7
    for (let third = 0; third < 40; third++) fabric.add(`10.5.${100 + third}.0/24`, 2)
    fabric.add(SUBNET, 1)
    const { keeper } = keeperOf(1)
    await keeper.check()
    expect(fabric.changes).toEqual([])
    expect(keeper.counters()).toMatchObject({ route_missing: 0n, table_routes: 41n })
  })

  it('reads new keys after the old ones expired', async () => {
    fabric = await make().start()
    const { keeper, checkLater } = keeperOf(1)
    await keeper.check()
    fabric.generation++
    // A switch has one key that does not expire.
    const failures = fabric.hasKeys ? 1n : 0n
    await checkLater()
    expect(keeper.counters()).toMatchObject({ route_missing: 0n, route_failures: failures })
    await checkLater()
    expect(keeper.counters()).toMatchObject({ route_missing: 0n, route_failures: failures })
  })

  it('reads new keys after the old ones expired between two requests of one check', async () => {
    fabric = await make().start()
    // The first requests of a check list the routes, and the next request adds the route.
    fabric.expiresAfter = fabric.type === 'aws-vpc' || fabric.type === 'gce' ? 4 : 3
    const { keeper, checkLater, lines } = keeperOf(1)
    await keeper.check()
    if (fabric.hasKeys)
      expect(lines.at(-1)).toMatch(/^error The route to 10\.5\.1\.0\/24 cannot be published: .*; it is tried/)
    await checkLater()
    expect(keeper.counters()).toMatchObject({ route_missing: 0n, route_failures: fabric.hasKeys ? 1n : 0n })
    expect(fabric.changes).toEqual([`put ${SUBNET}`])
  })

  it.each([-400_000, 400_000])('names the clock if the clock of the API is ahead by %i ms', async (aheadMs) => {
    fabric = await make().start()
    fabric.aheadMs = aheadMs
    const { keeper, lines } = keeperOf(1)
    await keeper.check()
    const { hasClock } = fabric
    expect(fabric.changes).toHaveLength(hasClock ? 0 : 1)
    if (hasClock) expect(lines.at(-1)).toMatch(/^error .*the clock of this host/)
  })

  it('reports a region that the API does not serve', async () => {
    fabric = await make().start()
    fabric.region = 'another-region-1'
    const { keeper, lines } = keeperOf(1)
    await keeper.check()
    expect(lines.filter((line) => line.startsWith('error'))).toHaveLength(fabric.hasRegion ? 1 : 0)
    expect(fabric.changes).toHaveLength(fabric.hasRegion ? 0 : 1)
  })

  it('warns before the table is full, and names the limit when it is', async () => {
    fabric = await make().start()
    const known = { 'aws-vpc': 50, gce: 250, 'ali-vpc': 200, 'tencent-vpc': 50, http: 250 }[fabric.type] ?? 0
    // Google counts the route of another network in the project too.
    const count = Math.ceil(known * 0.9)
    for (let number = 0; number < count; number++) fabric.add(`10.6.${number}.0/24`, 2)
    const { keeper, checkLater, lines } = keeperOf(1)
    await keeper.check()
    const warnings = () => lines.filter((line) => line.startsWith('warn') && line.includes('its limit is'))
    expect(warnings()).toHaveLength(1)
    expect(keeper.counters()['table_limit']).toBeGreaterThan(0n)
    await checkLater()
    expect(warnings().length).toBeLessThanOrEqual(2) // the own route is one more
    fabric.limit = fabric.routes.length - 1
    fabric.routes = fabric.routes.filter(({ node }) => node !== 1)
    await checkLater()
    expect(lines.at(-1)).toContain('cannot be published')
    if (fabric.type !== 'http') expect(lines.at(-1)).toContain('take a backend that has a tunnel')
  })

  it('withdraws only its own route', async () => {
    fabric = await make().start()
    const { keeper } = keeperOf(1)
    fabric.add('10.5.2.0/24', 2)
    fabric.add('0.0.0.0/0', 1)
    await keeper.check()
    await keeper.close()
    fabric.lag = 2
    expect(await keeper.withdraw(never)).toEqual([expect.stringMatching(/^route 10\.5\.1\.0\/24 to .*1 in /)])
    expect(fabric.routes.map(({ destination }) => destination)).toEqual(['10.5.2.0/24', '0.0.0.0/0'])
    expect(await keeper.withdraw(never)).toEqual([])
  })

  it("withdraws nothing of another node's", async () => {
    fabric = await make().start()
    fabric.add(SUBNET, 2)
    expect(await keeperOf(1).keeper.withdraw(never)).toEqual([])
    expect(fabric.changes).toEqual([])
  })

  it('removes the route of its earlier lease, and no other route to this node', async () => {
    fabric = await make().start()
    fabric.add('10.5.7.0/24', 1)
    fabric.add('10.5.8.0/25', 1)
    fabric.add('10.9.7.0/24', 1)
    await keeperOf(1).keeper.check()
    expect(fabric.changes.toSorted()).toEqual([`put ${SUBNET}`, 'remove 10.5.7.0/24'])
  })

  it('replaces a route that leads nowhere any more', async () => {
    fabric = await make().start()
    // An API without such routes has none here.
    fabric.routes = fabric.hasDead ? [{ id: '999', destination: SUBNET, node: fabric.deadNode, state: 'dead' }] : []
    const { keeper } = keeperOf(1)
    await keeper.check()
    expect(routesTo(SUBNET)).toMatchObject([{ node: 1, state: 'active' }])
    expect(fabric.changes.at(-1)).toBe(`put ${SUBNET}`)
  })
})
