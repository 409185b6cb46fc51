// wireguard-device.ts - the kernel's WireGuard device, and its peers, by `wg` of wireguard-tools.
//
// No secret is an argument or passes through a shell: `wg` reads keys from files that nobody else may.

import { lstat, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Secret } from '../../base/secret.ts'
import type { Run } from '../../host/command.ts'
import { addDevice, findLink } from '../../host/links.ts'
import { REJECT_AFTER_MS, WIREGUARD_KEY } from '../catalog.ts'
import type { PeerSession } from '../contract.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import type { PeerTraffic } from '../engine/engine.ts'

/** The number of peers that one process of `wg` sets. */
const PEERS_AT_ONCE = 500

export interface WireguardPeer {
  /** Base64 of 32 bytes. */
  readonly publicKey: string
  /** `192.0.2.1:51820` */
  readonly endpoint: string
  /** `10.5.2.0/24`, each. */
  readonly allowedIps: readonly string[]
}

interface WireguardOptions {
  readonly name: string
  /** The file that the private key is kept in: beside it what `wg` is handed may lie. */
  readonly keyFile: string
  readonly privateKey: Secret
  /** The public key to that. */
  readonly ownKey: string
  readonly port: number
  /** Base64 of 32 bytes, or empty. */
  readonly psk: Secret
  /** Seconds; 0: none. */
  readonly keepalive: number
  readonly run: Run
  readonly log: Log
}

interface WireguardDevice {
  /** Makes the peers equal these, and touches no other; returns how many settings, its own too, were not as they had been set. */
  setPeers(peers: readonly WireguardPeer[]): Promise<number>
  /** Traffic to and from each peer, the session with it, and where its packets go, by its key. */
  traffic(): Promise<
    ReadonlyMap<string, PeerTraffic & { readonly session: PeerSession; readonly endpoint: string | undefined }>
  >
  /** Takes it down. */
  close(): Promise<void>
}

export const isKey = (text: string): boolean => WIREGUARD_KEY.test(text)

/** The places for a folder with a key for `wg`: in memory, which a reset empties; otherwise beside the key file. */
const placesFor = (keyFile: string): readonly string[] => ['/dev/shm', dirname(keyFile), tmpdir()]
const FOLDER = '.weft-'

/** Those in which a key lies now. */
const inUse = new Set<string>()

/** Makes a folder that nobody else may open, and whose name says whose it is. Throws WeftError PERMISSION. */
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
  throw new WeftError('PERMISSION', `a key cannot be handed to wg: ${failures.map(messageOf).join('; ')}`, {
    remedy: `make the folder of its key file writable for weftd: ${dirname(keyFile)}`,
    cause: failures[0],
  })
}

/** Removes what such folders a weftd left that was killed meanwhile: also one of our pid, in another container. */
async function removeLeftovers(keyFile: string): Promise<void> {
  for (const place of new Set(placesFor(keyFile))) {
    const names = await readdir(place).catch(() => [])
    for (const name of names.filter((each) => each.startsWith(FOLDER))) {
      const path = join(place, name)
      const pid = Number(/^(\d+)-/.exec(name.slice(FOLDER.length))?.[1] ?? process.pid)
      // A folder that somebody else made under such a name is not ours to enter.
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

/** Makes the device anew. Throws WeftError DEVICE, COMMAND; NO_DEVICE_TYPE if the kernel has no WireGuard. */
export async function openWireguardDevice(options: WireguardOptions): Promise<WireguardDevice> {
  const { name, keyFile, privateKey, ownKey, port, psk, keepalive, run } = options
  await removeLeftovers(keyFile)
  if (await findLink(run, name)) await run('ip', ['link', 'del', name])
  await sayingWhoHasIt(run, { name }, () => addDevice(run, name, 'wireguard', []))
  const told = new Map<string, string>() // endpoints by key: a peer that roams is to be left alone

  // By the key that the node publishes: what is in its file by now may be another.
  const setOwn = (): Promise<void> =>
    withKey('wgkey', privateKey, async (file) => {
      await run('wg', ['set', name, 'listen-port', String(port), 'private-key', file])
    })

  async function close(): Promise<void> {
    if (await findLink(run, name)) await run('ip', ['link', 'del', name])
  }

  try {
    await setOwn()
  } catch (error) {
    await close()
    throw error
  }

  /** Reads the device: whether its own settings are ours, and of each peer, by key, what we set beside its endpoint. */
  async function present(): Promise<{ isOwn: boolean; peers: Map<string, string> }> {
    const [own = [], ...lines] = (await run('wg', ['show', name, 'dump']))
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
      await run('wg', ['set', name, ...peers.slice(at, at + PEERS_AT_ONCE).flat()])
  }

  /** `wg` reads a key from a file, which is there for as long as that takes. */
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
      const strange = [...now.keys()].filter((key) => !wanted.has(key))
      const isRight = ({ publicKey, endpoint, allowedIps }: WireguardPeer): boolean =>
        now.get(publicKey) === settingsOf(allowedIps) && told.get(publicKey) === endpoint
      const wrong = peers.filter((peer) => !isRight(peer))
      await set(strange.map((key) => ['peer', key, 'remove']))
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
      told.clear()
      for (const { publicKey, endpoint } of peers) told.set(publicKey, endpoint)
      return strange.length + wrong.length + (isOwn ? 0 : 1)
    },
    async traffic() {
      const [, ...lines] = (await run('wg', ['show', name, 'dump'])).trim().split('\n')
      const now = Date.now()
      const at = performance.now() - now
      return new Map(
        lines.map((line) => {
          const [publicKey = '', , endpoint = '', , handshake = '0', received = '', sent = ''] = line.split('\t')
          // Bytes with those of the encryption; a handshake comes at least every two minutes while packets do.
          const counted = { txBytes: Number(sent), rxBytes: Number(received) }
          const handshakeAt = handshake === '0' ? undefined : Number(handshake) * 1000
          // It is told in whole seconds.
          const ageMs = handshakeAt === undefined ? Infinity : Math.max(0, now - handshakeAt)
          const traffic = {
            txPackets: undefined,
            rxPackets: undefined,
            ...counted,
            endpoint: endpoint === '(none)' ? undefined : endpoint,
            heardAt: handshakeAt === undefined ? undefined : at + handshakeAt,
            session: { publicKey, handshakeAt, ageMs: ageMs < REJECT_AFTER_MS ? ageMs : undefined, ...counted },
          }
          return [publicKey, traffic] as const
        }),
      )
    },
    close,
  }
}
