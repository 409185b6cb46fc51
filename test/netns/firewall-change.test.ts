// firewall-change.test.ts - changes the firewall's flags and configuration from each combination to each other. Afterwards a host has the
// rules of the last combination only.

import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { output } from '../../lab/command.ts'
import { run as runHere, type Run } from '../../src/host/command.ts'
import type { HostKernel } from '../../src/host/kernel.ts'
import { onlyOf, netsOf, parseNet, FAMILIES, type Family, type Nets } from '../../src/net/address.ts'
import { createFirewall } from '../../src/path/firewall/firewall.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { kernelOf } from '../support/remote-kernel.ts'

needs(HOSTS, 'iptables', 'nft')

const NETWORK = netsOf([parseNet('10.5.0.0/16')!, parseNet('fd00:5::/48')!])
const SUBNET = netsOf([parseNet('10.5.1.0/24')!, parseNet('fd00:5:0:1::/64')!])

interface Wish {
  readonly tool: 'iptables' | 'nftables'
  readonly masq: boolean
  readonly forward: boolean
  readonly families: readonly Family[]
}
/** The combinations of each tool, for one family and for both. Without forwarding rules only the case without any rules is tested. */
const WISHES: readonly Wish[] = (['iptables', 'nftables'] as const).flatMap((tool) => [
  ...[true, false].flatMap((masq) =>
    [['ipv4'] as const, FAMILIES].map((families) => ({ tool, masq, forward: true, families })),
  ),
  { tool, masq: false, forward: false, families: FAMILIES },
])
const textOf = ({ tool, masq, forward, families }: Wish): string =>
  `${tool}, ${masq ? 'masquerading' : 'no masquerading'}, ${forward ? 'forwarding' : 'no forwarding'}, ${families.join(' and ')}`

let namespaces: string[]
let servers: ChildProcess[]
beforeEach(() => {
  namespaces = []
  servers = []
})
afterEach(async () => {
  for (const server of servers) server.kill()
  for (const name of namespaces) await output(['ip', 'netns', 'del', name])
})

interface FirewallHost {
  readonly run: Run
  readonly kernel: HostKernel
}

/** Creates a host without rules. */
async function makeHost(): Promise<FirewallHost> {
  const name = `weft-fw-${process.pid}-${randomBytes(3).toString('hex')}`
  await output(['ip', 'netns', 'add', name])
  namespaces.push(name)
  const { kernel, server } = kernelOf(name)
  servers.push(server)
  return { run: (file, args, options) => runHere('ip', ['netns', 'exec', name, file, ...args], options), kernel }
}

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
/** Does what a daemon does from its start to its first check after the previous daemon has ended. */
async function raise(
  { run, kernel }: FirewallHost,
  { tool, masq, forward, families }: Wish,
  previous: { network: Nets; subnet: Nets },
): Promise<void> {
  const [network, subnet] = [onlyOf(families, NETWORK), onlyOf(families, SUBNET)]
  const options = {
    network,
    masq,
    forward,
    plainPorts: false,
    blackhole: false,
    previous,
    run,
    kernel,
    log,
  }
  const firewall = createFirewall(tool, options)
  await firewall.raise(subnet)
  firewall.lookAgain?.()
  expect((await firewall.ensure(subnet)).failures).toEqual([])
}

/** Lists all rules of both tools, without counters, dates and the built-in chains. */
async function rulesOf(run: Run): Promise<readonly string[]> {
  const listings = [
    await run('iptables-save', []),
    await run('ip6tables-save', []),
    await run('nft', ['-s', 'list', 'ruleset']),
  ]
  const lines = listings.join('\n').split('\n')
  const rules = lines
    .filter((line) => /flannel|10\.5\.|fd00:5/i.test(line))
    .map((line) => line.replace(/ \[\d+:\d+\]/, '').trim())
  // Tables and chains are listed in the order of their creation, so they are sorted. The order within an iptables chain is kept.
  const keyOf = (line: string): string => /^-A \S+/.exec(line)?.[0] ?? line
  return rules.toSorted((one, other) => (keyOf(one) < keyOf(other) ? -1 : keyOf(one) > keyOf(other) ? 1 : 0))
}

/** Returns a path that uses each ordered pair once (Hierholzer's algorithm). */
function walkOver(count: number): number[] {
  const left = Array.from({ length: count }, (_, from) =>
    Array.from({ length: count }, (_each, to) => to).filter((to) => to !== from),
  )
  const [stack, walk]: [number[], number[]] = [[0], []]
  while (stack.length > 0) {
    const next = left[stack.at(-1)!]!.shift()
    if (next === undefined) walk.push(stack.pop()!)
    else stack.push(next)
  }
  return walk.toReversed()
}

/** The number of parts into which the tests divide this path. */
const PARTS = 3
const steps = walkOver(WISHES.length).map((at) => WISHES[at]!)
const size = Math.ceil(steps.length / PARTS)
const parts = Array.from({ length: PARTS }, (_, at) => steps.slice(at * size, (at + 1) * size + 1))
it.each(parts.map((part, at) => [at + 1, part] as const))(
  'a start leaves no rule of an earlier start with other flags: part %d of all pairs',
  async (_part, walk) => {
    const expected = new Map<Wish, readonly string[]>()
    const host = await makeHost()
    let before: Wish | undefined
    for (const wish of walk) {
      const nets = before?.families ?? []
      await raise(host, wish, { network: onlyOf(nets, NETWORK), subnet: onlyOf(nets, SUBNET) })
      if (!expected.has(wish)) {
        const fresh = await makeHost()
        await raise(fresh, wish, { network: {}, subnet: {} })
        expected.set(wish, await rulesOf(fresh.run))
      }
      expect(await rulesOf(host.run), `${before ? textOf(before) : 'nothing'}, then ${textOf(wish)}`).toEqual(
        expected.get(wish),
      )
      before = wish
    }
  },
)
