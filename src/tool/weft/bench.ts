// bench.ts - `weft bench`: measures the cost of the tunnel by sending streams to a peer, alternately outside and inside
// the tunnel.

import { networkInterfaces } from 'node:os'
import { describeError, isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { jsonLine, printable } from '../../base/text.ts'
import {
  familyOf,
  FAMILY_NAMES,
  formatAddress,
  formatNet,
  netContains,
  parseAddress,
  parseNet,
  type Family,
} from '../../net/address.ts'
import { lengthsUpTo, longestOf } from '../../net/lengths.ts'
import { kindOf } from '../../path/catalog.ts'
import { placeIn, sidesOf, type PeerStatus, type Status } from '../../report/status.ts'
import { DEFAULT_PORT, type InUse } from '../measure/conversation.ts'
import { connectTo, type PathAddresses } from '../measure/lines.ts'
import { listen } from '../measure/listener.ts'
import { datagramBytes, planOf, type Both, type Plan } from '../measure/plan.ts'
import { increase, resultOf, type Length } from '../measure/result.ts'
import { measure, Run } from '../measure/run.ts'
import { textOf, type About, type Report } from './bench-text.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG, type Call } from './command.ts'
import { fetchStatus } from './daemon-client.ts'
import type { Screen } from './look.ts'
import { peerToPing, createPinger, probesWanted, type Probe } from './peer.ts'

const IDLE_MINUTES = 15
const PING_MS = 1_000
/**
 * The MTU in bytes that `weft bench` assumes if the MTU of a path is not known. Every IPv6 path supports this MTU (RFC
 * 8200, section 5).
 */
const LEAST_MTU = 1280

const flags = {
  listen: { default: false, help: 'act as the other end; run this on the peer that you measure' },
  port: { default: DEFAULT_PORT, help: 'TCP and UDP port of the other end, the same on both hosts' },
  from: {
    default: [] as readonly string[],
    placeholder: 'ADDRESS',
    help: 'with --listen: also accept this host, which weftd here does not know as a peer; may be given several times',
  },
  streams: { default: 8, help: 'number of simultaneous TCP connections' },
  seconds: { default: '2', placeholder: 'N', help: 'seconds for each sample' },
  pairs: { default: 3, help: 'number of samples of each path, taken alternately' },
  rate: { default: 0, help: 'UDP rate in Mbit/s; 0: half of the TCP rate, at most 200' },
  family: { default: '', placeholder: 'FAMILY', help: 'measure only over this family: ipv4 or ipv6' },
  ...JSON_FLAG,
  ...SOCKET_FLAG,
} as const

export const benchCommand = command({
  name: 'bench',
  args: '[PEER]',
  does: 'measure the cost of the tunnel: the same streams to a peer, outside and inside it',
  more:
    'PEER is the name of its host, its subnet, an address in that subnet, or its public IP. `weft bench --listen` must run there. ' +
    'A dual-stack peer is measured over IPv4 and then over IPv6, about half a minute for each. The measurement fills the link, ' +
    'which slows other traffic down. Exits with 3 if a stream does not get through.',
  flags,
  isEndless: ({ listen: isListener }) => isListener,
  async run(call) {
    const { options, args } = call
    const [peer] = args
    if ((peer === undefined) !== options.listen) {
      throw new WeftError('USAGE', 'weft bench takes a peer, or --listen', {
        remedy: '`weft bench --help` explains the arguments',
      })
    }
    if (options.port < 1 || options.port > 65_535) {
      throw new WeftError('USAGE', `--port is ${options.port}`, { remedy: 'give a port from 1 to 65535' })
    }
    return peer === undefined ? listenHere(call) : benchPeer(call, peer)
  },
})

type BenchCall = Call<typeof flags>

/** Selects from a host's status the facts that explain the measured figures for one peer and family. */
export function inUseOf({ node, config, dataPath }: Status, peer: PeerStatus | undefined, family: Family): InUse {
  const { engine = null, mtu = null, features = [] } = dataPath ?? {}
  const device = dataPath?.devices[family] ?? null
  const subnet = node && placeIn(node, family).subnet
  return {
    subnet: subnet ? formatNet(subnet) : '',
    backendType: config?.backendType ?? '',
    device,
    engine,
    mtu,
    features,
    pathMtu: (peer && sidesOf(peer)[family]?.pathMtu) ?? null,
  }
}

async function listenHere({ options, screen, signal }: BenchCall): Promise<number> {
  const { port, from, 'status-socket': socket } = options
  const named = from.map((text) => {
    const address = parseAddress(text)
    if (address !== undefined) return formatAddress(address)
    throw new WeftError('USAGE', `${text} is not an IP address`, {
      remedy: 'write an address such as 10.5.1.2 or fd00:5:1::2',
    })
  })
  const first = await fetchStatus(socket, signal).catch((error: unknown) => {
    if (from.length > 0 && isWeftError(error)) return undefined
    if (!isWeftError(error)) throw error
    throw new WeftError(error.code, `the peers, which may connect, are not known: ${error.message}`, {
      remedy: 'name the measuring host with --from, or start weftd on this host',
      cause: error,
    })
  })
  const status = (): Promise<Status | undefined> => fetchStatus(socket, signal).catch(() => undefined)
  const own = first?.node?.publicIp ?? 'PEER'
  const words = `weft bench ${own}${port === DEFAULT_PORT ? '' : ` --port ${port}`}`
  screen.write(
    `listening at TCP and UDP port ${port}, until Ctrl-C or ${IDLE_MINUTES} minutes without a run; on the other host: ${words}\n`,
  )
  await listen(
    {
      port,
      idleMs: IDLE_MINUTES * 60_000,
      refusal: async (address, inside) => refusalOf(await status(), named, address, inside),
      async here(address, inside) {
        const now = await status()
        const peer = now?.peers?.list.find((each) => isAt(each, address))
        const family = familyOf(parseAddress(inside) ?? 0)
        return now ? { inUse: inUseOf(now, peer, family), drops: now.dataPath?.drops ?? {} } : null
      },
      say: (line) => screen.write(`${printable(line)}\n`),
    },
    signal,
  )
  return EXIT.ok
}

const isAt = ({ publicIp, publicIpv6 }: PeerStatus, address: string): boolean =>
  address === publicIp || address === publicIpv6

/**
 * Returns why a host may not use the listener; undefined if it may. Only hosts that connect from the public IP of a
 * peer, and hosts that the operator named, may use the listener.
 */
export function refusalOf(
  status: Status | undefined,
  from: readonly string[],
  address: string,
  inside: string,
): string | undefined {
  const overlay = parseAddress(inside)
  if (overlay === undefined) return 'it has no address in the overlay network'
  if (from.includes(address)) return undefined
  if (!status) return 'no weftd answers on this host, so the peers, which may connect, are not known'
  const peers = status.peers?.list.filter((peer) => isAt(peer, address)) ?? []
  if (peers.length === 0) return `no peer of this node has the public IP ${address}, and it was not named with --from`
  const isItsOwn = peers.some(({ subnet, ipv6Subnet }) =>
    [subnet, ipv6Subnet ?? ''].some((text) => {
      const net = parseNet(text)
      return net !== undefined && netContains(net, overlay)
    }),
  )
  return isItsOwn ? undefined : `${inside} is not in the subnet of ${address}`
}

interface Paths extends Both<PathAddresses> {
  readonly inside: PathAddresses & { readonly from: string }
}

async function benchPeer(call: BenchCall, name: string): Promise<number> {
  const { options, screen, signal } = call
  const plan = planOf(options)
  if ('problem' in plan) throw new WeftError('USAGE', plan.problem, { remedy: plan.remedy })
  const { peer, probes } = peerToPing(await fetchStatus(options['status-socket'], signal), name)
  const wanted = probesWanted(probes, options.family)
  const report = progress(screen, options.json)
  const outcomes: { -readonly [F in Family]?: Outcome } = {}
  const failures: WeftError[] = []
  try {
    for (const probe of wanted) {
      const by = wanted.length > 1 ? `${FAMILY_NAMES[probe.family]}: ` : ''
      const outcome = await benchBy(call, plan, peer, probe, (what) => report(what && by + what))
      if (isWeftError(outcome)) {
        if (wanted.length > 1) screen.warn(`weft bench: ${by}${describeError(outcome)}`)
        failures.push(outcome)
        continue
      }
      if (!options.json) screen.write(`${Object.keys(outcomes).length > 0 ? '\n' : ''}${outcomeText(outcome, screen)}`)
      outcomes[probe.family] = outcome
    }
  } finally {
    report('')
  }
  const { ipv4 = null, ipv6 = null } = outcomes
  const first = ipv4 ?? ipv6
  if (!first) throw failures[0]
  if (options.json) screen.write(jsonLine({ ...first, families: { ipv4, ipv6 } }))
  if ([ipv4, ipv6].some((each) => each && (!('tcp' in each) || each.isBroken))) return EXIT.wrong
  return failures.length > 0 ? EXIT.failed : EXIT.ok
}

type Outcome = Report | (About & { readonly unreached: string })

/**
 * Measures over one family. If the run cannot begin, resolves with the WeftError instead of rejecting, so that `weft
 * bench` still measures the second family.
 */
async function benchBy(
  { options: { port, 'status-socket': socket }, signal }: BenchCall,
  plan: Plan,
  peer: PeerStatus,
  probe: Probe,
  report: (what: string) => void,
): Promise<Outcome | WeftError> {
  const before = await fetchStatus(socket, signal)
  let run: Run | undefined
  const close = (): void => run?.close()
  signal.addEventListener('abort', close)
  try {
    const paths = pathsTo(before, peer, probe)
    const { subnet } = placeIn(peer, probe.family)
    const about = {
      peer: subnet ? formatNet(subnet) : peer.subnet,
      name: peer.name ?? null,
      outside: paths.outside.to,
      inside: paths.inside.to,
      port,
    }
    run = await begin(paths, port)
    signal.throwIfAborted()
    try {
      await run.openEcho('inside')
    } catch (error) {
      signal.throwIfAborted()
      const unreached = await whyNotInside(paths.inside, port, error)
      await run.end().catch(() => {}) // so that the listener is free for the next run
      return { ...about, unreached }
    }
    const here = inUseOf(before, peer, probe.family)
    report('the longest packet')
    const length = await lengthOf(probe, here)
    // Limit the datagrams to the longest packet that passes, because longer datagrams would only be lost.
    const bytes = datagramBytes(here.mtu ?? LEAST_MTU, length?.longest ?? here.pathMtu, probe.family)
    const samples = await measure(run, plan, bytes, report, signal)
    const thereDrops = await run.end()
    const after = await fetchStatus(socket, signal)
    const drops = { here: increase(before.dataPath?.drops ?? {}, after.dataPath?.drops ?? {}), there: thereDrops }
    report('')
    const mtu = { here: here.mtu, there: run.there?.mtu ?? null }
    const result = resultOf(samples, { length, mtu })
    return { ...about, plan, ...result, length: length ?? null, samples, inUse: { here, there: run.there }, drops }
  } catch (error) {
    // If a run began and then failed, throw the error. Then `weft bench` does not measure the second address family
    // either.
    if (run || signal.aborted || !isWeftError(error)) throw error
    return error
  } finally {
    signal.removeEventListener('abort', close)
    close()
  }
}

/**
 * Returns the addresses outside and inside the tunnel, of this host and of the peer. Throws WeftError CONFIG if the
 * backend has no tunnel.
 */
export function pathsTo({ node, config }: Status, peer: PeerStatus, { family, from, to }: Probe): Paths {
  // Use the endpoint of the tunnel to find out the family of its outer datagrams, because this family may differ from
  // that of the packets inside.
  const endpoint = sidesOf(peer)[family]?.endpoint ?? ''
  const outer = endpoint === '' ? family : /^[\d.]+(:\d+)?$/.test(endpoint) ? 'ipv4' : 'ipv6'
  const publicIp = placeIn(peer, outer).publicIp ?? parseAddress(peer.publicIp) ?? 0
  if (publicIp === to) {
    throw new WeftError('CONFIG', `the ${config?.backendType} backend does not encapsulate packets`, {
      remedy: 'this network has no tunnel that weft bench could compare with the underlay',
    })
  }
  // Connect from this node's public IP if the host has that address. Behind a NAT router the host lacks it, so the
  // kernel chooses the source address.
  const own = Object.values(networkInterfaces()).flatMap((addresses) => addresses?.map(({ address }) => address) ?? [])
  const known = node ? placeIn(node, outer).publicIp : undefined
  return {
    outside: {
      to: formatAddress(publicIp),
      from: own.find((text) => known !== undefined && parseAddress(text) === known),
    },
    inside: { from: formatAddress(from), to: formatAddress(to) },
  }
}

/** Begins a run. Throws WeftError if the listener cannot be reached outside the tunnel, or refuses the run. */
async function begin(paths: Paths, port: number): Promise<Run> {
  const { to } = paths.outside
  try {
    const run = await Run.begin(paths, port, paths.inside.from)
    if ('refused' in run) {
      throw refusedBy(to, run.refused)
    }
    await run.openEcho('outside').catch(async (error: unknown) => {
      await run.end().catch(() => {})
      run.close()
      // An error without a code does not come from the kernel, so it is the listener's refusal.
      throw isRefusal(error) ? refusedBy(to, messageOf(error)) : error
    })
    return run
  } catch (error) {
    throw isWeftError(error) ? error : await whyNotOutside(paths, port, error)
  }
}

const refusedBy = (to: string, why: string): WeftError =>
  new WeftError('PERMISSION', `weft bench --listen at ${to} refuses: ${why}`, {
    remedy: 'read the output of `weft bench --listen` on that host',
  })

const isRefusal = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === undefined
const isRefused = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === 'ECONNREFUSED'

/**
 * Explains why no connection outside the tunnel succeeded. Connects inside the tunnel, which shows whether a listener
 * runs at all.
 */
async function whyNotOutside({ outside, inside }: Paths, port: number, error: unknown): Promise<WeftError> {
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
      `TCP port ${port} of ${to} is reached inside but not outside the tunnel: ${messageOf(error)}`,
      {
        remedy: `accept TCP and UDP port ${port} in the firewall between the hosts, or choose another --port on both`,
        ...options,
      },
    )
  }
  if (isRefused(error) || isRefused(insideError)) {
    return new WeftError('COMMAND', `no program listens on TCP port ${port} of ${to}`, {
      remedy: 'run `weft bench --listen` on that host',
      ...options,
    })
  }
  return new WeftError(
    'COMMAND',
    `TCP port ${port} of ${to} is not reached, neither outside nor inside the tunnel: ${messageOf(error)}`,
    {
      remedy: 'run `weft bench --listen` on the peer, and accept TCP and UDP on that port in the firewall of the peer',
      ...options,
    },
  )
}

/**
 * Explains why no connection inside the tunnel succeeded, although one outside the tunnel did. A ping shows whether the
 * whole data path fails, or only the listener's port.
 */
async function whyNotInside({ to, from }: Paths['inside'], port: number, error: unknown): Promise<string> {
  const what = `TCP port ${port} of ${to} is reached outside but not inside the tunnel: ${messageOf(error)}`
  if (isRefusal(error)) return `${what}; check whether a NAT rule rewrites the source ${from}`
  const answers = await pinged(to, from)
  if (answers === undefined) return `${what}; run weft doctor on both hosts`
  return answers
    ? `${what}; a ping through the data path is answered: accept TCP and UDP port ${port} from ${from} in the firewall there`
    : `${what}; a ping through the data path is not answered either: run weft doctor on both hosts`
}

/** Returns true if the address answers a ping; undefined if this user may not send pings. */
async function pinged(to: string, from: string): Promise<boolean | undefined> {
  const [target, source] = [parseAddress(to), parseAddress(from)]
  if (target === undefined || source === undefined) return undefined
  try {
    const pinger = createPinger(source)
    const took = await pinger.ping(target, PING_MS).finally(() => pinger.close())
    return took !== undefined
  } catch {
    return undefined
  }
}

/**
 * Finds the length of the longest packet that is answered inside the tunnel. Returns undefined if this user may not
 * send pings, or no packet is answered.
 */
async function lengthOf({ from, to }: Probe, { mtu, pathMtu, backendType }: InUse): Promise<Length | undefined> {
  if (mtu === null) return undefined
  const asked = Math.min(mtu, pathMtu ?? mtu)
  try {
    const pinger = createPinger(from)
    // Returns true if a packet of `bytes` bytes is answered. Tries twice, so that one lost packet does not decide the
    // result.
    const passes = async (bytes: number): Promise<boolean> =>
      (await pinger.ping(to, PING_MS, bytes)) !== undefined || (await pinger.ping(to, PING_MS, bytes)) !== undefined
    try {
      if (await passes(asked)) return { asked, longest: asked }
      if (!(await passes(0))) return undefined
      const longest = await longestOf(lengthsUpTo(asked, kindOf(backendType)?.overhead ?? 0), passes)
      return { asked, longest: longest ?? null }
    } finally {
      pinger.close()
    }
  } catch (error) {
    if (isWeftError(error)) return undefined
    throw error
  }
}

/**
 * Returns a function that shows the progress on a terminal, in one line that the next call overwrites. An empty text
 * clears the line.
 */
function progress(screen: Screen, json: boolean): (what: string) => void {
  return (what) => {
    if (screen.isTerminal && !json) screen.write(`\u001B[G${screen.colour('dim', what)}\u001B[K`)
  }
}

const outcomeText = (outcome: Outcome, screen: Screen): string =>
  'tcp' in outcome ? textOf(outcome, screen) : `${screen.colour('bad', printable(outcome.unreached))}\n`
