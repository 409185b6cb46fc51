// peer-view.ts - what the store reports, turned into the leases there are and what has changed of them.
//
// Doing nothing twice is the point: a renewal is a put of the same lease, and must move no route.

import { leasesEqual, type Lease } from './lease.ts'

/** All leases of the network by key. */
export type PeerView = Map<string, Lease>

export type LeaseUpdate =
  | { readonly kind: 'snapshot'; readonly leases: ReadonlyMap<string, Lease> }
  | { readonly kind: 'changes'; readonly puts: readonly Lease[]; readonly deletes: readonly string[] }

export interface ViewChange {
  readonly view: PeerView
  readonly added: readonly Lease[]
  readonly changed: readonly Lease[]
  readonly removed: readonly Lease[]
}

/** Applies an update to `view`, which is changed in place, and says what differs by value. */
export function applyUpdate(view: PeerView, update: LeaseUpdate): ViewChange {
  const added: Lease[] = []
  const changed: Lease[] = []
  const removed: Lease[] = []
  const put = (lease: Lease): void => {
    const before = view.get(lease.key)
    if (!before) added.push(lease)
    else if (!leasesEqual(before, lease)) changed.push(lease)
    else return
    view.set(lease.key, lease)
  }
  const remove = (key: string): void => {
    const before = view.get(key)
    if (!before) return
    removed.push(before)
    view.delete(key)
  }
  if (update.kind === 'snapshot') {
    for (const key of view.keys()) if (!update.leases.has(key)) remove(key)
    for (const lease of update.leases.values()) put(lease)
  } else {
    for (const key of update.deletes) remove(key)
    for (const lease of update.puts) put(lease)
  }
  return { view, added, changed, removed }
}
