// node-source.ts - makes the nodes of the Kubernetes API a source of leases.
//
// weftd does not need most of a Node object (images, conditions, capacity), and every heartbeat writes the object
// again. So weftd watches only the metadata of nodes, which include the annotations but not the podCIDR. The podCIDR
// never changes in a node's life. A listing has the podCIDRs of all nodes. For each node that was created after the
// listing, weftd requests the whole Node object once, to get its podCIDR.

import { WeftError } from '../../base/errors.ts'
import type { Change, Entry, LeaseSource } from '../lease/subnet-manager.ts'
import { statusError, type KubeClient } from './api-client.ts'
import {
  entryOf,
  isManaged,
  membersOf,
  nodeOf,
  subnetsOf,
  type AnnotationNames,
  type NodeObject,
  type NodeSubnets,
} from './node-lease.ts'
import { decodeNodeList } from './protobuf.ts'

export const NODES = '/api/v1/nodes'
const PAGE = 500
/**
 * The minimum duration of a watch of the nodes, in seconds. The actual duration is random, at most twice as long, so
 * that nodes that started simultaneously do not reconnect simultaneously (as in client-go).
 */
const WATCH_S = 300
/** The minimum duration, in ms, of a watch that delivers no event. A shorter watch without events counts as failed. */
const SHORT_MS = 5_000
/**
 * The minimum interval of listings, in ms per node of the cluster. A listing transfers the complete Node objects, so
 * large clusters are listed less often.
 */
const RELIST_MS_PER_NODE = 3_000

interface NodeList {
  readonly version: bigint
  /** The token with which weftd requests the next page of a listing; empty on the last page. */
  readonly next: string
  readonly nodes: readonly NodeObject[]
}

/**
 * Reads a page of nodes from untrusted JSON. Throws WeftError STORE_UNAVAILABLE if the JSON is not a listing of nodes.
 */
export function nodeListOf(value: unknown): NodeList {
  const { metadata, items } = membersOf(value)
  const { resourceVersion, continue: next = '' } = membersOf(metadata)
  const nodes = Array.isArray(items) ? items.map(nodeOf) : []
  return { version: versionOf(resourceVersion), next: typeof next === 'string' ? next : '', nodes }
}

/**
 * Parses a resourceVersion. All resourceVersions of nodes come from one counter of etcd, so they can be compared as
 * numbers (Kubernetes KEP-5504).
 */
function versionOf(text: unknown): bigint {
  if (typeof text === 'string' && /^\d{1,20}$/.test(text)) return BigInt(text)
  throw new WeftError('STORE_UNAVAILABLE', `the Kubernetes API names a resourceVersion ${JSON.stringify(text ?? '')}`)
}

/** The leases that the annotations of the cluster's nodes describe. */
export class NodeSource implements LeaseSource<bigint> {
  readonly name = 'kubernetes'
  readonly #client: KubeClient
  /** The names of the annotations that weft uses in this cluster. */
  readonly #names: AnnotationNames
  /**
   * The subnets of each node, by the node's uid. If a node's subnets are invalid, the value is a text with the reason.
   */
  readonly #subnets = new Map<string, NodeSubnets | string>()

  constructor(client: KubeClient, names: AnnotationNames) {
    this.#client = client
    this.#names = names
  }

  async list(signal: AbortSignal): Promise<{ cursor: bigint; entries: Entry[] }> {
    const before = [...this.#subnets.keys()]
    const found = new Set<string>()
    const entries: Entry[] = []
    let cursor: bigint | undefined
    let next = ''
    do {
      const query = { limit: String(PAGE), ...(next === '' ? {} : { continue: next }) }
      let page: NodeList
      try {
        const ask = { method: 'GET', path: NODES, query, decode: decodeNodeList } as const
        page = nodeListOf(await this.#client.ask(ask, signal))
      } catch (error) {
        // GAP means that the API server no longer has the revision of the listing's first page, so the listing must
        // start again.
        if (!(error instanceof WeftError) || error.code !== 'GAP') throw error
        throw new WeftError('STORE_UNAVAILABLE', error.message)
      }
      cursor ??= page.version
      for (const node of page.nodes) {
        const known = this.#remember(node)
        found.add(node.metadata?.uid ?? '')
        if (isManaged(node, this.#names)) entries.push(this.#entry(node, known))
      }
      ;({ next } = page)
    } while (next !== '')
    // Remove the subnets of deleted nodes. Nodes that the watch added during the listing are not in `before`, so their
    // subnets are kept.
    for (const uid of before) if (!found.has(uid)) this.#subnets.delete(uid)
    return { cursor, entries }
  }

  async *watch(after: bigint, signal: AbortSignal): AsyncGenerator<{ cursor: bigint; changes: Change[] }, never> {
    let cursor = after
    for (;;) {
      const began = performance.now()
      let hasEvents = false
      const query = { resourceVersion: String(cursor), allowWatchBookmarks: 'true' }
      const seconds = Math.round(WATCH_S * (1 + Math.random()))
      for await (const events of this.#client.watch(NODES, query, seconds, signal)) {
        const changes: Change[] = []
        for (const { type, object } of events) {
          const node = nodeOf(object)
          if (type === 'ERROR') {
            const { code } = membersOf(object)
            throw statusError(
              typeof code === 'number' ? code : 500,
              'the watch of nodes',
              JSON.stringify(object ?? null),
            )
          }
          const change =
            type === 'DELETED' ? this.#gone(node) : type === 'BOOKMARK' ? undefined : await this.#changeOf(node, signal)
          if (change) changes.push(change)
          cursor = versionOf(node.metadata?.resourceVersion)
          hasEvents = true
        }
        yield { cursor, changes }
      }
      if (!hasEvents && performance.now() - began < SHORT_MS)
        throw new WeftError('STORE_UNAVAILABLE', 'the watch ended as soon as it began')
    }
  }

  isAfter(a: bigint, b: bigint): boolean {
    return a > b
  }

  trustedMs(leases: number): number {
    return leases * RELIST_MS_PER_NODE
  }

  /**
   * Returns the subnets of a node, or the reason why they are invalid. Also stores the result, because later changes in
   * the watch lack the subnets. `node` must have its `spec`.
   */
  #remember(node: NodeObject): NodeSubnets | string | undefined {
    const { uid = '' } = node.metadata ?? {}
    const found = subnetsOf(node)
    if (found !== undefined && uid !== '') this.#subnets.set(uid, found)
    return found
  }

  /**
   * Returns the lease of a node that flannel or weft manages. `found` has the node's subnets, or the reason why they
   * are invalid.
   */
  #entry(node: NodeObject, found: NodeSubnets | string | undefined): Entry {
    return typeof found === 'object'
      ? entryOf(node, found, this.#names)
      : { key: node.metadata?.name ?? '', problem: found ?? 'it has no podCIDR' }
  }

  /**
   * Converts an added or modified node of the watch to a change of its lease. The watch delivers only metadata, so this
   * function reads the whole node if the node's subnets are not known.
   */
  async #changeOf(node: NodeObject, signal: AbortSignal): Promise<Change | undefined> {
    const { uid = '', name = '', resourceVersion = '' } = node.metadata ?? {}
    let found = node.spec ? this.#remember(node) : this.#subnets.get(uid)
    if (!isManaged(node, this.#names)) return typeof found === 'object' ? { kind: 'delete', key: found.key } : undefined
    if (found === undefined && !node.spec && name !== '') {
      // With a resourceVersion in the query, an API server may answer from its cache if the cache has at least that
      // version. A cached answer saves a query of etcd.
      const ask = { method: 'GET', path: `${NODES}/${encodeURIComponent(name)}`, query: { resourceVersion } } as const
      const whole = nodeOf(await this.#client.ask(ask, signal))
      if (whole.metadata?.uid !== uid) return undefined // the node was deleted; that event follows
      found = this.#remember(whole)
    }
    return { kind: 'put', entry: this.#entry(node, found) }
  }

  /** Returns the change of the leases after a node was deleted. */
  #gone(node: NodeObject): Change | undefined {
    const found = node.spec ? this.#remember(node) : this.#subnets.get(node.metadata?.uid ?? '')
    return typeof found === 'object' ? { kind: 'delete', key: found.key } : undefined
  }
}
