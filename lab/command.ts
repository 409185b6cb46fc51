// command.ts - runs programs for the lab and waits until they end. If a program fails, the error contains its output.

import { spawn, spawnSync, type ChildProcess } from 'node:child_process'

export interface Finished {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

/**
 * The factor by which all time limits of a lab are multiplied. Set WEFT_PATIENCE to this factor on a slow machine, such
 * as an emulated one.
 */
export const PATIENCE = Number(process.env['WEFT_PATIENCE'] ?? 1)

const TIMEOUT_MS = 120_000 * PATIENCE

/** Runs a program until it ends. By default the program is killed after two minutes. */
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

/**
 * Runs a program synchronously and returns its stdout, for cleanup while this process exits, when the process can no
 * longer wait for promises. Ignores failures of the program.
 */
export function executeSync(command: readonly string[]): string {
  const [file = '', ...args] = command
  return spawnSync(file, args, { encoding: 'utf8', timeout: 10_000 * PATIENCE }).stdout ?? ''
}

export function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve()
  return new Promise((resolve) => child.once('exit', () => resolve()))
}
