// events.test.ts - the restarts of `ip monitor` if it cannot run, in virtual time, and the filter of its lines.

import type * as childProcess from 'node:child_process'
import { EventEmitter } from 'node:events'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { changesOf, createChangeFilter, entriesOf, watchHost } from '../../../src/host/events.ts'

/** The error of starting a program, if the test sets one. */
const fork = vi.hoisted<{ fails?: (() => object) | undefined }>(() => ({}))
vi.mock('node:child_process', async (load) => {
  const real = await load<typeof childProcess>()
  const spawn = (file: string, args: readonly string[], options: object): object =>
    fork.fails?.() ?? real.spawn(file, args, { ...options, env: { PATH: '/nowhere' } })
  return { ...real, spawn }
})

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
})
afterEach(() => {
  fork.fails = undefined
  vi.useRealTimers()
})

it('doubles the pause from 0.2 s to 5 s, logs it once, and reports a change each time', async () => {
  const stopping = new AbortController()
  const warnings: string[] = []
  const log = { info: () => {}, warn: (text: string) => void warnings.push(text), error: () => {}, v: () => false }
  let changes = 0
  const watching = watchHost(() => changes++, log, stopping.signal)
  /** Waits until a child has ended, which takes real time, and the pause has begun. */
  const pausing = async (after: number): Promise<void> => {
    for (;;) {
      if (changes >= after && vi.getTimerCount() > 0) return
      await new Promise((resolve) => setImmediate(resolve))
    }
  }
  await pausing(2) // the first failure is that of setpriv
  let after = 2
  for (const pauseMs of [200, 400, 800, 1_600, 3_200, 5_000, 5_000]) {
    await vi.advanceTimersByTimeAsync(pauseMs - 1)
    expect([changes, vi.getTimerCount()]).toEqual([after, 1])
    await vi.advanceTimersByTimeAsync(1)
    await pausing(++after)
  }
  stopping.abort(new Error('the test is over'))
  await watching
  expect(warnings).toEqual([expect.stringMatching(/^`ip monitor` ended: .*ENOENT.*\. Starting it again/)])
})

it.each([
  ['10.5.2.0 dev flannel.1 lladdr 02:00:00:00:00:01 PERMANENT ', true],
  ['Deleted 10.0.0.1 dev flannel.1 lladdr 02:00:00:00:00:01 NOARP PERMANENT ', true],
  ['10.5.2.0 dev flannel.12 lladdr 02:00:00:00:00:01 PERMANENT ', false],
  ['192.168.77.2 dev eth0 lladdr 02:00:00:00:00:02 REACHABLE ', false],
])('filters the line %j of flannel.1: %s', (line, matters) => {
  expect(entriesOf(() => ['flannel.1']).matters?.(line)).toBe(matters)
})

const LASTS = (seconds: number): string => `\\       valid_lft ${seconds}sec preferred_lft ${seconds}sec`
it.each<[what: string, lines: readonly (readonly [line: string, isNew: boolean])[]]>([
  [
    'an address',
    [
      [`3: eth0    inet6 2001:db8::5/64 scope global tentative dynamic mngtmpaddr ${LASTS(100)}`, true],
      [`3: eth0    inet6 2001:db8::5/64 scope global dynamic mngtmpaddr ${LASTS(99)}`, true],
      [`3: eth0    inet6 2001:db8::5/64 scope global dynamic mngtmpaddr ${LASTS(200)}`, false],
      [`3: eth0    inet6 2001:db8::6/64 scope global dynamic mngtmpaddr ${LASTS(200)}`, true],
      [`4: eth1    inet6 2001:db8::5/64 scope global dynamic mngtmpaddr ${LASTS(200)}`, true],
      [`3: eth0    inet6 2001:db8::5/64 scope global deprecated dynamic mngtmpaddr ${LASTS(0)}`, true],
      [`3: eth0    inet6 2001:db8::5/64 scope global dynamic mngtmpaddr ${LASTS(200)}`, true],
      [`3: eth0    inet6 2001:db8::5/64 scope global \\       valid_lft forever preferred_lft forever`, true],
      [`Deleted 3: eth0    inet6 2001:db8::5/64 scope global \\       valid_lft forever preferred_lft forever`, true],
      [`3: eth0    inet6 2001:db8::5/64 scope global \\       valid_lft forever preferred_lft forever`, true],
    ],
  ],
  [
    'a route',
    [
      ['default via fe80::1 dev eth0 proto ra metric 1024 expires 300sec pref medium', true],
      ['default via fe80::1 dev eth0 proto ra metric 1024 expires 1800sec pref medium', false],
      ['default via fe80::2 dev eth0 proto ra metric 1024 expires 1800sec pref medium', true],
      ['default via fe80::1 dev eth0 proto ra metric 1024 expires 1800sec pref medium', true],
      ['default via fe80::1 dev eth0 proto ra metric 512 expires 1800sec pref medium', true],
      ['2001:db8::/64 dev eth0 proto ra metric 1024 expires 1800sec pref medium', true],
      ['Deleted default via fe80::1 dev eth0 proto ra metric 1024 expires 5sec pref medium', true],
      ['default via fe80::1 dev eth0 proto ra metric 1024 expires 5sec pref medium', true],
    ],
  ],
  [
    'what has no lifetime',
    [
      ['3: eth0: <BROADCAST,UP> mtu 1500 qdisc noqueue state UP group default', true],
      ['3: eth0: <BROADCAST,UP> mtu 1500 qdisc noqueue state UP group default', true],
      ['fd00:5::/48 dev flannel.1 proto static metric 1024 pref medium', true],
      ['Deleted fd00:5::/48 dev flannel.1 proto static metric 1024 pref medium', true],
    ],
  ],
])('reports %s as a change, but not a renewed lifetime', (_what, lines) => {
  const isNew = createChangeFilter()
  expect(lines.map(([line]) => [line, isNew(line)])).toEqual(lines)
})

it('stores a limited number of addresses, and reports a forgotten one as a change', () => {
  const isNew = createChangeFilter()
  const line = (number: number): string =>
    `3: eth0    inet6 2001:db8::${number.toString(16)}/64 scope global ${LASTS(9)}`
  for (let number = 1; number <= 10_000; number++) expect(isNew(line(number))).toBe(true)
  expect(isNew(line(1))).toBe(false)
  expect(isNew(line(0))).toBe(true)
  expect(isNew(line(1))).toBe(true)
})

it.each([
  [['ipv4'], 'ip -4 monitor link address route rule'],
  [['ipv4', 'ipv6'], 'ip -o monitor link address route rule'],
  [['ipv6'], 'ip -o -6 monitor link address route rule'],
] as const)('watches %s by %s', (families, command) => {
  expect(changesOf(families).monitor.join(' ')).toBe(command)
})

it.each<[what: string, fails: () => object]>([
  [
    'there is no descriptor for it, nor for its output (Node.js, ChildProcess.spawn)',
    () => {
      const child = new EventEmitter()
      process.nextTick(() => child.emit('error', new Error('spawn EMFILE')))
      return child
    },
  ],
  [
    'there is no memory for it',
    () => {
      throw new Error('spawn ENOMEM')
    },
  ],
])('is started again if %s', async (_what, fails) => {
  fork.fails = fails
  const stopping = new AbortController()
  const warnings: string[] = []
  const log = { info: () => {}, warn: (text: string) => void warnings.push(text), error: () => {}, v: () => false }
  let changes = 0
  const watching = watchHost(() => changes++, log, stopping.signal)
  await vi.waitFor(() => expect(warnings).toEqual([expect.stringMatching(/^`ip monitor` ended: spawn E/)]))
  await vi.advanceTimersByTimeAsync(200)
  await vi.waitFor(() => expect(changes).toBeGreaterThan(2))
  stopping.abort(new Error('the test is over'))
  await watching
})
