// notify.ts - tells the service manager that weftd is ready, how it is, that it lives, and that it stops.
//
// The protocol is systemd's (sd_notify(3), sd_watchdog_enabled(3)): lines of `NAME=value` in a datagram to the socket
// that NOTIFY_SOCKET names. Podman and others speak it too. Nothing that goes wrong here stops a daemon.

import { setTimeout as delay } from 'node:timers/promises'
import { messageOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { printable } from '../base/text.ts'

export interface State {
  /** True once subnet.env is written and packets are forwarded. */
  readonly ready: boolean
  /** One line for a person, as `systemctl status` shows it. */
  readonly status: string
}

export interface Notifier {
  /** The interval in which the manager wants to hear that we live, in milliseconds; undefined when it does not ask. */
  readonly aliveMs: number | undefined
  /** Says what is new in this state, if anything is; what could not be sent now is said at the next call. */
  tell(state: State): void
  alive(): void
  stopping(): void
  /** The number of descriptors that it keeps for whoever is started next. */
  readonly keeps: number
  /** Gives them into its keeping, under these names. Resolves with whether it took all. */
  keep(fds: readonly { readonly fd: number; readonly name: string }[]): Promise<boolean>
  /** Tells the manager to keep nothing under these names any more. */
  forget(names: readonly string[]): void
}

/** Sends one datagram to a Unix socket; throws an Error with `code` EAGAIN when it would have to wait. */
type SendDatagram = (socket: string, message: string, fds: readonly number[]) => void

/**
 * Takes the manager's variables out of `environment`, so that no command that we run can speak for us, and returns the
 * way to reach it; undefined when nobody asked to be told. What is wrong with the variables is logged.
 */
export async function takeNotifier(
  environment: NodeJS.ProcessEnv,
  pid: number,
  log: Log,
  loadSend: () => Promise<SendDatagram>,
): Promise<Notifier | undefined> {
  const { NOTIFY_SOCKET: socket, WATCHDOG_USEC: interval, WATCHDOG_PID: watched, FDSTORE: keeps } = environment
  for (const name of ['NOTIFY_SOCKET', 'WATCHDOG_USEC', 'WATCHDOG_PID', 'FDSTORE']) delete environment[name]
  if (socket === undefined || socket === '') return undefined
  if (!/^[/@]./.test(socket)) {
    log.warn(`NOTIFY_SOCKET is ${socket}, neither a path nor @ and a name: the service manager is not told anything`)
    return undefined
  }
  let aliveMs: number | undefined
  if (interval !== undefined && (watched === undefined || watched === String(pid))) {
    // Half of it, as sd_watchdog_enabled(3) recommends.
    if (/^[1-9]\d*$/.test(interval)) aliveMs = Number(interval) / 2000
    else log.warn(`WATCHDOG_USEC is ${interval}, not a number of microseconds: the watchdog is not served`)
  }
  return createNotifier(socket, aliveMs, Number(keeps) || 0, log, await loadSend())
}

/** A manager that is behind is offered what it is to keep again, for so long and so often. */
const KEEP_MS = 1_000
const BUSY_MS = 5

function createNotifier(
  socket: string,
  aliveMs: number | undefined,
  keeps: number,
  log: Log,
  sendDatagram: SendDatagram,
): Notifier {
  let complained = false
  let told: State = { ready: false, status: '' }

  function send(lines: readonly string[], fds: readonly number[] = []): boolean {
    try {
      sendDatagram(socket, lines.join('\n'), fds)
      return true
    } catch (error) {
      const busy = (error as NodeJS.ErrnoException).code === 'EAGAIN'
      if (!busy && !complained) {
        complained = true
        log.warn(`Cannot tell the service manager at ${socket}: ${messageOf(error)}`)
      }
      return false
    }
  }

  return {
    aliveMs,
    keeps,
    tell(state) {
      const status = printable(state.status.replaceAll('\n', ' '))
      const news = [
        ...(state.ready && !told.ready ? ['READY=1'] : []),
        ...(status === told.status ? [] : [`STATUS=${status}`]),
      ]
      if (news.length > 0 && send(news)) told = { ready: state.ready, status }
    },
    alive: () => void send(['WATCHDOG=1']),
    stopping: () => void send(['STOPPING=1', 'STATUS=leaving']), // the word of states.ts, which is not loaded this early
    // One a message: of several in one the manager keeps the set, not the order. FDPOLL: a socket whose peer's host refuses
    // has an error, for which the manager would let go of it.
    async keep(fds) {
      const end = performance.now() + KEEP_MS
      for (const { fd, name } of fds)
        while (!send(['FDSTORE=1', 'FDPOLL=0', `FDNAME=${name}`], [fd])) {
          if (performance.now() > end) return false
          await delay(BUSY_MS)
        }
      return true
    },
    forget(names) {
      for (const name of names) send(['FDSTOREREMOVE=1', `FDNAME=${name}`])
    },
  }
}
