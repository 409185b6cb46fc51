// ipip.test.ts - the ipip backend: its device, and changes of its host's addresses and names. test/netns/ipip.test.ts
// shows that it carries packets, on kernels with ipip.

import { expect, it } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { parseIpv4, parseIpv4Net, type Ipv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { createIpipBackend } from '../../../../src/path/backends/ipip.ts'
import { openPaths } from '../../../support/data-paths.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const HOST = parseIpv4('192.0.2.1')!
const HOST6 = parseIpv6('fd00::1')!
const DEVICE = { name: 'flannel.ipip' }

/** A host that has the device of an earlier run, with the outer source address `local`, unless `local` is null. */
async function opened({
  local = HOST,
  alwaysDf = false,
  kernel = new ModelKernel(),
}: { readonly local?: Ipv4 | null; readonly alwaysDf?: boolean; readonly kernel?: ModelKernel } = {}) {
  const infos: string[] = []
  const log = { info: (line: string) => void infos.push(line), warn: () => {}, error: () => {}, v: () => false }
  kernel.addLink({ name: 'eth0', index: 2 }, [
    { address: HOST, prefixLength: 24 },
    { address: HOST6, prefixLength: 64 },
  ])
  if (local !== null)
    kernel.addLink(
      { ...DEVICE, type: 'ipip', mtu: 1480, ipip: { local, remote: undefined, external: false, alwaysDf } },
      [{ address: parseIpv4('10.5.1.0')!, prefixLength: 32 }],
    )
  const config = parseNetworkConfig(
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"ipip"}}',
  )
  const address = { ipv4: HOST, ipv6: HOST6 }
  const named = { address: {}, publicIp: {} }
  const backend = createIpipBackend({
    config,
    settings: readSettings('ipip', config.backend),
    external: { name: 'eth0', index: 2, mtu: 1500, address, publicIp: address, named },
    run: () => Promise.reject(new Error('ipip runs no programs')),
    kernel,
    log,
  })
  const { signal } = new AbortController()
  const attrs = await backend.prepare(signal)
  const subnet = { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: parseIpv6Net('fd00:5:1::/64')! }
  const lease = { key: 'own', subnet, attrs, expiresAt: undefined, revision: 1n }
  /** Gives eth0 the address `to` in place of `from`. */
  const readdress = (from: number | bigint, to: number | bigint): void => {
    const prefixLength = typeof to === 'number' ? 24 : 64
    kernel.act({ kind: 'delete address', device: { name: 'eth0' }, address: from, prefixLength })
    kernel.addAddress('eth0', { address: to, prefixLength })
  }
  return { kernel, infos, backend, signal, readdress, path: await openPaths(backend, lease, kernel, { log }) }
}

it('makes a device that sends from the address of the host, and sets routes through it', async () => {
  const { kernel, path } = await opened({ local: null })
  expect(kernel.changes).toEqual([
    'ip link add flannel.ipip type ipip local 192.0.2.1 nopmtudisc',
    'ip link set dev flannel.ipip mtu 1480 up',
    'ip address replace 10.5.1.0/32 dev flannel.ipip',
  ])
  const peer = {
    key: '10.5.2.0-24',
    subnet: { ipv4: parseIpv4Net('10.5.2.0/24')! },
    attrs: { publicIp: { ipv4: parseIpv4('198.51.100.2')! }, backendType: 'ipip' },
  }
  await path.apply(new Map([[peer.key, peer]]), 'own')
  expect(kernel.routesAsText()).toEqual(['10.5.2.0/24 via 198.51.100.2 dev flannel.ipip'])
  kernel.act({ kind: 'delete link', device: DEVICE })
  expect(await path.resync()).toEqual(['flannel.ipip was gone'])
  expect(kernel.routesAsText()).toEqual(['10.5.2.0/24 via 198.51.100.2 dev flannel.ipip'])
})

it('makes a device again that sends from another address', async () => {
  const { kernel, path } = await opened({ local: parseIpv4('192.0.2.9')! })
  expect(kernel.changes.slice(0, 2)).toEqual([
    'ip link del dev flannel.ipip',
    'ip link add flannel.ipip type ipip local 192.0.2.1 nopmtudisc',
  ])
  kernel.alter(DEVICE.name, { ipip: { local: undefined, remote: HOST, external: false, alwaysDf: false } })
  expect(await path.resync()).toEqual(['flannel.ipip went from any to 192.0.2.1'])
})

it('changes a device that sets DF on every outer packet, such as one that an earlier version made', async () => {
  const { kernel, path } = await opened({ alwaysDf: true })
  const command = 'ip link set dev flannel.ipip type ipip local 192.0.2.1 nopmtudisc'
  expect(kernel.changes[0]).toBe(command)
  expect(kernel.peek(DEVICE.name)?.ipip).toMatchObject({ local: HOST, alwaysDf: false })
  kernel.changes.length = 0
  expect(await path.resync()).toEqual([])
  kernel.alter(DEVICE.name, { ipip: { local: HOST, remote: undefined, external: false, alwaysDf: true } })
  expect(await path.resync()).toEqual(['flannel.ipip set DF on every packet'])
  expect([kernel.changes[0], await path.resync()]).toEqual([command, []])
  expect(kernel.changes.filter((words) => / (del|add) /.test(words))).toEqual([])
})

it('keeps the device of an earlier run if it can be changed but not set up', async () => {
  const kernel = new ModelKernel()
  kernel.refuses = (words) => (words.endsWith(' up') ? 'ENOMEM' : undefined)
  await expect(opened({ alwaysDf: true, kernel })).rejects.toMatchObject({ code: 'KERNEL' })
  expect(kernel.peek(DEVICE.name)).toBeDefined()
})

it('keeps a device of another type with its name, and deletes a new device that cannot be set up', async () => {
  const other = new ModelKernel()
  other.addLink({ ...DEVICE, type: 'bridge' })
  await expect(opened({ local: null, kernel: other })).rejects.toMatchObject({
    code: 'DEVICE',
    remedy: 'it is of type bridge: remove it with `ip link del flannel.ipip`',
  })
  const kernel = new ModelKernel()
  kernel.refuses = (words) => (words.endsWith(' up') ? 'ENOMEM' : undefined)
  await expect(opened({ local: null, kernel })).rejects.toMatchObject({ code: 'KERNEL' })
  expect(kernel.peek(DEVICE.name)).toBeUndefined()
})

it('publishes a changed IPv6 address and continues', async () => {
  const { readdress, infos, backend, signal, path } = await opened()
  expect([await path.resync(), path.isOutdated]).toEqual([[], false])
  readdress(HOST6, parseIpv6('fd00::a1')!)
  expect([await path.resync(), path.isOutdated]).toEqual([[], true])
  const attrs = await backend.prepare(signal)
  expect(attrs.publicIp).toEqual({ ipv4: HOST, ipv6: parseIpv6('fd00::a1') })
  await path.renew(attrs)
  expect(infos.at(-1)).toBe('Publishing a change to the peers: the address of eth0 changed from fd00::1 to fd00::a1')
  expect([await path.resync(), path.isOutdated]).toEqual([[], false])
})

it('fails after a change of the IPv4 address, which its packets use', async () => {
  const { readdress, path } = await opened()
  readdress(HOST, parseIpv4('192.0.2.99')!)
  expect([await path.resync(), path.isOutdated]).toEqual([[], false])
  expect((await path.fault).message).toBe('the address of eth0 changed from 192.0.2.1 to 192.0.2.99')
})

it('continues if the external interface or its device is renamed', async () => {
  const { kernel, infos, backend, signal, path } = await opened()
  kernel.changes.length = 0
  kernel.rename('eth0', 'uplink0')
  expect([await path.resync(), path.isOutdated]).toEqual([[], true])
  await path.renew(await backend.prepare(signal))
  expect(backend.external?.name).toBe('uplink0')
  kernel.rename(DEVICE.name, 'other0')
  expect([await path.resync(), path.isOutdated, path.carrier().device]).toEqual([[], false, 'other0'])
  expect(infos.at(-1)).toBe('The interface flannel.ipip is called other0 now; weftd goes on with it under the new name')
  expect(kernel.changes).toEqual([])
})
