// earlier-run.ts - the data paths that an earlier run of weftd left: its devices, and the descriptors that the service
// manager kept open (sd_notify(3), FDSTORE). report/notify.ts gives descriptors to the service manager.

import { closeAll } from '../../host/unix-socket.ts'
import type { Nets } from '../../net/address.ts'
import type { OpenPath } from '../../path/engine/engine.ts'
import { isSameStore, type LastKnown } from './last-known.ts'
import { unpackPaths } from './open-path.ts'

export interface EarlierRun {
  /** The names of the TUN devices of the earlier run. */
  readonly tunNames: readonly string[]
  /** The subnets for which the earlier run opened its data paths; undefined if they are not known. */
  readonly subnets?: Nets | undefined
  /** On the first call, returns the data paths that the service manager kept. Returns an empty list on later calls. */
  take(): readonly OpenPath[]
  /** Closes the descriptors that `take` did not return. A second call has no effect. */
  close(): void
}

/** The number of the first descriptor that a service manager passes (sd_listen_fds(3), SD_LISTEN_FDS_START). */
const FIRST_KEPT_FD = 3
const KEPT_NAME = 'weft-'

/**
 * Returns the name under which the service manager keeps the descriptor at the index `place` of the list of
 * descriptors.
 */
export const keptName = (place: number): string => `${KEPT_NAME}${place}`

/**
 * Returns the descriptors that the service manager kept for this process, in their order. Removes from `environment`
 * the variables that describe these descriptors.
 */
export function takeKept(environment: NodeJS.ProcessEnv, pid: number): number[] {
  const { LISTEN_PID: listener, LISTEN_FDNAMES: names = '' } = environment
  for (const name of ['LISTEN_PID', 'LISTEN_FDS', 'LISTEN_FDNAMES']) delete environment[name]
  if (listener !== String(pid)) return []
  return names
    .split(':')
    .map((name, index) => ({ name, fd: FIRST_KEPT_FD + index }))
    .filter(({ name }) => name.startsWith(KEPT_NAME))
    .toSorted((a, b) => Number(a.name.slice(KEPT_NAME.length)) - Number(b.name.slice(KEPT_NAME.length)))
    .map(({ fd }) => fd)
}

/**
 * Combines the descriptors that the service manager kept with their description in the last known state `known`. Closes
 * the descriptors if `known` describes another store than `store`.
 */
export function earlierRun(
  fds: readonly number[],
  known: (Pick<LastKnown, 'tunNames' | 'paths'> & Partial<Pick<LastKnown, 'store' | 'lease'>>) | undefined,
  store: string,
): EarlierRun {
  const isAnothers = known?.store !== undefined && !isSameStore(known.store, store)
  if (isAnothers) closeAll(fds)
  let left = isAnothers ? [] : fds
  return {
    tunNames: known?.tunNames ?? [],
    subnets: known?.lease?.subnet,
    take() {
      const open = unpackPaths(known?.paths, left)
      if (open.length > 0) left = []
      return open
    },
    close() {
      closeAll(left)
      left = []
    },
  }
}
