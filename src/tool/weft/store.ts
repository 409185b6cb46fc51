// store.ts - opens the store for a command: the store that the flags name, else the store of this host's weftd.

import { existsSync } from 'node:fs'
import { isWeftError, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { leaseKey, parseLeaseKey } from '../../control/lease/lease.ts'
import type { Store } from '../../control/store/store.ts'
import { limited } from '../../host/bell.ts'
import { formatNet, listed, netsOf, parseNet, primary, type Nets } from '../../net/address.ts'
import { createStore } from '../../node/choose.ts'
import { STORE_FLAGS, type KeyStoreOptions } from '../../options.ts'
import type { Status } from '../../report/status.ts'
import { fetchStatus } from './daemon-client.ts'
import { daemonStore, explained, withDefaultsOf } from './daemon-store.ts'
import type { Screen } from './look.ts'

const WAIT_MS = 10_000

interface Opened {
  readonly store: Store
  readonly status: Status | undefined
  readonly signal: AbortSignal
}

export const isStoreGiven = (options: KeyStoreOptions): boolean =>
  options['lease-dir'] !== '' || options['etcd-endpoints'] !== STORE_FLAGS['etcd-endpoints'].default

/**
 * Opens the store, runs `work` with the store, and closes the store. Throws WeftError STORE_UNAVAILABLE if the store
 * does not answer in time.
 */
export async function withStore<T>(
  options: KeyStoreOptions & { readonly 'status-socket': string },
  screen: Pick<Screen, 'warn'>,
  stopping: AbortSignal,
  work: (opened: Opened) => Promise<T>,
): Promise<T> {
  const status = await fetchStatus(options['status-socket'], stopping).catch((error: unknown) => {
    if (isWeftError(error)) return undefined
    throw error
  })
  return inStore(options, status, WAIT_MS, screen, stopping, work)
}

/**
 * Opens the store and runs `work` with the store, as withStore does. The caller passes weftd's status and the time
 * limit.
 */
export async function inStore<T>(
  options: KeyStoreOptions,
  status: Status | undefined,
  waitMs: number,
  screen: Pick<Screen, 'warn'>,
  stopping: AbortSignal,
  work: (opened: Opened) => Promise<T>,
): Promise<T> {
  const isGiven = isStoreGiven(options)
  if (!isGiven && status?.store.name === 'kubernetes') {
    throw new WeftError('USAGE', "the leases of this host's daemon are nodes of Kubernetes", {
      remedy: 'see the leases with `weft peers` or `kubectl get nodes -o yaml`, and the configuration in the ConfigMap',
    })
  }
  const warn = (line: string): void => screen.warn(`weft: ${line}`)
  const log: Log = { info: () => {}, warn, error: warn, v: () => false }
  const found = isGiven ? undefined : await daemonStore(status)
  const place = found ? withDefaultsOf(options, found.options) : options
  requireFolder(place)
  const store = await createStore(place, log)
  const late = (): Error =>
    new WeftError('STORE_UNAVAILABLE', `the ${store.name} store did not answer within ${waitMs / 1000} s`, {
      remedy: 'check that this host reaches the store, and that the flags name the right store',
    })
  try {
    return await limited(stopping, waitMs, late, (signal) => work({ store, status, signal }))
  } catch (error) {
    throw found ? explained(error, found) : error
  } finally {
    await store.close()
  }
}

/**
 * Throws WeftError STORE_UNAVAILABLE if the lease directory does not exist, because opening the store would create a
 * directory for a mistyped name.
 */
function requireFolder({ 'lease-dir': folder }: KeyStoreOptions): void {
  if (folder === '' || existsSync(folder)) return
  throw new WeftError('STORE_UNAVAILABLE', `there is no directory ${folder}`, {
    remedy: 'correct --lease-dir; for a new network, create the directory first: `mkdir -p`',
  })
}

/**
 * Parses the name of a lease: `10.5.1.0/24`, `fd00:5:1::/64`, both with a comma between them, or the lease's key.
 * Throws WeftError USAGE.
 */
export function subnetNamed(text: string): Nets {
  const subnet = parseLeaseKey(text) ?? netsOf(text.split(',').flatMap((part) => parseNet(part) ?? []))
  if (primary(subnet) && [leaseKey(subnet), subnetName(subnet)].includes(text)) return subnet
  throw new WeftError('USAGE', `${text} is not a subnet`, {
    remedy:
      'write a subnet as 10.5.1.0/24, fd00:5:1::/64 or 10.5.1.0/24,fd00:5:1::/64; `weft lease ls` shows the subnets',
  })
}

export const subnetName = (subnet: Nets): string => listed(subnet).map(formatNet).join(',')
