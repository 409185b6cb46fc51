// neighbours.ts - checks that the kernel's neighbour tables are large enough for the hosts and containers that this
// host reaches. Pure.

import { FAMILY_NAMES } from '../../net/address.ts'
import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'

/**
 * If more than this fraction of the neighbour table's hard limit is in use, the kernel may be unable to add many new
 * entries at a time.
 */
const FULL_SHARE = 0.9

export function checkNeighbours({ neighbours, status }: Facts): Finding[] | undefined {
  const known = (neighbours ?? []).flatMap(({ thresholds, ...table }) => (thresholds ? [{ ...table, thresholds }] : []))
  if (known.length === 0) return undefined
  return known.flatMap(({ family, entries, thresholds }): Finding[] => {
    const [, soft, hard] = thresholds
    const name = `net.${family}.neigh.default.gc_thresh`
    const peers = status?.peers?.stored ?? 0
    const wanted = 2 ** Math.ceil(Math.log2(Math.max(2 * hard, 2 * (entries + peers))))
    const fix = `\`sysctl -w ${name}3=${wanted} ${name}2=${wanted / 2} ${name}1=${wanted / 4}\`, and into a file of /etc/sysctl.d`
    const detail = `${FAMILY_NAMES[family]}: ${entries} entries, and ${name}2 is ${soft}, ${name}3 is ${hard}`
    if (entries >= FULL_SHARE * hard) return [{ name: 'neighbours-full', detail, fix }]
    if (entries > soft) return [{ name: 'neighbours-many', detail, fix }]
    // Each peer on the link takes an entry of the neighbour table while weftd probes the peer, so the table needs room
    // for all peers.
    return peers > FULL_SHARE * hard
      ? [{ name: 'neighbours-many', detail: `${detail}; there are ${peers} peers, which may each need an entry`, fix }]
      : []
  })
}
