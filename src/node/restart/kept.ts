// kept.ts - what a daemon that has ended left open in the service manager's keeping (sd_notify(3), FDSTORE; the other side is
// report/notify.ts), and what was last known of it.

import { closeAll } from '../../host/unix-socket.ts'
import type { Nets } from '../../net/address.ts'
import type { OpenPath } from '../../path/engine/engine.ts'
import type { LastKnown } from './last-known.ts'
import { unpackPaths } from './open-path.ts'

export interface Kept {
  /** The TUN devices of the daemon before. */
  readonly tunNames: readonly string[]
  /** The subnets of the daemon before, for which its paths were opened; undefined if they are not known. */
  readonly subnets?: Nets | undefined
  /** The paths, once; none where none were kept. */
  take(): readonly OpenPath[]
  /** Closes descriptors that nobody took. Idempotent. */
  close(): void
}

/** First descriptor that a service manager passes (sd_listen_fds(3), SD_LISTEN_FDS_START). */
const FIRST_KEPT_FD = 3
const KEPT_NAME = 'weft-'

/** The name in the service manager's keeping of the descriptor at a place. */
export const keptName = (place: number): string => `${KEPT_NAME}${place}`

/**
 * The descriptors that the service manager kept for this process, in their order; their variables are taken out of
 * `environment`.
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

/** Matches the kept descriptors with their description in `known`. If `store` is given and differs, closes the descriptors. */
export function createKept(
  fds: readonly number[],
  known: (Pick<LastKnown, 'tunNames' | 'paths'> & Partial<Pick<LastKnown, 'store' | 'lease'>>) | undefined,
  store?: string,
): Kept {
  const isAnothers = store !== undefined && known?.store !== undefined && known.store !== store
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
