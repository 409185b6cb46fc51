// cases.ts - what is measured on a path. Each case takes one sample; main.ts repeats and interleaves them.

import { readFileSync } from 'node:fs'
import { iperf, median, ping } from '../lab/measure.ts'
import type { Path } from './paths.ts'

export interface Metric {
  readonly title: string
  readonly unit: string
  readonly better: 'more' | 'less'
}

export interface Case {
  /** Told to the reader with the table: how the sample is taken. */
  readonly method: string
  readonly metrics: Readonly<Record<string, Metric>>
  /** One value for each metric. */
  sample(path: Path, seconds: number): Promise<Readonly<Record<string, number>>>
}

const MAX_LOSS = 0.01
/** Socket buffers for UDP: iperf3's own 208 KB lose most of a flood of small packets, whatever carries them. */
const UDP_WINDOW = Math.min(4 << 20, Number(readFileSync('/proc/sys/net/core/rmem_max', 'utf8')))

/** Seconds that all CPUs together have been busy since boot (proc_stat(5): user, nice, system, irq, softirq). */
function cpuSeconds(): number {
  const [total = ''] = readFileSync('/proc/stat', 'utf8').split('\n', 1)
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0] = total.split(/\s+/).slice(1).map(Number)
  return (user + nice + system + irq + softirq) / 100
}

function tcp(streams: number): Case {
  const name = streams === 1 ? '1 stream' : `${streams} streams`
  return {
    method: `iperf3, ${name}, one way, the system's congestion control; CPU is all that the machine spent, iperf3 included`,
    metrics: {
      throughput: { title: `TCP ${name}`, unit: 'Gbit/s', better: 'more' },
      cpu: { title: `TCP ${name}, CPU`, unit: 's/GB', better: 'less' },
    },
    async sample({ from, address }, seconds) {
      const before = cpuSeconds()
      const { bitsPerSecond } = await iperf(from.namespace, address, seconds, ['--parallel', String(streams)])
      const gigabytes = (bitsPerSecond * seconds) / 8e9
      return { throughput: bitsPerSecond / 1e9, cpu: (cpuSeconds() - before) / gigabytes }
    },
  }
}

function udp(path: Path, bytes: number, seconds: number, bitsPerSecond: number): ReturnType<typeof iperf> {
  const args = [
    '--udp',
    '--length',
    String(bytes),
    '--bitrate',
    String(Math.round(bitsPerSecond)),
    '--window',
    String(UDP_WINDOW),
  ]
  return iperf(path.from.namespace, path.address, seconds, args)
}

function udpFlood(bytes: number): Case {
  return {
    method: `iperf3 sends UDP with ${bytes} B of payload as fast as it can; what arrives is counted`,
    metrics: { received: { title: `UDP ${bytes} B, flood`, unit: 'kpps', better: 'more' } },
    sample: async (path, seconds) => ({ received: (await udp(path, bytes, seconds, 0)).packetsPerSecond / 1e3 }),
  }
}

function udpClean(bytes: number): Case {
  const STEPS = 7
  return {
    method: `the highest rate of UDP with ${bytes} B of payload that loses at most 1%, by ${STEPS} halvings of an interval`,
    metrics: { rate: { title: `UDP ${bytes} B, loss <= 1%`, unit: 'kpps', better: 'more' } },
    async sample(path, seconds) {
      const bits = bytes * 8
      let best = 0
      let low = 0
      // No rate above what a flood sends can be tried; what a flood loses does not count against it.
      const flood = await udp(path, bytes, seconds, 0)
      let high = flood.packetsPerSecond / (1 - flood.loss)
      for (let step = 0; step < STEPS; step++) {
        const rate = (low + high) / 2
        const { packetsPerSecond, loss } = await udp(path, bytes, seconds, rate * bits)
        if (loss <= MAX_LOSS) {
          best = Math.max(best, packetsPerSecond)
          low = rate
        } else high = rate
      }
      return { rate: best / 1e3 }
    },
  }
}

/** The median in us of 200 pings, 5 ms apart, so that each meets an idle path. */
async function pingMedian({ from, address }: Path): Promise<number> {
  return median(await ping(from.namespace, address, { count: 200, intervalS: 0.005 })) * 1e3
}

const pingIdle: Case = {
  method: 'median of 200 pings, 5 ms apart',
  metrics: { p50: { title: 'ping p50, idle', unit: 'us', better: 'less' } },
  sample: async (path) => ({ p50: await pingMedian(path) }),
}

const pingLoaded: Case = {
  method: 'median of 200 pings, 5 ms apart, beside one TCP stream',
  metrics: { p50: { title: 'ping p50, under TCP', unit: 'us', better: 'less' } },
  async sample(path) {
    const [, p50] = await Promise.all([iperf(path.from.namespace, path.address, 2), pingMedian(path)])
    return { p50 }
  },
}

export const CASES: Readonly<Record<string, Case>> = {
  tcp: tcp(1),
  tcp8: tcp(8),
  udp64: udpFlood(64),
  udp1400: udpFlood(1400),
  ping: pingIdle,
  'ping-loaded': pingLoaded,
  'udp64-clean': udpClean(64),
  'udp1400-clean': udpClean(1400),
}

/** Groups of cases that may be named instead of a case. */
export const GROUPS: Readonly<Record<string, readonly string[]>> = {
  net: Object.keys(CASES),
  short: ['tcp', 'udp64', 'udp1400', 'ping'],
}
