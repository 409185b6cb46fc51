// netlink-wireguard.test.ts - the settings that weft gives to the kernel's WireGuard device are those that `wg` prints, and
// weft reads the settings that `wg` gives to the device.

import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { createLab, packageRoot, type Host, type Lab } from '../../lab/lab.ts'
import { HOSTS, needs } from '../support/needs.ts'
import type { DeviceSettings, PeerSettings } from '../support/wireguard-settings.ts'
import { kernelHasWireguard } from '../support/wireguard.ts'

needs(HOSTS, 'wg')

const PROGRAM = join(packageRoot, 'dist/test/support/wireguard-settings.js')
/** One request of netlink cannot describe all of these peers, and one message of the kernel cannot either. */
const PEERS = 700
/** The number of networks of the first peer, which several requests and several messages of the kernel describe. */
const NETWORKS = 1_500

let lab: Lab
let host: Host
beforeEach(async ({ skip }) => {
  skip(!(await kernelHasWireguard()), 'no WireGuard in the kernel; npm run test:vm has one')
  lab = await createLab({ hosts: 1 })
  host = lab.hosts[0]!
  await host.output('ip link add w0 type wireguard'.split(' '))
})
afterEach(() => lab?.close())

const keyOf = (number: number): string => createHash('sha256').update(`key ${number}`).digest('base64')
const third = (number: number): string => `${number >> 8}.${number & 255}`

function peerOf(number: number): PeerSettings {
  const address = number % 2 ? `172.16.${third(number)}` : `fd77::${number.toString(16)}`
  return {
    publicKey: keyOf(number),
    ...(number % 3 ? {} : { presharedKey: keyOf(-number) }),
    ...(number % 5 ? { endpoint: { address, port: 1000 + number } } : {}),
    ...(number % 7 ? {} : { keepaliveSeconds: number }),
    allowedIps: number % 11 ? [`10.${third(number)}.0/24`, `fd00:5:0:${number.toString(16)}::/64`] : [],
  }
}

const sorted = (lines: string): string[] =>
  lines
    .trim()
    .split('\n')
    .map((line) => {
      const fields = line.split('\t')
      return fields.map((field, at) => (at === 3 ? field.split(',').toSorted().join() : field)).join('\t')
    })
    .toSorted()
const set = (settings: DeviceSettings): Promise<string> =>
  host.output([process.execPath, PROGRAM], { input: JSON.stringify(settings) })
/** Returns the output of `wg show w0 dump`, without the secret key and the mark of the device. */
async function dump(): Promise<string[]> {
  const [device = '', ...peers] = (await host.output('wg show w0 dump'.split(' '))).trim().split('\n')
  return sorted([device.split('\t').slice(1, 3).join('\t'), ...peers].join('\n'))
}
const read = async (): Promise<string[]> => sorted(await set({ device: 'w0' }))

it('is set as wanted, and read as `wg` prints it, even with hundreds of peers', async () => {
  const peers = Array.from({ length: PEERS }, (_, at) => peerOf(at + 1))
  const many = Array.from({ length: NETWORKS }, (_, at) => `10.200.${third(at)}/32`)
  peers[0] = { ...peers[0]!, allowedIps: many }
  const state = sorted(await set({ device: 'w0', privateKey: keyOf(0), port: 51_999, peers }))
  expect(state).toHaveLength(1 + PEERS)
  expect(await dump()).toEqual(state)
  expect(state.find((line) => line.startsWith(keyOf(1)))!.split(',')).toHaveLength(NETWORKS)
  expect(state.find((line) => line.startsWith(keyOf(21)))).toBe(
    [keyOf(21), keyOf(-21), '172.16.0.21:1021', '10.0.21.0/24,fd00:5:0:15::/64', 0, 0, 0, 21].join('\t'),
  )
  expect(state.find((line) => line.startsWith(keyOf(2)))).toContain('\t[fd77::2]:1002\t')

  const changed = sorted(
    await set({
      device: 'w0',
      port: 52_000,
      peers: [
        { publicKey: keyOf(1), isRemoved: true },
        { publicKey: keyOf(2), allowedIps: ['10.0.3.0/24'] }, // the kernel takes the network from peer 3
        { publicKey: keyOf(21), presharedKey: '', keepaliveSeconds: 0, endpoint: { address: 'fd77::21', port: 1 } },
      ],
    }),
  )
  expect(await dump()).toEqual(changed)
  const after = new Map(changed.map((line) => [line.split('\t')[0]!, line.split('\t').slice(1)]))
  expect(after.size).toBe(PEERS)
  expect(after.has(keyOf(1))).toBe(false)
  expect(after.get(keyOf(2))![2]).toBe('10.0.3.0/24')
  expect(after.get(keyOf(3))![2]).toBe('fd00:5:0:3::/64')
  expect(after.get(keyOf(21))).toEqual([
    '(none)',
    '[fd77::21]:1',
    '10.0.21.0/24,fd00:5:0:15::/64',
    '0',
    '0',
    '0',
    'off',
  ])
  expect(changed).toContain(`${await host.output(['wg', 'show', 'w0', 'public-key']).then((key) => key.trim())}\t52000`)
})

it('is read as `wg` set it', async () => {
  expect(await read()).toEqual(['(none)\t0'])
  const words = (number: number, more: string): string[] => ['peer', keyOf(number), ...more.split(' ')]
  await host.output([
    ...'wg set w0 listen-port 4000'.split(' '),
    ...words(1, 'endpoint 192.168.77.9:99 allowed-ips 10.5.1.0/24,fd00::/64 persistent-keepalive 25'),
    ...words(2, 'endpoint [fd77::9]:98 allowed-ips 0.0.0.0/0,::/0'),
    ...words(3, 'persistent-keepalive off'),
  ])
  expect(await read()).toEqual(await dump())
  expect(await read()).toContain(`${keyOf(1)}\t(none)\t192.168.77.9:99\t10.5.1.0/24,fd00::/64\t0\t0\t0\t25`)
})

it('has the error of the kernel for a device that is missing or of another type, and for a process without rights', async () => {
  expect(await set({ device: 'w9', port: 1 })).toMatch(
    /^KERNEL: the kernel refused `wg set w9 listen-port 1`: No such device/,
  )
  expect(await set({ device: 'w9' })).toMatch(/^KERNEL: .*w9.*: No such device/)
  expect(await set({ device: 'eth0' })).toMatch(/^KERNEL: .*eth0.*: Operation not supported/)
  const unprivileged = ['setpriv', '--bounding-set=-net_admin', '--inh-caps=-net_admin', process.execPath, PROGRAM]
  const asked = await host.output(unprivileged, { input: JSON.stringify({ device: 'w0' }) })
  expect(asked).toMatch(/^PERMISSION: .*w0.*: Operation not permitted/)
})
