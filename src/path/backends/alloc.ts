// alloc.ts - the alloc backend, which only acquires a lease. Another program, such as a cloud's route controller, carries the packets. It
// behaves like flanneld's alloc (pkg/backend/alloc).

import type { Lease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { FAMILIES, formatAddress } from '../../net/address.ts'
import type { Backend, BackendParts } from '../contract.ts'
import { ExternalWatch } from '../device/external-watch.ts'

export function createAllocBackend({ external: found, run, log }: BackendParts<'alloc'>): Backend {
  let external = found
  return {
    name: 'alloc',
    devices: [],
    routesByOthers: true,
    get external() {
      return external
    },
    async prepare() {
      external = await currentExternal(run, external)
      return { publicIp: external.publicIp, backendType: '' }
    },
    async open() {
      const watch = new ExternalWatch(run, external)
      let applied: readonly Lease[] = []
      return {
        mtu: external.mtu,
        fault: watch.moved,
        get isOutdated() {
          return watch.isOutdated
        },
        renew: async () => watch.markPublished(log),
        async apply(leases, ownKey) {
          applied = [...leases.values()].filter(({ key }) => key !== ownKey)
        },
        async resync() {
          await watch.hasMoved()
          return []
        },
        gone: () => watch.gone(),
        carrier: () => ({ engine: 'none', features: [] }),
        peers: () =>
          applied.map(({ key, attrs: { publicIp } }) => ({
            key,
            ...Object.fromEntries(
              FAMILIES.flatMap((family) => {
                const host = publicIp[family]
                return host === undefined ? [] : [[family, { endpoint: formatAddress(host) }]]
              }),
            ),
          })),
        counters: () => ({}),
        threads: () => ({}),
        close: async () => {},
      }
    },
  }
}
