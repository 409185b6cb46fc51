// vxlan.test.ts - the lease data of the vxlan backend, as it reads and publishes them.

import { expect, it } from 'vitest'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { encodeLeaseValue } from '../../../../src/control/lease/lease.ts'
import { vtepMacOf } from '../../../../src/path/backends/vxlan-config.ts'
import { createVxlanBackend } from '../../../../src/path/backends/vxlan.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

const noPrograms = () => Promise.reject(new Error('vxlan runs no programs'))

it.each([
  [{ VNI: 1, VtepMAC: '5A:11:22:33:44:55' }, '5a:11:22:33:44:55'],
  [{ VtepMAC: '02:00:00:00:00:01' }, '02:00:00:00:00:01'],
  [{ VtepMAC: '01:00:5e:00:00:01' }, undefined],
  [{ VtepMAC: 'ff:ff:ff:ff:ff:ff' }, undefined],
  [{ VtepMAC: '00:00:00:00:00:00' }, undefined],
  [{ VtepMAC: '02:00:00:00:00:01 dev lo' }, undefined],
  [{ VtepMAC: 7 }, undefined],
  ['02:00:00:00:00:01', undefined],
  [null, undefined],
  [undefined, undefined],
])('the MAC in %j is %s', (backendData, mac) => {
  expect(vtepMacOf({ publicIp: { ipv4: 0xc0000202 }, backendType: 'vxlan', backendData }, 'ipv4')).toBe(mac)
})

it('keeps the MAC that peers know if its device is gone and the store does not answer', async () => {
  const warnings: string[] = []
  const log = { info: () => {}, warn: (line: string) => void warnings.push(line), error: () => {}, v: () => false }
  const address = 0xc0000201
  const known = '5a:11:22:33:44:55'
  let isAway = false
  const config = parseNetworkConfig('{"Network":"192.0.0.0/16","Backend":{"Type":"vxlan","DataPath":"userspace"}}')
  const backend = createVxlanBackend({
    config,
    settings: readSettings('vxlan', config.backend),
    external: {
      name: 'eth0',
      mtu: 1500,
      address: { ipv4: address },
      publicIp: { ipv4: address },
      named: { address: { ipv4: true }, publicIp: { ipv4: true } },
    },
    startEngine: () => Promise.reject(new Error('nothing is opened here')),
    persistence: { persist: true, tunNames: [], isMultiQueue: false, inherit: async () => undefined },
    publishedBefore: async () =>
      isAway ? undefined : { publicIp: { ipv4: address }, backendType: 'vxlan', backendData: { VtepMAC: known } },
    run: noPrograms,
    kernel: new ModelKernel(),
    log,
  })
  const macOf = async () => vtepMacOf(await backend.prepare(new AbortController().signal), 'ipv4')
  expect(await macOf()).toBe(known)
  isAway = true
  expect(await macOf()).toBe(known)
  // `prepare` is called again before the data path is reopened.
  expect(warnings).toEqual([expect.stringContaining("contains this node's own address 192.0.2.1")])
})

it('publishes null as IPv4 data if it has only IPv6, and the IPv6 MAC that it published before', async () => {
  const config = parseNetworkConfig(
    '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan","DataPath":"kernel"}}',
  )
  const address = { ipv6: (0xfd00n << 112n) + 1n }
  const before = { VNI: 1, VtepMAC: '5a:11:22:33:44:66' }
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const backend = createVxlanBackend({
    config,
    settings: readSettings('vxlan', config.backend),
    external: { name: 'eth0', mtu: 1500, address, publicIp: address, named: { address: { ipv6: true }, publicIp: {} } },
    startEngine: () => Promise.reject(new Error('nothing is opened here')),
    persistence: { persist: true, tunNames: [], isMultiQueue: false, inherit: async () => undefined },
    publishedBefore: async () => ({
      publicIp: address,
      backendType: 'vxlan',
      backendData: { VNI: 1, VtepMAC: '02:00:00:00:00:04' },
      backendV6Data: before,
    }),
    run: noPrograms,
    kernel: new ModelKernel(),
    log,
  })
  const attrs = await backend.prepare(new AbortController().signal)
  expect(encodeLeaseValue(attrs)).toBe(
    '{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::1","BackendType":"vxlan","BackendData":null,' +
      '"BackendV6Data":{"VNI":1,"VtepMAC":"5a:11:22:33:44:66"}}',
  )
  const subnet = { ipv6: { address: 0xfd00_0005n << 96n, prefixLength: 64 } }
  expect(backend.words?.added?.({ key: 'k', subnet, attrs: { ...attrs, backendData: undefined } })).toEqual([
    'Received Subnet Event with VxLan: BackendType: vxlan, PublicIP: 0.0.0.0, PublicIPv6: fd00::1, BackendData: (nil), ' +
      'BackendV6Data: {"VNI":1,"VtepMAC":"5a:11:22:33:44:66"}',
  ])
  expect(backend.words?.watching).toBe('watching for new subnet leases') // flanneld begins this line in lower case
})
