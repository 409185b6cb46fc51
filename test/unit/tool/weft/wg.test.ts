// wg.test.ts - `weft wg` prints a status in the format of `wg show`, for one device or two, and explains if packets are not encrypted.

import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { countPeers, type PeerStatus, type SessionStatus, type Status } from '../../../../src/report/status.ts'
import { interfacesOf } from '../../../../src/tool/weft/wg.ts'
import { dualPeer, soundDual, soundPeer, soundStatus } from '../../../support/facts.ts'
import { weft } from '../../../support/screen.ts'

const OURS = { PublicKey: 'ours=', Port: 51_820 }
const session = (publicKey: string, known: Partial<SessionStatus> = {}): SessionStatus => ({
  publicKey,
  handshakeSecondsAgo: 63.9,
  ageSeconds: 63.9,
  attempts: 0,
  failure: null,
  stale: 0,
  unconfirmed: 0,
  txBytes: 3 * 1024,
  rxBytes: 1446,
  ...known,
})
const peer = (name: string, known: Partial<SessionStatus> = {}): PeerStatus => ({
  ...soundPeer,
  name,
  type: 'wireguard',
  endpoint: '192.0.2.2:51820',
  session: session(`of-${name}=`, known),
})
const encrypting = (list: readonly PeerStatus[], backend: Readonly<Record<string, unknown>> = {}): Status => ({
  ...soundStatus,
  config: { ...soundStatus.config!, backendType: 'wireguard', backend },
  lease: { ...soundStatus.lease!, published: { PublicIP: '192.0.2.1', BackendType: 'wireguard', BackendData: OURS } },
  dataPath: { ...soundStatus.dataPath!, device: 'flannel-wg', devices: { ipv4: 'flannel-wg', ipv6: null } },
  peers: countPeers(list, 10),
})

let folder: string
let server: Server
let status: Status
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-wg-tool-'))
  server = createServer((_, response) => response.end(JSON.stringify(status)))
  await new Promise<void>((resolve) => server.listen(join(folder, 'socket'), resolve))
})
afterEach(() => {
  server.close()
  rmSync(folder, { recursive: true })
})
const wg = (...words: string[]) => weft(['wg', ...words, '--status-socket', join(folder, 'socket')])

it('prints the output of `wg show`, the latest handshake first, without secrets', async () => {
  const silent = { handshakeSecondsAgo: null, ageSeconds: null, txBytes: 0, rxBytes: 0 }
  const list = [peer('b', silent), peer('c', { handshakeSecondsAgo: 93_784, ageSeconds: null, rxBytes: 0 }), peer('d')]
  status = encrypting(list, { psk: '<hidden>', persistentkeepaliveinterval: 25 })
  const { code, out, err } = await wg()
  expect([code, err]).toEqual([0, ''])
  const common = ['  allowed ips: 10.5.2.0/24']
  const before = ['  preshared key: (hidden)', '  endpoint: 192.0.2.2:51820', ...common]
  const after = ['  persistent keepalive: every 25 seconds', '']
  expect(out.split('\n')).toEqual([
    'interface: flannel-wg',
    '  public key: ours=',
    '  private key: (hidden)',
    '  listening port: 51820',
    '',
    'peer: of-d=',
    ...before,
    '  latest handshake: 1 minute, 3 seconds ago',
    '  transfer: 1.41 KiB received, 3.00 KiB sent',
    ...after,
    'peer: of-c=',
    ...before,
    '  latest handshake: 1 day, 2 hours, 3 minutes, 4 seconds ago',
    '  transfer: 0 B received, 3.00 KiB sent',
    ...after,
    'peer: of-b=',
    ...before,
    ...after,
  ])
})

it('leaves out missing facts, and formats large numbers', async () => {
  const big = { txBytes: 5 * 2 ** 50, rxBytes: 3 * 2 ** 20, handshakeSecondsAgo: 0.4 }
  status = encrypting([{ ...peer('b', big), endpoint: null }])
  const { out } = await wg()
  expect(out.split('\n').slice(5)).toEqual([
    'peer: of-b=',
    '  allowed ips: 10.5.2.0/24',
    '  latest handshake: Now',
    '  transfer: 3.00 MiB received, 5120.00 TiB sent',
    '',
  ])
})

it('prints the same as JSON, with names', async () => {
  status = encrypting([peer('b')], { psk: '<hidden>' })
  const { code, out } = await wg('--json')
  expect([code, JSON.parse(out)]).toEqual([
    0,
    {
      interfaces: [
        {
          name: 'flannel-wg',
          publicKey: 'ours=',
          listeningPort: 51_820,
          engine: 'native',
          hasPresharedKey: true,
          keepaliveSeconds: 0,
          peers: [
            {
              publicKey: 'of-b=',
              name: 'b',
              endpoint: '192.0.2.2:51820',
              allowedIps: ['10.5.2.0/24'],
              handshakeSecondsAgo: 63.9,
              ageSeconds: 63.9,
              receivedBytes: 1446,
              sentBytes: 3072,
            },
          ],
        },
      ],
    },
  ])
})

describe('a dual-stack network', () => {
  const both = (devices: { ipv4: string; ipv6: string }): Status => ({
    ...soundDual.status,
    lease: {
      ...soundStatus.lease!,
      published: { BackendData: OURS, BackendV6Data: { PublicKey: 'ours=', Port: 51_821 } },
    },
    dataPath: { ...soundDual.status.dataPath, devices },
    peers: countPeers(
      [
        dualPeer(
          { session: session('of-b='), endpoint: '192.0.2.2:51820' },
          { session: session('of-b=', { txBytes: 5 }), endpoint: '[2001:db8::2]:51821' },
        ),
      ],
      10,
    ),
  })
  it('has two devices, each with its family', () => {
    expect(interfacesOf(both({ ipv4: 'wg4', ipv6: 'wg6' }))).toMatchObject([
      { name: 'wg4', listeningPort: 51_820, peers: [{ endpoint: '192.0.2.2:51820', allowedIps: ['10.5.2.0/24'] }] },
      { name: 'wg6', listeningPort: 51_821, peers: [{ endpoint: '[2001:db8::2]:51821', sentBytes: 5 }] },
    ])
  })
  it('has one device with both families', () => {
    expect(interfacesOf(both({ ipv4: 'wg', ipv6: 'wg' }))).toMatchObject([
      { name: 'wg', listeningPort: 51_820, peers: [{ allowedIps: ['10.5.2.0/24', 'fd00:5:0:2::/64'] }] },
    ])
  })
})

it('leaves out a peer without a session', () => {
  const stored = { ...peer('b'), state: 'stored', session: null } as const
  expect(interfacesOf(encrypting([stored]))).toMatchObject([{ name: 'flannel-wg', peers: [] }])
})

it.each<[string, () => Status, RegExp]>([
  [
    'encrypts nothing',
    () => soundStatus,
    /^weft wg: this node does not encrypt packets: its backend is udp; `weft peers` /,
  ],
  [
    'has no lease',
    () => ({ ...soundStatus, node: null, lease: null, config: null, peers: null, trouble: 'waiting for etcd' }),
    /^weft wg: weftd has no lease yet: waiting for etcd; wait until weftd has a lease/,
  ],
  [
    'carries nothing',
    () => ({
      ...encrypting([]),
      dataPath: { ...soundStatus.dataPath!, device: null, devices: { ipv4: null, ipv6: null } },
    }),
    /^weft wg: weftd does not carry packets now: it has no device; `weft doctor` /,
  ],
])('says what to do if the daemon %s', async (_what, of, line) => {
  status = of()
  const { code, out, err } = await wg()
  expect([code, out]).toEqual([1, ''])
  expect(err).toMatch(line)
})
