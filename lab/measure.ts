// measure.ts - runs ping and iperf3 between network namespaces and returns the measured values.

import type { ChildProcess } from 'node:child_process'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { ended, execute } from './command.ts'
import { EVENT_MS } from './lab.ts'

const REACH_PAUSE_MS = 50

const inside = (namespace: string, ...command: string[]): string[] => ['ip', 'netns', 'exec', namespace, ...command]

/**
 * Sends `count` pings and returns their round-trip times in ms. The list is shorter if pings were lost, or if ping was
 * ended after `deadlineS` seconds, an integer.
 */
export async function ping(
  namespace: string,
  address: string,
  { count = 3, intervalS = 0.2, deadlineS = 0 } = {},
): Promise<number[]> {
  const deadline = deadlineS > 0 ? ['-w', String(deadlineS)] : []
  const { stdout } = await execute(
    inside(namespace, 'ping', '-n', '-c', String(count), '-i', String(intervalS), '-W', '1', ...deadline, address),
  )
  return [...stdout.matchAll(/time=([\d.]+) ms/g)].map((match) => Number(match[1]))
}

/** Sends pings until one ping is answered. Rejects if no ping is answered within `timeoutMs`. */
export async function reach(namespace: string, address: string, timeoutMs = EVENT_MS): Promise<void> {
  const end = performance.now() + timeoutMs
  for (;;) {
    const seconds = Math.max(1, Math.ceil((end - performance.now()) / 1000))
    // Repeat the command, because ping ends before its deadline (-w) at an ICMP error, for example while weftd does not
    // yet know the peer.
    const { code, stdout, stderr } = await execute(
      inside(namespace, 'ping', '-n', '-c', '1', '-i', '0.1', '-w', String(seconds), address),
    )
    if (code === 0) return
    if (performance.now() >= end) throw new Error(`${namespace} cannot reach ${address}: ${(stderr || stdout).trim()}`)
    await delay(REACH_PAUSE_MS)
  }
}

interface IperfServer {
  /**
   * Runs an iperf3 client in a network namespace, which connects to this iperf3 server. `args` are more arguments, such
   * as ['--udp', '--length', '64'].
   */
  run(namespace: string, address: string, seconds: number, args?: readonly string[]): Promise<IperfResult>
  stop(): Promise<void>
}

export async function iperfServer(
  spawn: (command: readonly string[]) => ChildProcess,
  port = 5201,
): Promise<IperfServer> {
  const process = spawn(['iperf3', '--server', '--forceflush', '--port', String(port)])
  const { stdout } = process
  if (!stdout) throw new Error('iperf3 has no stdout')
  const lines = createInterface({ input: stdout })[Symbol.asyncIterator]()
  // Wait for the server's next line `listening`. After each run iperf3 stops listening for a moment, in which a client
  // would fail.
  const listens = async (): Promise<void> => {
    for (;;) {
      const { value, done } = await lines.next()
      if (done === true) throw new Error('iperf3 --server ended; is the port taken?')
      if (value.includes('listening')) return
    }
  }
  await listens()
  let ready = Promise.resolve()
  return {
    async run(namespace, address, seconds, args = []) {
      await ready
      ready = listens()
      ready.catch(() => {}) // the server may be stopped without another run
      return iperfClient(namespace, address, seconds, [...args, '--port', String(port)])
    },
    async stop() {
      process.kill('SIGTERM')
      await ended(process)
    },
  }
}

export interface IperfResult {
  readonly bitsPerSecond: number
  readonly packetsPerSecond: number
  /** The fraction of UDP datagrams that were lost, from 0 to 1. */
  readonly loss: number
  readonly retransmits: number
}

interface IperfJson {
  readonly error?: string
  readonly end?: {
    readonly sum_received?: { readonly bits_per_second?: number }
    readonly sum_sent?: { readonly retransmits?: number }
    readonly sum?: {
      readonly packets?: number
      readonly lost_packets?: number
      readonly seconds?: number
      readonly bits_per_second?: number
    }
  }
}

async function iperfClient(
  namespace: string,
  address: string,
  seconds: number,
  args: readonly string[],
): Promise<IperfResult> {
  const command = inside(namespace, 'iperf3', '--client', address, '--time', String(seconds), '--json', ...args)
  const { stdout, stderr } = await execute(command, { timeoutMs: seconds * 1000 + EVENT_MS })
  const json = JSON.parse(stdout || '{}') as IperfJson
  if (json.error !== undefined || !json.end)
    throw new Error(`iperf3 to ${address}: ${json.error ?? (stderr.trim() || 'no result')}`)
  const { sum, sum_received: received, sum_sent: sent } = json.end
  const lost = sum?.packets ? (sum.lost_packets ?? 0) / sum.packets : 0
  return {
    bitsPerSecond: received?.bits_per_second ?? sum?.bits_per_second ?? 0,
    packetsPerSecond: sum?.packets && sum.seconds ? (sum.packets - (sum.lost_packets ?? 0)) / sum.seconds : 0,
    loss: lost,
    retransmits: sent?.retransmits ?? 0,
  }
}

/** Returns the median of the values; NaN if the list is empty. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? (sorted[middle] ?? NaN) : ((sorted[middle - 1] ?? NaN) + (sorted[middle] ?? NaN)) / 2
}
