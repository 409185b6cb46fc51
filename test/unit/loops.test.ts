// loops.test.ts - the failure of a loop: an essential one ends the node, and an observing one is started again.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, vi } from 'vitest'
import { packageRoot } from '../../lab/lab.ts'
import { dataPaths, ended, installRig, lines, own, ready, start, stopping, store } from '../support/node-rig.ts'

const { failing, wrapped } = vi.hoisted(() => {
  type Loop = (node: unknown) => Promise<never>
  const throwers = new Map<string, (error: Error) => void>()
  const orThrow = (name: string, loop: Loop): Loop => {
    const either: Loop = (node) =>
      Promise.race([loop(node), new Promise<never>((_resolve, reject) => throwers.set(name, reject))])
    return Object.defineProperty(either, 'name', { value: name })
  }
  return {
    failing: throwers,
    /** A module whose loops of these names can be made to throw. */
    wrapped: async (load: () => Promise<unknown>, ...names: readonly string[]): Promise<object> => {
      const module = (await load()) as Record<string, Loop>
      return { ...module, ...Object.fromEntries(names.map((name) => [name, orThrow(name, module[name]!)])) }
    },
  }
})
vi.mock('../../src/node/loops/peers.ts', (load) => wrapped(load, 'keepPeers'))
vi.mock('../../src/node/loops/lease.ts', (load) => wrapped(load, 'keepLease'))
vi.mock('../../src/node/loops/duplicate-node.ts', (load) => wrapped(load, 'watchForDuplicateNode'))
vi.mock('../../src/node/loops/names.ts', (load) => wrapped(load, 'keepNames'))
vi.mock('../../src/node/loops/status-network.ts', (load) => wrapped(load, 'serveNetworkStatus'))
vi.mock('../../src/node/loops/config.ts', (load) => wrapped(load, 'watchConfig'))
vi.mock('../../src/node/loops/data-path.ts', (load) => wrapped(load, 'keepDataPath'))
vi.mock('../../src/node/loops/firewall.ts', (load) => wrapped(load, 'keepFirewall'))
vi.mock('../../src/node/loops/subnet-env.ts', (load) => wrapped(load, 'keepSubnetEnv'))
vi.mock('../../src/node/loops/forwarding.ts', (load) => wrapped(load, 'watchForwarding'))
vi.mock('../../src/node/loops/ready.ts', (load) => wrapped(load, 'keepReady'))
vi.mock('../../src/node/loops/threads.ts', (load) => wrapped(load, 'watchThreads'))
vi.mock('../../src/node/loops/probes.ts', (load) => wrapped(load, 'probePeers'))
vi.mock('../../src/node/loops/path-search.ts', (load) => wrapped(load, 'searchPaths'))
vi.mock('../../src/node/loops/memory.ts', (load) => wrapped(load, 'keepMemory'))
vi.mock('../../src/node/loops/service-manager.ts', (load) => wrapped(load, 'reportToManager', 'serveWatchdog'))
vi.mock('../../src/node/loops/last-known.ts', (load) => wrapped(load, 'keepLastKnown'))
vi.mock('../../src/node/loops/give-back.ts', (load) => wrapped(load, 'giveBack'))
vi.mock('../../src/node/loops/underlays.ts', (load) => wrapped(load, 'chooseUnderlays'))

installRig()

const daemon = readFileSync(join(packageRoot, 'src/daemon.ts'), 'utf8')
/** The names of the loops in a table of daemon.ts. */
function loopsOf(table: string): readonly string[] {
  const [, text = ''] = new RegExp(`const ${table}[^=]*= \\[(.*?)^\\]`, 'ms').exec(daemon)!
  return [...text.matchAll(/^ +(\w+),/gm)].map(([, name = '']) => name)
}
const [essential, observing] = [loopsOf('ESSENTIAL'), loopsOf('OBSERVING')]

it('the tables have the four essential loops and the observing loops', () => {
  expect(essential.toSorted()).toEqual(['keepDataPath', 'keepFirewall', 'keepLease', 'keepPeers'])
  expect(observing.length).toBeGreaterThan(10)
})

it.each(essential)('%s that throws ends the node, closes the data path and keeps the lease', async (name) => {
  start()
  await ready()
  const key = own()
  const defect = new Error(`a defect of ${name}`)
  failing.get(name)!(defect)
  expect(await ended).toBe(defect)
  expect(stopping.signal.reason).toBe(defect)
  expect(dataPaths.map(({ closed }) => closed)).toEqual([true])
  expect(store.entries.has(key)).toBe(true)
  expect(vi.getTimerCount()).toBe(0)
})

it.each(observing)(
  '%s that throws is started again without a stop of packets, and the log has the stack',
  async (name) => {
    start()
    await ready()
    const first = failing.get(name)!
    first(new Error(`a defect of ${name}`))
    await vi.advanceTimersByTimeAsync(1_500)
    expect(failing.get(name), 'the loop runs again').not.toBe(first)
    const line = lines.find((each) => each.includes(`The loop ${name} failed`))
    expect(line).toMatch(/^E .*packets still pass, and it starts again in 1 s: Error: a defect of \w+\n +at /)
    expect([stopping.signal.aborted, dataPaths.map(({ closed }) => closed)]).toEqual([false, [false]])
  },
)

it('an observing loop that fails again and again starts less and less often', async () => {
  start()
  await ready()
  const failures = (): string[] => lines.filter((line) => line.includes('The loop keepNames failed'))
  for (let seconds = 0; seconds < 300; seconds++) {
    failing.get('keepNames')!(new Error('a defect'))
    await vi.advanceTimersByTimeAsync(1_000)
  }
  expect(failures().length).toBeGreaterThan(6)
  expect(failures().length).toBeLessThan(15)
  expect(failures().at(-1)).toContain('starts again in 60 s')
  expect(stopping.signal.aborted).toBe(false)
})
