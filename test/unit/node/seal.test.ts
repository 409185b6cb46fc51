// seal.test.ts - the routes and rules with which a node with an encrypting backend blocks unencrypted packets.

import { beforeEach, expect, it } from 'vitest'
import { parseNetworkConfig } from '../../../src/control/config/network-config.ts'
import type { ExternalInterface } from '../../../src/host/external-interface.ts'
import { parseAddress } from '../../../src/net/address.ts'
import { seal } from '../../../src/node/seal.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

const config = parseNetworkConfig('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}')
const ROUTES = [
  'ip route add unreachable 10.5.0.0/16 metric 4294967295',
  'ip -6 route add unreachable fd00:5::/48 metric 4294967295',
]
const ruleOf = (network: string, device = 'eth0'): string =>
  `${network.includes(':') ? 'ip -6' : 'ip'} rule add priority 219 iif ${device} from ${network} to ${network} blackhole`
const RULES = [ruleOf('10.5.0.0/16'), ruleOf('fd00:5::/48')]

let kernel: ModelKernel
let warnings: string[]
beforeEach(() => {
  kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0', index: 2 }, [{ address: parseAddress('192.0.2.1')!, prefixLength: 24 }])
  warnings = []
})

const external = { name: 'eth0', index: 2 } as ExternalInterface
const sealed = (backend: Parameters<typeof seal>[1]['backend']): Promise<void> =>
  seal({ kernel, log: { warn: (line) => void warnings.push(line) } }, { config, backend })

it('makes a route and a rule for each family, once', async () => {
  await sealed({ isSealed: true, external })
  await sealed({ isSealed: true, external })
  expect(kernel.changes.toSorted()).toEqual([...ROUTES, ...RULES].toSorted())
})

it('makes only the routes before the external interface is known, and nothing for a backend without encryption', async () => {
  await sealed({ external })
  await sealed({ isSealed: true, external: { ...external, name: 'eth9', index: 9 } })
  await sealed({ isSealed: true })
  expect(kernel.changes).toEqual(ROUTES)
})

it('makes the rule again for an interface that was made again, and thus has another index', async () => {
  await sealed({ isSealed: true, external: { ...external, index: 7 } })
  expect(kernel.changes.toSorted()).toEqual([...ROUTES, ...RULES].toSorted())
})

it('makes no rule, and removes the rule, if the external interface has an address of the network', async () => {
  await sealed({ isSealed: true, external })
  kernel.act({
    kind: 'replace address',
    device: { name: 'eth0' },
    address: parseAddress('10.5.250.1')!,
    prefixLength: 24,
  })
  await sealed({ isSealed: true, external })
  expect(kernel.changes.at(-1)).toBe(ruleOf('10.5.0.0/16').replace('add', 'del'))
  expect((await kernel.rules('ipv6'))?.filter(({ priority }) => priority === 219)).toHaveLength(1)
})

it('warns of a rule that the kernel refuses, and makes the other rules', async () => {
  kernel.refuses = (words) => (words.includes('rule add') && words.includes('-6') ? 'EOPNOTSUPP' : undefined)
  await sealed({ isSealed: true, external })
  expect(warnings).toEqual([expect.stringMatching(/^Unencrypted packets from eth0 to fd00:5::\/48 are not blocked: /)])
  expect((await kernel.rules('ipv4'))?.filter(({ priority }) => priority === 219)).toHaveLength(1)
})
