// start.test.ts - the wait for the external interface, in virtual time, on a host that answers from tables.

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { parseFlags } from '../../src/go-flags.ts'
import { createBell } from '../../src/host/bell.ts'
import { checkOptions, FLAGS } from '../../src/options.ts'
import { waitForInterface } from '../../src/start.ts'

const host = vi.hoisted(() => ({ hasRoute: false, looks: 0 }))
vi.mock('../../src/host/command.ts', () => ({
  run: async (_file: string, args: readonly string[]): Promise<string> => {
    if (args.includes('route')) return JSON.stringify(host.hasRoute ? [{ dst: 'default', dev: 'eth0' }] : [])
    host.looks++
    const address = { family: 'inet', local: '192.0.2.7', prefixlen: 24, scope: 'global' }
    return JSON.stringify([{ ifindex: 2, ifname: 'eth0', mtu: 1500, flags: ['UP'], addr_info: [address] }])
  },
}))

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const { signal } = new AbortController()
function wait(changed = createBell(), args: readonly string[] = []): { readonly found: () => string | undefined } {
  const { options } = parseFlags(FLAGS, args)
  checkOptions(options)
  let found: string | undefined
  waitForInterface(options, changed, log, signal).then(
    ({ name }) => (found = name),
    (error: Error) => (found = error.message),
  )
  return { found: () => found }
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  host.hasRoute = false
  host.looks = 0
})
afterEach(() => vi.useRealTimers())

describe('the external interface', () => {
  it('is found within a quarter of a second when the host reports a change, which is looked at once for many', async () => {
    const changed = createBell()
    const { found } = wait(changed)
    await vi.advanceTimersByTimeAsync(1_000)
    expect([host.looks, found()]).toEqual([1, undefined])
    for (let times = 0; times < 10; times++) changed.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect([host.looks, found()]).toEqual([2, undefined])
    host.hasRoute = true
    changed.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect(found()).toBe('eth0')
  })

  it('is looked for every five seconds though the host reports nothing', async () => {
    const { found } = wait()
    host.hasRoute = false
    await vi.advanceTimersByTimeAsync(1_000)
    host.hasRoute = true
    await vi.advanceTimersByTimeAsync(4_500)
    expect([host.looks, found()]).toEqual([2, 'eth0'])
  })

  it('is given up after --iface-wait', async () => {
    const { found } = wait(createBell(), ['--iface-wait=7'])
    await vi.advanceTimersByTimeAsync(6_900)
    expect(found()).toBeUndefined()
    await vi.advanceTimersByTimeAsync(400)
    expect(found()).toMatch(/unable to find default route/)
  })
})
