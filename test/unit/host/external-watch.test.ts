// external-watch.test.ts - the changes of the external interface that end a data path, and those that are only
// published.

import { expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import type { Run } from '../../../src/host/command.ts'
import { ExternalWatch, type ExternalInterface } from '../../../src/host/external-interface.ts'
import type { Family } from '../../../src/net/address.ts'
import { parseIpv4 } from '../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../src/net/ipv6.ts'

function rig(families?: readonly Family[]) {
  const address = { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('fd00::1')! }
  const external: ExternalInterface = {
    name: 'eth0',
    index: 1,
    mtu: 1500,
    address,
    publicIp: address,
    named: { address: {}, publicIp: {} },
  }
  const host = { name: 'eth0', mtu: 1500, ipv4: '192.0.2.1', ipv6: 'fd00::1' }
  const run: Run = async (_file, args) => {
    if (args.includes('dev') && args.at(-1) !== host.name) throw new WeftError('COMMAND', 'Device does not exist.')
    return JSON.stringify([
      {
        ifindex: 1,
        ifname: host.name,
        mtu: host.mtu,
        flags: ['UP'],
        addr_info: [
          { local: host.ipv4, family: 'inet' },
          { local: host.ipv6, family: 'inet6' },
        ],
      },
    ])
  }
  return { host, watch: new ExternalWatch(run, external, families) }
}

it.each<[Family, Family, string, string]>([
  ['ipv4', 'ipv6', 'fd00::a1', 'from fd00::1 to fd00::a1'],
  ['ipv6', 'ipv4', '192.0.2.99', 'from 192.0.2.1 to 192.0.2.99'],
])('with %s a changed address of %s is news until it is published', async (family, other, address, change) => {
  const { host, watch } = rig([family])
  const lines: string[] = []
  const log = { info: (line: string) => void lines.push(line) }
  expect([await watch.hasMoved(), watch.isOutdated]).toEqual([false, false])
  host[other] = address
  expect([await watch.hasMoved(), watch.isOutdated]).toEqual([false, true])
  watch.markPublished(log)
  expect(lines).toEqual([`Publishing a change to the peers: the address of eth0 changed ${change}`])
  expect([await watch.hasMoved(), watch.isOutdated]).toEqual([false, false])
  host[other] = other === 'ipv4' ? '192.0.2.1' : 'fd00::1'
  expect(await watch.hasMoved()).toBe(false)
  watch.markPublished(log)
  expect(lines[1]).toMatch(/ changed from .* to (192\.0\.2\.1|fd00::1)$/)
})

it('with both families publishes nothing: a changed address or MTU ends the data path', async () => {
  const { host, watch } = rig()
  host.ipv6 = 'fd00::a1'
  expect([await watch.hasMoved(), watch.isOutdated]).toEqual([true, false])
  expect((await watch.moved).message).toBe('the address of eth0 changed from fd00::1 to fd00::a1')
  const other = rig(['ipv4'])
  other.host.mtu = 1400
  expect([await other.watch.hasMoved(), other.watch.isOutdated]).toEqual([true, false])
})

it('a renamed interface does not end the data path, and the node must know the new name', async () => {
  const { host, watch } = rig()
  host.name = 'uplink0'
  expect([await watch.hasMoved(), watch.isOutdated, watch.gone()]).toEqual([false, true, {}])
  watch.markPublished({ info: () => {} })
  expect([await watch.hasMoved(), watch.isOutdated, watch.now().name]).toEqual([false, false, 'uplink0'])
  host.mtu = 1400
  expect(await watch.hasMoved()).toBe(true)
  expect((await watch.moved).message).toBe('the MTU of uplink0 changed from 1500 to 1400')
})
