// vxlan.test.ts - what the vxlan backend reads: its options, and a peer's MAC.

import { expect, it } from 'vitest'
import { vtepMacOf, vxlanConfig } from '../../../src/backend/vxlan-config.ts'
import { createVxlanBackend } from '../../../src/backend/vxlan.ts'
import { parseNetworkConfig } from '../../../src/config/network-config.ts'
import { WeftError } from '../../../src/errors.ts'

const NONE = {
  vni: 1,
  port: 0,
  mtu: 0,
  gbp: false,
  learning: false,
  directRouting: false,
  dataPath: undefined,
  verifySource: 'strict',
  clampMss: false,
  probePathMtu: false,
}

it.each([
  [{}, NONE],
  [
    { type: 'vxlan', vni: 7, port: 4789, mtu: 1400 },
    { ...NONE, vni: 7, port: 4789, mtu: 1400 },
  ],
  [
    { gbp: true, learning: true, directrouting: true },
    { ...NONE, gbp: true, learning: true, directRouting: true },
  ],
  [{ datapath: 'userspace' }, { ...NONE, dataPath: 'userspace' }],
  [{ verifysource: 'inner' }, { ...NONE, verifySource: 'inner' }],
  [{ probepathmtu: true }, { ...NONE, probePathMtu: true }],
  [{ vni: null }, NONE],
  [{ vni: 9_999_999 }, { ...NONE, vni: 9_999_999 }],
])('of %j the options are %j', (backend, options) => {
  expect(vxlanConfig(backend)).toEqual(options)
})

it.each([
  [{ vni: 10_000_000 }, 'Backend.VNI is 10000000'],
  [{ vni: -1 }, 'Backend.VNI is -1'],
  [{ vni: '1' }, 'Backend.VNI is "1"'],
  [{ port: 65_536 }, 'Backend.Port is 65536'],
  [{ mtu: 1.5 }, 'Backend.MTU is 1.5'],
  [{ gbp: 'yes' }, 'Backend.GBP is "yes"'],
  [{ directrouting: 1 }, 'Backend.DirectRouting is 1'],
  [{ datapath: 'user' }, 'Backend.DataPath is "user"'],
  [{ verifysource: 'outer' }, 'Backend.VerifySource is "outer"'],
  [{ probepathmtu: 'yes' }, 'Backend.ProbePathMTU is "yes"'],
])('%j is refused: %s', (backend, message) => {
  expect(() => vxlanConfig(backend)).toThrow(message)
})

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
])('of %j the MAC is %s', (backendData, mac) => {
  expect(vtepMacOf({ publicIp: 0xc0000202, backendType: 'vxlan', backendData })).toBe(mac)
})

it('keeps the MAC that peers know while its device is gone and the store no longer answers', async () => {
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const address = 0xc0000201
  const known = '5a:11:22:33:44:55'
  let isAway = false
  const backend = createVxlanBackend({
    config: parseNetworkConfig('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","DataPath":"userspace"}}'),
    external: { name: 'eth0', mtu: 1500, address, publicIp: address, named: { address: true, publicIp: true } },
    startEngine: () => Promise.reject(new Error('nothing is opened here')),
    persistence: { persist: true, tunName: undefined, isMultiQueue: false, inherit: async () => undefined },
    publishedBefore: async () =>
      isAway ? undefined : { publicIp: address, backendType: 'vxlan', backendData: { VtepMAC: known } },
    run: () => Promise.reject(new WeftError('COMMAND', 'Device does not exist.')),
    log,
  })
  const macOf = async () => vtepMacOf(await backend.prepare(new AbortController().signal))
  expect(await macOf()).toBe(known)
  isAway = true
  expect(await macOf()).toBe(known)
})
