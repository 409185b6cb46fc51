// bench.ts - `weft bench`: the same streams to a peer outside and inside the tunnel, and what the way inside costs.

import { networkInterfaces } from 'node:os'
import { isWeftError, messageOf, WeftError } from '../errors.ts'
import { DEFAULT_PORT, type Counts, type InUse } from '../measure/conversation.ts'
import { connectTo, type Way } from '../measure/lines.ts'
import { listen } from '../measure/listener.ts'
import { datagramBytes, planOf, type Both, type Plan } from '../measure/plan.ts'
import { increase, resultOf, type Compared, type Result } from '../measure/result.ts'
import { beginRun, measure, type Run } from '../measure/run.ts'
import { netContains, parseAddress, parseNet } from '../net/address.ts'
import { formatIpv4, parseIpv4 } from '../net/ipv4.ts'
import type { PeerStatus, Status } from '../status/status.ts'
import { jsonLine, printable } from '../text.ts'
import { askStatus } from './ask.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG, type Call } from './command.ts'
import { bitRate, carrierText, milliseconds, table, type Screen } from './look.ts'
import { askedPeer, createAsker } from './peer.ts'

const IDLE_MINUTES = 15
const PING_MS = 1_000
/** Less is not told as a number. */
const LEAST_PERCENT = 0.001
/** What every path of the internet takes: of a data path that does not say more (RFC 8200, section 5). */
const LEAST_MTU = 1280

const flags = {
  listen: { default: false, help: 'be the other end, for peers that run weft bench with the name of this host' },
  port: { default: DEFAULT_PORT, help: 'TCP and UDP port of the other end, the same on both hosts' },
  from: {
    default: [] as readonly string[],
    placeholder: 'ADDRESS',
    help: 'with --listen: let this host in too, of which no weftd here knows; may be given again',
  },
  streams: { default: 8, help: 'TCP connections at once' },
  seconds: { default: '2', placeholder: 'N', help: 'how long each sample lasts' },
  pairs: { default: 3, help: 'how often each path has its turn' },
  rate: { default: 0, help: 'Mbit/s of UDP; 0 for half of what TCP reached, 200 at most' },
  ...JSON_FLAG,
  ...SOCKET_FLAG,
} as const

export const benchCommand = command({
  name: 'bench',
  args: '[PEER]',
  does: 'measure the same streams to a peer outside and inside the tunnel',
  more:
    'PEER is its subnet, an address within it, or its public IP; there `weft bench --listen` must run. ' +
    'Takes about half a minute and fills the link meanwhile, which other traffic feels. Exits with 3 when a stream is not carried.',
  flags,
  async run(call) {
    const { options, args } = call
    const [peer] = args
    if ((peer === undefined) !== options.listen) {
      throw new WeftError('USAGE', 'weft bench takes a peer, or --listen', { remedy: 'see weft bench --help' })
    }
    if (options.port < 1 || options.port > 65_535) {
      throw new WeftError('USAGE', `--port is ${options.port}`, { remedy: 'give 1 to 65535' })
    }
    return peer === undefined ? listenHere(call) : benchPeer(call, peer)
  },
})

type BenchCall = Call<typeof flags>

/** What of a host's status explains the figures to one of its peers. */
export function inUseOf({ node, config, dataPath }: Status, peer: PeerStatus | undefined): InUse {
  const { device = null, engine = null, mtu = null, features = [] } = dataPath ?? {}
  return {
    ...{ subnet: node?.subnet ?? '', backendType: config?.backendType ?? '', device, engine, mtu, features },
    pathMtu: peer?.pathMtu ?? null,
  }
}

// --- The other end.

async function listenHere({ options, screen, signal }: BenchCall): Promise<number> {
  const { port, from, 'status-socket': socket } = options
  const unreadable = from.find((text) => parseIpv4(text) === undefined)
  if (unreadable !== undefined) {
    throw new WeftError('USAGE', `${unreadable} is no IPv4 address`, { remedy: 'write it as 10.5.1.2' })
  }
  const asked = await askStatus(socket, signal).catch((error: unknown) => {
    if (from.length > 0 && isWeftError(error)) return undefined
    if (!isWeftError(error)) throw error
    throw new WeftError(error.code, `who may come cannot be told: ${error.message}`, {
      remedy: 'name the host that will measure with --from, or start weftd here',
      cause: error,
    })
  })
  const status = (): Promise<Status | undefined> => askStatus(socket, signal).catch(() => undefined)
  const own = asked?.node?.publicIp ?? 'PEER'
  const words = `weft bench ${own}${port === DEFAULT_PORT ? '' : ` --port ${port}`}`
  screen.write(
    `listening at TCP and UDP port ${port}, until Ctrl-C or ${IDLE_MINUTES} minutes without a run; on the other host: ${words}\n`,
  )
  await listen(
    {
      port,
      idleMs: IDLE_MINUTES * 60_000,
      refusal: async (address, inside) => refusalOf(await status(), from, address, inside),
      async here(address) {
        const now = await status()
        const peer = now?.peers?.list.find(({ publicIp }) => publicIp === address)
        return now ? { inUse: inUseOf(now, peer), drops: now.dataPath?.drops ?? {} } : null
      },
      say: (line) => screen.write(`${printable(line)}\n`),
    },
    signal,
  )
  return EXIT.ok
}

/** Who comes from a peer's public IP may, and whom the operator named: the listener is no sink for everybody. */
export function refusalOf(
  status: Status | undefined,
  from: readonly string[],
  address: string,
  inside: string,
): string | undefined {
  const overlay = parseAddress(inside)
  if (overlay === undefined) return 'it has no overlay address'
  if (from.includes(address)) return undefined
  if (!status) return 'no weftd answers that could tell who may come'
  const peers = status.peers?.list.filter(({ publicIp }) => publicIp === address) ?? []
  if (peers.length === 0) return `no peer of this node has the public IP ${address}, and it was not named with --from`
  const isItsOwn = peers.some(({ subnet }) => {
    const net = parseNet(subnet)
    return net !== undefined && netContains(net, overlay)
  })
  return isItsOwn ? undefined : `${inside} is not in the subnet of ${address}`
}

// --- This end.

interface Ways extends Both<Way> {
  readonly inside: Way & { readonly from: string }
}

async function benchPeer({ options, screen, signal }: BenchCall, name: string): Promise<number> {
  const { port, json, 'status-socket': socket } = options
  const plan = planOf(options)
  if ('problem' in plan) throw new WeftError('USAGE', plan.problem, { remedy: plan.remedy })
  const before = await askStatus(socket, signal)
  const { peer, probe } = askedPeer(before, name)
  const ways = waysTo(before, peer, { from: formatIpv4(probe.from), to: formatIpv4(probe.to) })
  const about = { peer: peer.subnet, outside: ways.outside.to, inside: ways.inside.to, port }

  const tell = progress(screen, json)
  let run: Run | undefined
  const close = (): void => run?.close()
  signal.addEventListener('abort', close)
  try {
    run = await begin(ways, port)
    signal.throwIfAborted()
    try {
      await run.openEcho('inside')
    } catch (error) {
      signal.throwIfAborted()
      const why = await whyNotInside(ways.inside, port, error)
      screen.write(json ? jsonLine({ ...about, unreached: why }) : `${screen.colour('bad', printable(why))}\n`)
      return EXIT.wrong
    }
    const here = inUseOf(before, peer)
    const bytes = datagramBytes(here.mtu ?? LEAST_MTU, here.pathMtu)
    const samples = await measure(run, plan, bytes, tell, signal)
    const thereDrops = await run.end()
    const after = await askStatus(socket, signal)
    const drops = { here: increase(before.dataPath?.drops ?? {}, after.dataPath?.drops ?? {}), there: thereDrops }
    const result = resultOf(samples)
    tell('')
    const all = { ...about, plan, ...result, samples, inUse: { here, there: run.there }, drops }
    screen.write(json ? jsonLine(all) : textOf(all, screen))
    return result.isBroken ? EXIT.wrong : EXIT.ok
  } catch (error) {
    if (!signal.aborted) throw error
    screen.warn('weft bench: stopped before its end')
    return EXIT.failed
  } finally {
    signal.removeEventListener('abort', close)
    close()
    tell('')
  }
}

/** Throws WeftError where both paths are one. */
function waysTo({ node, config }: Status, { publicIp }: PeerStatus, inside: Ways['inside']): Ways {
  if (inside.to === publicIp) {
    throw new WeftError('CONFIG', `with the ${config?.backendType} backend packets travel as they are`, {
      remedy: 'there is no tunnel, and nothing to compare',
    })
  }
  // By the address that the peer knows us by; where it is a router's, the kernel chooses.
  const own = Object.values(networkInterfaces()).flatMap((addresses) => addresses?.map(({ address }) => address) ?? [])
  const from = own.find((address) => address === node?.publicIp)
  return { outside: { to: publicIp, from }, inside }
}

/** Throws WeftError when the listener is not reached outside, or does not let us in. */
async function begin(ways: Ways, port: number): Promise<Run> {
  const { to } = ways.outside
  try {
    const run = await beginRun(ways, port, ways.inside.from)
    if ('refused' in run) {
      throw refusedBy(to, run.refused)
    }
    await run.openEcho('outside').catch((error: unknown) => {
      run.close()
      // One without a code is the listener's own answer.
      throw isRefusal(error) ? refusedBy(to, messageOf(error)) : error
    })
    return run
  } catch (error) {
    throw isWeftError(error) ? error : await whyNotOutside(ways, port, error)
  }
}

const refusedBy = (to: string, why: string): WeftError =>
  new WeftError('PERMISSION', `weft bench --listen at ${to} refuses: ${why}`, { remedy: 'see what it says there' })

const isRefusal = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === undefined
const isRefused = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === 'ECONNREFUSED'

/** Whether a listener is there at all, the other path tells. */
async function whyNotOutside({ outside, inside }: Ways, port: number, error: unknown): Promise<WeftError> {
  const { to } = outside
  const [socket, insideError] = await connectTo(inside, port, PING_MS).then(
    (connected) => [connected, undefined] as const,
    (reason: unknown) => [undefined, reason] as const,
  )
  socket?.destroy()
  const options = { cause: error }
  if (socket) {
    return new WeftError(
      'COMMAND',
      `TCP port ${port} of ${to} is reached inside and not outside: ${messageOf(error)}`,
      {
        remedy: `let TCP and UDP port ${port} through the firewall between the hosts, or choose another --port on both`,
        ...options,
      },
    )
  }
  if (isRefused(error) || isRefused(insideError)) {
    return new WeftError('COMMAND', `nobody listens at TCP port ${port} of ${to}`, {
      remedy: 'run `weft bench --listen` there',
      ...options,
    })
  }
  return new WeftError('COMMAND', `TCP port ${port} of ${to} is not reached, outside or inside: ${messageOf(error)}`, {
    remedy: 'run `weft bench --listen` there, and let TCP and UDP of that port through its firewall',
    ...options,
  })
}

/** The listener is reached outside: whether it is the data path or that port alone, a ping tells. */
async function whyNotInside({ to, from }: Ways['inside'], port: number, error: unknown): Promise<string> {
  const what = `TCP port ${port} of ${to} is reached outside and not inside: ${messageOf(error)}`
  if (isRefusal(error)) return `${what}; is the source ${from} rewritten on the way?`
  const answers = await pinged(to, from)
  if (answers === undefined) return `${what}; see weft doctor on both hosts`
  return answers
    ? `${what}; a ping through the data path is answered: let TCP and UDP port ${port} from ${from} through the firewall there`
    : `${what}; nor is a ping through the data path answered: see weft doctor on both hosts`
}

/** Undefined where we may not ask. */
async function pinged(to: string, from: string): Promise<boolean | undefined> {
  const [target, source] = [parseIpv4(to), parseIpv4(from)]
  if (target === undefined || source === undefined) return undefined
  try {
    const asker = createAsker(source)
    const took = await asker.ask(target, PING_MS).finally(() => asker.close())
    return took !== undefined
  } catch {
    return undefined
  }
}

/** A line that is written over, where somebody looks; empty text takes it away. */
function progress(screen: Screen, json: boolean): (what: string) => void {
  return (what) => {
    if (screen.isTerminal && !json) screen.write(`\u001B[G${screen.colour('dim', what)}\u001B[K`)
  }
}

export interface Report extends Result {
  readonly peer: string
  readonly outside: string
  readonly inside: string
  readonly plan: Plan
  readonly inUse: { readonly here: InUse; readonly there: InUse | null }
  readonly drops: { readonly here: Counts; readonly there: Counts | null }
}

/** For a person. */
export function textOf(report: Report, { colour }: Pick<Screen, 'colour'>): string {
  const { peer, outside, inside, plan, tcp, udp, roundTripMs, inUse, drops, notes } = report
  const or = (value: number | null, text: (value: number) => string): string => (value === null ? '-' : text(value))
  const times = (ratio: number): string => `${ratio.toFixed(2)} x`
  const percent = (value: number): string =>
    value > 0 && value < LEAST_PERCENT ? `< ${LEAST_PERCENT}%` : `${Number(value.toPrecision(3))}%`
  const compared = ({ outside: out, inside: within, ratio }: Compared, text: (value: number) => string): string[] => [
    or(out, text),
    or(within, text),
    or(ratio, times),
  ]
  const spread =
    tcp.leastRatio === null || tcp.mostRatio === null ? '' : `${times(tcp.leastRatio)} to ${times(tcp.mostRatio)}`
  const heading = `${peer}, outside to ${outside}, inside to ${inside}; each path ${plan.pairs} x ${plan.seconds} s in turns\n\n`
  const rows = [
    ['', 'OUTSIDE', 'INSIDE', 'RATIO', 'OF EACH PAIR'],
    [`TCP, ${plan.streams} connection${plan.streams === 1 ? '' : 's'}`, ...compared(tcp, bitRate), spread],
    [
      `UDP, ${udp.datagramBytes} B, sent`,
      bitRate(udp.outside.sentBitsPerSecond),
      bitRate(udp.inside.sentBitsPerSecond),
    ],
    ['UDP, lost', percent(udp.outside.lossPercent), percent(udp.inside.lossPercent)],
    ['round trip, idle', ...compared(roundTripMs, milliseconds)],
  ]
  const carrier = (end: 'here' | 'there'): string => {
    const used = inUse[end]
    if (!used) return 'no weftd answers'
    const path = used.pathMtu === null ? '' : `, ${used.pathMtu} to the other end`
    return `${used.subnet}, ${carrierText(used)}${path}`
  }
  const dropped = (counts: Counts | null): string => {
    if (!counts) return '-'
    const all = Object.entries(counts).map(([name, count]) => `${name} ${count}`)
    return all.length === 0 ? 'none' : colour('doubtful', all.join(', '))
  }
  const facts = [
    ['here', carrier('here')],
    ['there', carrier('there')],
    ['drops here', dropped(drops.here)],
    ['drops there', dropped(drops.there)],
  ] as const
  return [
    heading,
    table(rows, colour),
    '\n',
    ...facts.map(([what, text]) => `${colour('dim', what.padEnd(13))}${text}\n`),
    ...(notes.length > 0 ? ['\n', ...notes.map((note) => `${colour('doubtful', note)}\n`)] : []),
  ].join('')
}
