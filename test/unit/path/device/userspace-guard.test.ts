// userspace-guard.test.ts - the route and the rule that drop unencrypted packets while charon carries the ESP packets.

import { beforeEach, describe, expect, it } from 'vitest'
import { formatNet, parseNet } from '../../../../src/net/address.ts'
import { removeLeftovers } from '../../../../src/path/device/leftovers.ts'
import {
  guardRemovals,
  keepRule,
  keepUnreachable,
  otherRuleRemovals,
  removeUserspaceGuard,
  UserspaceGuard,
} from '../../../../src/path/device/userspace-guard.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const NETWORK = parseNet('10.5.0.0/16')!
const ROUTE = 'unreachable 10.5.0.0/16 metric 4294967295'

let device: string
let kernel: ModelKernel
beforeEach(() => {
  device = 'eth0'
  kernel = new ModelKernel()
})
const run = (): Promise<never> => Promise.reject(new Error('no program may be started'))

/** The devices of the rules that drop packets within the network. */
async function ruleDevices(): Promise<string[]> {
  const rules = (await kernel.rules('ipv4')) ?? []
  return rules.flatMap(({ priority, action, iif = '' }) => (priority === 219 && action === 'blackhole' ? [iif] : []))
}
const addRule = (iif: string): void =>
  kernel.act({
    kind: 'add rule',
    family: 'ipv4',
    priority: 219,
    iif,
    from: NETWORK,
    to: NETWORK,
    action: 'blackhole',
  })
const addRoute = (): void =>
  kernel.act({ kind: 'add route', destination: NETWORK, type: 'unreachable', metric: 0xffff_ffff })

describe('the guard', () => {
  it('drops only packets of the network, and is complete after a change of the external interface', async () => {
    const guard = new UserspaceGuard(NETWORK, () => device, kernel)
    await guard.block()
    expect([kernel.routesAsText(), await ruleDevices()]).toEqual([[ROUTE], ['eth0']])
    expect(kernel.changes).toEqual([
      'ip route add unreachable 10.5.0.0/16 metric 4294967295',
      'ip rule add priority 219 iif eth0 from 10.5.0.0/16 to 10.5.0.0/16 blackhole',
    ])
    expect(await guard.resync()).toEqual([])
    device = 'eth1'
    expect(await guard.resync()).toEqual(['the rule for unencrypted packets from eth1 was gone'])
    expect([kernel.routesAsText(), await ruleDevices()]).toEqual([[ROUTE], ['eth1']])
  })

  it('is removed also if another program removed the route or a rule of it', async () => {
    addRoute()
    for (const name of ['eth0', 'eth1']) addRule(name)
    await removeUserspaceGuard(kernel, NETWORK)
    expect([kernel.routesAsText(), await ruleDevices()]).toEqual([[], []])
    addRule('eth0')
    const removals = await guardRemovals(kernel, NETWORK, [])
    expect(removals.map(({ what }) => what)).toEqual(['the rule for unencrypted packets from eth0'])
    expect(await removeLeftovers({ kernel, run }, [...removals, ...removals], () => {})).toEqual([])
    expect(await ruleDevices()).toEqual([])
  })

  it('keeps and removes the unreachable route of an IPv6 network alone', async () => {
    const network = parseNet('fd00:5::/48')!
    expect([await keepUnreachable(kernel, network), await keepUnreachable(kernel, network)]).toEqual([true, false])
    await removeUserspaceGuard(kernel, network)
    expect(kernel.changes).toEqual([
      'ip -6 route add unreachable fd00:5::/48 metric 4294967295',
      'ip -6 route del unreachable fd00:5::/48 metric 4294967295',
    ])
  })

  it('of a wider or narrower network is removed too, and a narrower unreachable route does not stay beside a new one', async () => {
    const [wider, half] = [parseNet('10.4.0.0/15')!, parseNet('10.5.128.0/17')!]
    const [other, all] = [parseNet('10.8.0.0/16')!, parseNet('0.0.0.0/0')!]
    const rule = { priority: 219, iif: 'eth0', action: 'blackhole' } as const
    for (const net of [wider, half, other, all]) {
      kernel.act({ kind: 'add rule', family: 'ipv4', ...rule, from: net, to: net })
      kernel.act({ kind: 'add route', destination: net, type: 'unreachable', metric: 0xffff_ffff })
    }
    await removeUserspaceGuard(kernel, NETWORK)
    const left = (await kernel.rules('ipv4'))?.flatMap(({ priority, from }) => (priority === 219 && from ? [from] : []))
    expect(left?.map(formatNet)).toEqual(['10.8.0.0/16', '0.0.0.0/0'])
    const text = (net: string): string => `unreachable ${net} metric 4294967295`
    expect(kernel.routesAsText()).not.toContain(text('10.5.128.0/17'))
    kernel.act({ kind: 'add route', destination: half, type: 'unreachable', metric: 0xffff_ffff })
    expect([await keepUnreachable(kernel, NETWORK), await keepUnreachable(kernel, NETWORK)]).toEqual([true, false])
    expect(kernel.routesAsText().toSorted()).toEqual(
      ['default', '10.4.0.0/15', '10.5.0.0/16', '10.8.0.0/16'].map(text).toSorted(),
    )
  })

  it('is not there on a kernel without policy routing, nor for another network', async () => {
    addRule('eth0')
    expect(await guardRemovals(kernel, NETWORK, [])).toHaveLength(1)
    expect(await guardRemovals(kernel, parseNet('fd00:5::/48')!, [])).toEqual([])
    kernel.hasPolicyRouting = false
    expect(await guardRemovals(kernel, NETWORK, [])).toEqual([])
  })

  it('has one rule for each network, also for an IPv6 network, and none for a network without a device', async () => {
    const network = parseNet('fd00:5::/48')!
    const texts = async (): Promise<string[]> =>
      ((await kernel.rules('ipv6')) ?? []).flatMap(({ priority, from, iif }) =>
        priority === 219 && from ? [`${formatNet(from)} ${iif}`] : [],
      )
    for (const text of ['fd00:4::/31', 'fd00:5:0:8000::/49', 'fd00:9::/48', 'fd00:5::/48']) {
      const net = parseNet(text)!
      const rule = { family: 'ipv6', priority: 219, iif: 'eth1', from: net, to: net, action: 'blackhole' } as const
      kernel.act({ kind: 'add rule', ...rule })
    }
    expect(await keepRule(kernel, network, 'eth0')).toBe(true)
    expect(await keepRule(kernel, network, 'eth0')).toBe(false)
    expect(await texts()).toEqual(['fd00:9::/48 eth1', 'fd00:5::/48 eth0'])
    const others = await otherRuleRemovals(kernel, 'ipv6', [network])
    expect(others.map(({ what }) => what)).toEqual(['the rule for unencrypted packets from eth1'])
    expect(await keepRule(kernel, network, undefined)).toBe(false)
    expect(await texts()).toEqual(['fd00:9::/48 eth1'])
  })

  it("has no rule if the external interface is the loopback device, because it would drop the host's own packets", async () => {
    expect(await keepRule(kernel, NETWORK, 'eth0')).toBe(true)
    expect(await keepRule(kernel, NETWORK, 'lo')).toBe(false)
    expect((await kernel.rules('ipv4'))?.filter(({ priority }) => priority === 219)).toEqual([])
  })
})
