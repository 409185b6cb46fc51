// no-kernel.ts - stands in for the kernel's interface until src/host/netlink/host-kernel.ts exists.

import type { HostKernel } from './kernel.ts'

export const hostKernel: HostKernel = new Proxy({} as HostKernel, {
  get: (_target, name) => () => Promise.reject(new Error(`not yet: HostKernel.${String(name)}`)),
})
