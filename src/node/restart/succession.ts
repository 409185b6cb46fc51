// succession.ts - how this process comes to forward for its host, and lets go of it: alone, after one that has ended, or after one
// that runs until this one has shown that it can.
//
//   claim    -> the lock is free: this process is the host's. It goes on as last known, at once, and serves successors from here on
//            -> another one has it: this process is its successor. It prepares while that one forwards (`standing by`), and goes on as last
//               known should that one end
//   opening  -> what is there when the node opens its data path: resumed, or to be taken from the predecessor by `take`
//   settle   -> this process is the node: the predecessor ends, and then this one serves successors
//
// The backend sees `take` alone.

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { parseLeaseKey } from '../../control/lease/lease.ts'
import { pause } from '../../host/bell.ts'
import { isNamedBy } from '../../host/links.ts'
import { createTurn } from '../../host/turn.ts'
import { closeAll } from '../../host/unix-socket.ts'
import { FAMILIES, formatNet, type Nets } from '../../net/address.ts'
import type { OpenPath } from '../../path/engine/engine.ts'
import type { Kept } from './kept.ts'
import { fdsOf } from './open-path.ts'
import { serveSuccessors, type Estate } from './predecessor.ts'
import type { About } from './protocol.ts'
import type { Lock, Rendezvous } from './rendezvous.ts'
import { predecessorAt, type Predecessor } from './successor.ts'

/** Within which a process that has the lock is to be met: it may be about to listen, or to end. */
const MEET_MS = 5_000
const MEET_RETRY_MS = 50
const RESUME_RETRY_MS = 1_000
/** Within which a predecessor ends that was told to: it kills itself after five seconds (weftd.ts). */
const END_MS = 6_000

/** The values that an engine is to be opened for. */
export interface WantedPath extends Pick<OpenPath, 'bindAddress' | 'port' | 'without'> {
  /** This node's subnets that the engine must carry; a path for other subnets belongs to another network. If left out, any path fits. */
  readonly subnets?: Nets
  /** Or a pattern such as `flannel%d`. */
  readonly tunName: string
  readonly workers: number
}

/** A backend's requests to whoever forwarded before. */
export interface Inheritance {
  /** The TUN devices of the daemon before. */
  readonly tunNames: readonly string[]
  /**
   * The path, if there is one that was opened for the same: nobody forwards by it then. Where there is none, what another daemon
   * had open is free when this resolves, but for paths that were opened for something else, which wait for whoever asks for them.
   * Throws WeftError DEVICE when that one hangs.
   */
  take(wanted: WantedPath): Promise<OpenPath | undefined>
}

export interface Succession<Resumed> extends Inheritance {
  /** The running daemon's description of itself; undefined when none runs. */
  predecessor(): Promise<(About & { readonly pid: number }) | undefined>
  /** True when, at the start, another daemon had what only one can have: ports and sockets. */
  readonly isSuccessor: boolean
  /** Resolves when no other daemon has any of it. */
  readonly free: Promise<void>
  /** The data path that forwards as last known now. */
  readonly resumed: Resumed | undefined
  /** Gives up resuming for good: from here on this process waits no more for the end of another. */
  opening(): Promise<Resumed | undefined>
  /** Makes the predecessor stop, whatever it forwarded through. Without one, closes the descriptors that the service manager kept. */
  release(): Promise<void>
  /** This process is the node. */
  settle(): void
  /** True when the data path goes back to the predecessor, should this process end now. */
  readonly isOnLoan: boolean
  /**
   * Closes what nobody took. The lock goes last, with its file where this process `wasIdle`: it left nothing that the
   * next one could find.
   */
  close(wasIdle: boolean): void
}

export interface SuccessionParts<Resumed> {
  readonly rendezvous: Rendezvous
  readonly estate: Omit<Estate, 'lock' | 'kill'>
  /** The descriptors that the service manager kept, and the device that was last known. */
  readonly kept: () => Promise<Kept>
  /** Goes on as the daemon before did; `nothing` where there is nothing to go on with, `failed` where trying again may help. */
  readonly resume: (inheritance: Inheritance) => Promise<Resumed | 'nothing' | 'failed'>
  /** Checks that a running daemon may be succeeded. Throws WeftError DEVICE. */
  readonly check: (about: About) => void
  readonly log: Log
  readonly stopping: AbortController
}

/** Resolves when it is known who forwards: this process, if it could go on as last known, or another one. */
export async function enterSuccession<Resumed>(parts: SuccessionParts<Resumed>): Promise<Succession<Resumed>> {
  const { rendezvous, log, stopping } = parts
  const { signal } = stopping
  let lock: Lock | undefined
  let predecessor: Predecessor | undefined
  let kept: Kept | undefined
  /** The paths of the daemon before that nobody has asked for yet. */
  let untaken: readonly OpenPath[] = []
  /** The subnets that these paths were opened for; undefined if they are not known. */
  let subnetsBefore: Nets | undefined
  /** True when the predecessor has nothing open any more. */
  let isReleased: boolean = false
  let resumed: Resumed | undefined
  let isOpening: boolean = false
  let isSettled: boolean = false
  let isClosed: boolean = false
  /** True when going on as last known failed, and is tried again. */
  let isUnresumed: boolean = false
  let setFree!: () => void
  const free = new Promise<void>((resolve) => (setFree = resolve))
  let open!: () => void
  const opens = new Promise<void>((resolve) => (open = resolve))

  /** True when another process has the lock too, or had it. */
  let isShared: boolean = false
  const estate: Estate = {
    ...parts.estate,
    lend() {
      isShared = true
      return parts.estate.lend()
    },
    release() {
      isShared = true
      return parts.estate.release()
    },
    async takeBack(why) {
      lock?.sign()
      await parts.estate.takeBack(why)
    },
    lock: () => lock?.fd,
    kill: (pid) => rendezvous.kill(pid),
  }
  const fail = (error: unknown): void => stopping.abort(error)

  function serve(): void {
    let listener: ReturnType<Rendezvous['listen']>
    try {
      listener = rendezvous.listen()
    } catch (error) {
      log.warn(`The next weftd cannot take over from this one while it runs: ${(error as Error).message}`)
      return
    }
    serveSuccessors(listener, estate, signal).catch((error: unknown) => {
      if (!signal.aborted) fail(error)
    })
  }

  /** Takes the lock, or finds whoever has it; that one may be between two states. */
  async function claim(): Promise<void> {
    const until = performance.now() + MEET_MS
    for (;;) {
      lock = rendezvous.tryLock()
      const met = await meet()
      if (met && lock) {
        // One that is just ending lets go of its lock before its socket.
        lock.close()
        lock = undefined
        met.close()
      } else if (lock) {
        return
      } else if (met) {
        predecessor = met
        void met.takenBack.then(() => {
          fail(
            new WeftError(
              'DEVICE',
              'the weftd that this one was to take over from forwards again, since this one did nothing for too long',
              {
                remedy: 'start the new weftd again',
              },
            ),
          )
        })
        return
      }
      if (performance.now() > until) {
        const pid = met?.pid ?? rendezvous.owner()
        throw new WeftError(
          'DEVICE',
          `another weftd runs on this host (pid ${pidOf(pid)}) and does not answer at ${rendezvous.path}`,
          {
            remedy: `end the running weftd${pid ? ` (kill -9 ${pid})` : ''}, then start the new one`,
          },
        )
      }
      await pause(signal, MEET_RETRY_MS)
    }
  }

  /** Undefined when nobody listens, or whoever did has just ended. */
  async function meet(): Promise<Predecessor | undefined> {
    let connection: ReturnType<Rendezvous['connect']>
    try {
      connection = rendezvous.connect()
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EAGAIN') return undefined // it listens, and is behind
      throw new WeftError('DEVICE', `cannot connect to the weftd that runs on this host: ${(error as Error).message}`, {
        remedy: 'run weftd as the user that runs the other one',
        cause: error,
      })
    }
    if (!connection) return undefined
    if (lock) return predecessorAt(connection) // one that knows no lock
    const found = predecessorAt(connection)
    const about = await found.about()
    if (!about) {
      found.close()
      return undefined
    }
    try {
      parts.check(about)
    } catch (error) {
      found.close()
      throw error
    }
    return found
  }

  /** After `claim`. */
  async function enter(): Promise<void> {
    kept = await parts.kept()
    if (!predecessor) {
      setFree()
      serve()
      return resume()
    }
    kept.close() // it is older than what forwards
    log.info(`Another weftd forwards (pid ${pidOf(predecessor.pid)}); it goes on until this one is ready`)
  }

  async function resume(): Promise<void> {
    const left = await parts.resume(inheritance)
    isUnresumed = left === 'failed'
    resumed = typeof left === 'string' ? undefined : left
  }

  /** Goes on as last known when the predecessor ends, or when that can be done again, until the node opens its own. */
  async function standBy(): Promise<void> {
    while (predecessor || isUnresumed) {
      if (!predecessor) {
        const rested = new AbortController()
        await Promise.race([pause(rested.signal, RESUME_RETRY_MS).catch(() => {}), opens])
        rested.abort()
        if (isOpening || isClosed) return
        await resume()
        continue
      }
      const before: Predecessor = predecessor
      await Promise.race([before.gone, opens])
      if (isOpening || isClosed) return
      before.close()
      predecessor = undefined
      log.warn(`The weftd that forwarded (pid ${pidOf(before.pid)}) has ended`)
      await claim()
      await enter()
    }
  }

  async function takeLock(fd: number | undefined): Promise<void> {
    if (fd !== undefined) {
      isShared = true
      lock = rendezvous.receivedLock(fd)
      return
    }
    if (lock) return
    // The predecessor ends before it could hand the lock on, and gives that up last; somebody else may be quicker.
    const until = performance.now() + MEET_MS
    for (lock = rendezvous.tryLock(); !lock && performance.now() < until; lock = rendezvous.tryLock())
      await pause(signal, MEET_RETRY_MS)
    if (!lock)
      throw new WeftError('DEVICE', 'another weftd took over before this one could', {
        remedy: 'start the new weftd again if it should still take over',
      })
  }

  async function release(): Promise<void> {
    if (!predecessor || isReleased || isSettled) return
    isReleased = true
    const fd = await predecessor.release()
    if (!lock) await takeLock(fd)
    else if (fd !== undefined) closeAll([fd])
  }

  async function take(wanted: WantedPath): Promise<OpenPath | undefined> {
    if (predecessor && !lock) {
      const taken = await predecessor.takePaths()
      if (taken) {
        untaken = taken.paths
        await takeLock(taken.lock)
      }
    } else if (!predecessor) {
      subnetsBefore = kept?.subnets
      untaken = [...untaken, ...(kept?.take() ?? [])]
    }
    const path = isForSubnets(subnetsBefore, wanted) ? untaken.find((each) => fits(each, wanted)) : undefined
    if (path) {
      untaken = untaken.filter((each) => each !== path)
      return path
    }
    // What is in the way of one that is opened now is closed, here and there.
    closeAll(fdsOf(untaken.filter((each) => isInTheWay(each, wanted))))
    untaken = untaken.filter((each) => !isInTheWay(each, wanted))
    await release()
    kept?.close()
    return undefined
  }

  const oneByOne = createTurn()
  const inheritance: Inheritance = {
    get tunNames() {
      return kept?.tunNames ?? []
    },
    take: (wanted) => oneByOne(() => take(wanted)),
  }
  function closeUntaken(): void {
    closeAll(fdsOf(untaken))
    untaken = []
  }

  await claim()
  const isSuccessor = predecessor !== undefined
  try {
    await enter()
  } catch (error) {
    close(true)
    throw error
  }
  const standing = standBy()
  standing.catch(fail)

  function close(wasIdle: boolean): void {
    isClosed = true
    open()
    kept?.close()
    closeUntaken()
    predecessor?.close()
    if (lock && wasIdle && !isShared) rendezvous.remove()
    lock?.close()
  }
  return {
    ...inheritance,
    get tunNames() {
      return inheritance.tunNames
    },
    async predecessor() {
      const before = predecessor
      const about = before && !isOpening ? await before.about() : undefined
      return about && before && { ...about, pid: before.pid }
    },
    isSuccessor,
    free,
    get resumed() {
      return resumed
    },
    async opening() {
      isOpening = true
      open()
      await standing
      // The request makes the predecessor write its current state.
      const about = predecessor && !lock ? await predecessor.about() : undefined
      if (about?.lease) subnetsBefore = parseLeaseKey(about.lease.key)
      return resumed
    },
    async release() {
      // Kept descriptors would block a backend that does not use them.
      if (!predecessor) kept?.close()
      await release()
    },
    get isOnLoan() {
      return predecessor !== undefined && !predecessor.isGone && !isSettled
    },
    settle() {
      isSettled = true
      closeUntaken()
      if (!predecessor) return
      const before: Predecessor = predecessor
      before.end()
      // The predecessor has what it lent open too: device and port are this process's alone when it has ended.
      const late = setTimeout(() => {
        if (before.pid > 0 && rendezvous.kill(before.pid))
          log.warn(`The weftd that was to end (pid ${pidOf(before.pid)}) hung, and was killed`)
      }, END_MS)
      before.ended.then(() => {
        clearTimeout(late)
        before.close()
        setFree()
        serve() // not before: it would be in the place of one that may yet take back
      }, fail)
    },
    close,
  }
}

const pidOf = (pid: number | undefined): string => (pid ? String(pid) : 'unknown')

/** True when one that is opened now may need its device or its port. A data path has one path for each family outside, at most. */
const isInTheWay = (path: OpenPath, { tunName, bindAddress }: WantedPath): boolean =>
  isNamedBy(tunName, path.tunName) || path.bindAddress.includes(':') === bindAddress.includes(':')

/** False if the paths carried another subnet of a wanted family, because their device has the address and the route of that subnet. */
const isForSubnets = (before: Nets | undefined, { subnets = {} }: WantedPath): boolean =>
  FAMILIES.every((family) => {
    const [was, is] = [before?.[family], subnets[family]]
    return !was || !is || formatNet(was) === formatNet(is)
  })

/** True when opening it now would give the same, but for sockets of another family, which whoever takes it opens or closes. */
function fits(path: OpenPath, { tunName, bindAddress, port, workers, without }: WantedPath): boolean {
  return (
    isNamedBy(tunName, path.tunName) &&
    path.bindAddress === bindAddress &&
    path.port === port &&
    path.loops.length === workers &&
    path.without.toSorted().join() === without.toSorted().join()
  )
}
