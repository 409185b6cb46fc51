// node-source.ts - the nodes of the Kubernetes API as a source of leases.
//
// A node is written again for each heartbeat, and most of it (images, conditions, capacity) means nothing here. So what is
// watched is its metadata, which has the annotations; what that lacks is the podCIDR, which never changes in a node's life: a
// listing brings it for all, and a node that is new since then is asked for once.

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

export const NODES = '/api/v1/nodes'
const PAGE = 500
/**
 * A watch lasts this long or up to twice as long, at random, as with client-go's reflectors: nodes that started
 * together part.
 */
const WATCH_S = 300
/** A watch that ends sooner without a word is not asked for again at once. */
const SHORT_MS = 5_000
/** A listing has all of each node: of so many nodes it is asked for no more often than this times their number. */
const RELIST_MS_PER_NODE = 3_000

/** A part of a listing, or all of it. */
interface NodeList {
  readonly version: bigint
  /** The token of the next page; empty when there is none. */
  readonly next: string
  readonly nodes: readonly NodeObject[]
}

/** Throws WeftError STORE_UNAVAILABLE for what is no listing. */
export function nodeListOf(value: unknown): NodeList {
  const { metadata, items } = membersOf(value)
  const { resourceVersion, continue: next = '' } = membersOf(metadata)
  const nodes = Array.isArray(items) ? items.map(nodeOf) : []
  return { version: versionOf(resourceVersion), next: typeof next === 'string' ? next : '', nodes }
}

/** Versions come from etcd, one counter for all: they compare as numbers (Kubernetes KEP-5504, which made it a promise). */
function versionOf(text: unknown): bigint {
  if (typeof text === 'string' && /^\d{1,20}$/.test(text)) return BigInt(text)
  throw new WeftError('STORE_UNAVAILABLE', `the Kubernetes API names a resourceVersion ${JSON.stringify(text ?? '')}`)
}

export function createNodeSource(client: KubeClient, names: AnnotationNames): LeaseSource<bigint> {
  /** The subnets that each node was given, by its uid. */
  const subnets = new Map<string, NodeSubnets | string>()

  const remember = (node: NodeObject): NodeSubnets | string | undefined => {
    const { uid = '' } = node.metadata ?? {}
    const found = subnetsOf(node)
    if (found !== undefined && uid !== '') subnets.set(uid, found)
    return found
  }
  /** The entry of a managed node; `found` are its subnets. */
  const entry = (node: NodeObject, found: NodeSubnets | string | undefined): Entry =>
    typeof found === 'object'
      ? entryOf(node, found, names)
      : { key: node.metadata?.name ?? '', problem: found ?? 'it has no podCIDR' }

  /** The change that an added or modified node means; the whole node is asked for when its subnets are not known. */
  async function changeOf(node: NodeObject, signal: AbortSignal): Promise<Change | undefined> {
    const { uid = '', name = '', resourceVersion = '' } = node.metadata ?? {}
    let found = node.spec ? remember(node) : subnets.get(uid)
    if (!isManaged(node, names)) return typeof found === 'object' ? { kind: 'delete', key: found.key } : undefined
    if (found === undefined && !node.spec && name !== '') {
      // Whichever server answers is to know what this one told; from its cache, as it need not be newer.
      const ask = { method: 'GET', path: `${NODES}/${encodeURIComponent(name)}`, query: { resourceVersion } } as const
      const whole = nodeOf(await client.ask(ask, signal))
      if (whole.metadata?.uid !== uid) return undefined // its end is on its way
      found = remember(whole)
    }
    return { kind: 'put', entry: entry(node, found) }
  }

  return {
    name: 'kubernetes',

    async list(signal) {
      const before = [...subnets.keys()]
      const found = new Set<string>()
      const entries: Entry[] = []
      let cursor: bigint | undefined
      let next = ''
      do {
        const query = { limit: String(PAGE), ...(next === '' ? {} : { continue: next }) }
        let page: NodeList
        try {
          page = nodeListOf(await client.ask({ method: 'GET', path: NODES, query }, signal))
        } catch (error) {
          // The first page's revision was compacted away meanwhile: begun again, as if the server had been away.
          if (!(error instanceof WeftError) || error.code !== 'GAP') throw error
          throw new WeftError('STORE_UNAVAILABLE', error.message)
        }
        cursor ??= page.version
        for (const node of page.nodes) {
          const known = remember(node)
          found.add(node.metadata?.uid ?? '')
          if (isManaged(node, names)) entries.push(entry(node, known))
        }
        ;({ next } = page)
      } while (next !== '')
      // Nodes that are gone are forgotten; nodes that the watch learnt of meanwhile stay.
      for (const uid of before) if (!found.has(uid)) subnets.delete(uid)
      return { cursor, entries }
    },

    async *watch(after, signal) {
      let cursor = after
      for (;;) {
        const began = performance.now()
        let isHeard = false
        const query = { resourceVersion: String(cursor), allowWatchBookmarks: 'true' }
        const seconds = Math.round(WATCH_S * (1 + Math.random()))
        for await (const events of client.watch(NODES, query, seconds, signal)) {
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
              type === 'DELETED' ? gone(node) : type === 'BOOKMARK' ? undefined : await changeOf(node, signal)
            if (change) changes.push(change)
            cursor = versionOf(node.metadata?.resourceVersion)
            isHeard = true
          }
          yield { cursor, changes }
        }
        if (!isHeard && performance.now() - began < SHORT_MS)
          throw new WeftError('STORE_UNAVAILABLE', 'the watch ended as soon as it began')
      }
    },

    isAfter: (a, b) => a > b,
    trustedMs: (leases) => leases * RELIST_MS_PER_NODE,
  }

  function gone(node: NodeObject): Change | undefined {
    const found = node.spec ? remember(node) : subnets.get(node.metadata?.uid ?? '')
    return typeof found === 'object' ? { kind: 'delete', key: found.key } : undefined
  }
}
