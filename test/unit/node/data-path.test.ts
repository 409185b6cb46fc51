// data-path.test.ts - when the device is looked at, and the data path opened again.

import { readFileSync } from 'node:fs'
import { describe, expect, it, vi } from 'vitest'
import type { OpenPath } from '../../../src/dataplane/engine.ts'
import { WeftError } from '../../../src/errors.ts'
import { createBell } from '../../../src/host/bell.ts'
import type { LeaseAttrs } from '../../../src/lease/lease.ts'
import { managerOf } from '../../../src/lease/store-manager.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'
import { keepDataPath } from '../../../src/node/data-path.ts'
import { amended } from '../../../src/node/lease.ts'
import { createPossession } from '../../../src/node/possession.ts'
import { createNode, type NodeParts } from '../../../src/node/node.ts'
import {
  backend,
  installRig,
  dataPaths,
  lines,
  log,
  logged,
  own,
  ready,
  refuseToOpen,
  start,
  stopping,
  store,
  subnetFile,
  until,
  value,
} from '../../support/node-rig.ts'

installRig()

it('opens the data path again when it died, with all peers, and closes the old one', async () => {
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[0]!.die('the TUN was deleted')
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0)
  expect(dataPaths[0]!.closed).toBe(true)
  expect(dataPaths[1]!.applied).toEqual([['10.5.0.64-26']])
  expect(logged(/^E The data path stopped: the TUN was deleted/)).toBe(true)
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[1]!.die('again')
  await until(() => dataPaths.length === 3)
})

it('waits a second before it opens one that died at once twice, and between tries', async () => {
  start()
  await ready()
  dataPaths[0]!.die('at once')
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0, 200)
  dataPaths[1]!.die('again')
  await until(() => dataPaths[1]!.closed, 200)
  await vi.advanceTimersByTimeAsync(700)
  expect(dataPaths).toHaveLength(2)
  refuseToOpen(new WeftError('PORT_IN_USE', 'the port is taken'))
  await vi.advanceTimersByTimeAsync(60_000)
  const tries = lines.filter((line) => line.includes('Cannot open the data path: the port is taken'))
  expect(tries.length).toBe(2)
  // What changes meanwhile is in force once it is open.
  const free = ['10.5.0.64-26', '10.5.0.128-26'].find((key) => key !== own())!
  store.put(free, value('192.0.2.2'))
  refuseToOpen()
  await until(() => dataPaths.length === 3 && dataPaths[2]!.applied.length > 0, 2000)
  expect(dataPaths[2]!.applied.at(-1)).toEqual([free])
})

it.each([
  ['five seconds after one that was not, or that nobody would report', true, 5000],
  ['half a minute where all was right and what changes is reported', false, 30_000],
])('has the device looked at within %s, and says what was mended', async (_, unreported, withinMs) => {
  start()
  await ready()
  const wrong = async (after: number): Promise<number> => {
    dataPaths[0]!.mended = ['flannel0 was down']
    await vi.advanceTimersByTimeAsync(after - 100)
    return dataPaths[0]!.mended.length
  }
  dataPaths[0]!.unreported = unreported
  await wrong(5100)
  await until(() => logged(/^W Repaired: flannel0 was down/))
  await vi.advanceTimersByTimeAsync(10_000)
  expect(await wrong(withinMs === 5000 ? 5300 : 25_000)).toBe(withinMs === 5000 ? 0 : 1)
  await vi.advanceTimersByTimeAsync(5300)
  expect(dataPaths[0]!.mended).toEqual([])
})

it('looks again in five seconds where peers could not be set', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(20_000)
  const free = ['10.5.0.64-26', '10.5.0.128-26'].find((key) => key !== own())!
  dataPaths[0]!.refusal = new WeftError('COMMAND', 'no')
  store.put(free, value('192.0.2.2'))
  await vi.advanceTimersByTimeAsync(31_000)
  dataPaths[0]!.refusal = undefined
  await vi.advanceTimersByTimeAsync(5300)
  await until(() => dataPaths[0]!.applied.at(-1)?.includes(free) === true, 0)
})

it('looks at the device within a quarter of a second when the host reports a change, and so once for many', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  await vi.advanceTimersByTimeAsync(1000)
  for (const round of [1, 2, 3]) {
    dataPaths[0]!.mended = ['flannel0 was down']
    for (let times = 0; times < 10; times++) hostChanged.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect(lines.filter((line) => line.startsWith('W Repaired: flannel0'))).toHaveLength(round)
  }
})

it('looks again in five seconds after a report: what came right behind it may not have been reported', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  await vi.advanceTimersByTimeAsync(20_000)
  hostChanged.ring()
  await vi.advanceTimersByTimeAsync(1000)
  dataPaths[0]!.mended = ['flannel0 was down']
  await vi.advanceTimersByTimeAsync(5000)
  await until(() => logged(/^W Repaired: flannel0 was down/), 0)
})

it('says only the first of many repairs, and looks less often when somebody undoes them', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  dataPaths[0]!.mended = Array.from({ length: 100 }, () => 'flannel0 was down')
  await vi.advanceTimersByTimeAsync(5000)
  dataPaths[0]!.mended = ['flannel0 was down']
  await vi.advanceTimersByTimeAsync(4000)
  expect(dataPaths[0]!.mended).toHaveLength(1)
  expect(lines.filter((line) => line.startsWith('W Repaired'))).toHaveLength(7)
  await vi.advanceTimersByTimeAsync(120_000)
  dataPaths[0]!.mended = ['flannel0 had lost its address']
  hostChanged.ring()
  await until(() => logged(/^W Repaired: flannel0 had lost its address \(repair \d+ since the start\)$/))
})

it('opens one again whose predecessor cannot be closed, and says why', async () => {
  start()
  await ready()
  dataPaths[0]!.stuck = new WeftError('COMMAND', '`ip link del` failed: no answer within 10 s')
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[0]!.die('the TUN was deleted')
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0)
  expect(lines).toContain('E Cannot close the data path: `ip link del` failed: no answer within 10 s')
})

it('publishes at once whatever the data path that is opened again has the lease say, and nothing where it is the same', async () => {
  let key = 'first'
  const withKey = {
    ...backend,
    prepare: async (signal: AbortSignal) => ({ ...(await backend.prepare(signal)), backendData: { PublicKey: key } }),
  }
  start({ backend: withKey })
  await ready()
  const published = () => [...store.entries.values()].map(({ value: text }) => text)
  await until(() => logged(/Waiting for .* to renew lease/))
  const { revision } = [...store.entries.values()][0]!
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[0]!.die('the device was deleted')
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0)
  await vi.advanceTimersByTimeAsync(2000)
  expect([...store.entries.values()][0]!.revision).toBe(revision)
  key = 'second'
  store.list = async () => {
    throw new WeftError('STORE_UNAVAILABLE', 'no listing is needed for that')
  }
  dataPaths[1]!.die('and its key with it')
  // In no virtual time to speak of: it does not wait for a listing, nor for the renewal.
  await until(() => published().some((text) => text.includes('"PublicKey":"second"')), 100)
})

describe('with an amendment that an operator made where the leases are', () => {
  const given = parseIpv4('198.51.100.7')!
  let answer: (attrs: LeaseAttrs, signal: AbortSignal) => Promise<LeaseAttrs>
  let opened: LeaseAttrs[]
  function startAmended(): void {
    opened = []
    const manager = {
      ...managerOf(store),
      amend: (attrs: LeaseAttrs, signal: AbortSignal) => answer(attrs, signal),
    }
    const open: typeof backend.open = (lease, ...rest) => {
      opened.push(lease.attrs)
      return backend.open(lease, ...rest)
    }
    start({ manager, backend: amended({ ...backend, open }, manager, log) })
  }

  it.each<[what: string, away: typeof answer]>([
    ['refuses', () => Promise.reject(new WeftError('STORE_UNAVAILABLE', 'away'))],
    [
      'says nothing',
      (_attrs, signal) =>
        new Promise((_resolve, reject) => {
          signal.addEventListener('abort', () => reject(signal.reason as Error))
        }),
    ],
  ])('opens one that died again by what was last known of it while the store %s', async (_what, away) => {
    answer = async (attrs) => ({ ...attrs, publicIp: { ipv4: given } })
    startAmended()
    await ready()
    await vi.advanceTimersByTimeAsync(2000)
    answer = away
    dataPaths[0]!.die('the MTU of eth0 changed')
    await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0, 2_000)
    answer = async (attrs) => ({ ...attrs, publicIp: { ipv4: parseIpv4('198.51.100.8')! } })
    await vi.advanceTimersByTimeAsync(2000)
    dataPaths[1]!.die('again')
    await until(() => dataPaths.length === 3 && dataPaths[2]!.applied.length > 0, 2_000)
    expect(opened.map(({ publicIp }) => publicIp.ipv4)).toEqual([given, given, parseIpv4('198.51.100.8')])
  })

  it('waits for it at the start: nobody knows yet whether there is one', async () => {
    answer = () => Promise.reject(new WeftError('STORE_UNAVAILABLE', 'away'))
    startAmended()
    await vi.advanceTimersByTimeAsync(60_000)
    expect(dataPaths).toEqual([])
    answer = async (attrs) => attrs
    await until(() => dataPaths.length === 1, 2_000)
    await ready()
  })
})

it('writes subnet.env at once where the data path that is opened again takes other packets, and as no repair', async () => {
  const mtus = [1472, 8972]
  const open: typeof backend.open = async (...args) => ({ ...(await backend.open(...args)), mtu: mtus.shift()! })
  start({ backend: { ...backend, open } })
  await ready()
  const mtu = () => /FLANNEL_MTU=(\d+)/.exec(readFileSync(subnetFile(), 'utf8'))![1]
  expect(mtu()).toBe('1472')
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[0]!.die('the MTU of eth0 changed')
  await until(() => mtu() === '8972', 100)
  await vi.advanceTimersByTimeAsync(6000)
  expect(logged(/Repaired: .*subnet.env/)).toBe(false)
})

it('leaves one alone that is lent: what is wrong with it is for whoever has it, until it is back', async () => {
  const lease = {
    ...{ key: '10.5.0.64-26', subnet: { ipv4: { address: parseIpv4('10.5.0.64')!, prefixLength: 26 } } },
    ...{ attrs: await backend.prepare(stopping.signal), expiresAt: undefined, revision: 1n },
  }
  const possession = createPossession(log)
  const leave = async () => ({ loops: [] }) as unknown as OpenPath
  const lendable = { leave, takeBack: async () => {} }
  await possession.open(async () => ({ ...(await backend.open(lease, stopping.signal, new Map())), ...lendable }))
  const options = { 'subnet-file': subnetFile() } as NodeParts['options']
  const parts = { options, manager: managerOf(store), config: {} as NodeParts['config'], backend, log }
  const node = createNode({ ...parts, signal: stopping.signal }, lease, lease.attrs, possession, new Map())
  await possession.lend()
  const over = keepDataPath(node).catch(() => {})
  dataPaths[0]!.mended = ['flannel0 was down']
  dataPaths[0]!.die('the device is gone')
  await vi.advanceTimersByTimeAsync(60_000)
  expect([dataPaths.length, dataPaths[0]!.mended.length, dataPaths[0]!.closed]).toEqual([1, 1, false])
  await possession.takeBack()
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0)
  expect(dataPaths[0]!.closed).toBe(true)
  stopping.abort(new Error('enough'))
  await over
})
