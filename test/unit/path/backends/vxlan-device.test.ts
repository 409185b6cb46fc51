// vxlan-device.test.ts - when the kernel's device is created, and when it is created again.

import { beforeEach, describe, expect, it } from 'vitest'
import type { VxlanSettings } from '../../../../src/host/kernel.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import { openVxlanDevice, type VxlanDevice } from '../../../../src/path/backends/vxlan-device.ts'
import { checkVxlan } from '../../../../src/path/backends/vxlan-link.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const MAC = '02:00:00:00:00:01'
const NAME = 'flannel-v6.1'
const ipv6 = parseIpv6('fd00::1')!
const own = parseIpv6('fd00:5:0:1::')!
const network = { address: parseIpv6('fd00:5::')!, prefixLength: 48 }
let kernel: ModelKernel
let warnings: string[]
beforeEach(() => {
  kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0', index: 2 })
  warnings = []
})
const log = { info: () => {}, warn: (line: string) => void warnings.push(line), error: () => {}, v: () => false }

/** Adds the device of an earlier run. */
function addEarlier(settings: Partial<VxlanSettings> = {}): void {
  const usual = { vni: 1, local: ipv6, underlay: 2, port: 8472, learning: false, gbp: false }
  const vxlan = { ...usual, external: false, zeroChecksumIpv6Rx: false, ...settings }
  kernel.addLink({ name: NAME, type: 'vxlan', mac: MAC, mtu: 1430, vxlan })
}

function open(local: number | bigint = ipv6): Promise<VxlanDevice> {
  const options = { name: NAME, vni: 1, port: 8472, learning: false, gbp: false, underlay: 'eth0', mtu: 1430 }
  const first = typeof local === 'number' ? parseIpv4('10.5.1.0')! : own
  return openVxlanDevice({ ...options, own: first, local }, MAC, kernel, log)
}
const made = (local: string): string =>
  `ip link add ${NAME} address ${MAC} type vxlan id 1 local ${local} dev eth0 dstport 8472 nolearning`

describe('the device of vxlan', () => {
  it('is created for IPv6 with the same options as for IPv4, so that the kernel requires checksums', async () => {
    await open()
    kernel.act({ kind: 'delete link', device: { name: NAME } })
    await open(parseIpv4('192.0.2.1'))
    expect(kernel.changes).toEqual([made('fd00::1'), made('192.0.2.1')])
  })

  it('is kept if it is right', async () => {
    addEarlier()
    await open()
    expect([kernel.changes, warnings]).toEqual([[], []])
  })

  it.each([
    ['local address: fd00::9 vs fd00::1', { local: parseIpv6('fd00::9')! }],
    ['VNI: 2 vs 1', { vni: 2 }],
    ['port: 4789 vs 8472', { port: 4789 }],
    ['learning: true vs false', { learning: true }],
    ['GBP: true vs false', { gbp: true }],
    ['interface: eth1 vs eth0', { underlay: 3 }],
    ['interface: none vs eth0', { underlay: 0 }],
  ])('is recreated if another program gave it another setting: %s', async (difference, settings) => {
    kernel.addLink({ name: 'eth1', index: 3 })
    addEarlier(settings)
    await open()
    expect(kernel.changes).toEqual([`ip link del dev ${NAME}`, made('fd00::1')])
    expect(warnings).toEqual([
      `"${NAME}" already exists with incompatible configuration: ${difference}; recreating device`,
    ])
  })

  it('is recreated if it is of another type', async () => {
    kernel.addLink({ name: NAME, type: 'bridge' })
    await open()
    expect(warnings).toEqual([expect.stringContaining('it is a device of type bridge')])
    expect(kernel.peek(NAME)?.type).toBe('vxlan')
  })

  it('gets back its MAC, its state and the entries of peers', async () => {
    const device = await open()
    await device.configure(own, network)
    const peer = { address: parseIpv6('fd00:5:0:2::')!, mac: '02:00:00:00:00:02', host: parseIpv6('fd00::2')! }
    expect(await device.resync([peer])).toEqual([`2 entries of ${NAME} for peers were gone`])
    expect(await device.resync([peer])).toEqual([])
    kernel.act({ kind: 'set link', device: { name: NAME }, mac: '02:99:99:99:99:99' })
    expect(await device.resync([peer])).toEqual([`${NAME} had the MAC 02:99:99:99:99:99`])
    kernel.act({ kind: 'set link', device: { name: NAME }, up: false })
    expect(await device.resync([peer])).toEqual([`${NAME} was down`])
    expect(kernel.peek(NAME)).toMatchObject({ up: true, mac: MAC, addresses: { ipv6: [{ address: own }] } })
    expect(await device.resync([peer])).toEqual([])
    kernel.act({ kind: 'delete link', device: { name: NAME } })
    expect(await device.resync([peer])).toEqual([`${NAME} was gone`])
    expect((await kernel.forwarding({ name: NAME })).map(({ host }) => host)).toEqual([peer.host])
  })

  it('names the external interface if the device disappeared together with it', async () => {
    const device = await open()
    await device.configure(own, network)
    kernel.act({ kind: 'delete link', device: { name: NAME } }, { kind: 'delete link', device: { name: 'eth0' } })
    await expect(device.resync([])).rejects.toThrow(`cannot repair ${NAME}: the interface eth0 is gone`)
  })

  it('does not count an entry as repaired that the kernel refused', async () => {
    const device = await open()
    await device.configure(own, network)
    const peer = { address: parseIpv6('fd00:5:0:2::')!, mac: '02:00:00:00:00:02', host: parseIpv6('fd00::2')! }
    kernel.refuses = (words) => (words.startsWith('bridge') ? 'ENOMEM' : undefined)
    expect(await device.resync([peer])).toEqual([`an entry of ${NAME} for a peer was gone`])
    expect(await device.resync([peer])).toEqual([])
  })

  it('is deleted if another device has its port, which the error names', async () => {
    const other = { vni: 7, port: 8472, gbp: true, local: ipv6 }
    const link = { name: 'vpn0', type: 'vxlan', vxlan: other } as const
    kernel.act({ kind: 'add link', link }, { kind: 'set link', device: link, up: true })
    const device = await open()
    await expect(device.configure(own, network)).rejects.toMatchObject({
      code: 'PORT_IN_USE',
      message: expect.stringContaining('UDP port 8472 is taken by the device vpn0 (vxlan)') as string,
    })
    expect(kernel.peek(NAME)).toBeUndefined()
  })

  it('cannot be created beside a device with the same VNI', async () => {
    const link = { name: 'vpn0', type: 'vxlan', vxlan: { vni: 1, port: 8472, local: ipv6 } } as const
    kernel.act({ kind: 'add link', link })
    await expect(open()).rejects.toMatchObject({
      code: 'DEVICE',
      message: expect.stringContaining(`failed to create the vxlan device ${NAME}: `) as string,
    })
  })
})

describe('checkVxlan', () => {
  it('accepts a kernel that has the device, or can make one, and keeps no device', async () => {
    await checkVxlan(kernel, NAME)
    expect(kernel.changes).toHaveLength(2)
    expect(kernel.peek('flannel.probe')).toBeUndefined()
    addEarlier()
    await checkVxlan(kernel, NAME)
    expect(kernel.changes).toHaveLength(2)
  })

  it('refuses a kernel without vxlan, and passes on a missing capability', async () => {
    kernel.unknownTypes.add('vxlan')
    await expect(checkVxlan(kernel, NAME)).rejects.toMatchObject({ code: 'NO_DEVICE_TYPE' })
    kernel.isPermitted = false
    await expect(checkVxlan(kernel, NAME)).rejects.toMatchObject({ code: 'PERMISSION' })
  })
})
