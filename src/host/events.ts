// events.ts - reports changes of this host's network configuration as soon as the kernel reports them.

import { messageOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { familyOf, formatAddress, type Family } from '../net/address.ts'
import { pause } from './bell.ts'
import type { HostKernel, KernelEvent, Topic } from './kernel.ts'

/**
 * The minimum and the maximum pause in ms before weftd tries again to watch the kernel. The pause doubles after each
 * failure. Each failure counts as a change, so weftd checks the host every RETRY_MAX_MS even if it can never watch the
 * kernel.
 */
const RETRY_MIN_MS = 200
const RETRY_MAX_MS = 5_000

/**
 * The reports of the kernel that weftd receives, and a filter for them. Without a filter every report counts as a
 * change of the host, unless this process requested the change.
 */
export interface Watched {
  readonly topics: readonly Topic[]
  readonly matters?: (event: KernelEvent) => boolean
}

/** Returns the family of the object that a report is about; undefined for an object that belongs to both families. */
function familyOfEvent(event: KernelEvent): Family | undefined {
  if (event.of === 'route' || event.of === 'rule') return event.family
  return event.of === 'address' ? familyOf(event.address) : undefined
}

/**
 * The reports of changes of links, and of the addresses, routes and routing rules of the families that `families`
 * returns. Reports that only renew a lifetime are left out. `families` is called for each report.
 */
export function changesOf(families: () => readonly Family[]): Watched {
  const filter = new LifetimeFilter()
  return {
    topics: ['links', 'addresses', 'routes', 'rules'],
    matters: (event) => {
      const family = familyOfEvent(event)
      return (family === undefined || families().includes(family)) && filter.isNews(event)
    },
  }
}

/** The maximum number of addresses and routes for which the filter stores the last report. */
const REMEMBERED = 10_000

/**
 * Drops reports that only renew the lifetime of an address or route. Every router advertisement renews lifetimes (RFC
 * 4862 section 5.5.3).
 */
export class LifetimeFilter {
  /** The last report of each address and of each route with a lifetime, as text without the lifetime. */
  readonly #known = new Map<string, string>()

  /** Returns false if the report differs from the previous report about the same object only in the lifetime. */
  isNews(event: KernelEvent): boolean {
    const name = nameOf(event)
    if (name === undefined || (event.of !== 'address' && event.of !== 'route')) return true
    if (event.gone || event.text === undefined) {
      this.#known.delete(name)
      return true
    }
    const before = this.#known.get(name)
    if (before === undefined && this.#known.size >= REMEMBERED) this.#known.clear()
    this.#known.set(name, event.text)
    return event.text !== before
  }
}

/** Returns a text that identifies an address, or a route by its destination, interface and metric. */
function nameOf(event: KernelEvent): string | undefined {
  if (event.of === 'address') return `${event.deviceIndex} ${formatAddress(event.address)}/${event.prefixLength}`
  if (event.of !== 'route') return undefined
  const { destination, deviceIndex, metric, table } = event.route
  return `${event.family} ${destination} ${deviceIndex} ${metric} ${table}`
}

/** Watches this host for changes. The watch can start before weftd knows the families of the network. */
export class HostWatch {
  /** The families whose changes are reported. Before the first call of `follow` only IPv4. */
  #families: readonly Family[] = ['ipv4']
  readonly #onChange: () => void
  readonly #over = new AbortController()
  readonly #watching: Promise<void>

  /** Calls `onChange` when the host has changed, until `signal` aborts or `end` is called. */
  constructor(kernel: HostKernel, onChange: () => void, log: Log, signal: AbortSignal) {
    this.#onChange = onChange
    const until = AbortSignal.any([signal, this.#over.signal])
    this.#watching = watchHost(
      kernel,
      onChange,
      log,
      until,
      changesOf(() => this.#families),
    )
  }

  /** From now on, reports the changes of addresses, routes and routing rules of these families. */
  follow(families: readonly Family[]): void {
    const isNew = families.some((family) => !this.#families.includes(family))
    this.#families = families
    if (isNew) this.#onChange() // earlier changes of the new family were not reported
  }

  async end(): Promise<void> {
    this.#over.abort()
    await this.#watching
  }
}

/**
 * Calls `onChange` when another program or the kernel itself changed the host. Also calls it when the kernel's reports
 * were lost or cannot be received, because the host may have changed then. The caller must find out what changed.
 * Resolves when `signal` aborts.
 */
export async function watchHost(
  kernel: HostKernel,
  onChange: () => void,
  log: Log,
  signal: AbortSignal,
  { topics, matters = () => true }: Watched,
): Promise<void> {
  const onEvent = (event: KernelEvent, isOwn: boolean): void => {
    // Pass this process's own changes to the filter too, because the filter compares each report with the previous
    // report about the same object.
    if (event.of === 'anything' || (matters(event) && !isOwn)) onChange()
  }
  let failures = 0
  while (!signal.aborted) {
    try {
      await kernel.watch(topics, onEvent, signal)
      if (failures > 0) onChange() // changes since the last failure were not reported
      return await abortOf(signal)
    } catch (error) {
      if (failures === 0)
        log.warn(
          `Cannot watch the kernel for changes: ${messageOf(error)}. weftd looks for changes every 5 s until it can`,
        )
      onChange()
      await pause(signal, Math.min(RETRY_MIN_MS * 2 ** failures, RETRY_MAX_MS)).catch(() => {})
      failures += 1
    }
  }
}

const abortOf = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
