// neighbours.test.ts - the neighbour entries that count against the kernel's limits.

import { expect, it } from 'vitest'
import { neighboursOf } from '../../../src/host/neighbours.ts'
import { parseAddress } from '../../../src/net/address.ts'
import { ModelKernel } from '../../support/model-kernel.ts'

it('counts entries that the kernel learnt, without those of an operator and those that need no ARP', async () => {
  const kernel = new ModelKernel()
  const deviceIndex = kernel.addLink({ name: 'eth0' })
  kernel.neighbours = async () =>
    [['REACHABLE'], ['PERMANENT'], ['NOARP'], ['FAILED'], ['NOARP', 'PERMANENT']].map((states) => ({
      deviceIndex,
      address: parseAddress('192.0.2.9')!,
      mac: '',
      states,
    }))
  expect(await neighboursOf('ipv4', kernel)).toMatchObject({ family: 'ipv4', entries: 2 })
})
