// links.test.ts - interfaces that are followed by index, and the deletion of routes.

import { expect, it } from 'vitest'
import { wordsOf } from '../../../src/host/ip-words.ts'
import { deletionOf, FollowedLink, hasPolicyRules } from '../../../src/host/links.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

it('an interface is followed by its index, and a new one under the same name takes the place of one that is gone', async () => {
  const lines: string[] = []
  const link = new FollowedLink('eth0')
  const follow = async (...now: readonly (readonly [index: number, name: string])[]) => {
    const kernel = new ModelKernel()
    for (const [index, name] of now) kernel.addLink({ name, index })
    const found = await link.follow(kernel, { info: (line) => void lines.push(line) })
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

it.each([
  [
    { destination: '10.5.2.0/24', gateway: '192.0.2.2', device: 'eth0' },
    'ip route del 10.5.2.0/24 via 192.0.2.2 dev eth0',
  ],
  [
    { destination: '10.5.2.0/24', gateway: '192.0.2.2', device: 'eth0', metric: 7, nextHopObject: 5 },
    'ip route del 10.5.2.0/24 nhid 5 metric 7',
  ],
  [{ destination: 'default', device: 'eth0', metric: 9 }, 'ip route del default dev eth0 metric 9'],
  [
    { destination: '10.5.1.0/24', type: 'blackhole', metric: 4294967295, table: 7 },
    'ip route del blackhole 10.5.1.0/24 table 7 metric 4294967295',
  ],
] as const)('%j is deleted by `%s`', async (route, words) => {
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0' })
  kernel.addRoute('ipv4', route)
  const [found] = await kernel.routes({ family: 'ipv4', table: 'all' })
  const change = deletionOf(found!, 'ipv4')
  expect(wordsOf(change)).toBe(words)
  kernel.act(change)
  expect(await kernel.routes({ family: 'ipv4', table: 'all' })).toEqual([])
})

it('a host has policy rules if it has a rule besides the usual three rules and rules that drop packets', async () => {
  const kernel = new ModelKernel()
  expect(await hasPolicyRules(kernel, 'ipv4')).toBe(false)
  for (const action of ['blackhole', 'unreachable', 'prohibit']) kernel.addRule('ipv4', { priority: 219, action })
  expect(await hasPolicyRules(kernel, 'ipv4')).toBe(false)
  kernel.addRule('ipv4', { priority: 5270, table: 52 })
  expect([await hasPolicyRules(kernel, 'ipv4'), await hasPolicyRules(kernel, 'ipv6')]).toEqual([true, false])
  kernel.addRule('ipv6', { priority: 0, table: 100 })
  expect(await hasPolicyRules(kernel, 'ipv6')).toBe(true)
  kernel.hasPolicyRouting = false
  expect(await hasPolicyRules(kernel, 'ipv4')).toBe(false)
})
