// measure.ts - ping and iperf3 between namespaces, and their numbers.

import type { ChildProcess } from 'node:child_process'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { ended, execute } from './command.ts'
import { EVENT_MS } from './lab.ts'

const REACH_PAUSE_MS = 50

const inside = (namespace: string, ...command: string[]): string[] => ['ip', 'netns', 'exec', namespace, ...command]

/** Round-trip times in ms of `count` pings; fewer if some were lost, or not sent by `deadlineS` whole seconds. */
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

/** Pings until one is answered; rejects after `timeoutMs`. */
export async function reach(namespace: string, address: string, timeoutMs = EVENT_MS): Promise<void> {
  const end = performance.now() + timeoutMs
  for (;;) {
    const seconds = Math.max(1, Math.ceil((end - performance.now()) / 1000))
    // An ICMP error ends it before the deadline -w: a node that is not known yet is answered with one.
    const { code, stdout, stderr } = await execute(
      inside(namespace, 'ping', '-n', '-c', '1', '-i', '0.1', '-w', String(seconds), address),
    )
    if (code === 0) return
    if (performance.now() >= end)
      throw new Error(`${address} is not reached from ${namespace}: ${(stderr || stdout).trim()}`)
    await delay(REACH_PAUSE_MS)
  }
}

interface IperfServer {
  /** One run against it, by a client in a namespace; `args` beside the address, such as ['--udp', '--length', '64']. */
  run(namespace: string, address: string, seconds: number, args?: readonly string[]): Promise<IperfResult>
  stop(): Promise<void>
}

/** An iperf3 server that `spawn` starts in a namespace; it serves one run at a time. */
export async function iperfServer(
  spawn: (command: readonly string[]) => ChildProcess,
  port = 5201,
): Promise<IperfServer> {
  const process = spawn(['iperf3', '--server', '--forceflush', '--port', String(port)])
  const { stdout } = process
  if (!stdout) throw new Error('iperf3 has no stdout')
  const lines = createInterface({ input: stdout })[Symbol.asyncIterator]()
  // Between two runs it does not listen for a moment, and says when it does again.
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
      ready.catch(() => {}) // it may be stopped without another run
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
  /** UDP datagrams that arrived, a second. */
  readonly packetsPerSecond: number
  /** The part of UDP datagrams that was lost, 0 to 1. */
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

/** The middle value; NaN of none. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? (sorted[middle] ?? NaN) : ((sorted[middle - 1] ?? NaN) + (sorted[middle] ?? NaN)) / 2
}
