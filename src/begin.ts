// begin.ts - the first part of the daemon's start. It forwards packets with the last known state, or finds the weftd that already forwards.
// Only then does it load the rest of the program.
//
// Packets are delayed or lost until this part is done. So this file imports only the modules that forwarding needs:
// test/netns/quick-start.test.ts and test/unit/begin.test.ts check that. Read daemon.ts first.

import { setMaxListeners } from 'node:events'
import { version } from './base/assets.ts'
import { isWeftError, messageOf, WeftError } from './base/errors.ts'
import { seldom, type Log } from './base/log.ts'
import { HIDDEN } from './base/secret.ts'
import { parseNetworkConfig } from './control/config/network-config.ts'
import { leasesEqual } from './control/lease/lease.ts'
import type { Start } from './daemon.ts'
import { createBell } from './host/bell.ts'
import { run, type Run } from './host/command.ts'
import { resumeExternal, type ExternalInterface } from './host/external-interface.ts'
import { lookAhead, type LookAhead } from './host/look-ahead.ts'
import { addressText, familiesOf, listed, type Family, type Nets } from './net/address.ts'
import { createBackend } from './node/choose.ts'
import { openDataPaths } from './node/data-paths.ts'
import type { ForwardingNode } from './node/loops/data-path.ts'
import { nextFor, wishesText, writeKnown } from './node/loops/last-known.ts'
import type { ResumedNode } from './node/open.ts'
import { createOwnership } from './node/ownership.ts'
import { earlierRun, keptName } from './node/restart/earlier-run.ts'
import { enterHandover, type Inheritable, type HandoverParts } from './node/restart/handover.ts'
import { lastKnownFile, readLastKnown, storeNameOf, type LastKnown } from './node/restart/last-known.ts'
import { Superseded } from './node/restart/lender.ts'
import { rendezvousAt } from './node/restart/rendezvous.ts'
import { interfaceWishes, type DaemonOptions } from './options.ts'
import { createEvents, type Events } from './report/events.ts'
import type { Notifier } from './report/notify.ts'

/**
 * Runs until `stopping` is aborted; it aborts `stopping` itself if a loop fails. Always rejects: with the reason of the abort, or with the
 * error that prevented the start (a WeftError if an operator can repair the cause).
 */
export async function runDaemon(
  options: DaemonOptions,
  log: Log,
  stopping: AbortController,
  notifier?: Notifier,
  kept: readonly number[] = [],
  events: Events = createEvents(),
): Promise<never> {
  setMaxListeners(0, stopping.signal) // each loop adds a listener, and so does each command that it runs
  // After a successor has taken over, do not report to the service manager that weftd stops. This process stays and
  // waits, because the service manager decides when its unit stops.
  stopping.signal.addEventListener('abort', () => {
    if (!(stopping.signal.reason instanceof Superseded)) notifier?.stopping()
  })
  notifier?.forget(kept.map((_, place) => keptName(place)))
  const ownership = createOwnership(log)
  const start: Start = { options, log, stopping, notifier, events, ownership, known: undefined, forwarding: undefined }
  const handover = await enterHandover(handoverParts(start, kept))
  const { endDataPath } = await import('./node/end.ts') // loaded only after packets pass
  try {
    const { startManager } = await import('./daemon.ts')
    return await startManager(start, handover)
  } catch (error) {
    stopping.abort(error) // end the connections of successors
    throw error
  } finally {
    await endDataPath(start, stopping.signal.reason)
    handover.close(start.forwarding === undefined)
  }
}

function handoverParts(start: Start, kept: readonly number[]): HandoverParts<ResumedNode> {
  const { options, log, stopping, ownership } = start
  const store = storeNameOf(options)
  const calm = seldom(log)
  let left = kept
  // Writes the file of the last known state. Ignores errors, because the loop that maintains that file logs them.
  const write = async (): Promise<void> => {
    if (start.forwarding) await writeKnown(start.forwarding).catch(() => {})
  }
  return {
    log,
    stopping,
    rendezvous: rendezvousAt(options, (message) => log.warn(message)),
    lender: {
      write,
      lend: () => ownership.lend(),
      release: () => ownership.release(),
      about() {
        const { lease, attrs } = start.forwarding ?? {}
        const own = lease && attrs && { key: lease.key, publicIp: addressText(attrs.publicIp) }
        return { version: version(), store, lease: own, healthPort: options['healthz-port'] }
      },
      attend(isThere) {
        ownership.hasSuccessor = isThere
        if (!isThere) start.forwarding?.leaseDoubt.ring() // the successor may have written a lease that this process does not know
      },
      refusal: () => (options.persist ? undefined : 'it runs with --persist=false, and hands nothing over'),
      async takeBack(why) {
        log.warn(`The weftd that was taking over ${why}; forwarding again`)
        await ownership.takeBack()
        await write()
      },
    },
    async earlierRun() {
      const known = await readLastKnown(lastKnownFile(options), log)
      start.known = known?.store === store ? known : undefined
      const fds = left
      left = []
      return earlierRun(fds, known, store)
    },
    async resume(inheritable) {
      const resumed = await resume(start, inheritable, calm)
      if (typeof resumed !== 'string') start.forwarding = resumed
      return resumed
    },
    check(before) {
      if (before.store === store) return
      throw new WeftError(
        'DEVICE',
        `another weftd runs on this host for the store ${before.store}; this one's is ${store}`,
        { remedy: 'name the same store; or, if this host will leave its network, stop the other weftd first' },
      )
    },
  }
}

/**
 * Forwards with the lease, peers and device of the previous process, before the store is queried. Returns `nothing` if it has to wait for
 * the store, because no state is known, or the state has expired or is from another store or host. Returns `failed` if the host prevents
 * forwarding at the moment. Logs the reason. Repairs the data path until the node takes it over.
 */
async function resume(
  { options, stopping, ownership, notifier, known }: Start,
  inheritable: Inheritable,
  log: Log,
): Promise<ResumedNode | 'nothing' | 'failed'> {
  if (!known || known.isForCleanup || (known.expiresAt ?? Infinity) <= Date.now()) return 'nothing'
  if (ownership.state.is !== 'closed') return 'failed' // a successor has the data path
  let look: LookAhead | undefined
  const { signal } = stopping
  try {
    signal.throwIfAborted()
    const config = parseNetworkConfig(known.config, { areGiven: options['kube-subnet-mgr'] })
    const networks: Nets = { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network }
    look = lookAhead(run, networks)
    const silent = { ...log, info: () => {} }
    const external = await externalFor(known, options, familiesOf(networks), look.run, silent)
    const publishedBefore = async () => known.lease.attrs
    const backend = await createBackend(config, external, options, log, publishedBefore, inheritable, look.run)
    const attrs = await backend.prepare(signal)
    const lease = { ...known.lease, attrs, expiresAt: known.expiresAt, revision: 0n }
    if (!leasesEqual(lease, known.lease)) return 'nothing'
    const view = new Map(known.leases.map((each) => [each.key, each]))
    const parts = { backend, lease, leases: view, others: known.others, signal, log }
    const open = () => ownership.open(() => openDataPaths(parts))
    await open()
    if (!ownership.dataPath) return 'failed' // a successor took the data path first
    const peers = view.size - (view.has(lease.key) ? 1 : 0)
    log.info(`Forwarding to ${peers} peers as last known, until the store reports the present ones`)
    notifier?.report({ ready: false, status: 'forwarding as last known' })
    const next = nextFor(options, known.config)
    const forwarding: ForwardingNode = {
      ownership,
      backend,
      next,
      log,
      lease,
      attrs,
      view,
      signal,
      unapplied: undefined,
      ownApplied: undefined,
      repaired: 0,
      leaseDoubt: createBell(),
      learnt: createBell(),
      unprobed: { keys: undefined },
      unsearched: { keys: undefined },
    }
    let end = lookAfter(forwarding, log)
    return Object.assign(forwarding, {
      config,
      external,
      hand: () => end(),
      async again() {
        await open().catch((error: unknown) =>
          log.error(`Cannot forward with the last known state: ${messageOf(error)}`),
        )
        end = lookAfter(forwarding, log)
      },
    })
  } catch (error) {
    stopping.signal.throwIfAborted()
    // The file of the last known state has a placeholder in place of a pre-shared key. The backend rejects the
    // placeholder.
    if (isWeftError(error, 'CONFIG') && known.config.includes(HIDDEN)) {
      log.info(
        'The network configuration has a secret, which is only in the store; no packets pass until the store answers',
      )
      return 'nothing'
    }
    // This warning also covers a file of the last known state whose content is invalid.
    log.warn(`Cannot forward with the last known state: ${messageOf(error)}; waiting for the store`)
    return isWeftError(error) && error.code !== 'CONFIG' ? 'failed' : 'nothing'
  } finally {
    look?.forget()
  }
}

/**
 * Returns the external interface that the previous process used, which needs no default route. If that interface is not known, or the flags
 * have changed, chooses one by the flags. Throws WeftError INTERFACE.
 */
async function externalFor(
  { external, wishes, lease }: LastKnown,
  options: DaemonOptions,
  families: readonly Family[],
  look: Run,
  log: Log,
): Promise<ExternalInterface> {
  if (external && wishes === wishesText(options) && families.every((family) => external.families?.includes(family))) {
    const found = await resumeExternal(look, external)
    if (found) return found
    throw new WeftError('INTERFACE', `${external.name} has lost the addresses that this node had`)
  }
  const { chooseExternalInterface } = await import('./host/choose-interface.ts') // loaded only if needed, since packets wait for this code
  const earlier = { addresses: async () => listed(lease.attrs.publicIp), isOwn: () => false }
  return chooseExternalInterface(look, interfaceWishes(options), families, log, undefined, earlier)
}

/** Checks and repairs the data path until the returned function is called or the process stops. */
function lookAfter(forwarding: ForwardingNode, log: Log): () => Promise<void> {
  const ended = new AbortController()
  const until = AbortSignal.any([forwarding.signal, ended.signal])
  const keep = async (): Promise<never> => {
    const { keepForwarding } = await import('./node/loops/data-path.ts') // loaded only once packets pass
    return keepForwarding(forwarding, async () => {}, { until })
  }
  const looking = keep().catch((error: unknown) => {
    if (!until.aborted) log.error(`Nothing repairs the data path until the store answers: ${messageOf(error)}`)
  })
  return async () => {
    ended.abort(new Error('a node has the data path'))
    await looking
  }
}
