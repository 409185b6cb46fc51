// explain.ts - `weft explain`: which rules, routes, peer and MTU apply to a packet, and what would happen to it.

import { isWeftError, WeftError } from '../../base/errors.ts'
import { nameIn } from '../../base/go-flags.ts'
import { jsonLine, printable } from '../../base/text.ts'
import { run } from '../../host/command.ts'
import { askWays, policyRules, type WayQuestion } from '../../host/ways.ts'
import { FAMILIES, familyOf, formatAddress, parseAddress, type Address } from '../../net/address.ts'
import { placeIn, type Status } from '../../report/status.ts'
import { explain, sideOf, type Question, type Step } from '../doctor/explain.ts'
import { gatherFacts, type Facts } from '../doctor/facts.ts'
import { ruleFor } from '../doctor/kernel-ways.ts'
import { bridgeOf } from '../doctor/sides.ts'
import { askStatus } from './ask.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { isOwnName, peerNamed } from './peer.ts'

export const explainCommand = command({
  name: 'explain',
  args: '[SRC] DST',
  does: 'show what this host would do with a packet from SRC to DST',
  more: 'Each is an address, or the name of a host, which stands for its first address in the network; without SRC it is from this host. One of the two must be an address of this host or its containers. Nothing is sent. Exits with 3 when the packet would not get through.',
  flags: { ...JSON_FLAG, ...SOCKET_FLAG },
  async run({ options: { json, 'status-socket': socket }, args, screen, signal }) {
    const status = await askStatus(socket, signal)
    const words = args.length === 1 ? [status.node?.hostname ?? '', ...args] : args
    const [source, destination] = addressesOf(status, words)
    const families = [source, destination].map(familyOf)
    if (families[0] !== families[1])
      throw new WeftError('USAGE', `${words.map(nameIn).join(' and ')} are not of one family`, {
        remedy: 'give it two addresses of IPv4, or two of IPv6',
      })
    const facts = await gatherFacts({ status, silence: undefined, subnetFile: '', run, ask: undefined })
    const way = await wayOf(source, destination, entryOf(source, status, facts))
    const steps = explain({ source, destination, status, facts, ...way })
    const passes = passesOf(steps)
    if (json) screen.write(jsonLine({ passes, steps }))
    else {
      const { colour } = screen
      const marks = new Map([
        [true, colour('good', 'ok')],
        [false, colour('bad', 'no')],
        [undefined, colour('doubtful', '? ')],
      ])
      for (const { step, passes: one, says } of steps)
        screen.write(`${step.padEnd(12)} ${marks.get(one)}  ${printable(says)}\n`)
      // Where nothing else is in its way, short ones do.
      const isLength = steps.every(({ step, passes: one }) => one !== false || step === 'mtu')
      const verdict =
        passes === false
          ? colour('bad', isLength ? 'a long one would not get through' : 'it would not get through')
          : passes === true
            ? colour('good', 'it would get through')
            : colour('doubtful', 'nothing that is known here stops it; whether it gets through depends on what has a ?')
      screen.write(`\n${verdict}\n`)
    }
    return passes === false ? EXIT.wrong : EXIT.ok
  },
})

/** Undefined where nothing stops it, and not all is known. */
function passesOf(steps: readonly Step[]): boolean | undefined {
  if (steps.some(({ passes }) => passes === false)) return false
  return steps.every(({ passes }) => passes === true) ? true : undefined
}

/** Of both ends. A name of a host with both families stands for its address of the other end's family. */
function addressesOf(status: Status, [from = '', to = '']: readonly string[]): readonly [Address, Address] {
  const [source, destination] = [parseAddress(from), parseAddress(to)]
  const other = source ?? destination
  const [first, second] = [source ?? hostAddress(status, from, other), destination ?? hostAddress(status, to, other)]
  // Of two names the one that has IPv4 may be beside one that has not.
  if (other !== undefined || familyOf(first) === familyOf(second)) return [first, second]
  return [hostAddress(status, from, second), hostAddress(status, to, first)]
}

/** The first address in the network of the host with this name: by the family of `like` where it has that. Throws WeftError USAGE. */
function hostAddress(status: Status, name: string, like: Address | undefined): Address {
  const place = isOwnName(status, name) ? (status.node ?? undefined) : peerNamed(status, name)
  if (!place)
    throw new WeftError('USAGE', `${nameIn(name)} is no IP address, and no host's name`, {
      remedy: 'write it as 10.5.1.2, as fd00:5:1::2, or as a name that `weft peers` shows',
    })
  const families = like === undefined ? FAMILIES : [familyOf(like), ...FAMILIES]
  const [net] = families.flatMap((family) => placeIn(place, family).subnet ?? [])
  if (net) return net.address
  throw new WeftError('USAGE', `${nameIn(name)} has no subnet that can be read`, { remedy: 'see `weft peers`' })
}

/** Returns the interface on which a packet from this source arrives; undefined for the host's own packets, and if it is not known. */
function entryOf(source: Address, status: Status, facts: Facts): string | undefined {
  const side = sideOf(source, status, facts)
  const { kind } = side
  const family = familyOf(source)
  if (kind === 'host' || !status.node) return undefined
  // A packet of a directly routed peer arrives on the interface to that peer's host, which is not known here.
  if (side.kind === 'peer' && side.peer.way === 'direct') return undefined
  if (kind === 'peer') return status.dataPath?.devices[family] ?? undefined
  const { subnet } = placeIn(status.node, family)
  return subnet && bridgeOf(facts.links, subnet, status)
}

/** Looks up the kernel's route for a packet. `by` is the interface on which it arrives; without it the host sends the packet. */
async function wayOf(
  source: Address,
  destination: Address,
  by: string | undefined,
): Promise<Pick<Question, 'route' | 'byRule' | 'refused'>> {
  const [family, to] = [familyOf(destination), formatAddress(destination)]
  const own: WayQuestion = { to }
  const question = by === undefined ? own : { to, from: formatAddress(source), iif: by }
  try {
    const [answer] = await askWays(run, family, [question])
    // If the kernel refuses the packet as an incoming one, look up the route of a packet of the host itself.
    const [found] = answer && 'refused' in answer && by !== undefined ? await askWays(run, family, [own]) : [answer]
    if (!found || 'refused' in found)
      return { route: undefined, refused: answer && 'refused' in answer ? answer.refused : undefined }
    const { device, gateway, type, table } = found.way
    const rules = table === undefined ? [] : await policyRules(run, family)
    const rule = ruleFor(rules, question, (each) => each.table === table)
    const byRule = rule && table !== 'local' ? rule.text : undefined
    const refused = answer && 'refused' in answer ? answer.refused : undefined
    return { route: { device, destination: '', type, gateway, metric: 0, source: undefined }, byRule, refused }
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error
    return { route: undefined }
  }
}
