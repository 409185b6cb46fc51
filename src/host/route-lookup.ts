// route-lookup.ts - looks up the kernel's route of a packet, including policy rules (`ip route get`, `ip rule`).

import { messageOf, type WeftError } from '../base/errors.ts'
import type { Family } from '../net/address.ts'
import { isRefusal, type Run } from './command.ts'
import { ipFlag, ipJson } from './links.ts'

export interface RouteQuery {
  readonly to: string
  /**
   * The source address of a packet that arrives on the interface `iif`. For a packet that this host itself sends,
   * `from` and `iif` are left out.
   */
  readonly from?: string
  readonly iif?: string
  /** The firewall mark of the packet, such as `0x1`. */
  readonly mark?: string
}

export interface KernelRoute {
  readonly device: string
  readonly gateway: string | undefined
  /** The type of the route, such as `unicast`, or `local` for an address of this host. */
  readonly type: string
  /** The routing table that contains the route; undefined for the main table. */
  readonly table: string | undefined
}

/** The kernel's answer to a route lookup: a route, or the reason why the kernel rejects the packet. */
export type RouteAnswer = { readonly route: KernelRoute } | { readonly refused: string }

interface JsonAnswer {
  dst?: string
  from?: string
  iif?: string
  mark?: number
  type?: string
  dev?: string
  gateway?: string
  table?: string
}

const wordsOf = ({ to, from, iif, mark }: RouteQuery): string[] => [
  'route',
  'get',
  to,
  ...(from === undefined || iif === undefined ? [] : ['from', from, 'iif', iif]),
  ...(mark === undefined ? [] : ['mark', mark]),
]
const keyOf = (to = '', from = '', iif = '', mark = 0): string => [to, from, iif, mark].join(' ')

const toRoute = ({ dev = '', gateway, type = 'unicast', table }: JsonAnswer): KernelRoute => ({
  device: dev,
  gateway,
  type,
  table,
})

/**
 * Looks up the routes of these packets by one command, and returns the answers in the same order. If the kernel has no
 * route for a packet, or rejects the packet, looks up its route again, alone, to get the reason.
 */
export async function lookUpRoutes(
  run: Run,
  family: Family,
  queries: readonly RouteQuery[],
): Promise<readonly RouteAnswer[]> {
  if (queries.length === 0) return []
  const input = queries.map((query) => `${wordsOf(query).join(' ')}\n`).join('')
  const text = await run('ip', ['-j', ipFlag(family), '-force', '-batch', '-'], { input }).catch((error: unknown) => {
    if (!isRefusal(error)) throw error
    return ((error as WeftError).cause as { readonly stdout?: string }).stdout ?? ''
  })
  const routes = new Map<string, KernelRoute>()
  for (const line of text.split('\n').filter((each) => each.trim() !== ''))
    for (const json of JSON.parse(line) as JsonAnswer[])
      routes.set(keyOf(json.dst, json.from, json.iif, json.mark), toRoute(json))
  return Promise.all(
    queries.map(async (query): Promise<RouteAnswer> => {
      const { to, from, iif, mark } = query
      const route = routes.get(keyOf(to, from, iif, Number(mark ?? 0)))
      return route ? { route } : lookUpAgain(run, family, query)
    }),
  )
}

/**
 * Looks up the route of one refused packet again, to get the kernel's reason. `ip` prints "permission denied" if a
 * policy rule prohibits the route.
 */
async function lookUpAgain(run: Run, family: Family, query: RouteQuery): Promise<RouteAnswer> {
  try {
    const [json] = await ipJson<JsonAnswer>(run, [ipFlag(family), ...wordsOf(query)])
    return json ? { route: toRoute(json) } : { refused: 'no answer' }
  } catch (error) {
    if (!isRefusal(error)) throw error
    return { refused: /failed: (?:RTNETLINK answers: )?(.*)/s.exec(messageOf(error))?.[1] ?? messageOf(error) }
  }
}

/** A rule of policy routing, as listed by `ip rule` (ip-rule(8)). */
export interface PolicyRule {
  readonly priority: number
  readonly table: string | undefined
  /** The action of the rule if it selects no table, such as `prohibit`, `unreachable` or `blackhole`. */
  readonly action: string | undefined
  readonly iif: string | undefined
  /** The firewall mark that packets must have to match the rule; `mask` has the bits of the mark that are compared. */
  readonly mark: number | undefined
  readonly mask: number
  readonly text: string
}

interface JsonRule {
  priority?: number
  not?: unknown
  src?: string
  srclen?: number
  dst?: string
  dstlen?: number
  iif?: string
  oif?: string
  fwmark?: string
  fwmask?: string
  table?: string
  action?: string
}

/** Lists the policy rules of a family, in the order in which the kernel applies them. */
export async function policyRules(run: Run, family: Family): Promise<readonly PolicyRule[]> {
  return (await ipJson<JsonRule>(run, [ipFlag(family), 'rule', 'show'])).map((rule) => {
    const { priority = 0, src = 'all', srclen, dst, dstlen, iif, oif, fwmark, fwmask, table, action } = rule
    const net = (address: string, length: number | undefined): string =>
      length === undefined ? address : `${address}/${length}`
    const words = [
      `${priority}:${'not' in rule ? ' not' : ''} from ${net(src, srclen)}`,
      ...(dst === undefined ? [] : [`to ${net(dst, dstlen)}`]),
      ...(fwmark === undefined ? [] : [`fwmark ${fwmark}${fwmask === undefined ? '' : `/${fwmask}`}`]),
      ...(iif === undefined ? [] : [`iif ${iif}`]),
      ...(oif === undefined ? [] : [`oif ${oif}`]),
      table === undefined ? (action ?? '') : `lookup ${table}`,
    ]
    const mark = fwmark === undefined ? undefined : Number(fwmark)
    const mask = fwmask === undefined ? 0xff_ff_ff_ff : Number(fwmask)
    return { priority, table, action, iif, mark, mask, text: words.join(' ') }
  })
}
