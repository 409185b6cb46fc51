// wireguard-device.test.ts - the kernel's WireGuard device: its own settings, its peers and their traffic.

import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { Secret } from '../../../../src/base/secret.ts'
import type { WireguardPeerState } from '../../../../src/host/kernel.ts'
import { FollowedLink } from '../../../../src/host/links.ts'
import { parseAddress, parseNet } from '../../../../src/net/address.ts'
import { openWireguardDevice, type WireguardPeer } from '../../../../src/path/backends/wireguard-device.ts'
import { publicKeyTo } from '../../../../src/path/backends/wireguard/key-file.ts'
import { log } from '../../../support/fake-host.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const PSK = new Secret('MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=')
/** The private key of the node. */
const KEY = new Secret('dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=')

const peerOf = (number: number, nets: readonly string[] = [`10.5.${number}.0/24`]): WireguardPeer => ({
  publicKey: Buffer.alloc(32, number).toString('base64'),
  endpoint: { address: parseAddress(`192.0.2.${number}`)!, port: 51_820 },
  allowedIps: nets.map((text) => parseNet(text)!),
})

let folder: string
let kernel: ModelKernel
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-wg-'))
  vi.stubEnv('TMPDIR', '/nowhere') // as with a read-only root
  kernel = new ModelKernel()
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(folder, { recursive: true })
})

let boottime = 0
const open = (psk = PSK, device = new FollowedLink('flannel-wg')) =>
  openWireguardDevice({
    clock: () => boottime,
    link: device,
    keyFile: join(folder, 'wgkey'),
    privateKey: KEY,
    ownKey: publicKeyTo(KEY),
    port: 51_820,
    psk,
    keepalive: 25,
    kernel,
    log,
  })
const known = (name = 'flannel-wg') => kernel.wireguardDevice(name)
/** Changes a peer as another program, or the kernel itself, does. */
const alter = (peer: WireguardPeer, state: Partial<WireguardPeerState>): void =>
  void known().peers.set(peer.publicKey, { ...known().peers.get(peer.publicKey)!, ...state })

it('replaces a device with its name, and sets its key and its port', async () => {
  const old = kernel.addLink({ name: 'flannel-wg', type: 'wireguard' })
  const device = await open()
  expect(kernel.peek('flannel-wg')!.index).not.toBe(old)
  expect([known().publicKey, known().port]).toEqual([publicKeyTo(KEY), 51_820])
  await device.close()
  expect(kernel.peek('flannel-wg')).toBeUndefined()
  await device.close() // another program deleted the device
})

it('leaves no device if the kernel refuses its port', async () => {
  kernel.refuses = (words) => (words.startsWith('wg set') ? 'EADDRINUSE' : undefined)
  await expect(open()).rejects.toMatchObject({ code: 'KERNEL', cause: { errno: 'EADDRINUSE' } })
  expect(kernel.peek('flannel-wg')).toBeUndefined()
})

it('sets peers completely, changes only peers that differ, and removes others', async () => {
  const device = await open()
  const [first, second, third] = [peerOf(2), peerOf(3, ['10.5.3.0/24', 'fd00:5:0:3::/64']), peerOf(4)]
  expect(await device.setPeers([first, second])).toBe(2)
  expect([...known().peers.values()]).toMatchObject([
    { ...first, presharedKey: PSK, keepaliveSeconds: 25 },
    { ...second, presharedKey: PSK, keepaliveSeconds: 25 },
  ])
  kernel.changes.length = 0
  expect(await device.setPeers([{ ...second, allowedIps: second.allowedIps.toReversed() }, first])).toBe(0)
  expect(kernel.changes).toEqual([])
  expect(await device.setPeers([second, third])).toBe(2)
  expect(kernel.changes.map((words) => words.split(' ').slice(0, 5).join(' '))).toEqual([
    `wg set flannel-wg peer ${first.publicKey}`,
    `wg set flannel-wg peer ${third.publicKey}`,
  ])
  expect([...known().peers.keys()]).toEqual([second.publicKey, third.publicKey])
  expect(kernel.changes.join('\n')).not.toContain(PSK.reveal())
})

it('sets a changed endpoint, but leaves the endpoint of a peer that moved', async () => {
  const device = await open()
  const moved = { address: parseAddress('198.51.100.7')!, port: 7 }
  await device.setPeers([peerOf(2)])
  alter(peerOf(2), { endpoint: moved })
  expect(await device.setPeers([peerOf(2)])).toBe(0)
  expect(known().peers.get(peerOf(2).publicKey)!.endpoint).toEqual(moved)
  expect(await device.setPeers([{ ...peerOf(2), endpoint: { ...moved, port: 8 } }])).toBe(1)
  expect(known().peers.get(peerOf(2).publicKey)!.endpoint).toEqual({ ...moved, port: 8 })
})

it.each<[string, Secret, Partial<WireguardPeerState>]>([
  ['pre-shared key', PSK, { presharedKey: new Secret(Buffer.alloc(32, 9).toString('base64')) }],
  ['pre-shared key that the configuration lacks', new Secret(''), { presharedKey: PSK, hasPresharedKey: true }],
  ['keepalive interval', PSK, { keepaliveSeconds: 0 }],
  ['allowed IPs', PSK, { allowedIps: [parseNet('10.5.2.0/24')!, parseNet('10.5.9.0/24')!] }],
])('repairs a changed %s', async (_, psk, state) => {
  const device = await open(psk)
  await device.setPeers([peerOf(2)])
  const right = known().state()
  alter(peerOf(2), state)
  expect(await device.setPeers([peerOf(2)])).toBe(1)
  expect(known().state()).toEqual(right)
})

it("repairs the device's own key and port", async () => {
  const device = await open()
  known().port = 7
  expect(await device.setPeers([])).toBe(1)
  known().publicKey = 'other'
  expect(await device.setPeers([])).toBe(1)
  expect([known().publicKey, known().port]).toEqual([publicKeyTo(KEY), 51_820])
})

it('sets all other peers if the kernel refuses one, and the error names that peer only', async () => {
  const device = await open()
  const peers = [peerOf(2), peerOf(3), peerOf(4)]
  kernel.refuses = (words) => (words.includes(peers[1]!.publicKey) ? 'ENOMEM' : undefined)
  const failure = await device.setPeers(peers).catch((error: Error) => error.message)
  expect(failure).toContain(peers[1]!.publicKey)
  expect(failure).not.toContain(peers[0]!.publicKey)
  expect([...known().peers.keys()]).toEqual([peers[0]!.publicKey, peers[2]!.publicKey])
  kernel.refuses = () => undefined
  expect(await device.setPeers(peers)).toBe(3) // weftd does not know which endpoints it has set
})

it('reports the state of each session, and the age of its keys while they are valid', async () => {
  vi.useFakeTimers({ toFake: ['Date'], now: 1_000_000_000_000 })
  try {
    const device = await open()
    const peers = [2, 3, 4, 5].map((number) => peerOf(number))
    await device.setPeers(peers)
    const traffic = { receivedBytes: 600, sentBytes: 700 }
    alter(peers[0]!, { endpoint: undefined, sentBytes: 148 })
    alter(peers[1]!, { handshakeAt: 999_999_980_500, ...traffic })
    alter(peers[2]!, { handshakeAt: 999_999_820_000, ...traffic })
    alter(peers[3]!, { handshakeAt: 1_000_000_007_000, ...traffic }) // the clock was set back after this handshake
    const reported = await device.traffic()
    const counted = { txBytes: 700, rxBytes: 600 }
    const keys = peers.map(({ publicKey }) => publicKey)
    expect([...reported.values()].map(({ session }) => session)).toEqual([
      { publicKey: keys[0], handshakeAt: undefined, ageMs: undefined, txBytes: 148, rxBytes: 0 },
      { publicKey: keys[1], handshakeAt: 999_999_980_500, ageMs: 19_500, ...counted },
      { publicKey: keys[2], handshakeAt: 999_999_820_000, ageMs: undefined, ...counted },
      { publicKey: keys[3], handshakeAt: 1_000_000_000_000, ageMs: 0, ...counted },
    ])
    expect([...reported].map(([key, { endpoint }]) => [key, endpoint]).slice(0, 2)).toEqual([
      [keys[0], undefined],
      [keys[1], '192.0.2.3:51820'],
    ])
    expect(JSON.stringify([...reported])).not.toContain(PSK.reveal())
  } finally {
    vi.useRealTimers()
  }
})

it.each([
  ['back', -7_200_000],
  ['forward', 7_200_000],
])('counts the age of a handshake correctly if the clock of the host is set %s after it', async (_way, stepMs) => {
  vi.useFakeTimers({ toFake: ['Date', 'performance'], now: 1_000_000_000_000 })
  const passes = (ms: number): void => {
    boottime += ms
    vi.advanceTimersByTime(ms)
  }
  try {
    const device = await open()
    await device.setPeers([peerOf(2)])
    const ageMs = async (): Promise<readonly unknown[]> => {
      const [{ session, lastReceivedAt } = {}] = (await device.traffic()).values()
      return [session?.ageMs, performance.now() - lastReceivedAt!, Date.now() - session!.handshakeAt!]
    }
    await device.traffic()
    passes(1_000)
    alter(peerOf(2), { handshakeAt: Date.now() })
    passes(4_000)
    expect(await ageMs()).toEqual([4_000, 4_000, 4_000])
    vi.setSystemTime(Date.now() + stepMs)
    // weftd knows that the handshake happened in the 5 s before it first read the handshake.
    const oldestMs = stepMs < 0 ? 0 : 5_000
    expect(await ageMs()).toEqual([oldestMs, oldestMs, oldestMs])
    passes(170_000)
    const olderMs = oldestMs + 170_000
    expect(await ageMs()).toEqual([olderMs, olderMs, olderMs])
    passes(30_000)
    expect(await ageMs()).toEqual([undefined, olderMs + 30_000, olderMs + 30_000])
    alter(peerOf(2), { handshakeAt: Date.now() })
    expect(await ageMs()).toEqual([0, 0, 0])
  } finally {
    vi.useRealTimers()
  }
})

it('removes the key files of an earlier version that was killed, but not those of a running process', async () => {
  const dead = spawnSync('true').pid
  const left = [`.weft-${dead}-abcdef`, '.weft-abcdef', `.weft-${process.pid}-abcdef`]
  for (const name of [...left, `.weft-${process.ppid}-abcdef`, 'weft-1']) {
    mkdirSync(join(folder, name))
    writeFileSync(join(folder, name, 'psk'), PSK.reveal())
  }
  const elsewhere = mkdtempSync('/tmp/weft-wg-')
  symlinkSync(elsewhere, join(folder, `.weft-${dead}-ghijkl`))
  writeFileSync(join(elsewhere, 'kept'), '')
  mkdirSync(`/dev/shm/.weft-${dead}-abcdef`)
  try {
    await open()
    expect(readdirSync(folder).toSorted()).toEqual(
      [`.weft-${process.ppid}-abcdef`, `.weft-${dead}-ghijkl`, 'weft-1'].toSorted(),
    )
    expect(existsSync(`/dev/shm/.weft-${dead}-abcdef`)).toBe(false)
    expect(readdirSync(elsewhere)).toEqual(['kept'])
  } finally {
    rmSync(elsewhere, { recursive: true })
    rmSync(`/dev/shm/.weft-${dead}-abcdef`, { recursive: true, force: true })
  }
})

it('sets, reads and deletes a renamed device, and not another device with the first name', async () => {
  const link = new FollowedLink('flannel-wg')
  const device = await open(PSK, link)
  kernel.rename('flannel-wg', 'other0')
  kernel.addLink({ name: 'flannel-wg', type: 'wireguard' })
  await link.find(kernel)
  await device.setPeers([peerOf(2)])
  expect([...known('other0').peers.keys(), ...(await device.traffic()).keys()]).toEqual([
    peerOf(2).publicKey,
    peerOf(2).publicKey,
  ])
  expect(known().peers.size).toBe(0)
  await device.close()
  expect([kernel.peek('other0'), kernel.peek('flannel-wg')?.name]).toEqual([undefined, 'flannel-wg'])
})
