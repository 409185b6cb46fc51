// device-state.test.ts - the state of a kept device: its addresses, its MTU, and that it is up.

import { expect, it } from 'vitest'
import { parseAddress, parseNet, type Address, type Net } from '../../../../src/net/address.ts'
import { deviceState } from '../../../../src/path/device/device-state.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const at = (text: string) => ({ address: parseAddress(text) as Address, prefixLength: text.includes(':') ? 128 : 32 })
const device = { name: 'flannel.1' }

it('removes the address of an earlier lease, and keeps foreign addresses outside the network', async () => {
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'flannel.1', mtu: 1450 }, [at('10.5.1.0'), at('10.5.9.0'), at('192.0.2.1')])
  await deviceState(kernel, device, 1450, at('10.5.1.0').address, parseNet('10.5.0.0/16') as Net).configure()
  expect(kernel.changes.filter((each) => each.includes('address del'))).toEqual([
    'ip address del 10.5.9.0/32 dev flannel.1',
  ])
  expect(kernel.peek('flannel.1')?.addresses.ipv4.map(({ address }) => address)).toEqual([
    at('10.5.1.0').address,
    at('192.0.2.1').address,
  ])
})

it('removes all other IPv6 addresses except link-local ones, as those of an earlier network', async () => {
  const kernel = new ModelKernel()
  const others = ['fe80::1', 'fd00:5:0:9::', 'fd00:4:0:1::'].map(at)
  kernel.addLink({ name: 'flannel-v6.1', mtu: 1430 }, [at('fd00:5:0:1::'), ...others])
  const [own, network] = [at('fd00:5:0:1::').address, parseNet('fd00:5::/48') as Net]
  await deviceState(kernel, { name: 'flannel-v6.1' }, 1430, own, network).configure()
  expect(kernel.peek('flannel-v6.1')?.addresses.ipv6.map(({ address }) => address)).toEqual([
    own,
    at('fe80::1').address,
  ])
})

it('reports one difference, and repairs all', async () => {
  const kernel = new ModelKernel()
  const own = at('fd00:5:1::').address
  const state = deviceState(kernel, device, 1430, own, parseNet('fd00:5::/48') as Net)
  expect(await state.wrong()).toEqual([])
  kernel.addLink({ name: 'flannel.1', mtu: 1450, up: false })
  expect(await state.wrong()).toEqual(['flannel.1 was down'])
  kernel.act({ kind: 'set link', device, up: true })
  expect(await state.wrong()).toEqual(['flannel.1 had MTU 1450'])
  kernel.act({ kind: 'set link', device, mtu: 1430 })
  expect(await state.wrong()).toEqual(['flannel.1 had lost its address'])
  await state.configure()
  expect(kernel.changes).toEqual([
    'ip link set dev flannel.1 mtu 1430 up',
    'ip address replace fd00:5:1::/128 dev flannel.1 nodad',
  ])
  expect(await state.wrong()).toEqual([])
})

it('rejects with the refusal of the kernel', async () => {
  const kernel = new ModelKernel()
  kernel.addLink({ name: 'flannel.1', up: false })
  kernel.refuses = (words) => (words.endsWith(' up') ? 'EADDRINUSE' : undefined)
  const state = deviceState(kernel, device, 1450, at('10.5.1.0').address, parseNet('10.5.0.0/16') as Net)
  await expect(state.configure()).rejects.toMatchObject({ code: 'KERNEL', cause: { errno: 'EADDRINUSE' } })
})
