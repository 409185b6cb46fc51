// wireguard-device.ts - the kernel's WireGuard device and its peers, which weftd controls with `wg` of wireguard-tools.
//
// weftd passes no secret as an argument or through a shell: `wg` reads keys from files that only weftd's user can read.

import { lstat, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Secret } from '../../base/secret.ts'
import type { Run } from '../../host/command.ts'
import { addDevice, type FollowedLink } from '../../host/links.ts'
import { REJECT_AFTER_MS, WIREGUARD_KEY } from '../catalog.ts'
import type { PeerSession } from '../contract.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import type { PeerTraffic } from '../engine/engine.ts'

const PEERS_AT_ONCE = 500

export interface WireguardPeer {
  /** The peer's public key: 32 bytes in base64. */
  readonly publicKey: string
  /** The peer's address and port, such as `192.0.2.1:51820`. */
  readonly endpoint: string
  readonly allowedIps: readonly string[]
}

interface WireguardOptions {
  /** The device to create; an existing one is deleted first. */
  readonly device: FollowedLink
  /** The path of the private key's file. Temporary files with keys for `wg` may be created in the same directory. */
  readonly keyFile: string
  readonly privateKey: Secret
  /** The public key that belongs to `privateKey`, in base64. */
  readonly ownKey: string
  readonly port: number
  /** The pre-shared key, 32 bytes in base64; empty if there is none. */
  readonly psk: Secret
  /** The interval in seconds between keepalive packets; 0 switches them off. */
  readonly keepalive: number
  readonly run: Run
  readonly log: Log
}

interface WireguardDevice {
  /**
   * Makes the device's peers equal these, and does not touch peers that are already right. Returns the number of settings that were wrong,
   * including the device's own.
   */
  setPeers(peers: readonly WireguardPeer[]): Promise<number>
  /** Returns the traffic, the session and the endpoint of each peer, by the peer's public key. */
  traffic(): Promise<
    ReadonlyMap<string, PeerTraffic & { readonly session: PeerSession; readonly endpoint: string | undefined }>
  >
  close(): Promise<void>
}

export const isKey = (text: string): boolean => WIREGUARD_KEY.test(text)

/**
 * Returns the directories in which a directory for key files may be created, in order of preference: /dev/shm, which is in memory and so
 * cleared by a reboot; the key file's directory; and the system's directory for temporary files.
 */
const placesFor = (keyFile: string): readonly string[] => ['/dev/shm', dirname(keyFile), tmpdir()]
const FOLDER = '.weft-'

const inUse = new Set<string>()

/**
 * Creates a directory that only this user can open, and whose name contains the pid of this process. Throws WeftError PERMISSION if no
 * place allows that.
 */
async function privateFolder(keyFile: string): Promise<string> {
  const failures: unknown[] = []
  for (const place of placesFor(keyFile)) {
    try {
      const folder = await mkdtemp(join(place, `${FOLDER}${process.pid}-`))
      inUse.add(folder)
      return folder
    } catch (error) {
      failures.push(error)
    }
  }
  throw new WeftError('PERMISSION', `cannot pass a key to wg: ${failures.map(messageOf).join('; ')}`, {
    remedy: `make the folder of the key file writable for weftd: ${dirname(keyFile)}`,
    cause: failures[0],
  })
}

/**
 * Removes the key directories of processes that were killed. A directory with this process's pid that is not in `inUse` is from a process
 * in an earlier container, which had the same pid.
 */
async function removeLeftovers(keyFile: string): Promise<void> {
  for (const place of new Set(placesFor(keyFile))) {
    const names = await readdir(place).catch(() => [])
    for (const name of names.filter((each) => each.startsWith(FOLDER))) {
      const path = join(place, name)
      const pid = Number(/^(\d+)-/.exec(name.slice(FOLDER.length))?.[1] ?? process.pid)
      // A directory that belongs to another user was not made by weftd, and is not removed.
      const isOurs = await lstat(path).then(
        (found) => found.isDirectory() && found.uid === process.geteuid?.(),
        () => false,
      )
      if (isOurs && !inUse.has(path) && (pid === process.pid || !isAlive(pid)))
        await rm(path, { recursive: true, force: true }).catch(() => {})
    }
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH'
  }
}

/**
 * Creates the device; an existing one is deleted first. Throws WeftError DEVICE or COMMAND; NO_DEVICE_TYPE if the kernel
 * does not support WireGuard.
 */
export async function openWireguardDevice(options: WireguardOptions): Promise<WireguardDevice> {
  const { device, keyFile, privateKey, ownKey, port, psk, keepalive, run } = options
  await removeLeftovers(keyFile)
  if (await device.find(run)) await run('ip', ['link', 'del', device.name])
  device.forget()
  await sayingWhoHasIt(run, { name: device.name }, () => addDevice(run, device.name, 'wireguard', []))
  await device.find(run)
  const setEndpoints = new Map<string, string>() // the endpoint set for each key; the kernel's may differ, because a peer may move

  // The private key is set from memory and not from its file, because the file may have changed since this node published its public key.
  const setOwn = (): Promise<void> =>
    withKey('wgkey', privateKey, async (file) => {
      await run('wg', ['set', device.name, 'listen-port', String(port), 'private-key', file])
    })

  async function close(): Promise<void> {
    if (await device.find(run)) await run('ip', ['link', 'del', device.name])
  }

  try {
    await setOwn()
  } catch (error) {
    await close()
    throw error
  }

  /**
   * Reads the device: whether its own key and port are right (`isOwn`), and the settings of each peer by public key, without the peer's
   * endpoint.
   */
  async function present(): Promise<{ isOwn: boolean; peers: Map<string, string> }> {
    const [own = [], ...lines] = (await run('wg', ['show', device.name, 'dump']))
      .trim()
      .split('\n')
      .map((line) => line.split('\t'))
    const peers = lines.map(([key = '', shared = '', , allowedIps = '', , , , alive = '']) => {
      const settings = [shared === '(none)' ? '' : shared, alive === 'off' ? '0' : alive]
      return [key, settingsOf(allowedIps.split(','), settings)] as const
    })
    return { isOwn: own[1] === ownKey && own[2] === String(port), peers: new Map(peers) }
  }
  const settingsOf = (
    allowedIps: readonly string[],
    [shared = psk.reveal(), alive = String(keepalive)]: readonly string[] = [],
  ) => [...allowedIps].toSorted().concat(shared, alive).join(' ')

  async function set(peers: readonly (readonly string[])[]): Promise<void> {
    for (let at = 0; at < peers.length; at += PEERS_AT_ONCE)
      await run('wg', ['set', device.name, ...peers.slice(at, at + PEERS_AT_ONCE).flat()])
  }

  /** Writes a key to a file for `wg`, calls `work` with the file's path, and deletes the file. */
  async function withKey(as: string, key: Secret, work: (file: string) => Promise<void>): Promise<void> {
    const folder = await privateFolder(keyFile)
    try {
      const file = join(folder, as)
      await writeFile(file, key.reveal(), { mode: 0o600, flag: 'wx' })
      await work(file)
    } finally {
      await rm(folder, { recursive: true, force: true })
      inUse.delete(folder)
    }
  }
  const withPsk = (work: (words: readonly string[]) => Promise<void>): Promise<void> =>
    psk.isEmpty ? work([]) : withKey('psk', psk, (file) => work(['preshared-key', file]))

  return {
    async setPeers(peers) {
      const { isOwn, peers: now } = await present()
      if (!isOwn) await setOwn()
      const wanted = new Set(peers.map(({ publicKey }) => publicKey))
      const unknown = [...now.keys()].filter((key) => !wanted.has(key))
      const isRight = ({ publicKey, endpoint, allowedIps }: WireguardPeer): boolean =>
        now.get(publicKey) === settingsOf(allowedIps) && setEndpoints.get(publicKey) === endpoint
      const wrong = peers.filter((peer) => !isRight(peer))
      await set(unknown.map((key) => ['peer', key, 'remove']))
      if (wrong.length > 0)
        await withPsk((shared) =>
          set(
            wrong.map(({ publicKey, endpoint, allowedIps }) => [
              'peer',
              publicKey,
              'endpoint',
              endpoint,
              'allowed-ips',
              allowedIps.join(','),
              'persistent-keepalive',
              String(keepalive),
              ...shared,
            ]),
          ),
        )
      setEndpoints.clear()
      for (const { publicKey, endpoint } of peers) setEndpoints.set(publicKey, endpoint)
      return unknown.length + wrong.length + (isOwn ? 0 : 1)
    },
    async traffic() {
      const [, ...lines] = (await run('wg', ['show', device.name, 'dump'])).trim().split('\n')
      const now = Date.now()
      const at = performance.now() - now
      return new Map(
        lines.map((line) => {
          const [publicKey = '', , endpoint = '', , handshake = '0', received = '', sent = ''] = line.split('\t')
          // The byte counts are those of the encrypted packets. The kernel does not report when the last packet came, so the time of the
          // last handshake is used: while packets are exchanged, there is a handshake at least every two minutes.
          const counted = { txBytes: Number(sent), rxBytes: Number(received) }
          const handshakeAt = handshake === '0' ? undefined : Number(handshake) * 1000
          // wg prints the time in whole seconds, so the difference to the present time in ms could be negative.
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
    },
    close,
  }
}
