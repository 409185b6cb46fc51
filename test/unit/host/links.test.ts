// links.test.ts - output of iproute2 that is not a JSON list.

import { expect, it } from 'vitest'
import type { Run } from '../../../src/host/command.ts'
import {
  findLink,
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
