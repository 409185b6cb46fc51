// command.ts - runs programs for the lab and waits for them. The error of a failed program has its output.

import { spawn, spawnSync, type ChildProcess } from 'node:child_process'

export interface Finished {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

/** The factor for all time limits, for slow machines such as emulated ones. */
export const PATIENCE = Number(process.env['WEFT_PATIENCE'] ?? 1)

const TIMEOUT_MS = 120_000 * PATIENCE

/** Runs a program until it ends, by default for at most two minutes. */
export function execute(
  command: readonly string[],
  options: { timeoutMs?: number; input?: string } = {},
): Promise<Finished> {
  const [file = '', ...args] = command
  return new Promise((resolve, reject) => {
    const child = spawn(file, args, { timeout: options.timeoutMs ?? TIMEOUT_MS, killSignal: 'SIGKILL' })
    let stdout = ''
    let stderr = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
    child.on('error', reject)
    child.on('close', (code) => resolve({ code, stdout, stderr }))
    child.stdin.on('error', () => {}).end(options.input ?? '')
  })
}

export async function output(
  command: readonly string[],
  options: { timeoutMs?: number; input?: string } = {},
): Promise<string> {
  const { code, stdout, stderr } = await execute(command, options)
  if (code !== 0) throw new Error(`\`${command.join(' ')}\` ended with ${code}: ${(stderr || stdout).trim()}`)
  return stdout
}

/** Like `output`, but synchronous, for the clean-up while the process ends. It ignores failures. */
export function executeSync(command: readonly string[]): string {
  const [file = '', ...args] = command
  return spawnSync(file, args, { encoding: 'utf8', timeout: 10_000 * PATIENCE }).stdout ?? ''
}

export function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve()
  return new Promise((resolve) => child.once('exit', () => resolve()))
}
