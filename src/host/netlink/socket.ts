// socket.ts - sends requests to the kernel and returns its answers.

import { constants } from 'node:os'
import type { NetlinkSocket as AddonSocket } from '../../../native/addon.d.ts'
import { addon } from '../addon.ts'
import { createTurn } from '../bell.ts'
import type { ReceivedMessage } from './message.ts'

/** The kernel's answer to one request. */
export interface Answer {
  /** The messages of the answer, one after another, without the acknowledgement; `messagesIn` reads them. */
  readonly data: Buffer
  /** The error number of a refused request, such as 17 for EEXIST; 0 if the kernel accepted the request. */
  readonly errno: number
  /** The kernel's own explanation of a refusal (NLMSGERR_ATTR_MSG, Linux 4.12); undefined if it gave none. */
  readonly explanation: string | undefined
  /** True if the listed objects changed during each of the attempts to list them; else left out. */
  readonly isInterrupted?: true
}

/** The part of an answer that says why the kernel refused the request. */
export type Refusal = Pick<Answer, 'errno' | 'explanation'>

const { ENODEV, ENOENT, EAFNOSUPPORT, EOPNOTSUPP, EPROTONOSUPPORT } = constants.errno

/** The answer to a request that names an interface which does not exist. */
export const NO_DEVICE: Answer = { data: Buffer.alloc(0), errno: ENODEV, explanation: undefined }

/** Returns true if the kernel refused a listing because the interface or the table of the listing does not exist. */
export const isMissing = ({ errno }: Refusal): boolean => errno === ENODEV || errno === ENOENT

/**
 * Returns true if the kernel refused a listing because it is built without the family or without the kind of object.
 */
export const isMissingFamily = ({ errno }: Refusal): boolean => errno === EAFNOSUPPORT || errno === EOPNOTSUPP

/** Returns true if the kernel is built without the subsystem of the socket. */
export const isMissingProtocol = ({ errno }: Refusal): boolean => errno === EPROTONOSUPPORT

/** A socket to one subsystem of the kernel, such as rtnetlink(7). */
export interface NetlinkSocket {
  /**
   * Sends the requests in one batch and returns their answers in the same order. Each request must have the flag
   * NLM_F.ACK or NLM_F.DUMP. The socket sets the sequence numbers. If the socket cannot be opened, each answer has the
   * error number of that failure.
   */
  exchange(requests: readonly Buffer[]): Promise<readonly Answer[]>
}

/** The subsystems of the kernel that weft uses (netlink(7)). */
export const NETLINK = { ROUTE: 0, XFRM: 6, NETFILTER: 12, GENERIC: 16 } as const

const ACCEPTED: Answer = { data: Buffer.alloc(0), errno: 0, explanation: undefined }
const TIMED_OUT: Answer = { data: Buffer.alloc(0), errno: constants.errno.ETIMEDOUT, explanation: undefined }

/**
 * How long an exchange may take in ms. The addon waits up to 10 s for each message of the kernel. The addon cannot
 * limit the time of a system call that waits for the kernel's lock of the network configuration (rtnl_mutex).
 */
const PATIENCE_MS = 20_000

/** A netlink socket of the addon, which is opened at its first use in the network namespace of this process. */
export class KernelSocket implements NetlinkSocket {
  readonly #protocol: number
  #socket: AddonSocket | undefined
  /** The last exchange of the addon, which makes one exchange at a time and may hang. This promise never rejects. */
  #running: Promise<unknown> = Promise.resolve()
  /** The time by which the last exchange must end, in ms of performance.now(). */
  #endsBy = 0
  readonly #inTurn = createTurn()

  constructor(protocol: number) {
    this.#protocol = protocol
  }

  /** Returns true if the message is about a request that this socket sent. */
  hasCaused({ port }: ReceivedMessage): boolean {
    return port !== 0 && port === this.#socket?.port
  }

  exchange(requests: readonly Buffer[]): Promise<readonly Answer[]> {
    return this.#inTurn(() => this.#exchange(requests))
  }

  async #exchange(requests: readonly Buffer[]): Promise<readonly Answer[]> {
    if (requests.length === 0) return []
    // If the last exchange hangs, send nothing. An exchange over a new socket would hang too, and each hanging exchange
    // blocks one of the few threads of libuv's pool.
    if (!(await this.#isDone())) return requests.map(() => TIMED_OUT)
    this.#socket ??= addon.openNetlink(this.#protocol)
    const bytes = Buffer.concat(requests)
    const answers = this.#socket.exchange(bytes)
    this.#running = answers.catch(() => {})
    this.#endsBy = performance.now() + PATIENCE_MS
    // Wipe the requests, which may contain keys, because the addon has copied them.
    bytes.fill(0)
    if (!(await this.#isDone())) return requests.map(() => TIMED_OUT)
    return (await answers).map((answer) => (answer ? { explanation: undefined, ...answer } : ACCEPTED))
  }

  /**
   * Waits for the last exchange. Returns false if the exchange hangs. If it has already hung for PATIENCE_MS, does not
   * wait.
   */
  #isDone(): Promise<boolean> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve(false), Math.max(0, this.#endsBy - performance.now()))
      void this.#running.then(() => {
        clearTimeout(timer)
        resolve(true)
      })
    })
  }
}
