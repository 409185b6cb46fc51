// device-state.test.ts - the addresses that are removed from a kept device, and those that stay.

import { expect, it } from 'vitest'
import type { Run } from '../../../../src/host/command.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { deviceState } from '../../../../src/path/device/device-state.ts'

it('removes the address of an earlier lease, and keeps foreign addresses outside the network', async () => {
  const commands: string[] = []
  const addr = (local: string) => ({ family: 'inet', local, prefixlen: 32 })
  const link = {
    ifname: 'flannel.1',
    mtu: 1450,
    flags: ['UP'],
    addr_info: [addr('10.5.1.0'), addr('10.5.9.0'), addr('192.0.2.1')],
  }
  const run: Run = async (_file, args) => {
    if (args.includes('-j')) return JSON.stringify([link])
    commands.push(args.join(' '))
    return ''
  }
  const own = parseIpv4('10.5.1.0')!
  await deviceState(run, { name: 'flannel.1' }, 1450, own, parseIpv4Net('10.5.0.0/16')!).configure()
  expect(commands.filter((each) => each.startsWith('address del'))).toEqual(['address del 10.5.9.0/32 dev flannel.1'])
})
