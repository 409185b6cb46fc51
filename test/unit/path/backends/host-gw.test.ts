// host-gw.test.ts - the public addresses that the host-gw backend accepts.

import { expect, it } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { decodeLease } from '../../../../src/control/lease/decode.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { parseIpv6 } from '../../../../src/net/ipv6.ts'
import { createHostGwBackend } from '../../../../src/path/backends/host-gw.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const address = { ipv4: parseIpv4('192.0.2.1')!, ipv6: parseIpv6('fd00::1')! }

it.each([
  ['--public-ip', { ipv4: parseIpv4('203.0.113.7')!, ipv6: address.ipv6 }, true],
  ['--public-ipv6', { ipv4: address.ipv4, ipv6: parseIpv6('2001:db8::7')! }, true],
  ['--public-ipv6', { ipv4: address.ipv4, ipv6: parseIpv6('2001:db8::7')! }, false],
])("refuses a public address that is not the interface's, naming %s: case %#", async (flag, publicIp, hasIpv6) => {
  const config = parseNetworkConfig(
    JSON.stringify({
      Network: '10.5.0.0/16',
      Backend: { Type: 'host-gw' },
      ...(hasIpv6 ? { EnableIPv6: true, IPv6Network: 'fd00:5::/48' } : {}),
    }),
  )
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0' }, [
    { address: address.ipv4, prefixLength: 24 },
    { address: address.ipv6, prefixLength: 64 },
  ])
  const backend = createHostGwBackend({
    config,
    settings: readSettings('host-gw', config.backend),
    log,
    external: {
      name: 'eth0',
      mtu: 1500,
      address,
      publicIp,
      named: { address: {}, publicIp: { ipv4: true, ipv6: true } },
    },
    run: () => Promise.reject(new Error('host-gw runs no programs')),
    kernel,
  })
  const peer = decodeLease('10.5.2.0-24&fd05:0:0:2::-64', '{"PublicIP":"192.0.2.2","PublicIPv6":"fd00::2"}')
  expect(backend.words?.added?.(peer)).toHaveLength(hasIpv6 ? 2 : 1)
  const prepared = backend.prepare(new AbortController().signal)
  // A difference in a family that the network lacks has no effect.
  if (!hasIpv6) await expect(prepared).resolves.toMatchObject({ backendType: 'host-gw' })
  else
    await expect(prepared).rejects.toMatchObject({
      message: expect.stringMatching(/^your PublicIP differs from interface IP/) as string,
      remedy: `remove ${flag}, or use a backend with a tunnel`,
    })
})
