// data-paths.ts - opens the data paths of a backend as a node does, and makes the plan of a fake backend.

import type { Lease, OwnLease } from '../../src/control/lease/lease.ts'
import type { ExternalInterface } from '../../src/host/external-interface.ts'
import type { HostKernel } from '../../src/host/kernel.ts'
import { familiesOf } from '../../src/net/address.ts'
import { openDataPaths, type DataPaths } from '../../src/node/data-paths.ts'
import type { Backend, PlannedPath } from '../../src/path/contract.ts'
import { log as quiet } from './fake-host.ts'

/** Opens the data paths of a backend for this lease. */
export function openPaths(
  backend: Pick<Backend, 'plan' | 'external'>,
  lease: OwnLease,
  kernel: HostKernel,
  {
    leases = new Map<string, Lease>(),
    signal = new AbortController().signal,
    log = quiet,
  }: Partial<Pick<Parameters<typeof openDataPaths>[0], 'leases' | 'signal' | 'log'>> = {},
): Promise<DataPaths> {
  return openDataPaths({ backend, lease, leases, signal, kernel, log })
}

/** The external interface of a fake backend, whose data path does not depend on it. */
export const EXTERNAL: ExternalInterface = {
  name: 'eth0',
  mtu: 1500,
  address: {},
  publicIp: {},
  named: { address: {}, publicIp: {} },
}

/** Returns the plan of a backend with one data path, which carries all families of the lease. */
export const planOf =
  (open: PlannedPath['open'], mtu = 1472): Backend['plan'] =>
  (lease) => [{ families: familiesOf(lease.subnet), mtu, open }]
