// container-gateways.test.ts - the gateways of default routes in the kernel's lists of routes.

import { endianness } from 'node:os'
import { expect, it } from 'vitest'
import { parseAddress } from '../../../../src/net/address.ts'
import { ipv4GatewaysIn, ipv6GatewaysIn } from '../../../../src/tool/doctor/container-gateways.ts'

// The texts are those of Linux 6.18.
it.skipIf(endianness() === 'BE')('reads the gateway of an IPv4 default route', () => {
  const text = `Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0101050A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0001050A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth0\t0002050A\t0301050A\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth1\t00000000\t00000000\t0001\t0\t0\t9\t00000000\t0\t0\t0
`
  expect(ipv4GatewaysIn(text)).toEqual([parseAddress('10.5.1.1')])
  expect(ipv4GatewaysIn('')).toEqual([])
})

it('reads the gateway of an IPv6 default route', () => {
  const zero = '0'.repeat(32)
  const line = (destination: string, bits: string, gateway: string, flags: string): string =>
    `${destination} ${bits} ${zero} 00 ${gateway} 00000400 00000001 00000000 ${flags}     eth0\n`
  const text =
    line('fd000005000000010000000000000000', '40', zero, '00000001') +
    line(zero, '00', 'fd000005000000010000000000000001', '00000003') +
    line(zero, '00', zero, '00200200')
  expect(ipv6GatewaysIn(text)).toEqual([parseAddress('fd00:5:0:1::1')])
  expect(ipv6GatewaysIn('')).toEqual([])
})
