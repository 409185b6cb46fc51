// kernel-ways.ts - checks the kernel's routes of packets between this node's containers and its peers, by all routing tables and rules,
// not only by the main table. Pure.

import type { PolicyRule, Way, WayQuestion } from '../../host/ways.ts'
import { formatNet, isIpv4Net, parseAddress } from '../../net/address.ts'
import type { Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'
import { bridgeOf, isOwnDevice, ownSides, subnetText, type OwnSide, type SeenSide } from './sides.ts'
import { peersOf, type AnsweredWay } from './way-questions.ts'

/** Checks the routes. `isTold` is true if wrong routes of the main table are already reported. */
export function checkWays(facts: Facts, isTold: boolean): Finding[] {
  const { status, kernelWays, isForwarding, isForwardingIpv6 } = facts
  if (!status || !kernelWays) return []
  return ownSides(status).flatMap((side) => {
    const forwards = side.family === 'ipv4' ? isForwarding : isForwardingIpv6 !== false
    const bridge = bridgeOf(facts.links, side.subnet, status)
    return peersOf(side, status).flatMap((peer) => {
      const ways = kernelWays.ways.filter(({ family, lease }) => family === side.family && lease === peer.peer.lease)
      // If the kernel forwards no packets at all, another check reports that.
      const asked = ways.filter(({ direction }) => direction === 'host' || forwards)
      const wrong = asked.filter((way) => isWrong(way, peer, bridge, status))
      const [first] = [
        ...wrong.filter(({ direction, question }) => direction === 'out' && question.mark === undefined),
        ...wrong.filter(({ direction, question }) => direction !== 'out' && question.mark === undefined),
        ...wrong,
      ]
      return first ? findingsOf(first, peer, side, kernelWays.rules[side.family] ?? [], isTold) : []
    })
  })
}

function isWrong(
  { direction, answer }: AnsweredWay,
  peer: SeenSide,
  bridge: string | undefined,
  status: Status,
): boolean {
  if ('refused' in answer) return true
  const { device, gateway, type } = answer.way
  if (direction === 'in') return type === 'unicast' && bridge !== undefined && device !== bridge
  // A route past the tunnel is right only for peers to which the data path itself routes directly.
  const isToHost = peer.way === 'direct' && gateway !== undefined && parseAddress(gateway) === peer.publicIp
  return type !== 'unicast' || !(isOwnDevice(status, peer.family, device) || isToHost)
}

/** Finds the policy rule by which the kernel chose a table, or refused: the first rule that matches the packet. */
export const ruleFor = (
  rules: readonly PolicyRule[],
  { iif, mark }: WayQuestion,
  isIt: (rule: PolicyRule) => boolean,
): PolicyRule | undefined =>
  rules.find(
    (rule) =>
      isIt(rule) &&
      (rule.iif === undefined || rule.iif === iif) &&
      (rule.mark === undefined || rule.text.includes(' not ') || (Number(mark ?? 0) & rule.mask) === rule.mark),
  )

/** Describes a route, such as `ts0, by the table 52 and the rule "5270: from all lookup 52"`. */
function wayText(way: Way, question: WayQuestion, rules: readonly PolicyRule[]): string {
  const { device, gateway, type, table } = way
  const rule = table === undefined ? undefined : ruleFor(rules, question, (each) => each.table === table)
  const by =
    table === undefined || table === 'local'
      ? ''
      : `, by the table ${table}${rule ? ` and the rule "${rule.text}"` : ''}`
  if (type === 'local') return 'this host itself, which has that address'
  return `${device}${gateway === undefined ? '' : ` via ${gateway}`}${by}`
}

const REFUSING = new Set(['prohibit', 'unreachable', 'blackhole'])

function findingsOf(
  { direction, question, answer }: AnsweredWay,
  peer: SeenSide,
  { network }: OwnSide,
  rules: readonly PolicyRule[],
  isTold: boolean,
): Finding[] {
  const whose = direction === 'in' ? `from ${subnetText(peer)}` : subnetText(peer)
  const where =
    question.iif === undefined ? '' : direction === 'in' ? ` (to ${question.to})` : ` (from ${question.iif})`
  const marked = question.mark === undefined ? '' : `, if it has the mark ${question.mark} that a rule of nftables sets`
  const about = `${whose}${where}`
  const first = (rule: PolicyRule | undefined): string | undefined =>
    rule &&
    `have who made the rule leave the network out, or have the main table asked first: \`ip ${isIpv4Net(network) ? '' : '-6 '}rule add pref ${Math.max(1, rule.priority - 1)} to ${formatNet(network)} lookup main\``
  if ('refused' in answer) {
    const rule = ruleFor(rules, question, ({ action }) => action !== undefined && REFUSING.has(action))
    // This error means strict reverse path filtering (net.ipv4.conf.*.rp_filter).
    const isReverse = /cross-device/i.test(answer.refused)
    const why = isReverse ? 'rp_filter: the way back is another one' : answer.refused
    const fix = isReverse
      ? `set \`net.ipv4.conf.${question.iif}.rp_filter=2\` with sysctl, and find why packets to ${subnetText(peer)} go elsewhere`
      : first(rule)
    const detail = `${about}: ${why}${rule && !isReverse ? `, by the rule "${rule.text}"` : ''}${marked}`
    return [{ name: question.mark === undefined ? 'route-refused' : 'marked-route', detail, ...(fix ? { fix } : {}) }]
  }
  const { way } = answer
  const isOther = way.table !== undefined && way.table !== 'main'
  if (!isOther && isTold) return []
  const rule = ruleFor(rules, question, ({ table }) => table === way.table)
  const detail = `${about} goes to ${wayText(way, question, rules)}${marked}`
  const fix = isOther && way.type !== 'local' ? first(rule) : undefined
  const name =
    question.mark !== undefined ? 'marked-route' : isOther && way.type !== 'local' ? 'policy-route' : 'foreign-route'
  return [{ name, detail, ...(fix ? { fix } : {}) }]
}
