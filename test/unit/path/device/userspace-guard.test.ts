// userspace-guard.test.ts - the route and the rule that drop unencrypted packets while charon carries the ESP packets.

import { beforeEach, describe, expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Run } from '../../../../src/host/command.ts'
import { parseNet } from '../../../../src/net/address.ts'
import { removeLeftovers } from '../../../../src/path/device/leftovers.ts'
import { guardRemovals, removeUserspaceGuard, UserspaceGuard } from '../../../../src/path/device/userspace-guard.ts'

const NETWORK = parseNet('10.5.0.0/16')!
const ROUTE = 'unreachable 10.5.0.0/16 metric 4294967295'
const ruleOf = (device: string): string => `priority 219 iif ${device} from 10.5.0.0/16 to 10.5.0.0/16 blackhole`

let device: string
let routes: string[]
let rules: string[]
let refusal: string | undefined
beforeEach(() => {
  device = 'eth0'
  routes = []
  rules = []
  refusal = undefined
})

const refused = (why: string): WeftError => new WeftError('COMMAND', `\`ip\` failed: ${why}`, { cause: { code: 2 } })

/** A simulated `ip`, which keeps the arguments of the routes and the rules. */
const run: Run = async (_file, args) => {
  const words = args.join(' ')
  if (words === '-j -4 rule show priority 219') {
    if (refusal !== undefined) throw refused(refusal)
    const shown = rules.map((rule) => {
      const [, iif, src, srclen, dst, dstlen] = /iif (\S+) from (.+)\/(.+) to (.+)\/(.+) blackhole$/.exec(rule)!
      return { priority: 219, src, srclen, dst, dstlen, iif, iif_detached: null, action: 'blackhole' }
    })
    return JSON.stringify(shown)
  }
  if (words === '-j -4 route show root 10.5.0.0/16')
    return JSON.stringify(routes.map(() => ({ type: 'unreachable', dst: '10.5.0.0/16', metric: 4294967295 })))
  const [, kind, verb, rest = ''] = /^-4 (route|rule) (add|del) (.+)$/.exec(words) ?? []
  const list = kind === 'rule' ? rules : routes
  if (verb === 'add') list.push(rest)
  else if (list.includes(rest)) list.splice(list.indexOf(rest), 1)
  else throw refused('RTNETLINK answers: No such file or directory')
  return ''
}

describe('the guard', () => {
  it('drops only packets of the network, and is complete after a change of the external interface', async () => {
    const guard = new UserspaceGuard(NETWORK, () => device, run)
    await guard.block()
    expect([routes, rules]).toEqual([[ROUTE], [ruleOf('eth0')]])
    expect(await guard.resync()).toEqual([])
    device = 'eth1'
    rules.push(ruleOf('eth0'))
    expect(await guard.resync()).toEqual(['the rule for unencrypted packets from eth1 was gone'])
    expect([routes, rules]).toEqual([[ROUTE], [ruleOf('eth1')]])
  })

  it('is removed also if another program removed the route or a rule of it', async () => {
    routes = [ROUTE]
    rules = [ruleOf('eth0'), ruleOf('eth1')]
    await removeUserspaceGuard(run, NETWORK)
    expect([routes, rules]).toEqual([[], []])
    rules = [ruleOf('eth0')]
    const removals = await guardRemovals(run, NETWORK, [])
    expect(removals.map(({ what }) => what)).toEqual(['the rule for unencrypted packets from eth0'])
    expect(await removeLeftovers(run, [...removals, ...removals], () => {})).toEqual([])
    expect(rules).toEqual([])
  })

  it('is not there on a kernel without policy routing, nor for an IPv6 network', async () => {
    refusal = 'RTNETLINK answers: Operation not supported'
    expect(await guardRemovals(run, NETWORK, [])).toEqual([])
    expect(await guardRemovals(run, parseNet('fd00:5::/48')!, [])).toEqual([])
    refusal = undefined
    rules = [ruleOf('eth0')]
    expect(await guardRemovals(run, NETWORK, [])).toHaveLength(1)
  })
})
