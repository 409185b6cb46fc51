// fake-host.ts - a host for unit tests: a model kernel with the external interface eth0, and the log lines of the running test.

import { beforeEach } from 'vitest'
import type { Log } from '../../src/base/log.ts'
import { parseIpv4 } from '../../src/net/ipv4.ts'
import { ModelKernel } from './model-kernel.ts'

interface FakeHost {
  kernel: ModelKernel
  lines: string[]
}
/** The host of the running test. */
export let host: FakeHost

export function installHost(): void {
  beforeEach(() => {
    host = { kernel: new ModelKernel(), lines: [] }
    host.kernel.addLink({ name: 'eth0', index: 2 }, [{ address: parseIpv4('192.0.2.1')!, prefixLength: 24 }])
  })
}

/** Adds a TUN that a process has just opened. It is down, and has no address. */
export function addTun(name = 'flannel0', index = 9): void {
  const tun = { mode: 'tun', persist: false, isMultiQueue: false, openQueues: undefined } as const
  host.kernel.addLink({ name, index, mtu: 1500, queueLength: 500, up: false, type: 'tun', tun })
}

const say = (message: string): void => void host.lines.push(message)
export const log: Log = { info: say, warn: say, error: say, v: () => false }
