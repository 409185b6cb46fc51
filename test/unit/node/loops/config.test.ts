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

it.each([
  ['not JSON', '{"Network":"10.5.0.0/24",}', 'the network configuration is not valid JSON: '],
  ['of an unknown backend', '{"Network":"10.5.0.0/24","Backend":{"Type":"vxlna"}}', 'unknown backend type: vxlna'],
  ['without a family', '{"EnableIPv4":false}', 'none defined stack'],
])('reports once a configuration with which no weftd can start (%s), until it is valid', async (_what, text, why) => {
  start()
  await ready()
  const said = (): string[] => lines.filter((line) => line.includes(' The network configuration '))
  store.putConfig('{"Network":"10.6.0.0/16"}')
  await vi.advanceTimersByTimeAsync(61_000)
  store.putConfig(text)
  await vi.advanceTimersByTimeAsync(180_000)
  expect(said().slice(1)).toEqual([
    expect.stringMatching(
      /^E The network configuration in the store is invalid; this node continues, but no weftd can/,
    ),
  ])
  expect(said()[1]).toContain(why)
  const { store: seen, impairments, dataPath } = await nodeStatus()
  expect(seen).toMatchObject({ configGone: true, configDiffers: true })
  expect(impairments).toEqual([{ by: 'store', what: expect.stringContaining(why) }])
  expect(dataPath!.open).toBe(true)
  store.putConfig('{"Network":"10.5.0.0/24"}')
  await vi.advanceTimersByTimeAsync(6_000)
  expect(said().slice(2)).toEqual(['I The network configuration is that of this node again'])
  expect((await nodeStatus()).store).toMatchObject({ configGone: false, configDiffers: false })
})

it('reports an invalid configuration after a missing one, and a missing one after an invalid one', async () => {
  start()
  await ready()
  const said = (): string[] =>
    lines.flatMap((line) => /^[EI] (The network configuration .*?)(?:;|$)/.exec(line)?.[1] ?? [])
  const config = store.config.bind(store)
  const missing = async (): Promise<never> => {
    throw new WeftError('CONFIG_MISSING', 'there is none', { remedy: 'put one' })
  }
  store.putConfig('{"PSK":"sesame')
  for (const read of [config, missing, config]) {
    store.config = read
    await vi.advanceTimersByTimeAsync(61_000)
  }
  const invalid = 'The network configuration in the store is invalid'
  const [gone, back] = ['The network configuration is gone', 'The network configuration is in the store again']
  expect(said()).toEqual([invalid, gone, back, invalid])
  expect((await nodeStatus()).store.configGone).toBe(true)
  expect(lines.join()).not.toContain('sesame')
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
