// vxlan.test.ts - the lease data of the vxlan backend, as it reads and publishes them.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { encodeLeaseValue, type OwnLease } from '../../../../src/control/lease/lease.ts'
import { parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { vtepMacOf } from '../../../../src/path/backends/vxlan-config.ts'
import { createVxlanBackend } from '../../../../src/path/backends/vxlan.ts'
import type { Engine } from '../../../../src/path/engine/engine.ts'
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

it('keeps the open data path if the kernel does not say whether the device of another family is left', async () => {
  const lines: string[] = []
  const say = (line: string): void => void lines.push(line)
  const address = 0xc0000201
  const config = parseNetworkConfig('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","DataPath":"userspace"}}')
  const kernel = new ModelKernel()
  const stopped: string[] = []
  const engine: Engine = {
    kind: 'native',
    tunName: 'flannel.1',
    offloads: [],
    notes: [],
    details: [],
    fault: new Promise(() => {}),
    outers: ['ipv4'],
    setPeers() {},
    changePeers() {},
    counters: () => ({}),
    traffic: () => new Float64Array(),
    drops: (after = []) => ({ next: [...after], packets: [] }),
    threads: () => ({}),
    takeUnknownSenders: () => [],
    stop: async () => void stopped.push('flannel.1'),
  }
  const backend = createVxlanBackend({
    config,
    settings: readSettings('vxlan', config.backend),
    external: {
      name: 'eth0',
      mtu: 1500,
      address: { ipv4: address },
      publicIp: { ipv4: address },
      named: { address: { ipv4: false }, publicIp: { ipv4: false } },
    },
    async startEngine() {
      const tun = { mode: 'tun', persist: true, isMultiQueue: false, openQueues: 1 } as const
      kernel.addLink({ name: 'flannel.1', type: 'tun', tun })
      return engine
    },
    persistence: { persist: true, tunNames: [], isMultiQueue: false, inherit: async () => undefined },
    publishedBefore: async () => undefined,
    run: noPrograms,
    kernel,
    log: { info: say, warn: say, error: say, v: () => false },
  })
  const { signal } = new AbortController()
  const attrs = await backend.prepare(signal)
  const subnet = { ipv4: parseIpv4Net('10.5.1.0/24')! }
  const own: OwnLease = { key: '10.5.1.0-24', subnet, attrs, expiresAt: undefined, revision: 1n }
  const link = kernel.link.bind(kernel)
  kernel.link = async (which) => {
    if (which === 'flannel-v6.1') throw new WeftError('KERNEL', 'the kernel did not answer in time')
    return link(which)
  }
  const path = await backend.plan(own)[0]!.open(own, new Map(), signal)
  expect(lines.at(-1)).toBe('Cannot delete the device flannel-v6.1: the kernel did not answer in time')
  expect([path.carrier().device, stopped]).toEqual(['flannel.1', []])
  await path.close() // if the caller could not close the data path, it would keep the port and the device
  expect([kernel.peek('flannel.1'), stopped]).toEqual([undefined, ['flannel.1']])
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
