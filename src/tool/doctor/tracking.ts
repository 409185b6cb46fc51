// tracking.ts - checks that the kernel's connection tracking table (conntrack) has room for new connections. Pure.

import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'

/** If more than this fraction of the connection tracking table is in use, the kernel soon drops new connections. */
const FULL_SHARE = 0.95

/** Checks that the kernel can track new connections. The kernel has no limit if the limit is 0. */
export function checkTracking({ tracking }: Facts): Finding[] {
  if (!tracking || tracking.limit === 0 || tracking.entries < FULL_SHARE * tracking.limit) return []
  const setting = 'net.netfilter.nf_conntrack_max'
  const detail = `${tracking.entries} connections, and ${setting} is ${tracking.limit}`
  const fix = `run \`sysctl -w ${setting}=${2 * tracking.limit}\`, write this setting into a file of /etc/sysctl.d, and find with \`conntrack -L\` which host or container has the many connections`
  return [{ name: 'tracking-full', detail, fix }]
}
