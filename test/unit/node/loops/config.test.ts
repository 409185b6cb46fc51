// config.test.ts - a network configuration that changes while the node runs.

import { expect, it, vi } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import { installRig, dataPaths, lines, nodeStatus, ready, start, store, until } from '../../../support/node-rig.ts'

installRig()

it('logs once each network configuration that differs from the one in use, and continues', async () => {
  start()
  await ready()
  const named = (): string[] =>
    lines.flatMap((line) => /^W The network configuration changed.*: (.*)$/.exec(line)?.[1] ?? [])
  const other = '{"Network":"10.6.0.0/16"}'
  for (const text of ['{ "network": "10.5.0.0/24" }', other, other, '{', '{"Network":"10.5.0.0/24"}', other]) {
    store.putConfig(text)
    await vi.advanceTimersByTimeAsync(61_000)
  }
  expect(named()).toEqual([other, other])
  expect(dataPaths).toHaveLength(1)
})

it('reports that it is missing when the lease is missing too, and that it is back', async () => {
  start()
  await ready()
  await vi.advanceTimersByTimeAsync(61_000)
  const said = (): string[] =>
    lines.filter((line) => /^[EI] The network configuration is /.test(line)).map((line) => line.slice(2, 35).trim())
  store.config = async () => {
    throw new WeftError('CONFIG_MISSING', 'there is none', { remedy: 'put one' })
  }
  for (const key of store.entries.keys()) store.remove(key)
  await until(() => said().length === 1, 10_000)
  expect((await nodeStatus()).store.configGone).toBe(true)
  await vi.advanceTimersByTimeAsync(30_000)
  expect(said()).toEqual(['The network configuration is gone'])
  store.config = async () => '{"Network":"10.5.0.0/24"}'
  await until(() => said().length === 2, 10_000)
  expect((await nodeStatus()).store.configGone).toBe(false)
})

it('logs a changed configuration without its secrets, also if only secrets have changed', async () => {
  const withKey = (key: string): string => `{"Network":"10.5.0.0/24","Backend":{"Type":"udp","PSK":"${key}"}}`
  start({ config: parseNetworkConfig(withKey('sesame')) })
  await ready()
  store.putConfig(withKey('open'))
  await vi.advanceTimersByTimeAsync(61_000)
  expect(lines.filter((line) => line.startsWith('W The network configuration changed'))).toEqual([
    expect.stringContaining(withKey('<hidden>')),
  ])
  expect((await nodeStatus()).store.configDiffers).toBe(true)
  store.putConfig(withKey('sesame'))
  await vi.advanceTimersByTimeAsync(61_000)
  expect(lines).toContainEqual('I The network configuration is that of this node again')
  expect((await nodeStatus()).store.configDiffers).toBe(false)
  expect(lines.join()).not.toMatch(/sesame|open"/)
})
