// needs.ts - what a file's tests need of the machine: where it is not to be had, each of them is a skip that says so.

import { spawnSync } from 'node:child_process'
import { accessSync, constants, existsSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach } from 'vitest'

/** To make hosts of network namespaces, with TUN devices. */
export const HOSTS = "root's right to make network namespaces, and /dev/net/tun"
/** To run an etcd and ask it. */
export const ETCD = ['etcd', 'etcdctl'] as const

/** To ask a real API server; its path is in this variable. */
export const KUBE_APISERVER = 'a real kube-apiserver, which `npm run test:kube` builds'

/** To run Helm, whose path is in this variable. */
export const HELM = 'Helm, which `npm run test:kube` fetches'

function canMakeHosts(): boolean {
  if (spawnSync('unshare', ['--net', '--mount', 'true']).status !== 0) return false
  try {
    accessSync('/dev/net/tun', constants.R_OK | constants.W_OK)
    return process.getuid?.() === 0
  } catch {
    return false
  }
}

const isThere = (what: string): boolean =>
  what === HOSTS
    ? canMakeHosts()
    : what === KUBE_APISERVER
      ? Boolean(process.env['WEFT_KUBE_APISERVER'])
      : what === HELM
        ? Boolean(process.env['WEFT_HELM'])
        : (process.env['PATH'] ?? '').split(':').some((folder) => existsSync(join(folder, what)))

/**
 * Skips the tests of the file that calls it unless there is all of this: `HOSTS`, or programs by their names. Returns what
 * is missing, if anything, for a file that prepares something for all of its tests: nothing can skip that.
 */
export function needs(...what: readonly string[]): string | undefined {
  const missing = what.filter((each) => !isThere(each))
  if (missing.length === 0) return undefined
  const reason = `this machine lacks ${missing.join(', ')}`
  beforeEach(({ skip }) => skip(reason))
  return reason
}
