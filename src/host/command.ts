// command.ts - runs a program with an argument list, never a shell, and turns its failure into a sentence.

import { execFile, type ExecFileException } from 'node:child_process'
import { WeftError } from '../errors.ts'

/** Debian packages of the programs we run, for the remedy. */
const PACKAGES: Readonly<Record<string, string>> = { ip: 'iproute2', nft: 'nftables', iptables: 'iptables' }
const TIMEOUT_MS = 10_000

export type Run = (file: string, args: readonly string[], options?: RunOptions) => Promise<string>

export interface RunOptions {
  readonly input?: string
  readonly signal?: AbortSignal
}

/** The program's stdout. Rejects with WeftError: COMMAND, or PERMISSION when the kernel said EPERM. */
export const run: Run = (file, args, { input, signal } = {}) =>
  new Promise((resolve, reject) => {
    const child = execFile(
      file,
      args,
      {
        timeout: TIMEOUT_MS,
        maxBuffer: 64 << 20,
        env: { ...process.env, LC_ALL: 'C' },
        ...(signal ? { signal } : {}),
      },
      (error, stdout, stderr) => {
        if (!error) return resolve(stdout)
        if (signal?.aborted) return reject(signal.reason)
        reject(commandError(file, args, error, stderr))
      },
    )
    if (input !== undefined) child.stdin?.end(input)
  })

function commandError(file: string, args: readonly string[], error: ExecFileException, stderr: string): WeftError {
  if (error.code === 'ENOENT') {
    return new WeftError('COMMAND', `${file} is not installed`, {
      remedy: `install the package ${PACKAGES[file] ?? file}`,
      cause: error,
    })
  }
  // Of several lines the last is what it died of; `ip` warns before.
  const said = error.killed
    ? `no answer within ${TIMEOUT_MS / 1000} s`
    : stderr.trim().split('\n').at(-1) || error.message
  const message = `\`${[file, ...args].join(' ')}\` failed: ${said}`
  if (/operation not permitted|permission denied/i.test(stderr)) {
    return new WeftError('PERMISSION', message, {
      remedy: 'run as root or with the capability CAP_NET_ADMIN',
      cause: error,
    })
  }
  return new WeftError('COMMAND', message, { cause: error })
}
