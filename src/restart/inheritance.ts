// inheritance.ts - what a daemon goes on with that another one opened: one that still runs, or one that left it in the service
// manager's keeping (sd_notify(3), FDSTORE; the other side is status/notify.ts).

import type { OpenPath } from '../dataplane/engine.ts'
import { isNamedBy } from '../host/links.ts'
import { closeAll } from '../host/unix-socket.ts'
import type { Holder } from './handover.ts'
import type { LastKnown } from './last-known.ts'
import { fdsOf, unpackPath } from './open-path.ts'

/** What an engine is to be opened for. */
export interface WantedPath extends Pick<OpenPath, 'bindAddress' | 'port' | 'without'> {
  /** Or a pattern such as `flannel%d`. */
  readonly tunName: string
  readonly workers: number
}

export interface Inheritance {
  /** The TUN device of the daemon before. */
  readonly tunName: string | undefined
  /** Whether another daemon runs, or ran when this was asked first. */
  readonly isHeir: boolean
  /** Resolves when no other daemon runs. */
  readonly settled: Promise<void>
  /**
   * The path, if there is one that was opened for the same; whoever runs stops forwarding by it. Where there is none, the
   * other daemon has ended when this resolves, and what it held is free.
   */
  take(wanted: WantedPath): Promise<OpenPath | undefined>
  /** Ends the other daemon, if there is one: this process forwards now. Resolves when it has ended. */
  settle(): Promise<void>
  /** Of what nobody took. */
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

/** `kept` are the descriptors that the service manager had; what was last known has their description. */
export function createInheritance(
  holder: Holder | undefined,
  kept: readonly number[],
  known: Pick<LastKnown, 'tunName' | 'path'> | undefined,
): Inheritance {
  let left = kept
  let isSettled = holder === undefined
  let resolve: () => void = () => {}
  const settled = new Promise<void>((done) => (resolve = done))
  if (isSettled) resolve()
  const closeLeft = (): void => {
    closeAll(left)
    left = []
  }
  async function settle(): Promise<void> {
    if (isSettled) return
    isSettled = true
    try {
      await holder?.end()
    } finally {
      holder?.close()
    }
    resolve()
  }
  /** Of a daemon that runs, else what is kept. */
  async function path(): Promise<OpenPath | undefined> {
    if (!isSettled) return holder?.takePath()
    const open = unpackPath(known?.path, left)
    if (open) left = []
    return open
  }
  return {
    tunName: known?.tunName,
    isHeir: holder !== undefined,
    settled,
    async take(wanted) {
      const open = await path()
      if (open && fits(open, wanted)) return open
      if (open) closeAll(fdsOf(open))
      await settle()
      closeLeft()
      return undefined
    },
    settle,
    close() {
      closeLeft()
      holder?.close()
    },
  }
}

/** Whether opening it now would give the same. */
function fits(path: OpenPath, { tunName, bindAddress, port, workers, without }: WantedPath): boolean {
  return (
    isNamedBy(tunName, path.tunName) &&
    path.bindAddress === bindAddress &&
    path.port === port &&
    path.loops.length === workers &&
    path.without.toSorted().join() === without.toSorted().join()
  )
}
