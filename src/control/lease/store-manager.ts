// store-manager.ts - makes a subnet manager (the interface to the leases of a network) for a compare-and-set store such
// as etcd.

import type { Log } from '../../base/log.ts'
import type { Store } from '../store/store.ts'
import { sourceOf } from './decode.ts'
import { holderOf } from './own-lease.ts'
import type { SubnetManager } from './subnet-manager.ts'

/**
 * Returns the subnet manager of a store. `eventLog` gets a line for each change of a lease, as flanneld's etcd manager
 * logs it.
 */
export function managerOf(store: Store, eventLog?: Pick<Log, 'info'>): SubnetManager {
  return {
    name: store.name,
    title: store.title,
    config: (signal) => store.config(signal),
    source: sourceOf(store, eventLog),
    holder: (config) => holderOf(store, config),
    claim: (name, value, signal) => store.claim(name, value, signal),
    claims: (since, signal) => store.claims(since, signal),
    unclaim: (name, value, signal) => store.unclaim(name, value, signal),
    close: () => store.close(),
  }
}
