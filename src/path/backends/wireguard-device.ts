// wireguard-device.ts - the kernel's WireGuard device and its peers, which weftd controls with `wg` of wireguard-tools.
//
// weftd passes no secret as an argument or through a shell: `wg` reads keys from files that only weftd's user can read.

import type { Log } from '../../base/log.ts'
import type { Secret } from '../../base/secret.ts'
import type { Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { addDevice, type FollowedLink } from '../../host/links.ts'
import { REJECT_AFTER_MS, WIREGUARD_KEY } from '../catalog.ts'
import type { PeerSession } from '../contract.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import type { PeerTraffic } from '../engine/engine.ts'
import { removeLeftovers, withKeyFile } from './wireguard/key-folder.ts'

/** The maximum number of peers that one call of the program `wg` sets. */
const PEERS_AT_ONCE = 500

export interface WireguardPeer {
  /** The peer's public key: 32 bytes in base64. */
  readonly publicKey: string
  /** The peer's address and port, such as `192.0.2.1:51820`. */
  readonly endpoint: string
  readonly allowedIps: readonly string[]
}

interface WireguardOptions {
  readonly link: FollowedLink
  /** The path of the private key's file. Temporary files with keys for `wg` may be created in the same directory. */
  readonly keyFile: string
  readonly privateKey: Secret
  readonly ownKey: string
  readonly port: number
  /** The pre-shared key, 32 bytes in base64; empty if the configuration has no pre-shared key. */
  readonly psk: Secret
  /** The interval in seconds between keepalive packets; 0 switches keepalive packets off. */
  readonly keepalive: number
  readonly run: Run
  readonly kernel: HostKernel
  readonly log: Log
}

/** The traffic with a peer. `endpoint` is undefined if the kernel's device has no endpoint for the peer. */
interface WireguardTraffic extends PeerTraffic {
  readonly session: PeerSession
  readonly endpoint: string | undefined
}

export const isKey = (text: string): boolean => WIREGUARD_KEY.test(text)

/**
 * Creates the device; deletes an existing device with this name first. Throws WeftError NO_DEVICE_TYPE if the kernel
 * does not support WireGuard, and DEVICE or COMMAND for other failures.
 */
export async function openWireguardDevice(options: WireguardOptions): Promise<WireguardDevice> {
  const { link, keyFile, run, kernel } = options
  await removeLeftovers(keyFile)
  if (await link.find(run)) await run('ip', ['link', 'del', link.name])
  link.forget()
  await sayingWhoHasIt(kernel, { name: link.name }, () => addDevice(run, link.name, 'wireguard', []))
  await link.find(run)
  const device = new WireguardDevice(options)
  try {
    await device.setOwn()
  } catch (error) {
    await device.close()
    throw error
  }
  return device
}

export class WireguardDevice {
  readonly #options: WireguardOptions
  /**
   * The endpoint that weftd set for each public key. The endpoint in the kernel may differ, because a peer may move.
   */
  readonly #setEndpoints = new Map<string, string>()

  constructor(options: WireguardOptions) {
    this.#options = options
  }

  /**
   * Sets the device's port and private key. The key is set from memory and not from its file, because the file may have
   * changed since this node published its public key.
   */
  setOwn(): Promise<void> {
    const { link, keyFile, privateKey, port, run } = this.#options
    return withKeyFile(keyFile, 'wgkey', privateKey, async (file) => {
      await run('wg', ['set', link.name, 'listen-port', String(port), 'private-key', file])
    })
  }

  /**
   * Makes the device's peers equal to `peers`, without touching peers that are already right. Returns the number of
   * settings that were wrong, including the device's own settings.
   */
  async setPeers(peers: readonly WireguardPeer[]): Promise<number> {
    const { isOwn, peers: now } = await this.#present()
    if (!isOwn) await this.setOwn()
    const wanted = new Set(peers.map(({ publicKey }) => publicKey))
    const unknown = [...now.keys()].filter((key) => !wanted.has(key))
    const isRight = ({ publicKey, endpoint, allowedIps }: WireguardPeer): boolean =>
      now.get(publicKey) === this.#settingsOf(allowedIps) && this.#setEndpoints.get(publicKey) === endpoint
    const wrong = peers.filter((peer) => !isRight(peer))
    await this.#set(unknown.map((key) => ['peer', key, 'remove']))
    if (wrong.length > 0) await this.#withPsk((shared) => this.#set(wrong.map((peer) => this.#wordsFor(peer, shared))))
    this.#setEndpoints.clear()
    for (const { publicKey, endpoint } of peers) this.#setEndpoints.set(publicKey, endpoint)
    return unknown.length + wrong.length + (isOwn ? 0 : 1)
  }

  /** Returns the traffic, the session and the endpoint of each peer, by the peer's public key. */
  async traffic(): Promise<ReadonlyMap<string, WireguardTraffic>> {
    const { link, run } = this.#options
    const [, ...lines] = (await run('wg', ['show', link.name, 'dump'])).trim().split('\n')
    const now = Date.now()
    const at = performance.now() - now
    return new Map(
      lines.map((line) => {
        const [publicKey = '', , endpoint = '', , handshake = '0', received = '', sent = ''] = line.split('\t')
        // The byte counts are those of the encrypted packets. The kernel does not report when the last packet arrived,
        // so weftd uses the time of the last handshake: while packets are exchanged, there is a handshake at least
        // every two minutes.
        const counted = { txBytes: Number(sent), rxBytes: Number(received) }
        const handshakeAt = handshake === '0' ? undefined : Number(handshake) * 1000
        // The program `wg` prints the time in whole seconds, so the difference to the present time in ms could be
        // negative.
        const ageMs = handshakeAt === undefined ? Infinity : Math.max(0, now - handshakeAt)
        const traffic = {
          txPackets: undefined,
          rxPackets: undefined,
          ...counted,
          endpoint: endpoint === '(none)' ? undefined : endpoint,
          lastReceivedAt: handshakeAt === undefined ? undefined : at + handshakeAt,
          session: { publicKey, handshakeAt, ageMs: ageMs < REJECT_AFTER_MS ? ageMs : undefined, ...counted },
        }
        return [publicKey, traffic] as const
      }),
    )
  }

  async close(): Promise<void> {
    const { link, run } = this.#options
    if (await link.find(run)) await run('ip', ['link', 'del', link.name])
  }

  /**
   * Reads the device's settings: whether the device's own key and port are right (`isOwn`), and for each public key the
   * settings of the peer, without the peer's endpoint.
   */
  async #present(): Promise<{ isOwn: boolean; peers: Map<string, string> }> {
    const { link, ownKey, port, run } = this.#options
    const [own = [], ...lines] = (await run('wg', ['show', link.name, 'dump']))
      .trim()
      .split('\n')
      .map((line) => line.split('\t'))
    const peers = lines.map(([key = '', shared = '', , allowedIps = '', , , , alive = '']) => {
      const settings = [shared === '(none)' ? '' : shared, alive === 'off' ? '0' : alive]
      return [key, this.#settingsOf(allowedIps.split(','), settings)] as const
    })
    return { isOwn: own[1] === ownKey && own[2] === String(port), peers: new Map(peers) }
  }

  /**
   * Returns the settings of a peer as one text, so that two settings can be compared. By default the text includes this
   * node's PSK and keepalive interval.
   */
  #settingsOf(
    allowedIps: readonly string[],
    [shared = this.#options.psk.reveal(), alive = String(this.#options.keepalive)]: readonly string[] = [],
  ): string {
    return [...allowedIps].toSorted().concat(shared, alive).join(' ')
  }

  /** Returns the arguments of `wg set` for a peer; `shared` has the arguments for the PSK. */
  #wordsFor({ publicKey, endpoint, allowedIps }: WireguardPeer, shared: readonly string[]): readonly string[] {
    const keepalive = String(this.#options.keepalive)
    return [
      'peer',
      publicKey,
      'endpoint',
      endpoint,
      'allowed-ips',
      allowedIps.join(','),
      'persistent-keepalive',
      keepalive,
      ...shared,
    ]
  }

  async #set(peers: readonly (readonly string[])[]): Promise<void> {
    const { link, run } = this.#options
    for (let at = 0; at < peers.length; at += PEERS_AT_ONCE)
      await run('wg', ['set', link.name, ...peers.slice(at, at + PEERS_AT_ONCE).flat()])
  }

  #withPsk(work: (words: readonly string[]) => Promise<void>): Promise<void> {
    const { keyFile, psk } = this.#options
    return psk.isEmpty ? work([]) : withKeyFile(keyFile, 'psk', psk, (file) => work(['preshared-key', file]))
  }
}
