// entry-event.ts - reports of the kernel about neighbour and forwarding entries, made of lines as `ip monitor neigh` prints them.

import type { KernelEvent } from '../../src/host/kernel.ts'
import { parseAddress } from '../../src/net/address.ts'

/** Returns the report that a line such as `Deleted 10.0.3.0 dev flannel.1 lladdr 02:00:00:00:00:03 PERMANENT` describes. */
export function entryEvent(line: string, deviceIndex: number): KernelEvent {
  const [, deleted, name = '', mac = '', state = ''] =
    /^(Deleted )?(\S+) dev \S+ (?:lladdr (\S+) )?(.*)$/.exec(line.trimEnd()) ?? []
  const address = parseAddress(name)
  if (address === undefined) throw new Error(`no address: ${line}`)
  const gone = deleted !== undefined
  const states = state.split(' ')
  if (states.includes('NOARP'))
    return { of: 'forwarding', forwarding: { deviceIndex, mac, host: address, isPermanent: true }, gone }
  return { of: 'neighbour', neighbour: { deviceIndex, address, mac, states }, gone }
}
