// needs.test.ts - the checks before a lease is written, with devices of kinds that not every kernel has, and with sockets of this process.

import { createSocket, type Socket } from 'node:dgram'
import { afterEach, describe, expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import type { Run } from '../../../src/host/command.ts'
import { hostKernel } from '../../../src/host/no-kernel.ts'
import { socketsIn } from '../../../src/host/udp-ports.ts'
import { parseIpv4Net } from '../../../src/net/ipv4.ts'
import { requireNeeds, type NeedsHost } from '../../../src/node/needs.ts'
import type { NeededPart } from '../../../src/path/contract.ts'

interface Device {
  readonly name: string
  readonly kind: string
  readonly data?: object
  readonly isUp?: boolean
  readonly address?: string
}

/** A host that has these devices; `listens` is what `wg` shows. */
const hostOf = (devices: readonly Device[], more: Partial<NeedsHost> = {}, listens = ''): NeedsHost => {
  const run: Run = async (file, args) => {
    const command = [file, ...args].join(' ')
    if (command === 'ip -j -d link show' || command === 'ip -j -d address show')
      return JSON.stringify(
        devices.map(({ name, kind, data = {}, isUp = true, address }, at) => ({
          ifname: name,
          ifindex: at + 1,
          flags: isUp ? ['UP'] : [],
          linkinfo: { info_kind: kind, info_data: data },
          addr_info: address === undefined ? [] : [{ local: address }],
        })),
      )
    if (command.startsWith('wg show')) return `${listens}\n`
    if (file === 'wg')
      throw new WeftError('COMMAND', 'wg is not installed', {
        cause: Object.assign(new Error('spawn'), { code: 'ENOENT', path: 'wg' }),
      })
    return '[]'
  }
  return { run, kernel: hostKernel, isForwarding: false, tunNames: [], ...more }
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
    const data = { id: 1, port: 0, local: '192.0.2.1' }
    const vxlan = (address: string) => hostOf([{ name: 'other0', kind: 'vxlan', data, address }])
    await requireNeeds(needs(part), vxlan('10.5.1.0'))
    await expect(requireNeeds(needs(part), vxlan('192.0.2.9'))).rejects.toMatchObject({
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
  it('of another type keeps ipip from its name, in the words of flanneld', async () => {
    await expect(requireNeeds(needs(ipip), hostOf([{ name: 'flannel.ipip', kind: 'bridge' }]))).rejects.toMatchObject({
      code: 'DEVICE',
      message: "isn't an ipip mode device",
    })
    await requireNeeds(needs(ipip), hostOf([{ name: 'flannel.ipip', kind: 'ipip', data: { local: '192.0.2.9' } }]))
  })

  it('of the same local address prevents ipip, except one to a single host', async () => {
    const other = (data: object): Device => ({ name: 'mine', kind: 'ipip', data })
    await expect(requireNeeds(needs(ipip), hostOf([other({ local: '192.0.2.1' })]))).rejects.toThrow(
      'flannel.ipip cannot be made, since the device mine is of the same kind and addresses',
    )
    await requireNeeds(needs(ipip), hostOf([other({ local: '192.0.2.1', remote: '192.0.2.7' })]))
    await requireNeeds(needs(ipip), hostOf([other({ local: '192.0.2.2' })]))
    await requireNeeds(needs(ipip), hostOf([{ name: 'tunl0', kind: 'ipip', data: {} }]))
  })

  const tun = { device: { name: 'flannel-wg', type: 'tun', networks: {}, replaces: ['wireguard'] } } as const
  it('that the data path deletes or keeps is not a problem', async () => {
    await requireNeeds(needs(tun), hostOf([{ name: 'flannel-wg', kind: 'wireguard' }]))
    await requireNeeds(needs(tun), hostOf([{ name: 'flannel-wg', kind: 'tun', data: { type: 'tun' }, isUp: false }]))
  })

  it('through which another process forwards cannot be used, unless this node forwards already or inherits the device', async () => {
    const used = [{ name: 'flannel-wg', kind: 'tun', data: { type: 'tun' } }]
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
    await requireNeeds(needs(bad, at(0)), hostOf([{ name: 'flannel-wg', kind: 'bridge' }]))
  })
})

it('a missing program that the data path requires ends the start', async () => {
  await expect(requireNeeds(needs({ programs: ['wg'] }), hostOf([]))).rejects.toThrow('wg is not installed')
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
