// wireguard-device.ts - WireGuard's device, the kernel's or wireguard-go's, and its peers by `wg` of wireguard-tools.
//
// No secret is an argument or passes through a shell: `wg` reads keys from files that nobody else may.

import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import { lstat, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Secret } from '../../base/secret.ts'
import { pause } from '../../host/bell.ts'
import { childEnvironment, type Run } from '../../host/command.ts'
import { addDevice, findLink } from '../../host/links.ts'
import { KINDS, REJECT_AFTER_MS, WIREGUARD_KEY } from '../catalog.ts'
import type { PeerSession } from '../contract.ts'
import { sayingWhoHasIt } from '../device/device-refusal.ts'
import type { PeerTraffic } from '../engine/engine.ts'

type Child = ChildProcessByStdio<null, Readable, Readable>

const DATA_PATH = KINDS.wireguard.options.dataPath.name

/** wireguard-go takes a fraction of a second. */
const READY_MS = 10_000
/** Within which wireguard-go ends that was told to: a successor waits for it, and a stop has five seconds. */
const END_MS = 2_000
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

export interface WireguardOptions {
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
  /** True when wireguard-go carries the packets, and not the kernel. */
  readonly byWireguardGo: boolean
  readonly run: Run
  readonly log: Log
}

export interface WireguardDevice {
  /** Resolves when the device cannot go on; stays pending otherwise. */
  readonly fault: Promise<Error>
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

/** Ends with us also when we are killed, as the device of a process must; otherwise it would hold the port. */
function startWireguardGo(name: string): Child {
  const args = ['--pdeathsig', 'KILL', 'wireguard-go', '--foreground', name]
  const env = childEnvironment({ LOG_LEVEL: 'verbose' }) // otherwise wireguard-go does not log that it is ready
  return spawn('setpriv', args, { stdio: ['ignore', 'pipe', 'pipe'], env })
}

/** Resolves when it takes orders. Rejects with WeftError DEVICE when it ends instead, or says nothing, with the signal's reason. */
async function ready(child: Child, signal: AbortSignal): Promise<void> {
  let last = ''
  const started = new Promise<void>((resolve) => {
    for (const stream of [child.stdout, child.stderr])
      createInterface(stream).on('line', (line) => {
        if (line.includes('UAPI listener started')) resolve()
        last = line
      })
  })
  const ended = once(child, 'exit').then(
    () => {
      throw new WeftError('DEVICE', `wireguard-go ended: ${last}`, {
        remedy: `check that it may open /dev/net/tun, and that no other wireguard-go has a device of that name`,
      })
    },
    (error: unknown) => {
      throw new WeftError('COMMAND', `wireguard-go cannot be started: ${messageOf(error)}`, {
        remedy: 'install setpriv (util-linux)',
      })
    },
  )
  // AbortSignal.timeout within AbortSignal.any is not used: Node.js 20 forgets it once it collects garbage.
  const over = new AbortController()
  const given = pause(AbortSignal.any([over.signal, signal]), READY_MS).then(() => {
    throw new WeftError('DEVICE', `wireguard-go does not say that it is ready: ${last}`, {
      remedy: 'run `wireguard-go --foreground` by hand to see why',
    })
  })
  await Promise.race([started, ended, given]).finally(() => over.abort())
}

/** Makes the device anew. Throws WeftError DEVICE, COMMAND; NO_DEVICE_TYPE without WireGuard in the kernel that is to carry it. */
export async function openWireguardDevice(options: WireguardOptions, signal: AbortSignal): Promise<WireguardDevice> {
  const { name, keyFile, privateKey, ownKey, port, psk, keepalive, run } = options
  await removeLeftovers(keyFile)
  if (await findLink(run, name)) await run('ip', ['link', 'del', name])
  let child: Child | undefined
  if (options.byWireguardGo) {
    await run('wireguard-go', ['--version']).catch((cause: unknown) => {
      throw new WeftError('COMMAND', `wireguard-go cannot be run: ${messageOf(cause)}`, {
        remedy: `install wireguard-go, or let weftd carry the packets itself: leave out "${DATA_PATH}"`,
        cause,
      })
    })
    const started = startWireguardGo(name)
    await ready(started, signal).catch((cause: unknown) => {
      started.kill('SIGKILL')
      throw cause
    })
    child = started
  } else {
    await sayingWhoHasIt(run, { name }, () => addDevice(run, name, 'wireguard', []))
  }
  const told = new Map<string, string>() // endpoints by key: a peer that roams is to be left alone
  const goEnded = (): Error => new Error('wireguard-go ended')
  const fault = child ? once(child, 'exit').then(goEnded, goEnded) : new Promise<Error>(() => {})

  // By the key that the node publishes: what is in its file by now may be another.
  const setOwn = (): Promise<void> =>
    withKey('wgkey', privateKey, async (file) => {
      await run('wg', ['set', name, 'listen-port', String(port), 'private-key', file])
    })

  async function close(): Promise<void> {
    const go = child
    if (go) {
      const ended = go.exitCode === null && go.signalCode === null ? once(go, 'exit') : undefined
      go.kill('SIGTERM') // takes its device along
      const late = setTimeout(() => go.kill('SIGKILL'), END_MS)
      await ended
      clearTimeout(late)
    } else if (await findLink(run, name)) {
      await run('ip', ['link', 'del', name])
    }
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
    fault,
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
