// alloc.ts - a lease and nothing on the host: something else brings the packets there, such as the routes of a cloud.
//
// As flanneld's (pkg/backend/alloc).

import type { Run } from '../host/command.ts'
import { currentExternal, type ExternalInterface } from '../host/external-interface.ts'
import type { Backend } from './backend.ts'
import { watchExternal } from './external-watch.ts'

export function createAllocBackend({ external: found, run }: { external: ExternalInterface; run: Run }): Backend {
  let external = found
  return {
    name: 'alloc',
    async prepare() {
      external = await currentExternal(run, external)
      return { publicIp: external.publicIp, backendType: '' }
    },
    async open() {
      const watch = watchExternal(run, external)
      return {
        mtu: external.mtu,
        fault: watch.moved,
        apply: async () => {},
        async resync() {
          await watch.hasMoved()
          return []
        },
        counters: () => ({}),
        threads: () => ({}),
        close: async () => {},
      }
    },
  }
}
