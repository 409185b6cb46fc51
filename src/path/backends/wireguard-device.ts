// wireguard-device.ts - the kernel's WireGuard device and its peers.

import type { Log } from '../../base/log.ts'
import type { Secret } from '../../base/secret.ts'
import { applyChange, applyChanges, removeAll } from '../../host/kernel-errors.ts'
import type { HostKernel, WireguardPeerChange, WireguardPeerState } from '../../host/kernel.ts'
import type { FollowedLink } from '../../host/links.ts'
import { formatEndpoint, formatNet, type Address, type Net } from '../../net/address.ts'
import { REJECT_AFTER_MS, WIREGUARD_KEY } from '../catalog.ts'
import type { PeerSession } from '../contract.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import type { PeerTraffic } from '../engine/engine.ts'
import { removeLeftovers } from './wireguard/key-folder.ts'
import { sessionClock } from './wireguard/session-clock.ts'

export interface WireguardPeer {
  /** The peer's public key: 32 bytes in base64. */
  readonly publicKey: string
  readonly endpoint: { readonly address: Address; readonly port: number }
  readonly allowedIps: readonly Net[]
}

interface WireguardOptions {
  readonly link: FollowedLink
  /**
   * The path of the private key's file. weftd deletes the temporary files that its earlier versions left in the same
   * directory.
   */
  readonly keyFile: string
  readonly privateKey: Secret
  readonly ownKey: string
  readonly port: number
  /** The pre-shared key, 32 bytes in base64; empty if the configuration has no pre-shared key. */
  readonly psk: Secret
  /** The interval in seconds between keepalive packets; 0 switches keepalive packets off. */
  readonly keepalive: number
  readonly kernel: HostKernel
  readonly log: Log
  /** Returns the time of CLOCK_BOOTTIME in ms; defaults to sessionClock. */
  readonly clock?: () => number
}

/**
 * A handshake that the kernel reported. `at` is its time by the wall clock, in ms since 1970. It happened between the
 * times `from` and `to`, in ms of CLOCK_BOOTTIME.
 */
interface SeenHandshake {
  readonly at: number
  readonly from: number
  readonly to: number
}

/** The traffic with a peer. `endpoint` is undefined if the kernel's device has no endpoint for the peer. */
interface WireguardTraffic extends PeerTraffic {
  readonly session: PeerSession
  readonly endpoint: string | undefined
}

export const isKey = (text: string): boolean => WIREGUARD_KEY.test(text)

/**
 * Creates the device; deletes an existing device with this name first. Throws WeftError NO_DEVICE_TYPE if the kernel
 * does not support WireGuard, and DEVICE or KERNEL for other failures.
 */
export async function openWireguardDevice(options: WireguardOptions): Promise<WireguardDevice> {
  const { link, keyFile, kernel } = options
  await removeLeftovers(keyFile)
  await deleteLink(link, kernel)
  link.forget()
  await sayingWhoHasIt(kernel, { name: link.name }, () =>
    applyChange(kernel, { kind: 'add link', link: { name: link.name, type: 'wireguard' } }),
  )
  await link.find(kernel)
  const device = new WireguardDevice(options)
  try {
    await device.setOwn()
  } catch (error) {
    await device.close()
    throw error
  }
  return device
}

async function deleteLink(link: FollowedLink, kernel: HostKernel): Promise<void> {
  if (await link.find(kernel)) await removeAll(kernel, [{ kind: 'delete link', device: link }])
}

export class WireguardDevice {
  readonly #options: WireguardOptions
  /**
   * The endpoint that weftd set for each public key. The kernel's endpoint may differ, because the kernel changes it
   * when the peer sends from another address.
   */
  readonly #setEndpoints = new Map<string, string>()
  /** The last handshake with each peer, by public key. */
  #handshakes: ReadonlyMap<string, SeenHandshake> = new Map()
  /** The time at which weftd last began to read the device, in ms of CLOCK_BOOTTIME. */
  #readAt = -Infinity

  constructor(options: WireguardOptions) {
    this.#options = options
  }

  /**
   * Sets the device's port and private key. The key is set from memory and not from its file, because the file may have
   * changed since this node published its public key.
   */
  setOwn(): Promise<void> {
    const { link: device, privateKey, port, kernel } = this.#options
    return applyChange(kernel, { kind: 'set wireguard', device, port, privateKey })
  }

  /**
   * Makes the device's peers equal to `peers`, without changing peers that are already right. Returns the number of
   * settings that were wrong, including the device's own settings.
   */
  async setPeers(peers: readonly WireguardPeer[]): Promise<number> {
    const { link: device, ownKey, port, kernel } = this.#options
    const state = await kernel.wireguard(device)
    const isOwn = state.publicKey === ownKey && state.port === port
    if (!isOwn) await this.setOwn()
    const present = new Map(state.peers.map((peer) => [peer.publicKey, peer]))
    const wanted = new Set(peers.map(({ publicKey }) => publicKey))
    const removed = state.peers.filter(({ publicKey }) => !wanted.has(publicKey))
    const wrong = peers.filter((peer) => !this.#isRight(peer, present.get(peer.publicKey)))
    const changes: readonly WireguardPeerChange[] = [
      ...removed.map(({ publicKey }) => ({ publicKey, isRemoved: true })),
      ...wrong.map((peer) => this.#changeFor(peer)),
    ]
    // Make a separate change for each peer, so that an error names the peer.
    await applyChanges(
      kernel,
      changes.map((peer) => ({ kind: 'set wireguard', device, peers: [peer] })),
    )
    this.#setEndpoints.clear()
    for (const { publicKey, endpoint } of peers) this.#setEndpoints.set(publicKey, endpointText(endpoint))
    return changes.length + (isOwn ? 0 : 1)
  }

  /**
   * Sets or removes single peers without reading the device, which may have thousands of peers. `wanted` has the
   * settings of each of these peers by public key; undefined removes the peer.
   */
  async changePeers(wanted: ReadonlyMap<string, WireguardPeer | undefined>): Promise<void> {
    const { link: device, kernel } = this.#options
    // Forget the endpoints first. If a change fails, the next call of `setPeers` sets these peers again.
    for (const publicKey of wanted.keys()) this.#setEndpoints.delete(publicKey)
    const changes = [...wanted].map(([publicKey, peer]): WireguardPeerChange =>
      peer ? this.#changeFor(peer) : { publicKey, isRemoved: true },
    )
    // Remove peers first, because a removed peer's subnet may now belong to another peer.
    const sorted = [...changes.filter(({ isRemoved }) => isRemoved), ...changes.filter(({ isRemoved }) => !isRemoved)]
    await applyChanges(
      kernel,
      sorted.map((peer) => ({ kind: 'set wireguard', device, peers: [peer] })),
    )
    for (const [publicKey, peer] of wanted) if (peer) this.#setEndpoints.set(publicKey, endpointText(peer.endpoint))
  }

  /** Returns the traffic, the session and the endpoint of each peer, by the peer's public key. */
  async traffic(): Promise<ReadonlyMap<string, WireguardTraffic>> {
    const { link, kernel, clock = sessionClock } = this.#options
    const began = clock()
    const { peers } = await kernel.wireguard(link)
    const ages = this.#agesOf(peers, began, clock())
    return new Map(
      peers.map(({ publicKey, endpoint, receivedBytes, sentBytes }) => {
        // The byte counts are those of the encrypted packets. The kernel does not report when the last packet arrived.
        // So weftd uses the time of the last handshake: while packets are exchanged, there is a handshake at least
        // every two minutes.
        const counted = { txBytes: sentBytes, rxBytes: receivedBytes }
        const ageMs = ages.get(publicKey) ?? Infinity
        const handshakeAt = ageMs === Infinity ? undefined : Date.now() - ageMs
        const traffic = {
          txPackets: undefined,
          rxPackets: undefined,
          ...counted,
          endpoint: endpoint && endpointText(endpoint),
          lastReceivedAt: ageMs === Infinity ? undefined : performance.now() - ageMs,
          session: { publicKey, handshakeAt, ageMs: ageMs < REJECT_AFTER_MS ? ageMs : undefined, ...counted },
        }
        return [publicKey, traffic] as const
      }),
    )
  }

  /**
   * Returns the age in ms of the last handshake with each peer that had a handshake, by public key. The kernel reports
   * the time of a handshake by the wall clock, which may be set later. So the age must also fit the times of
   * CLOCK_BOOTTIME at which weftd read the device before and after the handshake. `began` and `now` are the times of
   * CLOCK_BOOTTIME in ms before and after this reading.
   */
  #agesOf(peers: readonly WireguardPeerState[], began: number, now: number): ReadonlyMap<string, number> {
    const wall = Date.now()
    const ages = new Map<string, number>()
    const seen = new Map<string, SeenHandshake>()
    for (const { publicKey, handshakeAt: at } of peers) {
      if (at === undefined) continue
      const known = this.#handshakes.get(publicKey)
      const handshake = known?.at === at ? known : { at, from: this.#readAt, to: now }
      seen.set(publicKey, handshake)
      ages.set(publicKey, Math.min(Math.max(now - handshake.to, wall - at), now - handshake.from))
    }
    this.#handshakes = seen
    this.#readAt = began
    return ages
  }

  close(): Promise<void> {
    return deleteLink(this.#options.link, this.#options.kernel)
  }

  /**
   * Returns true if the kernel has the peer with the wanted settings, and weftd has already set the wanted endpoint.
   */
  #isRight({ publicKey, endpoint, allowedIps }: WireguardPeer, present: WireguardPeerState | undefined): boolean {
    const { psk, keepalive } = this.#options
    return (
      present !== undefined &&
      present.presharedKey.identity === psk.identity &&
      present.keepaliveSeconds === keepalive &&
      textOf(present.allowedIps) === textOf(allowedIps) &&
      this.#setEndpoints.get(publicKey) === endpointText(endpoint)
    )
  }

  #changeFor({ publicKey, endpoint, allowedIps }: WireguardPeer): WireguardPeerChange {
    const { psk, keepalive } = this.#options
    return { publicKey, presharedKey: psk, endpoint, keepaliveSeconds: keepalive, allowedIps }
  }
}

export const endpointText = ({ address, port }: WireguardPeer['endpoint']): string => formatEndpoint(address, port)

/** Returns true if both peers have the same settings. */
export const isSamePeer = (a: WireguardPeer, b: WireguardPeer): boolean =>
  a.publicKey === b.publicKey &&
  endpointText(a.endpoint) === endpointText(b.endpoint) &&
  textOf(a.allowedIps) === textOf(b.allowedIps)

/** Returns the networks as a text that does not depend on their order. */
const textOf = (nets: readonly Net[]): string => nets.map(formatNet).toSorted().join(' ')
