// errors.ts - the error class WeftError: a code for programs, a message, and a remedy.
//
// weft throws a WeftError for a mistake of the operator or a fault of the host, and shows it as one line: `message;
// remedy`. Any other error is a bug in weft, and weft shows it with its stack trace.

/**
 * The codes of WeftError. weftd itself handles errors with the last four codes of this list. Errors with any other code
 * need action by the operator.
 */
export type ErrorCode =
  | 'USAGE' // a flag, a variable or an argument is wrong
  | 'CONFIG' // the network configuration in the store is wrong
  | 'PERMISSION' // a capability or a file mode is missing
  | 'NO_TUN' // the kernel or the container has no /dev/net/tun
  | 'PORT_IN_USE' // another process holds the UDP port
  | 'ADDRESS' // an address is not on this host
  | 'INTERFACE' // no interface can be the external interface
  | 'KERNEL' // the kernel refused a request about links, addresses, routes or rules
  | 'COMMAND' // a required program failed or is not installed
  | 'DEVICE' // the kernel returned an error for a device
  | 'NO_DEVICE_TYPE' // the kernel has no device of this type
  | 'STORE' // the store returned an error or a malformed answer, for example for wrong credentials
  | 'OUT_OF_SUBNETS' // every subnet of the network is leased
  | 'FAULT' // the data path stopped working
  | 'FABRIC' // a cloud or a switch rejected a route, or did not answer; weftd tries again
  | 'CONFIG_MISSING' // the store has no network configuration yet; weftd reads it again
  | 'STORE_UNAVAILABLE' // weftd cannot reach the store now, and tries again
  | 'GAP' // the watch cannot continue at this revision; weftd lists all leases again
  | 'LEASE_LOST' // this node has lost its lease, and acquires a lease again

export class WeftError extends Error {
  override readonly name = 'WeftError'
  readonly code: ErrorCode
  /** The remedy for the operator, as a clause without a full stop; undefined if there is none. */
  readonly remedy: string | undefined

  constructor(code: ErrorCode, message: string, options: { remedy?: string | undefined; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? {} : { cause: options.cause })
    this.code = code
    this.remedy = options.remedy
  }
}

export function isWeftError(error: unknown, code?: ErrorCode): error is WeftError {
  return error instanceof WeftError && (code === undefined || error.code === code)
}

/**
 * Waits for `work`. If `work` rejects with a WeftError, rejects with a copy of that error, in which `prefix` precedes
 * the message.
 */
export async function prefixed<T>(prefix: string, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (!(error instanceof WeftError)) throw error
    throw new WeftError(error.code, prefix + error.message, { remedy: error.remedy, cause: error })
  }
}

/**
 * Formats an error for the operator. A WeftError becomes `message; remedy`. Any other error becomes its stack trace,
 * because it is a bug in weft.
 */
export function describeError(error: unknown): string {
  if (error instanceof WeftError) return error.remedy ? `${error.message}; ${error.remedy}` : error.message
  if (error instanceof Error) return error.stack ?? error.message
  return String(error)
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
