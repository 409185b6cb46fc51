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
  createdAt,
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

/** A managed node, with the entry of its lease. */
interface ManagedNode {
  readonly uid: string
  readonly createdAt: bigint
  readonly entry: Entry
}

/**
 * The managed nodes of each lease key. A key has several nodes if several Node objects have the same podCIDR, for
 * example after a host was renamed.
 */
type NodesByKey = Map<string, readonly ManagedNode[]>

/** Adds a managed node, or replaces the earlier state of the same node. */
function put(nodes: NodesByKey, node: ManagedNode): void {
  const others = (nodes.get(node.entry.key) ?? []).filter(({ uid }) => uid !== node.uid)
  nodes.set(node.entry.key, [...others, node])
}

function remove(nodes: NodesByKey, key: string, uid: string): void {
  const others = (nodes.get(key) ?? []).filter((node) => node.uid !== uid)
  if (others.length > 0) nodes.set(key, others)
  else nodes.delete(key)
}

/** Returns the node that was created last, because older Node objects with the same lease key are out of date. */
const newest = (nodes: readonly ManagedNode[]): ManagedNode | undefined =>
  nodes.toSorted((a, b) => Number(a.createdAt - b.createdAt)).at(-1)

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
  #managed: NodesByKey = new Map()
  /**
   * The uids of the nodes that the watch reported since the last listing began. The listing may have an older state of
   * these nodes than the watch.
   */
  readonly #watched = new Set<string>()

  constructor(client: KubeClient, names: AnnotationNames) {
    this.#client = client
    this.#names = names
  }

  async list(signal: AbortSignal): Promise<{ cursor: bigint; entries: Entry[] }> {
    this.#watched.clear()
    const found = new Set<string>()
    const managed: NodesByKey = new Map()
    const invalid: Entry[] = []
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
        if (!isManaged(node, this.#names)) continue
        const listed = this.#managedNode(node, known)
        if (typeof known === 'object') put(managed, listed)
        else invalid.push(listed.entry)
      }
      ;({ next } = page)
    } while (next !== '')
    const entries = [...managed.values()].flatMap((nodes) => newest(nodes)?.entry ?? [])
    this.#takeListing(found, managed)
    return { cursor, entries: [...entries, ...invalid] }
  }

  /** Replaces the known nodes by the nodes of a listing, but keeps what the watch reported during the listing. */
  #takeListing(found: ReadonlySet<string>, managed: NodesByKey): void {
    const before = this.#managed
    for (const uid of this.#subnets.keys()) if (!found.has(uid) && !this.#watched.has(uid)) this.#subnets.delete(uid)
    for (const [key, nodes] of managed)
      for (const { uid } of nodes) if (this.#watched.has(uid)) remove(managed, key, uid)
    for (const nodes of before.values()) for (const node of nodes) if (this.#watched.has(node.uid)) put(managed, node)
    this.#managed = managed
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
   * Returns a node that flannel or weft manages, with the entry of its lease. `found` has the node's subnets, or the
   * reason why they are invalid.
   */
  #managedNode(node: NodeObject, found: NodeSubnets | string | undefined): ManagedNode {
    const { uid = '', name = '' } = node.metadata ?? {}
    const entry =
      typeof found === 'object'
        ? entryOf(node, found, this.#names)
        : { key: name, problem: found ?? 'it has no podCIDR' }
    return { uid, createdAt: createdAt(node) ?? 0n, entry }
  }

  /**
   * Converts an added or modified node of the watch to a change of its lease. The watch delivers only metadata, so this
   * function reads the whole node if the node's subnets are not known.
   */
  async #changeOf(node: NodeObject, signal: AbortSignal): Promise<Change | undefined> {
    const { uid = '', name = '', resourceVersion = '' } = node.metadata ?? {}
    let found = node.spec ? this.#remember(node) : this.#subnets.get(uid)
    if (!isManaged(node, this.#names)) return this.#without(uid, found)
    if (found === undefined && !node.spec && name !== '') {
      // With a resourceVersion in the query, an API server may answer from its cache if the cache has at least that
      // version. A cached answer saves a query of etcd.
      const ask = { method: 'GET', path: `${NODES}/${encodeURIComponent(name)}`, query: { resourceVersion } } as const
      const whole = nodeOf(await this.#client.ask(ask, signal))
      if (whole.metadata?.uid !== uid) return undefined // the node was deleted; that event follows
      found = this.#remember(whole)
    }
    const present = this.#managedNode(node, found)
    this.#watched.add(uid)
    if (typeof found !== 'object') return { kind: 'put', entry: present.entry }
    put(this.#managed, present)
    return this.#changeAt(found.key)
  }

  /** Returns the change of the leases after a node was deleted. */
  #gone(node: NodeObject): Change | undefined {
    const { uid = '' } = node.metadata ?? {}
    // Keep the node's subnets until the next listing. If the watch fails before the caller gets this change, the next
    // watch reports the deletion again, and then this function needs the subnets again.
    return this.#without(uid, node.spec ? this.#remember(node) : this.#subnets.get(uid))
  }

  /** Returns the change of the leases after a node was deleted, or is no longer managed by flannel or weft. */
  #without(uid: string, found: NodeSubnets | string | undefined): Change | undefined {
    this.#watched.add(uid)
    if (typeof found !== 'object') return undefined
    remove(this.#managed, found.key, uid)
    return this.#changeAt(found.key)
  }

  #changeAt(key: string): Change {
    const node = newest(this.#managed.get(key) ?? [])
    return node ? { kind: 'put', entry: node.entry } : { kind: 'delete', key }
  }
}
