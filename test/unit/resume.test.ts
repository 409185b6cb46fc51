// resume.test.ts - what a daemon that forwards with the last known state passes to the backend, and what remains of
// that when the node has taken the data path.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { WeftError } from '../../src/base/errors.ts'
import { runDaemon } from '../../src/begin.ts'
import type { LeaseAttrs, OwnLease } from '../../src/control/lease/lease.ts'
import type { startManager } from '../../src/daemon.ts'
import { FAMILIES, familiesOf, formatNet, type Net } from '../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../src/net/ipv6.ts'
import { canForward } from '../../src/node/node.ts'
import { lastKnownFile, nextFor, storeNameOf, writeLastKnown } from '../../src/node/restart/last-known.ts'
import type { DataPath } from '../../src/path/contract.ts'
import { eventually } from '../support/event.ts'
import { optionsOf } from '../support/options.ts'

const lines: string[] = []
const log = { info: () => {}, warn: () => {}, error: (line: string) => void lines.push(line), v: () => false }
const publicIp = { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('2001:db8::1')! }
const lease: OwnLease = {
  key: '10.5.1.0-24&fd00:5:0:1::-64',
  subnet: { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: parseIpv6Net('fd00:5:0:1::/64')! },
  attrs: { publicIp, backendType: '' },
  expiresAt: undefined,
  revision: 0n,
}
const external = {
  name: 'eth0',
  index: 2,
  mtu: 1500,
  address: publicIp,
  publicIp,
  pattern: undefined,
  families: familiesOf(publicIp),
  named: { address: {}, publicIp: {} },
}

/** The member `Backend` of the configuration. */
let backend: object
/** Prevents the creation of the backend. */
let refusal: Error | undefined
/** The order in which the daemon makes unreachable routes, prepares the backend and opens data paths. */
let steps: string[] = []
vi.mock('../../src/path/device/userspace-guard.ts', async (load) => ({
  ...(await load<object>()),
  keepUnreachable: async (_kernel: unknown, network: Net) => void steps.push(`unreachable ${formatNet(network)}`),
  keepRule: async () => {}, // the real function would change the rules of this machine
}))
/** Ends the data path of IPv6. */
let lose: (reason: Error) => void
vi.mock('../../src/node/choose.ts', () => ({
  createBackend: async () => ({
    ...refuse(),
    name: 'fake',
    isSealed: JSON.stringify(backend) === '{"Type":"wireguard"}',
    prepare: async () => (steps.push('prepare'), prepared()),
    plan: () =>
      FAMILIES.map((family) => ({
        families: [family],
        mtu: 1400,
        open: async () => {
          steps.push(`open ${family}`)
          return {
            fault: new Promise<Error>((resolve) => family === 'ipv6' && (lose = resolve)),
            apply: async () => {},
            resync: async () => [],
            close: async () => {},
          } as unknown as DataPath
        },
      })),
  }),
}))
vi.mock('../../src/host/external-interface.ts', async (load) => ({
  ...(await load<object>()),
  resumeExternal: async () => external,
}))
const begun = vi.hoisted(() => ({
  with: undefined as unknown as (...args: Parameters<typeof startManager>) => Promise<never>,
}))
vi.mock('../../src/daemon.ts', () => ({
  startManager: (...args: Parameters<typeof startManager>) => begun.with(...args),
}))

/** Returns the attributes that the backend finds, or throws. */
let prepared: () => LeaseAttrs
const refuse = (): object => {
  if (refusal) throw refusal
  return {}
}
let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-resume-'))
  backend = { Type: 'wireguard' }
  refusal = undefined
  steps = []
  prepared = () => lease.attrs
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

/** Runs a daemon whose last known state is in its file. */
async function resume(published = publicIp, stopping = new AbortController()): Promise<never> {
  const options = optionsOf('--subnet-file', join(folder, 'subnet.env'), '--lease-dir', folder)
  const config = JSON.stringify({
    Network: '10.5.0.0/16',
    EnableIPv6: true,
    IPv6Network: 'fd00:5::/48',
    Backend: backend,
  })
  const before = { ...lease, attrs: { ...lease.attrs, publicIp: published } }
  const known = {
    store: await storeNameOf(options.store),
    config,
    lease: before,
    expiresAt: undefined,
    leases: [before],
  }
  await writeLastKnown(lastKnownFile(options.node), {
    ...known,
    external: external as never,
    wishes: nextFor({ options: options.node, store: known.store }, config)!.wishes,
    tunNames: [],
  })
  return runDaemon(options, log, stopping)
}

it('logs the loss of a family from the first packet on', async () => {
  const stop = new Error('enough')
  begun.with = async (node) => {
    expect(canForward(node)).toBe(true)
    lose(new Error('flannel-wg-v6 is gone'))
    await eventually(() => expect(lines.join('\n')).toMatch(/Cannot carry IPv6, trying again: flannel-wg-v6 is gone/))
    throw stop
  }
  await expect(resume()).rejects.toBe(stop)
})

it('ends with a defect in the loop of the data path, as a node whose loops all run', async () => {
  const defect = new TypeError('a defect')
  begun.with = async (node) => {
    await eventually(() => expect(node.keepingPath).toBeDefined())
    vi.spyOn(node.ownership.dataPath!, 'resync').mockImplementation(() => {
      Object.defineProperty(node.ownership.dataPath, 'isOutdated', {
        get() {
          throw defect
        },
      })
      return Promise.resolve([])
    })
    node.ownership.recheck.ring()
    return new Promise((_resolve, reject) =>
      node.signal.addEventListener('abort', () => reject(node.signal.reason as Error)),
    )
  }
  await expect(resume()).rejects.toBe(defect)
})

it('forwards if an operator had replaced the address that the node publishes, by an annotation in the store', async () => {
  const stop = new Error('enough')
  const published = { ...publicIp, ipv4: parseIpv4('203.0.113.7')! }
  let seen: unknown
  begun.with = async (node) => {
    seen = canForward(node) && node.attrs.publicIp
    throw stop
  }
  await expect(resume(published)).rejects.toBe(stop)
  expect(seen).toEqual(published)
})

it('does not forward if the node has another address of its own than the one it published', async () => {
  const stop = new Error('enough')
  let forwards: unknown
  begun.with = async (node) => {
    forwards = canForward(node)
    throw stop
  }
  const { ipv4 } = external.publicIp
  external.publicIp = { ...publicIp, ipv4: parseIpv4('192.0.2.2')! }
  try {
    await expect(resume(external.publicIp)).rejects.toBe(stop)
  } finally {
    external.publicIp = { ...publicIp, ipv4 }
  }
  expect(forwards).toBe(false)
})

const SEAL = ['unreachable 10.5.0.0/16', 'unreachable fd00:5::/48']

it('with a backend that encrypts makes the unreachable routes before it forwards, and restores them meanwhile', async () => {
  const stop = new Error('enough')
  begun.with = async (node) => {
    expect(steps).toEqual([...SEAL, 'prepare', 'open ipv4', 'open ipv6'])
    expect(node.isRunning).toBe(false)
    node.ownership.recheck.ring()
    await eventually(() => expect(steps.slice(5)).toEqual(SEAL))
    throw stop
  }
  await expect(resume()).rejects.toBe(stop)
})

it.each([
  ['its address is gone', 'prepare', 'INTERFACE'],
  // The file of the last known state has a placeholder in place of the key.
  ['its pre-shared key is only in the store', 'create', 'CONFIG'],
] as const)('with a backend that encrypts makes the unreachable routes even if %s', async (what, at, code) => {
  const stop = new Error('enough')
  if (at === 'create') refusal = new WeftError(code, what)
  prepared = () => {
    throw new WeftError(code, what)
  }
  begun.with = async (node) => {
    expect([canForward(node), steps]).toEqual([false, at === 'create' ? SEAL : [...SEAL, 'prepare']])
    throw stop
  }
  await expect(resume()).rejects.toBe(stop)
})

it.each([{ Type: 'udp' }, { Type: 'wireguard', AllowBypass: true }])(
  'with %j makes no unreachable routes',
  async (given) => {
    const stop = new Error('enough')
    backend = given
    begun.with = async () => {
      throw stop
    }
    await expect(resume()).rejects.toBe(stop)
    expect(steps).toEqual(['prepare', 'open ipv4', 'open ipv6'])
  },
)
