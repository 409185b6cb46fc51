// kernel-routes.ts - the routes over which the kernel of a healthy host sends packets to its peer and receives them, with the changes of a
// test.

import type { PolicyRule, Route } from '../../src/host/kernel.ts'
import { errnoText } from '../../src/host/netlink/errno.ts'
import { formatNet, hostNet, parseAddress, parseNet, type Net } from '../../src/net/address.ts'
import {
  routeQueries,
  underlayQueries,
  type AnsweredQuery,
  type KernelRoutes,
  type PeerQuery,
} from '../../src/tool/doctor/route-queries.ts'
import { route, sound } from './facts.ts'

export const policyRule = (priority: number, part: Partial<PolicyRule> = {}): PolicyRule => ({
  priority,
  table: undefined,
  action: 'lookup',
  iif: undefined,
  oif: undefined,
  from: undefined,
  to: undefined,
  mark: undefined,
  mask: 0xff_ff_ff_ff,
  isInverted: false,
  ...part,
})
const PROTOCOLS: Readonly<Record<string, number>> = { icmp: 1, tcp: 6, udp: 17, 'ipv6-icmp': 58 }
const TABLES: Readonly<Record<string, number>> = { local: 255, main: 254, default: 253 }
const ACTIONS = ['prohibit', 'unreachable', 'blackhole', 'nop']

/** Reads the rules that `ip rule` or `ip -6 rule` printed, one in each line. */
export const rulesIn = (listing: string): readonly PolicyRule[] =>
  listing
    .trim()
    .split('\n')
    .map((line) => {
      const [, priority = '', not, words = ''] = /^\s*(\d+):\s+(not )?(.*)$/.exec(line) ?? []
      const after = (word: string) => new RegExp(`(?:^| )${word} (\\S+)`).exec(words)?.[1]
      const [mark, mask] = after('fwmark')?.split('/').map(Number) ?? []
      const number = (text: string | undefined) => (text === undefined ? undefined : Number(text))
      const ports = (text: string | undefined) => {
        const [first, last] = text?.split('-').map(Number) ?? []
        return first === undefined ? undefined : ([first, last ?? first] as const)
      }
      const table = after('lookup')
      const protocol = after('ipproto')
      const part = {
        protocol: protocol && (PROTOCOLS[protocol] ?? Number(protocol)),
        sport: ports(after('sport')),
        dport: ports(after('dport')),
        tos: number(after('tos')),
        dscp: number(after('dscp')),
        tunnel: after('tun_id') && BigInt(after('tun_id')!),
      }
      const set = Object.fromEntries(Object.entries(part).filter(([, value]) => value !== undefined))
      return policyRule(Number(priority), {
        table: table === undefined ? undefined : (TABLES[table] ?? Number(table)),
        action: table === undefined ? ACTIONS.find((action) => words.endsWith(action))! : 'lookup',
        isInverted: not !== undefined,
        from: netIn(after('from')),
        to: netIn(after('to')),
        iif: after('iif'),
        oif: after('oif'),
        mark,
        mask: mask ?? 0xff_ff_ff_ff,
        ...(Object.keys(set).length === 0 ? {} : { part: set }),
      })
    })

/** Reads the routes of the main table that `ip route` or `ip -6 route` printed, one in each line. */
export const mainRoutesIn = (listing: string): readonly Route[] =>
  listing
    .trim()
    .split('\n')
    .map((line) => {
      const [, type = 'unicast', destination = '', words = ''] =
        /^\s*(?:(blackhole|unreachable|prohibit|throw) )?(\S+) ?(.*)$/.exec(line) ?? []
      const after = (word: string) => new RegExp(`(?:^| )${word} (?:inet6 )?(\\S+)`).exec(words)?.[1]
      // `ip route` prints a single address without its prefix length, and no metric if it is 0.
      const net = netIn(destination === 'default' ? 'all' : destination)
      return {
        ...route(net ? formatNet(net) : destination, after('dev') ?? '', after('via')),
        type: type as Route['type'],
        metric: Number(after('metric') ?? 0),
        isOnlink: words.includes('onlink'),
      }
    })

function netIn(text = 'all'): Net | undefined {
  if (text === 'all') return undefined
  const address = parseAddress(text)
  return address === undefined ? parseNet(text) : hostNet(address)
}

const RULES = [
  policyRule(0, { table: 255 }),
  policyRule(100, { action: 'prohibit', to: parseNet('10.5.2.0/24') }),
  policyRule(5270, { table: 52 }),
  policyRule(30_000, { table: 100, mark: 1, mask: 1 }),
  policyRule(30_400, { table: 30_400, iif: 'cni0' }),
  policyRule(32_766, { table: 254 }),
]
/** A changed route, or the name of the error with which the kernel refuses the packet. */
type Answer = Partial<Route> | string

/** Returns the routes of the healthy host of facts.ts, with `changed` in place of the right ones. A string is the name of an error. */
export function routesBy(changed: Partial<Readonly<Record<PeerQuery['direction'] | 'marked', Answer>>>): KernelRoutes {
  const queries = [...routeQueries(sound.status!, sound.links, [1]), ...underlayQueries(sound.status!, sound.links)]
  const answers = answersTo(
    queries,
    ({ query, direction }) => changed[query.mark === undefined ? direction : 'marked'],
    'flannel0',
  )
  return { answers, rules: { ipv4: RULES } }
}

/**
 * Returns the kernel's answers to lookups: the route over the data path's device, to the bridge cni0 or to the external
 * interface, with the changes that `changeOf` returns.
 */
export function answersTo(
  queries: readonly PeerQuery[],
  changeOf: (each: PeerQuery) => Answer | undefined,
  device: string,
): readonly AnsweredQuery[] {
  const devices: Partial<Record<PeerQuery['direction'], Partial<Route>>> = {
    in: { device: 'cni0' },
    underlay: { device: 'eth0' },
    'from underlay': { device: 'lo', type: 'local', table: 255 },
  }
  return queries.map((each) => {
    const right: Route = {
      destination: '',
      protocol: 'boot',
      gateway: undefined,
      type: 'unicast',
      table: 254,
      metric: 0,
      source: undefined,
      isOnlink: false,
      deviceIndex: 1,
      device,
      ...devices[each.direction],
    }
    const change = changeOf(each)
    return {
      ...each,
      answer:
        typeof change === 'string' ? { refused: errnoText(change), errno: change } : { route: { ...right, ...change } },
    }
  })
}
