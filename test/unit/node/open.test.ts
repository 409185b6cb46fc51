// open.test.ts - a node comes to forward while a successor takes what forwards as last known, which is for another lease.

import { setImmediate } from 'node:timers/promises'
import { expect, it } from 'vitest'
import type { Backend, DataPath } from '../../../src/path/backend.ts'
import type { OpenPath } from '../../../src/path/engine/engine.ts'
import { parseNetworkConfig } from '../../../src/control/config/network-config.ts'
import { parseLeaseKey, type OwnLease } from '../../../src/control/lease/lease.ts'
import type { NodeParts } from '../../../src/node/node.ts'
import { openNode, type Before, type Resumed } from '../../../src/node/open.ts'
import { createPossession } from '../../../src/node/possession.ts'

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const attrs = { publicIp: { ipv4: 0x0a000001 }, backendType: '' }
const leaseOf = (key: string): OwnLease => {
  return { key, subnet: parseLeaseKey(key)!, attrs, expiresAt: undefined, revision: 0n }
}

it('is opened for the own lease once what was lent meanwhile has come back', async () => {
  const possession = createPossession(log)
  const calls: string[] = []
  let back!: () => void
  const stale = {
    leave: async () => [{ tunName: 'flannel0', loops: [] } as unknown as OpenPath],
    takeBack: () => new Promise<void>((resolve) => (back = resolve)),
    close: async () => void calls.push('close the stale one'),
  } as unknown as DataPath
  const own = {} as DataPath
  await possession.open(async () => stale)
  await possession.lend()
  // The first successor has gone, and the next one asks before all is taken back.
  const taking = possession.takeBack()
  const lending = possession.lend()

  const stopping = new AbortController()
  const parts = {
    config: parseNetworkConfig('{"Network":"10.5.0.0/16"}'),
    backend: { name: 'udp', open: async () => own } as unknown as Backend,
    ...{ options: {}, signal: stopping.signal, log },
  } as unknown as NodeParts
  const before: Before = {
    possession,
    succession: { isOnLoan: false, tunNames: [] } as unknown as Before['succession'],
    amend: (backend) => backend,
    fits: () => false,
    onNode: () => {},
  }
  const resumed = { lease: leaseOf('10.5.1.0-24'), view: new Map(), hand: async () => {} } as unknown as Resumed
  const opening = openNode(parts, leaseOf('10.5.2.0-24'), attrs, resumed, before)
  await setImmediate()
  back()
  await taking
  expect(await lending).toHaveLength(1)
  await setImmediate()
  expect([possession.state.is, calls]).toEqual(['lent', []])

  const takenBack = possession.takeBack()
  await setImmediate()
  back()
  await takenBack
  const node = await opening
  expect([node.lease.key, possession.dataPath === own, calls]).toEqual(['10.5.2.0-24', true, ['close the stale one']])
})
