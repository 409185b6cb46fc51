// data-paths.test.ts - the data paths of two families: a failure of one family and its effect on the other.

import { expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import type { Lease, OwnLease } from '../../../src/control/lease/lease.ts'
import { currentExternal, type ExternalInterface } from '../../../src/host/external-interface.ts'
import { FAMILIES, formatAddress, parseAddress, type Family } from '../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../src/net/ipv6.ts'
import { openDataPaths, type DataPaths } from '../../../src/node/data-paths.ts'
import type { DataPath, Observing, PlannedPath } from '../../../src/path/contract.ts'
import { checkFamily } from '../../../src/path/device/tun-device.ts'
import type { OpenPath } from '../../../src/path/engine/engine.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

const PUBLIC = { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('fd00::1')! }
const LEASE: OwnLease = {
  key: 'own',
  subnet: { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: parseIpv6Net('fd00:5:1::/64')! },
  attrs: { publicIp: PUBLIC, backendType: '' },
  expiresAt: undefined,
  revision: 0n,
}
const LEASES: ReadonlyMap<string, Lease> = new Map([
  ['k', { key: 'k', subnet: {}, attrs: { publicIp: {}, backendType: '' } }],
])

/** The session with the one peer that a family's path returns. */
const sessionBy = (family: Family) => ({
  publicKey: 'K',
  handshakeAt: family === 'ipv4' ? 4 : 6,
  ageMs: undefined,
  txBytes: 10,
  rxBytes: 5,
})

/**
 * Data paths that record their calls. A family in `broken` cannot be opened, one in `deaf` rejects `apply`, and one in
 * `blind` rejects `resync`. `host` is the current external interface.
 */
function rig(lease = LEASE, more: (family: Family) => Partial<DataPath> = () => ({})) {
  const calls: string[] = []
  const checked: Family[] = []
  const host = { name: 'eth0', mtu: 1500, ipv4: '192.0.2.1', ipv6: 'fd00::1' }
  const blind = new Set<Family>()
  const owns: Partial<Record<Family, OwnLease>> = {}
  let external: ExternalInterface = {
    name: 'eth0',
    index: 1,
    mtu: 1500,
    address: PUBLIC,
    publicIp: PUBLIC,
    named: { address: {}, publicIp: {} },
  }
  /** The kernel of the host, with the external interface as `host` describes it now. */
  const kernelNow = (): ModelKernel => {
    const model = new ModelKernel()
    const addresses = FAMILIES.map((family) => ({ address: parseAddress(host[family])!, prefixLength: 24 }))
    model.addLink({ name: host.name, index: 1, mtu: host.mtu }, addresses)
    return model
  }
  const kernel = Object.assign(new ModelKernel(), { link: (which: string | number) => kernelNow().link(which) })
  /** Does the same as a backend's `prepare` followed by `renew`. */
  async function again(path: DataPaths): Promise<void> {
    external = await currentExternal(kernel, external)
    await path.renew({ publicIp: external.publicIp, backendType: '' })
  }
  const broken = new Set<Family>()
  const deaf = new Set<Family>()
  const stuck = new Set<Family>()
  /** `resync` of this family hangs until it is released. */
  const slow: { family?: Family; end: () => void } = { end: () => {} }
  /** `apply` of this family hangs until it is released. */
  const hanging: { family?: Family; end: () => void } = { end: () => {} }
  const errors: string[] = []
  const infos: string[] = []
  const faults: Partial<Record<Family, (reason: Error) => void>> = {}
  const log = {
    info: (line: string) => void infos.push(line),
    warn: () => {},
    error: (line: string) => void errors.push(line),
    v: () => false,
  }
  const knew: Partial<Record<Family, ReadonlyMap<string, Lease>>> = {}
  async function open(family: Family, own: OwnLease, known: ReadonlyMap<string, Lease>): Promise<DataPath> {
    owns[family] = own
    knew[family] = known
    if (broken.has(family)) throw new WeftError('DEVICE', `no ${family}`)
    calls.push(`open ${family}`)
    return {
      families: [family],
      fault: new Promise((resolve) => (faults[family] = resolve)),
      async apply(leases, _ownKey, touched) {
        if (hanging.family === family) await new Promise<void>((resolve) => (hanging.end = resolve))
        if (deaf.has(family)) throw new WeftError('COMMAND', `${family} rejects its peers`)
        calls.push(`apply ${family} ${[...leases.keys()].join()}${touched ? ` of ${[...touched].join()}` : ''}`)
      },
      async resync() {
        checked.push(family)
        if (blind.has(family)) throw new WeftError('COMMAND', `${family} is not seen`)
        if (slow.family === family) await new Promise<void>((resolve) => (slow.end = resolve))
        return [`${family} was repaired`]
      },
      carrier: () => ({ device: family, engine: 'kernel', features: [] }),
      peers: () => [{ key: 'k', [family]: { endpoint: family } }],
      counting: {
        traffic: async () =>
          new Map([
            [
              'k',
              {
                txPackets: 1,
                txBytes: 10,
                rxPackets: undefined,
                rxBytes: 5,
                lastReceivedAt: family === 'ipv4' ? 7 : 9,
                sessions: { [family]: sessionBy(family) },
              },
            ],
          ]),
      },
      handshakes: {
        unknownKeys: () => [{ publicKey: `of nobody, by ${family}`, from: { address: 1, port: 1 }, at: 2 }],
      },
      counters: () => ({ route_failures: 2n }),
      unusable: () => new Set(['u', family]),
      async close() {
        calls.push(`close ${family}`)
        faults[family]?.(new Error(`${family} was closed`)) // like a child process that was ended
        if (stuck.has(family)) throw new WeftError('COMMAND', `${family} cannot be closed`)
      },
      ...more(family),
    }
  }
  const openPlan = (
    plan: (external: () => ExternalInterface) => readonly PlannedPath[],
    signal = new AbortController().signal,
    leases: ReadonlyMap<string, Lease> = new Map(),
  ): Promise<DataPaths> => {
    const backend = {
      get external() {
        return external
      },
      plan: () => plan(() => external),
    }
    return openDataPaths({ backend, lease, leases, signal, kernel, log })
  }
  return {
    calls,
    checked,
    broken,
    deaf,
    blind,
    stuck,
    slow,
    hanging,
    host,
    owns,
    knew,
    errors,
    infos,
    faults,
    again,
    openFake: open,
    openPlan,
    open: (mtu = 1430, isUnbound = false, signal = new AbortController().signal, leases?: ReadonlyMap<string, Lease>) =>
      openPlan(
        () =>
          FAMILIES.map((family) => ({
            families: [family],
            mtu,
            external: { families: [family], isBound: !isUnbound },
            async open(own, known) {
              checkFamily(family, mtu, external)
              return open(family, own, known)
            },
          })),
        signal,
        leases,
      ),
  }
}

it('two data paths work like one', async () => {
  const { calls, open } = rig()
  const path = await open()
  await path.apply(LEASES, 'own')
  expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
  expect(path.mtu).toBe(1430)
  expect(path.carrier().device).toBe('ipv4')
  expect(path.peers()).toEqual([{ key: 'k', ipv4: { endpoint: 'ipv4' }, ipv6: { endpoint: 'ipv6' } }])
  expect([...(await path.traffic())]).toEqual([
    [
      'k',
      {
        txPackets: 2,
        txBytes: 20,
        rxPackets: undefined,
        rxBytes: 10,
        lastReceivedAt: 9,
        sessions: { ipv4: sessionBy('ipv4'), ipv6: sessionBy('ipv6') },
      },
    ],
  ])
  expect(path.unknownKeys!().map(({ publicKey }) => publicKey)).toEqual(['of nobody, by ipv4', 'of nobody, by ipv6'])
  // The lease `u` is unusable in both families, but is one lease.
  expect(path.counters()).toEqual({ route_failures: 4n, peers_unusable: 3n })
  expect(path.unreported).toBe(false)
  await path.close()
  expect(calls).toEqual(['open ipv4', 'open ipv6', 'apply ipv4 k', 'apply ipv6 k', 'close ipv4', 'close ipv6'])
})

it('checks a family again while a check of the other hangs, whose result follows later', async () => {
  const r = rig()
  const path = await r.open()
  r.slow.family = 'ipv6'
  const late = Promise.resolve()
  for (let times = 1; times <= 3; times++) {
    expect(await path.resync(late)).toEqual(['ipv4 was repaired'])
    // The next check of this family comes soon.
    expect(path.unreported).toBe(true)
  }
  expect(r.checked).toEqual(['ipv4', 'ipv6', 'ipv4', 'ipv4'])
  delete r.slow.family
  r.slow.end()
  await new Promise((resolve) => setImmediate(resolve))
  expect(await path.resync(late)).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
  expect([path.unreported, r.errors]).toEqual([false, []])
  expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
  expect(r.checked.slice(4)).toEqual(['ipv4', 'ipv4', 'ipv6'])
})

it('waits for the only running check, however late it is', async () => {
  const r = rig({ ...LEASE, subnet: { ipv6: LEASE.subnet.ipv6 } })
  const path = await r.open()
  r.slow.family = 'ipv6'
  const checking = path.resync(Promise.resolve())
  await expect(Promise.race([checking, new Promise((resolve) => setImmediate(resolve, 'not yet'))])).resolves.toBe(
    'not yet',
  )
  r.slow.end()
  expect(await checking).toEqual(['ipv6 was repaired'])
})

it('does not log a family that a stop keeps from being opened', async () => {
  const r = rig()
  const stopping = new AbortController()
  stopping.abort()
  r.broken.add('ipv6')
  const path = await r.open(1430, false, stopping.signal)
  expect([Object.keys(path.lacking), r.errors]).toEqual([['ipv6'], []])
})

it('names the device of each family', async () => {
  const path = await rig().open()
  expect(path.carrier()).toMatchObject({ device: 'ipv4', devices: { ipv4: 'ipv4', ipv6: 'ipv6' } })
})

it('keeps a family open whose address is missing, reports it, and continues when it is back', async () => {
  const r = rig()
  const path = await r.open()
  r.host.ipv6 = 'fe80::1'
  await path.resync()
  expect([path.gone(), path.lacking]).toEqual([{ ipv6: 'eth0 has lost its address fd00::1' }, {}])
  r.host.ipv6 = 'fd00::1'
  await path.resync()
  expect([path.gone(), r.calls]).toEqual([{}, ['open ipv4', 'open ipv6']])
})

/** Events that end one family, each with the logged reason. */
const ENDS: readonly (readonly [what: string, end: (r: ReturnType<typeof rig>) => void, why: string])[] = [
  ['a fault', ({ faults }) => faults.ipv6!(new Error('flannel-wg is gone')), 'flannel-wg is gone'],
  ['another address', ({ host }) => (host.ipv6 = 'fd00::2'), 'the address of eth0 changed from fd00::1 to fd00::2'],
]

it.each(ENDS)(
  '%s of one family reopens only that family, with its peers and the attributes that the node then publishes',
  async (_what, end, why) => {
    const r = rig()
    const path = await r.open()
    await path.apply(LEASES, 'own')
    end(r)
    expect(await path.resync()).toEqual(['ipv4 was repaired'])
    expect([path.lacking, path.unreported, path.isOutdated]).toEqual([{ ipv6: why }, true, true])
    expect(r.errors).toEqual([`Cannot carry IPv6, trying again: ${why}`])
    expect(path.peers()).toEqual([{ key: 'k', ipv4: { endpoint: 'ipv4' } }])
    await path.apply(LEASES, 'own')
    await r.again(path)
    expect([path.lacking, path.unreported]).toEqual([{}, false])
    expect(r.calls).toEqual([
      'open ipv4',
      'open ipv6',
      'apply ipv4 k',
      'apply ipv6 k',
      'apply ipv4 k',
      'close ipv6',
      'open ipv6',
      'apply ipv6 k',
    ])
    expect(r.infos).toEqual(['IPv6 is carried again'])
    // The IPv4 path must also use the node's new IPv6 address.
    expect(r.owns.ipv4!.attrs.publicIp.ipv6).toBe(parseIpv6(r.host.ipv6))
    expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
    await expect(Promise.race([path.fault, Promise.resolve('pending')])).resolves.toBe('pending')
  },
)

it.each<[what: string, end: (r: ReturnType<typeof rig>) => void, why: string]>([
  [
    'both addresses change',
    ({ host }) => Object.assign(host, { ipv4: '192.0.2.2', ipv6: 'fd00::2' }),
    'the address of eth0 changed from 192.0.2.1 to 192.0.2.2',
  ],
  ['the MTU changes', ({ host }) => (host.mtu = 1400), 'the MTU of eth0 changed from 1500 to 1400'],
])('fails as a whole if %s', async (_what, end, why) => {
  const r = rig()
  const path = await r.open()
  end(r)
  expect(await path.resync()).toEqual(why.includes('MTU') ? [] : expect.anything())
  expect((await path.fault).message).toBe(why)
  expect(r.errors).toEqual([])
})

it('fails as a whole when the last carried family fails', async () => {
  const r = rig()
  const path = await r.open()
  r.faults.ipv4!(new Error('first'))
  await path.resync()
  expect(path.lacking).toEqual({ ipv4: 'first' })
  expect(path.carrier().device).toBe('ipv4')
  r.faults.ipv6!(new Error('second'))
  expect((await path.fault).message).toBe('second')
})

it('with a single family fails with it, and logs nothing of its own', async () => {
  const r = rig({ ...LEASE, subnet: { ipv4: LEASE.subnet.ipv4 } })
  const path = await r.open()
  await path.apply(LEASES, 'own')
  expect(path.unreported).toBe(false)
  r.deaf.add('ipv4')
  await expect(path.apply(LEASES, 'own')).rejects.toThrow(/^ipv4 rejects its peers/)
  r.host.ipv4 = '192.0.2.2'
  await path.resync()
  expect((await path.fault).message).toBe('the address of eth0 changed from 192.0.2.1 to 192.0.2.2')
  expect([r.calls, r.errors]).toEqual([['open ipv4', 'apply ipv4 k'], []])
})

it('continues with one family while the other cannot be opened, and opens it with its peers as soon as possible', async () => {
  const { calls, broken, errors, open, again } = rig()
  broken.add('ipv4')
  const path = await open()
  await path.apply(LEASES, 'own')
  expect([path.unreported, path.lacking]).toEqual([true, { ipv4: 'no ipv4' }])
  expect(errors).toEqual(['Cannot carry IPv4, trying again: no ipv4'])
  expect(path.carrier().device).toBe('ipv6')
  await again(path)
  expect(path.lacking).toEqual({ ipv4: 'no ipv4' })
  broken.clear()
  await again(path)
  expect(calls).toEqual(['open ipv6', 'apply ipv6 k', 'open ipv4', 'apply ipv4 k'])
  expect([path.unreported, path.lacking]).toEqual([false, {}])
})

it('continues its counts when one family is opened again, because a sum that decreases looks like new packets', async () => {
  /** The packets that the open data path of each family has counted. */
  const passed = { ipv4: 0, ipv6: 0 }
  const r = rig(LEASE, (family) => {
    passed[family] = 0
    const traffic = async () => {
      const counts = { txPackets: passed[family], txBytes: 10 * passed[family], rxPackets: 0, rxBytes: 0 }
      return new Map([['k', { ...counts, lastReceivedAt: 3, sessions: { [family]: sessionBy(family) } }]])
    }
    return { counters: () => ({ tx_packets: BigInt(passed[family]) }), counting: { traffic } }
  })
  const path = await r.open()
  await path.apply(LEASES, 'own')
  const sums = async () => {
    const { txPackets, txBytes, sessions } = (await path.traffic()).get('k')!
    return [
      path.counters()['tx_packets'],
      txPackets,
      txBytes,
      Object.keys(sessions ?? {})
        .toSorted()
        .join(),
    ]
  }
  Object.assign(passed, { ipv4: 1_000, ipv6: 100 })
  expect(await sums()).toEqual([1_100n, 1_100, 11_000, 'ipv4,ipv6'])
  r.broken.add('ipv6')
  r.faults.ipv6!(new Error('the address changed'))
  await new Promise((resolve) => setImmediate(resolve))
  expect(await sums()).toEqual([1_100n, 1_100, 11_000, 'ipv4'])
  await r.again(path) // closes the data path, and cannot open another
  passed.ipv4 = 1_010
  expect(await sums()).toEqual([1_110n, 1_110, 11_100, 'ipv4'])
  r.broken.clear()
  await r.again(path)
  expect(await sums()).toEqual([1_110n, 1_110, 11_100, 'ipv4,ipv6'])
  passed.ipv6 = 5
  expect(await sums()).toEqual([1_115n, 1_115, 11_150, 'ipv4,ipv6'])
  expect([...(await path.traffic(new Set(['other'])))]).toEqual([])
})

it('counts no packets twice if an older report about the traffic arrives after a newer one', async () => {
  let passed = 0
  let until = Promise.resolve()
  const path = await rig(LEASE, (family) => ({
    counting: {
      async traffic() {
        const txPackets = family === 'ipv4' ? passed : 0
        const counts = { txPackets, txBytes: 0, rxPackets: 0, rxBytes: 0, lastReceivedAt: 3 }
        await until
        return new Map([['k', counts]])
      },
    },
  })).open()
  await path.apply(LEASES, 'own')
  let arrive = (): void => {}
  passed = 1_000
  until = new Promise((resolve) => (arrive = resolve))
  const older = path.traffic()
  passed = 1_010
  until = Promise.resolve()
  expect((await path.traffic(new Set(['k']))).get('k')).toMatchObject({ txPackets: 1_010 })
  arrive()
  expect((await older).get('k')).toMatchObject({ txPackets: 1_010 })
  expect((await path.traffic()).get('k')).toMatchObject({ txPackets: 1_010 })
})

it('closes a family that rejects its peers after it was opened late, and opens it again', async () => {
  const { calls, broken, deaf, open, again } = rig()
  broken.add('ipv6')
  const path = await open()
  await path.apply(LEASES, 'own')
  broken.clear()
  deaf.add('ipv6')
  await again(path)
  expect(calls.slice(2)).toEqual(['open ipv6', 'close ipv6'])
  deaf.clear()
  await again(path)
  expect(calls.slice(4)).toEqual(['open ipv6', 'apply ipv6 k'])
})

it('that is not bound to an address continues after a change of the address, and publishes the new address', async () => {
  const r = rig()
  const path = await r.open(1430, true)
  await path.resync()
  expect(path.isOutdated).toBe(false)
  for (const [family, from, to] of [
    ['ipv6', 'fd00::1', 'fd00::2'],
    ['ipv4', '192.0.2.1', '192.0.2.2'],
  ] as const) {
    r.host[family] = to
    expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
    expect([path.isOutdated, path.lacking]).toEqual([true, {}])
    await r.again(path)
    expect(path.isOutdated).toBe(false)
    expect(r.infos.at(-1)).toBe(`Publishing a change to the peers: the address of eth0 changed from ${from} to ${to}`)
  }
  expect(r.owns.ipv4!.attrs.publicIp).toEqual({ ipv4: parseIpv4('192.0.2.2'), ipv6: parseIpv6('fd00::2') })
  expect([r.calls, r.errors]).toEqual([['open ipv4', 'open ipv6'], []])
})

it('carries only IPv4 if the MTU is too small for IPv6, and logs the remedy', async () => {
  const r = rig()
  const path = await r.open(1279)
  expect(r.calls).toEqual(['open ipv4'])
  expect(path.lacking).toEqual({ ipv6: 'IPv6 needs an MTU of 1280, and containers would have 1279 here' })
  expect(r.errors[0]).toMatch(
    /; raise the MTU of eth0, or the one in the network configuration's Backend, by 1 on every node$/,
  )
  expect((await rig().open(1280)).lacking).toEqual({})
})

it('reopens a failed family that cannot be closed, but none after its own close', async () => {
  const r = rig()
  const path = await r.open()
  r.stuck.add('ipv6')
  r.faults.ipv6!(new Error('gone'))
  await path.resync()
  await r.again(path)
  expect(r.errors.at(-1)).toBe('Cannot close the data path: ipv6 cannot be closed')
  expect(path.lacking).toEqual({})
  r.faults.ipv6!(new Error('gone again'))
  await path.resync()
  await expect(path.close()).rejects.toThrow('ipv6 cannot be closed')
  r.calls.length = 0
  await r.again(path)
  expect(await path.resync()).toEqual([])
  expect(r.calls).toEqual([]) // a successor has devices with these names
  expect(r.errors.filter((line) => line.includes('was closed'))).toEqual([])
  await expect(Promise.race([path.fault, Promise.resolve('pending')])).resolves.toBe('pending')
})

it('repairs nothing if it is closed while it reads the host', async () => {
  const path = await rig().open()
  const [repaired] = await Promise.all([path.resync(), path.close()])
  expect(repaired).toEqual([])
})

it('opens no family after it is closed, even if one was due', async () => {
  const r = rig()
  const path = await r.open()
  r.faults.ipv6!(new Error('gone'))
  await path.resync()
  const renewing = path.renew(LEASE.attrs)
  while (!r.calls.includes('close ipv6')) await Promise.resolve()
  await Promise.all([path.close(), renewing])
  expect(r.calls).toEqual(['open ipv4', 'open ipv6', 'close ipv6', 'close ipv4'])
})

it('repairs one family if the check of the other fails, logs that, and checks again soon', async () => {
  const { blind, errors, open } = rig()
  const path = await open()
  blind.add('ipv4')
  expect(await path.resync()).toEqual(['ipv6 was repaired'])
  expect(errors).toEqual(['Cannot check the device: IPv4: ipv4 is not seen'])
  expect([path.unreported, path.lacking]).toEqual([true, {}])
  expect(path.failures).toEqual(['IPv4: ipv4 is not seen'])
  blind.add('ipv6')
  await expect(path.resync()).rejects.toThrow('IPv4: ipv4 is not seen')
  expect(path.failures).toEqual(['IPv4: ipv4 is not seen', 'IPv6: ipv6 is not seen'])
  blind.clear()
  await path.resync()
  expect(path.failures).toEqual([])
  expect(path.unreported).toBe(false)
})

it('applies the peers to one family if the other rejects them, logs that, and applies them again', async () => {
  const { calls, deaf, errors, open } = rig()
  const path = await open()
  deaf.add('ipv4')
  await path.apply(LEASES, 'own', new Set(['k']))
  expect(calls.slice(2)).toEqual(['apply ipv6 k of k'])
  expect(errors).toEqual(['Cannot set the peers of the data path: IPv4: ipv4 rejects its peers; trying again'])
  expect(path.isBehind).toBe(true)
  deaf.clear()
  await path.apply(LEASES, 'own', new Set())
  // The data path may lack peers of this family, so they must be applied again.
  expect(calls.slice(3)).toContain('apply ipv4 k')
  expect(path.isBehind).toBe(false)
  deaf.add('ipv4').add('ipv6')
  await expect(path.apply(LEASES, 'own')).rejects.toThrow('IPv4: ipv4 rejects its peers')
})

it('applies the peers to one family while the other hangs, which later gets all changes', async () => {
  const { calls, hanging, errors, open } = rig()
  const path = await open()
  hanging.family = 'ipv6'
  const late = Promise.resolve()
  const more = (...keys: string[]) => new Map(keys.map((key) => [key, { ...LEASES.get('k')!, key }]))
  await path.apply(more('a'), 'own', new Set(['a']), late)
  await path.apply(more('a', 'b'), 'own', new Set(['b']), late)
  await path.apply(more('a', 'b', 'c'), 'own', new Set(['c']), late)
  expect(calls.slice(2)).toEqual(['apply ipv4 a of a', 'apply ipv4 a,b of b', 'apply ipv4 a,b,c of c'])
  expect([path.isBehind, path.lacking, errors]).toEqual([true, {}, []])
  delete hanging.family
  hanging.end()
  await new Promise((resolve) => setImmediate(resolve))
  expect(calls.slice(5)).toEqual(['apply ipv6 a of a', 'apply ipv6 a,b,c of b,c'])
  expect(path.isBehind).toBe(false)
})

it('gives the peers of a family to its present data path, although its failed data path still hangs', async () => {
  const r = rig()
  const path = await r.open()
  const late = Promise.resolve()
  const more = (...keys: string[]) => new Map(keys.map((key) => [key, { ...LEASES.get('k')!, key }]))
  r.hanging.family = 'ipv6'
  await path.apply(more('a'), 'own', new Set(['a']), late)
  const endFailed = r.hanging.end
  delete r.hanging.family
  r.faults.ipv6!(new Error('gone'))
  await path.resync()
  await r.again(path)
  r.hanging.family = 'ipv6'
  await path.apply(more('a', 'b'), 'own', new Set(['b']), late)
  await path.apply(more('a', 'b', 'c'), 'own', new Set(['c']), late)
  delete r.hanging.family
  r.calls.length = 0
  endFailed()
  await new Promise((resolve) => setImmediate(resolve))
  expect([r.calls, path.isBehind]).toEqual([['apply ipv6 a of a'], true])
  r.hanging.end()
  await new Promise((resolve) => setImmediate(resolve))
  expect(r.calls.slice(1)).toEqual(['apply ipv6 a,b of b', 'apply ipv6 a,b,c of c'])
  expect(path.isBehind).toBe(false)
})

it('sets no peers any more after it is closed, even if a transfer was due', async () => {
  const r = rig()
  const path = await r.open()
  r.hanging.family = 'ipv4'
  const first = path.apply(LEASES, 'own')
  const second = path.apply(new Map(), 'own')
  await tick()
  const closing = path.close()
  r.calls.length = 0
  delete r.hanging.family
  r.hanging.end()
  await Promise.all([first, second, closing])
  await path.apply(LEASES, 'own')
  expect(r.calls.filter((call) => call.startsWith('apply'))).toEqual(['apply ipv4 k'])
})

it('logs the late failure of a family to take its peers, and applies all of them again', async () => {
  const { calls, hanging, deaf, errors, open } = rig()
  const path = await open()
  hanging.family = 'ipv6'
  await path.apply(LEASES, 'own', new Set(['k']), Promise.resolve())
  deaf.add('ipv6')
  delete hanging.family
  hanging.end()
  await new Promise((resolve) => setImmediate(resolve))
  expect(errors).toEqual(['Cannot set the peers of the data path: IPv6: ipv6 rejects its peers; trying again'])
  expect(path.isBehind).toBe(true)
  deaf.clear()
  await path.apply(LEASES, 'own')
  expect([calls.at(-1), path.isBehind]).toEqual(['apply ipv6 k', false])
})

it('waits until the only family has taken its peers, however late it is', async () => {
  const r = rig({ ...LEASE, subnet: { ipv6: LEASE.subnet.ipv6 } })
  const path = await r.open()
  r.hanging.family = 'ipv6'
  const applying = path.apply(LEASES, 'own', undefined, Promise.resolve()).then(() => 'done')
  await expect(Promise.race([applying, new Promise((resolve) => setImmediate(resolve, 'not yet'))])).resolves.toBe(
    'not yet',
  )
  r.hanging.end()
  expect(await applying).toBe('done')
})

it('rejects if no family can be opened', async () => {
  const { broken, open } = rig()
  for (const family of ['ipv4', 'ipv6'] as const) broken.add(family)
  await expect(open()).rejects.toThrow('no ipv4')
})

/** Data paths of engines with their recorded calls. IPv4 has two places in the list of drops, IPv6 has three. */
function engines() {
  const engineCalls: string[] = []
  const given: Partial<Record<Family, ReadonlyMap<string, number>>> = {}
  /** The numbers of the drops that each family has kept in its last place. */
  const dropped: Record<Family, number[]> = { ipv4: [], ipv6: [] }
  /** True if the engines have nothing to lend. */
  const dead = new Set<Family>()
  const r = rig(LEASE, (family) => {
    const rings = family === 'ipv4' ? 2 : 3
    let isLent = false
    return {
      observing: {
        tunNames: [`tun-${family}`],
        threads: () => ({ 'weft-loop0': family === 'ipv4' ? 4 : 6 }),
        look: () => void engineCalls.push(`look ${family}`),
        peer: (key) => (key === 'k' ? { key, [family]: { endpoint: family } } : undefined),
        pathMtu: (_peer, of) => (of === family ? 1300 : 0),
        pathSearch: {
          overhead: 7,
          knownMtu: (key, of) => (key !== 'k' || of !== family ? undefined : family === 'ipv4' ? 1450 : 1380),
          limit: (bytes) => void (given[family] = bytes),
        },
        drops(after = []) {
          if (isLent) return { next: after, packets: [] }
          const from = after[rings - 1] ?? 0
          const packets = dropped[family].filter((number) => number >= from).map((number) => ({ family, number }))
          const next = [...Array<number>(rings - 1).fill(1), Math.max(from, ...dropped[family].map((each) => each + 1))]
          return { next, packets } as unknown as ReturnType<Observing['drops']>
        },
      },
      handover: {
        isLendable: true,
        async leave() {
          engineCalls.push(`leave ${family}`)
          isLent = true
          return dead.has(family) ? [] : [{ tunName: family } as unknown as OpenPath]
        },
        async takeBack() {
          engineCalls.push(`take back ${family}`)
          isLent = false
        },
      },
    }
  })
  return { ...r, engineCalls, given, dropped, dead }
}
const tick = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

it('lacks the members of engines if no engine carries it', async () => {
  const path = await rig().open()
  for (const what of ['handover', 'pathSearch', 'peer'] as const) expect(path[what], what).toBeUndefined()
  expect(path.drops()).toEqual({ next: [], packets: [] })
  expect(path.pathMtu(LEASES.get('k')!, 'ipv4')).toBeUndefined()
  expect([path.tunNames, path.threads()]).toEqual([undefined, {}])
  path.look()
})

it('with engines joins threads, peers, path MTUs and warnings of both families', async () => {
  const r = engines()
  const path = await r.open()
  expect(path.tunNames).toEqual(['tun-ipv4', 'tun-ipv6'])
  expect(path.threads()).toEqual({ 'IPv4: weft-loop0': 4, 'IPv6: weft-loop0': 6 })
  path.look()
  expect(r.engineCalls).toEqual(['look ipv4', 'look ipv6'])
  expect(path.peer!('k')).toEqual({ key: 'k', ipv4: { endpoint: 'ipv4' }, ipv6: { endpoint: 'ipv6' } })
  expect(path.peer!('other')).toBeUndefined()
  const [lease] = [...LEASES.values()] as [Lease]
  expect([path.pathMtu(lease, 'ipv4'), path.pathMtu(lease, 'ipv6')]).toEqual([1300, 1300])
  // The result considers the MTU of containers and the header bytes of each family.
  const search = path.pathSearch!
  expect([search.overhead, search.knownMtu('k', 'ipv4'), search.knownMtu('k', 'ipv6')]).toEqual([undefined, 1430, 1380])
  expect(search.knownMtu('other', 'ipv6')).toBeUndefined()
  const [four, six] = [new Map([['k', 1350]]), new Map([['k', 1330]])]
  search.limit!(four, 'ipv4')
  search.limit!(six, 'ipv6')
  expect(r.given).toEqual({ ipv4: four, ipv6: six })
  // A family that is not carried has no path MTU.
  r.faults.ipv6!(new Error('the device is gone'))
  await tick()
  expect([path.tunNames, path.threads()]).toEqual([['tun-ipv4'], { 'IPv4: weft-loop0': 4 }])
  // A path that is opened again has the limits that the search set last.
  delete r.given.ipv6
  await r.again(path)
  expect([path.tunNames, r.given]).toEqual([['tun-ipv4', 'tun-ipv6'], { ipv4: four, ipv6: six }])
})

it('with engines returns the drops of each family once, also if one is not open', async () => {
  const r = engines()
  const path = await r.open()
  const dropsSince = (next?: readonly number[]) => {
    const { packets, next: then } = path.drops(next)
    return [(packets as unknown as { family: Family; number: number }[]).map((each) => each.number), then] as const
  }
  r.dropped.ipv4.push(10)
  r.dropped.ipv6.push(60)
  const [all, first] = dropsSince()
  expect([all, first]).toEqual([
    [10, 60],
    [1, 11, 1, 1, 61],
  ])
  r.dropped.ipv6.push(61)
  const [later, second] = dropsSince(first)
  expect([later, second]).toEqual([[61], [1, 11, 1, 1, 62]])
  // The places of a family that is not open are kept.
  r.broken.add('ipv4')
  r.faults.ipv4!(new Error('the device is gone'))
  await tick()
  await r.again(path)
  r.dropped.ipv6.push(62)
  const [meanwhile, third] = dropsSince(second)
  expect([meanwhile, third]).toEqual([[62], [1, 11, 1, 1, 63]])
  r.broken.delete('ipv4')
  await r.again(path)
  r.dropped.ipv4.push(11)
  expect(dropsSince(third)).toEqual([[11], [1, 12, 1, 1, 63]])
  // A lent engine has no drops to read.
  await path.handover!.leave()
  expect(dropsSince(third)).toEqual([[], third])
})

it('with engines lends the carried families, but not while it opens or closes, and takes them back', async () => {
  const r = engines()
  const path = await r.open(undefined, undefined, undefined, LEASES)
  expect([r.knew.ipv4, r.knew.ipv6]).toEqual([LEASES, LEASES])
  expect((await path.handover!.leave()).map(({ tunName }) => tunName)).toEqual(['ipv4', 'ipv6'])
  // Another process owns the path now, so it is not repaired or reopened.
  r.checked.length = 0
  r.host.ipv6 = 'fd00::a1'
  expect([await path.resync(), r.checked]).toEqual([[], []])
  r.faults.ipv6!(new Error('the device is gone'))
  await tick()
  await r.again(path)
  expect([path.lacking, r.calls]).toEqual([{ ipv6: 'the device is gone' }, ['open ipv4', 'open ipv6']])
  await path.handover!.takeBack()
  expect(r.engineCalls).toEqual(['leave ipv4', 'leave ipv6', 'take back ipv4'])
  await r.again(path)
  expect([path.lacking, r.calls.slice(2)]).toEqual([{}, ['close ipv6', 'open ipv6']])
})

it('with engines lends nothing while one family is checked or takes peers, because the other would stop for that time', async () => {
  const r = engines()
  const path = await r.open()
  r.slow.family = 'ipv6'
  r.hanging.family = 'ipv4'
  const [checking, applying] = [path.resync(), path.apply(LEASES, 'own')]
  await tick()
  const left = path.handover!.leave()
  await tick()
  expect(r.engineCalls).toEqual([])
  r.slow.end()
  await checking
  await tick()
  expect(r.engineCalls).toEqual([])
  r.hanging.end()
  await applying
  expect((await left).map(({ tunName }) => tunName)).toEqual(['ipv4', 'ipv6'])
  expect(r.engineCalls).toEqual(['leave ipv4', 'leave ipv6'])
})

it('with engines checks nothing if it is lent while it reads the host', async () => {
  const r = engines()
  const path = await r.open()
  const [repaired, left] = await Promise.all([path.resync(), path.handover!.leave()])
  expect([repaired, left.length, r.checked]).toEqual([[], 2, []])
})

it('with engines lends one family if the other has failed, and closes the failed one first', async () => {
  const r = engines()
  const path = await r.open()
  r.faults.ipv4!(new Error('the device is gone'))
  await tick()
  expect((await path.handover!.leave()).map(({ tunName }) => tunName)).toEqual(['ipv6'])
  expect(r.calls).toEqual(['open ipv4', 'open ipv6', 'close ipv4'])
})

it('with engines that have nothing to lend continues to forward', async () => {
  const r = engines()
  const path = await r.open()
  r.dead.add('ipv4').add('ipv6')
  expect(await path.handover!.leave()).toEqual([])
  expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
})

/** One data path that carries both families and is bound to the address of one family. */
async function openBound(bound: Family) {
  const r = rig()
  const renewed: ExternalInterface[] = []
  const path = await r.openPlan((external) => [
    {
      families: FAMILIES,
      mtu: 1430,
      external: { families: [bound], isBound: true },
      open: async () => ({
        ...(await r.openFake('ipv4', LEASE, new Map())),
        adapting: { lacking: {}, isOutdated: false, renew: async () => void renewed.push(external()) },
      }),
    },
  ])
  return { r, path, renewed }
}

it.each<[Family, Family, string]>([
  ['ipv4', 'ipv6', 'fd00::a1'],
  ['ipv6', 'ipv4', '192.0.2.99'],
])(
  'that is bound to %s publishes a changed address of %s, and again after the next change',
  async (bound, other, to) => {
    const { r, path, renewed } = await openBound(bound)
    const before = r.host[other]
    await path.resync()
    expect(path.isOutdated).toBe(false)
    for (const address of [to, before]) {
      r.host[other] = address
      expect([await path.resync(), path.isOutdated]).toEqual([['ipv4 was repaired'], true])
      await r.again(path)
      expect(r.infos.at(-1)).toMatch(new RegExp(`^Publishing a change to the peers: .* to ${address}$`))
      expect(formatAddress(renewed.at(-1)!.address[other]!)).toBe(address)
      expect([await path.resync(), path.isOutdated]).toEqual([['ipv4 was repaired'], false])
    }
    expect(r.calls).toEqual(['open ipv4'])
  },
)

it('that is bound to an address fails with another address, and is not checked any more', async () => {
  const { r, path } = await openBound('ipv6')
  r.host.ipv6 = 'fd00::a1'
  expect([await path.resync(), path.isOutdated]).toEqual([[], false])
  expect((await path.fault).message).toBe('the address of eth0 changed from fd00::1 to fd00::a1')
})

it('reports a missing address only for families that a data path uses', async () => {
  const { r, path } = await openBound('ipv6')
  Object.assign(r.host, { ipv4: '169.254.0.1', ipv6: 'fe80::1' })
  await path.resync()
  expect(path.gone()).toEqual({ ipv6: 'eth0 has lost its address fd00::1' })
})

it('continues after a rename of the external interface, and gives the backend the new name', async () => {
  const r = rig()
  const path = await r.open()
  r.host.name = 'uplink0'
  expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
  expect([path.isOutdated, path.gone(), path.lacking]).toEqual([true, {}, {}])
  await r.again(path)
  await path.resync()
  expect([path.isOutdated, r.calls]).toEqual([false, ['open ipv4', 'open ipv6']])
  r.host.mtu = 1400
  await path.resync()
  expect((await path.fault).message).toBe('the MTU of uplink0 changed from 1500 to 1400')
})

it('that sends from the interface fails when the host gets the public IP', async () => {
  const r = rig()
  const publicIp = { ipv4: parseIpv4('203.0.113.7')! }
  const own = { ipv4: PUBLIC.ipv4 }
  const named = { address: {}, publicIp: { ipv4: true } }
  const external: ExternalInterface = { name: 'eth0', index: 1, mtu: 1500, address: own, publicIp, named }
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0', index: 1, mtu: 1500 }, [{ address: own.ipv4, prefixLength: 24 }])
  kernel.addLink({ name: 'lo', index: 2, mtu: 65_536 })
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const plan: PlannedPath = {
    families: ['ipv4'],
    mtu: 1430,
    external: { families: ['ipv4'], isBound: true },
    open: () => r.openFake('ipv4', LEASE, new Map()),
  }
  const backend = { external, sending: external, plan: () => [plan] }
  const signal = new AbortController().signal
  const path = await openDataPaths({ backend, lease: LEASE, leases: new Map(), signal, kernel, log })
  expect(await path.resync()).toEqual(['ipv4 was repaired'])
  kernel.addAddress('lo', { address: publicIp.ipv4, prefixLength: 32 })
  expect(await path.resync()).toEqual([])
  expect((await path.fault).message).toBe('this host has the public IP 203.0.113.7 now')
})
