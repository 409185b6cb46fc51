// vxlan-rename.test.ts - the kernel's vxlan device, which refers to the external interface by index, when either of the two is renamed.

import { beforeEach, expect, it } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease, OwnLease } from '../../../../src/control/lease/lease.ts'
import { currentExternal, type ExternalInterface } from '../../../../src/host/external-interface.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { openVxlanDevice } from '../../../../src/path/backends/vxlan-device.ts'
import { prepareKernelVxlan } from '../../../../src/path/backends/vxlan-kernel.ts'
import { openPaths } from '../../../support/data-paths.ts'
import { entryEvent } from '../../../support/entry-event.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const MAC = '02:ff:ff:ff:ff:ff'
const HOST = parseIpv4('172.31.0.1')!
const NIC = { name: 'eth0', index: 2 }
let lines: string[]
beforeEach(() => void (lines = []))
const log = { info: (line: string) => void lines.push(line), warn: () => {}, error: () => {}, v: () => false }

/** A kernel with an interface of index 2, and one vxlan device of index 7 that is bound to the interface. */
function host({ name = 'flannel.1', address = '10.200.0.0' } = {}): ModelKernel {
  const kernel = new ModelKernel()
  kernel.addLink(NIC, [{ address: HOST, prefixLength: 16 }])
  const settings = { vni: 1, local: HOST, underlay: 2, port: 8472, learning: false, gbp: false }
  const vxlan = { ...settings, external: false, zeroChecksumIpv6Rx: false }
  const own = { address: parseIpv4(address)!, prefixLength: 32 }
  kernel.addLink({ name, index: 7, type: 'vxlan', mac: MAC, mtu: 1450, vxlan }, [own])
  return kernel
}

/** The changes by which devices were made and deleted. */
const linkChanges = ({ changes }: ModelKernel): string[] => changes.filter((line) => /link (add|del)/.test(line))

async function open(kernel: ModelKernel) {
  const config = parseNetworkConfig('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}')
  const address = { ipv4: HOST }
  let external: ExternalInterface = {
    ...NIC,
    mtu: 1500,
    address,
    publicIp: address,
    families: ['ipv4'],
    named: { address: {}, publicIp: {} },
  }
  const setup = () => ({
    names: { ipv4: 'flannel.1' },
    options: readSettings('vxlan', config.backend),
    port: 8472,
    mtus: { ipv4: 1450, ipv6: 1430 },
    macs: { ipv4: MAC },
    external,
  })
  const carrier = await prepareKernelVxlan(setup, { config, kernel, log })
  kernel.changes.length = 0
  const own: OwnLease = {
    key: '10.200.0.0-24',
    subnet: { ipv4: parseIpv4Net('10.200.0.0/24')! },
    attrs: { publicIp: address, backendType: 'vxlan' },
    expiresAt: 0,
    revision: 1n,
  }
  const peer = (at: number): Lease => ({
    key: `10.20${at}.0.0-24`,
    subnet: { ipv4: parseIpv4Net(`10.20${at}.0.0/24`)! },
    attrs: {
      publicIp: { ipv4: parseIpv4(`172.31.0.${at}`)! },
      backendType: 'vxlan',
      backendData: { VNI: 1, VtepMAC: `02:00:00:00:00:0${at}` },
    },
  })
  return {
    attrs: own.attrs,
    peers: (...at: readonly number[]) => new Map(at.map((each) => [peer(each).key, peer(each)])),
    open: () =>
      openPaths(
        {
          plan: () => carrier.plan(),
          get external() {
            return external
          },
        },
        own,
        kernel,
        { log },
      ),
    prepare: async () => void (external = await currentExternal(kernel, external)),
  }
}

it('continues under a new name of the external interface, which a new device uses', async () => {
  const kernel = host()
  const node = await open(kernel)
  const dataPath = await node.open()
  await dataPath.resync()
  kernel.rename('eth0', 'lan0')
  expect(await dataPath.resync()).toEqual([])
  expect([dataPath.gone(), dataPath.isOutdated]).toEqual([{}, true])
  await node.prepare()
  await dataPath.renew(node.attrs)
  expect(await dataPath.resync()).toEqual([])
  expect([linkChanges(kernel), dataPath.isOutdated]).toEqual([[], false])
  kernel.act({ kind: 'delete link', device: { name: 'flannel.1' } })
  expect(await dataPath.resync()).toEqual(['flannel.1 was gone'])
  expect(linkChanges(kernel)).toEqual([expect.stringContaining('dev lan0 ')])
})

it('creates a missing device at an external interface that was renamed at the same time', async () => {
  const kernel = host()
  const dataPath = await (await open(kernel)).open()
  kernel.rename('eth0', 'lan0')
  kernel.act({ kind: 'delete link', device: { name: 'flannel.1' } })
  expect(await dataPath.resync()).toEqual(['flannel.1 was gone'])
  expect(linkChanges(kernel)).toEqual([expect.stringContaining('dev lan0 ')])
})

it('continues with a renamed device: its peers, its entries and its name in the status', async () => {
  const kernel = host()
  const node = await open(kernel)
  const dataPath = await node.open()
  await dataPath.apply(node.peers(2), 'own')
  expect(await dataPath.resync()).toEqual([])
  kernel.rename('flannel.1', 'other0')
  const [entry] = await kernel.neighbours('ipv4', { name: 'other0' })
  kernel.act({ kind: 'delete neighbour', device: { name: 'other0' }, address: entry!.address })
  kernel.changes.length = 0
  expect(await dataPath.resync()).toEqual(['an entry of other0 for a peer was gone'])
  expect(lines).toEqual(['The interface flannel.1 is called other0 now; weftd goes on with it under the new name'])
  expect([linkChanges(kernel), dataPath.carrier().device, dataPath.peers().length]).toEqual([[], 'other0', 1])
  expect(dataPath.watched[0]?.matters?.(entryEvent('10.202.0.0 dev other0 FAILED', kernel.peek('other0')!.index))).toBe(
    true,
  )
  await dataPath.apply(node.peers(2, 3), 'own', new Set(['10.203.0.0-24']))
  expect(kernel.changes.filter((line) => !/ dev other0\b/.test(line))).toEqual([])
  expect(dataPath.peers()).toHaveLength(2)
  // A device that is deleted is made again under its own name.
  kernel.act({ kind: 'delete link', device: { name: 'other0' } })
  expect(await dataPath.resync()).toEqual(['other0 was gone'])
  expect(kernel.peek('flannel.1')?.type).toBe('vxlan')
  expect(dataPath.carrier().device).toBe('flannel.1')
})

it('continues with a device that was renamed while no daemon ran', async () => {
  const kernel = host({ name: 'other0' })
  const dataPath = await (await open(kernel)).open()
  expect(await dataPath.resync()).toEqual([])
  expect([linkChanges(kernel), dataPath.carrier().device]).toEqual([[], 'other0'])
})

it.each(['was renamed a moment ago', 'is gone'])(
  'deletes a wrong device only if a new one can be created: the interface %s',
  async (what) => {
    const kernel = host()
    const options = { name: 'flannel.1', vni: 1, port: 8472, learning: false, gbp: false, underlay: 'eth0', mtu: 1450 }
    const addresses = { local: HOST, own: parseIpv4('10.200.0.0')! }
    const opened = await openVxlanDevice({ ...options, underlayIndex: 2, ...addresses }, MAC, kernel, log)
    if (what === 'is gone') kernel.act({ kind: 'delete link', device: NIC })
    else kernel.rename('eth0', 'lan0')
    kernel.alter('flannel.1', { vxlan: { ...kernel.peek('flannel.1')!.vxlan!, vni: 9 } })
    const check = opened.resync([])
    if (what === 'is gone') await expect(check).rejects.toThrow(/cannot repair flannel\.1: the interface eth0 is gone/)
    else expect(await check).toEqual(['flannel.1 was another device (VNI: 9 vs 1)'])
    const commands = ['ip link del dev flannel.1', expect.stringContaining('dev lan0 ')]
    expect(linkChanges(kernel)).toEqual(what === 'is gone' ? [] : commands)
    expect(kernel.peek('flannel.1')).toBeDefined()
  },
)

it('keeps a vxlan device of another program that has an address of the network', async () => {
  const kernel = host({ name: 'vpn0', address: '10.9.9.9' })
  const opening = (await open(kernel)).open()
  await expect(opening).rejects.toThrow(/failed to create the vxlan device flannel\.1/)
  expect(linkChanges(kernel).filter((line) => line.includes('del'))).toEqual([])
  expect(kernel.peek('vpn0')).toBeDefined()
})
