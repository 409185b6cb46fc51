// loops.test.ts - each loop of the daemon: when it throws, the node ends with what it threw, and nothing of it goes on.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, vi } from 'vitest'
import { packageRoot } from '../../lab/lab.ts'
import { dataPaths, ended, installRig, own, ready, start, stopping, store } from '../support/node-rig.ts'

const { failing, wrapped } = vi.hoisted(() => {
  type Loop = (node: unknown) => Promise<never>
  const throwers = new Map<string, (error: Error) => void>()
  const orThrow =
    (name: string, loop: Loop): Loop =>
    (node) =>
      Promise.race([loop(node), new Promise<never>((_resolve, reject) => throwers.set(name, reject))])
  return {
    failing: throwers,
    /** A module whose loops of these names throw when they are told to. */
    wrapped: async (load: () => Promise<unknown>, ...names: readonly string[]): Promise<object> => {
      const module = (await load()) as Record<string, Loop>
      return { ...module, ...Object.fromEntries(names.map((name) => [name, orThrow(name, module[name]!)])) }
    },
  }
})
vi.mock('../../src/node/peers.ts', (load) => wrapped(load, 'keepPeers'))
vi.mock('../../src/node/lease.ts', (load) => wrapped(load, 'keepLease'))
vi.mock('../../src/node/twins.ts', (load) => wrapped(load, 'watchForTwins'))
vi.mock('../../src/node/config.ts', (load) => wrapped(load, 'watchConfig'))
vi.mock('../../src/node/data-path.ts', (load) => wrapped(load, 'keepDataPath'))
vi.mock('../../src/node/firewall.ts', (load) => wrapped(load, 'keepFirewall'))
vi.mock('../../src/node/subnet-env.ts', (load) => wrapped(load, 'keepSubnetEnv'))
vi.mock('../../src/node/ready.ts', (load) => wrapped(load, 'keepReady'))
vi.mock('../../src/node/threads.ts', (load) => wrapped(load, 'watchThreads'))
vi.mock('../../src/node/probes.ts', (load) => wrapped(load, 'probePeers'))
vi.mock('../../src/node/path-search.ts', (load) => wrapped(load, 'searchPaths'))
vi.mock('../../src/node/service-manager.ts', (load) => wrapped(load, 'tellManager', 'serveWatchdog'))
vi.mock('../../src/node/last-known.ts', (load) => wrapped(load, 'keepLastKnown'))

installRig()

const [, table = ''] = /const LOOPS[^=]*=> Promise<never>\)\[\] = \[(.*?)^\]/ms.exec(
  readFileSync(join(packageRoot, 'src/daemon.ts'), 'utf8'),
)!
const loops = [...table.matchAll(/^ +(\w+),/gm)].map(([, name = '']) => name)

it('are all there', () => expect(loops.length).toBeGreaterThan(10))

it.each(loops)('%s that throws ends the node with it, the data path closed and the lease kept', async (name) => {
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
