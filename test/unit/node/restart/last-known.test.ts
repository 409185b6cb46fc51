// last-known.test.ts - reads the file of the last known state, of any size. Other tasks continue while the file is
// written.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { leaseKey, type Lease } from '../../../../src/control/lease/lease.ts'
import { readLastKnown, writeLastKnown } from '../../../../src/node/restart/last-known.ts'

const quiet = (line: string): never => {
  throw new Error(line)
}
const log = { info: quiet, warn: quiet, error: quiet, v: () => false }

it.each([[0], [1], [999], [1_000], [1_001], [2_500]])('reads the written state with %i leases', async (count) => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-known-'))
  try {
    const path = join(folder, 'last-known')
    const leases = Array.from({ length: count }, (_, index): Lease => {
      const subnet = { ipv4: { address: 0x0a050000 + index * 256, prefixLength: 24 } }
      const data = index % 3 === 0 ? { backendData: { VtepMAC: `<${index}>` } } : {}
      if (index % 5 === 1) {
        // Every second of these leases has both families, the others have IPv6 alone.
        const ipv6 = { address: (0xfd00n << 112n) + (BigInt(index) << 64n), prefixLength: 64 }
        const nets = index % 2 === 0 ? { ...subnet, ipv6 } : { ipv6 }
        const attrs = { publicIp: { ipv6: 1n + BigInt(index) }, backendType: '', backendV6Data: index }
        return { key: leaseKey(nets), subnet: nets, attrs }
      }
      return {
        key: leaseKey(subnet),
        subnet,
        attrs: { publicIp: { ipv4: 0xc0000200 + index }, backendType: '', ...data },
      }
    })
    const subnet = { ipv4: { address: 0x0a040000, prefixLength: 24 } }
    const lease: Lease = { key: leaseKey(subnet), subnet, attrs: { publicIp: { ipv4: 1 }, backendType: '' } }
    const known = {
      store: 's',
      config: '{}',
      lease,
      expiresAt: 7,
      tunNames: ['flannel0', 'b'],
      paths: [{ a: [1] }],
      others: ['k'],
    }
    let turns = 0
    const counting = setInterval(() => turns++, 0)
    await writeLastKnown(path, { ...known, leases: leases.values() })
    clearInterval(counting)
    expect(await readLastKnown(path, log)).toEqual({ ...known, leases })
    if (count > 2_000) expect(turns).toBeGreaterThan(0)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

it.each([
  [{ others: 7 }],
  [{ others: ['k', 7] }],
  [{ tunNames: 7 }],
  [{ tunNames: null }],
  [{ tunNames: 'flannel0' }],
  [{ tunNames: ['flannel0', 7] }],
  [{ version: 1 }],
  [{ store: 5 }],
  [{ config: {} }],
  [{ expiresAt: '1' }],
  [{ leases: 7 }],
])('a file with %j is as none, and said', async (odd) => {
  const folder = mkdtempSync(join(tmpdir(), 'weft-known-'))
  try {
    const path = join(folder, 'last-known')
    const known = {
      version: 2,
      store: 's',
      config: '{}',
      tunNames: ['flannel0'],
      lease: ['10.5.1.0-24', '{}'],
      leases: [],
    }
    const said: string[] = []
    const hear = { ...log, warn: (line: string) => void said.push(line) }
    const read = (members: object) => {
      writeFileSync(path, JSON.stringify({ ...known, ...members }))
      return readLastKnown(path, hear)
    }
    expect(await read({})).toMatchObject({ tunNames: ['flannel0'] })
    expect(said).toEqual([])
    expect(await read(odd)).toBeUndefined()
    expect(said).toEqual([expect.stringContaining(`Cannot use the last known state in ${path}: `)])
  } finally {
    rmSync(folder, { recursive: true })
  }
})
