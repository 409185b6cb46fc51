// others.test.ts - all texts of a status and of a store are escaped in the output of each command.

import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { formatMetrics } from '../../../../src/report/metrics.ts'
import type { Status } from '../../../../src/report/status.ts'
import { soundPeer, soundStatus } from '../../../support/facts.ts'
import { expectHarmless, HOSTILE } from '../../../support/hostile.ts'
import { weft } from '../../../support/screen.ts'

const { node, config, dataPath, daemon, store, peers, lease } = soundStatus
/** A text with all characters that must be escaped. */
const status: Status = {
  ...soundStatus,
  state: 'impaired',
  trouble: HOSTILE,
  summary: HOSTILE,
  node: { ...node!, hostname: HOSTILE, externalInterface: HOSTILE, twin: HOSTILE },
  config: { ...config!, backendType: HOSTILE, backend: { [HOSTILE]: HOSTILE } },
  dataPath: {
    ...dataPath!,
    device: HOSTILE,
    engine: HOSTILE,
    features: [HOSTILE],
    drops: { [HOSTILE]: 1 },
    threads: [{ name: HOSTILE, hungSeconds: 9 }],
  },
  daemon: { ...daemon, version: HOSTILE, subnetFile: HOSTILE, leases: `${HOSTILE} /n` },
  store: { ...store, name: HOSTILE, reachable: false },
  lease: { ...lease!, key: HOSTILE, published: { [HOSTILE]: HOSTILE } },
  peers: {
    ...peers!,
    list: [
      { ...soundPeer, name: HOSTILE, lease: HOSTILE, type: HOSTILE, endpoint: HOSTILE, state: 'stored' },
      { ...soundPeer, lease: HOSTILE, type: HOSTILE, endpoint: HOSTILE, state: 'programmed', lossPercent: 100 },
    ],
  },
  events: [
    { at: '2026-11-22T09:00:00.000Z', level: 'warn', text: HOSTILE },
    { at: '2026-11-22T09:00:00.000Z', level: 'error', text: HOSTILE },
  ],
}
const drops = {
  schema: 1,
  at: '',
  device: HOSTILE,
  engine: 'native',
  reasons: { [HOSTILE]: { packets: 3, means: HOSTILE } },
  next: [],
  packets: [
    {
      atUs: 1,
      direction: 'in',
      reason: HOSTILE,
      packets: 1,
      length: 9,
      peer: HOSTILE,
      peerName: HOSTILE,
      encap: HOSTILE,
      headers: '45',
    },
  ],
}

let folder: string
let server: Server
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-others-'))
  server = createServer((request, response) => {
    response.end(JSON.stringify(request.url!.startsWith('/drops') ? drops : status))
  })
  await new Promise<void>((resolve) => server.listen(join(folder, 'socket'), resolve))
})
afterEach(() => {
  server.close()
  rmSync(folder, { recursive: true })
})

/** Runs a command as text and as JSON, and removes the colours that weft wrote. */
async function expectAllHarmless(words: readonly string[]): Promise<void> {
  const texts: string[] = []
  for (const isTTY of [true, false]) {
    const { out, err } = await weft(words, { isTTY })
    // The colours of the hostile text are escaped. Those of weft end before the line does.
    // oxlint-disable-next-line no-control-regex
    expectHarmless(`${words.join(' ')}, ${isTTY}`, out.replaceAll(/\u001B\[(?:\d+m)(.*?)\u001B\[0m/g, '$1'))
    expectHarmless(`${words.join(' ')} to stderr`, err)
    texts.push(out + err)
  }
  expect(texts.every((text) => text.includes('PWNED'))).toBe(true)
}

describe('a status with hostile texts', () => {
  it.each([['status'], ['peers'], ['doctor'], ['capture']])('is escaped by weft %s', async (...words) => {
    const socket = ['--status-socket', join(folder, 'socket')]
    await expectAllHarmless([...words, ...socket])
    await expectAllHarmless([...words, ...socket, '--json'])
  })

  it('is escaped in the metrics', async () => {
    const { body } = await formatMetrics(status)
    expectHarmless('/metrics', body)
    expect(body).toContain('PWNED')
  })
})

describe('a missing lease directory', () => {
  it.each([
    ['config', 'get'],
    ['config', 'check'],
    ['lease', 'ls'],
    ['lease', 'show', '10.5.2.0/24'],
    ['lease', 'release', '10.5.2.0/24'],
    ['lease', 'reserve', '10.5.2.0/24'],
    ['doctor'],
  ])('is not created by weft %s %s', async (...words) => {
    const mistyped = join(folder, 'mistyped')
    const { code, out, err } = await weft([...words, '--lease-dir', mistyped, '--status-socket', '/nowhere'])
    expect([existsSync(mistyped), code === 0]).toEqual([false, false])
    if (code === 1) expect(out + err).toContain(`there is no directory ${mistyped}`)
  })

  it('is not created to write a configuration', async () => {
    const [file, mistyped] = [join(folder, 'net.json'), join(folder, 'mistyped')]
    writeFileSync(file, '{"Network":"10.5.0.0/16"}')
    const { code, err } = await weft(['config', 'set', file, '--lease-dir', mistyped, '--status-socket', '/nowhere'])
    expect([code, err]).toEqual([1, expect.stringContaining(`there is no directory ${mistyped}; correct --lease-dir`)])
    expect(existsSync(mistyped)).toBe(false)
  })
})

describe('a store with hostile texts', () => {
  const value = (part: object): string => JSON.stringify({ PublicIP: '192.0.2.2', ...part })
  it.each([
    ['no JSON', HOSTILE],
    ['a type', value({ BackendType: HOSTILE })],
    ['data', value({ BackendType: 'vxlan', BackendData: { VtepMAC: HOSTILE, [HOSTILE]: HOSTILE } })],
    ['an address', value({ PublicIP: HOSTILE })],
    ['an address of IPv6', value({ PublicIPv6: HOSTILE })],
    ['a name', value({ [HOSTILE]: HOSTILE })],
  ])('is escaped by weft lease, with %s', async (_what, text) => {
    mkdirSync(join(folder, 'subnets'))
    mkdirSync(join(folder, 'weft'))
    writeFileSync(join(folder, 'weft', '192.0.2.2'), JSON.stringify({ Hostname: HOSTILE }))
    writeFileSync(join(folder, 'config'), '{"Network":"10.5.0.0/16"}')
    writeFileSync(join(folder, 'subnets', '10.5.2.0-24'), text)
    writeFileSync(join(folder, 'subnets', `${HOSTILE.replaceAll(/[\0/]/g, '')}10.5.3.0-24`.slice(-250)), text)
    const at = ['--lease-dir', folder, '--status-socket', '/nowhere']
    for (const json of [[], ['--json']]) {
      await expectAllHarmless(['lease', 'ls', ...at, ...json])
      await expectAllHarmless(['lease', 'show', '10.5.2.0/24', ...at, ...json])
    }
  })

  it.each([
    ['is no JSON', HOSTILE],
    ['has a type', JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: HOSTILE } })],
    ['has a network', JSON.stringify({ Network: HOSTILE })],
    ['has an option', JSON.stringify({ Network: '10.5.0.0/16', Backend: { Type: 'wireguard', Mode: HOSTILE } })],
  ])('is escaped by weft config, if its text %s', async (_what, text) => {
    writeFileSync(join(folder, 'config'), text)
    const at = ['--lease-dir', folder, '--status-socket', '/nowhere']
    for (const words of [['check'], ['check', '--json']]) {
      const { out, err } = await weft(['config', ...words, ...at])
      expectHarmless('out', out)
      expectHarmless('err', err)
    }
    const { out } = await weft(['config', 'get', '--show-secrets', ...at])
    for (const letter of ['\u001B', '\u009B', '\u202E']) expect(out).not.toContain(letter)
  })
})

it('names in weft doctor the checks that were not possible, with the reason', async () => {
  const { out } = await weft(['doctor', '--status-socket', '/nowhere', '--lease-dir', '/nowhere'])
  expect(out).toMatch(/^handshakes +unknown {2}only a running weftd knows this, and it does not answer$/m)
  expect(out).toMatch(/^drops +unknown {2}for the same reason as handshakes$/m)
  expect(out).toMatch(/; \d+ checks could not be made \(.*\bdrops\)\n$/)
})
