// data-path.test.ts - when the device is checked, and the data path opened again.

import { readFileSync } from 'node:fs'
import { describe, expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { LeaseAttrs } from '../../../../src/control/lease/lease.ts'
import { managerOf } from '../../../../src/control/lease/store-manager.ts'
import { createBell } from '../../../../src/host/bell.ts'
import type { ExternalInterface } from '../../../../src/host/external-interface.ts'
import type { Addresses } from '../../../../src/net/address.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { keepDataPath } from '../../../../src/node/loops/data-path.ts'
import { amended } from '../../../../src/node/loops/lease.ts'
import { createNode, type NewNode, type Node } from '../../../../src/node/node.ts'
import { Ownership } from '../../../../src/node/ownership.ts'
import type { OpenPath } from '../../../../src/path/engine/engine.ts'
import { EXTERNAL, openPaths, planOf } from '../../../support/data-paths.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'
import {
  backend,
  dataPaths,
  installRig,
  lines,
  log,
  logged,
  nodeStatus,
  openFake,
  own,
  ownership,
  ready,
  refuseToOpen,
  start,
  stopping,
  store,
  subnetFile,
  trouble,
  until,
  value,
  setGone,
} from '../../../support/node-rig.ts'

installRig()

it('receives no peers before the store has answered, so its present peers stay', async () => {
  const manager = managerOf(store)
  const list = (signal: AbortSignal): Promise<never> =>
    new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)))
  start({ manager: { ...manager, source: { ...manager.source, list } } })
  await until(() => logged(/Running backend/))
  await vi.advanceTimersByTimeAsync(120_000)
  expect(dataPaths.map(({ applied }) => applied)).toEqual([[]])
  // A data path that is opened again before the store answers receives no peers either.
  dataPaths[0]!.die('the MTU of eth0 changed')
  await until(() => dataPaths.length === 2, 10_000)
  await vi.advanceTimersByTimeAsync(120_000)
  expect(dataPaths.map(({ applied }) => applied)).toEqual([[], []])
})

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

it('waits a second before it opens a data path that died twice immediately, and between attempts', async () => {
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
  // A change during the opening takes effect once it is open.
  const free = ['10.5.0.64-26', '10.5.0.128-26'].find((key) => key !== own())!
  store.put(free, value('192.0.2.2'))
  refuseToOpen()
  await until(() => dataPaths.length === 3 && dataPaths[2]!.applied.length > 0, 2000)
  expect(dataPaths[2]!.applied.at(-1)).toEqual([free])
})

it.each([
  ['five seconds after one that was not, or that nobody would report', true, 5000],
  ['half a minute where all was right and what changes is reported', false, 30_000],
])('has the device looked at within %s, and says what was repaired', async (_, unreported, withinMs) => {
  start()
  await ready()
  const wrong = async (after: number): Promise<number> => {
    dataPaths[0]!.repaired = ['flannel0 was down']
    await vi.advanceTimersByTimeAsync(after - 100)
    return dataPaths[0]!.repaired.length
  }
  vi.spyOn(ownership.dataPath!, 'unreported', 'get').mockReturnValue(unreported)
  await wrong(5100)
  await until(() => logged(/^W Repaired: flannel0 was down/))
  await vi.advanceTimersByTimeAsync(10_000)
  expect(await wrong(withinMs === 5000 ? 5300 : 25_000)).toBe(withinMs === 5000 ? 0 : 1)
  await vi.advanceTimersByTimeAsync(5300)
  expect(dataPaths[0]!.repaired).toEqual([])
})

it('tries again after five seconds if peers could not be set', async () => {
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

it('gives the missing peers every five seconds to a part of the data path that lacks them', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(60_000)
  const free = ['10.5.0.64-26', '10.5.0.128-26'].find((key) => key !== own())!
  const [path] = dataPaths
  const isBehind = vi.spyOn(ownership.dataPath!, 'isBehind', 'get').mockReturnValue(true)
  store.put(free, value('192.0.2.2'))
  await until(() => path!.applied.at(-1)?.includes(free) === true, 1000)
  const given = path!.applied.length
  await vi.advanceTimersByTimeAsync(10_600)
  expect(path!.applied.length - given).toBe(2)
  isBehind.mockRestore()
  await vi.advanceTimersByTimeAsync(5300)
  expect(path!.applied.length - given).toBe(3)
  await vi.advanceTimersByTimeAsync(20_000)
  expect(path!.applied.length - given).toBe(3)
})

it('is impaired when its device cannot be repaired for ten seconds, until it is repaired', async () => {
  start()
  await ready()
  dataPaths[0]!.unseen = new WeftError('DEVICE', 'failed to create the vxlan device: File exists')
  await vi.advanceTimersByTimeAsync(9_000)
  expect(trouble()).toBeUndefined()
  await vi.advanceTimersByTimeAsync(36_000)
  const what = 'the data path cannot be checked or repaired: failed to create the vxlan device: File exists'
  expect(await nodeStatus()).toMatchObject({ state: 'impaired', impairments: [{ by: 'path', what }] })
  expect(trouble()).toBe('the data path cannot be checked or repaired')
  dataPaths[0]!.unseen = undefined
  await vi.advanceTimersByTimeAsync(6_000)
  expect(trouble()).toBeUndefined()
})

it('checks the device every five seconds after a check of a part of the data path failed', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(60_000)
  let checks = 0
  dataPaths[0]!.looking = async () => void checks++
  await vi.advanceTimersByTimeAsync(60_000)
  expect(checks).toBeLessThanOrEqual(2)
  const failures = vi.spyOn(ownership.dataPath!, 'failures', 'get').mockReturnValue(['File exists'])
  await vi.advanceTimersByTimeAsync(30_000) // a calm host is checked every 30 s
  checks = 0
  await vi.advanceTimersByTimeAsync(30_000)
  expect(checks).toBeGreaterThanOrEqual(5)
  failures.mockRestore()
})

it('sets peers again that could not be set, although the device cannot be checked', async () => {
  start()
  await ready()
  const free = ['10.5.0.64-26', '10.5.0.128-26'].find((key) => key !== own())!
  dataPaths[0]!.unseen = new WeftError('COMMAND', 'no answer')
  dataPaths[0]!.refusal = new WeftError('COMMAND', 'no')
  store.put(free, value('192.0.2.2'))
  await until(() => logged(/^E Cannot set the peers of the data path: no/), 1000)
  dataPaths[0]!.refusal = undefined
  await until(() => dataPaths[0]!.applied.at(-1)?.includes(free) === true, 5300)
  expect(logged(/^E Cannot check the device: no answer/)).toBe(true)
})

it('opens a missing family again immediately after a check of the host, and then every five seconds', async () => {
  let address = 1
  const moving = {
    ...backend,
    prepare: async () => ({ publicIp: { ipv4: parseIpv4('192.0.2.1')!, ipv6: BigInt(address) }, backendType: '' }),
  }
  const hostChanged = createBell()
  start({ backend: moving }, hostChanged)
  await ready()
  const [path] = dataPaths
  address = 2
  path!.lacking = { ipv6: 'the address of eth0 changed' }
  vi.spyOn(ownership.dataPath!, 'unreported', 'get').mockReturnValue(true)
  hostChanged.ring()
  await until(() => path!.renewed.length === 1, 300)
  expect(path!.renewed).toEqual([{ publicIp: { ipv4: parseIpv4('192.0.2.1')!, ipv6: 2n }, backendType: '' }])
  // The changed address must be published to the peers.
  await until(() => [...store.entries.values()].some(({ value: text }) => text.includes('"PublicIPv6":"::2"')), 100)
  // A change of the host that the attempt itself causes must not cause the next attempt.
  for (let times = 0; times < 20; times++) {
    hostChanged.ring()
    await vi.advanceTimersByTimeAsync(200)
  }
  expect(path!.renewed).toHaveLength(1)
  await vi.advanceTimersByTimeAsync(5400)
  expect(path!.renewed).toHaveLength(2)
  path!.lacking = {}
  await vi.advanceTimersByTimeAsync(60_000)
  expect(path!.renewed).toHaveLength(2)
  expect([dataPaths.length, path!.closed]).toEqual([1, false])
})

it('sets the peers again after a change of this host although one family is still missing, and not at each attempt', async () => {
  let address = 1
  const moving = {
    ...backend,
    prepare: async () => ({ publicIp: { ipv4: parseIpv4('192.0.2.1')!, ipv6: BigInt(address) }, backendType: '' }),
  }
  store.put('10.5.0.64-26', value('192.0.2.2'))
  start({ backend: moving })
  await ready()
  const [path] = dataPaths
  const apply = vi.spyOn(ownership.dataPath!, 'apply')
  const sets = (): number => apply.mock.calls.filter(([, , touched]) => touched === undefined).length
  path!.lacking = { ipv6: 'disable_ipv6' }
  await vi.advanceTimersByTimeAsync(60_000)
  expect(path!.renewed.length).toBeGreaterThan(5)
  expect(sets()).toBe(0)
  address = 2
  await vi.advanceTimersByTimeAsync(60_000)
  expect(sets()).toBe(1)
  // The family works again, and meanwhile the host refuses the other one.
  let opened!: () => void
  path!.renewing = new Promise((resolve) => (opened = resolve))
  const { length } = path!.renewed
  await until(() => path!.renewed.length > length, 5300)
  path!.lacking = { ipv4: 'routed to another device' }
  opened()
  await vi.advanceTimersByTimeAsync(60_000)
  expect(sets()).toBe(2)
})

it('resolves `late` for a check after a second', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  const said: string[] = []
  dataPaths[0]!.looking = async (late) => {
    said.push('begun')
    await late
    said.push('late')
    dataPaths[0]!.looking = undefined
  }
  hostChanged.ring()
  await until(() => said.length > 0, 300)
  await vi.advanceTimersByTimeAsync(900)
  expect(said).toEqual(['begun'])
  await vi.advanceTimersByTimeAsync(200)
  expect(said).toEqual(['begun', 'late'])
})

it('checks the open family while the other family is being opened, and does not open that family twice', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  const [path] = dataPaths
  let opened!: () => void
  path!.renewing = new Promise((resolve) => (opened = resolve))
  path!.lacking = { ipv6: 'no device' }
  hostChanged.ring()
  await until(() => path!.renewed.length === 1, 300)
  path!.repaired = ['flannel0 was down']
  hostChanged.ring()
  await until(() => logged(/^W Repaired: flannel0 was down/), 1500)
  path!.repaired = []
  await vi.advanceTimersByTimeAsync(20_000)
  expect(path!.renewed).toHaveLength(1)
  path!.renewing = undefined
  opened()
  await until(() => path!.renewed.length === 2, 5300)
})

it('follows a new name of the external interface: logs it, keeps the data path, and writes it to the file for the next process', async () => {
  const hostChanged = createBell()
  const interfaceOf = (name: string) => ({ name }) as ExternalInterface
  const renamed = { ...backend, external: interfaceOf('eth0') }
  const prepare = async () => {
    if (dataPaths[0]?.lacking) Object.assign(renamed, { external: interfaceOf('uplink0') })
    return backend.prepare(new AbortController().signal)
  }
  start({ backend: Object.assign(renamed, { prepare }) }, hostChanged)
  await ready()
  const [path] = dataPaths
  path!.lacking = { ipv6: 'a reason to prepare again' }
  hostChanged.ring()
  await until(() => path!.renewed.length === 1, 300)
  expect(lines.filter((line) => line.includes('uplink0'))).toEqual([
    expect.stringContaining('The interface eth0 is called uplink0 now; weftd goes on with it under the new name'),
  ])
  expect([dataPaths.length, path!.closed]).toEqual([1, false])
})

it('reports once that an address of the external interface is missing, and once that it is back', async () => {
  start()
  await ready()
  const said = (): string[] => lines.filter((line) => /lost its address|has an IPv6 address/.test(line))
  setGone({ ipv6: 'eth0 has lost its address fd77::1' })
  await vi.advanceTimersByTimeAsync(60_000)
  expect(said()).toEqual([
    expect.stringMatching(
      /eth0 has lost its address fd77::1: no IPv6 packets pass between this node and others until the address is back or another is found$/,
    ),
  ])
  setGone({})
  await vi.advanceTimersByTimeAsync(60_000)
  expect(said().slice(1)).toEqual([expect.stringMatching(/The external interface has an IPv6 address again$/)])
  expect([dataPaths.length, dataPaths[0]!.closed]).toEqual([1, false])
})

it('continues with one family while the host cannot be prepared for the other', async () => {
  let isBroken = false
  const failing: typeof backend = {
    ...backend,
    prepare(signal) {
      if (isBroken) throw new WeftError('COMMAND', 'no key')
      return backend.prepare(signal)
    },
  }
  start({ backend: failing })
  await ready()
  isBroken = true
  dataPaths[0]!.lacking = { ipv6: 'no device' }
  await until(() => logged(/^E Cannot open the data path: no key/), 5300)
  expect([dataPaths.length, dataPaths[0]!.closed, dataPaths[0]!.renewed.length]).toEqual([1, false, 0])
})

it('checks the device within a quarter of a second after the host reports a change, and once for many changes', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  await vi.advanceTimersByTimeAsync(1000)
  for (const round of [1, 2, 3]) {
    dataPaths[0]!.repaired = ['flannel0 was down']
    for (let times = 0; times < 10; times++) hostChanged.ring()
    await vi.advanceTimersByTimeAsync(250)
    expect(lines.filter((line) => line.startsWith('W Repaired: flannel0'))).toHaveLength(round)
  }
})

it('spends at most a tenth of the time on checks while the host changes all the time, and handles a fault in a pause', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  await vi.advanceTimersByTimeAsync(1000)
  let checks = 0
  vi.spyOn(process, 'cpuUsage').mockImplementation((before) => ({
    user: performance.now() * 1000 - (before?.user ?? 0),
    system: 0,
  }))
  dataPaths[0]!.looking = async () => {
    checks++
    await new Promise((resolve) => setTimeout(resolve, 300))
  }
  const changing = setInterval(() => hostChanged.ring(), 50)
  await vi.advanceTimersByTimeAsync(33_000)
  expect(checks).toBeGreaterThanOrEqual(8)
  expect(checks).toBeLessThanOrEqual(11)
  clearInterval(changing)
  hostChanged.ring()
  const before = checks
  await until(() => checks > before, 5000)
  await vi.advanceTimersByTimeAsync(400)
  dataPaths[0]!.die('the TUN was deleted')
  await until(() => dataPaths.length === 2, 100)
})

it('checks again five seconds after a report, because changes right after it may not be reported', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  await vi.advanceTimersByTimeAsync(20_000)
  hostChanged.ring()
  await vi.advanceTimersByTimeAsync(1000)
  dataPaths[0]!.repaired = ['flannel0 was down']
  await vi.advanceTimersByTimeAsync(5000)
  await until(() => logged(/^W Repaired: flannel0 was down/), 0)
})

it('checks again within a quarter of a second after a repair', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  await vi.advanceTimersByTimeAsync(20_000)
  dataPaths[0]!.repaired = ['flannel0 was down']
  hostChanged.ring()
  await vi.advanceTimersByTimeAsync(50)
  dataPaths[0]!.repaired = ['flannel0 had lost its address']
  await vi.advanceTimersByTimeAsync(250)
  await until(() => logged(/^W Repaired: flannel0 had lost its address/), 0)
})

it('logs only the first of many repairs, and checks less often if another program undoes them', async () => {
  const hostChanged = createBell()
  start({}, hostChanged)
  await ready()
  dataPaths[0]!.repaired = Array.from({ length: 100 }, () => 'flannel0 was down')
  await vi.advanceTimersByTimeAsync(5000)
  dataPaths[0]!.repaired = ['flannel0 was down']
  await vi.advanceTimersByTimeAsync(4000)
  expect(dataPaths[0]!.repaired).toHaveLength(1)
  expect(lines.filter((line) => line.startsWith('W Repaired'))).toHaveLength(7)
  await vi.advanceTimersByTimeAsync(120_000)
  dataPaths[0]!.repaired = ['flannel0 had lost its address']
  hostChanged.ring()
  await until(() => logged(/^W Repaired: flannel0 had lost its address \(repair \d+ since the start\)$/))
})

it('opens a data path again after one that cannot be closed, and reports the reason', async () => {
  start()
  await ready()
  dataPaths[0]!.stuck = new WeftError('COMMAND', '`ip link del` failed: no answer within 10 s')
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[0]!.die('the TUN was deleted')
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0)
  expect(lines).toContain('E Cannot close the data path: `ip link del` failed: no answer within 10 s')
})

it('publishes the new attributes of a data path that is opened again immediately, and nothing if they are the same', async () => {
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
  // The new key must be published within 100 ms, so weftd waits neither for a listing nor for the renewal.
  await until(() => published().some((text) => text.includes('"PublicKey":"second"')), 100)
})

describe('with an amendment that an operator made in the store of the leases', () => {
  const given = parseIpv4('198.51.100.7')!
  let answer: (publicIp: Addresses, signal: AbortSignal) => Promise<Addresses>
  let opened: LeaseAttrs[]
  function startAmended(): void {
    opened = []
    const manager = {
      ...managerOf(store),
      amend: (publicIp: Addresses, signal: AbortSignal) => answer(publicIp, signal),
    }
    const plan = planOf((lease) => {
      opened.push({ ...lease.attrs })
      return openFake(lease)
    })
    start({ manager, backend: amended({ ...backend, plan }, manager, log) })
  }

  it.each<[what: string, away: typeof answer]>([
    ['refuses', () => Promise.reject(new WeftError('STORE_UNAVAILABLE', 'away'))],
    [
      'says nothing',
      (_publicIp, signal) =>
        new Promise((_resolve, reject) => {
          signal.addEventListener('abort', () => reject(signal.reason as Error))
        }),
    ],
  ])('opens one that died again with the last known amendment while the store %s', async (_what, away) => {
    answer = async (publicIp) => ({ ...publicIp, ipv4: given })
    startAmended()
    await ready()
    await vi.advanceTimersByTimeAsync(2000)
    answer = away
    dataPaths[0]!.die('the MTU of eth0 changed')
    await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0, 2_000)
    answer = async (publicIp) => ({ ...publicIp, ipv4: parseIpv4('198.51.100.8')! })
    await vi.advanceTimersByTimeAsync(2000)
    dataPaths[1]!.die('again')
    await until(() => dataPaths.length === 3 && dataPaths[2]!.applied.length > 0, 2_000)
    expect(opened.map(({ publicIp }) => publicIp.ipv4)).toEqual([given, given, parseIpv4('198.51.100.8')])
  })

  it('remembers the events of each family, and nothing about a family without events', async () => {
    const addresses = [1n, 2n, 2n].map((ipv6) => ({ ipv4: parseIpv4('192.0.2.1')!, ipv6 }))
    const manager = { ...managerOf(store), amend: async (publicIp: Addresses) => ({ ...publicIp, ipv4: given }) }
    const prepare = async () => ({ publicIp: addresses.shift()!, backendType: '' })
    const node = amended({ ...backend, prepare }, manager, log)
    expect(amended(node, manager, log)).toBe(node)
    const { signal } = new AbortController()
    expect((await node.prepare(signal)).publicIp).toEqual({ ipv4: given, ipv6: 1n })
    manager.amend = () => Promise.reject(new WeftError('STORE_UNAVAILABLE', 'away'))
    expect((await node.prepare(signal)).publicIp).toEqual({ ipv4: given, ipv6: 2n })
    // A node that lacks a family is prepared again every five seconds.
    await node.prepare(signal)
    expect(lines.filter((line) => line.includes('the last known one is used'))).toHaveLength(1)
  })

  it('waits for the store at the start, because it is unknown whether an amendment exists', async () => {
    answer = () => Promise.reject(new WeftError('STORE_UNAVAILABLE', 'away'))
    startAmended()
    await vi.advanceTimersByTimeAsync(60_000)
    expect(dataPaths).toEqual([])
    answer = async (publicIp) => publicIp
    await until(() => dataPaths.length === 1, 2_000)
    await ready()
  })
})

it('writes subnet.env immediately if the reopened data path has another MTU, and does not count that as a repair', async () => {
  const mtus = [1472, 8972]
  const plan: typeof backend.plan = (lease) => planOf(openFake, mtus.shift())(lease)
  start({ backend: { ...backend, plan } })
  await ready()
  const mtu = () => /FLANNEL_MTU=(\d+)/.exec(readFileSync(subnetFile(), 'utf8'))![1]
  expect(mtu()).toBe('1472')
  await vi.advanceTimersByTimeAsync(2000)
  dataPaths[0]!.die('the MTU of eth0 changed')
  await until(() => mtu() === '8972', 100)
  await vi.advanceTimersByTimeAsync(6000)
  expect(logged(/Repaired: .*subnet.env/)).toBe(false)
})

it('does not repair a lent path until it is taken back', async () => {
  const lease = {
    key: '10.5.0.64-26',
    subnet: { ipv4: { address: parseIpv4('10.5.0.64')!, prefixLength: 26 } },
    attrs: await backend.prepare(stopping.signal),
    expiresAt: undefined,
    revision: 1n,
  }
  const lent = new Ownership(log)
  const leave = async () => [{ loops: [] } as unknown as OpenPath]
  const lendable = { handover: { isLendable: true, leave, takeBack: async () => {} } }
  const plan = planOf(async (of) => ({ ...(await openFake(of)), ...lendable }))
  await lent.open(() => openPaths({ plan, external: EXTERNAL }, lease, new ModelKernel()))
  const options = { 'subnet-file': subnetFile() } as NewNode['options']
  const view = new Map([[lease.key, lease]])
  const facts = { config: {} as Node['config'], backend, lease, attrs: lease.attrs, pathLease: lease, view }
  const node = Object.assign(createNode({ options, store: '', kernel: new ModelKernel(), log, stopping }, lent), facts)
  await lent.lend()
  const over = keepDataPath(node).catch(() => {})
  dataPaths[0]!.repaired = ['flannel0 was down']
  dataPaths[0]!.die('the device is gone')
  await vi.advanceTimersByTimeAsync(60_000)
  expect([dataPaths.length, dataPaths[0]!.repaired.length, dataPaths[0]!.closed]).toEqual([1, 1, false])
  await lent.takeBack()
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0)
  expect(dataPaths[0]!.closed).toBe(true)
  stopping.abort(new Error('enough'))
  await over
})
