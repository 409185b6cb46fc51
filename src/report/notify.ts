// notify.ts - notifies the service manager that weftd is ready, what its status is, that it is alive, and that it stops.
//
// The protocol is systemd's (sd_notify(3), sd_watchdog_enabled(3)): lines of `NAME=value` in a datagram to the socket that NOTIFY_SOCKET
// names. Podman and others use it too. Errors here never stop the daemon.

import { setTimeout as delay } from 'node:timers/promises'
import { messageOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { printable } from '../base/text.ts'

export interface State {
  /** True as soon as subnet.env is written and packets are forwarded. */
  readonly ready: boolean
  /** One line, which `systemctl status` shows. */
  readonly status: string
}

export interface Notifier {
  /** The interval of keep-alive messages in milliseconds; undefined if the manager does not expect them. */
  readonly aliveMs: number | undefined
  /** Sends the changes of the state. Changes that cannot be sent now are sent with the next call. */
  report(state: State): void
  /** Sends a keep-alive message. */
  alive(): void
  stopping(): void
  /** The number of file descriptors that the manager can keep for the next process; 0 if it keeps none. */
  readonly keeps: number
  /** Hands descriptors to the manager under these names. Resolves with true if all were sent. */
  keep(fds: readonly { readonly fd: number; readonly name: string }[]): Promise<boolean>
  /** Makes the manager close the descriptors that it keeps under these names. */
  forget(names: readonly string[]): void
}

/** Sends one datagram to a Unix socket. Throws an Error with the `code` EAGAIN if the call would block. */
type SendDatagram = (socket: string, message: string, fds: readonly number[]) => void

/**
 * Removes the service manager's variables from `environment`, so that child processes cannot send messages in weftd's name. Returns the
 * notifier; undefined if there is no NOTIFY_SOCKET. Logs invalid variables.
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
    log.warn(`NOTIFY_SOCKET is ${socket}, neither a path nor @ and a name; the service manager gets no notifications`)
    return undefined
  }
  let aliveMs: number | undefined
  if (interval !== undefined && (watched === undefined || watched === String(pid))) {
    // Half of the interval, as sd_watchdog_enabled(3) recommends.
    if (/^[1-9]\d*$/.test(interval)) aliveMs = Number(interval) / 2000
    else
      log.warn(`WATCHDOG_USEC is ${interval}, not a number of microseconds; the watchdog gets no keep-alive messages`)
  }
  return createNotifier(socket, aliveMs, Number(keeps) || 0, log, await loadSend())
}

/** The maximum time for which a descriptor is offered to a busy manager, and the pause between two attempts. */
const KEEP_MS = 1_000
const BUSY_MS = 5

function createNotifier(
  socket: string,
  aliveMs: number | undefined,
  keeps: number,
  log: Log,
  sendDatagram: SendDatagram,
): Notifier {
  let hasWarned = false
  let sent: State = { ready: false, status: '' }

  function send(lines: readonly string[], fds: readonly number[] = []): boolean {
    try {
      sendDatagram(socket, lines.join('\n'), fds)
      return true
    } catch (error) {
      const busy = (error as NodeJS.ErrnoException).code === 'EAGAIN'
      if (!busy && !hasWarned) {
        hasWarned = true
        log.warn(`Cannot notify the service manager at ${socket}: ${messageOf(error)}`)
      }
      return false
    }
  }

  return {
    aliveMs,
    keeps,
    report(state) {
      const status = printable(state.status.replaceAll('\n', ' '))
      const news = [
        ...(state.ready && !sent.ready ? ['READY=1'] : []),
        ...(status === sent.status ? [] : [`STATUS=${status}`]),
      ]
      if (news.length > 0 && send(news)) sent = { ready: state.ready, status }
    },
    alive: () => void send(['WATCHDOG=1']),
    stopping: () => void send(['STOPPING=1', 'STATUS=leaving']), // the same word as in states.ts, which is not imported here to keep the start fast
    // One descriptor per message, because the manager does not preserve the order within a message. FDPOLL=0: otherwise the manager would
    // drop a socket that has a pending error, such as an ICMP error from a peer's host.
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
