// old-routes.test.ts - which networks and subnets of its earlier run a node knows when it starts.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { parseNetworkConfig } from '../../../src/control/config/network-config.ts'
import { parseLeaseKey } from '../../../src/control/lease/lease.ts'
import { formatNet, listed, type Nets } from '../../../src/net/address.ts'
import { readPreviousNets } from '../../../src/node/loops/subnet-env-file.ts'
import { pastNetworks, withOmitted } from '../../../src/node/old-routes.ts'
import { lastKnownFile, writeLastKnown } from '../../../src/node/restart/last-known.ts'
import { nodeOptions } from '../../support/options.ts'

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const IPV4 = 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\n'
const IPV6 = 'FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:1::1/64\n'
const BOTH = '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}'

let options: ReturnType<typeof nodeOptions>
beforeEach(() => {
  const folder = mkdtempSync(join(tmpdir(), 'old-routes-'))
  options = nodeOptions({ 'subnet-file': join(folder, 'subnet.env') })
})
afterEach(() => rmSync(join(options['subnet-file'], '..'), { recursive: true }))

/** Writes the subnet.env `now`, and the last known state of a weftd that wrote the subnet.env `then`. */
async function earlierRun(now: string | undefined, then: string | undefined, config = BOTH): Promise<void> {
  if (now !== undefined) writeFileSync(options['subnet-file'], now)
  const key = '10.5.1.0-24&fd00:5:0:1::-64'
  const lease = { key, subnet: parseLeaseKey(key)!, attrs: { publicIp: { ipv4: 1 }, backendType: 'vxlan' } }
  const known = { store: 'etcd /', config, lease, leases: [], tunNames: [], expiresAt: undefined, subnetEnv: then }
  await writeLastKnown(lastKnownFile(options), { ...known, isForCleanup: true })
}

async function previousNets() {
  const previous = await readPreviousNets(options['subnet-file'], log)
  return withOmitted(previous, { options, log })
}
const texts = (nets: Nets): string[] => listed(nets).map(formatNet)

it.each([
  [
    'omits IPv6, which the earlier run had',
    IPV4,
    IPV4,
    BOTH,
    ['10.5.0.0/16', 'fd00:5::/48'],
    ['10.5.1.0/24', 'fd00:5:0:1::/64'],
  ],
  [
    'has both families',
    IPV4 + IPV6,
    IPV4 + IPV6,
    BOTH,
    ['10.5.0.0/16', 'fd00:5::/48'],
    ['10.5.1.0/24', 'fd00:5:0:1::/64'],
  ],
  ['omits IPv6, but another program wrote it', IPV4, IPV4 + IPV6, BOTH, ['10.5.0.0/16'], ['10.5.1.0/24']],
  [
    'and the earlier configuration omit IPv6',
    IPV4,
    IPV4,
    '{"Network":"10.5.0.0/16"}',
    ['10.5.0.0/16'],
    ['10.5.1.0/24'],
  ],
  ['omits IPv6, and the last known state is invalid', IPV4, IPV4, '{}', ['10.5.0.0/16'], ['10.5.1.0/24']],
  ['is gone', undefined, IPV4, BOTH, [], []],
])(
  'the networks and subnets of the earlier run are right if subnet.env %s',
  async (_what, now, then, config, networks, subnets) => {
    await earlierRun(now, then, config)
    const { network, subnet } = await previousNets()
    expect([texts(network), texts(subnet)]).toEqual([networks, subnets])
  },
)

it('the network of a family counts as past if the configuration no longer has it, although subnet.env omitted it', async () => {
  await earlierRun(IPV4, IPV4)
  const { network } = await previousNets()
  expect(texts(pastNetworks(network, parseNetworkConfig('{"Network":"10.5.0.0/16"}')))).toEqual(['fd00:5::/48'])
})
