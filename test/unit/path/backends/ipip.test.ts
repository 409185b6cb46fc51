// ipip.test.ts - the ipip backend after a change of its host's addresses, on a simulated host. test/netns/ipip.test.ts
// shows that it carries packets, on kernels with ipip.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Run } from '../../../../src/host/command.ts'
import { hostKernel } from '../../../../src/host/no-kernel.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6, parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { createIpipBackend } from '../../../../src/path/backends/ipip.ts'
import { openPaths } from '../../../support/data-paths.ts'

async function opened() {
  const infos: string[] = []
  const log = { info: (line: string) => void infos.push(line), warn: () => {}, error: () => {}, v: () => false }
  const host = { ipv4: '192.0.2.1', ipv6: 'fd00::1', eth0: 'eth0', ipip: 'flannel.ipip' }
  const done: string[] = []
  const external = () => ({
    ifindex: 2,
    ifname: host.eth0,
    mtu: 1500,
    flags: ['UP'],
    addr_info: [
      { local: host.ipv4, family: 'inet' },
      { local: host.ipv6, family: 'inet6' },
    ],
  })
  const device = () => ({
    ifindex: 3,
    ifname: host.ipip,
    mtu: 1480,
    flags: ['UP'],
    addr_info: [{ local: '10.5.1.0', family: 'inet', prefixlen: 32 }],
    linkinfo: { info_kind: 'ipip', info_data: { local: '192.0.2.1' } },
  })
  const run: Run = async (_file, args) => {
    if (args.includes('route')) return '[]'
    if (!args.includes('show')) {
      done.push(args.join(' '))
      return ''
    }
    const links = [external(), device()].filter(({ ifname }) => !args.includes('dev') || args.at(-1) === ifname)
    if (links.length === 0) throw new WeftError('COMMAND', 'Device does not exist.')
    return JSON.stringify(links)
  }
  const config = parseNetworkConfig(
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"ipip"}}',
  )
  const address = { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('fd00::1')! }
  const named = { address: {}, publicIp: {} }
  const found = { name: 'eth0', index: 2, mtu: 1500, address, publicIp: address, named }
  const backend = createIpipBackend({
    config,
    settings: readSettings('ipip', config.backend),
    external: found,
    run,
    kernel: hostKernel,
    log,
  })
  const { signal } = new AbortController()
  const attrs = await backend.prepare(signal)
  const subnet = { ipv4: parseIpv4Net('10.5.1.0/24')!, ipv6: parseIpv6Net('fd00:5:1::/64')! }
  const lease = { key: 'own', subnet, attrs, expiresAt: undefined, revision: 1n }
  return { host, infos, done, backend, signal, path: await openPaths(backend, lease, run, { log }) }
}

it('publishes a changed IPv6 address and continues', async () => {
  const { host, infos, backend, signal, path } = await opened()
  expect([await path.resync(), path.isOutdated]).toEqual([[], false])
  host.ipv6 = 'fd00::a1'
  expect([await path.resync(), path.isOutdated]).toEqual([[], true])
  const attrs = await backend.prepare(signal)
  expect(attrs.publicIp).toEqual({ ipv4: parseIpv4('192.0.2.1'), ipv6: parseIpv6('fd00::a1') })
  await path.renew(attrs)
  expect(infos.at(-1)).toBe('Publishing a change to the peers: the address of eth0 changed from fd00::1 to fd00::a1')
  expect([await path.resync(), path.isOutdated]).toEqual([[], false])
})

it('fails after a change of the IPv4 address, which its packets use', async () => {
  const { host, path } = await opened()
  host.ipv4 = '192.0.2.99'
  expect([await path.resync(), path.isOutdated]).toEqual([[], false])
  expect((await path.fault).message).toBe('the address of eth0 changed from 192.0.2.1 to 192.0.2.99')
})

it('continues if the external interface or its device is renamed', async () => {
  const { host, infos, done, backend, signal, path } = await opened()
  done.length = 0
  host.eth0 = 'uplink0'
  expect([await path.resync(), path.isOutdated]).toEqual([[], true])
  await path.renew(await backend.prepare(signal))
  expect(backend.external?.name).toBe('uplink0')
  host.ipip = 'other0'
  expect([await path.resync(), path.isOutdated, path.carrier().device]).toEqual([[], false, 'other0'])
  expect(infos.at(-1)).toBe('The interface flannel.ipip is called other0 now; weftd goes on with it under the new name')
  expect(done).toEqual([])
})
