// path-programs.ts - lists the eBPF programs, tc filters and lossy queueing disciplines of an interface, which may drop
// packets although no firewall rule does.

import { addon } from './addon.ts'
import type { Link } from './kernel.ts'

/** Something on an interface that may drop packets, in words such as `an XDP program`. */
export interface PathProgram {
  readonly device: string
  readonly what: string
}

/** The queueing disciplines that lose or hold packets on purpose (tc-netem(8), linux/net/sched/sch_plug.c). */
const LOSSY = new Set(['netem', 'blackhole', 'plug'])
/** The beginning of the names of weft's own programs. */
const OWN = 'weft-'

/** The functions of the addon that list programs and filters. */
type TrafficControl = Pick<typeof addon, 'listFilters' | 'tcxPrograms'>

/** Lists these objects of an interface in words, without weft's own. Leaves out lists that the kernel refuses to give. */
export async function programsOn(
  { index, hasXdp, queueDiscipline }: Pick<Link, 'index' | 'hasXdp' | 'queueDiscipline'>,
  tc: TrafficControl = addon,
): Promise<readonly string[]> {
  const hooks = [false, true].map((isEgress) => ({ index, isEgress }))
  const [counts, filters] = await Promise.all([
    Promise.all(hooks.map((hook) => tc.tcxPrograms(hook).catch(() => 0))),
    Promise.all(hooks.map((hook) => tc.listFilters(hook).catch(() => []))),
  ])
  const others = filters.flat().filter(({ name }) => !name.startsWith(OWN))
  // For the qdisc `ingress` the kernel lists the same filters at both hooks.
  const names = new Set(others.map(({ name, kind }) => `the tc filter ${name || kind}`))
  return [
    ...(hasXdp === true ? ['an XDP program'] : []),
    ...(LOSSY.has(queueDiscipline) ? [`the queueing discipline ${queueDiscipline}`] : []),
    ...(counts.some((count) => count > 0) ? ['tcx programs'] : []),
    ...names,
  ]
}
