// last-known.ts - the last known state of a node, in a file next to subnet.env. With this file the next process
// forwards before it queries the store.
//
// The file has leases in the format of the store, so that other versions of weft can read them.

import { readFile, readlink, unlink } from 'node:fs/promises'
import { join, posix, resolve } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { decodeLease } from '../../control/lease/decode.ts'
import { encodeLeaseValue, type Lease } from '../../control/lease/lease.ts'
import { externalText, readExternalText, type ExternalInterface } from '../../host/external-interface.ts'
import { eventsFile, interfaceWishes, storeKindOf, type NodeOptions, type StoreOptions } from '../../options.ts'

/** The number of leases that weftd formats between two pauses. Formatting 1,000 leases takes about 2 ms. */
const LEASES_A_PIECE = 1_000
/** The version of the file's format. weftd does not use a file of another version. */
const VERSION: number = 2

export interface LastKnown {
  /** A name that identifies the store (storeNameOf, isSameStore). A process with another store ignores the file. */
  readonly store: string
  /** The text of the network configuration without its secrets. */
  readonly config: string
  readonly lease: Lease
  /** The time when the lease expires, in ms since 1970; undefined if the lease does not expire. */
  readonly expiresAt: number | undefined
  /** All accepted leases, including this node's own. */
  readonly leases: readonly Lease[]
  /**
   * The lease keys of the peers to which weftd sends over the second underlay family, because the preferred family
   * failed.
   */
  readonly others?: readonly string[] | undefined
  /** The external interface that was in use. `wishes` has the flags by which it was chosen, as text (wishesText). */
  readonly external?: ExternalInterface | undefined
  readonly wishes?: string | undefined
  /** The names of the TUN devices, which may still exist when the file is read. */
  readonly tunNames: readonly string[]
  /**
   * True if the file is only needed to remove what weftd made. The file then shows a published route, which `weft
   * cleanup` withdraws; routes through hosts, which the next weftd removes if its backend has no such routes; or the
   * network of a family that subnet.env omits. No weftd forwards with such a file.
   */
  readonly isForCleanup?: true
  /** The descriptions of the open data paths (open-path.ts) whose descriptors the service manager keeps. */
  readonly paths?: unknown
  /** The content of subnet.env that weftd wrote; undefined if weftd has not written subnet.env. */
  readonly subnetEnv?: string | undefined
}

type ToWrite = Omit<LastKnown, 'leases'> & { readonly leases: Iterable<Lease> }
type KeyAndValue = readonly [key: string, value: string]
interface Written extends Omit<LastKnown, 'lease' | 'leases' | 'external'> {
  readonly version: number
  readonly lease: KeyAndValue
  readonly leases: readonly KeyAndValue[]
  readonly external?: unknown
}

export const lastKnownFile = (options: Pick<NodeOptions, 'subnet-file'>): string =>
  `${options['subnet-file']}.last-known`

/** How long, in ms, a file server may take to resolve one part of a path. Packets wait for the result. */
const ANSWER_MS = 500
/** The maximum number of symbolic links in a path (Linux, MAXSYMLINKS). */
const MOST_LINKS = 40

/**
 * Resolves symbolic links, because one folder can have many paths. Unlike realpath(3), accepts a folder that does not
 * exist. If a file server does not answer, leaves the rest of the path as it is. `links` counts the links so far.
 */
async function realFolder(path: string, links = 0): Promise<string> {
  const parts = path.split('/').filter((part) => part !== '')
  let real = '/'
  for (const [at, name] of parts.entries()) {
    const here = join(real, name)
    const target = await linkAt(here)
    if (target === 'late' || links === MOST_LINKS) return join(real, ...parts.slice(at))
    if (target) return realFolder(join(resolve(real, target.to), ...parts.slice(at + 1)), links + 1)
    real = here
  }
  return real
}

/** Returns the target of a symbolic link; undefined if the path is not a link; `late` if a file server does not answer. */
async function linkAt(path: string): Promise<{ readonly to: string } | 'late' | undefined> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<'late'>((done) => (timer = setTimeout(() => done('late'), ANSWER_MS)))
  const read = readlink(path).then(
    (to) => ({ to }),
    () => undefined,
  )
  return Promise.race([read, late]).finally(() => clearTimeout(timer))
}

/**
 * Returns a name that identifies a store. The name has the prefix in etcd or the path of the lease directory, but not the
 * endpoints of etcd, which may change. weftd 0.2.0 compares names as texts, and an operator may go back to weftd
 * 0.2.0. So the name has the form of that version, although `isSameStore` ignores parts of it.
 */
export async function storeNameOf(
  options: Pick<StoreOptions, 'lease-dir' | 'etcd-prefix' | 'kube-subnet-mgr' | 'kube-api-url' | 'kubeconfig-file'>,
): Promise<string> {
  if (options['kube-subnet-mgr']) return `kubernetes ${String(options['kube-api-url'])} ${options['kubeconfig-file']}`
  const kind = storeKindOf(options)
  switch (kind) {
    case 'directory':
      return `${kind} ${await realFolder(resolve(options['lease-dir']))}`
    case 'etcd':
      return `${kind} ${options['etcd-prefix']}`
  }
}

/**
 * Returns true if both names identify the same store. Different versions of weftd may have written the names. Ignores
 * the URL and the kubeconfig of the Kubernetes API, because the API's address may change, and superfluous slashes of the
 * prefix in etcd.
 */
export const isSameStore = (a: string, b: string): boolean => identityOf(a) === identityOf(b)

function identityOf(name: string): string {
  if (name.startsWith('kubernetes ')) return 'kubernetes'
  const [, prefix] = /^etcd (.*)$/s.exec(name) ?? []
  return prefix === undefined ? name : `etcd ${posix.normalize(prefix).replace(/\/+$/, '')}`
}

/**
 * Writes the file of the last known state. Rejects with the file system's error. Formatting a million leases takes
 * seconds, with pauses for other work. So the file may or may not include changes of the leases in these seconds.
 */
export async function writeLastKnown(path: string, known: ToWrite): Promise<void> {
  // Only weftd's user may read and write the file, because a user who can write it determines where weftd sends
  // packets.
  const { replaceFile } = await import('../../host/replace-file.ts') // a start only reads the file
  await replaceFile(path, textOf(known), 0o600)
}

const pair = ({ key, attrs }: Lease): KeyAndValue => [key, encodeLeaseValue(attrs)]

/** Generates the file's text in parts. */
async function* textOf({ leases, external, ...known }: ToWrite): AsyncGenerator<string, void, undefined> {
  const place = external ? { external: externalText(external) } : {}
  const written: Omit<Written, 'leases'> = { ...known, ...place, version: VERSION, lease: pair(known.lease) }
  yield `${JSON.stringify(written).slice(0, -1)},"leases":[`
  let piece: string[] = []
  let separator = ''
  for (const lease of leases) {
    piece.push(JSON.stringify(pair(lease)))
    if (piece.length < LEASES_A_PIECE) continue
    yield separator + piece.join(',')
    separator = ','
    piece = []
    await setImmediate()
  }
  yield `${piece.length > 0 ? separator : ''}${piece.join(',')}]}\n`
}

/**
 * Reads the file of the last known state. Returns undefined if the file does not exist. If the file is invalid, logs
 * that and returns undefined.
 */
export async function readLastKnown(path: string, log: Log): Promise<LastKnown | undefined> {
  try {
    const { version, lease, leases, external, ...rest } = JSON.parse(await readFile(path, 'utf8')) as Written
    if (version !== VERSION) throw new Error(`its version is ${version}, and this weftd knows ${VERSION}`)
    const { store, config, tunNames, others = [], expiresAt } = rest
    for (const [name, texts] of Object.entries({ tunNames, others }))
      if (!Array.isArray(texts) || !texts.every((text) => typeof text === 'string'))
        throw new Error(`${name} is no list of texts`)
    for (const [name, text] of Object.entries({ store, config }))
      if (typeof text !== 'string') throw new Error(`${name} is no text`)
    if (expiresAt !== undefined && typeof expiresAt !== 'number') throw new Error('expiresAt is no number')
    return {
      ...rest,
      external: readExternalText(external),
      lease: decodeLease(...lease),
      leases: leases.map(([key, value]) => decodeLease(key, value)),
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT')
      log.warn(`Cannot use the last known state in ${path}: ${messageOf(error)}; waiting for the store`)
    return undefined
  }
}

/**
 * Returns true if another program has written subnet.env after the weftd that wrote the last known state. That program
 * may be flanneld, which may have forwarded with another backend for weeks, so the state is out of date.
 */
export async function isSubnetEnvForeign(path: string, { subnetEnv }: Pick<LastKnown, 'subnetEnv'>): Promise<boolean> {
  if (subnetEnv === undefined) return false
  const content = await readFile(path, 'utf8').catch(() => undefined) // the folder may be empty after a reboot
  return content !== undefined && content !== subnetEnv
}

export async function removeLastKnown(path: string): Promise<void> {
  await unlink(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error
  })
}

/**
 * The part of the last known state that does not change while the process runs, and the paths of the files that the
 * next weftd reads.
 */
export interface Next {
  /**
   * The text of the network configuration without its secrets. `store` is the name of the store that has this
   * configuration.
   */
  readonly config: string
  readonly store: string
  /** The flags about the external interface, as text (wishesText). */
  readonly wishes: string
  /**
   * The path of the file of the last known state (node/restart/last-known.ts); `events` is the path of the file with
   * the peers' events.
   */
  readonly lastKnown: string
  readonly events: string
  /** Resolves when no earlier process writes the files of the last known state and of the events any more. */
  readonly free: Promise<void>
}

/**
 * Returns the facts for the file of the last known state; undefined with `--persist=false`. `config` is the network
 * configuration's text without its secrets.
 */
export function nextFor(
  { options, store }: { readonly options: NodeOptions; readonly store: string },
  config: string,
  free = Promise.resolve(),
): Next | undefined {
  if (!options.persist) return undefined
  const files = { lastKnown: lastKnownFile(options), events: eventsFile(options) }
  const wishes = wishesText(options)
  return { config, store, wishes, ...files, free }
}

/**
 * Returns the external interface of the earlier run. Returns undefined if the interface is not known, or if the flags
 * that choose the interface have changed.
 */
export const externalOf = ({ external, wishes }: LastKnown, options: NodeOptions): ExternalInterface | undefined =>
  wishes === wishesText(options) ? external : undefined

/** Returns the flags about the external interface as text, for comparison with the flags of another process. */
const wishesText = (options: NodeOptions): string => JSON.stringify(interfaceWishes(options))
