// alloc.ts - the alloc backend, which only acquires a lease. Another program, such as a cloud's route controller,
// carries the packets. The backend behaves like flanneld's alloc (pkg/backend/alloc).

import type { Lease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { FAMILIES, familiesOf, formatAddress, type Family } from '../../net/address.ts'
import type { Backend, BackendParts, DataPath } from '../contract.ts'

export function createAllocBackend({ config, external: found, kernel }: BackendParts<'alloc'>): Backend {
  let external = found
  return {
    name: 'alloc',
    devices: [],
    routesByOthers: true,
    get external() {
      return external
    },
    async prepare() {
      external = await currentExternal(kernel, external)
      return { publicIp: external.publicIp, backendType: '' }
    },
    plan: () => [
      {
        families: familiesOf(config),
        mtu: external.mtu,
        external: { families: FAMILIES, isBound: true },
        open: async () => openAlloc(familiesOf(config)),
      },
    ],
  }
}

/** Opens a data path that forwards no packets, and only keeps the list of peers for the status report. */
function openAlloc(families: readonly Family[]): DataPath {
  let applied: readonly Lease[] = []
  return {
    families,
    fault: new Promise(() => {}),
    async apply(leases, ownKey) {
      applied = [...leases.values()].filter(({ key }) => key !== ownKey)
    },
    resync: async () => [],
    unusable: () => new Set(),
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
    close: async () => {},
  }
}
