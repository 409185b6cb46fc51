// wireguard.test.ts - requests and answers of WireGuard's generic netlink family, to the byte and with a fake kernel.

import { endianness } from 'node:os'
import fc from 'fast-check'
import { beforeEach, expect, it } from 'vitest'
import { Secret } from '../../../../src/base/secret.ts'
import type { WireguardPeerChange } from '../../../../src/host/kernel.ts'
import { MessageWriter } from '../../../../src/host/netlink/message.ts'
import type { Answer, NetlinkSocket } from '../../../../src/host/netlink/socket.ts'
import { readWireguard, setWireguard } from '../../../../src/host/netlink/wireguard.ts'
import { formatNet, netAround, parseAddress, parseNet, type Net } from '../../../../src/net/address.ts'
import { FakeWireguard } from '../../../support/wireguard-netlink.ts'

const keyOf = (byte: number): string => Buffer.alloc(32, byte).toString('base64')
const net = (text: string): Net => parseNet(text)!
const DEVICE = { name: 'flannel-wg', index: 9 }

let kernel: FakeWireguard
beforeEach(() => void (kernel = new FakeWireguard('flannel-wg', 9)))

type WireguardChange = Parameters<typeof setWireguard>[1][number]
const changeOf = (change: Omit<WireguardChange, 'kind' | 'device'>): WireguardChange => ({
  kind: 'set wireguard',
  device: DEVICE,
  ...change,
})
const set = async (change: Omit<WireguardChange, 'kind' | 'device'>): Promise<Answer> =>
  (await setWireguard(kernel, [changeOf(change)]))[0]!
const stateOf = async () => (await readWireguard(kernel, DEVICE)).state!

/** A socket that answers only the lookup of the family, and keeps copies of the requests as hexadecimal text. */
class RecordingSocket implements NetlinkSocket {
  readonly requests: string[] = []
  async exchange(requests: readonly Buffer[]): Promise<readonly Answer[]> {
    this.requests.push(...requests.map((request) => request.toString('hex')))
    const data = new MessageWriter(0x10)
      .raw(Uint8Array.of(1, 2, 0, 0))
      .attributeU16(1, 0x1d)
      .finish()
    return requests.map(() => ({ data, errno: 0, explanation: undefined }))
  }
}

it.skipIf(endianness() === 'BE')('sends the bytes that linux/wireguard.h describes', async () => {
  const socket = new RecordingSocket()
  const peers: WireguardPeerChange[] = [
    {
      publicKey: keyOf(0xa1),
      presharedKey: new Secret(keyOf(0xb1)),
      endpoint: { address: parseAddress('192.0.2.2')!, port: 51_820 },
      keepaliveSeconds: 25,
      allowedIps: [net('10.5.2.0/24')],
    },
    {
      publicKey: keyOf(0xa2),
      endpoint: { address: parseAddress('2001:db8::2')!, port: 51_821 },
      allowedIps: [net('fd00:5:0:2::/64')],
    },
    { publicKey: keyOf(0xa3), isRemoved: true },
  ]
  await setWireguard(socket, [changeOf({ privateKey: new Secret(keyOf(0xc1)), port: 51_820, peers })])
  const header = (length: string, type: string, flags: string): string => `${length}${type}${flags}0000000000000000`
  const key = (byte: string): string => byte.repeat(32)
  const expected = [
    [
      header('24000000', '1000', '0500'), // GENL_ID_CTRL, NLM_F_REQUEST | NLM_F_ACK
      '03010000', // CTRL_CMD_GETFAMILY
      '0e000200776972656775617264000000', // CTRL_ATTR_FAMILY_NAME
    ],
    [
      header('88010000', '1d00', '0500'),
      '01010000', // WG_CMD_SET_DEVICE
      '0800010009000000', // WGDEVICE_A_IFINDEX
      `24000300${key('c1')}`, // WGDEVICE_A_PRIVATE_KEY
      '060006006cca0000', // WGDEVICE_A_LISTEN_PORT
      '40010880', // WGDEVICE_A_PEERS
      '90000080',
      `24000100${key('a1')}`, // WGPEER_A_PUBLIC_KEY
      '0800030002000000', // WGPEER_A_FLAGS: WGPEER_F_REPLACE_ALLOWEDIPS
      `24000200${key('b1')}`, // WGPEER_A_PRESHARED_KEY
      '140004000200ca6cc00002020000000000000000', // WGPEER_A_ENDPOINT: struct sockaddr_in
      '0600050019000000', // WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL
      '20000980', // WGPEER_A_ALLOWEDIPS
      '1c000080',
      '0600010002000000', // WGALLOWEDIP_A_FAMILY
      '080002000a050200', // WGALLOWEDIP_A_IPADDR
      '0500030018000000', // WGALLOWEDIP_A_CIDR_MASK
      '7c000080',
      `24000100${key('a2')}`,
      '0800030002000000',
      '200004000a00ca6d0000000020010db800000000000000000000000200000000', // struct sockaddr_in6
      '2c000980',
      '28000080',
      '060001000a000000',
      '14000200fd000005000000020000000000000000',
      '0500030040000000',
      '30000080',
      `24000100${key('a3')}`,
      '0800030001000000', // WGPEER_F_REMOVE_ME
    ],
  ]
  expect(socket.requests).toEqual(expected.map((words) => words.join('')))
})

it.skipIf(endianness() === 'BE')('names a device without an index by its name, and asks for a dump', async () => {
  const socket = new RecordingSocket()
  await readWireguard(socket, { name: 'wg0' })
  expect(socket.requests[1]).toBe('1c0000001d0001030000000000000000000100000800020077673000')
})

it('reads what it has set: any peers, with any number of allowed IPs', async () => {
  const address = fc.oneof(fc.nat(0xffff_ffff), fc.bigInt({ min: 0n, max: (1n << 128n) - 1n }))
  const aPeer = fc.record({
    psk: fc.option(fc.uint8Array({ minLength: 32, maxLength: 32 }), { nil: undefined }),
    endpoint: fc.option(fc.record({ address, port: fc.integer({ min: 1, max: 65_535 }) }), { nil: undefined }),
    keepaliveSeconds: fc.nat(65_535),
    allowed: fc.integer({ min: 0, max: 1200 }),
  })
  await fc.assert(
    fc.asyncProperty(fc.array(aPeer, { maxLength: 12 }), async (peers) => {
      kernel = new FakeWireguard('flannel-wg', 9)
      let nets = 0
      const wanted = peers.map(({ psk, endpoint, keepaliveSeconds, allowed }, at) => ({
        publicKey: keyOf(at + 1),
        presharedKey: new Secret(psk ? Buffer.from(psk).toString('base64') : ''),
        endpoint,
        keepaliveSeconds,
        allowedIps: Array.from({ length: allowed }, (_, each) =>
          each % 2 ? netAround(++nets * 256, 24) : netAround(BigInt(++nets) << 64n, 64),
        ),
      }))
      const answer = await set({
        peers: wanted.map(({ endpoint, ...peer }) => ({ ...peer, ...(endpoint ? { endpoint } : {}) })),
      })
      expect(answer.errno).toBe(0)
      const { peers: read } = await stateOf()
      expect(
        read.map(({ publicKey, presharedKey, endpoint, keepaliveSeconds, allowedIps }) => ({
          publicKey,
          psk: presharedKey.reveal(),
          endpoint,
          keepaliveSeconds,
          allowedIps,
        })),
      ).toEqual(
        wanted.map(({ presharedKey, ...peer }) => {
          const isNone = Buffer.from(presharedKey.reveal(), 'base64').every((byte) => byte === 0)
          return { ...peer, psk: isNone ? '' : presharedKey.reveal() }
        }),
      )
      expect(Math.max(...kernel.lengths)).toBeLessThan(64 * 1024)
    }),
    { numRuns: 40 },
  )
})

it('reads the counters and the time of the last handshake', async () => {
  await set({
    port: 51_820,
    privateKey: new Secret(keyOf(7)),
    peers: [{ publicKey: keyOf(1) }, { publicKey: keyOf(2) }],
  })
  Object.assign(kernel.peers.get(keyOf(2))!, {
    handshake: [1_700_000_000n, 123_999_999n],
    received: 2n ** 40n + 1n,
    sent: 5n,
  })
  const state = await stateOf()
  expect([state.publicKey, state.port]).toEqual([keyOf(7), 51_820])
  expect(state.peers).toMatchObject([
    { publicKey: keyOf(1), handshakeAt: undefined, receivedBytes: 0, sentBytes: 0, hasPresharedKey: false },
    { publicKey: keyOf(2), handshakeAt: 1_700_000_000_123, receivedBytes: 2 ** 40 + 1, sentBytes: 5 },
  ])
  expect(state.peers.map(({ endpoint }) => endpoint)).toEqual([undefined, undefined])
})

it('replaces the allowed IPs of a peer, leaves settings that the change lacks, and removes peers', async () => {
  const psk = new Secret(keyOf(0xb1))
  await set({
    peers: [{ publicKey: keyOf(1), presharedKey: psk, keepaliveSeconds: 5, allowedIps: [net('10.5.2.0/24')] }],
  })
  await set({ peers: [{ publicKey: keyOf(2), allowedIps: [net('10.5.3.0/24')] }] })
  await set({
    peers: [
      { publicKey: keyOf(1), allowedIps: [net('10.5.4.0/24')] },
      { publicKey: keyOf(2), isRemoved: true },
    ],
  })
  const { peers } = await stateOf()
  expect(peers).toMatchObject([{ publicKey: keyOf(1), hasPresharedKey: true, keepaliveSeconds: 5 }])
  expect(peers[0]!.allowedIps.map(formatNet)).toEqual(['10.5.4.0/24'])
  await set({ peers: [{ publicKey: keyOf(1), presharedKey: new Secret(''), allowedIps: [] }] })
  expect((await stateOf()).peers).toMatchObject([{ hasPresharedKey: false, allowedIps: [] }])
})

it('sets 5,000 peers with a few requests, each below the limit of an attribute', async () => {
  const peers = Array.from({ length: 5000 }, (_, at) => {
    const publicKey = Buffer.alloc(32)
    publicKey.writeUInt32BE(at + 1)
    return {
      publicKey: publicKey.toString('base64'),
      presharedKey: new Secret(keyOf(0xb1)),
      endpoint: { address: 0x0a00_0000 + at, port: 51_820 },
      allowedIps: [netAround(0x0a00_0000 + at * 256, 24), netAround((0xfd00n << 112n) + (BigInt(at) << 64n), 64)],
    }
  })
  expect((await set({ peers })).errno).toBe(0)
  expect([kernel.lengths.length < 60, Math.max(...kernel.lengths) < 0xffff]).toEqual([true, true])
  const read = await stateOf()
  expect(read.peers.map(({ publicKey }) => publicKey)).toEqual(peers.map(({ publicKey }) => publicKey))
  expect(read.peers.every(({ allowedIps }) => allowedIps.length === 2)).toBe(true)
})

it('erases keys in requests and answers', async () => {
  await set({ privateKey: new Secret(keyOf(7)), peers: [{ publicKey: keyOf(1), presharedKey: new Secret(keyOf(8)) }] })
  await stateOf()
  const left = Buffer.concat(kernel.buffers).toString('hex')
  expect(left).not.toMatch(/(?:07){32}|(?:08){32}/)
})

it('makes all changes even if the kernel refuses one, and returns the answer to each', async () => {
  const changes = [{ peers: [{ publicKey: keyOf(1) }] }, { peers: [{ publicKey: 'short' }] }, { port: 5 }].map(changeOf)
  expect((await setWireguard(kernel, changes)).map(({ errno }) => errno)).toEqual([0, 22, 0])
  expect([[...kernel.peers.keys()], kernel.port]).toEqual([[keyOf(1)], 5])
})

it('returns the refusal of the kernel', async () => {
  expect((await set({ peers: [{ publicKey: 'short' }, { publicKey: keyOf(1) }] })).errno).toBe(22)
  expect((await readWireguard(kernel, { name: 'other', index: 3 })).answer.errno).toBe(19)
  kernel.isLoaded = false
  expect([(await set({})).errno, (await readWireguard(kernel, DEVICE)).answer.errno]).toEqual([2, 2])
})

it('ignores any answer that is truncated or garbage', async () => {
  await set({
    port: 1,
    peers: [{ publicKey: keyOf(1), allowedIps: [net('10.5.2.0/24')], endpoint: { address: 1, port: 2 } }],
  })
  const damaged = (damage: (data: Buffer) => Buffer): NetlinkSocket => ({
    exchange: async (requests) =>
      (await kernel.exchange(requests)).map((answer) => ({ ...answer, data: damage(Buffer.from(answer.data)) })),
  })
  await fc.assert(
    fc.asyncProperty(fc.nat(400), fc.nat(400), fc.nat(255), async (at, end, byte) => {
      const socket = damaged((data) => {
        if (at < data.length) data[at] = byte
        return data.subarray(0, Math.max(end, 60)) // the answer to the lookup of the family stays complete
      })
      const { state } = await readWireguard(socket, DEVICE)
      for (const peer of state?.peers ?? []) for (const each of peer.allowedIps) formatNet(each)
    }),
  )
})
