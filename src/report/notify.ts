// notify.ts - notifies the service manager that weftd is ready, alive or stopping, and of each change of its status
// line.
//
// The protocol is systemd's (sd_notify(3), sd_watchdog_enabled(3)): lines of `NAME=value` in a datagram to the socket
// that NOTIFY_SOCKET names. Podman and other managers use this protocol too. Errors of this protocol never stop weftd.

import { setTimeout as delay } from 'node:timers/promises'
import { messageOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { printable } from '../base/text.ts'
import { createTurn } from '../host/bell.ts'

export interface State {
  /** True as soon as weftd has written subnet.env and forwards packets. */
  readonly ready: boolean
  /** The status as one line of text, which `systemctl status` shows. */
  readonly status: string
}

export interface Notifier {
  /**
   * The interval in ms at which weftd must send keep-alive messages; undefined if the service manager does not expect
   * them.
   */
  readonly aliveMs: number | undefined
  /**
   * Sends those parts of weftd's state that have changed to the service manager. If a message cannot be sent now, the
   * next call of `report` sends it.
   */
  report(state: State): void
  /** Sends a keep-alive message to the service manager, and ends the messages of `aliveMeanwhile`. */
  alive(): void
  /**
   * Sends keep-alive messages, the first immediately, until the next call of `alive` or `stopping`. weftd needs them
   * while no loop calls `alive`, because the service manager's watchdog begins with READY=1 and never pauses.
   */
  aliveMeanwhile(): void
  stopping(): void
  /** The number of file descriptors that the service manager can keep for the next process; 0 if it keeps none. */
  readonly keeps: number
  /**
   * Hands file descriptors to the service manager, which keeps them under the given names for the next process.
   * Resolves with true if all descriptors were sent.
   */
  keep(fds: readonly { readonly fd: number; readonly name: string }[]): Promise<boolean>
  /**
   * Makes the service manager close the file descriptors that it keeps under these names. Never rejects. Resolves when
   * all messages were sent, or after KEEP_MS.
   */
  forget(names: readonly string[]): Promise<void>
}

/**
 * Sends one datagram with file descriptors to a Unix socket. Throws an Error with the `code` EAGAIN if the call would
 * block.
 */
type SendDatagram = (socket: string, message: string, fds: readonly number[]) => void

/**
 * Reads the service manager's variables and removes them from `environment`, so that child processes cannot send
 * messages in weftd's name. Returns the notifier; undefined if NOTIFY_SOCKET is not set. Logs invalid variables.
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
    // Send keep-alive messages twice per watchdog interval, as sd_watchdog_enabled(3) recommends. The variable
    // WATCHDOG_USEC is in microseconds.
    if (/^[1-9]\d*$/.test(interval)) aliveMs = Number(interval) / 2000
    else
      log.warn(`WATCHDOG_USEC is ${interval}, not a number of microseconds; the watchdog gets no keep-alive messages`)
  }
  return createNotifier(socket, aliveMs, Number(keeps) || 0, log, await loadSend())
}

/**
 * How long, in ms, weftd tries to send messages about file descriptors to a service manager whose socket is full.
 * BUSY_MS is the pause between two attempts.
 */
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
  let meanwhile: NodeJS.Timeout | undefined
  let sent: State = { ready: false, status: '' }
  /** Runs `forget` and `keep` one after another, because descriptors that are kept later have the same names. */
  const inTurn = createTurn()

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

  /** Sends messages, each with at most one file descriptor. Returns false if some were not sent within KEEP_MS. */
  async function sendAll(messages: readonly { readonly lines: readonly string[]; readonly fds: readonly number[] }[]) {
    const end = performance.now() + KEEP_MS
    for (const { lines, fds } of messages)
      while (!send(lines, fds)) {
        if (performance.now() > end) return false
        await delay(BUSY_MS)
      }
    return true
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
    alive() {
      clearInterval(meanwhile)
      send(['WATCHDOG=1'])
    },
    aliveMeanwhile() {
      clearInterval(meanwhile)
      if (aliveMs === undefined) return
      send(['WATCHDOG=1'])
      meanwhile = setInterval(() => send(['WATCHDOG=1']), aliveMs).unref()
    },
    stopping() {
      clearInterval(meanwhile)
      send(['STOPPING=1', 'STATUS=leaving']) // the same word as in states.ts, which is not imported here to keep the start fast
    },
    // Send one file descriptor per message, because the service manager does not preserve the order of the descriptors
    // in a message. Set FDPOLL=0, because otherwise the service manager would drop a socket with a pending error, such
    // as an ICMP error from a peer's host.
    keep: (fds) =>
      inTurn(() =>
        sendAll(fds.map(({ fd, name }) => ({ lines: ['FDSTORE=1', 'FDPOLL=0', `FDNAME=${name}`], fds: [fd] }))),
      ),
    forget: (names) =>
      inTurn(async () => {
        await sendAll(names.map((name) => ({ lines: ['FDSTOREREMOVE=1', `FDNAME=${name}`], fds: [] })))
      }),
  }
}
