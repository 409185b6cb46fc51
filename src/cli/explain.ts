// explain.ts - `weft explain`: which rules, routes, peer and MTU apply to a packet, and what would happen to it.

import { explain, sideOf, type Step } from '../doctor/explain.ts'
import { gatherFacts } from '../doctor/facts.ts'
import { isWeftError, WeftError } from '../errors.ts'
import { run } from '../host/command.ts'
import { ipJson, type Link, type Route } from '../host/links.ts'
import { formatIpv4, ipv4NetContains, parseIpv4, parseIpv4Net, type Ipv4 } from '../net/ipv4.ts'
import { jsonLine, printable } from '../text.ts'
import { askStatus } from './ask.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'

export const explainCommand = command({
  name: 'explain',
  args: 'SRC DST',
  does: 'tell what would happen to a packet from SRC to DST on this host',
  more: 'One of the addresses is of this host or its containers. Nothing is sent. Exits with 3 when it would not get through.',
  flags: { ...JSON_FLAG, ...SOCKET_FLAG },
  async run({ options: { json, 'status-socket': socket }, args, screen, signal }) {
    const [source, destination] = args.map((text) => addressOf(text)) as [Ipv4, Ipv4]
    const status = await askStatus(socket, signal)
    const facts = await gatherFacts({ status, silence: undefined, subnetFile: '', run, ask: undefined })
    const isOwn = sideOf(source, status, facts).kind === 'host'
    const by = isOwn ? undefined : bridgeOf(facts.links, status.node?.subnet)
    const route = await routeOf(source, destination, by)
    const steps = explain({ source, destination, status, facts, route })
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
      const verdict =
        passes === false
          ? colour('bad', 'it would not get through')
          : passes === true
            ? colour('good', 'it would get through')
            : colour('doubtful', 'it would get through as far as can be told from here')
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

function addressOf(text: string): Ipv4 {
  const address = parseIpv4(text)
  if (address !== undefined) return address
  throw new WeftError('USAGE', `${text} is no IPv4 address`, { remedy: 'write it as 10.5.1.2' })
}

/** The bridge of this node's containers, by which their packets come. */
function bridgeOf(links: readonly Link[], subnet: string | undefined): string | undefined {
  const net = parseIpv4Net(subnet ?? '')
  // The data path's own device has the first address with no other behind it.
  return (
    net &&
    links.find(({ addresses }) =>
      addresses.some(({ address, prefixLength }) => prefixLength < 32 && ipv4NetContains(net, address)),
    )?.name
  )
}

/** As the kernel would route it: a container's packet as one that comes in, where there are containers. */
async function routeOf(source: Ipv4, destination: Ipv4, by: string | undefined): Promise<Route | undefined> {
  const words = ['-4', 'route', 'get', formatIpv4(destination)]
  const asContainer = by === undefined ? [] : ['from', formatIpv4(source), 'iif', by]
  for (const more of [asContainer, []]) {
    try {
      const [found] = await ipJson<{ dev?: string; gateway?: string }>(run, [...words, ...more])
      if (found)
        return {
          device: found.dev ?? '',
          destination: '',
          type: 'unicast',
          gateway: found.gateway,
          metric: 0,
          source: undefined,
        }
    } catch (error) {
      if (!isWeftError(error, 'COMMAND')) throw error
    }
  }
  return undefined
}
