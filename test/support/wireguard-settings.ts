// wireguard-settings.ts - a program that changes a WireGuard device of its network namespace through the kernel interface,
// and then prints the state of the device that the kernel reports. netlink-wireguard.test.ts runs it.
//
// The program reads the wanted settings as JSON from stdin. It prints the state as `wg show DEVICE dump` does, without the
// secret key of the device. If the kernel refuses a request, the program prints the code and the message of the error.

import { text } from 'node:stream/consumers'
import { isWeftError } from '../../src/base/errors.ts'
import { Secret } from '../../src/base/secret.ts'
import type { WireguardPeerChange, WireguardPeerState } from '../../src/host/kernel.ts'
import { hostKernel } from '../../src/host/netlink/host-kernel.ts'
import { formatEndpoint, formatNet, parseAddress, parseNet } from '../../src/net/address.ts'

/** The settings of a peer, as the members of WireguardPeerChange with the same names. */
export interface PeerSettings {
  readonly publicKey: string
  readonly isRemoved?: boolean
  readonly presharedKey?: string
  readonly endpoint?: { readonly address: string; readonly port: number }
  readonly keepaliveSeconds?: number
  readonly allowedIps?: readonly string[]
}

export interface DeviceSettings {
  readonly device: string
  readonly privateKey?: string
  readonly port?: number
  readonly peers?: readonly PeerSettings[]
}

function changeOf({ presharedKey, endpoint, allowedIps, ...rest }: PeerSettings): WireguardPeerChange {
  return {
    ...rest,
    ...(presharedKey === undefined ? {} : { presharedKey: new Secret(presharedKey) }),
    ...(endpoint && { endpoint: { address: parseAddress(endpoint.address)!, port: endpoint.port } }),
    ...(allowedIps && { allowedIps: allowedIps.map((net) => parseNet(net)!) }),
  }
}

function lineOf(peer: WireguardPeerState): string {
  const { publicKey, presharedKey, endpoint, allowedIps, handshakeAt = 0, receivedBytes, sentBytes } = peer
  return [
    publicKey,
    presharedKey.reveal() || '(none)',
    endpoint ? formatEndpoint(endpoint.address, endpoint.port) : '(none)',
    allowedIps.map(formatNet).join(',') || '(none)',
    Math.floor(handshakeAt / 1000),
    receivedBytes,
    sentBytes,
    peer.keepaliveSeconds || 'off',
  ].join('\t')
}

const settings = JSON.parse(await text(process.stdin)) as DeviceSettings
const device = { name: settings.device }
try {
  if (settings.privateKey !== undefined || settings.port !== undefined || settings.peers !== undefined) {
    const { privateKey, port, peers } = settings
    const [error] = await hostKernel.change([
      {
        kind: 'set wireguard',
        device,
        ...(privateKey === undefined ? {} : { privateKey: new Secret(privateKey) }),
        ...(port === undefined ? {} : { port }),
        ...(peers && { peers: peers.map(changeOf) }),
      },
    ])
    if (error) throw error
  }
  const { publicKey, port, peers } = await hostKernel.wireguard(device)
  process.stdout.write([`${publicKey || '(none)'}\t${port}`, ...peers.map(lineOf), ''].join('\n'))
} catch (error) {
  if (!isWeftError(error)) throw error
  process.stdout.write(`${error.code}: ${error.message}\n`)
}
