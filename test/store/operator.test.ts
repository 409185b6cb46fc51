// operator.test.ts - `weft lease` and `weft config` on either store: what they print, change and exit with.

import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { ownPlace, startEtcd, type Etcd } from '../../lab/etcd.ts'
import { gatherFacts } from '../../src/doctor/facts.ts'
import { soundStatus } from '../support/facts.ts'
import { weft, type Shown } from '../support/screen.ts'
import { ETCD, needs } from '../support/needs.ts'

const lacks = needs(...ETCD)

const CONFIG = '{"Network":"10.5.0.0/16"}'
const value = (ip: string): string => `{"PublicIP":"${ip}","PublicIPv6":null}`

let etcd: Etcd
let folder: string
let runs = 0
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-operator-'))
  if (!lacks) etcd = await startEtcd()
})
afterAll(async () => {
  await etcd?.close()
  rmSync(folder, { recursive: true })
})

describe.each(['etcd', 'directory'])('weft on the %s store', (kind) => {
  let flags: string[]
  let isReserved: (key: string) => Promise<boolean>
  const run = (...words: string[]): Promise<Shown> => weft([...words, ...flags])
  const json = async (...words: string[]): Promise<unknown> => JSON.parse((await run(...words, '--json')).out)
  const file = (text: string): string => {
    const path = join(folder, 'file')
    writeFileSync(path, text)
    return path
  }

  beforeEach(async () => {
    const name = `/run${runs++}`
    const place = join(folder, name)
    const none = ['--status-socket', join(folder, 'none')]
    flags = [
      ...none,
      ...(kind === 'etcd' ? ['--etcd-endpoints', etcd.endpoint, '--etcd-prefix', name] : ['--lease-dir', place]),
    ]
    isReserved = async (key) =>
      kind === 'etcd'
        ? /"lease":/.exec(await etcd.ctl('get', `${name}/subnets/${key}`, '-w', 'json')) === null
        : (statSync(join(place, 'subnets', key)).mode & 0o222) === 0
    await run('config', 'set', file(CONFIG))
  })

  it('shows, checks and puts the network configuration', async () => {
    expect(await run('config', 'set', file(CONFIG))).toMatchObject({
      code: 0,
      out: 'put; daemons take it when they restart\n',
    })
    expect(await run('config', 'get')).toMatchObject({ code: 0, out: `${CONFIG}\n` })
    expect(await run('config', 'check')).toMatchObject({
      code: 0,
      out: 'valid: 10.5.0.0/16 in /24, 10.5.1.0 to 10.5.255.0: 255 nodes; udp\n',
    })
    const bad = file('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":"1"}}')
    expect(await run('config', 'check', bad)).toMatchObject({
      code: 3,
      out: expect.stringContaining('not valid: Backend.VNI is "1"'),
    })
    expect(await json('config', 'check', bad)).toEqual({ valid: false, problem: expect.stringContaining('VNI') })
    expect(await run('config', 'set', bad)).toMatchObject({
      code: 1,
      err: expect.stringMatching(/^weft config set: Backend.VNI/),
    })
    expect(await run('config', 'set', file('{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec"}}'))).toMatchObject({
      code: 1,
    })
    for (const families of ['"EnableIPv6":true', '"EnableIPv6":true,"EnableIPv4":false']) {
      const ipv6 = file(`{"Network":"10.5.0.0/16","IPv6Network":"fc00::/48",${families}}`)
      expect(await run('config', 'check', ipv6)).toMatchObject({
        code: 3,
        out: expect.stringMatching(/^not valid: weft has no IPv6 yet.*stay with flannel/),
      })
      expect(await run('config', 'set', ipv6)).toMatchObject({ code: 1, err: expect.stringContaining('no IPv6 yet') })
    }
    expect(await run('config', 'get')).toMatchObject({ out: `${CONFIG}\n` })
    expect(await run('config', 'set', '/nowhere/config')).toMatchObject({ code: 2 })
  })

  it('reserves, lists, shows and releases', async () => {
    expect(await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.7')).toMatchObject({
      code: 0,
      out: 'reserved 10.5.7.0/24\n',
    })
    expect(await isReserved('10.5.7.0-24')).toBe(true)
    expect(await json('lease', 'ls')).toEqual([
      {
        ...{ key: '10.5.7.0-24', subnet: '10.5.7.0/24', publicIp: '192.0.2.7', type: '', reserved: true },
        ...{ value: value('192.0.2.7'), problem: null },
      },
    ])
    expect((await run('lease', 'ls')).out.split('\n')[1]).toBe('10.5.7.0/24  192.0.2.7  -     reserved')
    expect(await json('lease', 'show', '10.5.7.0-24')).toMatchObject({ publicIp: '192.0.2.7' })
    expect(await run('lease', 'reserve', '10.5.7.0/24')).toMatchObject({ code: 0 })
    for (const [words, problem] of [
      [['reserve', '10.5.7.0/24', '192.0.2.8'], 'is leased by 192.0.2.7'],
      [['reserve', '10.5.8.0/24'], 'the subnet is free'],
      [['reserve', '10.5.8.0/24', 'host'], 'no IPv4 address'],
      [['reserve', '10.5.8.0/25', '192.0.2.8'], 'no node can have'],
      [['reserve', '10.6.8.0/24', '192.0.2.8'], 'no node can have'],
      [['show', '10.5.8.0/24'], 'there is no lease of'],
      [['release', '10.5.8.0/24'], 'there is no lease of'],
      [['release', 'everything'], 'is no subnet'],
    ] as const)
      expect(await run('lease', ...words)).toMatchObject({ code: 2, out: '', err: expect.stringContaining(problem) })
    expect(await run('lease', 'release', '10.5.7.0/24')).toMatchObject({ code: 0, out: 'released 10.5.7.0/24\n' })
    expect(await json('lease', 'ls')).toEqual([])
  })

  it('puts no configuration that leases do not fit, unless it is told to', async () => {
    await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.7')
    const other = file('{"Network":"10.6.0.0/16"}')
    expect(await run('config', 'set', other)).toMatchObject({
      code: 1,
      err: expect.stringContaining('1 lease would not fit it, such as 10.5.7.0/24'),
    })
    expect(await run('config', 'set', other, '--force')).toMatchObject({ code: 0 })
    expect(await run('config', 'check')).toMatchObject({ out: expect.stringContaining('10.6.0.0/16') })
  })

  it('names what is no lease', async () => {
    await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.7')
    if (kind === 'etcd') await etcd.ctl('put', `${flags.at(-1)}/subnets/10.5.9.0-24`, 'junk')
    else writeFileSync(join(flags.at(-1)!, 'subnets', '10.5.9.0-24'), 'junk')
    const { code, out } = await run('lease', 'ls')
    expect(code).toBe(3)
    expect(out).toMatch(/^10\.5\.9\.0-24 .* the value is not a JSON object/m)
  })
})

it('tells how far the clock of an etcd is ahead, by what it tells everybody', async () => {
  const hourAhead = createServer((_request, response) =>
    response.writeHead(404, { date: new Date(Date.now() + 3_600_000).toUTCString() }).end(),
  )
  await new Promise<void>((resolve) => hourAhead.listen(0, '127.0.0.1', resolve))
  const { port } = hourAhead.address() as AddressInfo
  const aheadOf = async (leases: string): Promise<number | undefined> => {
    const status = { ...soundStatus, daemon: { ...soundStatus.daemon, leases } }
    const run = () => Promise.resolve('[]')
    return (await gatherFacts({ status, silence: undefined, subnetFile: '', run, ask: undefined })).storeAheadMs
  }
  expect(Math.abs((await aheadOf(`${etcd.endpoint},http://127.0.0.1:1 /x`))!)).toBeLessThan(30_000)
  expect(Math.abs((await aheadOf(`http://127.0.0.1:${port} /x`))! - 3_600_000)).toBeLessThan(30_000)
  expect(await aheadOf(`http://${await ownPlace()} /x`)).toBeUndefined()
  hourAhead.close()
})

it('says that a store does not answer', async () => {
  const flags = ['--etcd-endpoints', `http://${await ownPlace()}`, '--status-socket', join(folder, 'none')]
  expect(await weft(['lease', 'ls', ...flags])).toMatchObject({
    code: 1,
    out: '',
    err: expect.stringMatching(/^weft.*etcd/m),
  })
})
