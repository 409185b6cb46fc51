// events.test.ts - how soon the child that listens to the kernel is started again, in virtual time, where there is none.

import type * as childProcess from 'node:child_process'
import { EventEmitter } from 'node:events'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { entriesOf, watchHost } from '../../../src/host/events.ts'

/** What starting a program says, if it is not what it says here. */
const fork = vi.hoisted<{ fails?: (() => object) | undefined }>(() => ({}))
vi.mock('node:child_process', async (load) => {
  const real = await load<typeof childProcess>()
  return { ...real, spawn: (...args: Parameters<typeof real.spawn>) => fork.fails?.() ?? real.spawn(...args) }
})

const path = process.env['PATH']
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  process.env['PATH'] = '/nowhere'
})
afterEach(() => {
  fork.fails = undefined
  process.env['PATH'] = path
  vi.useRealTimers()
})

it('doubles the pause from 0.2 s to 30 s, says it once, and has the host looked at each time', async () => {
  const stopping = new AbortController()
  const warnings: string[] = []
  const log = { info: () => {}, warn: (text: string) => void warnings.push(text), error: () => {}, v: () => false }
  let changes = 0
  const watching = watchHost(() => changes++, log, stopping.signal)
  /** A child has ended, which takes real time, and the pause has begun. */
  const pausing = async (after: number): Promise<void> => {
    for (;;) {
      if (changes >= after && vi.getTimerCount() > 0) return
      await new Promise((resolve) => setImmediate(resolve))
    }
  }
  await pausing(2) // once for setpriv, which is not there either
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
])('of the entries of flannel.1 the line %j matters: %s', (line, matters) => {
  expect(entriesOf('flannel.1').matters?.(line)).toBe(matters)
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
])('is started again where %s', async (_what, fails) => {
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
