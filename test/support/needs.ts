// needs.ts - what a file's tests need of the machine: where it is not to be had, each of them is a skip that says so.

import { beforeEach } from 'vitest'
import { isThere, NEEDS, sayLack, type Need } from '../../scripts/machine.mjs'

export { HELM, HOSTS, KUBE_APISERVER, NODE } from '../../scripts/machine.mjs'

/** The programs to run an etcd and ask it. */
export const ETCD = ['etcd', 'etcdctl'] as const

/**
 * Says which of these is missing, and how it is had: `HOSTS` and the like, or programs, by their names in
 * scripts/machine.mjs.
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
 * Skips the tests of the file that calls it unless there is all of this. Returns what is missing, if anything, for a file that
 * prepares something for all of its tests: nothing can skip that.
 */
export function needs(...what: readonly string[]): string | undefined {
  const reason = lackOf(...what)
  if (reason !== undefined) beforeEach(({ skip }) => skip(reason))
  return reason
}
