// events.test.ts - the reports of the kernel that count as changes, and the pauses if the kernel cannot be watched, in
// virtual time.

import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { changesOf, HostWatch, LifetimeFilter, watchHost } from '../../../src/host/events.ts'
import type { Change, KernelEvent, OnKernelEvent, Route } from '../../../src/host/kernel.ts'
import { parseAddress, parseNet, type Family } from '../../../src/net/address.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] }))
afterEach(() => void vi.useRealTimers())

function createLog() {
  const warnings: string[] = []
  return {
    warnings,
    log: { info: () => {}, warn: (text: string) => void warnings.push(text), error: () => {}, v: () => false },
  }
}
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

const addressEvent = (text: string, gone = false, deviceIndex = 3): KernelEvent => {
  const [address = '', flags = ''] = text.split(' ')
  return { of: 'address', deviceIndex, address: parseAddress(address)!, prefixLength: 64, text: flags, gone }
}
const routeEvent = (text: string | undefined, gone = false, route: Partial<Route> = {}): KernelEvent => ({
  of: 'route',
  family: 'ipv6',
  text,
  gone,
  route: {
    device: 'eth0',
    deviceIndex: 3,
    destination: 'default',
    type: 'unicast',
    protocol: 'ra',
    gateway: 'fe80::1',
    metric: 1024,
    source: undefined,
    table: 254,
    isOnlink: false,
    ...route,
  },
})

it.each<[what: string, events: readonly (readonly [event: KernelEvent, isNew: boolean])[]]>([
  [
    'an address',
    [
      [addressEvent('2001:db8::5 tentative'), true],
      [addressEvent('2001:db8::5 dynamic'), true],
      [addressEvent('2001:db8::5 dynamic'), false],
      [addressEvent('2001:db8::6 dynamic'), true],
      [addressEvent('2001:db8::5 dynamic', false, 4), true],
      [addressEvent('2001:db8::5 deprecated'), true],
      [addressEvent('2001:db8::5 dynamic'), true],
      [addressEvent('2001:db8::5 dynamic', true), true],
      [addressEvent('2001:db8::5 dynamic'), true],
    ],
  ],
  [
    'a route',
    [
      [routeEvent('via 1'), true],
      [routeEvent('via 1'), false],
      [routeEvent('via 2'), true],
      [routeEvent('via 1'), true],
      [routeEvent('via 1', false, { metric: 512 }), true],
      [routeEvent('via 1', false, { table: 100 }), true],
      [routeEvent('via 1', false, { destination: '2001:db8::/64' }), true],
      [routeEvent('via 1', true), true],
      [routeEvent('via 1'), true],
      [routeEvent('via 1'), false],
    ],
  ],
  [
    'what has no lifetime',
    [
      [routeEvent(undefined), true],
      [routeEvent(undefined), true],
      [{ of: 'rule', family: 'ipv6', gone: false }, true],
      [{ of: 'rule', family: 'ipv6', gone: false }, true],
    ],
  ],
])('counts %s as a change, but not a renewed lifetime', (_what, events) => {
  const filter = new LifetimeFilter()
  expect(events.map(([event]) => filter.isNews(event))).toEqual(events.map(([, isNew]) => isNew))
})

it('stores a limited number of addresses, and reports a forgotten one as a change', () => {
  const filter = new LifetimeFilter()
  const isNews = (number: number): boolean => filter.isNews(addressEvent(`2001:db8::${number.toString(16)} dynamic`))
  for (let number = 1; number <= 10_000; number++) expect(isNews(number)).toBe(true)
  expect([1, 0, 1].map(isNews)).toEqual([false, true, true])
})

it.each<[Family[], boolean, boolean]>([
  [['ipv4'], true, false],
  [['ipv6'], false, true],
  [['ipv4', 'ipv6'], true, true],
])('with %s reports addresses, routes and rules of these families, and all links', (families, of4, of6) => {
  const { topics, matters } = changesOf(() => families)
  expect(topics).toEqual(['links', 'addresses', 'routes', 'rules'])
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0' })
  expect(matters!({ of: 'link', link: kernel.peek('eth0')!, gone: false })).toBe(true)
  expect([addressEvent('192.0.2.1'), addressEvent('fd00::1')].map(matters!)).toEqual([of4, of6])
  const rule = (family: Family): KernelEvent => ({ of: 'rule', family, gone: false })
  expect([rule('ipv4'), rule('ipv6')].map(matters!)).toEqual([of4, of6])
  expect(matters!(routeEvent(undefined))).toBe(of6)
})

it('calls back for each change and for lost reports, until it ends', async () => {
  const kernel = new ModelKernel()
  const { log, warnings } = createLog()
  kernel.addLink({ name: 'eth0' }, [{ address: parseAddress('192.0.2.1')!, prefixLength: 24 }])
  let changes = 0
  const watch = new HostWatch(kernel, () => changes++, log, new AbortController().signal)
  await settled()
  const after = async (act: () => void): Promise<number> => {
    changes = 0
    act()
    await settled()
    return changes
  }
  const device = { name: 'eth0' }
  const route = (net: string): void =>
    kernel.act({
      kind: 'add route',
      destination: parseNet(net)!,
      device,
      ...(net.includes(':') ? {} : { scope: 'link' }),
    })
  expect(await after(() => route('10.5.0.0/16'))).toBe(1)
  expect(await after(() => kernel.loseReports())).toBe(1)
  expect(await after(() => route('fd00:5::/48'))).toBe(0)
  // The changes of IPv6 up to now were not reported, so `follow` counts as a change.
  expect(await after(() => watch.follow(['ipv4', 'ipv6']))).toBe(1)
  expect(await after(() => watch.follow(['ipv4', 'ipv6']))).toBe(0)
  expect(await after(() => route('fd00:6::/48'))).toBe(1)
  await watch.end()
  expect(await after(() => kernel.act({ kind: 'delete link', device }))).toBe(0)
  expect(warnings).toEqual([])
})

it('does not call back for changes that this process requested', async () => {
  const kernel = new ModelKernel()
  const { log } = createLog()
  const device = { name: 'eth0' }
  kernel.addLink(device, [{ address: parseAddress('192.0.2.1')!, prefixLength: 24 }])
  let changes = 0
  const watch = new HostWatch(kernel, () => changes++, log, new AbortController().signal)
  await settled()
  const after = async (act: () => unknown): Promise<number> => {
    changes = 0
    await act()
    await settled()
    return changes
  }
  const destination = parseNet('10.5.2.0/24')!
  const add: Change = { kind: 'add route', destination, device, scope: 'link' }
  const remove: Change = { kind: 'delete route', destination, device }
  expect(await after(() => kernel.change([add]))).toBe(0)
  expect(await after(() => kernel.act(remove))).toBe(1)
  expect(await after(() => kernel.act(add))).toBe(1)
  expect(await after(() => kernel.change([remove]))).toBe(0)
  // Linux reports the IPv6 routes that vanish when an interface goes down, and names no process for them.
  await after(() => watch.follow(['ipv4', 'ipv6']))
  await kernel.change([{ kind: 'add route', destination: parseNet('fd00:5::/48')!, device }])
  expect(await after(() => kernel.change([{ kind: 'set link', device, up: false }]))).toBeGreaterThan(0)
  await watch.end()
})

it('calls back for an address that another program restores after this process removed it', async () => {
  const { log } = createLog()
  const report: { to: OnKernelEvent } = { to: () => {} }
  const kernel = new ModelKernel()
  kernel.watch = async (_topics, onEvent) => void (report.to = onEvent)
  let changes = 0
  const watch = new HostWatch(kernel, () => changes++, log, new AbortController().signal)
  await settled()
  report.to(addressEvent('192.0.2.1 dynamic'), false)
  report.to(addressEvent('192.0.2.1 dynamic', true), true)
  report.to(addressEvent('192.0.2.1 dynamic'), false)
  expect(changes).toBe(2)
  await watch.end()
})

it('doubles the pause from 0.2 s to 5 s, logs it once, and reports a change each time', async () => {
  const stopping = new AbortController()
  const { log, warnings } = createLog()
  const kernel = new ModelKernel()
  const watch = kernel.watch.bind(kernel)
  kernel.watch = async () => {
    throw new Error('socket AF_NETLINK: too many open files')
  }
  let changes = 0
  const watching = watchHost(
    kernel,
    () => changes++,
    log,
    stopping.signal,
    changesOf(() => ['ipv4']),
  )
  await settled()
  let after = 1
  for (const pauseMs of [200, 400, 800, 1_600, 3_200, 5_000, 5_000]) {
    await vi.advanceTimersByTimeAsync(pauseMs - 1)
    expect(changes).toBe(after)
    await vi.advanceTimersByTimeAsync(1)
    expect(changes).toBe(++after)
  }
  kernel.watch = watch
  await vi.advanceTimersByTimeAsync(5_000)
  expect(changes).toBe(++after)
  await vi.advanceTimersByTimeAsync(60_000)
  kernel.addLink({ name: 'eth0' })
  await settled()
  expect(changes).toBe(++after)
  stopping.abort(new Error('the test is over'))
  await watching
  expect(warnings).toEqual([
    'Cannot watch the kernel for changes: socket AF_NETLINK: too many open files. weftd looks for changes every 5 s until it can',
  ])
})
