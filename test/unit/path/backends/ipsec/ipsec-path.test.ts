// ipsec-path.test.ts - which leases are peers of the backend ipsec, and which peers it lists. A mock of charon negotiates the keys.

import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { Secret } from '../../../../../src/base/secret.ts'
import type { Lease, OwnLease } from '../../../../../src/control/lease/lease.ts'
import { parseIpv4, parseIpv4Net } from '../../../../../src/net/ipv4.ts'
import { IpsecConnections } from '../../../../../src/path/backends/ipsec/connections.ts'
import { createFilter, hostWithin, IpsecPath } from '../../../../../src/path/backends/ipsec/ipsec-path.ts'
import { ViciClient } from '../../../../../src/path/backends/ipsec/vici-client.ts'
import type { ViciSection } from '../../../../../src/path/backends/ipsec/vici-message.ts'
import { IpsecPolicies } from '../../../../../src/path/device/ipsec-policies.ts'
import { eventually } from '../../../../support/event.ts'
import { FakeCharon } from '../../../../support/fake-charon.ts'

const OWN = { subnet: '10.5.1.0/24', host: '192.0.2.1' }
const network = parseIpv4Net('10.5.0.0/16')!

let charon: FakeCharon
let lines: string[]
let infos: string[]
let commands: string
let path: IpsecPath

function leaseOf(subnet: string, host: string, backendType = 'ipsec'): Lease {
  const attrs = { publicIp: { ipv4: parseIpv4(host)! }, backendType }
  return { key: subnet.replace('/', '-'), subnet: { ipv4: parseIpv4Net(subnet)! }, attrs }
}
const own = leaseOf(OWN.subnet, OWN.host) as OwnLease
const apply = (...leases: readonly Lease[]): Promise<void> =>
  path.apply(new Map([own, ...leases].map((lease) => [lease.key, lease])), own.key)
const nameOf = (subnet: string, host: string): string => `${OWN.host}-${OWN.subnet}-${subnet}-${host}`
/** Has charon negotiate keys with these peers, each with its subnet and host. */
function negotiate(...peers: readonly (readonly [subnet: string, host: string])[]): void {
  const child = { state: 'INSTALLED', 'bytes-in': '5', 'bytes-out': '6', 'packets-in': '1', 'packets-out': '2' }
  charon.associations = peers.map(([subnet, host]) => ({ [nameOf(subnet, host)]: { 'child-sas': { child } } }))
}

beforeEach(async () => {
  charon = await new FakeCharon().listen()
  lines = []
  infos = []
  commands = ''
  const add = (line: string): void => void lines.push(line)
  const log = { info: (line: string) => void infos.push(line), warn: add, error: add, v: () => false }
  const guard = new IpsecPolicies({
    network: '10.5.0.0/16',
    own: OWN,
    run: async (_file, _args, options) => {
      commands += options?.input ?? ''
      return ''
    },
    log,
  })
  const connections = new IpsecConnections({
    network,
    own: OWN,
    psk: new Secret('only for tests. '.repeat(6)),
    espProposal: 'aes128gcm16',
    udpEncap: false,
    isUserspace: false,
    start: async (stop) => {
      const client = await ViciClient.connect(charon.path, stop)
      return { client, stop: async () => client.close() }
    },
    log,
  })
  await connections.open(new AbortController().signal)
  const filter = createFilter('ipsec', { lease: own, network, log })
  path = new IpsecPath({ filter, guard, connections, isUserspace: false, log })
})
afterEach(async () => {
  vi.restoreAllMocks()
  await path.close()
  charon.close()
})

it.each([
  ['10.5.9.9', '192.0.2.1', '10.5.9.9'],
  ['203.0.113.1', '10.5.9.9', '10.5.9.9'], // behind NAT
  ['203.0.113.1', '192.0.2.1', undefined],
])('finds the host with the public IP %s and the address %s within the network: %s', (publicIp, address, found) => {
  expect(hostWithin(network, parseIpv4(publicIp)!, parseIpv4(address))).toBe(found)
})

it('lists only the peers with keys', async () => {
  negotiate(['10.5.2.0/24', '192.0.2.2'])
  await apply(leaseOf('10.5.2.0/24', '192.0.2.2'), leaseOf('10.5.3.0/24', '192.0.2.3'))
  await path.resync()
  expect(path.peers()).toEqual([{ key: '10.5.2.0-24', ipv4: { endpoint: '192.0.2.2', way: 'kernel' } }])
  expect(path.counters()).toEqual({ peers_without_keys: 1n })
  expect(path.unusable().size).toBe(0)
  expect([...(await path.traffic())]).toEqual([
    ['10.5.2.0-24', { rxBytes: 5, txBytes: 6, rxPackets: 1, txPackets: 2, lastReceivedAt: undefined }],
  ])
  negotiate(['10.5.2.0/24', '192.0.2.2'], ['10.5.3.0/24', '192.0.2.3'])
  await path.resync()
  expect(path.peers()).toHaveLength(2)
  negotiate()
  await path.resync()
  expect(path.peers()).toEqual([])
})

it('lists a peer as soon as charon reports its keys', async () => {
  await apply(leaseOf('10.5.2.0/24', '192.0.2.2'))
  expect(path.peers()).toEqual([])
  negotiate(['10.5.2.0/24', '192.0.2.2'])
  charon.report()
  await eventually(() => expect(path.peers()).toHaveLength(1))
})

it('has charon negotiate keys again with a peer that has none, but not while charon negotiates', async () => {
  const now = vi.spyOn(performance, 'now').mockReturnValue(0)
  const after = async (ms: number): Promise<number> => {
    now.mockReturnValue(ms)
    await path.resync()
    return charon.initiated.length
  }
  const withIke = (ike: ViciSection): void => {
    charon.associations = [{ [nameOf('10.5.2.0/24', '192.0.2.2')]: ike }]
  }
  await apply(leaseOf('10.5.2.0/24', '192.0.2.2'))
  expect(await after(0)).toBe(0)
  expect(await after(4_999)).toBe(0)
  expect(await after(5_000)).toBe(1)
  expect(charon.initiated).toEqual([nameOf('10.5.2.0/24', '192.0.2.2')])
  // charon has no association after a wrong PSK, and one without a child after it could not install the keys.
  withIke({ state: 'CONNECTING', 'tasks-active': ['IKE_INIT'] })
  expect(await after(20_000)).toBe(1)
  withIke({ state: 'ESTABLISHED', 'child-sas': {}, 'tasks-active': ['CHILD_CREATE'] })
  expect(await after(30_000)).toBe(1)
  withIke({ state: 'ESTABLISHED', 'child-sas': {} })
  expect(await after(40_000)).toBe(2)
  expect(await after(44_999)).toBe(2)
  expect(await after(45_000)).toBe(3)
  negotiate(['10.5.2.0/24', '192.0.2.2'])
  expect(await after(90_000)).toBe(3)
})

it('logs once that a peer has had no keys for some seconds, and that it has keys again', async () => {
  const now = vi.spyOn(performance, 'now')
  const after = (ms: number): Promise<unknown> => {
    now.mockReturnValue(ms)
    return path.resync()
  }
  now.mockReturnValue(0)
  await apply(leaseOf('10.5.2.0/24', '192.0.2.2'))
  await after(0)
  await after(3_999)
  expect(lines).toEqual([])
  await after(4_000)
  await after(9_000)
  expect(lines).toEqual(['charon has no keys for 10.5.2.0/24 at 192.0.2.2: packets to and from this peer are dropped'])
  negotiate(['10.5.2.0/24', '192.0.2.2'])
  await after(10_000)
  await after(15_000)
  expect(infos.filter((line) => line.includes('again'))).toEqual(['charon has keys again for 10.5.2.0/24 at 192.0.2.2'])
})

it('reports the last known counts while charon hangs', async () => {
  negotiate(['10.5.2.0/24', '192.0.2.2'])
  await apply(leaseOf('10.5.2.0/24', '192.0.2.2'))
  const known = await path.traffic()
  expect(known.size).toBe(1)
  charon.silent = /^list-sas/
  expect(await path.traffic()).toEqual(known)
  expect(path.peers()).toHaveLength(1)
})

it.each(['10.5.0.0/16', '10.5.0.0/23'])("refuses a lease of %s, which contains this node's subnet", async (subnet) => {
  await apply(leaseOf(subnet, '192.0.2.2'))
  expect(commands).not.toContain(`${subnet} dir out tmpl`)
  expect(path.unusable().size).toBe(1)
  expect(lines).toEqual([`Lease ${subnet.replace('/', '-')} is not used: its subnet contains this node's 10.5.1.0/24`])
})

it('refuses a lease whose subnet contains the subnet of another node, and uses it after the end of that lease', async () => {
  const wide = leaseOf('10.5.2.0/23', '192.0.2.66')
  const peer = leaseOf('10.5.3.0/24', '192.0.2.3')
  await apply(wide, peer)
  await apply(wide, peer)
  expect(commands).not.toContain('10.5.2.0/23')
  expect(commands).toContain('xfrm policy update src 10.5.1.0/24 dst 10.5.3.0/24 dir out tmpl')
  expect([...charon.connections.keys()]).toEqual([nameOf('10.5.3.0/24', '192.0.2.3')])
  expect(path.unusable().size).toBe(1)
  expect(lines).toEqual(['Lease 10.5.2.0-23 is not used: its subnet contains the subnet of another node'])
  await apply(wide)
  expect([...charon.connections.keys()]).toEqual([nameOf('10.5.2.0/23', '192.0.2.66')])
})

it('follows a peer to another address, and a lease to another host', async () => {
  await apply(leaseOf('10.5.2.0/24', '192.0.2.2'))
  await apply(leaseOf('10.5.2.0/24', '192.0.2.9'))
  expect([...charon.connections.keys()]).toEqual([nameOf('10.5.2.0/24', '192.0.2.9')])
  expect(charon.requests).toContain('terminate')
  expect(commands).toContain('dst 10.5.2.0/24 dir out tmpl src 192.0.2.1 dst 192.0.2.9 ')
})

it('ignores a lease of another type with the words of flanneld', async () => {
  await apply(leaseOf('10.5.2.0/24', '192.0.2.2', 'vxlan'))
  expect(lines).toEqual(['Ignoring non-ipsec event: type: vxlan'])
})
