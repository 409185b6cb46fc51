// device-remains.test.ts - recognizes the devices of flannel in the output of `ip -d -j link show`.

import { expect, it } from 'vitest'
import { findDevices } from '../../../../src/path/device/flannel-devices.ts'

const link = (ifname: string, info_kind: string, info_data: object = {}) => ({
  ifname,
  linkinfo: { info_kind, info_data },
})

it("treats a device as flannel's if it has flannel's name, kind and VNI", async () => {
  const links = [
    link('flannel.1', 'vxlan', { id: 1 }),
    link('flannel.2', 'vxlan', { id: 1 }),
    link('flannel.3', 'vxlan', { external: true }),
    link('flannel.4', 'dummy'),
    link('vxlan.1', 'vxlan', { id: 1 }),
    link('flannel.ipip', 'ipip'),
    link('flannel-wg', 'wireguard'),
    link('flannel-v6.1', 'vxlan', { id: 1 }),
    link('flannel-v6.2', 'vxlan', { id: 1 }),
    link('flannel-v6.1', 'dummy'),
    link('flannel-wg-v6', 'wireguard'),
    link('flannel-wg-v6', 'tun', { type: 'tap', persist: false }),
    link('flannel0', 'tun', { type: 'tun', persist: false }),
    link('flannel1', 'tun', { type: 'tap', persist: false }),
  ]
  const found = await findDevices(async () => JSON.stringify(links))
  expect(found.map(({ name }) => name)).toEqual([
    'flannel.1',
    'flannel.ipip',
    'flannel-wg',
    'flannel-v6.1',
    'flannel-wg-v6',
    'flannel0',
  ])
})
