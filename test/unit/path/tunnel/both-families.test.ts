// both-families.test.ts - one data path of two: what befalls one family, and what the other has of it.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import { currentExternal, type ExternalInterface } from '../../../../src/host/external-interface.ts'
import type { Family } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import type { DataPath } from '../../../../src/path/contract.ts'
import type { OpenPath } from '../../../../src/path/engine/engine.ts'
import { openFamilies } from '../../../../src/path/tunnel/both-families.ts'

const OF = { ipv4: {}, ipv6: {} }
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

/** What a family's path tells of the session with the one peer. */
const sessionBy = (family: Family) => ({
  publicKey: 'K',
  handshakeAt: family === 'ipv4' ? 4 : 6,
  ageMs: undefined,
  txBytes: 10,
  rxBytes: 5,
})

/**
 * Data paths that note what is asked of them. A family of `broken` cannot be opened, one of `deaf` cannot be told its peers, one of `blind`
 * cannot be looked at. `host` is the external interface as it is.
 */
function rig(lease = LEASE, more: (family: Family) => Partial<DataPath> = () => ({})) {
  const asked: string[] = []
  const looked: Family[] = []
  const host = { mtu: 1500, ipv4: '192.0.2.1', ipv6: 'fd00::1' }
  const blind = new Set<Family>()
  const owns: Partial<Record<Family, OwnLease>> = {}
  let external: ExternalInterface = {
    name: 'eth0',
    mtu: 1500,
    address: PUBLIC,
    publicIp: PUBLIC,
    named: { address: {}, publicIp: {} },
  }
  const run = async (): Promise<string> => {
    const info = (['ipv4', 'ipv6'] as const).map((family) => ({
      local: host[family],
      family: family === 'ipv4' ? 'inet' : 'inet6',
    }))
    return JSON.stringify([{ ifindex: 1, ifname: 'eth0', mtu: host.mtu, flags: ['UP'], addr_info: info }])
  }
  /** What a backend's `prepare` does; then the families that lack are opened. */
  async function again(path: DataPath): Promise<void> {
    external = await currentExternal(run, external)
    await path.renew!({ publicIp: external.publicIp, backendType: '' })
  }
  const broken = new Set<Family>()
  const deaf = new Set<Family>()
  const stuck = new Set<Family>()
  /** A look at this one goes on until it is let go. */
  const slow: { family?: Family; end: () => void } = { end: () => {} }
  /** This one takes peers once it is let go. */
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
    asked.push(`open ${family}`)
    return {
      mtu: 1450,
      fault: new Promise((resolve) => (faults[family] = resolve)),
      async apply(leases, _ownKey, touched) {
        if (hanging.family === family) await new Promise<void>((resolve) => (hanging.end = resolve))
        if (deaf.has(family)) throw new WeftError('COMMAND', `${family} hears nothing`)
        asked.push(`apply ${family} ${[...leases.keys()].join()}${touched ? ` of ${[...touched].join()}` : ''}`)
      },
      async resync() {
        looked.push(family)
        if (blind.has(family)) throw new WeftError('COMMAND', `${family} is not seen`)
        if (slow.family === family) await new Promise<void>((resolve) => (slow.end = resolve))
        return [`${family} was repaired`]
      },
      carrier: () => ({ device: family, engine: 'kernel', features: [] }),
      peers: () => [{ key: 'k', [family]: { endpoint: family } }],
      traffic: async () =>
        new Map([
          [
            'k',
            {
              txPackets: 1,
              txBytes: 10,
              rxPackets: undefined,
              rxBytes: 5,
              heardAt: family === 'ipv4' ? 7 : 9,
              sessions: { [family]: sessionBy(family) },
            },
          ],
        ]),
      unknownKeys: () => [{ publicKey: `of nobody, by ${family}`, from: { address: 1, port: 1 }, at: 2 }],
      counters: () => ({ peers_unusable: 2n }),
      threads: () => ({}),
      async close() {
        asked.push(`close ${family}`)
        faults[family]?.(new Error(`${family} was closed`)) // as a child that was told to end
        if (stuck.has(family)) throw new WeftError('COMMAND', `${family} cannot be closed`)
      },
      ...more(family),
    }
  }
  return {
    asked,
    looked,
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
    open: (mtu = 1430, isUnbound = false, signal = new AbortController().signal, leases?: ReadonlyMap<string, Lease>) =>
      openFamilies({
        of: OF,
        lease,
        mtu,
        isUnbound,
        signal,
        external: () => external,
        open,
        run,
        log,
        ...(leases ? { leases } : {}),
      }),
  }
}

it('is told and asked as one', async () => {
  const { asked, open } = rig()
  const path = await open()
  await path.apply(LEASES, 'own')
  expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
  expect(path.mtu).toBe(1430)
  expect(path.carrier().device).toBe('ipv4')
  expect(path.peers()).toEqual([{ key: 'k', ipv4: { endpoint: 'ipv4' }, ipv6: { endpoint: 'ipv6' } }])
  expect([...(await path.traffic!())]).toEqual([
    [
      'k',
      {
        txPackets: 2,
        txBytes: 20,
        rxPackets: undefined,
        rxBytes: 10,
        heardAt: 9,
        sessions: { ipv4: sessionBy('ipv4'), ipv6: sessionBy('ipv6') },
      },
    ],
  ])
  expect(path.unknownKeys!().map(({ publicKey }) => publicKey)).toEqual(['of nobody, by ipv4', 'of nobody, by ipv6'])
  expect(path.counters()).toEqual({ peers_unusable: 4n })
  expect(path.unreported).toBe(false)
  await path.close()
  expect(asked).toEqual(['open ipv4', 'open ipv6', 'apply ipv4 k', 'apply ipv6 k', 'close ipv4', 'close ipv6'])
})

it('looks at a family again though a look at the other one goes on, and tells of that when it is over', async () => {
  const r = rig()
  const path = await r.open()
  r.slow.family = 'ipv6'
  const late = Promise.resolve()
  for (let times = 1; times <= 3; times++) {
    expect(await path.resync(late)).toEqual(['ipv4 was repaired'])
    // Its next look is soon.
    expect(path.unreported).toBe(true)
  }
  expect(r.looked).toEqual(['ipv4', 'ipv6', 'ipv4', 'ipv4'])
  delete r.slow.family
  r.slow.end()
  await new Promise((resolve) => setImmediate(resolve))
  expect(await path.resync(late)).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
  expect([path.unreported, r.errors]).toEqual([false, []])
  expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
  expect(r.looked.slice(4)).toEqual(['ipv4', 'ipv4', 'ipv6'])
})

it('waits for the one look that there is, however late it is', async () => {
  const r = rig({ ...LEASE, subnet: { ipv6: LEASE.subnet.ipv6 } })
  const path = await r.open()
  r.slow.family = 'ipv6'
  const looking = path.resync(Promise.resolve())
  await expect(Promise.race([looking, new Promise((resolve) => setImmediate(resolve, 'not yet'))])).resolves.toBe(
    'not yet',
  )
  r.slow.end()
  expect(await looking).toEqual(['ipv6 was repaired'])
})

it('tells nothing of a family that a stop keeps from being opened', async () => {
  const r = rig()
  const stopping = new AbortController()
  stopping.abort()
  r.broken.add('ipv6')
  const path = await r.open(1430, false, stopping.signal)
  expect([Object.keys(path.lacking!), r.errors]).toEqual([['ipv6'], []])
})

it('names the device of each family', async () => {
  const path = await rig().open()
  expect(path.carrier()).toMatchObject({ device: 'ipv4', devices: { ipv4: 'ipv4', ipv6: 'ipv6' } })
})

it('leaves a family open whose address is gone, says so, and goes on when it is back', async () => {
  const r = rig()
  const path = await r.open()
  r.host.ipv6 = 'fe80::1'
  await path.resync()
  expect([path.gone!(), path.lacking]).toEqual([{ ipv6: 'eth0 has lost its address fd00::1' }, {}])
  r.host.ipv6 = 'fd00::1'
  await path.resync()
  expect([path.gone!(), r.asked]).toEqual([{}, ['open ipv4', 'open ipv6']])
})

/** What ends one family, and why. */
const ENDS: readonly (readonly [what: string, end: (r: ReturnType<typeof rig>) => void, why: string])[] = [
  ['a fault', ({ faults }) => faults.ipv6!(new Error('flannel-wg is gone')), 'flannel-wg is gone'],
  ['another address', ({ host }) => (host.ipv6 = 'fd00::2'), 'the address of eth0 changed from fd00::1 to fd00::2'],
]

it.each(ENDS)(
  '%s of one family has it alone opened again, with its peers, for what the node publishes then',
  async (_what, end, why) => {
    const r = rig()
    const path = await r.open()
    await path.apply(LEASES, 'own')
    end(r)
    expect(await path.resync()).toEqual(['ipv4 was repaired'])
    expect([path.lacking, path.unreported, path.isOutdated]).toEqual([{ ipv6: why }, true, true])
    expect(r.errors).toEqual([`IPv6 is not carried, and tried again: ${why}`])
    expect(path.peers()).toEqual([{ key: 'k', ipv4: { endpoint: 'ipv4' } }])
    await path.apply(LEASES, 'own')
    await r.again(path)
    expect([path.lacking, path.unreported]).toEqual([{}, false])
    expect(r.asked).toEqual([
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
    // The one that was not touched knows this node by its new address too.
    expect(r.owns.ipv4!.attrs.publicIp.ipv6).toBe(parseIpv6(r.host.ipv6))
    expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
    await expect(Promise.race([path.fault, Promise.resolve('pending')])).resolves.toBe('pending')
  },
)

it.each<[what: string, end: (r: ReturnType<typeof rig>) => void, why: string]>([
  [
    'both addresses are others',
    ({ host }) => Object.assign(host, { ipv4: '192.0.2.2', ipv6: 'fd00::2' }),
    'the address of eth0 changed from 192.0.2.1 to 192.0.2.2',
  ],
  ['the MTU is another', ({ host }) => (host.mtu = 1400), 'the MTU of eth0 changed from 1500 to 1400'],
])('ends as a whole where %s', async (_what, end, why) => {
  const r = rig()
  const path = await r.open()
  end(r)
  expect(await path.resync()).toEqual(why.includes('MTU') ? [] : expect.anything())
  expect((await path.fault).message).toBe(why)
  expect(r.errors).toEqual([])
})

it('ends as a whole with the last family that is carried', async () => {
  const r = rig()
  const path = await r.open()
  r.faults.ipv4!(new Error('first'))
  await path.resync()
  expect(path.lacking).toEqual({ ipv4: 'first' })
  expect(path.carrier().device).toBe('ipv4')
  r.faults.ipv6!(new Error('second'))
  expect((await path.fault).message).toBe('second')
})

it('of one family ends with it, and says no more than that one does', async () => {
  const r = rig({ ...LEASE, subnet: { ipv4: LEASE.subnet.ipv4 } })
  const path = await r.open()
  await path.apply(LEASES, 'own')
  expect(path.unreported).toBe(false)
  r.deaf.add('ipv4')
  await expect(path.apply(LEASES, 'own')).rejects.toThrow(/^ipv4 hears nothing/)
  r.host.ipv4 = '192.0.2.2'
  await path.resync()
  expect((await path.fault).message).toBe('the address of eth0 changed from 192.0.2.1 to 192.0.2.2')
  expect([r.asked, r.errors]).toEqual([['open ipv4', 'apply ipv4 k'], []])
})

it('goes on with one family while the other cannot be opened, and has it with its peers as soon as it can', async () => {
  const { asked, broken, errors, open, again } = rig()
  broken.add('ipv4')
  const path = await open()
  await path.apply(LEASES, 'own')
  expect([path.unreported, path.lacking]).toEqual([true, { ipv4: 'no ipv4' }])
  expect(errors).toEqual(['IPv4 is not carried, and tried again: no ipv4'])
  expect(path.carrier().device).toBe('ipv6')
  await again(path)
  expect(path.lacking).toEqual({ ipv4: 'no ipv4' })
  broken.clear()
  await again(path)
  expect(asked).toEqual(['open ipv6', 'apply ipv6 k', 'open ipv4', 'apply ipv4 k'])
  expect([path.unreported, path.lacking]).toEqual([false, {}])
})

it('closes a family that cannot be told its peers when it is opened later, and opens it again', async () => {
  const { asked, broken, deaf, open, again } = rig()
  broken.add('ipv6')
  const path = await open()
  await path.apply(LEASES, 'own')
  broken.clear()
  deaf.add('ipv6')
  await again(path)
  expect(asked.slice(2)).toEqual(['open ipv6', 'close ipv6'])
  deaf.clear()
  await again(path)
  expect(asked.slice(4)).toEqual(['open ipv6', 'apply ipv6 k'])
})

it('that is bound to no address goes on with another one, which is published', async () => {
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
    expect(r.infos.at(-1)).toBe(`Peers are told that the address of eth0 changed from ${from} to ${to}`)
  }
  expect(r.owns.ipv4!.attrs.publicIp).toEqual({ ipv4: parseIpv4('192.0.2.2'), ipv6: parseIpv6('fd00::2') })
  expect([r.asked, r.errors]).toEqual([['open ipv4', 'open ipv6'], []])
})

it('carries IPv4 alone where IPv6 does not fit, and says what is to be done', async () => {
  const r = rig()
  const path = await r.open(1279)
  expect(r.asked).toEqual(['open ipv4'])
  expect(path.lacking).toEqual({ ipv6: 'IPv6 needs an MTU of 1280, and containers would have 1279 here' })
  expect(r.errors[0]).toMatch(
    /; raise the MTU of eth0, or the one in the network configuration's Backend, by 1 on every node$/,
  )
  expect((await rig().open(1280)).lacking).toEqual({})
})

it('opens a family again whose end cannot be closed, and none once it is closed itself', async () => {
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
  r.asked.length = 0
  await r.again(path)
  expect(await path.resync()).toEqual([])
  expect(r.asked).toEqual([]) // a successor has devices of these names
  expect(r.errors.filter((line) => line.includes('was closed'))).toEqual([])
  await expect(Promise.race([path.fault, Promise.resolve('pending')])).resolves.toBe('pending')
})

it('mends nothing any more that was closed while it looked at the host', async () => {
  const path = await rig().open()
  const [repaired] = await Promise.all([path.resync(), path.close()])
  expect(repaired).toEqual([])
})

it('opens no family any more that is to be opened again when it is closed', async () => {
  const r = rig()
  const path = await r.open()
  r.faults.ipv6!(new Error('gone'))
  await path.resync()
  const renewing = path.renew!(LEASE.attrs)
  while (!r.asked.includes('close ipv6')) await Promise.resolve()
  await Promise.all([path.close(), renewing])
  expect(r.asked).toEqual(['open ipv4', 'open ipv6', 'close ipv6', 'close ipv4'])
})

it('looks after one family though the other cannot be looked at, says so, and looks again soon', async () => {
  const { blind, errors, open } = rig()
  const path = await open()
  blind.add('ipv4')
  expect(await path.resync()).toEqual(['ipv6 was repaired'])
  expect(errors).toEqual(['Cannot check the device: IPv4: ipv4 is not seen'])
  expect([path.unreported, path.lacking]).toEqual([true, {}])
  blind.add('ipv6')
  await expect(path.resync()).rejects.toThrow('IPv4: ipv4 is not seen')
  blind.clear()
  await path.resync()
  expect(path.unreported).toBe(false)
})

it('has one family go on with its peers though the other does not take them, says so, and gives them to it again', async () => {
  const { asked, deaf, errors, open } = rig()
  const path = await open()
  deaf.add('ipv4')
  await path.apply(LEASES, 'own', new Set(['k']))
  expect(asked.slice(2)).toEqual(['apply ipv6 k of k'])
  expect(errors).toEqual(['Cannot set the peers of the data path: IPv4: ipv4 hears nothing; trying again'])
  expect(path.isBehind).toBe(true)
  deaf.clear()
  await path.apply(LEASES, 'own', new Set())
  // Nobody knows what it has of them.
  expect(asked.slice(3)).toContain('apply ipv4 k')
  expect(path.isBehind).toBe(false)
  deaf.add('ipv4').add('ipv6')
  await expect(path.apply(LEASES, 'own')).rejects.toThrow('IPv4: ipv4 hears nothing')
})

it('gives one family its peers while the other takes its time, which then has all that came meanwhile', async () => {
  const { asked, hanging, errors, open } = rig()
  const path = await open()
  hanging.family = 'ipv6'
  const late = Promise.resolve()
  const more = (...keys: string[]) => new Map(keys.map((key) => [key, { ...LEASES.get('k')!, key }]))
  await path.apply(more('a'), 'own', new Set(['a']), late)
  await path.apply(more('a', 'b'), 'own', new Set(['b']), late)
  await path.apply(more('a', 'b', 'c'), 'own', new Set(['c']), late)
  expect(asked.slice(2)).toEqual(['apply ipv4 a of a', 'apply ipv4 a,b of b', 'apply ipv4 a,b,c of c'])
  expect([path.isBehind, path.lacking, errors]).toEqual([true, {}, []])
  delete hanging.family
  hanging.end()
  await new Promise((resolve) => setImmediate(resolve))
  expect(asked.slice(5)).toEqual(['apply ipv6 a of a', 'apply ipv6 a,b,c of b,c'])
  expect(path.isBehind).toBe(false)
})

it('says what a family could not take that took its time, and gives it all again', async () => {
  const { asked, hanging, deaf, errors, open } = rig()
  const path = await open()
  hanging.family = 'ipv6'
  await path.apply(LEASES, 'own', new Set(['k']), Promise.resolve())
  deaf.add('ipv6')
  delete hanging.family
  hanging.end()
  await new Promise((resolve) => setImmediate(resolve))
  expect(errors).toEqual(['Cannot set the peers of the data path: IPv6: ipv6 hears nothing; trying again'])
  expect(path.isBehind).toBe(true)
  deaf.clear()
  await path.apply(LEASES, 'own')
  expect([asked.at(-1), path.isBehind]).toEqual(['apply ipv6 k', false])
})

it('waits for the one family that there is to take its peers, however late it is', async () => {
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

it('is not there where no family can be opened', async () => {
  const { broken, open } = rig()
  for (const family of ['ipv4', 'ipv6'] as const) broken.add(family)
  await expect(open()).rejects.toThrow('no ipv4')
})

/** Data paths of engines: of IPv4 with two rings of drops, of IPv6 with three, and what befell them. */
function engines() {
  const befell: string[] = []
  const given: Partial<Record<Family, ReadonlyMap<string, number>>> = {}
  /** The drops that each has kept, by their numbers, of its last ring. */
  const dropped: Record<Family, number[]> = { ipv4: [], ipv6: [] }
  /** Has nothing to lend. */
  const dead = new Set<Family>()
  const r = rig(LEASE, (family) => {
    const rings = family === 'ipv4' ? 2 : 3
    let isLent = false
    return {
      tunNames: [`tun-${family}`],
      threads: () => ({ 'weft-loop0': family === 'ipv4' ? 4 : 6 }),
      look: () => void befell.push(`look ${family}`),
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
        return { next, packets } as unknown as ReturnType<NonNullable<DataPath['drops']>>
      },
      async leave() {
        befell.push(`leave ${family}`)
        isLent = true
        return dead.has(family) ? [] : [{ tunName: family } as unknown as OpenPath]
      },
      async takeBack() {
        befell.push(`take back ${family}`)
        isLent = false
      },
    }
  })
  return { ...r, befell, given, dropped, dead }
}
const tick = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

it('has nothing of engines where none carries it', async () => {
  const path = await rig().open()
  for (const what of ['leave', 'takeBack', 'drops', 'pathMtu', 'pathSearch', 'peer'] as const)
    expect(path[what], what).toBeUndefined()
  expect([path.tunNames, path.threads()]).toEqual([undefined, {}])
  path.look?.()
})

it('of engines tells of both: threads by family, peers, the path to each, and what was noticed', async () => {
  const r = engines()
  const path = await r.open()
  expect(path.tunNames).toEqual(['tun-ipv4', 'tun-ipv6'])
  expect(path.threads()).toEqual({ 'IPv4: weft-loop0': 4, 'IPv6: weft-loop0': 6 })
  path.look!()
  expect(r.befell).toEqual(['look ipv4', 'look ipv6'])
  expect(path.peer!('k')).toEqual({ key: 'k', ipv4: { endpoint: 'ipv4' }, ipv6: { endpoint: 'ipv6' } })
  expect(path.peer!('other')).toBeUndefined()
  const [lease] = [...LEASES.values()] as [Lease]
  expect([path.pathMtu!(lease, 'ipv4'), path.pathMtu!(lease, 'ipv6')]).toEqual([1300, 1300])
  // By what containers may send, and by the bytes that each family's header has.
  const search = path.pathSearch!
  expect([search.overhead, search.knownMtu('k', 'ipv4'), search.knownMtu('k', 'ipv6')]).toEqual([undefined, 1430, 1380])
  expect(search.knownMtu('other', 'ipv6')).toBeUndefined()
  const [four, six] = [new Map([['k', 1350]]), new Map([['k', 1330]])]
  search.limit!(four, 'ipv4')
  search.limit!(six, 'ipv6')
  expect(r.given).toEqual({ ipv4: four, ipv6: six })
  // What one does not carry it tells nothing of.
  r.faults.ipv6!(new Error('the device is gone'))
  await tick()
  expect([path.tunNames, path.threads()]).toEqual([['tun-ipv4'], { 'IPv4: weft-loop0': 4 }])
})

it('of engines tells what each family dropped, once, whichever of them is there', async () => {
  const r = engines()
  const path = await r.open()
  const told = (next?: readonly number[]) => {
    const { packets, next: then } = path.drops!(next)
    return [(packets as unknown as { family: Family; number: number }[]).map((each) => each.number), then] as const
  }
  r.dropped.ipv4.push(10)
  r.dropped.ipv6.push(60)
  const [all, first] = told()
  expect([all, first]).toEqual([
    [10, 60],
    [1, 11, 1, 1, 61],
  ])
  r.dropped.ipv6.push(61)
  const [later, second] = told(first)
  expect([later, second]).toEqual([[61], [1, 11, 1, 1, 62]])
  // Whoever asks has the places of a family that cannot be had kept.
  r.broken.add('ipv4')
  r.faults.ipv4!(new Error('the device is gone'))
  await tick()
  await r.again(path)
  r.dropped.ipv6.push(62)
  const [meanwhile, third] = told(second)
  expect([meanwhile, third]).toEqual([[62], [1, 11, 1, 1, 63]])
  r.broken.delete('ipv4')
  await r.again(path)
  r.dropped.ipv4.push(11)
  expect(told(third)).toEqual([[11], [1, 12, 1, 1, 63]])
  // While it is lent there is nobody to ask.
  await path.leave!()
  expect(told(third)).toEqual([[], third])
})

it('of engines lends what is carried, one after another with what opens and closes, and takes it back', async () => {
  const r = engines()
  const path = await r.open(undefined, undefined, undefined, LEASES)
  expect([r.knew.ipv4, r.knew.ipv6]).toEqual([LEASES, LEASES])
  expect((await path.leave!()).map(({ tunName }) => tunName)).toEqual(['ipv4', 'ipv6'])
  // It is another process's to mend, and to open.
  r.looked.length = 0
  r.host.ipv6 = 'fd00::a1'
  expect([await path.resync(), r.looked]).toEqual([[], []])
  r.faults.ipv6!(new Error('the device is gone'))
  await tick()
  await r.again(path)
  expect([path.lacking, r.asked]).toEqual([{ ipv6: 'the device is gone' }, ['open ipv4', 'open ipv6']])
  await path.takeBack!()
  expect(r.befell).toEqual(['leave ipv4', 'leave ipv6', 'take back ipv4'])
  await r.again(path)
  expect([path.lacking, r.asked.slice(2)]).toEqual([{}, ['close ipv6', 'open ipv6']])
})

it('of engines lends none while one is looked at, or takes its time over peers: the other would stand still for it', async () => {
  const r = engines()
  const path = await r.open()
  r.slow.family = 'ipv6'
  r.hanging.family = 'ipv4'
  const [looking, giving] = [path.resync(), path.apply(LEASES, 'own')]
  await tick()
  const left = path.leave!()
  await tick()
  expect(r.befell).toEqual([])
  r.slow.end()
  await looking
  await tick()
  expect(r.befell).toEqual([])
  r.hanging.end()
  await giving
  expect((await left).map(({ tunName }) => tunName)).toEqual(['ipv4', 'ipv6'])
  expect(r.befell).toEqual(['leave ipv4', 'leave ipv6'])
})

it('of engines looks at none any more that is lent while it looked at the host', async () => {
  const r = engines()
  const path = await r.open()
  const [repaired, left] = await Promise.all([path.resync(), path.leave!()])
  expect([repaired, left.length, r.looked]).toEqual([[], 2, []])
})

it("of engines lends one family where a fault has ended the other, which is in nobody's way then", async () => {
  const r = engines()
  const path = await r.open()
  r.faults.ipv4!(new Error('the device is gone'))
  await tick()
  expect((await path.leave!()).map(({ tunName }) => tunName)).toEqual(['ipv6'])
  expect(r.asked).toEqual(['open ipv4', 'open ipv6', 'close ipv4'])
})

it('of engines that have nothing to lend goes on as before', async () => {
  const r = engines()
  const path = await r.open()
  r.dead.add('ipv4').add('ipv6')
  expect(await path.leave!()).toEqual([])
  expect(await path.resync()).toEqual(['ipv4 was repaired', 'ipv6 was repaired'])
})
