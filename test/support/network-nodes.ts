// network-nodes.ts - the nodes of a network, and their answers to the query for their views.

import type { QueriedNode } from '../../src/report/network-findings.ts'
import { networkReport, type NetworkReport } from '../../src/report/network-view.ts'
import type { NodeView, Sight } from '../../src/report/view.ts'

export const AT = '2026-11-22T10:00:00.000Z'
export const lease = (number: number): string => `10.5.${number}.0-24`

/** Returns the result of node `from`'s probes of node `to`; undefined if node `from` does not probe node `to`. */
export type Seeing = (from: number, to: number) => Partial<Sight> | undefined
export const all: Seeing = () => ({})

/** Makes `count` nodes that all return their views. */
export function nodesOf(
  count: number,
  seeing: Seeing,
  changed: (number: number) => Partial<Omit<QueriedNode, 'view'>> & { readonly view?: object } = () => ({}),
): QueriedNode[] {
  return Array.from({ length: count }, (_, at) => {
    const number = at + 1
    const seen = Array.from({ length: count }, (_each, other) => other + 1).flatMap((to): Sight[] => {
      const sight = to === number ? undefined : seeing(number, to)
      if (!sight) return []
      return [{ lease: lease(to), reach: 'reached', roundTripMs: 1, lossPercent: 0, passesBytes: null, ...sight }]
    })
    const view: NodeView = {
      schema: 1,
      at: AT,
      version: '1.0',
      hostname: `host${number}`,
      lease: lease(number),
      state: 'working',
      trouble: null,
      mtu: 1472,
      config: { network: '10.5.0.0/16' },
      peers: seen.length,
      seen,
    }
    const { view: other, ...rest } = changed(number)
    return {
      lease: lease(number),
      name: `host${number}`,
      subnet: `10.5.${number}.0/24`,
      publicIp: `192.0.2.${number}`,
      kind: 'told',
      why: null,
      clock: { aheadMs: 0, uncertainMs: 1 },
      ...rest,
      view: rest.kind !== undefined && rest.kind !== 'told' ? undefined : { ...view, ...other },
    } satisfies QueriedNode
  })
}
/** Returns the report of a network that answered within 5 ms. */
export const report = (nodes: readonly QueriedNode[]): NetworkReport => networkReport(nodes, AT, 5)
/** Lists the findings of the report, each as `NAME: DETAIL`. */
export const found = (nodes: readonly QueriedNode[]): readonly string[] =>
  report(nodes).findings.map(({ name, detail }) => `${name}: ${detail}`)
/** Returns the words with which findings name a node. */
export const call = (number: number): string => `host${number} (10.5.${number}.0/24 at 192.0.2.${number})`
/** The fields of a node that does not answer the query for its view. */
export const silent = (number: number) =>
  ({ kind: 'silent', why: 'it says nothing for 1.5 s', clock: undefined, name: `host${number}` }) as const
