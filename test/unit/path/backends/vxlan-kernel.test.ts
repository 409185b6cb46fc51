// vxlan-kernel.test.ts - the cost of one changed lease beside many others, and the kernel's reports of changes by weftd
// itself.

import { expect, it } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease } from '../../../../src/control/lease/lease.ts'
import { formatAddress } from '../../../../src/net/address.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { prepareKernelVxlan } from '../../../../src/path/backends/vxlan-kernel.ts'
import { openPaths } from '../../../support/data-paths.ts'
import { entryEvent } from '../../../support/entry-event.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const PEERS = 500
const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const DEVICE = { name: 'flannel.1' }
const HOST = { address: parseIpv4('172.31.0.1')!, prefixLength: 12 }
const mac = (number: number): string => `02:00:00:00:0${number >> 8}:${(number & 255).toString(16).padStart(2, '0')}`
function lease(number: number, at = mac(number)): Lease {
  const subnet = `10.${number >> 8}.${number & 255}.0`
  return {
    key: `${subnet}-24`,
    subnet: { ipv4: parseIpv4Net(`${subnet}/24`)! },
    attrs: {
      publicIp: { ipv4: parseIpv4('172.16.0.0')! + number },
      backendType: 'vxlan',
      backendData: { VNI: 1, VtepMAC: at },
    },
  }
}

async function open(backend: object = {}, errors: string[] = []) {
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0' }, [HOST])
  const config = parseNetworkConfig(JSON.stringify({ Network: '10.0.0.0/8', Backend: { Type: 'vxlan', ...backend } }))
  const address = { ipv4: HOST.address }
  const named = { address: { ipv4: true }, publicIp: { ipv4: true } }
  const setup = {
    names: { ipv4: 'flannel.1' },
    options: readSettings('vxlan', config.backend),
    port: 8472,
    mtus: { ipv4: 1450, ipv6: 1430 },
    macs: { ipv4: '02:ff:ff:ff:ff:ff' },
    external: { name: 'eth0', index: 1, mtu: 1500, address, publicIp: address, named },
  }
  const heard = { ...log, error: (line: string) => void errors.push(line) }
  const carrier = await prepareKernelVxlan(() => setup, { config, kernel, log: heard })
  const own = {
    key: '10.200.0.0-24',
    subnet: { ipv4: parseIpv4Net('10.200.0.0/24')! },
    attrs: { publicIp: address, backendType: 'vxlan' },
    expiresAt: 0,
    revision: 1n,
  }
  const dataPath = await openPaths({ ...carrier, external: setup.external }, own, kernel, { log: heard })
  const neighbours = async () =>
    new Map((await kernel.neighbours('ipv4', DEVICE)).map((each) => [formatAddress(each.address), each.mac]))
  const forwarding = async () =>
    new Map((await kernel.forwarding(DEVICE)).map((each) => [each.mac, formatAddress(each.host ?? 0)]))
  return { kernel, own, dataPath, neighbours, forwarding }
}

/** Opens a data path with the peers 1 to PEERS. */
async function openWithPeers() {
  const opened = await open()
  const { kernel, dataPath, own } = opened
  const leases = new Map(Array.from({ length: PEERS }, (_, at) => lease(at + 1)).map((each) => [each.key, each]))
  const apply = (...changed: readonly Lease[]): Promise<void> => {
    for (const each of changed) leases.set(each.key, each)
    return dataPath.apply(leases, own.key, changed.length > 0 ? new Set(changed.map(({ key }) => key)) : undefined)
  }
  await apply()
  kernel.reads.length = 0
  return { ...opened, leases, apply }
}

it('touches only the entries of a lease that changed, came or went, with the same result as a full check', async () => {
  const { kernel, neighbours, forwarding, leases, own, dataPath, apply } = await openWithPeers()
  const sizes = async () => [(await neighbours()).size, (await forwarding()).size, kernel.routesAsText().length]
  expect(await sizes()).toEqual([PEERS, PEERS, PEERS])
  kernel.reads.length = 0
  await apply(lease(3, '02:99:00:00:00:03'))
  await apply(lease(PEERS + 1))
  leases.delete('10.0.4.0-24')
  await dataPath.apply(leases, own.key, new Set(['10.0.4.0-24']))
  expect(kernel.reads).toEqual([])
  expect(await sizes()).toEqual([PEERS, PEERS, PEERS])
  const [known, behind, routes] = [await neighbours(), await forwarding(), kernel.routesAsText()]
  expect([known.get('10.0.3.0'), behind.get('02:99:00:00:00:03')]).toEqual(['02:99:00:00:00:03', '172.16.0.3'])
  expect([behind.has(mac(3)), known.has('10.0.4.0'), behind.has(mac(4))]).toEqual([false, false, false])
  expect(routes).toContain('10.1.245.0/24 via 10.1.245.0 dev flannel.1')
  kernel.changes.length = 0
  await apply()
  expect(kernel.changes).toEqual([])
})

it('keeps the entry of a host whose second lease with the same MAC ends', async () => {
  const { kernel, forwarding, leases, own, dataPath, apply } = await openWithPeers()
  const second = { ...lease(PEERS + 1, mac(1)), attrs: lease(1).attrs }
  await apply(second)
  leases.delete(second.key)
  await dataPath.apply(leases, own.key, new Set([second.key]))
  expect((await forwarding()).get(mac(1))).toBe('172.16.0.1')
  const { index } = kernel.peek('flannel.1')!
  const line = `Deleted 172.16.0.1 dev flannel.1 lladdr ${mac(1)} NOARP PERMANENT `
  expect(dataPath.watched[0]?.matters?.(entryEvent(line, index))).toBe(true)
})

it('repairs nothing if two peers have subnets with the same first address, and keeps the entry of the remaining peer', async () => {
  const { dataPath, leases, own, apply, neighbours } = await openWithPeers()
  const second = { ...lease(3, mac(PEERS + 1)), key: '10.0.3.0-25', subnet: { ipv4: parseIpv4Net('10.0.3.0/25')! } }
  await apply(second)
  const before = (await neighbours()).get('10.0.3.0')
  for (const _ of [1, 2, 3]) expect(await dataPath.resync()).toEqual([])
  expect((await neighbours()).get('10.0.3.0')).toBe(before)
  leases.delete(second.key)
  await dataPath.apply(leases, own.key, new Set([second.key]))
  expect((await neighbours()).get('10.0.3.0')).toBe(mac(3))
})

it('ignores reports of its own changes, but not of other changes', async () => {
  const { kernel, dataPath, leases, own, apply } = await openWithPeers()
  await apply(lease(3, '02:99:00:00:00:03'))
  leases.delete('10.0.4.0-24')
  await dataPath.apply(leases, own.key, new Set(['10.0.4.0-24']))
  const { index } = kernel.peek('flannel.1')!
  const matters = (line: string) =>
    dataPath.watched[0]?.matters?.(entryEvent(line, line.includes('flannel.1') ? index : index + 1))
  for (const [line, isNews] of [
    ['10.0.3.0 dev flannel.1 lladdr 02:99:00:00:00:03 PERMANENT ', false],
    ['172.16.0.3 dev flannel.1 lladdr 02:99:00:00:00:03 NOARP PERMANENT ', false],
    [`Deleted 172.16.0.3 dev flannel.1 lladdr ${mac(3)} NOARP PERMANENT `, false],
    ['10.0.4.0 dev flannel.1 FAILED ', false],
    ['Deleted 10.0.4.0 dev flannel.1 FAILED ', false],
    [`10.0.3.0 dev flannel.1 lladdr ${mac(3)} PERMANENT `, true],
    ['10.0.3.0 dev flannel.1 FAILED ', true],
    ['Deleted 10.0.3.0 dev flannel.1 lladdr 02:99:00:00:00:03 PERMANENT ', true],
    [`Deleted 172.16.0.5 dev flannel.1 lladdr ${mac(5)} NOARP PERMANENT `, true],
    [`172.16.0.9 dev flannel.1 lladdr ${mac(5)} NOARP PERMANENT `, true],
    ['10.0.3.0 dev eth0 lladdr 02:99:00:00:00:03 REACHABLE ', false],
  ] as const)
    expect([line, matters(line)]).toEqual([line, isNews])
})

it('moves a peer to the tunnel while the kernel refuses its direct route, and back later', async () => {
  const errors: string[] = []
  const { kernel, dataPath, own, neighbours, forwarding } = await open({ DirectRouting: true }, errors)
  const peers = [lease(1), lease(2)]
  await dataPath.apply(new Map(peers.map((each) => [each.key, each])), own.key)
  const direct = ['10.0.1.0/24 via 172.16.0.1 dev eth0', '10.0.2.0/24 via 172.16.0.2 dev eth0']
  expect(kernel.routesAsText()).toEqual(direct)
  expect((await neighbours()).size).toBe(0)
  // The address is removed with its routes, and returns with another prefix length, so that only peer 2 is on the link.
  const eth0 = { name: 'eth0' }
  const far = { kind: 'add route', destination: { address: parseIpv4('172.16.0.1')!, prefixLength: 32 } } as const
  kernel.act({ kind: 'delete address', device: eth0, ...HOST })
  kernel.act({ kind: 'set link', device: eth0, up: false }, { kind: 'set link', device: eth0, up: true })
  kernel.addAddress('eth0', HOST)
  kernel.act({ ...far, gateway: parseIpv4('172.16.0.254')! })
  await dataPath.resync()
  expect(kernel.routesAsText()).toEqual(expect.arrayContaining(['10.0.1.0/24 via 10.0.1.0 dev flannel.1', direct[1]]))
  expect([(await neighbours()).get('10.0.1.0'), (await forwarding()).get(mac(1))]).toEqual([mac(1), '172.16.0.1'])
  expect(dataPath.peers().map(({ ipv4 }) => ipv4?.way)).toEqual(['kernel', 'direct'])
  kernel.act({ ...far, kind: 'delete route' })
  await dataPath.resync()
  expect(kernel.routesAsText().toSorted()).toEqual(direct)
  expect((await neighbours()).has('10.0.1.0')).toBe(false)
  expect(errors).toEqual([expect.stringContaining('Error adding route to 10.0.1.0/24 via 172.16.0.1 dev eth0')])
})
