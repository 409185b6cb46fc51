// begin.ts - the first part of weftd's start. It begins to forward packets with the last known state, or finds the
// weftd process that already forwards. Then begin.ts loads the rest of the program.
//
// Packets are delayed or lost until begin.ts is done. So this file imports only the modules that forwarding needs:
// test/netns/quick-start.test.ts and test/unit/begin.test.ts check the imports. Read daemon.ts first.

import { setMaxListeners } from 'node:events'
import { version } from './base/assets.ts'
import { isWeftError, messageOf, WeftError } from './base/errors.ts'
import { seldom, type Log } from './base/log.ts'
import { HIDDEN } from './base/secret.ts'
import { parseNetworkConfig } from './control/config/network-config.ts'
import { leasesEqual } from './control/lease/lease.ts'
import { resumeExternal, type ExternalInterface } from './host/external-interface.ts'
import type { HostKernel } from './host/kernel.ts'
import { hostKernel } from './host/netlink/host-kernel.ts'
import { addressText, byFamily, familiesOf, familyOf, listed, type Addresses, type Family } from './net/address.ts'
import { createBackend } from './node/choose.ts'
import { openDataPaths } from './node/data-paths.ts'
import { canForward, createNode, type ForwardingNode, type NewNode } from './node/node.ts'
import { earlierRun, keptName } from './node/restart/earlier-run.ts'
import { enterHandover, type Inheritable, type HandoverParts } from './node/restart/handover.ts'
import {
  externalOf,
  isSameStore,
  isSubnetEnvForeign,
  lastKnownFile,
  nextFor,
  readLastKnown,
  storeNameOf,
  type LastKnown,
} from './node/restart/last-known.ts'
import { Superseded } from './node/restart/lender.ts'
import { rendezvousAt } from './node/restart/rendezvous.ts'
import { interfaceWishes, type CutOptions, type NodeOptions } from './options.ts'
import { kindOf } from './path/catalog.ts'
import { createEvents, type Events } from './report/events.ts'
import type { Notifier } from './report/notify.ts'

/**
 * Runs weftd until `stopping` is aborted, or aborts `stopping` itself if a loop fails. Always rejects: with the reason
 * of the abort, or with the error that prevented the start (a WeftError if an operator can repair the cause).
 */
export async function runDaemon(
  options: CutOptions,
  log: Log,
  stopping: AbortController,
  notifier?: Notifier,
  kept: readonly number[] = [],
  events: Events = createEvents(),
): Promise<never> {
  setMaxListeners(0, stopping.signal) // each loop, and each command that a loop runs, adds a listener
  // If another weftd (the successor) has taken over, do not report to the service manager that weftd stops. This
  // process then keeps running until the service manager stops weftd's unit.
  stopping.signal.addEventListener('abort', () => {
    if (!(stopping.signal.reason instanceof Superseded)) notifier?.stopping()
  })
  void notifier?.forget(kept.map((_, place) => keptName(place)))
  const store = await storeNameOf(options.store)
  hostKernel.logTo(log)
  const node = createNode({ options: options.node, store, kernel: hostKernel, log, stopping, notifier })
  const handover = await enterHandover(handoverParts(node, options, kept))
  const { endDataPath } = await import('./node/end.ts') // loaded only after packets pass
  try {
    const { startManager } = await import('./daemon.ts')
    return await startManager(node, handover, options, events)
  } catch (error) {
    stopping.abort(error) // end the connections of successors
    throw error
  } finally {
    await endDataPath(node, stopping.signal.reason)
    handover.close(!canForward(node))
  }
}

function handoverParts(node: NewNode, options: CutOptions, kept: readonly number[]): HandoverParts {
  const { log, stopping, ownership, store } = node
  const calm = seldom(log)
  const left = [...kept]
  return {
    log,
    stopping,
    rendezvous: rendezvousAt(node.options, (message) => log.warn(message)),
    dataPath: ownership,
    lender: {
      // Writes the file of the last known state. Ignores errors, because the loop that maintains that file logs them.
      async write() {
        if (!canForward(node)) return
        await import('./node/loops/last-known.ts').then(({ writeKnown }) => writeKnown(node)).catch(() => {})
      },
      about() {
        const lease = canForward(node) ? { key: node.lease.key, publicIp: addressText(node.attrs.publicIp) } : undefined
        return { version: version(), store, lease, healthPort: options.report['healthz-port'] }
      },
      attend(isThere) {
        ownership.hasSuccessor = isThere
        if (isThere) return
        // The successor is gone. It may have written a lease that this process does not know, and may have set firewall
        // rules that this process must remove.
        node.leaseDoubt.ring()
        node.firewall?.rules.lookAgain?.()
      },
      refusal: () => (node.options.persist ? undefined : 'it runs with --persist=false, and hands nothing over'),
    },
    async earlierRun() {
      const known = await readLastKnown(lastKnownFile(node.options), log)
      node.known = known && isSameStore(known.store, store) ? known : undefined
      return earlierRun(left.splice(0), known, store)
    },
    resume: (inheritable) => resume(node, options, inheritable, calm),
  }
}

/**
 * Forwards packets with the lease, peers and device of the previous process, before weftd queries the store. Returns
 * `forwards` if the node forwards packets. The node then has the lease and the configuration that the previous process
 * saved in the file of the last known state. The loop in loops/data-path.ts repairs the data path. Returns `nothing` if
 * weftd must wait for the store, because no state is known, or the state has expired or is from another store or host.
 * Returns `failed` if a fault of the host, or another weftd that has taken over (a successor), prevents forwarding at
 * the moment. If an error is the reason for `nothing` or `failed`, logs the error.
 */
async function resume(
  node: NewNode,
  options: CutOptions,
  inheritable: Inheritable,
  log: Log,
): Promise<'forwards' | 'nothing' | 'failed'> {
  const { stopping, signal, ownership, notifier, known, kernel } = node
  const { engine } = options
  if (!known || known.isForCleanup || (known.expiresAt ?? Infinity) <= Date.now()) return 'nothing'
  if (ownership.state.is !== 'closed') return 'failed' // a successor has the data path
  const subnetFile = node.options['subnet-file']
  if (await isSubnetEnvForeign(subnetFile, known)) {
    log.info(`Another program has changed ${subnetFile} since weftd ran; no packets pass until the store answers`)
    return 'nothing'
  }
  try {
    signal.throwIfAborted()
    const config = parseNetworkConfig(known.config, { areGiven: options.store['kube-subnet-mgr'] })
    // Seal before anything that can fail, so that no packets leave unencrypted while weftd waits for the store. The
    // options of the backend cannot be read: the configuration in the file has a placeholder in place of a PSK.
    const { isSealedUnless } = kindOf(config.backendType) ?? {}
    const isSealed = isSealedUnless !== undefined && config.backend[isSealedUnless] !== true
    if (isSealed) {
      const { seal } = await import('./node/seal.ts') // most backends do not need it
      // Leave out the interface's index, because a boot after the write of the last known state may have changed it.
      const external = known.external ? { external: { name: known.external.name } } : {}
      await seal({ kernel, log }, { config, backend: { isSealed, ...external } })
    }
    const silent = { ...log, info: () => {} }
    const external = await externalFor(known, node.options, familiesOf(config), kernel, silent)
    const publishedBefore = async () => known.lease.attrs
    const backend = await createBackend(config, external, engine, node.log, publishedBefore, inheritable, kernel)
    const prepared = await backend.prepare(signal)
    const attrs = { ...prepared, publicIp: asPublished(prepared.publicIp, known) }
    const lease = { ...known.lease, attrs, expiresAt: known.expiresAt, revision: 0n }
    if (!leasesEqual(lease, known.lease)) return 'nothing'
    const view = new Map(known.leases.map((each) => [each.key, each]))
    const parts = { backend, lease, leases: view, others: known.others, signal, kernel, log: node.log }
    await ownership.open(() => openDataPaths(parts))
    if (!ownership.dataPath) return 'failed' // a successor took the data path first
    const peers = view.size - (view.has(lease.key) ? 1 : 0)
    node.log.info(`Forwarding to ${peers} peers as last known, until the store reports the present ones`)
    notifier?.report({ ready: false, status: 'forwarding as last known' })
    const next = nextFor(node, known.config)
    Object.assign(node, { config, external, backend, lease, attrs, view, next, pathLease: lease })
    // Load loops/data-path.ts only after packets pass, because loading it earlier would delay them.
    void import('./node/loops/data-path.ts')
      .then(({ keepDataPath }) => keepDataPath(node as ForwardingNode))
      .catch((error: unknown) => stopping.abort(error))
    return 'forwards'
  } catch (error) {
    signal.throwIfAborted()
    // The file of the last known state has a placeholder in place of a pre-shared key, and the backend rejects the
    // placeholder. So weftd cannot forward before the store answers.
    if (isWeftError(error, 'CONFIG') && known.config.includes(HIDDEN)) {
      log.info(
        'The network configuration has a secret, which is only in the store; no packets pass until the store answers',
      )
      return 'nothing'
    }
    // If the configuration had no hidden secret, an error with the code CONFIG means that the file of the last known
    // state is invalid.
    log.warn(`Cannot forward with the last known state: ${messageOf(error)}; waiting for the store`)
    return isWeftError(error) && error.code !== 'CONFIG' ? 'failed' : 'nothing'
  }
}

/**
 * Returns the addresses that the previous process published for a node with the addresses `own`. The published
 * addresses differ from `own` if an operator replaced them in the store (an annotation in Kubernetes).
 */
const asPublished = (own: Addresses, { external, lease }: LastKnown): Addresses =>
  byFamily(
    listed(own).map((address) => {
      const family = familyOf(address)
      return address === external?.publicIp[family] ? (lease.attrs.publicIp[family] ?? address) : address
    }),
  )

/**
 * Returns the external interface that the previous process used, even if this host has no default route. If that
 * interface is not known, or the flags have changed, chooses an interface by the flags. Throws WeftError INTERFACE.
 */
async function externalFor(
  known: LastKnown,
  options: NodeOptions,
  families: readonly Family[],
  kernel: HostKernel,
  log: Log,
): Promise<ExternalInterface> {
  const external = externalOf(known, options)
  if (external && families.every((family) => external.families?.includes(family))) {
    const found = await resumeExternal(kernel, external)
    if (found) return found
    throw new WeftError('INTERFACE', `${external.name} has lost the addresses that this node had`)
  }
  const { chooseExternalInterface } = await import('./host/choose-interface.ts') // loaded only if needed, since packets wait for this code
  const earlier = { addresses: async () => listed(known.lease.attrs.publicIp), isOwn: () => false }
  return chooseExternalInterface(kernel, interfaceWishes(options), families, log, undefined, earlier)
}
