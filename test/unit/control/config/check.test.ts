// check.test.ts - checks a network configuration as weftd does at its start.

import { expect, it } from 'vitest'
import { checkedConfig } from '../../../../src/control/config/check.ts'
import { KINDS } from '../../../../src/path/catalog.ts'

it('weftd checks the type and the options of the backend', () => {
  const warned: string[] = []
  const log = { warn: (line: string) => void warned.push(line) }
  const check = (backend: string, more = '') =>
    checkedConfig(`{"Network":"10.5.0.0/16"${more},"Backend":${backend}}`, log)
  const required: Readonly<Record<string, string>> = {
    http: ',"PutURL":"https://switch/{subnet}"',
    ipsec: `,"PSK":"${'p'.repeat(96)}"`,
  }
  for (const type of Object.keys(KINDS))
    expect(() => check(`{"Type":"${type}"${required[type] ?? ''}}`), type).not.toThrow()
  expect(() => check(`{"Type":"ipsec","PSK":"${'p'.repeat(95)}"}`)).toThrow('config error, password is too short')
  expect(() => check('{"Type":"ipsec"}')).toThrow('config error, password is too short')
  expect(() => check(`{"Type":"http"${required['http']},"Headers":{"A":"{credential}"}}`)).toThrow(
    'Backend.Headers.A has {credential}, and there is no CredentialFile',
  )
  expect(() => check(`{"Type":"http"${required['http']},"PutBody":"{subnets}"}`)).toThrow(
    'Backend.PutBody has the unknown variable {subnets}',
  )
  const checkIpv6 = (type: string) =>
    checkedConfig(
      `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"${type}"}}`,
      log,
    )
  expect(() => checkIpv6('vxlan", "DataPath": "userspace')).not.toThrow()
  expect(warned).toEqual([])
  for (const backend of [
    '{"Type":"ipip"}',
    '{"Type":"vxlan","DataPath":"userspace"}',
    '{"Type":"udp"}',
    '{"Type":"vxlan"}',
    '{"Type":"host-gw"}',
    '{"Type":"wireguard"}',
  ])
    check(backend, ',"EnableIPv6":true,"IPv6Network":"fd00:5::/48"')
  expect(warned).toEqual([
    expect.stringContaining('the ipip backend carries IPv4 alone: nothing carries fd00:5::/48 to other hosts'),
  ])
  for (const type of ['udp', 'vxlan', 'host-gw', 'wireguard', 'alloc', 'extension'])
    expect(() => checkIpv6(type), type).not.toThrow()
  expect(() => checkIpv6('ipip')).toThrow('the ipip backend needs IPv4, and EnableIPv4 is false')
  expect(() => check('{"Type":"ipip","DirectRouting":1}')).toThrow('Backend.DirectRouting is 1')
  const known =
    'to udp, vxlan, host-gw, ipip, wireguard, ipsec, alloc, extension, aws-vpc, gce, ali-vpc, tencent-vpc or http'
  for (const type of ['bridge', 'constructor'])
    expect(() => check(`{"Type":"${type}"}`)).toThrow(
      expect.objectContaining({
        message: `Error fetching backend: unknown backend type: ${type}`,
        remedy: `set "Backend": {"Type": ...} in the network configuration ${known}`,
      }),
    )
})

it('a configuration needs a backend type and at least one enabled family', () => {
  const log = { warn: () => {} }
  expect(() => checkedConfig('{"Network":"10.5.0.0/16","Backend":{}}', log)).toThrow(
    expect.objectContaining({
      message: 'Backend has no Type',
      remedy: expect.stringContaining('set "Backend": {"Type": ...}'),
    }),
  )
  expect(() => checkedConfig('{"Network":"10.5.0.0/16","EnableIPv4":false}', log)).toThrow('none defined stack')
})

it('a network may be too small for its subnets if a controller assigns the subnets', () => {
  const log = { warn: () => {} }
  const text = '{"Network":"10.5.0.0/16","SubnetLen":8}'
  expect(() => checkedConfig(text, log)).toThrow('network must be able to accommodate')
  expect(() => checkedConfig(text, log, false)).toThrow('network must be able to accommodate')
  expect(checkedConfig(text, log, true).ipv4?.subnetLength).toBe(0)
})
