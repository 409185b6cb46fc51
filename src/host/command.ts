// command.ts - runs a program with an argument list, without a shell, and turns its failure into an error message.

import { execFile, type ExecFileException } from 'node:child_process'
import { WeftError } from '../base/errors.ts'
import { withoutUser } from '../base/secret.ts'

/**
 * The Debian package of each program whose package has a name different from the program's. The remedy in an error
 * message names the package.
 */
const PACKAGES: Readonly<Record<string, string>> = {
  ip: 'iproute2',
  bridge: 'iproute2',
  tc: 'iproute2',
  ss: 'iproute2',
  nstat: 'iproute2',
  nft: 'nftables',
  sysctl: 'procps',
  modprobe: 'kmod',
  ping: 'iputils-ping',
  setpriv: 'util-linux',
  unshare: 'util-linux',
  nsenter: 'util-linux',
  systemctl: 'systemd',
  journalctl: 'systemd',
  etcdctl: 'etcd-client',
}
export const packageOf = (program: string): string =>
  PACKAGES[program] ?? (/^(?:ip6?|x)tables/.test(program) ? 'iptables' : program)

/**
 * The folders that hold administration programs such as `iptables`. On Debian they are not in the PATH of an ordinary
 * user or of `su` without `-`.
 */
const SYSTEM_FOLDERS = ['/usr/sbin', '/sbin']
/** Appends SYSTEM_FOLDERS to a search path in the format of PATH. */
export function withSystemFolders(path: string | undefined): string {
  const folders = path === undefined || path === '' ? ['/usr/local/bin', '/usr/bin', '/bin'] : path.split(':')
  return [...folders, ...SYSTEM_FOLDERS.filter((folder) => !folders.includes(folder))].join(':')
}
export const childEnvironment = (more: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv => ({
  ...process.env,
  PATH: withSystemFolders(process.env['PATH']),
  ...more,
})
const TIMEOUT_MS = 10_000
/** The remedy in the error message for an operation that the kernel refused with EPERM. */
export const NEEDS_NET_ADMIN =
  'run as root or with the capability CAP_NET_ADMIN: in a container, `docker run --cap-add NET_ADMIN`; in a unit, CapabilityBoundingSet=CAP_NET_ADMIN'

export type Run = (file: string, args: readonly string[], options?: RunOptions) => Promise<string>

export interface RunOptions {
  readonly input?: string
  readonly env?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal
  /**
   * True for a command that waits for another program, as iptables waits for its lock. Such a command has no time
   * limit.
   */
  readonly patient?: boolean
}

/**
 * Runs a program and returns its stdout. Rejects with WeftError PERMISSION if the program failed with EPERM, and
 * COMMAND for any other failure.
 */
export const run: Run = (file, args, { input, env, signal, patient = false } = {}) =>
  new Promise((resolve, reject) => {
    const how = {
      timeout: patient ? 0 : TIMEOUT_MS,
      maxBuffer: 64 << 20,
      env: childEnvironment({ LC_ALL: 'C', ...env }),
      ...(signal ? { signal } : {}),
    }
    try {
      const child = execFile(file, args, how, (error, stdout, stderr) => {
        if (!error) return resolve(stdout)
        if (signal?.aborted) return reject(signal.reason)
        // Add stdout to the error, because a batch may print results before it fails. The property is not enumerable,
        // so Node.js does not print it with the error.
        Object.defineProperty(error, 'stdout', { value: stdout })
        reject(commandError(file, args, error, stderr))
      })
      child.stdin?.on('error', () => {}) // the program ended without reading its input; its exit code matters
      if (input !== undefined) child.stdin?.end(input)
    } catch (error) {
      // Node.js throws, instead of calling back, if fork fails with ENOMEM or E2BIG, or if an argument contains a zero
      // byte.
      reject(commandError(file, args, error as ExecFileException, ''))
    }
  })

function commandError(file: string, args: readonly string[], error: ExecFileException, stderr: string): WeftError {
  if (error.code === 'ENOENT') {
    return new WeftError('COMMAND', `${file} is not installed`, {
      remedy: `install the package ${packageOf(file)}`,
      cause: error,
    })
  }
  // The last line of stderr is the error message. This filter removes the warnings that `ip` prints before it, and the
  // hints that iptables-restore prints after it.
  const lines = stderr.split('\n').filter((line) => line.trim() !== '' && !/^(Try `|Error occurred at line)/.test(line))
  // After its error message nft prints the faulty input, and then a line of `^` and `~` under the fault. Skip these two
  // lines.
  const isMark = /^[\s^~]+$/.test(lines.at(-1) ?? '')
  const last = (isMark ? lines.findLast((line) => line.includes('Error: ')) : undefined) ?? lines.at(-1)
  const denied = lines.find((line) => /operation not permitted|permission denied/i.test(line))
  const words = error.killed ? `no answer within ${TIMEOUT_MS / 1000} s` : (denied ?? last ?? error.message)
  const said = withoutUser(words)
  const message = `\`${withoutUser([file, ...args].join(' '))}\` failed: ${said}`
  // If legacy iptables may not open a raw socket, iptables-restore does not report the missing capability
  // (iptables/libiptc/libiptc.c), so the remedy names CAP_NET_RAW. Only legacy iptables opens xtables.lock.
  if (/\(legacy\).*initialize|open lock file \S*xtables\.lock/.test(said)) {
    return new WeftError(denied === undefined ? 'COMMAND' : 'PERMISSION', message, {
      remedy:
        'legacy iptables needs /run/xtables.lock, and CAP_NET_RAW in addition to CAP_NET_ADMIN; iptables-nft and nft do not',
      cause: error,
    })
  }
  if (denied !== undefined) {
    return new WeftError('PERMISSION', message, {
      remedy: NEEDS_NET_ADMIN,
      cause: error,
    })
  }
  return new WeftError('COMMAND', message, { cause: error })
}

/**
 * Returns the name of the program if the error says that this program is not installed; undefined for any other error.
 */
export function notInstalled(error: unknown): string | undefined {
  if (!(error instanceof WeftError)) return undefined
  const { code, path } = (error.cause ?? {}) as NodeJS.ErrnoException
  return code === 'ENOENT' ? path : undefined
}

/**
 * Returns true if the cause of an error is a program that did not end within TIMEOUT_MS, for example because the host
 * is overloaded.
 */
export function hasTimedOut(error: unknown): boolean {
  for (let each = error; each instanceof Error; each = each.cause)
    if ((each as ExecFileException).killed === true) return true
  return false
}

/**
 * Returns true if a program ran and exited with an error. Returns false if the program could not be started, or ran
 * longer than allowed.
 */
export function isRefusal(error: unknown): boolean {
  return error instanceof WeftError && typeof (error.cause as Partial<ExecFileException> | undefined)?.code === 'number'
}
