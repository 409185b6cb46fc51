// lease-back.test.ts - gives back the lease of a stopped weftd: only this node's own, and never from a directory that does not exist.

import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { encodeLeaseValue, parseLeaseKey } from '../../../../src/control/lease/lease.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { writeLastKnown } from '../../../../src/node/restart/last-known.ts'
import { giveLeaseBack } from '../../../../src/tool/cleanup/lease-back.ts'
import { optionsOf } from '../../../support/options.ts'

let folder: string
let lines: string[]
const log = {
  info: (line: string) => lines.push(`I ${line}`),
  warn: (line: string) => lines.push(`W ${line}`),
  error: (line: string) => lines.push(`E ${line}`),
  v: () => false,
}
const leases = (): string[] => readdirSync(join(folder, 'leases/subnets'))
const give = (flags: readonly string[] = [], isHosts = async () => true): Promise<boolean> => {
  const own = ['--subnet-file', join(folder, 'subnet.env'), '--lease-dir', join(folder, 'leases')]
  const { node, store } = optionsOf(...own, ...flags)
  return giveLeaseBack(node, store, log, isHosts)
}

beforeEach(() => {
  lines = []
  folder = mkdtempSync(join(tmpdir(), 'weft-lease-back-'))
  writeFileSync(join(folder, 'subnet.env'), 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\n')
  for (const each of ['subnets', 'weft']) mkdirSync(join(folder, 'leases', each), { recursive: true })
  for (const [key, ip] of [
    ['10.5.1.0-24', '192.0.2.1'],
    ['10.5.2.0-24', '192.0.2.2'],
  ] as const) {
    writeFileSync(join(folder, 'leases/subnets', key), JSON.stringify({ PublicIP: ip }))
    writeFileSync(join(folder, 'leases/weft', ip), JSON.stringify({ Hostname: key, ID: 'x' }))
  }
})
afterEach(() => rmSync(folder, { recursive: true }))

it('deletes the lease and the name of this host, and reports it', async () => {
  expect(await give()).toBe(true)
  expect(lines).toEqual(['I The lease of 10.5.1.0/24 is given back'])
  expect(leases()).toEqual(['10.5.2.0-24'])
  expect(readdirSync(join(folder, 'leases/weft'))).toEqual(['192.0.2.2'])
  expect(await give()).toBe(true)
  expect(lines[1]).toMatch(/^W The directory store has no lease of 10\.5\.1\.0\/24: /)
})

it("leaves another node's lease, and takes --public-ip for this node's address", async () => {
  expect(await give([], async () => false)).toBe(false)
  expect(lines[0]).toMatch(/^W .*not given back, because its public IP 192\.0\.2\.1 is not an address of this host/)
  expect(leases()).toContain('10.5.1.0-24')
  expect(await give(['--public-ip', '192.0.2.1'], async () => false)).toBe(true)
  expect(leases()).not.toContain('10.5.1.0-24')
})

it('accepts the last known public IP only if the store still has the last known lease', async () => {
  const attrs = { publicIp: { ipv4: parseIpv4('192.0.2.1')! }, backendType: 'vxlan', backendData: { VTEPMAC: 'own' } }
  const lease = { key: '10.5.1.0-24', subnet: parseLeaseKey('10.5.1.0-24')!, attrs }
  const known = { store: '', config: '', lease, leases: [lease], expiresAt: undefined, tunNames: [] }
  await writeLastKnown(join(folder, 'subnet.env.last-known'), known)
  const own = join(folder, 'leases/subnets/10.5.1.0-24')
  // Another host has the address now and has published its lease with it.
  writeFileSync(own, encodeLeaseValue({ ...attrs, backendData: { VTEPMAC: 'other' } }))
  expect(await give([], async () => false)).toBe(false)
  expect(leases()).toContain('10.5.1.0-24')
  writeFileSync(own, encodeLeaseValue(attrs))
  expect(await give([], async () => false)).toBe(true)
  expect(leases()).not.toContain('10.5.1.0-24')
})

it('keeps a reservation', async () => {
  chmodSync(join(folder, 'leases/subnets/10.5.1.0-24'), 0o444)
  expect(await give()).toBe(true)
  expect(lines).toEqual(['I The lease of 10.5.1.0/24 stays, because it is reserved'])
  expect(leases()).toContain('10.5.1.0-24')
})

it('fails without creating the directory if the lease directory does not exist', async () => {
  const missing = join(folder, 'missing')
  expect(await give(['--lease-dir', missing])).toBe(false)
  expect(lines[0]).toMatch(/^E The lease of 10\.5\.1\.0\/24 cannot be given back, .*there is no directory/)
  expect(existsSync(missing)).toBe(false)
})

it('reports that the lease is unknown, or that Kubernetes ends it', async () => {
  rmSync(join(folder, 'subnet.env'))
  expect(await give()).toBe(true)
  expect(lines[0]).toMatch(/^W No weftd runs, and .*subnet\.env names no subnet/)
  expect(await give(['--kube-subnet-mgr'])).toBe(true)
  expect(lines[1]).toMatch(/^I .*ends with the node of the cluster/)
})
