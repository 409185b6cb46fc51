// look-ahead.test.ts - what a start asks `ip`, asked at once: the same answers, and none that is no longer true.

import { beforeEach, expect, it } from 'vitest'
import type { Run } from '../../../src/host/command.ts'
import { lookAhead } from '../../../src/host/look-ahead.ts'
import { findLink, listLinks, routesTo } from '../../../src/host/links.ts'
import { WeftError } from '../../../src/errors.ts'
import { parseIpv4Net } from '../../../src/net/ipv4.ts'

const network = parseIpv4Net('10.5.0.0/16')!
const links = [
  { ifindex: 1, ifname: 'lo', flags: ['LOOPBACK', 'UP'], mtu: 65536, addr_info: [] },
  { ifindex: 2, ifname: 'eth0', flags: ['UP'], mtu: 1500, addr_info: [{ family: 'inet', local: '192.0.2.1' }] },
]
const toDefault = [{ dst: 'default', dev: 'eth0', gateway: '192.0.2.9' }]
const toNetwork = [{ dst: '10.5.0.0/16', dev: 'flannel0' }]

/** The commands that were run, and what a batch answers. */
let ran: string[] = []
let batch: string | Error = ''
const run: Run = async (_file, args) => {
  ran.push(args.join(' '))
  if (!args.includes('-batch')) return '[]\n'
  if (batch instanceof Error) throw batch
  return batch
}

beforeEach(() => {
  ran = []
  batch = [links, toDefault, toNetwork].map((each) => `${JSON.stringify(each)}\n`).join('')
})

const singly = (look: { run: Run }) =>
  Promise.all([
    listLinks(look.run),
    findLink(look.run, 'eth0'),
    routesTo(look.run, 'default'),
    routesTo(look.run, network),
  ])

it('answers from one process what would take four, as often as it is asked', async () => {
  const look = lookAhead(run, network)
  for (let times = 0; times < 2; times++) {
    const [all, eth0, [byDefault], [ours]] = await singly(look)
    expect(all.map(({ name }) => name)).toEqual(['lo', 'eth0'])
    expect(eth0).toMatchObject({ index: 2, mtu: 1500, addresses: [{ address: 0xc0000201 }] })
    expect(byDefault).toMatchObject({ device: 'eth0', destination: 'default' })
    expect(ours).toMatchObject({ device: 'flannel0', destination: '10.5.0.0/16' })
  }
  expect(ran).toEqual(['-j -d -batch -'])
})

it('asks for a link that it did not see, which may say why there is none', async () => {
  const look = lookAhead(run, network)
  expect(await findLink(look.run, 'flannel0')).toBeUndefined()
  expect(ran).toEqual(['-j -d -batch -', '-j address show dev flannel0'])
})

it.each([
  ['something was changed', (look: ReturnType<typeof lookAhead>) => look.run('ip', ['link', 'del', 'dev', 'flannel0'])],
  ['something else was asked', (look: ReturnType<typeof lookAhead>) => look.run('ip', ['-j', 'rule', 'show'])],
  ['it was told to forget', async (look: ReturnType<typeof lookAhead>) => look.forget()],
])('believes nothing that it saw after %s', async (_title, happens) => {
  const look = lookAhead(run, network)
  await routesTo(look.run, network)
  await happens(look)
  ran = []
  expect(await routesTo(look.run, network)).toEqual([])
  expect(ran).toEqual(['-j -4 route show exact 10.5.0.0/16'])
})

it.each([
  ['fails', new WeftError('COMMAND', '`ip -j -d -batch -` failed: unknown')],
  ['says less than it was asked', `${JSON.stringify(links)}\n`],
])('asks singly where the one process %s', async (_title, said) => {
  batch = said
  const look = lookAhead(run, network)
  expect(await routesTo(look.run, network)).toEqual([])
  expect(ran).toEqual(['-j -d -batch -', '-j -4 route show exact 10.5.0.0/16'])
})
