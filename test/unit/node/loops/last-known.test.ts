// last-known.test.ts - when the file of the last known state is written, stays, and goes.

import { existsSync, mkdirSync, readFileSync, rmdirSync } from 'node:fs'
import { expect, it, vi } from 'vitest'
import { parseLeaseKey } from '../../../../src/control/lease/lease.ts'
import { createBell } from '../../../../src/host/bell.ts'
import { keepLastKnown, writeKnown } from '../../../../src/node/loops/last-known.ts'
import type { Node } from '../../../../src/node/node.ts'
import { readLastKnown } from '../../../../src/node/restart/last-known.ts'
import { installRig, inTurns, lines, log, stopping, subnetFile } from '../../../support/node-rig.ts'

installRig()

const lastKnown = (): string => `${subnetFile()}.last-known`

/** A node with a data path on these devices. */
const nodeOn = (...tunNames: string[]): Node => {
  const lease = { key: '10.5.0.64-26', subnet: parseLeaseKey('10.5.0.64-26')!, expiresAt: 5 }
  const known = {
    lease,
    attrs: { publicIp: { ipv4: 1 }, backendType: '' },
    view: new Map(),
    backend: {},
    ownership: { isOurs: true, dataPath: { tunNames: tunNames.length > 0 ? tunNames : undefined } },
    config: { ipv4: {} },
    next: { lastKnown: lastKnown(), config: '{}', store: 'directory' },
    log,
    learnt: createBell(),
    signal: stopping.signal,
  }
  return known as unknown as Node
}

it('does not change while there is no data path, and is removed if the kernel is the carrier', async () => {
  const node = nodeOn('flannel0')
  await writeKnown(node)
  const before = readFileSync(lastKnown(), 'utf8')
  expect(before).toContain('flannel0')
  const ownership = node.ownership as { dataPath: unknown }
  const { dataPath } = ownership
  ownership.dataPath = undefined // it died, and is opened again
  const write = vi.spyOn(node.view, 'values')
  const keeping = keepLastKnown(node).catch(() => {})
  node.learnt.ring()
  await vi.advanceTimersByTimeAsync(1000)
  await writeKnown(node)
  expect(readFileSync(lastKnown(), 'utf8')).toBe(before)
  expect(write).not.toHaveBeenCalled()
  ownership.dataPath = dataPath
  await writeKnown(node)
  expect(write).toHaveBeenCalled()
  await writeKnown(nodeOn())
  expect(existsSync(lastKnown())).toBe(false)
  stopping.abort(new Error('the test is over'))
  await keeping
})

it('is written later if it could not be written, although the node learns nothing new', async () => {
  const node = nodeOn('flannel0')
  mkdirSync(lastKnown())
  const keeping = keepLastKnown(node).catch(() => {})
  node.learnt.ring()
  await inTurns(() => lines.some((line) => line.includes('Cannot write the last known state')))
  rmdirSync(lastKnown())
  await vi.advanceTimersByTimeAsync(30_200)
  await inTurns(() => existsSync(lastKnown()))
  expect(readFileSync(lastKnown(), 'utf8')).toContain('flannel0')
  stopping.abort(new Error('the test is over'))
  await keeping
})

it('has the leases of a backend that made routes through hosts, although the kernel is the carrier', async () => {
  const node = nodeOn()
  const lease = { key: '10.5.0.192-26', subnet: parseLeaseKey('10.5.0.192-26')!, attrs: node.attrs }
  const external = { name: 'eth0', index: 7, mtu: 1500, address: {}, publicIp: {}, families: [] }
  Object.assign(node, { backend: { routesToHosts: true, external }, view: new Map([[lease.key, lease]]) })
  await writeKnown(node)
  const known = await readLastKnown(lastKnown(), log)
  expect(known).toMatchObject({ isForCleanup: true, tunNames: [], leases: [{ key: '10.5.0.192-26' }] })
  // The next process may choose another external interface, because no open socket uses this one.
  expect(known?.external).toBeUndefined()
})

it('has the lease while subnet.env omits a family, although the kernel carries the packets', async () => {
  const node = nodeOn()
  const key = '10.5.0.64-26&fd00:5:0:1::-64'
  const [four, six] = ['FLANNEL_SUBNET=10.5.0.65/26\n', 'FLANNEL_IPV6_SUBNET=fd00:5:0:1::1/64\n']
  const isWritten = async (config: object, published: string | undefined): Promise<boolean> => {
    Object.assign(node, { config, published, lease: { ...node.lease, key, subnet: parseLeaseKey(key)! } })
    await writeKnown(node)
    const known = await readLastKnown(lastKnown(), log)
    expect([true, undefined]).toContain(known?.isForCleanup)
    return known?.lease.key === key
  }
  const both = { ipv4: {}, ipv6: {} }
  expect(await isWritten(both, four)).toBe(true)
  expect(await isWritten(both, four + six)).toBe(false)
  expect(await isWritten(both, six)).toBe(true)
  expect(await isWritten(both, undefined)).toBe(false)
  // In Kubernetes the lease may have a subnet of a family that the network does not have.
  expect(await isWritten({ ipv4: {} }, four)).toBe(false)
  expect(existsSync(lastKnown())).toBe(false)
})

it('is not written while a successor owns the data path, because the successor writes its own', async () => {
  const node = nodeOn('flannel0')
  const ownership = node.ownership as { isOurs: boolean }
  const keeping = keepLastKnown(node).catch(() => {})
  ownership.isOurs = false
  node.learnt.ring()
  const write = vi.spyOn(node.view, 'values')
  await vi.advanceTimersByTimeAsync(1000)
  expect(write).not.toHaveBeenCalled()
  ownership.isOurs = true
  node.learnt.ring()
  await inTurns(() => existsSync(lastKnown()))
  stopping.abort(new Error('the test is over'))
  await keeping
})
