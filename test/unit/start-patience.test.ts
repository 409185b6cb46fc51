// start-patience.test.ts - a start that forwards as last known is as patient as a running node: what a running node survives ends neither.

import { expect, it, vi } from 'vitest'
import { WeftError, type ErrorCode } from '../../src/base/errors.ts'
import type { OwnLease } from '../../src/control/lease/lease.ts'
import { hostKernel } from '../../src/host/netlink/host-kernel.ts'
import type { DataPaths } from '../../src/node/data-paths.ts'
import { whileForwarding } from '../../src/node/exit-or-wait.ts'
import { createNode, type NewNode } from '../../src/node/node.ts'
import { observed } from '../../src/node/run-loops.ts'
import {
  ended,
  installRig,
  dataPaths,
  lines,
  log,
  logged,
  own,
  ready,
  start,
  stopping,
  store,
  value,
} from '../support/node-rig.ts'

installRig()

const newNode = (): NewNode =>
  createNode({ options: {} as NewNode['options'], store: '', kernel: hostKernel, log, stopping })

/** A node that forwards with the last known state. */
async function forwarding(): Promise<NewNode> {
  const node = newNode()
  await node.ownership.open(async () => ({ close: async () => {} }) as unknown as DataPaths)
  return Object.assign(node, { lease: {} as OwnLease })
}

const CODES: readonly ErrorCode[] = [
  ...(['CONFIG', 'CONFIG_MISSING', 'STORE', 'STORE_UNAVAILABLE', 'INTERFACE', 'ADDRESS', 'USAGE'] as const),
  ...(['OUT_OF_SUBNETS', 'LEASE_LOST', 'DEVICE', 'PORT_IN_USE', 'COMMAND', 'PERMISSION', 'NO_DEVICE_TYPE'] as const),
]

it.each(CODES)('a start that fails by %s is repeated while packets still pass, and reported', async (code) => {
  const told: string[] = []
  let tries = 0
  const work = async (): Promise<string> => {
    tries++
    if (tries < 4) throw new WeftError(code, 'it is wrong', { remedy: 'put it right' })
    return 'a node'
  }
  const started = whileForwarding(await forwarding(), work, (why) => void told.push(why))
  await vi.advanceTimersByTimeAsync(30_000)
  expect([await started, tries, told]).toEqual(['a node', 4, ['it is wrong', 'it is wrong', 'it is wrong']])
  expect(lines).toContain('E This weftd forwards with the last known state, and tries again: it is wrong; put it right')
})

it('a start is repeated less and less often, at least every half a minute', async () => {
  const at: number[] = []
  const work = async (): Promise<never> => {
    at.push(performance.now())
    throw new WeftError('CONFIG', 'it is wrong')
  }
  const started = whileForwarding(await forwarding(), work).catch((error: unknown) => error)
  await vi.advanceTimersByTimeAsync(300_000)
  const pauses = at.map((time, index) => time - (at[index - 1] ?? time)).slice(1)
  expect(Math.min(...pauses)).toBeGreaterThanOrEqual(500)
  expect(Math.max(...pauses)).toBeLessThanOrEqual(30_000)
  expect(pauses.length).toBeLessThan(40)
  stopping.abort(new Error('stop'))
  expect(await started).toMatchObject({ message: 'stop' })
})

it('a start ends by a defect, or if no process forwards, but not if the data path is down for a moment', async () => {
  const wrong = new WeftError('CONFIG', 'it is wrong')
  const fails = (error: Error) => async (): Promise<never> => {
    throw error
  }
  await expect(whileForwarding(newNode(), fails(wrong))).rejects.toBe(wrong)
  const defect = new Error('a defect')
  await expect(whileForwarding(await forwarding(), fails(defect))).rejects.toBe(defect)
  const part = await forwarding()
  let isRight = false
  const started = whileForwarding(part, async () => {
    if (!isRight) throw wrong
    return 'a node'
  })
  await part.ownership.close() // it died, and its loop opens it again
  await vi.advanceTimersByTimeAsync(20_000)
  isRight = true
  await vi.advanceTimersByTimeAsync(30_000)
  expect(await started).toBe('a node')
})

it('a start continues after a check of the host failed, and logs the reason', async () => {
  const step = Promise.reject(new Error('`ip` printed half a line'))
  await observed(step, { log, signal: stopping.signal })
  expect(lines.join('\n')).toMatch(/E A check of this host failed, and the start goes on: .*half a line/)
})

/** Faults that a running node survives: the other half of the table. */
it.each<[what: string, befall: () => void]>([
  ['a store that is down', () => store.setDown(true)],
  ['a configuration that is no JSON', () => store.putConfig('{')],
  [
    'a configuration with a wrong Backend',
    () => store.putConfig('{"Network":"10.5.0.0/24","Backend":{"Type":"none"}}'),
  ],
  ['another network', () => store.putConfig('{"Network":"10.9.0.0/24"}')],
  ['its lease in the hands of another node', () => store.put(own(), value('192.0.2.77'))],
])('a running node goes on with %s', async (_what, befall) => {
  start()
  await ready()
  befall()
  await vi.advanceTimersByTimeAsync(120_000)
  expect(stopping.signal.aborted).toBe(false)
  expect(dataPaths.at(-1)!.closed).toBe(false)
})

it.each(['its backend cannot prepare', 'the process may not make devices'])(
  'a start writes its lease last, so it writes nothing to the store if %s',
  async (what) => {
    const refusal = new WeftError('DEVICE', 'this host has no TUN')
    const writes: string[] = []
    for (const method of ['create', 'update', 'delete', 'claim'] as const) {
      const real = store[method].bind(store) as (...args: unknown[]) => unknown
      Object.assign(store, { [method]: (...args: unknown[]) => (writes.push(method), real(...args)) })
    }
    const { backend } = await import('../support/node-rig.ts')
    const fail = async (): Promise<never> => {
      throw refusal
    }
    if (what.includes('prepare')) start({ backend: { ...backend, prepare: fail } })
    else start({}, undefined, { permit: fail })
    expect(await ended).toMatchObject({ code: 'DEVICE', message: expect.stringContaining(refusal.message) as string })
    expect([writes, logged(/Running backend/)]).toEqual([[], false])
  },
)
