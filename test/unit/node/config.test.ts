// config.test.ts - a network configuration that changes while the node runs.

import { expect, it, vi } from 'vitest'
import { parseNetworkConfig } from '../../../src/config/network-config.ts'
import { installRig, dataPaths, lines, ready, start, store } from '../../support/node-rig.ts'

installRig()

it('names a network configuration that is not the one in use, each once, and goes on', async () => {
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

it('names one without its secrets, also where they alone have changed', async () => {
  const withKey = (key: string): string => `{"Network":"10.5.0.0/24","Backend":{"Type":"udp","PSK":"${key}"}}`
  start({ config: parseNetworkConfig(withKey('sesame')) })
  await ready()
  store.putConfig(withKey('open'))
  await vi.advanceTimersByTimeAsync(61_000)
  expect(lines.filter((line) => line.startsWith('W The network configuration changed'))).toEqual([
    expect.stringContaining(withKey('<hidden>')),
  ])
  expect(lines.join()).not.toMatch(/sesame|open"/)
})
