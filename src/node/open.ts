// open.ts - opens the data path with the facts from the store, or continues with the data path that is already open.

import { isDeepStrictEqual } from 'node:util'
import { Secret } from '../base/secret.ts'
import type { NetworkConfig } from '../control/config/network-config.ts'
import { leasesEqual, type Lease, type OwnLease } from '../control/lease/lease.ts'
import type { ExternalInterface } from '../host/external-interface.ts'
import { hasBackendName, isNamedBy } from '../path/catalog.ts'
import type { Backend } from '../path/contract.ts'
import { removeIdleTun } from '../path/device/tun-device.ts'
import { openDataPaths, type DataPaths } from './data-paths.ts'
import { amended } from './loops/lease.ts'
import { canForward, type ForwardingNode, type NewNode, type NodeParts, type PathFacts } from './node.ts'
import type { Handover } from './restart/handover.ts'
import { isSameStore, lastKnownFile, readLastKnown } from './restart/last-known.ts'
import { seal } from './seal.ts'

/**
 * Opens data paths with the facts `facts`. `others` lists the lease keys of the peers to which weftd sends over the
 * second underlay family, because the preferred family failed.
 */
export async function openPath(
  { view: leases, signal, kernel, log }: NewNode,
  { config, backend, lease, attrs }: PathFacts,
  others?: readonly string[],
): Promise<DataPaths> {
  await seal({ kernel, log }, { config, backend })
  return openDataPaths({ backend, lease: { ...lease, attrs }, leases, others, signal, kernel, log })
}

/**
 * Returns true if the backend can use the TUN device `left` of the earlier run, which may have been renamed since. Any
 * other TUN device would conflict with the backend's device, and would still have the route to the network.
 */
export const goesOnWith = ({ tunNames }: Backend, left: string): boolean =>
  tunNames?.some((name) => isNamedBy(name, left) || !hasBackendName(left)) === true

/**
 * Returns the interface without its name if the interface has an index, because the index identifies it and the name
 * may change.
 */
const unnamed = (external: ExternalInterface | undefined): Partial<ExternalInterface> | undefined =>
  external?.index === undefined ? external : { ...external, name: '' }

/**
 * Returns true if the configurations are equal. The file of the last known state has placeholders in place of secrets,
 * so the values of these secrets are not compared. The backend does not use such a secret, because it would have
 * rejected the placeholder.
 */
function isSameConfig(known: NetworkConfig, config: NetworkConfig): boolean {
  const isPlaceholder = (value: unknown): boolean => value instanceof Secret && value.isPlaceholder
  const secrets = new Set(Object.keys(known.backend).filter((name) => isPlaceholder(known.backend[name])))
  const compared = ({ backend, ...rest }: NetworkConfig): unknown => [
    rest,
    Object.entries(backend).map(([name, value]) => [name, secrets.has(name) ? String(value) : value]),
  ]
  return isDeepStrictEqual(compared(known), compared(config))
}

/** Returns true if a node forwards in the given network and through the given external interface. */
export const isFor = (
  node: NewNode,
  { config, external }: Pick<NodeParts, 'config' | 'external'>,
): node is ForwardingNode =>
  canForward(node) &&
  isSameConfig(node.config, config) &&
  isDeepStrictEqual(unnamed(node.backend.external ?? node.external), unnamed(external))

/**
 * Gives the node the facts from the store. Continues with the open data path if it fits these facts, otherwise opens a
 * new data path. `clear` removes conflicting devices and routes when no process forwards any more. If the new data path
 * cannot be opened, the node keeps its earlier facts.
 */
export async function openNode(
  node: NewNode,
  parts: NodeParts,
  facts: PathFacts,
  handover: Pick<Handover, 'isOnLoan' | 'tunNames'>,
  clear: () => Promise<void> = async () => {},
): Promise<ForwardingNode> {
  const { ownership, signal, log } = node
  const known = canForward(node) ? undefined : await knownBefore(node, facts.lease, handover)
  if (known) node.view = known.view
  let { attrs } = facts
  const open = async (): Promise<DataPaths> => {
    const { backend, config } = facts
    const networks = { ipv4: config.ipv4?.network, ipv6: config.ipv6?.network }
    for (const left of handover.tunNames)
      if (!goesOnWith(backend, left)) await removeIdleTun(node.kernel, left, networks)
    await clear()
    const dataPath = await openPath(node, { ...facts, attrs }, known?.others)
    Object.assign(node, facts, { attrs, pathLease: facts.lease })
    return dataPath
  }
  // If no data path is open, a successor has taken it over, so wait until this process owns it again.
  while (!canForward(node) || node.lease !== facts.lease || !ownership.dataPath) {
    await ownership.untilOurs(signal)
    // This host's address may have changed while the store did not answer. The open data path already uses the new
    // address, and the peers must learn it.
    if (ownership.dataPath && isFor(node, parts)) {
      const backend = amended(node.backend, parts.manager, log)
      attrs = await backend.prepare(signal)
      const isSame = leasesEqual({ ...node.lease, attrs: node.attrs }, { ...facts.lease, attrs })
      if (ownership.dataPath && isSame) return Object.assign(node, facts, { attrs, backend, pathLease: facts.lease })
    }
    if (canForward(node)) attrs = await facts.backend.prepare(signal)
    if (canForward(node) && node.lease !== facts.lease)
      log.warn('The last known state is out of date; the data path is opened again')
    await ownership.replace(open).catch((error: unknown) => {
      ownership.recheck.ring() // the loop of the data path opens the last known data path again
      throw error
    })
  }
  return node
}

/**
 * Returns the leases and the underlay choices in the file of the last known state if this node continues with the
 * sessions of another process, because these sessions belong to the peers in that file. The other process is a
 * predecessor that lends its data path, or an ended process that left descriptors. Otherwise returns undefined.
 */
async function knownBefore(
  { options, store, log }: NewNode,
  { key }: OwnLease,
  { isOnLoan, tunNames }: Pick<Handover, 'isOnLoan' | 'tunNames'>,
): Promise<{ readonly view: ReadonlyMap<string, Lease>; readonly others: readonly string[] } | undefined> {
  if (!isOnLoan && tunNames.length === 0) return undefined
  const known = await readLastKnown(lastKnownFile(options), log)
  if (!known) return undefined
  const isSame =
    isSameStore(known.store, store) && known.lease.key === key && (known.expiresAt ?? Infinity) > Date.now()
  if (!isOnLoan && !isSame) return undefined
  return { view: new Map(known.leases.map((each) => [each.key, each])), others: known.others ?? [] }
}
