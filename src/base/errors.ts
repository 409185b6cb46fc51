// errors.ts - the one error class: a code that programs match, a message that says what is wrong, a remedy.
//
// An operator's mistake is a WeftError and is shown as one line, `message; remedy`, without a stack. Anything
// else that is thrown is a defect of ours and is shown with its stack.

/** A code says who acts on the error: the operator on all but the last four, which the daemon handles itself. */
export type ErrorCode =
  | 'USAGE' // a flag, a variable or an argument is wrong
  | 'CONFIG' // the network configuration in the store is wrong
  | 'PERMISSION' // a capability or a file mode is missing
  | 'NO_TUN' // the kernel or the container has no /dev/net/tun
  | 'PORT_IN_USE' // another process holds the UDP port
  | 'ADDRESS' // an address is not on this host
  | 'INTERFACE' // no external interface fits
  | 'COMMAND' // a command we depend on failed or is not installed
  | 'DEVICE' // the kernel refused something about a device
  | 'NO_DEVICE_TYPE' // the kernel has no device of this type
  | 'STORE' // the store refused: wrong credentials, read-only, a malformed answer
  | 'OUT_OF_SUBNETS' // every subnet of the network is leased
  | 'FAULT' // the data path died
  | 'CONFIG_MISSING' // no network configuration yet: asked again
  | 'STORE_UNAVAILABLE' // the store cannot be reached now: tried again
  | 'GAP' // changes cannot be told from there on: all is listed again
  | 'LEASE_LOST' // the lease is no longer ours: acquired again

export class WeftError extends Error {
  override readonly name = 'WeftError'
  readonly code: ErrorCode
  /** The operator's way out, as a clause without a full stop. */
  readonly remedy: string | undefined

  constructor(code: ErrorCode, message: string, options: { remedy?: string | undefined; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? {} : { cause: options.cause })
    this.code = code
    this.remedy = options.remedy
  }
}

/** True when `error` is a WeftError, of the given code if one is given. */
export function isWeftError(error: unknown, code?: ErrorCode): error is WeftError {
  return error instanceof WeftError && (code === undefined || error.code === code)
}

/** Waits for `work`; its WeftError gets `prefix` in front of the message. */
export async function prefixed<T>(prefix: string, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (!(error instanceof WeftError)) throw error
    throw new WeftError(error.code, prefix + error.message, { remedy: error.remedy, cause: error })
  }
}

/** One line for a person: what is wrong and what to do; a stack only for defects of ours. */
export function describeError(error: unknown): string {
  if (error instanceof WeftError) return error.remedy ? `${error.message}; ${error.remedy}` : error.message
  if (error instanceof Error) return error.stack ?? error.message
  return String(error)
}

/** The message alone of anything thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
