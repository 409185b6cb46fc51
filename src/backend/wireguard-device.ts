// wireguard-device.ts - WireGuard's device, the kernel's or wireguard-go's, and its peers by `wg` of wireguard-tools.
//
// No secret is an argument or passes through a shell: `wg` reads keys from files that nobody else may.

import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { isWeftError, messageOf, WeftError } from '../errors.ts'
import type { Run } from '../host/command.ts'
import { addDevice, findLink } from '../host/links.ts'
import type { Log } from '../log.ts'

type Child = ChildProcessByStdio<null, Readable, Readable>

/** So many peers for one process of `wg`. */
const PEERS_AT_ONCE = 500

export interface WireguardPeer {
  /** Base64 of 32 bytes. */
  readonly publicKey: string
  /** `192.0.2.1:51820` */
  readonly endpoint: string
  /** `10.5.2.0/24` */
  readonly allowedIps: string
}

export interface WireguardOptions {
  readonly name: string
  readonly keyFile: string
  readonly port: number
  /** Base64 of 32 bytes, or empty. */
  readonly psk: string
  /** Seconds; 0: none. */
  readonly keepalive: number
  readonly run: Run
  readonly log: Log
}

export interface WireguardDevice {
  /** Resolves when the device cannot go on; stays pending otherwise. */
  readonly fault: Promise<Error>
  /** Makes the peers equal these, and touches no other; returns how many were not as they had been set. */
  setPeers(peers: readonly WireguardPeer[]): Promise<number>
  /** Takes it down. */
  close(): Promise<void>
}

export const isKey = (text: string): boolean => /^[A-Za-z\d+/]{42}[AEIMQUYcgkosw048]=$/.test(text)

/** The public key to the private one in this file, which is made where there is none. Throws WeftError CONFIG, COMMAND. */
export async function publicKeyOf(run: Run, file: string): Promise<string> {
  let key = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw new WeftError('PERMISSION', `the key file ${file} cannot be read: ${error.message}`, {
      remedy: 'let weftd read it, or name another with WIREGUARD_KEY_FILE',
    })
  })
  if (key === undefined) {
    key = (await run('wg', ['genkey'])).trim()
    await mkdir(dirname(file), { recursive: true })
    await writeFile(file, key, { mode: 0o400, flag: 'wx' })
  }
  if (!isKey(key.trim()))
    throw new WeftError('CONFIG', `the key file ${file} holds no WireGuard key`, {
      remedy: 'delete it, and another is made; or put a key of `wg genkey` there',
    })
  return (await run('wg', ['pubkey'], { input: key })).trim()
}

/** Ends with us also when we are killed, as the device of a process must; otherwise it would hold the port. */
function startWireguardGo(name: string): Child {
  const args = ['--pdeathsig', 'KILL', 'wireguard-go', '--foreground', name]
  const env = { ...process.env, LOG_LEVEL: 'verbose' } // else it does not say when it is there
  return spawn('setpriv', args, { stdio: ['ignore', 'pipe', 'pipe'], env })
}

/** Resolves when it takes orders. Rejects with WeftError DEVICE when it ends instead. */
async function ready(child: Child): Promise<void> {
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
      throw new WeftError('DEVICE', `wireguard-go ended: ${last}`, { remedy: 'see whether it may open /dev/net/tun' })
    },
    (error: unknown) => {
      throw new WeftError('COMMAND', `wireguard-go cannot be started: ${messageOf(error)}`, {
        remedy: 'install setpriv (util-linux)',
      })
    },
  )
  await Promise.race([started, ended])
}

/** Makes the device anew. Throws WeftError DEVICE, COMMAND; NO_DEVICE_TYPE without WireGuard in the kernel and wireguard-go. */
export async function openWireguardDevice(options: WireguardOptions): Promise<WireguardDevice> {
  const { name, keyFile, port, psk, keepalive, run, log } = options
  if (await findLink(run, name)) await run('ip', ['link', 'del', name])
  let child: Child | undefined
  try {
    await addDevice(run, name, 'wireguard', [])
  } catch (error) {
    if (!isWeftError(error, 'NO_DEVICE_TYPE')) throw error
    await run('wireguard-go', ['--version']).catch(() => {
      throw new WeftError('NO_DEVICE_TYPE', error.message, {
        remedy: 'load its module (`modprobe wireguard`), or install wireguard-go',
        cause: error,
      })
    })
    log.info(`WireGuard is carried by wireguard-go: ${messageOf(error)}`)
    child = startWireguardGo(name)
    await ready(child)
  }
  const pskFile = `${keyFile}.psk`
  const told = new Map<string, string>() // endpoints by key: a peer that roams is to be left alone
  const fault = child ? once(child, 'exit').then(() => new Error('wireguard-go ended')) : new Promise<Error>(() => {})

  async function close(): Promise<void> {
    await rm(pskFile, { force: true })
    if (child) {
      const ended = child.exitCode === null && child.signalCode === null ? once(child, 'exit') : undefined
      child.kill('SIGTERM') // takes its device along
      await ended
    } else if (await findLink(run, name)) {
      await run('ip', ['link', 'del', name])
    }
  }

  try {
    await run('wg', ['set', name, 'listen-port', String(port), 'private-key', keyFile])
    if (psk !== '') {
      await rm(pskFile, { force: true })
      await writeFile(pskFile, psk, { mode: 0o400, flag: 'wx' })
    }
  } catch (error) {
    await close()
    throw error
  }

  /** By key: which addresses it may send from. */
  async function present(): Promise<Map<string, string>> {
    const [, ...lines] = (await run('wg', ['show', name, 'dump'])).trim().split('\n')
    return new Map(
      lines.map((line) => {
        const [key = '', , , allowedIps = ''] = line.split('\t')
        return [key, allowedIps]
      }),
    )
  }

  async function set(words: readonly (readonly string[])[]): Promise<void> {
    for (let at = 0; at < words.length; at += PEERS_AT_ONCE)
      await run('wg', ['set', name, ...words.slice(at, at + PEERS_AT_ONCE).flat()])
  }

  return {
    fault,
    async setPeers(peers) {
      const now = await present()
      const wanted = new Set(peers.map(({ publicKey }) => publicKey))
      const strange = [...now.keys()].filter((key) => !wanted.has(key))
      const isRight = ({ publicKey, endpoint, allowedIps }: WireguardPeer): boolean =>
        now.get(publicKey) === allowedIps && told.get(publicKey) === endpoint
      const wrong = peers.filter((peer) => !isRight(peer))
      await set(strange.map((key) => ['peer', key, 'remove']))
      await set(
        wrong.map(({ publicKey, endpoint, allowedIps }) => [
          ...['peer', publicKey, 'endpoint', endpoint, 'allowed-ips', allowedIps],
          ...['persistent-keepalive', String(keepalive), ...(psk === '' ? [] : ['preshared-key', pskFile])],
        ]),
      )
      told.clear()
      for (const { publicKey, endpoint } of peers) told.set(publicKey, endpoint)
      return strange.length + wrong.length
    },
    close,
  }
}
