// measure.ts - runs ping and iperf3 between namespaces and returns their figures.

import type { ChildProcess } from 'node:child_process'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { ended, execute } from './command.ts'
import { EVENT_MS } from './lab.ts'

const REACH_PAUSE_MS = 50

const inside = (namespace: string, ...command: string[]): string[] => ['ip', 'netns', 'exec', namespace, ...command]

/** Returns the round-trip times in ms of `count` pings. There are fewer if pings were lost or `deadlineS` whole seconds have passed. */
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

/** Pings until an answer comes; rejects after `timeoutMs`. */
export async function reach(namespace: string, address: string, timeoutMs = EVENT_MS): Promise<void> {
  const end = performance.now() + timeoutMs
  for (;;) {
    const seconds = Math.max(1, Math.ceil((end - performance.now()) / 1000))
    // ping ends before the deadline (-w) if an ICMP error comes, for example because weftd does not know the peer yet.
    const { code, stdout, stderr } = await execute(
      inside(namespace, 'ping', '-n', '-c', '1', '-i', '0.1', '-w', String(seconds), address),
    )
    if (code === 0) return
    if (performance.now() >= end) throw new Error(`${namespace} cannot reach ${address}: ${(stderr || stdout).trim()}`)
    await delay(REACH_PAUSE_MS)
  }
}

interface IperfServer {
  /** Runs a client in a namespace against the server, with more arguments such as ['--udp', '--length', '64']. */
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
  // After a run iperf3 stops listening for a moment, and prints a line when it listens again.
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
  /** The share of lost UDP datagrams, 0 to 1. */
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

/** Returns the median; NaN if there are no values. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? (sorted[middle] ?? NaN) : ((sorted[middle - 1] ?? NaN) + (sorted[middle] ?? NaN)) / 2
}
