// lease.test.ts - when a node renews its lease, and what it does after it lost the lease.

import { readFileSync } from 'node:fs'
import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { LEASE_TTL_MS } from '../../../support/memory-store.ts'
import {
  installRig,
  dataPaths,
  lines,
  logged,
  nodeStatus,
  ofFamilies,
  ours,
  own,
  ownership,
  ready,
  start,
  stopping,
  store,
  subnetFile,
  trouble,
  until,
  value,
} from '../../../support/node-rig.ts'

installRig()

it.each([
  [0, 60],
  [0.5, 63],
  [0.999, 66],
])('renews its lease, by the random number %d, %d minutes before it ends', async (random, minutes) => {
  vi.spyOn(Math, 'random').mockReturnValue(random)
  start()
  await ready()
  const revision = store.entries.get(own())!.revision
  expect(logged(/Waiting for (1h0|5\d)m\d+s to renew lease/)).toBe(true)
  await vi.advanceTimersByTimeAsync(LEASE_TTL_MS - minutes * 60_000 - 5_000)
  expect(store.entries.get(own())!.revision).toBe(revision)
  await vi.advanceTimersByTimeAsync(6_000)
  await until(() => logged(/Lease renewed, new expiration: \d{4}-\d\d-\d\d .* UTC/))
  expect(store.entries.get(own())!.revision).not.toBe(revision)
})

it.each([
  ['the host was suspended, whose timers stood still', LEASE_TTL_MS - 3_600_000, 60_000],
  ['the clock was set back', -3_600_000, LEASE_TTL_MS - 3_600_000],
])('renews its lease in time though %s', async (_title, jumpMs, withinMs) => {
  start()
  await ready()
  const { revision } = store.entries.get(own())!
  vi.setSystemTime(Date.now() + jumpMs)
  expect(store.entries.get(own())!.revision).toBe(revision)
  await vi.advanceTimersByTimeAsync(withinMs + 1000)
  expect(store.entries.get(own())!.revision).not.toBe(revision)
})

it.each(['while the lease is written', 'between the lease and the wait for its renewal'])(
  'renews its lease in time although the clock was set back %s',
  async (when) => {
    const setBack = (): void => void vi.setSystemTime(Date.now() - LEASE_TTL_MS / 3)
    const create = store.create.bind(store)
    store.create = async (...args) => {
      const written = await create(...args)
      if (when.startsWith('while')) setBack()
      return written
    }
    const rules = {
      raise: async () => (when.startsWith('while') ? undefined : setBack()),
      ensure: async () => ({ repaired: [], failures: [] }),
    }
    start({ firewall: { rules, resyncMs: 60_000 } })
    await ready()
    expect(logged(/Waiting for (1h0|5\d)m\d+s to renew lease/)).toBe(true)
    const { revision } = store.entries.get(own())!
    await vi.advanceTimersByTimeAsync(LEASE_TTL_MS - 3_600_000)
    expect(store.entries.get(own())!.revision).not.toBe(revision)
  },
)

it('renews its lease in time even if the clock was hours ahead while the lease was written', async () => {
  const create = store.create.bind(store)
  store.create = async (...args) => {
    vi.setSystemTime(Date.now() + 8 * 3_600_000)
    return create(...args)
  }
  const raise = async (): Promise<void> => void vi.setSystemTime(Date.now() - 8 * 3_600_000)
  start({ firewall: { rules: { raise, ensure: async () => ({ repaired: [], failures: [] }) }, resyncMs: 60_000 } })
  await ready()
  const { revision } = store.entries.get(own())!
  // The store gave the lease for a day. The test lets a day pass on both clocks.
  await vi.advanceTimersByTimeAsync(LEASE_TTL_MS)
  expect(store.entries.get(own())!.revision).not.toBe(revision)
})

it('tries to renew again after a second, then less and less often, for as long as it takes', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(LEASE_TTL_MS - 1.1 * 3_600_000 - 60_000)
  store.setDown(true)
  await vi.advanceTimersByTimeAsync(600_000 + 63_000 + 3 * 60_000)
  const tries = lines.flatMap(
    (line) => /Error renewing lease \(trying again in (.*)\): the store is down/.exec(line)?.[1] ?? [],
  )
  expect(tries.slice(0, 8)).toEqual(['1 s', '2 s', '4 s', '8 s', '16 s', '32 s', '1 min', '1 min'])
  store.setDown(false)
  await vi.advanceTimersByTimeAsync(61_000)
  expect(logged(/Lease renewed/)).toBe(true)
})

it('is impaired while the store refuses the renewal, and while no subnet is free after the lease was lost', async () => {
  start()
  await ready()
  const update = store.update.bind(store)
  store.update = async () => {
    throw new WeftError('STORE', 'permission denied')
  }
  await vi.advanceTimersByTimeAsync(LEASE_TTL_MS - 50 * 60_000)
  const what = "this node's lease cannot be renewed: permission denied"
  expect(await nodeStatus()).toMatchObject({
    state: 'impaired',
    impairments: [{ by: 'store', what }],
    store: { reachable: true },
    lease: { unrenewed: 'permission denied' },
  })
  expect(trouble()).toBe("this node's lease cannot be renewed")
  store.update = update
  await vi.advanceTimersByTimeAsync(61_000)
  expect(await nodeStatus()).toMatchObject({ state: 'working', lease: { unrenewed: null } })
  for (const last of [64, 128, 192]) store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
  await until(() => logged(/^E failed to acquire lease: .*out of subnets/), 5_000)
  expect((await nodeStatus()).lease!.unrenewed).toMatch(/^waiting for a lease: .*out of subnets/)
  store.remove('10.5.0.128-26')
  await until(() => logged(/^. (Lease of 10\.5\.0\.128\/26 acquired again|.* to 10\.5\.0\.128\/26: )/), 61_000)
  expect((await nodeStatus()).lease!.unrenewed).toBe(null)
})

it('reports once an hour that its lease cannot be written but stays valid, and writes it as soon as possible', async () => {
  start()
  await ready()
  const update = store.update.bind(store)
  let isFull = true
  store.update = async (...args) =>
    isFull
      ? { revision: args[2].revision, expiresAt: Date.now() + LEASE_TTL_MS, unwritten: 'the store is full' }
      : update(...args)
  await vi.advanceTimersByTimeAsync(LEASE_TTL_MS)
  const { revision } = store.entries.get(own())!
  const said = (): number =>
    lines.filter((line) => line === 'E The lease was extended, but its value cannot be written: the store is full')
      .length
  const before = said()
  await vi.advanceTimersByTimeAsync(2 * 3_600_000)
  expect(said() - before).toBeGreaterThanOrEqual(2)
  expect(said() - before).toBeLessThanOrEqual(3)
  isFull = false
  await vi.advanceTimersByTimeAsync(3_600_000)
  expect(store.entries.get(own())!.revision).toBeGreaterThan(revision)
  const after = said()
  await vi.advanceTimersByTimeAsync(2 * 3_600_000)
  expect(said()).toBe(after)
})

it('continues to forward if its subnet is taken and no other is free, until one becomes free', async () => {
  start()
  await ready()
  for (const last of [64, 128, 192]) store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
  await until(() => logged(/^E failed to acquire lease: .*out of subnets/), 5_000)
  expect(dataPaths).toHaveLength(1)
  expect(dataPaths[0]!.closed).toBe(false)
  const free = ['10.5.0.64-26', '10.5.0.128-26', '10.5.0.192-26'].find((key) => key !== dataPaths[0]!.subnet)!
  store.remove(free)
  await until(() => dataPaths.at(-1)!.subnet === free, 5_000)
})

it('requests a subnet less and less often if none is free, because each attempt lists all leases', async () => {
  start()
  await ready()
  for (const last of [64, 128, 192]) store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
  await until(() => logged(/^E failed to acquire lease: .*out of subnets/), 5_000)
  const list = store.list.bind(store)
  let lists = 0
  store.list = (signal) => {
    lists++
    return list(signal)
  }
  await vi.advanceTimersByTimeAsync(600_000)
  // The node that follows the leases lists them once a minute in addition.
  expect(lists).toBeLessThan(10 + 600 / 15 + 8)
  const free = ['10.5.0.64-26', '10.5.0.128-26', '10.5.0.192-26'].find((key) => key !== dataPaths[0]!.subnet)!
  store.remove(free)
  await until(() => dataPaths.at(-1)!.subnet === free, 31_000)
})

it('takes its subnet again when its lease is deleted, and forwards meanwhile', async () => {
  start()
  await ready()
  const key = own()
  store.remove(key)
  await until(() => logged(/Lease of .* acquired again/))
  expect(logged(/^E Lease has been revoked: .* is gone from the store/)).toBe(true)
  expect(own()).toBe(key)
  expect(dataPaths).toHaveLength(1)
  expect(dataPaths[0]!.closed).toBe(false)
})

it('keeps its lease alive after an operator has turned its reservation into a lease that expires', async () => {
  store.put('10.5.0.64-26', ours, true)
  start()
  await ready()
  expect([own(), (await nodeStatus()).lease!.expiresAt]).toEqual(['10.5.0.64-26', null])
  store.put(own(), ours, false)
  await until(() => logged(/^I Waiting for \S+ to renew lease$/))
  expect(store.entries.get(own())).toMatchObject({ isReservation: false, value: ours })
  const { revision } = store.entries.get(own())!
  await vi.advanceTimersByTimeAsync(LEASE_TTL_MS)
  expect(store.entries.get(own())!.revision).toBeGreaterThan(revision)
})

it('reports a reservation as soon as an operator has reserved its lease', async () => {
  start()
  await ready()
  store.put(own(), ours, true)
  await until(() => logged(/^I Lease renewed/))
  expect((await nodeStatus()).lease!.expiresAt).toBe(null)
  expect(store.entries.get(own())).toMatchObject({ isReservation: true, value: ours })
})

it.each([
  ['a typo', '{"PublicIP":'],
  ['no JSON', 'hello'],
  ['an empty value', ''],
  ['an object without an address', '{}'],
  ['a lease of no address', '{"PublicIP":"0.0.0.0","PublicIPv6":null}'],
  ['its own lease with a type', '{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"vxlan"}'],
])('writes over %s that somebody put under its own key, at once, says what it was, and stays', async (_title, text) => {
  start()
  await ready()
  const key = own()
  store.put(key, text)
  // Within 1 ms of virtual time neither a listing nor the renewal can notice the change, so the watch does.
  await until(() => store.entries.get(key)!.value === ours, 1)
  expect(lines).toContain(
    `W The value of this node's own key ${key} is not what it wrote, and is overwritten: ${JSON.stringify(text)}`,
  )
  expect(logged(/revoked|moves/)).toBe(false)
  expect(dataPaths).toHaveLength(1)
})

it.each<[what: string, write: (key: string) => void, isTheirs: (key: string) => boolean]>([
  [
    'under another key, for both families',
    (key) => {
      store.put(`${key}&fd00:5::-64`, '{"PublicIP":"192.0.2.1","PublicIPv6":"fd00::1"}')
      store.remove(key)
    },
    (key) => !store.entries.has(key) && store.entries.has(`${key}&fd00:5::-64`),
  ],
  [
    'with other attributes',
    (key) => store.put(key, '{"PublicIP":"192.0.2.1","PublicIPv6":null,"BackendType":"host-gw"}'),
    (key) => store.entries.get(key)?.value.includes('host-gw') === true,
  ],
])('leaves its lease to the successor that wrote it %s, until that one has gone', async (_what, write, isTheirs) => {
  start()
  await ready()
  const key = own()
  ownership.hasSuccessor = true
  write(key)
  await vi.advanceTimersByTimeAsync(1_200_000)
  expect([isTheirs(key), store.entries.size]).toEqual([true, 1])
  expect(logged(/Lease has been revoked/)).toBe(false)
  ownership.hasSuccessor = false
  await until(() => store.entries.get(key)?.value === ours, 120_000)
  expect(store.entries.size).toBe(1)
})

it('acquires its subnet again although a successor prepares, if no process of this node has a lease', async () => {
  start()
  await ready()
  const key = own()
  ownership.hasSuccessor = true
  store.remove(key)
  await until(() => store.entries.get(key)?.value === ours, 2000)
})

it('writes its key less and less often if another node overwrites the key each time', async () => {
  start()
  await ready()
  const key = own()
  const update = store.update.bind(store)
  let answers = 0
  store.update = async (...args) => {
    const written = await update(...args)
    if (written && ++answers > 0) store.put(key, '{"PublicIP":"192.0.2.1","BackendType":"vxlan"}')
    return written
  }
  store.put(key, 'x')
  await until(() => answers > 0)
  await vi.advanceTimersByTimeAsync(600_000)
  expect(answers).toBeGreaterThan(10) // it does not give up
  expect(answers).toBeLessThan(25)
})

it('writes a deleted lease again before its peers remove this node, however often the lease is deleted', async () => {
  start()
  await ready()
  for (let times = 0; times < 20; times++) {
    store.remove(own())
    await vi.advanceTimersByTimeAsync(15_000)
    expect([...store.entries.keys()], `after ${times + 1} deletions`).toEqual([own()])
  }
})

it('notices a deletion that came before the first listing', async () => {
  const list = store.list.bind(store)
  store.list = async (signal) => {
    if (dataPaths.length === 1 && !logged(/revoked/) && store.entries.size > 0) store.remove(own())
    return list(signal)
  }
  start()
  await until(() => logged(/acquired again/))
  expect(store.entries.size).toBe(1)
})

it('moves to another subnet when another node has its subnet', async () => {
  start()
  await ready()
  const before = own()
  store.put(before, value('192.0.2.9'))
  await until(() => dataPaths.length === 2 && dataPaths[1]!.applied.length > 0)
  expect(logged(/leased by another node now: .*192\.0\.2\.9/)).toBe(true)
  expect(logged(/Two nodes/)).toBe(false)
  expect(dataPaths[0]!.closed).toBe(true)
  expect(dataPaths[1]!.subnet).toBe(own())
  expect(own()).not.toBe(before)
  expect(dataPaths[1]!.applied.at(-1)).toEqual([before])
  await until(
    () =>
      readFileSync(subnetFile(), 'utf8').includes(`FLANNEL_SUBNET=${own().replace(/\d+-26/, '')}`) &&
      lines.filter((line) => line.includes('Wrote subnet')).length === 2,
  )
})

it('leases a subnet of a family when the node gets an address of that family, and keeps its other subnet', async () => {
  const { config, backend: ofBoth } = ofFamilies('ipv4', 'ipv6')
  let hasIpv6 = false
  const prepare: typeof ofBoth.prepare = async (signal) => {
    const attrs = await ofBoth.prepare(signal)
    return hasIpv6 ? attrs : { ...attrs, publicIp: { ipv4: attrs.publicIp.ipv4 } }
  }
  start({ config, backend: { ...ofBoth, prepare } })
  await ready()
  const [before] = [...store.entries.keys()]
  expect(before).toMatch(/^10\.5\.0\.\d+-26$/)
  hasIpv6 = true
  dataPaths[0]!.die('eth0 has an IPv6 address now')
  await until(() => [...store.entries.keys()].join().startsWith(`${before}&fd00:5:`), 5_000)
  await until(
    () => dataPaths.at(-1)!.subnet === own() && logged(/^I This node has 10\.5\.0\.\S+ and fd00:5:\S+ now/),
    5_000,
  )
  expect(store.entries.size).toBe(1)
  expect(logged(/containers on the old subnet must be started again/)).toBe(false)
  await vi.advanceTimersByTimeAsync(5_000)
  expect(lines.filter((line) => /Subnet (added|removed)/.test(line))).toEqual([]) // the node has no peers
})

it('renews its present lease if no subnet is free for a family that the node gained', async () => {
  const { config, backend: ofBoth } = ofFamilies('ipv4', 'ipv6')
  let hasIpv4 = false
  const prepare: typeof ofBoth.prepare = async (signal) => {
    const attrs = await ofBoth.prepare(signal)
    return hasIpv4 ? attrs : { ...attrs, publicIp: { ipv6: attrs.publicIp.ipv6 } }
  }
  for (const last of [64, 128, 192]) store.put(`10.5.0.${last}-26`, value(`192.0.2.${last}`))
  start({ config, backend: { ...ofBoth, prepare } })
  await ready()
  const before = own()
  hasIpv4 = true
  dataPaths[0]!.die('eth0 has an IPv4 address now')
  await until(() => logged(/^E This node keeps the subnets that it has: out of subnets/), 5_000)
  await until(() => logged(/Lease renewed/), 5_000)
  const renewals = (): number => lines.filter((line) => line.includes('Lease renewed')).length
  const first = renewals()
  await vi.advanceTimersByTimeAsync(LEASE_TTL_MS)
  expect(renewals()).toBeGreaterThan(first)
  expect([own(), stopping.signal.aborted]).toEqual([before, false])
})
