// store.ts - the store that an operator's command works on: the one that the flags name, else the daemon's of this host.

import { createStore, type StoreOptions } from '../choose.ts'
import { isWeftError, WeftError } from '../errors.ts'
import { limited } from '../host/bell.ts'
import type { Log } from '../log.ts'
import { parseIpv4Net, formatIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import { secretUrls } from '../secret.ts'
import type { Status } from '../status/status.ts'
import type { Store } from '../store/store.ts'
import { askStatus } from './ask.ts'
import { STORE_FLAGS } from './command.ts'
import type { Screen } from './look.ts'

const WAIT_MS = 10_000

export interface Opened {
  readonly store: Store
  /** What the daemon of this host says; undefined when it says nothing. */
  readonly status: Status | undefined
  readonly signal: AbortSignal
}

/** Runs `work` on it. A store that does not answer in time is a WeftError STORE_UNAVAILABLE. */
export async function withStore(
  options: StoreOptions & { readonly 'status-socket': string },
  screen: Screen,
  stopping: AbortSignal,
  work: (opened: Opened) => Promise<number>,
): Promise<number> {
  const status = await askStatus(options['status-socket'], stopping).catch((error: unknown) => {
    if (isWeftError(error)) return undefined
    throw error
  })
  const isGiven = options['lease-dir'] !== '' || options['etcd-endpoints'] !== STORE_FLAGS['etcd-endpoints'].default
  if (!isGiven && status?.store.name === 'kubernetes') {
    throw new WeftError('USAGE', "the leases of this host's daemon are nodes of Kubernetes", {
      remedy: 'see them by `weft peers` or `kubectl get nodes -o yaml`, the configuration in the ConfigMap',
    })
  }
  const warn = (line: string): void => screen.warn(`weft: ${line}`)
  const log: Log = { info: () => {}, warn, error: warn, v: () => false }
  const store = await createStore(isGiven || !status ? options : { ...options, ...placeOf(status) }, log)
  const late = (): Error =>
    new WeftError('STORE_UNAVAILABLE', `the ${store.name} store did not answer within ${WAIT_MS / 1000} s`, {
      remedy: 'see whether it can be reached from here, and whether the flags name the right one',
    })
  try {
    return await limited(stopping, WAIT_MS, late, (signal) => work({ store, status, signal }))
  } finally {
    await store.close()
  }
}

/** As DaemonStatus.leases has it. */
function placeOf({ store, daemon: { leases } }: Status): Partial<StoreOptions> {
  if (store.name === 'directory') return { 'lease-dir': leases }
  const at = leases.lastIndexOf(' ')
  return at < 0 ? {} : { 'etcd-endpoints': secretUrls(leases.slice(0, at)), 'etcd-prefix': leases.slice(at + 1) }
}

/** `10.5.1.0/24`, or the key `10.5.1.0-24`. Throws WeftError USAGE. */
export function subnetNamed(text: string): Ipv4Net {
  const net = parseIpv4Net(text.replace('-', '/'))
  if (net && formatIpv4Net(net) === text.replace('-', '/')) return net
  throw new WeftError('USAGE', `${text} is no subnet`, { remedy: 'write it as 10.5.1.0/24, see `weft lease ls`' })
}
