// needs.test.ts - the checks before a lease is written, with devices of kinds that not every kernel has, and with sockets of this process.

import { createSocket, type Socket } from 'node:dgram'
import { afterEach, describe, expect, it } from 'vitest'
import type { IpipSettings, TunSettings, VxlanSettings } from '../../../src/host/kernel.ts'
import { socketsIn } from '../../../src/host/udp-ports.ts'
import { parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'
import { requireNeeds, type NeedsHost } from '../../../src/node/needs.ts'
import type { NeededPart } from '../../../src/path/contract.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

type TestLink = Parameters<ModelKernel['addLink']>[0] & { readonly address?: string }

/** A host that has these devices. */
function hostOf(devices: readonly TestLink[], more: Partial<NeedsHost> = {}): NeedsHost {
  const kernel = new ModelKernel()
  for (const { address, ...device } of devices)
    kernel.addLink(device, address === undefined ? [] : [{ address: parseIpv4(address)!, prefixLength: 32 }])
  return { kernel, isForwarding: false, tunNames: [], ...more }
}
const needs = (...parts: NeededPart[]) => ({ needs: () => parts })

let socket: Socket | undefined
afterEach(() => {
  socket?.close()
  socket = undefined
})
/** Takes a port in this process. */
const take = (): Promise<number> =>
  new Promise((resolve) => {
    socket = createSocket('udp4').bind({ address: '127.0.0.1' }, () => resolve(socket!.address().port))
  })

describe('a device', () => {
  it('of an earlier run counts under another name if its addresses are in the network', async () => {
    const part = {
      device: { name: 'flannel.1', type: 'vxlan', networks: { ipv4: parseIpv4Net('10.5.0.0/16')! }, replaces: 'any' },
      ports: [{ family: 'ipv4', address: '0.0.0.0', port: 0, option: 'Port', vxlan: { vni: 1, gbp: false } }],
    } as const
    const flags = { learning: false, gbp: false, external: false, zeroChecksumIpv6Rx: false }
    const vxlan: VxlanSettings = { vni: 1, local: parseIpv4('192.0.2.1'), underlay: 0, port: 0, ...flags }
    const withAddress = (address: string) => hostOf([{ name: 'other0', type: 'vxlan', vxlan, address }])
    await requireNeeds(needs(part), withAddress('10.5.1.0'))
    await expect(requireNeeds(needs(part), withAddress('192.0.2.9'))).rejects.toMatchObject({
      message: 'flannel.1 cannot be made, since the device other0 has its VNI 1 and its UDP port 0',
    })
  })

  const ipip = {
    device: {
      name: 'flannel.ipip',
      type: 'ipip',
      networks: {},
      replaces: [],
      local: '192.0.2.1',
      refusal: "isn't an ipip mode device",
    },
  } as const
  const ipipTo = (local: string, more: Partial<IpipSettings> = {}): TestLink => ({
    name: 'mine',
    type: 'ipip',
    ipip: { local: parseIpv4(local), remote: undefined, external: false, alwaysDf: false, ...more },
  })
  it('of another type keeps ipip from its name, in the words of flanneld', async () => {
    await expect(requireNeeds(needs(ipip), hostOf([{ name: 'flannel.ipip', type: 'bridge' }]))).rejects.toMatchObject({
      code: 'DEVICE',
      message: "isn't an ipip mode device",
    })
    await requireNeeds(needs(ipip), hostOf([{ ...ipipTo('192.0.2.9'), name: 'flannel.ipip' }]))
  })

  it('of the same local address prevents ipip, except one to a single host', async () => {
    await expect(requireNeeds(needs(ipip), hostOf([ipipTo('192.0.2.1')]))).rejects.toThrow(
      'flannel.ipip cannot be made, since the device mine is of the same kind and addresses',
    )
    await requireNeeds(needs(ipip), hostOf([ipipTo('192.0.2.1', { remote: parseIpv4('192.0.2.7') })]))
    await requireNeeds(needs(ipip), hostOf([ipipTo('192.0.2.2')]))
    await requireNeeds(needs(ipip), hostOf([ipipTo('192.0.2.1', { underlay: 7 })]))
    await requireNeeds(needs(ipip), hostOf([ipipTo('192.0.2.1', { external: true })]))
    await requireNeeds(needs(ipip), hostOf([{ ...ipipTo(''), name: 'tunl0' }]))
  })

  const TUN: TunSettings = { mode: 'tun', persist: true, isMultiQueue: false, openQueues: undefined }
  const tun = { device: { name: 'flannel-wg', type: 'tun', networks: {}, replaces: ['wireguard'] } } as const
  it('that the data path deletes or keeps is not a problem', async () => {
    await requireNeeds(needs(tun), hostOf([{ name: 'flannel-wg', type: 'wireguard' }]))
    await requireNeeds(needs(tun), hostOf([{ name: 'flannel-wg', type: 'tun', tun: TUN, hasCarrier: false }]))
  })

  it('through which another process forwards cannot be used, unless this node forwards already or inherits the device', async () => {
    const used = [{ name: 'flannel-wg', type: 'tun', tun: TUN }]
    await expect(requireNeeds(needs(tun), hostOf(used))).rejects.toThrow('another process forwards through flannel-wg')
    await requireNeeds(needs(tun), hostOf(used, { isForwarding: true }))
    await requireNeeds(needs(tun), hostOf(used, { tunNames: ['flannel-wg'] }))
  })
})

describe('a port', () => {
  const at = (port: number, more: Partial<NeededPart> = {}): NeededPart => ({
    ports: [{ family: 'ipv4', address: '127.0.0.1', port, option: 'ListenPort' }],
    ...more,
  })
  it('that this process has open causes no error', async () => {
    await requireNeeds(needs(at(await take())), hostOf([]))
  })

  it('that is free lets the start continue, although the device of another part is blocked', async () => {
    const bad = { device: { name: 'flannel-wg', type: 'tun', networks: {}, replaces: [] } } as const
    await requireNeeds(needs(bad, at(0)), hostOf([{ name: 'flannel-wg', type: 'bridge' }]))
  })
})

it('a backend that needs nothing causes no check', async () => {
  await requireNeeds({}, hostOf([]))
  await requireNeeds(needs(), hostOf([]))
})

it("reads the kernel's tables of sockets", () => {
  const udp = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 3564: 00000000:2118 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7757643 2 000000004095d189 0
 3565: 0100007F:2118 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 12 2 000000004095d189 0
 3565: 0100007F:2119 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 13 2 000000004095d189 0
`
  expect(socketsIn(udp, 'ipv4', 8472)).toEqual([
    { address: '*', inode: 7_757_643 },
    { address: String(0x7f_00_00_01), inode: 12 },
  ])
  const udp6 = ' 1: 000000000000000000000000FE000001:0035 0:0 07 0:0 0:0 0 0 0 9 2 0 0\n'.replace(
    'FE000001',
    '01000000',
  )
  expect(socketsIn(udp6, 'ipv6', 53)).toEqual([{ address: '1', inode: 9 }])
})
