// links.test.ts - output of iproute2 that is not a JSON list, and interfaces that are followed by index.

import { expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import type { Run } from '../../../src/host/command.ts'
import {
  findLink,
  FollowedLink,
  listLinks,
  routeFor,
  routesExactly,
  routesFor,
  routesTo,
  routesWithin,
} from '../../../src/host/links.ts'
import { parseIpv4, parseIpv4Net } from '../../../src/net/ipv4.ts'
import { ensureEach } from '../../../src/path/firewall/families.ts'

const network = parseIpv4Net('10.5.0.0/16')!
const asks: Readonly<Record<string, (run: Run) => Promise<unknown>>> = {
  listLinks,
  findLink: (run) => findLink(run, 'eth0'),
  routesTo: (run) => routesTo(run, 'ipv4'),
  routesWithin: (run) => routesWithin(run, network),
  routesExactly: (run) => routesExactly(run, 'ipv4', ['10.5.1.0/24']),
  routesFor: (run) => routesFor(run, 'ipv4', ['192.0.2.1']),
  routeFor: (run) => routeFor(run, parseIpv4('192.0.2.1')!),
}
const JUNK = ['[{"ifname":"eth0"', 'Object "address" is unknown', '{}', 'null', '"text"', '7', '[null]', '[1]']

it.each(Object.keys(asks).flatMap((name) => JUNK.map((junk) => [name, junk] as const)))(
  '%s refuses %s as a failure of the command, with a remedy',
  async (name, junk) => {
    await expect(asks[name]!(async () => junk)).rejects.toMatchObject({
      code: 'COMMAND',
      message: expect.stringMatching(/^`ip .*` did not print a JSON list, but: "/),
      remedy: expect.stringContaining('by hand'),
    })
  },
)

it.each(Object.keys(asks))('%s treats empty output as an empty list', async (name) => {
  for (const nothing of ['', '\n', '[]']) expect(await asks[name]!(async () => nothing)).not.toBeInstanceOf(Error)
})

it('fails one check of the firewall, but not the daemon', async () => {
  const { failures } = await ensureEach([() => routesTo(async () => '[{"dst"', 'ipv4').then(() => [])])
  expect(failures).toHaveLength(1)
})

it('an interface is followed by its index, and a new one under the same name takes the place of one that is gone', async () => {
  let links: (readonly [index: number, name: string])[] = [[2, 'eth0']]
  const run: Run = async (_file, args) => {
    const found = links.filter(([, name]) => !args.includes('dev') || args.at(-1) === name)
    if (args.includes('dev') && found.length === 0) throw new WeftError('COMMAND', 'Device does not exist.')
    return JSON.stringify(found.map(([ifindex, ifname]) => ({ ifindex, ifname })))
  }
  const lines: string[] = []
  const link = new FollowedLink('eth0')
  const follow = async (...now: typeof links) => {
    links = now
    const found = await link.follow(run, { info: (line) => void lines.push(line) })
    return [found?.name, link.name, link.index]
  }
  expect(await follow([2, 'eth0'])).toEqual(['eth0', 'eth0', 2])
  expect(await follow([2, 'uplink0'])).toEqual(['uplink0', 'uplink0', 2])
  // Another interface takes the old name.
  expect(await follow([3, 'uplink0'], [2, 'eth9'])).toEqual(['eth9', 'eth9', 2])
  expect(await follow([4, 'eth9'])).toEqual(['eth9', 'eth9', 4])
  expect(await follow()).toEqual([undefined, 'eth9', 4])
  link.forget()
  expect(await follow([7, 'eth0'])).toEqual(['eth0', 'eth0', 7])
  const words = (before: string, now: string) =>
    `The interface ${before} is called ${now} now; weftd goes on with it under the new name`
  expect(lines).toEqual([words('eth0', 'uplink0'), words('uplink0', 'eth9')])
})
