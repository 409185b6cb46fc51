// model-wireguard.ts - a WireGuard device of the model kernel (model-kernel.ts).

import { Secret } from '../../src/base/secret.ts'
import type { Change, WireguardPeerChange, WireguardPeerState, WireguardState } from '../../src/host/kernel.ts'
import { formatNet, type Net } from '../../src/net/address.ts'
import { keyPairOf } from '../../src/path/backends/wireguard/x25519.ts'

export class ModelWireguard {
  publicKey = ''
  port = 0
  /** The peers by public key. A test may change a peer, such as the time of its last handshake. */
  readonly peers = new Map<string, WireguardPeerState>()

  state(): WireguardState {
    return { publicKey: this.publicKey, port: this.port, peers: [...this.peers.values()] }
  }

  set({ privateKey, port, peers = [] }: Extract<Change, { readonly kind: 'set wireguard' }>): void {
    if (privateKey)
      this.publicKey = privateKey.isEmpty
        ? ''
        : Buffer.from(keyPairOf(Buffer.from(privateKey.reveal(), 'base64')).publicKey).toString('base64')
    this.port = port ?? this.port
    for (const peer of peers) this.#setPeer(peer)
  }

  #setPeer({ publicKey, isRemoved, presharedKey, allowedIps, ...settings }: WireguardPeerChange): void {
    if (isRemoved) {
      this.peers.delete(publicKey)
      return
    }
    // The kernel ignores a peer with the device's own key (drivers/net/wireguard/netlink.c, set_peer).
    if (publicKey === this.publicKey) return
    if (allowedIps) this.#takeFromOthers(publicKey, allowedIps)
    const old = this.peers.get(publicKey) ?? newPeer(publicKey)
    this.peers.set(publicKey, {
      ...old,
      ...settings,
      ...(presharedKey ? { presharedKey, hasPresharedKey: !presharedKey.isEmpty } : {}),
      ...(allowedIps ? { allowedIps } : {}),
    })
  }

  /** Removes the networks from the lists of the other peers, because a network belongs to one peer only. */
  #takeFromOthers(publicKey: string, nets: readonly Net[]): void {
    const taken = new Set(nets.map(formatNet))
    for (const [key, peer] of this.peers)
      if (key !== publicKey)
        this.peers.set(key, { ...peer, allowedIps: peer.allowedIps.filter((net) => !taken.has(formatNet(net))) })
  }
}

const newPeer = (publicKey: string): WireguardPeerState => ({
  publicKey,
  hasPresharedKey: false,
  presharedKey: new Secret(''),
  endpoint: undefined,
  keepaliveSeconds: 0,
  handshakeAt: undefined,
  receivedBytes: 0,
  sentBytes: 0,
  allowedIps: [],
})
