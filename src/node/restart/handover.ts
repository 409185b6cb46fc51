// handover.ts - how this process gets the data path of its host, and how it later hands the path to the next process.
// - enter: takes the lock of the subnet file (rendezvous.ts). If the lock is free, this process owns the data path: it
//   forwards with the last known state immediately, and serves successors. If another process has the lock, that
//   process is the predecessor and continues to forward. If the predecessor ends early, this process forwards with the
//   last known state.
// - opening: is called before the node opens its data path. The node then continues with the path that this process has
//   opened, or `take` gets the path from the predecessor.
// - settle: is called when the node runs. The predecessor ends, and then this process serves successors.
//
// AppArmor or SELinux can forbid this process to connect to the predecessor or to receive its descriptors. Then this
// process waits until the predecessor has ended, and forwards with the last known state.
//
// A backend uses `take` and `tunNames` only.

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { parseLeaseKey } from '../../control/lease/lease.ts'
import { afterRunning, createTurn, pause } from '../../host/bell.ts'
import { closeAll } from '../../host/unix-socket.ts'
import { FAMILIES, familyOfText, formatNet, type Nets } from '../../net/address.ts'
import { hasBackendName, isNamedBy } from '../../path/catalog.ts'
import type { OpenPath } from '../../path/engine/engine.ts'
import type { EarlierRun } from './earlier-run.ts'
import { isSameStore } from './last-known.ts'
import { serveSuccessors, type Lender } from './lender.ts'
import { fdsOf } from './open-path.ts'
import type { Predecessor } from './predecessor.ts'
import type { About } from './protocol.ts'
import type { Lock, Rendezvous } from './rendezvous.ts'

/**
 * How long, in ms, the process that has the subnet file's lock may be unreachable, because it does not listen yet or is
 * about to end. A weftd that is stopping no longer listens, and kills itself after 9 s (STOP_MS in weftd.ts). A weftd
 * that leaves the network may take longer, and then this process ends with an error and is started again.
 */
const MEET_MS = 10_000
const MEET_RETRY_MS = 50
const RESUME_RETRY_MS = 1_000
/**
 * How long, in ms, a predecessor may take to end after it has received `end`. Then this process kills the predecessor.
 * This time is longer than STOP_MS (weftd.ts), so a predecessor that is still stopping is not killed: a service manager
 * would restart a killed predecessor, and the restarted weftd would take over again.
 */
const END_MS = 10_000

/** The properties that an inherited path must have. */
export interface WantedPath extends Pick<OpenPath, 'bindAddresses' | 'port' | 'without'> {
  /**
   * This node's subnets that the engine must carry. A path for other subnets belongs to another network. If `subnets`
   * is left out, any path fits.
   */
  readonly subnets?: Nets
  /** The name of the TUN device, or a pattern such as `flannel%d`. */
  readonly tunName: string
  readonly workers: number
}

/** The members of a hand-over that a backend uses. */
export type Inheritable = Pick<Handover, 'tunNames' | 'take'>

export interface HandoverParts {
  readonly rendezvous: Rendezvous
  readonly lender: Omit<Lender, 'lock' | 'kill' | 'lend' | 'release' | 'takeBack'>
  /** The functions that pass the data path of this process on to a successor. */
  readonly dataPath: Pick<Lender, 'lend' | 'release'> & { takeBack(): Promise<void> }
  /** Reads the data paths that the earlier run of weftd left on this host. */
  readonly earlierRun: () => Promise<EarlierRun>
  /**
   * Forwards with the last known state. Resolves with `nothing` if no state is known, and with `failed` if another try
   * may succeed.
   */
  readonly resume: (inheritable: Inheritable) => Promise<'forwards' | 'nothing' | 'failed'>
  readonly log: Log
  readonly stopping: AbortController
}

/**
 * Takes the lock of the subnet file, or connects to the process that has this lock. Resolves when the process that
 * forwards is known: this process, if it has a last known state, or another process.
 */
export async function enterHandover(parts: HandoverParts): Promise<Handover> {
  const handover = new Handover(parts)
  await handover.enter()
  return handover
}

/** Gets the data path for this process, and later passes it on to a successor. */
export class Handover {
  /** Resolves when no other daemon owns the data path, the ports or the sockets. */
  readonly free: Promise<void>
  private readonly parts: HandoverParts
  private readonly oneByOne = createTurn()
  private readonly opens: Promise<void>
  /** Its signal aborts when `opens` resolves. */
  private readonly opened = new AbortController()
  private lock: Lock | undefined
  private predecessorNow: Predecessor | undefined
  private earlierRun: EarlierRun | undefined
  /** The data paths that this process inherited from the previous process, and that no backend has taken yet. */
  private untaken: readonly OpenPath[] = []
  /** The subnets for which the previous process opened its data paths; undefined if they are not known. */
  private subnetsBefore: Nets | undefined
  /** The task that tries to forward with the last known state, until the node opens its own data path. */
  private standing: Promise<void> = Promise.resolve()
  private wasSuccessor = false
  /** True after this process sent the message `release`, which makes the predecessor close its data paths. */
  private isReleased = false
  /** True if an attempt to forward with the last known state failed and will be repeated. */
  private isUnresumed = false
  /**
   * True if this process and another process have held the lock of the subnet file (rendezvous.ts) at the same time.
   */
  private isShared = false
  private isOpening = false
  private isSettled = false
  private isClosed = false
  private setFree!: () => void
  private open!: () => void

  constructor(parts: HandoverParts) {
    this.parts = parts
    this.free = new Promise((resolve) => (this.setFree = resolve))
    this.opens = new Promise((resolve) => (this.open = resolve))
    void this.opens.then(() => this.opened.abort())
  }

  /** The names of the TUN devices of weftd's earlier run on this host. */
  get tunNames(): readonly string[] {
    return this.earlierRun?.tunNames ?? []
  }

  /** True if another daemon owned the data path when this process started. */
  get isSuccessor(): boolean {
    return this.wasSuccessor
  }

  /** True if the data path would return to the predecessor if this process ended now. */
  get isOnLoan(): boolean {
    return this.predecessorNow !== undefined && !this.predecessorNow.isGone && !this.isSettled
  }

  /** The predecessor's process ID; 0 if it is unknown, undefined without a predecessor. */
  get predecessorPid(): number | undefined {
    return this.predecessorNow?.pid
  }

  /** Returns the description that the running daemon gives of itself; undefined if no other daemon runs. */
  async predecessor(): Promise<(About & { readonly pid: number }) | undefined> {
    const before = this.predecessorNow
    const about = before && !this.isOpening ? await before.about() : undefined
    return about && before && { ...about, pid: before.pid }
  }

  async enter(): Promise<void> {
    await this.claim()
    this.wasSuccessor = this.predecessorNow !== undefined
    try {
      await this.begin()
    } catch (error) {
      this.close(true)
      throw error
    }
    this.standing = this.standBy()
    this.standing.catch((error: unknown) => this.fail(error))
  }

  /**
   * Returns an inherited path that fits `wanted`; no other process forwards through this path any more. If no path
   * fits, waits until the predecessor has freed its sockets and devices, except those of paths that another backend may
   * still take. Then returns undefined. Throws WeftError DEVICE if the predecessor hangs.
   */
  take(wanted: WantedPath): Promise<OpenPath | undefined> {
    return this.oneByOne(() => this.takeNext(wanted))
  }

  /** Stops waiting for the end of the predecessor, and stops trying to forward with the last known state. */
  async opening(): Promise<void> {
    this.isOpening = true
    this.open()
    await this.standing
    // `about` returns the predecessor's description of itself. It also makes the predecessor write its current state to
    // the file of the last known state.
    const about = this.predecessorNow && !this.lock ? await this.predecessorNow.about() : undefined
    if (about?.lease) this.subnetsBefore = parseLeaseKey(about.lease.key)
  }

  /**
   * Makes the predecessor close all its data paths. Without a predecessor, closes the descriptors that the service
   * manager kept.
   */
  async release(): Promise<void> {
    // Close the descriptors that the service manager kept, because they would block a backend that does not use them.
    if (!this.predecessorNow) this.earlierRun?.close()
    await this.releasePredecessor()
  }

  /** Called when the node runs. Ends the predecessor, and then serves successors. */
  settle(): void {
    this.isSettled = true
    this.closeUntaken()
    const before = this.predecessorNow
    if (!before) return
    before.end()
    // The predecessor still has the lent paths open. So the device and the port belong to this process alone only after
    // the predecessor has ended.
    const late = afterRunning(END_MS, () => {
      if (before.pid > 0 && this.parts.rendezvous.kill(before.pid))
        this.parts.log.warn(`The previous weftd (pid ${pidOf(before.pid)}) hung while it ended, and was killed`)
    })
    before.ended.then(
      () => {
        clearTimeout(late)
        before.close()
        this.setFree()
        this.serve() // not earlier, because the predecessor still listens at that socket if it takes the path back
      },
      (error: unknown) => this.fail(error),
    )
  }

  /**
   * Closes the inherited data paths that no backend took, and releases the subnet file's lock last. If this process
   * never forwarded (`wasIdle`), removes the lock file, because the process left no state for the next process.
   */
  close(wasIdle: boolean): void {
    this.isClosed = true
    this.open()
    this.earlierRun?.close()
    this.closeUntaken()
    this.predecessorNow?.close()
    if (this.lock && wasIdle && !this.isShared) this.parts.rendezvous.remove()
    this.lock?.close()
  }

  private fail(error: unknown): void {
    this.parts.stopping.abort(error)
  }

  private serve(): void {
    const { rendezvous, log, stopping } = this.parts
    let listener: ReturnType<Rendezvous['listen']>
    try {
      listener = rendezvous.listen()
    } catch (error) {
      log.warn(`The next weftd cannot take over from this one while this one runs: ${(error as Error).message}`)
      return
    }
    serveSuccessors(listener, this.lender(), stopping.signal).catch((error: unknown) => {
      if (!stopping.signal.aborted) this.fail(error)
    })
  }

  private lender(): Lender {
    const { lender, dataPath, rendezvous, log } = this.parts
    return {
      ...lender,
      lend: () => {
        this.isShared = true
        return dataPath.lend()
      },
      release: () => {
        this.isShared = true
        return dataPath.release()
      },
      takeBack: async (why) => {
        this.lock?.sign()
        log.warn(`The weftd that was taking over ${why}; forwarding again`)
        await dataPath.takeBack()
        await lender.write()
      },
      lock: () => this.lock?.fd,
      kill: (pid) => rendezvous.kill(pid),
    }
  }

  /**
   * Takes the lock of the subnet file, or connects to the process that has this lock. Tries again while that process is
   * starting or ending.
   */
  private async claim(): Promise<void> {
    const { rendezvous, stopping } = this.parts
    const until = performance.now() + MEET_MS
    for (;;) {
      this.lock = rendezvous.tryLock()
      const met = await this.meet()
      if (met === 'denied') {
        if (!this.lock) await this.waitForLock(`this weftd may not connect to ${rendezvous.path}`)
        return
      }
      if (met && this.lock) {
        // The process that listens at the socket is ending: a process releases its lock before it closes its socket.
        // Release the lock, and try again after that process has ended.
        this.lock.close()
        this.lock = undefined
        met.close()
      } else if (this.lock) {
        return
      } else if (met) {
        this.predecessorNow = met
        void met.takenBack.then(() => this.fail(takenBack()))
        return
      }
      if (performance.now() > until) throw unreachable(met?.pid ?? rendezvous.owner(), rendezvous.path)
      await pause(stopping.signal, MEET_RETRY_MS)
    }
  }

  /**
   * Connects to the running daemon. Returns undefined if no process listens, or if the daemon has just ended; `denied`
   * if this process may not connect.
   */
  private async meet(): Promise<Predecessor | 'denied' | undefined> {
    let connection: ReturnType<Rendezvous['connect']>
    try {
      connection = this.parts.rendezvous.connect()
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EAGAIN') return undefined // the daemon listens, but has not accepted earlier connections yet
      if (code === 'EACCES' || code === 'EPERM') return 'denied'
      throw new WeftError('DEVICE', `cannot connect to the weftd that runs on this host: ${(error as Error).message}`, {
        remedy: 'stop the other weftd first',
        cause: error,
      })
    }
    if (!connection) return undefined
    // Import this module only if a predecessor runs. Without a predecessor no packets are forwarded until weftd has
    // started, and the import would delay the start.
    const { predecessorAt } = await import('./predecessor.ts')
    const found = predecessorAt(connection)
    if (this.lock) return found
    const about = await found.about()
    if (!about) {
      found.close()
      return undefined
    }
    const { store } = this.parts.lender.about()
    if (isSameStore(about.store, store)) return found
    found.close()
    throw new WeftError(
      'DEVICE',
      `another weftd runs on this host for the store ${about.store}; this one's is ${store}`,
      { remedy: 'name the same store; or, if this host will leave its network, stop the other weftd first' },
    )
  }

  /** Called when this process has the lock of the subnet file, or is connected to the process that has it. */
  private async begin(): Promise<void> {
    this.earlierRun = await this.parts.earlierRun()
    if (!this.predecessorNow) {
      this.setFree()
      this.serve()
      return this.resume()
    }
    this.earlierRun.close() // its descriptors are older than the path that forwards now
    this.parts.log.info(
      `Another weftd forwards (pid ${pidOf(this.predecessorNow.pid)}); it forwards until this weftd is ready`,
    )
  }

  private async resume(): Promise<void> {
    this.isUnresumed = (await this.parts.resume(this)) === 'failed'
  }

  /**
   * Forwards with the last known state if the predecessor ends, or if an earlier attempt failed. Ends when the node
   * opens its own data path.
   */
  private async standBy(): Promise<void> {
    while (this.predecessorNow || this.isUnresumed) {
      const before = this.predecessorNow
      if (!before) {
        // End the pause by a signal, and not by Promise.race with `opens`. Each race adds an entry to `opens`, and the
        // store may not answer for weeks.
        await pause(this.opened.signal, RESUME_RETRY_MS).catch(() => {})
        if (this.isOpening || this.isClosed) return
        await this.resume()
        continue
      }
      await Promise.race([before.gone, this.opens])
      if (this.isOpening || this.isClosed) return
      before.close()
      this.predecessorNow = undefined
      this.parts.log.warn(`The weftd that forwarded (pid ${pidOf(before.pid)}) has ended`)
      await this.claim()
      await this.begin()
    }
  }

  /**
   * Keeps the subnet file's lock if the predecessor sent it. Otherwise waits until the predecessor, as the last step of
   * its end, releases the lock.
   */
  private async takeLock(fd: number | undefined): Promise<void> {
    const { rendezvous, stopping } = this.parts
    if (fd !== undefined) {
      this.isShared = true
      this.lock = rendezvous.receivedLock(fd)
      return
    }
    if (this.lock) return
    const until = performance.now() + MEET_MS
    for (this.lock = rendezvous.tryLock(); !this.lock && performance.now() < until; this.lock = rendezvous.tryLock())
      await pause(stopping.signal, MEET_RETRY_MS)
    if (!this.lock)
      throw new WeftError('DEVICE', 'another weftd took over before this one could', {
        remedy: 'start this weftd again if it should replace the other weftd',
      })
  }

  /**
   * Waits until no other process has the lock of the subnet file, without a connection to that process. This process
   * does not try to connect again, because AppArmor and SELinux log each denied attempt.
   */
  private async waitForLock(why: string): Promise<void> {
    const { rendezvous, log, stopping } = this.parts
    log.warn(
      `Another weftd forwards (pid ${pidOf(rendezvous.owner())}) and cannot hand over: ${why}; waiting until that weftd ends`,
    )
    while (!this.lock) {
      await pause(stopping.signal, MEET_RETRY_MS)
      this.lock = rendezvous.tryLock()
    }
  }

  /**
   * Ends the connection to a predecessor whose descriptors this process may not receive, so that the predecessor
   * forwards again immediately. Resolves when the predecessor has ended and this process owns the data path.
   */
  private async waitForEndOf(before: Predecessor): Promise<void> {
    before.close()
    this.predecessorNow = undefined
    await this.waitForLock('this weftd may not receive its queues and sockets')
    this.earlierRun = await this.parts.earlierRun()
    this.setFree()
    this.serve()
  }

  private async releasePredecessor(): Promise<void> {
    const before = this.predecessorNow
    if (!before || this.isReleased || this.isSettled) return
    this.isReleased = true
    const fd = await before.release()
    if (before.areDescriptorsDenied) await this.waitForEndOf(before)
    else if (!this.lock) await this.takeLock(fd)
    else if (fd !== undefined) closeAll([fd])
  }

  private async takeNext(wanted: WantedPath): Promise<OpenPath | undefined> {
    if (this.predecessorNow && !this.lock) {
      const taken = await this.predecessorNow.takePaths()
      if (taken) {
        this.untaken = taken.paths
        await this.takeLock(taken.lock)
      } else if (this.predecessorNow.areDescriptorsDenied) {
        await this.waitForEndOf(this.predecessorNow)
      }
    } else if (!this.predecessorNow) {
      this.subnetsBefore = this.earlierRun?.subnets
      this.untaken = [...this.untaken, ...(this.earlierRun?.take() ?? [])]
    }
    const isSame = isForSubnets(this.subnetsBefore, wanted)
    const path = isSame ? this.untaken.find((each) => fits(each, wanted)) : undefined
    if (path) {
      this.untaken = this.untaken.filter((each) => each !== path)
      return path
    }
    // The backend opens a new path. So close each path that has the new path's device or port, in this process and in
    // the predecessor.
    closeAll(fdsOf(this.untaken.filter((each) => isInTheWay(each, wanted))))
    this.untaken = this.untaken.filter((each) => !isInTheWay(each, wanted))
    await this.releasePredecessor()
    this.earlierRun?.close()
    return undefined
  }

  private closeUntaken(): void {
    closeAll(fdsOf(this.untaken))
    this.untaken = []
  }
}

const pidOf = (pid: number | undefined): string => (pid ? String(pid) : 'unknown')

const takenBack = (): WeftError =>
  new WeftError('DEVICE', 'the previous weftd forwards again, because this one did not respond for too long', {
    remedy: 'start the new weftd again',
  })

const unreachable = (pid: number | undefined, path: string): WeftError =>
  new WeftError('DEVICE', `another weftd runs on this host (pid ${pidOf(pid)}) and does not answer at ${path}`, {
    remedy: `end it${pid ? ` (kill -9 ${pid})` : ''}, then start this one`,
  })

/**
 * Returns true for a TUN whose name comes from this backend. If the name comes from no backend, another program has
 * renamed the TUN; returns true in this case too.
 */
const isNameFor = (path: OpenPath, tunName: string): boolean =>
  isNamedBy(tunName, path.tunName) || !hasBackendName(path.tunName)

/**
 * Returns true if a new path may need the device or the port of this path. A data path has at most one path for each
 * underlay family.
 */
const isInTheWay = (path: OpenPath, { tunName, bindAddresses }: WantedPath): boolean => {
  const wanted = new Set(bindAddresses.map(familyOfText))
  return isNameFor(path, tunName) || path.bindAddresses.some((each) => wanted.has(familyOfText(each)))
}

/**
 * Returns false if the inherited paths carried a different subnet in a family that the new path must carry. Their
 * device has the address and the route of that different subnet.
 */
const isForSubnets = (before: Nets | undefined, { subnets = {} }: WantedPath): boolean =>
  FAMILIES.every((family) => {
    const [was, is] = [before?.[family], subnets[family]]
    return !was || !is || formatNet(was) === formatNet(is)
  })

/**
 * Returns true if a new path would equal this path, except for the sockets at the addresses after the first one of
 * `bindAddresses`. The new owner opens or closes these sockets.
 */
function fits(path: OpenPath, { tunName, bindAddresses, port, workers, without }: WantedPath): boolean {
  return (
    isNameFor(path, tunName) &&
    path.bindAddresses[0] === bindAddresses[0] &&
    path.port === port &&
    path.loops.length === workers &&
    path.without.toSorted().join() === without.toSorted().join()
  )
}
