// vxlan-device.test.ts - when the kernel's device is created, and when it is created again.

import { beforeEach, describe, expect, it } from 'vitest'
import type { Run } from '../../../../src/host/command.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import { openVxlanDevice } from '../../../../src/path/backends/vxlan-device.ts'

const MAC = '02:00:00:00:00:01'
let commands: string[]
let warnings: string[]
beforeEach(() => void ([commands, warnings] = [[], []]))
const log = { info: () => {}, warn: (line: string) => void warnings.push(line), error: () => {}, v: () => false }

/** Opens a device on a simulated host that has this device, or none if it is left out. */
async function open(local: number | bigint, present?: object): Promise<void> {
  const link = { ifindex: 7, ifname: 'flannel-v6.1', mtu: 1430, flags: ['UP'], address: MAC }
  const data = { id: 1, link: 'eth0', port: 8472, learning: false, ...present }
  const run: Run = async (file, args) => {
    if (args.includes('show'))
      return present ? JSON.stringify([{ ...link, linkinfo: { info_kind: 'vxlan', info_data: data } }]) : '[]'
    commands.push([file, ...args].join(' '))
    return ''
  }
  const options = { name: 'flannel-v6.1', vni: 1, port: 8472, learning: false, gbp: false, underlay: 'eth0', mtu: 1430 }
  const own = typeof local === 'number' ? parseIpv4('10.5.1.0')! : parseIpv6('fd00:5:0:1::')!
  await openVxlanDevice({ ...options, own, local }, MAC, run, log)
}

describe('the device of vxlan', () => {
  it('is created for IPv6 with the same options as for IPv4, so that the kernel requires checksums', async () => {
    await open(parseIpv6('fd00::1')!)
    await open(parseIpv4('192.0.2.1')!)
    const made = (local: string): string =>
      `ip link add flannel-v6.1 address ${MAC} type vxlan id 1 local ${local} dev eth0 dstport 8472 nolearning`
    expect(commands).toEqual([made('fd00::1'), made('192.0.2.1')])
  })

  it('is kept if it is right, and recreated if its IPv6 address differs', async () => {
    await open(parseIpv6('fd00::1')!, { local6: 'fd00::1' })
    expect([commands, warnings]).toEqual([[], []])
    await open(parseIpv6('fd00::1')!, { local6: 'fd00::9' })
    expect(commands).toEqual(['ip link del flannel-v6.1', expect.stringContaining('local fd00::1 ')])
    expect(warnings).toEqual([
      '"flannel-v6.1" already exists with incompatible configuration: local address: fd00::9 vs fd00::1; recreating device',
    ])
  })
})
