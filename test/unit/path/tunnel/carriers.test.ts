// carriers.test.ts - the choice of the carrier for each peer. After a change weftd queries the kernel only about the affected peers.

import { beforeEach, describe, expect, it, vi } from 'vitest'
import type { Ipv4Lease } from '../../../../src/control/lease/lease.ts'
import { FollowedLink } from '../../../../src/host/links.ts'
import { formatAddress, type Net } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import type { Carrier } from '../../../../src/path/tunnel/carrier.ts'
import { createDirectCarrier, DirectHops } from '../../../../src/path/tunnel/direct-routing.ts'
import { InnerFamily } from '../../../../src/path/tunnel/inner-families.ts'
import { PeerFilter } from '../../../../src/path/tunnel/peer-filter.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const ip = (text: string): number => parseIpv4(text)!
const peer = (subnet: string, publicIp: string, key = subnet.replace('/', '-')): Ipv4Lease => ({
  key,
  subnet: { ipv4: parseIpv4Net(subnet)! },
  attrs: { publicIp: { ipv4: ip(publicIp) }, backendType: '' },
})
const NEAR = peer('10.5.1.0/24', '192.0.2.1')
const OTHER = peer('10.5.2.0/24', '192.0.2.2')
const FAR = peer('10.5.3.0/24', '198.51.100.3')
const byKey = (...peers: readonly Ipv4Lease[]) => new Map(peers.map((each) => [each.key, each]))

let kernel: ModelKernel
/** The addresses of this test's host lookups, in the order of the lookups. */
let queried: string[]
const lines: string[] = []
const log = { info: () => {}, warn: () => {}, error: (line: string) => lines.push(line), v: () => false }
beforeEach(() => {
  kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0', index: 2 }, [{ address: ip('192.0.2.99'), prefixLength: 24 }])
  kernel.addRoute('ipv4', { destination: 'default', gateway: '192.0.2.254', device: 'eth0' })
  queried = []
  lines.length = 0
  const lookUp = kernel.lookUp.bind(kernel)
  kernel.lookUp = (family, queries) => {
    queried.push(...queries.map(({ to }) => formatAddress(to)))
    return lookUp(family, queries)
  }
})
const toPeers = (): string[] => kernel.routesAsText().filter((route) => !route.startsWith('default'))

describe('direct routing', () => {
  it('takes the peers that are reached without a router', async () => {
    const direct = new DirectHops(kernel, 'ipv4')
    await direct.lookUp(byKey(NEAR, FAR))
    expect([...direct.hops()]).toEqual([['10.5.1.0/24', { gateway: '192.0.2.1', device: new FollowedLink('eth0', 2) }]])
    expect([direct.has(NEAR), direct.has(FAR)]).toEqual([true, false])
  })

  it('queries only the changed peers, with the same result as a query of all', async () => {
    const direct = new DirectHops(kernel, 'ipv4')
    await direct.lookUp(byKey(NEAR, FAR))
    const whole = async (...peers: readonly Ipv4Lease[]) => {
      const all = new DirectHops(kernel, 'ipv4')
      await all.lookUp(byKey(...peers))
      return all.hops()
    }
    const change = async (
      changed: readonly (readonly [string, Ipv4Lease | undefined])[],
      ...peers: readonly Ipv4Lease[]
    ) => {
      queried = []
      await direct.lookUp(byKey(...peers), new Map(changed))
      const result = [...queried]
      expect(direct.hops()).toEqual(await whole(...peers))
      return result
    }
    expect(await change([[OTHER.key, undefined]], NEAR, FAR, OTHER)).toEqual(['192.0.2.2'])
    expect(await change([[NEAR.key, NEAR]], FAR, OTHER)).toEqual([])
    // A subnet moves from one lease to another, and a host moves behind a router.
    const newer = peer('10.5.2.0/24', '192.0.2.9', 'newer')
    expect(
      await change(
        [
          ['newer', undefined],
          [OTHER.key, OTHER],
        ],
        FAR,
        newer,
      ),
    ).toEqual(['192.0.2.9'])
    const moved = peer('10.5.2.0/24', '198.51.100.9', 'newer')
    expect(await change([['newer', newer]], FAR, moved)).toEqual(['198.51.100.9'])
    expect(direct.hops().size).toBe(0)
  })

  it('follows a new name of the interface, and fails if the kernel does not answer', async () => {
    const direct = new DirectHops(kernel, 'ipv4')
    await direct.lookUp(byKey(NEAR))
    kernel.rename('eth0', 'lan0')
    await direct.lookUp(byKey(NEAR, OTHER), new Map([[OTHER.key, undefined]]))
    const [first, second] = [...direct.hops().values()]
    expect(second?.device).toBe(first?.device)
    kernel.lookUp = () => Promise.reject(new Error('no answer within 10 s'))
    await expect(direct.lookUp(byKey(NEAR))).rejects.toThrow('no answer within 10 s')
  })

  it('leaves a peer whose route the kernel refuses to the next carrier, and removes a route that is no longer direct', async () => {
    const carrier = createDirectCarrier({ network: parseIpv4Net('10.5.0.0/16')!, kernel, log })
    kernel.refuses = (words) => (words.includes('10.5.2.0/24') ? 'ENETUNREACH' : undefined)
    await carrier.apply(byKey(NEAR, OTHER, FAR), undefined)
    expect([NEAR, OTHER, FAR].map((each) => carrier.takes(each))).toEqual([true, false, false])
    expect(toPeers()).toEqual(['10.5.1.0/24 via 192.0.2.1 dev eth0'])
    expect(['10.5.1.0/24', '10.5.3.0/24'].map((subnet) => carrier.hasRoute?.(subnet))).toEqual([true, false])
    expect(lines).toEqual([expect.stringContaining('Error adding route to 10.5.2.0/24 via 192.0.2.2')])
    kernel.refuses = () => undefined
    await carrier.resync()
    expect(carrier.takes(OTHER)).toBe(true)
    await carrier.apply(byKey(OTHER, FAR), new Map([[NEAR.key, NEAR]]))
    expect(toPeers()).toEqual(['10.5.2.0/24 via 192.0.2.2 dev eth0'])
    kernel.act({ kind: 'delete route', destination: OTHER.subnet.ipv4 })
    expect(await carrier.resync()).toEqual(['the route to 10.5.2.0/24 via 192.0.2.2 was gone'])
    // A change of one peer needs no listing of the routes to all peers.
    const listed = vi.spyOn(kernel, 'routes')
    await carrier.apply(byKey(NEAR, OTHER, FAR), new Map([[NEAR.key, undefined]]))
    const moved = peer('10.5.2.0/24', '198.51.100.2')
    await carrier.apply(byKey(NEAR, moved, FAR), new Map([[OTHER.key, OTHER]]))
    expect(toPeers()).toEqual(['10.5.1.0/24 via 192.0.2.1 dev eth0'])
    await carrier.apply(byKey(NEAR, OTHER, FAR), new Map([[OTHER.key, moved]]))
    await carrier.apply(byKey(OTHER, FAR), new Map([[NEAR.key, NEAR]]))
    expect(toPeers()).toEqual(['10.5.2.0/24 via 192.0.2.2 dev eth0'])
    expect(listed).not.toHaveBeenCalled()
    expect([NEAR, OTHER, FAR].map((each) => carrier.takes(each))).toEqual([false, true, false])
    // Without a change the kernel is not queried.
    queried = []
    await carrier.apply(byKey(OTHER, FAR), new Map())
    expect(queried).toEqual([])
  })
})

describe('carriers', () => {
  it('are tried in order, and the last one takes the remaining peers', async () => {
    const calls: string[] = []
    const passed = (txBytes: number) => ({
      txPackets: 1,
      txBytes,
      rxPackets: 0,
      rxBytes: 0,
      lastReceivedAt: undefined,
    })
    const carrier = (name: Carrier['name'], takes: Carrier['takes']): Carrier => ({
      name,
      takes,
      apply: async (peers, changed) => void calls.push(`${name} ${peers.size} ${changed?.size}`),
      endpointOf: () => `by ${name}`,
      traffic: () => new Map([NEAR, FAR].map(({ key }) => [key, passed(name === 'direct' ? 1 : 2)])),
      pathMtu: () => (name === 'direct' ? undefined : 1400),
      resync: async () => [name],
    })
    const network = parseIpv4Net('10.5.0.0/16')!
    const own = { ...peer('10.5.9.0/24', '192.0.2.99'), expiresAt: undefined, revision: 0n }
    const filter = new PeerFilter<Net>({ lease: own, network, log })
    filter.take(byKey(NEAR, FAR), own.key)
    const inner = new InnerFamily({
      network,
      subnet: own.subnet.ipv4,
      filter,
      tunnel: carrier('tunnel', () => true),
      earlier: [carrier('direct', (each) => each === NEAR)],
    })
    expect([inner.isTunnelled(NEAR), inner.isTunnelled(FAR)]).toEqual([false, true])
    expect([inner.pathSide(NEAR), inner.pathSide(FAR)]).toEqual([
      { endpoint: 'by direct', probe: ip('10.5.1.0'), way: 'direct' },
      { endpoint: 'by tunnel', probe: ip('10.5.3.0'), way: 'tunnel' },
    ])
    expect([...inner.traffic()].map(([key, { txBytes }]) => [key, txBytes])).toEqual([
      [NEAR.key, 1],
      [FAR.key, 2],
    ])
    expect([inner.pathMtu(NEAR), inner.pathMtu(FAR)]).toEqual([undefined, 1400])
    expect(await inner.resync()).toEqual(['direct'])
    await inner.applyPeers(new Map([[NEAR.key, undefined]]))
    expect(calls).toEqual(['direct 2 1'])
  })
})
