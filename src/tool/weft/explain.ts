// explain.ts - `weft explain`: shows the rules, routes, peer and MTU that apply to a packet, and what would happen to
// the packet.

import { isWeftError, WeftError } from '../../base/errors.ts'
import { nameIn } from '../../base/go-flags.ts'
import { jsonLine, printable } from '../../base/text.ts'
import { run } from '../../host/command.ts'
import { LOCAL_TABLE, MAIN_TABLE, ruleText } from '../../host/ip-words.ts'
import type { RouteQuery } from '../../host/kernel.ts'
import { hostKernel } from '../../host/netlink/host-kernel.ts'
import { FAMILIES, familyOf, formatAddress, parseAddress, type Address } from '../../net/address.ts'
import { placeIn, type Status } from '../../report/status.ts'
import {
  directionOf,
  hasAnswer,
  isOnHost,
  sideOf,
  type Direction,
  type Question,
  type Step,
} from '../doctor/explain-question.ts'
import { explain } from '../doctor/explain.ts'
import { gatherFacts, type Facts } from '../doctor/facts.ts'
import { ruleFor } from '../doctor/kernel-routes.ts'
import { bridgeOf } from '../doctor/sides.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { fetchStatus } from './daemon-client.ts'
import type { Screen } from './look.ts'
import { isOwnName, peerNamed } from './peer.ts'

export const explainCommand = command({
  name: 'explain',
  args: '[SRC] DST',
  does: 'show what this host would do with a packet from SRC to DST, and with its answer',
  more: 'SRC and DST are addresses or names of hosts; a name means the first address of that host in the network. SRC defaults to this host. One of the two must be an address of this host or of its containers. If the other is an address of a peer, weft also shows what this host would do with a packet from DST to SRC. Sends no packets. Exits with 3 if one of the two packets would not get through.',
  flags: { ...JSON_FLAG, ...SOCKET_FLAG },
  async run({ options: { json, 'status-socket': socket }, args, screen, signal }) {
    const status = await fetchStatus(socket, signal)
    const words = args.length === 1 ? [status.node?.hostname ?? '', ...args] : args
    const [source, destination] = addressesOf(status, words)
    const families = [source, destination].map(familyOf)
    if (families[0] !== families[1])
      throw new WeftError('USAGE', `${words.map(nameIn).join(' and ')} have different families`, {
        remedy: 'give two IPv4 addresses, or two IPv6 addresses',
      })
    const facts = await gatherFacts({
      status,
      silence: undefined,
      subnetFile: '',
      run,
      kernel: hostKernel,
      probe: undefined,
    })
    if (status.config && !isOnHost(source, status, facts) && !isOnHost(destination, status, facts))
      throw new WeftError(
        'USAGE',
        `neither ${formatAddress(source)} nor ${formatAddress(destination)} is an address of this host or of its containers`,
        { remedy: 'run weft explain on the host of the source or of the destination' },
      )
    const way = await wayOf(source, destination, status, facts)
    const answer = hasAnswer(source, destination, status, facts)
      ? await wayOf(destination, source, status, facts, true)
      : undefined
    if (json) screen.write(jsonLine({ ...way, ...(answer ? { answer } : {}) }))
    else screen.write(`${textOf(way, screen)}${answer ? `\n${textOf(answer, screen)}` : ''}`)
    return way.passes === false || answer?.passes === false ? EXIT.wrong : EXIT.ok
  },
})

/** The explanation of a packet: its direction and its steps. */
interface Way {
  readonly from: string
  readonly to: string
  readonly direction: Direction
  /** True if the packets pass all steps, false if a step stops them; undefined if the result of a step is unknown. */
  readonly passes: boolean | undefined
  readonly steps: readonly Step[]
}

async function wayOf(
  source: Address,
  destination: Address,
  status: Status,
  facts: Facts,
  isAnswer = false,
): Promise<Way> {
  const found = await routeOf(source, destination, entryOf(source, status, facts))
  const steps = explain({ source, destination, status, facts, isAnswer, ...found })
  const direction = directionOf(source, destination, status, facts)
  return {
    from: formatAddress(source),
    to: formatAddress(destination),
    direction,
    passes: passesOf(steps),
    // The steps of the packet already say where both addresses are.
    steps: isAnswer ? steps.filter(({ step }) => step !== 'source' && step !== 'destination') : steps,
  }
}

const DIRECTIONS: Readonly<Record<Direction, string>> = {
  out: 'leaves this host',
  in: 'arrives at this host',
  local: 'stays on this host',
}

function textOf({ from, to, direction, passes, steps }: Way, { colour }: Screen): string {
  const marks = new Map([
    [true, colour('good', 'ok')],
    [false, colour('bad', 'no')],
    [undefined, colour('doubtful', '? ')],
  ])
  const lines = steps.map(({ step, passes: one, says }) => `${step.padEnd(12)} ${marks.get(one)}  ${printable(says)}\n`)
  // True if at most the step about the MTU stops the packet, so that only the packet's length matters.
  const isLength = steps.every(({ step, passes: one }) => one !== false || step === 'mtu')
  const verdict =
    passes === false
      ? colour('bad', isLength ? 'a long packet would not get through' : 'it would not get through')
      : passes === true
        ? colour('good', 'it would get through')
        : colour('doubtful', 'no step is known to stop it, but those marked ? are not known')
  const head = `a packet from ${from} to ${to} ${DIRECTIONS[direction]}`
  return `${colour('bold', head)}\n${lines.join('')}\n${verdict}\n`
}

/**
 * Returns true if the packet passes all steps, and false if a step stops it; undefined if no step is known to stop the
 * packet, but the result of some steps is unknown.
 */
function passesOf(steps: readonly Step[]): boolean | undefined {
  if (steps.some(({ passes }) => passes === false)) return false
  return steps.every(({ passes }) => passes === true) ? true : undefined
}

/**
 * Returns the addresses of source and destination. If one of them is given as the name of a dual-stack host, uses that
 * host's address in the family of the given address.
 */
function addressesOf(status: Status, [from = '', to = '']: readonly string[]): readonly [Address, Address] {
  const [source, destination] = [parseAddress(from), parseAddress(to)]
  const other = source ?? destination
  const [first, second] = [source ?? hostAddress(status, from, other), destination ?? hostAddress(status, to, other)]
  // If source and destination are both given by name, one of the two hosts may have only IPv6. In that case use the
  // IPv6 address of both hosts.
  if (other !== undefined || familyOf(first) === familyOf(second)) return [first, second]
  return [hostAddress(status, from, second), hostAddress(status, to, first)]
}

/**
 * Returns the first address of the named host's subnet, in the family of `like` if the host has a subnet of that
 * family. Throws WeftError USAGE.
 */
function hostAddress(status: Status, name: string, like: Address | undefined): Address {
  const place = isOwnName(status, name) ? (status.node ?? undefined) : peerNamed(status, name)
  if (!place)
    throw new WeftError('USAGE', `${nameIn(name)} is neither an IP address nor the name of a host`, {
      remedy: 'give an address such as 10.5.1.2 or fd00:5:1::2, or a name that `weft peers` shows',
    })
  const families = like === undefined ? FAMILIES : [familyOf(like), ...FAMILIES]
  const [net] = families.flatMap((family) => placeIn(place, family).subnet ?? [])
  if (net) return net.address
  throw new WeftError('USAGE', `${nameIn(name)} has no valid subnet`, {
    remedy: '`weft peers` shows the lease of that peer',
  })
}

/**
 * Returns the interface on which a packet from the address `source` arrives. Returns undefined if the host itself sends
 * the packet, or if the interface is not known.
 */
function entryOf(source: Address, status: Status, facts: Facts): string | undefined {
  const side = sideOf(source, status, facts)
  const { kind } = side
  const family = familyOf(source)
  if (kind === 'host' || !status.node) return undefined
  // A packet from a directly routed peer arrives on this host's interface to the peer's host, and this code does not
  // know which interface that is.
  if (side.kind === 'peer' && side.peer.way === 'direct') return undefined
  if (kind === 'peer') return status.dataPath?.devices[family] ?? undefined
  const { subnet } = placeIn(status.node, family)
  return subnet && bridgeOf(facts.links, subnet, status)
}

/**
 * Looks up the kernel's route for a packet. `by` is the interface on which the packet arrives; if it is undefined, this
 * host sends the packet.
 */
async function routeOf(
  source: Address,
  destination: Address,
  by: string | undefined,
): Promise<Pick<Question, 'route' | 'byRule' | 'refused'>> {
  const family = familyOf(destination)
  const own: RouteQuery = { to: destination }
  const query = by === undefined ? own : { ...own, from: source, iif: { name: by } }
  try {
    const [answer] = await hostKernel.lookUp(family, [query])
    // If the kernel rejects the incoming packet, also look up the route of a packet that this host itself sends, to
    // show where the route would lead.
    const [found] =
      answer && 'refused' in answer && by !== undefined ? await hostKernel.lookUp(family, [own]) : [answer]
    if (!found || 'refused' in found)
      return { route: undefined, refused: answer && 'refused' in answer ? answer.refused : undefined }
    const { route } = found
    const isUsual = route.table === MAIN_TABLE || route.table === LOCAL_TABLE
    const rules = isUsual ? [] : await hostKernel.rules(family)
    const rule = rules && ruleFor(rules, query, (each) => each.table === route.table)
    const refused = answer && 'refused' in answer ? answer.refused : undefined
    return { route, byRule: rule && ruleText(rule), refused }
  } catch (error) {
    if (!isWeftError(error, 'KERNEL')) throw error
    return { route: undefined }
  }
}
