// cases.ts - defines the measurements (cases) that compare data paths between two hosts, such as two backends of weft.
// A case takes one sample on one data path. measure.ts repeats the cases and alternates between the data paths.

import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { median, ping } from '../lab/measure.ts'
import type { Path } from './paths.ts'
import { highestCleanRate, type Trial } from './search.ts'

export interface Metric {
  readonly title: string
  readonly unit: string
  readonly better: 'more' | 'less'
}

export interface Case {
  /** A description of the measurement, for readers of the table of results. */
  readonly method: string
  readonly metrics: Readonly<Record<string, Metric>>
  /** Returns the approximate duration of one sample in seconds. `seconds` is the duration that the user requested. */
  lasts(seconds: number): number
  sample(path: Path, seconds: number): Promise<Readonly<Record<string, number>>>
}

const system = (path: string): string => readFileSync(path, 'utf8').trim()

/**
 * The returned function returns this machine's busy CPU seconds since the call of `busyClock`. Idle time, waiting for
 * I/O and steal time do not count as busy (proc_stat(5)); in steal time other virtual machines used the CPU.
 */
function busyClock(): () => number {
  const idleSeconds = (): number => {
    const [total = ''] = system('/proc/stat').split('\n', 1)
    const [, , , idle = 0, iowait = 0, , , steal = 0] = total.split(/\s+/).slice(1).map(Number)
    return (idle + iowait + steal) / 100
  }
  const cores = system('/proc/stat').match(/^cpu\d/gm)?.length ?? 1
  const [idle, start] = [idleSeconds(), performance.now()]
  return () => Math.max(0, ((performance.now() - start) / 1000) * cores - (idleSeconds() - idle))
}

/**
 * Returns the name of the TCP congestion control for the measurements (cases): BBR if the kernel has loaded it, else
 * the system's default.
 */
function usual(): string {
  const folder = '/proc/sys/net/ipv4'
  const hasBbr = system(`${folder}/tcp_available_congestion_control`).split(' ').includes('bbr')
  return hasBbr ? 'bbr' : system(`${folder}/tcp_congestion_control`)
}

function tcp(streams: number, control: string, label = ''): Case {
  const name = `${streams === 1 ? '1 stream' : `${streams} streams`}${label}`
  return {
    method: `iperf3 with ${streams} ${streams === 1 ? 'stream' : 'streams'} in one direction and ${control}`,
    metrics: {
      throughput: { title: `TCP ${name}`, unit: 'Gbit/s', better: 'more' },
      cpu: { title: `TCP ${name}, CPU`, unit: 's/GB', better: 'less' },
    },
    lasts: (seconds) => seconds + 0.2,
    async sample({ iperf }, seconds) {
      const busy = busyClock()
      const args = ['--parallel', String(streams), '--congestion', control]
      const { bitsPerSecond } = await iperf(seconds, args)
      return { throughput: bitsPerSecond / 1e9, cpu: busy() / ((bitsPerSecond * seconds) / 8e9) }
    },
  }
}

interface UdpTrial extends Trial {
  /** The CPU time that the whole machine spent per received datagram, in microseconds. */
  readonly cpu: number
  /**
   * The share of `cpu`, in %, that the sending and the receiving program used, including the time in their system
   * calls.
   */
  readonly ends: number
}

/** The receiving program: `udp` sleeps until a datagram wakes it; `udp-polled` checks its socket at intervals. */
type Receiver = 'udp' | 'udp-polled'

/**
 * Sends datagrams of `bytes` bytes for `seconds` seconds and counts the datagrams that arrive. `rate` is the sending
 * rate in datagrams per second; 0 means as fast as the sender can.
 */
async function udp(to: Receiver, path: Path, bytes: number, seconds: number, rate: number): Promise<UdpTrial> {
  const busy = busyClock()
  const run = await path.traffic(to, path.address, seconds, bytes, Math.round(rate))
  const { sent = 0, seconds: took = 1 } = run
  // Datagrams that the receiver's full socket buffer dropped count as received, because the measured path delivered
  // them.
  const received = (run['received'] ?? 0) + (run['sinkDrops'] ?? 0)
  const spent = busy()
  return {
    sent: sent / took,
    received: received / took,
    cpu: (spent * 1e6) / Math.max(1, received),
    ends: (((run['senderCpu'] ?? 0) + (run['sinkCpu'] ?? 0)) / spent) * 100,
  }
}

function udpFlood(bytes: number): Case {
  return {
    method: `UDP with ${bytes} B of payload, as fast as one sender can send with sendmmsg; the figure counts the datagrams that arrive`,
    metrics: { received: { title: `UDP ${bytes} B, flood`, unit: 'kpps', better: 'more' } },
    lasts: (seconds) => seconds + 0.2,
    sample: async (path, seconds) => ({ received: (await udp('udp', path, bytes, seconds, 0)).received / 1e3 }),
  }
}

const TRIAL_S = 0.4

function udpClean(bytes: number, to: Receiver = 'udp'): Case {
  const polled = to === 'udp-polled'
  const label = polled ? ', polled' : ''
  return {
    method: `the highest rate of UDP packets with ${bytes} B of payload at which at most 1% are lost, by bisection with trials of ${TRIAL_S} s; the receiver ${polled ? 'checks for packets every 500 us, so that no datagram wakes the receiver' : 'waits in poll(2)'}`,
    metrics: {
      rate: { title: `UDP ${bytes} B${label}, loss <= 1%`, unit: 'kpps', better: 'more' },
      cpu: { title: `UDP ${bytes} B${label}, CPU`, unit: 'us/packet', better: 'less' },
      ends: { title: `UDP ${bytes} B${label}, share of sender and receiver`, unit: '%', better: 'less' },
    },
    lasts: () => 12 * TRIAL_S,
    async sample(path) {
      const best = await highestCleanRate((rate) => udp(to, path, bytes, TRIAL_S, rate))
      return best ? { rate: best.received / 1e3, cpu: best.cpu, ends: best.ends } : { rate: 0 }
    },
  }
}

const latency = (what: string, percentile: number): Metric => ({
  title: `${what} p${percentile}`,
  unit: 'us',
  better: 'less',
})

const rr: Case = {
  method: 'requests of one byte and answers of one byte over one TCP connection, without pauses',
  metrics: {
    rate: { title: 'request/response', unit: 'k/s', better: 'more' },
    p50: latency('request/response', 50),
    p99: latency('request/response', 99),
    cpu: { title: 'request/response, CPU', unit: 'us each', better: 'less' },
  },
  lasts: (seconds) => seconds + 0.1,
  async sample(path, seconds) {
    const busy = busyClock()
    const { perSecond = 0, p50 = 0, p99 = 0 } = await path.traffic('rr', path.address, seconds, 0)
    return { rate: perSecond / 1e3, p50, p99, cpu: (busy() * 1e6) / (perSecond * seconds) }
  },
}

const PAUSE_MS = 10

const rrIdle: Case = {
  method: `requests and answers as in the case rr, with a pause of ${PAUSE_MS} ms before each request, so that all threads sleep as on an idle host`,
  metrics: { p50: latency('request/response, idle,', 50), p99: latency('request/response, idle,', 99) },
  lasts: (seconds) => seconds + 0.1,
  async sample(path, seconds) {
    const { p50 = 0, p99 = 0 } = await path.traffic('rr', path.address, seconds, PAUSE_MS * 1000)
    return { p50, p99 }
  },
}

const crr: Case = {
  method:
    'a new TCP connection for each request of one byte; the client closes the connection with a reset after the answer of one byte',
  metrics: {
    rate: { title: 'connect, request, response', unit: 'k/s', better: 'more' },
    p50: latency('connect, request, response,', 50),
    p99: latency('connect, request, response,', 99),
  },
  lasts: (seconds) => seconds + 0.1,
  async sample(path, seconds) {
    const { perSecond = 0, p50 = 0, p99 = 0 } = await path.traffic('crr', path.address, seconds)
    return { rate: perSecond / 1e3, p50, p99 }
  },
}

const percentile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.round(share * (values.length - 1))] ?? Number.NaN

const pingIdle: Case = {
  method: `the median of 100 pings, ${PAUSE_MS} ms apart; the kernel of the other host answers`,
  metrics: { p50: latency('ping, idle,', 50) },
  lasts: () => (100 * PAUSE_MS) / 1000,
  async sample({ from, address }) {
    const times = await ping(from.namespace, address, { count: 100, intervalS: PAUSE_MS / 1000 })
    return { p50: median(times) * 1e3 }
  },
}

/**
 * Settings of samples that are taken during a bulk TCP transfer: the duration, the interval of pings, and the delay
 * from the start of the transfer to the start of the sample, all in seconds.
 */
const LOADED = { seconds: 3, pingIntervalS: 0.0015, startS: 0.3 }
const LOADED_S = Math.ceil(LOADED.seconds + LOADED.startS)

const streamsOf = (streams: number): string => (streams === 1 ? 'one TCP stream' : `${streams} TCP streams`)

/**
 * Takes a sample on a path during a bulk TCP transfer over that path. Returns the sample and the throughput of the
 * transfer in Gbit/s.
 */
async function beside<Sample>(
  { iperf }: Path,
  streams: number,
  sample: () => Promise<Sample>,
): Promise<readonly [Sample, number]> {
  const load = iperf(LOADED_S, ['--parallel', String(streams), '--congestion', usual()])
  const [taken, { bitsPerSecond }] = await Promise.all([delay(LOADED.startS * 1000).then(sample), load])
  return [taken, bitsPerSecond / 1e9]
}

function pingLoaded(streams: number): Case {
  const { seconds, pingIntervalS: intervalS } = LOADED
  const count = Math.ceil(seconds / intervalS)
  const what = `ping, beside ${streamsOf(streams)},`
  return {
    method: `pings for ${seconds} s during ${streamsOf(streams)}, one ping every ${intervalS * 1000} ms, or later if ping must wait for a CPU core`,
    metrics: {
      p50: latency(what, 50),
      p99: latency(what, 99),
      'p99.9': latency(what, 99.9),
      throughput: { title: `${streamsOf(streams)} beside ping`, unit: 'Gbit/s', better: 'more' },
    },
    lasts: () => LOADED_S,
    async sample(path) {
      const send = () => ping(path.from.namespace, path.address, { count, intervalS, deadlineS: seconds })
      const [times, throughput] = await beside(path, streams, send)
      const us = (share: number): number => percentile(times, share) * 1e3
      return { p50: us(0.5), p99: us(0.99), 'p99.9': us(0.999), throughput }
    },
  }
}

function rrLoaded(streams: number): Case {
  const what = `request/response, beside ${streamsOf(streams)}`
  return {
    method: `requests of one byte and answers of one byte over one TCP connection, for ${LOADED.seconds} s, beside ${streamsOf(streams)}`,
    metrics: {
      rate: { title: what, unit: 'k/s', better: 'more' },
      p50: latency(`${what},`, 50),
      p99: latency(`${what},`, 99),
      throughput: { title: `${streamsOf(streams)} beside request/response`, unit: 'Gbit/s', better: 'more' },
    },
    lasts: () => LOADED_S,
    async sample(path) {
      const [{ perSecond = 0, p50 = 0, p99 = 0 }, throughput] = await beside(path, streams, () =>
        path.traffic('rr', path.address, LOADED.seconds, 0),
      )
      return { rate: perSecond / 1e3, p50, p99, throughput }
    },
  }
}

export const CASES: Readonly<Record<string, Case>> = {
  tcp: tcp(1, usual()),
  tcp8: tcp(8, usual()),
  'tcp-cubic': tcp(1, 'cubic', ', cubic'),
  'tcp8-cubic': tcp(8, 'cubic', ', cubic'),
  udp64: udpClean(64),
  udp1400: udpClean(1400),
  'udp64-polled': udpClean(64, 'udp-polled'),
  'udp1400-polled': udpClean(1400, 'udp-polled'),
  'udp64-flood': udpFlood(64),
  'udp1400-flood': udpFlood(1400),
  rr,
  'rr-idle': rrIdle,
  crr,
  ping: pingIdle,
  'ping-loaded': pingLoaded(1),
  'ping-loaded8': pingLoaded(8),
  'rr-loaded': rrLoaded(1),
  'rr-loaded8': rrLoaded(8),
}

/** The measurements (cases) that `npm run bench` takes if the command line names no case. */
export const SHORT: readonly string[] = ['tcp', 'udp64', 'rr', 'ping']
export const SUITE: readonly string[] =
  'tcp tcp8 tcp-cubic tcp8-cubic udp64 udp1400 rr crr ping ping-loaded ping-loaded8 rr-loaded'.split(' ')
export const BETWEEN_BACKENDS: readonly string[] = ['tcp', 'tcp8', 'udp64', 'udp1400-flood', 'rr', 'ping']
export const BETWEEN_ENCRYPTED: readonly string[] = ['tcp', 'tcp8', 'udp64', 'rr', 'ping', 'ping-loaded8']
export const BETWEEN_FAMILIES: readonly string[] = ['tcp', 'tcp8', 'udp64', 'rr', 'ping']
export const BETWEEN_CONTAINERS: readonly string[] = ['tcp', 'tcp8', 'udp64', 'rr', 'ping-loaded', 'ping-loaded8']
export const BETWEEN_FEATURES: readonly string[] = ['tcp', 'tcp8', 'udp64-flood', 'udp1400-flood']
