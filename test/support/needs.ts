// needs.ts - what a file's tests need of the machine. If the machine lacks it, each test is skipped with a reason.

import { beforeEach } from 'vitest'
import { isThere, NEEDS, sayLack, type Need } from '../../scripts/machine.mjs'

export { CHARON, CHART_TOOLS, GCM, HELM, HOSTS, KUBE_APISERVER, LIBIPSEC, NODE, VICI } from '../../scripts/machine.mjs'

/** The programs that run an etcd and query it. */
export const ETCD = ['etcd', 'etcdctl'] as const

/**
 * Returns which of these is missing, and how to get it; `what` has `HOSTS` and the like, or programs by their names in scripts/machine.mjs.
 */
export function lackOf(...what: readonly string[]): string | undefined {
  const missing = what.map(needNamed).filter((need) => !isThere(need))
  return missing.length === 0 ? undefined : sayLack(missing)
}

function needNamed(name: string): Need {
  const need = NEEDS.find((each) => each.name === name)
  if (need === undefined) throw new Error(`scripts/machine.mjs does not know how ${name} is had`)
  return need
}

/**
 * Skips the tests of the calling file unless the machine has all of this. Returns what is missing, if anything, for a file with a shared
 * preparation, because hooks cannot be skipped.
 */
export function needs(...what: readonly string[]): string | undefined {
  const reason = lackOf(...what)
  if (reason !== undefined) beforeEach(({ skip }) => skip(reason))
  return reason
}
