// wireguard-go.ts - makes WireGuard devices with the program wireguard-go for a lab's weftd if the kernel has no
// WireGuard, or if WEFT_WIREGUARD_GO is set. Node.js loads this file before weftd (lab.ts, WIREGUARD_APART).
//
// The device is a TUN of wireguard-go. Its settings are read and changed through a socket with the device's name
// (https://www.wireguard.com/xplatform/), and not through the kernel.

import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createConnection } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { isWeftError, WeftError } from '../src/base/errors.ts'
import { Secret } from '../src/base/secret.ts'
import type { Change, Device, WireguardPeerChange, WireguardPeerState, WireguardState } from '../src/host/kernel.ts'
import { errnoName } from '../src/host/netlink/errno.ts'
import { NetlinkKernel } from '../src/host/netlink/host-kernel.ts'
import { formatEndpoint, formatNet, parseAddress, parseNet } from '../src/net/address.ts'
import { publicKeyTo } from '../src/path/backends/wireguard/key-file.ts'

type WireguardChange = Extract<Change, { readonly kind: 'set wireguard' }>

/**
 * The first name of each device, by the interface index of the device. The socket keeps this name if another program
 * renames the device.
 */
const firstNames = new Map<number, string>()
function socketOf({ name, index = 0 }: Device): string {
  const pathOf = (first: string): string => `/var/run/wireguard/${first}.sock`
  if (existsSync(pathOf(name))) firstNames.set(index, name)
  return pathOf(firstNames.get(index) ?? name)
}
const isHere = (device: Device): boolean => existsSync(socketOf(device))
const hexOf = (base64: string): string => Buffer.from(base64, 'base64').toString('hex').padEnd(64, '0')
const base64Of = (hex: string): string => Buffer.from(hex, 'hex').toString('base64')

/** Sends a request to the wireguard-go of a device, and returns the lines of its answer as names and values. */
async function request(device: Device, lines: readonly string[]): Promise<readonly (readonly [string, string])[]> {
  const socket = createConnection(socketOf(device))
  socket.write(`${lines.join('\n')}\n\n`)
  let answer = ''
  for await (const part of socket.setEncoding('utf8')) {
    answer += part as string
    if (answer.endsWith('\n\n')) break
  }
  const pairs = answer
    .trim()
    .split('\n')
    .map((line): readonly [string, string] => {
      const [name = '', value = ''] = line.split('=')
      return [name, value]
    })
  const errno = Number(pairs.find(([name]) => name === 'errno')?.[1])
  if (errno === 0) return pairs
  const cause = { errno: errnoName(Math.abs(errno)), explanation: undefined }
  throw new WeftError('KERNEL', `wireguard-go refused the request: ${cause.errno}`, { cause })
}

const linesOf = ({ privateKey, port, peers = [] }: WireguardChange): readonly string[] => [
  'set=1',
  ...(privateKey ? [`private_key=${hexOf(privateKey.reveal())}`] : []),
  ...(port === undefined ? [] : [`listen_port=${port}`]),
  ...peers.flatMap(linesOfPeer),
]

function linesOfPeer(peer: WireguardPeerChange): readonly string[] {
  const { publicKey, isRemoved, presharedKey, endpoint, keepaliveSeconds, allowedIps } = peer
  if (isRemoved) return [`public_key=${hexOf(publicKey)}`, 'remove=true']
  return [
    `public_key=${hexOf(publicKey)}`,
    ...(presharedKey ? [`preshared_key=${hexOf(presharedKey.reveal())}`] : []),
    ...(endpoint ? [`endpoint=${formatEndpoint(endpoint.address, endpoint.port)}`] : []),
    ...(keepaliveSeconds === undefined ? [] : [`persistent_keepalive_interval=${keepaliveSeconds}`]),
    ...(allowedIps ? ['replace_allowed_ips=true', ...allowedIps.map((net) => `allowed_ip=${formatNet(net)}`)] : []),
  ]
}

async function stateOf(device: Device): Promise<WireguardState> {
  const state = { publicKey: '', port: 0, peers: [] as WireguardPeerState[] }
  let fields = new Map<string, string[]>()
  for (const [name, value] of await request(device, ['get=1'])) {
    if (name === 'private_key') state.publicKey = publicKeyTo(new Secret(base64Of(value)))
    if (name === 'listen_port') state.port = Number(value)
    if (name === 'public_key' || name === 'errno') {
      if (fields.size > 0) state.peers.push(peerIn(fields))
      fields = new Map()
    }
    if (name === 'public_key' || fields.size > 0) fields.set(name, [...(fields.get(name) ?? []), value])
  }
  return state
}

function peerIn(fields: ReadonlyMap<string, readonly string[]>): WireguardPeerState {
  const field = (name: string): string => fields.get(name)?.[0] ?? ''
  const number = (name: string): number => Number(field(name))
  const psk = field('preshared_key')
  const isKey = /[1-9a-f]/.test(psk)
  const [, host = '', port] = /^\[?([^\]]*?)\]?:(\d+)$/.exec(field('endpoint')) ?? []
  const address = parseAddress(host)
  const handshake = number('last_handshake_time_sec') * 1000 + Math.floor(number('last_handshake_time_nsec') / 1e6)
  return {
    publicKey: base64Of(field('public_key')),
    hasPresharedKey: isKey,
    presharedKey: new Secret(isKey ? base64Of(psk) : ''),
    endpoint: address === undefined ? undefined : { address, port: Number(port) },
    keepaliveSeconds: number('persistent_keepalive_interval'),
    handshakeAt: handshake || undefined,
    receivedBytes: number('rx_bytes'),
    sentBytes: number('tx_bytes'),
    allowedIps: (fields.get('allowed_ip') ?? []).flatMap((text) => parseNet(text) ?? []),
  }
}

const changeByKernel = Reflect.get(NetlinkKernel.prototype, 'change')
const stateByKernel = Reflect.get(NetlinkKernel.prototype, 'wireguard')

async function makeOne(kernel: NetlinkKernel, change: Change): Promise<WeftError | undefined> {
  if (change.kind === 'set wireguard' && isHere(change.device))
    return request(change.device, linesOf(change)).then(
      () => undefined,
      (error: WeftError) => error,
    )
  const isNew = change.kind === 'add link' && change.link.type === 'wireguard'
  const isForced = isNew && process.env['WEFT_WIREGUARD_GO'] !== undefined
  const [error] = isForced ? [] : await changeByKernel.call(kernel, [change])
  if (isNew && (isForced || isWeftError(error, 'NO_DEVICE_TYPE'))) {
    await promisify(execFile)('wireguard-go', [change.link.name])
    return undefined
  }
  // wireguard-go ends after its TUN is gone, and only then releases its port and its socket. So wait until it has
  // ended.
  if (change.kind === 'delete link') for (let tries = 20; tries > 0 && isHere(change.device); tries--) await sleep(100)
  return error
}

NetlinkKernel.prototype.change = async function change(changes) {
  const errors: (WeftError | undefined)[] = []
  for (const each of changes) errors.push(await makeOne(this, each))
  return errors
}
NetlinkKernel.prototype.wireguard = function wireguard(device) {
  return isHere(device) ? stateOf(device) : stateByKernel.call(this, device)
}
