// daemon-store.ts - finds the store that this host's weftd uses, and its credentials, in weftd's status and
// environment, or in the EnvironmentFile of the service manager. weft passes the credentials to the store and never
// shows them.

import { readFile } from 'node:fs/promises'
import { isWeftError, WeftError } from '../../base/errors.ts'
import { applyEnvironment, parseFlags } from '../../base/go-flags.ts'
import { secretUrls } from '../../base/secret.ts'
import { daemonName } from '../../host/daemons.ts'
import { STORE_FLAGS, type KeyStoreOptions } from '../../options.ts'
import type { Status } from '../../report/status.ts'

/** The file with weftd's variables that deploy/weftd.service names as EnvironmentFile. */
const DEFAULTS = '/etc/default/weftd'

interface DaemonStore {
  readonly options: Partial<KeyStoreOptions>
  /** The file with credentials that this user may not read; undefined if there is no such file. */
  readonly unread: string | undefined
}

export interface Places {
  readonly proc: string
  readonly defaults: string
}

/**
 * Finds the store and the credentials of the weftd with the status `status`. Without a status, reads only the
 * EnvironmentFile.
 */
export async function daemonStore(
  status: Status | undefined,
  { proc, defaults }: Places = { proc: '/proc', defaults: DEFAULTS },
): Promise<DaemonStore> {
  let unread: string | undefined
  const read = async (path: string): Promise<string | undefined> => {
    try {
      return await readFile(path, 'utf8')
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EACCES' || code === 'EPERM') unread ??= path
      return undefined
    }
  }
  const own = status && `${proc}/${status.daemon.pid}`
  const environment = own && (await read(`${own}/environ`))
  // Check the name of the process, because weftd may run in another PID namespace, and its process id may then belong
  // to a different process here.
  const isDaemon = own !== undefined && daemonName(((await read(`${own}/cmdline`)) ?? '').split('\0')) !== undefined
  if (status && isDaemon && environment !== undefined) {
    const variables = Object.fromEntries(environment.split('\0').map((line) => pairOf(line)))
    return { options: { ...optionsOf(variables), ...placeOf(status) }, unread: undefined }
  }
  const text = await read(defaults)
  const options = text === undefined ? {} : optionsOf(parseEnvironmentFile(text))
  if (text !== undefined) unread = undefined
  return { options: status ? { ...options, ...placeOf(status) } : options, unread }
}

/**
 * Adds to an error of the store the hint that this user may not read the file with the credentials. Returns all other
 * errors unchanged.
 */
export function explained(error: unknown, { unread }: Pick<DaemonStore, 'unread'>): unknown {
  if (unread === undefined || !isWeftError(error)) return error
  if (error.code !== 'STORE' && !error.message.startsWith('no TLS connection')) return error
  return new WeftError(error.code, error.message, {
    remedy: `run this as root, which may read weftd's credentials (${unread}), or ${error.remedy}`,
    cause: error,
  })
}

/** Replaces the value of each option that still has its default by the value that was found for the option. */
export function withDefaultsOf(options: KeyStoreOptions, found: Partial<KeyStoreOptions>): KeyStoreOptions {
  const isDefault = (name: keyof KeyStoreOptions): boolean =>
    name === 'etcd-password' ? options[name].isEmpty : String(options[name]) === String(STORE_FLAGS[name].default)
  const names = Object.keys(found) as (keyof KeyStoreOptions)[]
  return { ...options, ...Object.fromEntries(names.filter(isDefault).map((name) => [name, found[name]])) }
}

function placeOf({ store, daemon: { leases, etcdFiles } }: Status): Partial<KeyStoreOptions> {
  if (store.name === 'directory') return { 'lease-dir': leases }
  const at = leases.lastIndexOf(' ')
  if (at < 0) return {}
  const { caFile = '', certFile = '', keyFile = '' } = etcdFiles ?? {}
  return {
    'etcd-endpoints': secretUrls(leases.slice(0, at)),
    'etcd-prefix': leases.slice(at + 1),
    ...(etcdFiles ? { 'etcd-cafile': caFile, 'etcd-certfile': certFile, 'etcd-keyfile': keyFile } : {}),
  }
}

function pairOf(line: string): readonly [string, string] {
  const at = line.indexOf('=')
  return at < 0 ? [line, ''] : [line.slice(0, at), line.slice(at + 1)]
}

/**
 * Returns the options that environment variables set. Ignores invalid values silently, because weftd has logged them.
 */
function optionsOf(variables: Readonly<Record<string, string | undefined>>): Partial<KeyStoreOptions> {
  const all = applyEnvironment(STORE_FLAGS, parseFlags(STORE_FLAGS, []), 'FLANNELD', variables, () => {})
  const set = Object.entries(all).filter(
    ([name, value]) => value !== STORE_FLAGS[name as keyof KeyStoreOptions].default,
  )
  return Object.fromEntries(set)
}

/**
 * Parses a systemd EnvironmentFile (systemd.exec(5)): lines `NAME=VALUE`, comments after # or ;, and quotes. A
 * backslash escapes the next character, and a backslash at the end of a line continues the line.
 */
export function parseEnvironmentFile(text: string): Record<string, string> {
  const found: Record<string, string> = {}
  const line = /^[ \t]*(?:([A-Za-z_]\w*)[ \t]*=[ \t]*((?:"(?:\\[^]|[^"\\])*"|'[^']*'|\\[^]|[^\n"'\\])*)|.*)$/gm
  for (const [, name, value = ''] of text.replaceAll('\r\n', '\n').matchAll(line)) {
    if (name === undefined) continue
    found[name] = value
      .replace(/[ \t]+$/, '')
      .replaceAll(/"((?:\\[^]|[^"\\])*)"|'([^']*)'|\\([^])/g, (_all, double?: string, single?: string, next = '') =>
        double === undefined
          ? (single ?? next.replace('\n', ''))
          : double.replaceAll(/\\(["\\`$\n])/g, (_whole, each: string) => each.replace('\n', '')),
      )
  }
  return found
}
