// open.test.ts - how a node starts to forward: with the peers of an earlier weftd, or while a successor takes over a
// data path that was opened for another lease from the last known state.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import { parseNetworkConfig } from '../../../src/control/config/network-config.ts'
import { parseLeaseKey, type OwnLease } from '../../../src/control/lease/lease.ts'
import { hostKernel } from '../../../src/host/netlink/host-kernel.ts'
import type { DataPaths } from '../../../src/node/data-paths.ts'
import { keepDataPath } from '../../../src/node/loops/data-path.ts'
import { createNode, type NewNode, type NodeParts } from '../../../src/node/node.ts'
import { openNode } from '../../../src/node/open.ts'
import { Ownership } from '../../../src/node/ownership.ts'
import { lastKnownFile, writeLastKnown } from '../../../src/node/restart/last-known.ts'
import type { Backend, DataPath } from '../../../src/path/contract.ts'
import type { OpenPath } from '../../../src/path/engine/engine.ts'
import { EXTERNAL, planOf } from '../../support/data-paths.ts'

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const attrs = { publicIp: { ipv4: 0x0a000001 }, backendType: '' }
const leaseOf = (key: string): OwnLease => {
  return { key, subnet: parseLeaseKey(key)!, attrs, expiresAt: undefined, revision: 0n }
}

it("a data path is opened for the node's lease after the lent data path has come back", async () => {
  const ownership = new Ownership(log)
  const calls: string[] = []
  let back!: () => void
  const stale = {
    handover: {
      isLendable: true,
      leave: async () => [{ tunName: 'flannel0', loops: [] } as unknown as OpenPath],
      takeBack: () => new Promise<void>((resolve) => (back = resolve)),
    },
    close: async () => void calls.push('close the stale one'),
  } as unknown as DataPaths
  const opened: string[] = []
  const own = { fault: new Promise(() => {}) } as DataPath
  await ownership.open(async () => stale)
  await ownership.lend()
  // The first successor has ended. The next one requests the data path before this node has taken everything back.
  const taking = ownership.takeBack()
  const lending = ownership.lend()

  const node = createNode(
    { options: {} as NewNode['options'], store: '', kernel: hostKernel, log, stopping: new AbortController() },
    ownership,
  )
  const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
  const backend = {
    name: 'udp',
    external: EXTERNAL,
    prepare: async () => attrs,
    plan: planOf(async ({ key }) => (opened.push(key), own)),
  } as unknown as Backend
  Object.assign(node, { config, backend, lease: leaseOf('10.5.1.0-24'), attrs })
  const parts = { manager: {}, external: EXTERNAL, config, backend } as unknown as NodeParts
  const facts = { config, backend, lease: leaseOf('10.5.2.0-24'), attrs }
  const opening = openNode(node, parts, facts, { isOnLoan: false, tunNames: [] })
  await setImmediate()
  back()
  await taking
  expect(await lending).toHaveLength(1)
  await setImmediate()
  expect([ownership.state.is, calls]).toEqual(['lent', []])

  const takenBack = ownership.takeBack()
  await setImmediate()
  back()
  await takenBack
  await opening
  expect([node.lease?.key, opened, calls]).toEqual(['10.5.2.0-24', ['10.5.2.0-24'], ['close the stale one']])
})

/** A node that forwards with the last known state through `dataPath`, and its facts. */
async function forwarding(dataPath: DataPaths, lines: string[] = []) {
  const say = (line: string): void => void lines.push(line)
  const ownership = new Ownership({ ...log, error: say })
  const options = {} as NewNode['options']
  const base = {
    options,
    store: '',
    kernel: hostKernel,
    log: { ...log, warn: say, error: say },
    stopping: new AbortController(),
  }
  const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
  const prepare = async () => attrs
  const known = { name: 'udp', external: EXTERNAL, prepare, plan: planOf(async () => FAKE) } as unknown as Backend
  const facts = { config, backend: known, lease: leaseOf('10.5.1.0-24'), attrs }
  await ownership.open(async () => dataPath)
  return { node: Object.assign(createNode(base, ownership), facts), facts, lines }
}
/** A data path that does nothing. */
const FAKE = { fault: new Promise(() => {}), apply: async () => {}, close: async () => {} } as unknown as DataPath
const handover = { isOnLoan: false, tunNames: [] }

it('keeps the open data path if the store confirms the facts of the file', async () => {
  const old = {} as DataPaths
  const { node, facts } = await forwarding(old)
  const parts = {
    manager: {},
    external: EXTERNAL,
    config: facts.config,
    backend: facts.backend,
  } as unknown as NodeParts
  const lease = { ...leaseOf('10.5.1.0-24'), revision: 7n }
  await openNode(node, parts, { ...facts, lease }, handover)
  expect([node.ownership.dataPath === old, node.lease.revision]).toEqual([true, 7n])
})

it.each([
  ['goes on with the data path', '10.5.1.0-24', []],
  ['opens the data path', '10.5.2.0-24', [0x0a000009]],
])('%s with the address that this host got while it waited for its lease', async (_how, key, opened) => {
  const { node, facts } = await forwarding(FAKE as unknown as DataPaths)
  // The loop of the data path has followed the address already.
  const now = { publicIp: { ipv4: 0x0a000009 }, backendType: '' }
  node.attrs = now
  const got: unknown[] = []
  const plan = planOf(async (lease) => (got.push(lease.attrs.publicIp.ipv4), FAKE))
  Object.assign(facts.backend, { prepare: async () => now, plan })
  const parts = {
    manager: {},
    external: EXTERNAL,
    config: facts.config,
    backend: facts.backend,
  } as unknown as NodeParts
  await openNode(node, parts, { ...facts, lease: leaseOf(key) }, handover)
  expect([node.lease.key, node.lease.attrs, node.attrs, got]).toEqual([key, attrs, now, opened])
})

it('reads the public IP from the store before it continues with the backend of the file', async () => {
  const old = {} as DataPaths
  const { node, facts } = await forwarding(old)
  const given = { publicIp: { ipv4: 0x0a000009 }, backendType: '' }
  node.attrs = given
  const manager = { amend: async () => given.publicIp }
  const backend = { ...facts.backend }
  const parts = { manager, external: EXTERNAL, config: facts.config, backend } as unknown as NodeParts
  await openNode(node, parts, { ...facts, backend, lease: leaseOf('10.5.1.0-24') }, handover)
  expect([node.ownership.dataPath === old, node.attrs]).toEqual([true, given])
})

it('keeps the facts of the file, and forwards with them again, if the data path for the facts of the store cannot be opened', async () => {
  const old = { ...FAKE, watched: [], lacking: {}, gone: () => ({}), resync: async () => [] } as unknown as DataPaths
  const { node, facts, lines } = await forwarding(old)
  const over = keepDataPath(node).catch(() => {})
  const refusal = new WeftError('PORT_IN_USE', 'a program has the port')
  const open = () => Promise.reject(refusal)
  const wanted = {
    ...facts,
    backend: { ...facts.backend, plan: planOf(open) },
    lease: leaseOf('10.5.2.0-24'),
  }
  const parts = {
    manager: {},
    external: EXTERNAL,
    config: facts.config,
    backend: wanted.backend,
  } as unknown as NodeParts
  await expect(openNode(node, parts, wanted, handover)).rejects.toBe(refusal)
  await expect.poll(() => node.ownership.state.is).toBe('forwarding')
  expect([node.ownership.dataPath === old, node.lease.key, node.backend === facts.backend]).toEqual([
    false,
    '10.5.1.0-24',
    true,
  ])
  expect(lines).toEqual(['The last known state is out of date; the data path is opened again'])
  node.stopping.abort(new Error('enough'))
  await over
})

it('has one loop for its data path, which continues with the data path that the facts of the store gave, and publishes nothing yet', async () => {
  const old = { ...FAKE, watched: [], lacking: {}, gone: () => ({}), resync: async () => [] } as unknown as DataPaths
  const { node, facts, lines } = await forwarding(old)
  const loop = keepDataPath(node)
  const over = loop.catch(() => {})
  let checks = 0
  const path = { ...FAKE, resync: async () => (checks++, []) } as unknown as DataPath
  const backend = { ...facts.backend, plan: planOf(async () => path) }
  const parts = { manager: {}, external: EXTERNAL, config: facts.config, backend } as unknown as NodeParts
  await openNode(node, parts, { ...facts, backend, lease: leaseOf('10.5.2.0-24') }, handover)
  await expect.poll(() => (node.ownership.recheck.ring(), checks)).toBeGreaterThan(0)
  expect(keepDataPath(node)).toBe(loop)
  expect([node.ownership.dataPath === old, node.isPublished, lines.length]).toEqual([false, false, 1])
  node.stopping.abort(new Error('enough'))
  await over
})

it('checks the data path every five seconds while only the loop of the data path runs', async () => {
  vi.useFakeTimers()
  try {
    let checks = 0
    const resync = async () => (checks++, [])
    const old = { ...FAKE, watched: [], lacking: {}, gone: () => ({}), resync } as unknown as DataPaths
    const { node, facts } = await forwarding(old)
    node.pathLease = facts.lease
    const over = keepDataPath(node).catch(() => {})
    await vi.advanceTimersByTimeAsync(16_000)
    expect(checks).toBe(3)
    node.stopping.abort(new Error('enough'))
    await over
  } finally {
    vi.useRealTimers()
  }
})

it('opens the data path of the store although the last known one cannot be closed', async () => {
  const close = () => Promise.reject(new WeftError('COMMAND', 'no answer within 10 s'))
  const { node, facts, lines } = await forwarding({ close } as unknown as DataPaths)
  const backend = { ...facts.backend, plan: planOf(async () => FAKE) }
  const parts = { manager: {}, external: EXTERNAL, config: facts.config, backend } as unknown as NodeParts
  await openNode(node, parts, { ...facts, backend, lease: leaseOf('10.5.2.0-24') }, handover)
  expect([node.ownership.state.is, node.lease.key]).toEqual(['forwarding', '10.5.2.0-24'])
  expect(lines).toContain('Cannot close the data path: no answer within 10 s')
})

it.each([
  [
    'with the peers of the weftd before, whose sessions and packets are there',
    '10.5.1.0-24',
    undefined,
    ['10.5.9.0-24'],
    ['b'],
  ],
  ['with none of those where the lease is another', '10.5.2.0-24', undefined, [], undefined],
  ['with none of those where the lease had ended', '10.5.1.0-24', 1, [], undefined],
])('is opened %s', async (_how, key, expiresAt, peers, others) => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-open-'))
  try {
    const options = {
      'subnet-file': join(folder, 'subnet.env'),
      'lease-dir': folder,
      'kube-subnet-mgr': false,
    } as unknown as NewNode['options']
    await writeLastKnown(lastKnownFile(options), {
      store: 'directory /leases',
      config: '{}',
      tunNames: ['flannel-wg'],
      others: ['b'],
      expiresAt,
      lease: leaseOf('10.5.1.0-24'),
      leases: [leaseOf('10.5.9.0-24')],
    })
    const opened: unknown[] = []
    const backend: Partial<Backend> = {
      name: 'wireguard',
      tunNames: ['flannel-wg'],
      plan: planOf(async (_own, leases, _signal, by) => {
        opened.push([...leases.keys()], by)
        return { fault: new Promise(() => {}) } as DataPath
      }),
    }
    const config = parseNetworkConfig('{"Network":"10.5.0.0/16"}')
    const node = createNode({
      options,
      store: 'directory /leases',
      kernel: hostKernel,
      log,
      stopping: new AbortController(),
    })
    const parts = { manager: {}, external: EXTERNAL, config, backend } as unknown as NodeParts
    const facts = { config, backend: backend as Backend, lease: leaseOf(key), attrs }
    await openNode(node, parts, facts, { isOnLoan: false, tunNames: ['flannel-wg'] })
    expect([opened, [...node.view.keys()]]).toEqual([[peers, others], peers])
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
