// alloc.ts - a lease and nothing on the host: something else brings the packets there, such as the routes of a cloud.
//
// As flanneld's (pkg/backend/alloc).

import type { Run } from '../host/command.ts'
import { changeOf, currentExternal, type ExternalInterface } from '../host/external-interface.ts'
import type { Backend } from './backend.ts'

export function createAllocBackend({ external: found, run }: { external: ExternalInterface; run: Run }): Backend {
  let external = found
  return {
    name: 'alloc',
    async prepare() {
      external = await currentExternal(run, external)
      return { publicIp: external.publicIp, backendType: '' }
    },
    async open() {
      let moved!: (reason: Error) => void
      const fault = new Promise<Error>((resolve) => (moved = resolve))
      return {
        mtu: external.mtu,
        fault,
        apply: async () => {},
        async resync() {
          const change = changeOf(external, await currentExternal(run, external))
          if (change !== undefined) moved(new Error(change))
          return []
        },
        counters: () => ({}),
        threads: () => ({}),
        close: async () => {},
      }
    },
  }
}
