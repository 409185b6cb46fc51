// operator.test.ts - `weft lease` and `weft config` on both stores: their output, their changes and their exit codes.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { ownPlace, startEtcd, type Etcd } from '../../lab/etcd.ts'
import { Secret } from '../../src/base/secret.ts'
import { DirectoryStore } from '../../src/control/store/directory/directory.ts'
import { EtcdStore } from '../../src/control/store/etcd/etcd.ts'
import { hostKernel } from '../../src/host/netlink/host-kernel.ts'
import { countPeers } from '../../src/report/status.ts'
import { gatherFacts } from '../../src/tool/doctor/facts.ts'
import { dualPeer, silentSide, soundDual, soundPeer, soundStatus } from '../support/facts.ts'
import { ETCD, needs } from '../support/needs.ts'
import { weft, type Shown } from '../support/screen.ts'

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
    if (kind === 'directory') mkdirSync(place)
    await run('config', 'set', file(CONFIG))
  })

  it('shows, checks and writes the network configuration', async () => {
    expect(await run('config', 'set', file(CONFIG))).toMatchObject({
      code: 0,
      out: 'stored; daemons use it when they restart\n',
    })
    expect(await run('config', 'get')).toMatchObject({ code: 0, out: `${CONFIG}\n` })
    expect(await run('config', 'check')).toMatchObject({
      code: 0,
      out: 'valid: 10.5.0.0/16 in /24, 10.5.1.0 to 10.5.255.0, 255 nodes; udp\n',
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
    const both = file('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/48"}')
    expect(await run('config', 'check', both)).toMatchObject({
      code: 0,
      out: 'valid: 10.5.0.0/16 in /24, 10.5.1.0 to 10.5.255.0, 255 nodes; fc00::/48 in /64, fc00:0:0:1:: to fc00:0:0:ffff::, 65535 nodes; udp\n',
    })
    expect(await json('config', 'check', both)).toMatchObject({ valid: true, warnings: [] })
    const alone = file(
      '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fc00::/48","Backend":{"Type":"ipip"}}',
    )
    expect(await json('config', 'check', alone)).toMatchObject({
      valid: true,
      warnings: [expect.stringMatching(/carries IPv4 alone: nothing carries fc00::\/48/)],
    })
    const without = '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48","Backend":{"Type":"ipip"}}'
    expect(await run('config', 'check', file(without))).toMatchObject({
      code: 3,
      out: expect.stringMatching(/^not valid: the ipip backend needs IPv4, and EnableIPv4 is false/),
    })
    expect(await run('config', 'check', file('{"EnableIPv4":false}'))).toMatchObject({
      code: 3,
      out: expect.stringMatching(/^not valid: none defined stack; set "EnableIPv4": true/),
    })
    expect(await run('config', 'get')).toMatchObject({ out: `${CONFIG}\n` })
    expect(await run('config', 'set', '/nowhere/config')).toMatchObject({ code: 2 })
  })

  it('reports what another configuration changes, and cuts off nodes only with --force', async () => {
    const vxlan = (): string => file('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
    expect(await run('config', 'set', vxlan())).toMatchObject({
      code: 0,
      out: expect.stringMatching(
        /^Backend.Type: udp -> vxlan\nthe MTU of containers changes from 1472 to 1450 .*\n.* must accept UDP port 8472 .*\nstored; daemons use it when they restart\n$/,
      ),
    })
    await run('config', 'set', file(CONFIG))
    for (const at of [7, 8, 9]) await run('lease', 'reserve', `10.5.${at}.0/24`, `192.0.2.${at}`)
    expect(await run('config', 'set', vxlan())).toMatchObject({
      code: 1,
      out: expect.stringMatching(/^Backend.Type: udp -> vxlan\n/),
      err: expect.stringMatching(
        /(?:^|\n)weft config set: nothing was stored: 3 of 3 nodes will reopen their data path when weftd restarts there; .* do not reach each other; give --force/,
      ),
    })
    expect(await run('config', 'set', '--dry-run', vxlan())).toMatchObject({
      code: 0,
      out: expect.stringMatching(
        /^Backend.Type: udp -> vxlan\n[^]*needs --force: 3 of 3 nodes [^]*nothing was stored\n$/,
      ),
    })
    expect(await run('config', 'get')).toMatchObject({ out: `${CONFIG}\n` })
    expect(await run('config', 'set', '--force', vxlan())).toMatchObject({
      code: 0,
      out: expect.stringMatching(/^Backend.Type: udp -> vxlan\n[^]*3 of 3 nodes will reopen .*\nstored; daemons/),
    })
    const mtu = file('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":1400}}')
    expect(await run('config', 'set', mtu)).toMatchObject({
      code: 0,
      out: 'Backend.MTU: 0 -> 1400\nthe MTU of containers changes from 1450 to 1350 bytes, if the external interface has 1500; make new containers, or lower the MTU of their bridge\neach of 3 nodes applies it when weftd restarts there\nstored; daemons use it when they restart\n',
    })
    for (const at of [7, 8, 9]) await run('lease', 'release', `10.5.${at}.0/24`, '--force')
  })

  it('refuses a mistyped key, and suggests the right one', async () => {
    const typo = file('{"Network":"10.5.0.0/16","Bakcend":{"Type":"udp"},"Backend":{"Prot":1,"Type":"udp"}}')
    const says =
      'the network configuration has "Bakcend", which nothing reads; did you mean Backend?, and Backend has "Prot", which udp does not read; did you mean Port?; `weft config schema` lists all keys'
    expect(await run('config', 'check', typo)).toMatchObject({ code: 3, out: `not valid: ${says}\n` })
    expect(await run('config', 'set', typo)).toMatchObject({ code: 1, err: `weft config set: ${says}\n` })
    expect(await run('config', 'set', '--force', typo)).toMatchObject({ code: 0 })
    const noType = file('{"Network":"10.5.0.0/16","Netwrok":1,"Backend":{"Typ":"vxlan"}}')
    expect(await run('config', 'check', noType)).toMatchObject({
      code: 3,
      out: expect.stringMatching(
        /^not valid: Backend has no Type, and the network configuration has "Netwrok", .*, and Backend has "Typ", which nothing reads; did you mean Type\?; set "Backend"/,
      ),
    })
  })

  it('reserves, lists, shows and releases subnets', async () => {
    expect(await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.7')).toMatchObject({
      code: 0,
      out: 'reserved 10.5.7.0/24\n',
    })
    expect(await isReserved('10.5.7.0-24')).toBe(true)
    expect(await json('lease', 'ls')).toEqual([
      {
        key: '10.5.7.0-24',
        subnet: '10.5.7.0/24',
        publicIp: '192.0.2.7',
        type: '',
        reserved: true,
        ipv6Subnet: null,
        publicIpv6: null,
        value: value('192.0.2.7'),
        problem: null,
        expiresAt: null,
        nodeState: null,
        name: null,
      },
    ])
    expect((await run('lease', 'ls')).out.split('\n')[1]).toBe('-     10.5.7.0/24  192.0.2.7  udp   reserved  never  -')
    expect(await json('lease', 'show', '10.5.7.0-24')).toMatchObject({ publicIp: '192.0.2.7' })
    expect(await run('lease', 'reserve', '10.5.7.0/24')).toMatchObject({ code: 0 })
    for (const [words, problem] of [
      [['reserve', '10.5.7.0/24', '192.0.2.8'], 'is leased by 192.0.2.7'],
      [['reserve', '10.5.8.0/24'], 'the subnet is free'],
      [['reserve', '10.5.8.0/24', 'host'], 'is not an address'],
      [['reserve', '10.5.8.0/24', '192.0.2.8,192.0.2.9'], 'is not an address'],
      [['reserve', 'fd00:5:0:7::/64', '192.0.2.8'], 'the network configuration does not allow the subnet'],
      [['reserve', '10.5.8.0/24,10.5.9.0/24', '192.0.2.8'], 'is not a subnet'],
      [['show', '10.5.8.1/24'], 'is not a subnet'],
      [['reserve', '10.5.8.0/25', '192.0.2.8'], 'the network configuration does not allow the subnet'],
      [['reserve', '10.6.8.0/24', '192.0.2.8'], 'the network configuration does not allow the subnet'],
      [['show', '10.5.8.0/24'], 'there is no lease of'],
      [['release', '10.5.8.0/24'], 'there is no lease of'],
      [['release', 'everything'], 'is not a subnet'],
    ] as const)
      expect(await run('lease', ...words)).toMatchObject({ code: 2, out: '', err: expect.stringContaining(problem) })
    expect(await run('lease', 'release', '10.5.7.0/24')).toMatchObject({ code: 0, out: 'released 10.5.7.0/24\n' })
    expect(await json('lease', 'ls')).toEqual([])
  })

  it('shows when a lease ends, and the state of its node', async () => {
    const store =
      kind === 'etcd'
        ? new EtcdStore({
            endpoints: [etcd.endpoint],
            prefix: `/run${runs - 1}`,
            ttlMs: 7_200_000,
            certFile: '',
            keyFile: '',
            caFile: '',
            username: '',
            password: new Secret(''),
          })
        : new DirectoryStore({ directory: join(folder, `/run${runs - 1}`), ttlMs: 7_200_000 })
    const { signal } = new AbortController()
    const mine = '10.5.6.0-24'
    await store.create(mine, value('192.0.2.6'), signal)
    await store.create('10.5.7.0-24', value('192.0.2.7'), signal)
    const ends = await store.ends(signal)
    expect([...ends.keys()].toSorted()).toEqual([mine, '10.5.7.0-24'])
    for (const at of ends.values()) expect(Math.abs(at - Date.now() - 7_200_000)).toBeLessThan(60_000)
    await store.close()
    const peer = { ...soundPeer, state: 'programmed', lossPercent: 100, lease: '10.5.7.0-24' } as const
    const status = { ...soundStatus, lease: { ...soundStatus.lease!, key: mine }, peers: countPeers([peer], 10) }
    const server = createServer((_request, response) => response.end(JSON.stringify(status)))
    const socket = join(folder, `ends${runs}`)
    await new Promise<void>((resolve) => server.listen(socket, resolve))
    try {
      const words = ['lease', 'ls', ...flags, '--status-socket', socket]
      const rows = (await weft(words)).out.split('\n').map((line) => line.split(/ {2,}/))
      const end = expect.stringMatching(kind === 'etcd' ? /^in 1[12]\d min$/ : /^in 2[34] h$/)
      expect(rows.slice(0, 3)).toEqual([
        ['NAME', 'SUBNET', 'NODE', 'TYPE', 'KIND', 'ENDS', 'NODE IS'],
        ['-', '10.5.6.0/24', '192.0.2.6', 'udp', 'lease', end, 'this node'],
        ['-', '10.5.7.0/24', '192.0.2.7', 'udp', 'lease', end, 'silent'],
      ])
      const printed = JSON.parse((await weft([...words, '--json'])).out) as { expiresAt: string; nodeState: string }[]
      expect(printed.map(({ nodeState }) => nodeState)).toEqual(['this node', 'silent'])
      for (const { expiresAt } of printed) expect(Date.parse(expiresAt)).toBeGreaterThan(Date.now())
    } finally {
      server.close()
    }
  })

  it('releases the lease of a node that answers over at least one family only with --force', async () => {
    const lease = '10.5.7.0-24'
    await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.2')
    let peer = { ...dualPeer({}, silentSide), lease }
    const status = () => ({ ...soundDual.status, peers: countPeers([peer], 10) })
    const server = createServer((_request, response) => response.end(JSON.stringify(status())))
    const socket = join(folder, `answers${runs}`)
    await new Promise<void>((resolve) => server.listen(socket, resolve))
    try {
      const release = (...words: string[]) =>
        weft(['lease', 'release', '10.5.7.0/24', ...words, ...flags, '--status-socket', socket])
      for (const sides of [
        [{}, silentSide],
        [silentSide, {}],
      ]) {
        peer = { ...dualPeer(...sides), lease }
        expect(await release()).toMatchObject({
          code: 2,
          err: expect.stringContaining(
            '10.5.7.0/24 is held by 192.0.2.2, which answers; stop the daemon of that node first',
          ),
        })
      }
      expect((await release('--force')).code).toBe(0)
      await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.2')
      peer = { ...dualPeer(silentSide, silentSide), lease }
      expect((await release()).code).toBe(0)
    } finally {
      server.close()
    }
  })

  it('reserves, shows and releases subnets of both families, given either subnet', async () => {
    const both = '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}'
    if (kind === 'etcd') await etcd.ctl('put', `${flags.at(-1)}/config`, both)
    else writeFileSync(join(flags.at(-1)!, 'config'), both)
    const [key, name] = ['10.5.7.0-24&fd00:5:0:7::-64', '10.5.7.0/24,fd00:5:0:7::/64']
    expect(await run('lease', 'reserve', name, '192.0.2.7,fd77::7')).toMatchObject({ out: `reserved ${name}\n` })
    expect(await isReserved(key)).toBe(true)
    const shown = {
      key,
      subnet: '10.5.7.0/24',
      ipv6Subnet: 'fd00:5:0:7::/64',
      publicIp: '192.0.2.7',
      publicIpv6: 'fd77::7',
      type: '',
      reserved: true,
      value: '{"PublicIP":"192.0.2.7","PublicIPv6":"fd77::7"}',
      problem: null,
    }
    for (const each of ['10.5.7.0/24', 'fd00:5:0:7::/64', name, key, '10.5.7.0-24'])
      expect(await json('lease', 'show', each)).toEqual(shown)
    expect((await run('lease', 'ls')).out.split('\n')[1]).toBe(
      `-     ${name}  192.0.2.7,fd77::7  udp   reserved  never  -`,
    )
    expect(await run('lease', 'reserve', 'fd00:5:0:8::/64', 'fd77::8')).toMatchObject({ code: 0 })
    for (const [words, problem] of [
      [['reserve', 'fd00:5:0:7::/64', '192.0.2.8'], `${key} is leased by 192.0.2.7,fd77::7`],
      [['reserve', '10.5.9.0/24,fd00:5:0:8::/64', '192.0.2.9'], '0.0.0.0-0&fd00:5:0:8::-64 overlaps'],
      [['reserve', 'fd00:5:0:9::/63', 'fd77::9'], 'is not a subnet'],
      [['reserve', 'fd00:5:0:10::/60', 'fd77::9'], 'does not allow the subnet fd00:5:0:10::/60'],
      [['show', '10.5.7.0/24,fd00:5:0:8::/64'], 'there is no lease of 10.5.7.0/24,fd00:5:0:8::/64'],
    ] as const)
      expect(await run('lease', ...words)).toMatchObject({ code: 2, out: '', err: expect.stringContaining(problem) })
    expect(await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.7')).toMatchObject({ out: `reserved ${name}\n` })
    expect(await run('lease', 'release', 'fd00:5:0:7::/64')).toMatchObject({ out: `released ${name}\n` })
    expect(await json('lease', 'ls')).toMatchObject([
      { key: '0.0.0.0-0&fd00:5:0:8::-64', subnet: 'fd00:5:0:8::/64', publicIp: 'fd77::8' },
    ])
  })

  it('writes a configuration that does not fit the leases only with --force', async () => {
    await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.7')
    const other = file('{"Network":"10.6.0.0/16"}')
    expect(await run('config', 'set', other)).toMatchObject({
      code: 1,
      err: expect.stringContaining('it does not fit 1 lease, such as 10.5.7.0/24'),
    })
    expect(await run('config', 'set', other, '--force')).toMatchObject({ code: 0 })
    expect(await run('config', 'check')).toMatchObject({ out: expect.stringContaining('10.6.0.0/16') })
  })

  it('reports for a configuration without one family that leases would lose only the subnet of that family', async () => {
    const both = file('{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}')
    expect(await run('config', 'set', both)).toMatchObject({ code: 0 })
    await run('lease', 'reserve', '10.5.7.0/24,fd00:5:0:7::/64', '192.0.2.7,fd77::7')
    const back = file('{"Network":"10.5.0.0/16"}')
    expect(await run('config', 'set', back)).toMatchObject({
      code: 1,
      err: expect.stringContaining(
        'it has no IPv6: 1 lease would lose the IPv6 subnet, such as fd00:5:0:7::/64, and keep the other family; give --force',
      ),
    })
    expect(await run('config', 'set', file('{"Network":"10.6.0.0/16"}'))).toMatchObject({
      err: expect.stringContaining('it does not fit 1 lease'),
    })
    expect(await run('config', 'set', back, '--force')).toMatchObject({ code: 0 })
  })

  it('names entries that are not leases', async () => {
    await run('lease', 'reserve', '10.5.7.0/24', '192.0.2.7')
    if (kind === 'etcd') await etcd.ctl('put', `${flags.at(-1)}/subnets/10.5.9.0-24`, 'junk')
    else writeFileSync(join(flags.at(-1)!, 'subnets', '10.5.9.0-24'), 'junk')
    const { code, out } = await run('lease', 'ls')
    expect(code).toBe(3)
    expect(out).toMatch(/^- +10\.5\.9\.0-24 .* the value is not a JSON object/m)
  })
})

it('reads from the Date header of etcd how far its clock is ahead', async () => {
  const hourAhead = createServer((_request, response) =>
    response.writeHead(404, { date: new Date(Date.now() + 3_600_000).toUTCString() }).end(),
  )
  await new Promise<void>((resolve) => hourAhead.listen(0, '127.0.0.1', resolve))
  const { port } = hourAhead.address() as AddressInfo
  const aheadOf = async (leases: string): Promise<number | undefined> => {
    const status = { ...soundStatus, daemon: { ...soundStatus.daemon, leases } }
    const run = () => Promise.resolve('[]')
    return (
      await gatherFacts({ status, silence: undefined, subnetFile: '', run, kernel: hostKernel, probe: undefined })
    ).storeAheadMs
  }
  expect(Math.abs((await aheadOf(`${etcd.endpoint},http://127.0.0.1:1 /x`))!)).toBeLessThan(30_000)
  expect(Math.abs((await aheadOf(`http://127.0.0.1:${port} /x`))! - 3_600_000)).toBeLessThan(30_000)
  expect(await aheadOf(`http://${await ownPlace()} /x`)).toBeUndefined()
  hourAhead.close()
})

it('reports that a store does not answer', async () => {
  const flags = ['--etcd-endpoints', `http://${await ownPlace()}`, '--status-socket', join(folder, 'none')]
  expect(await weft(['lease', 'ls', ...flags])).toMatchObject({
    code: 1,
    out: '',
    err: expect.stringMatching(/^weft.*etcd/m),
  })
})

it("uses the credentials of this host's daemon, and shows none of them", async () => {
  if (lacks) return
  const server = await startEtcd({ tls: true })
  const rows = ['user add root:secret', 'user grant-role root root', 'user add node:sesame', 'role add nodes']
  const grants = [
    'role grant-permission nodes --prefix=true readwrite /n/',
    'user grant-role node nodes',
    'auth enable',
  ]
  for (const row of [...rows, ...grants]) await server.ctl(...row.split(' '))
  await server.ctl('--user', 'root:secret', 'put', '/n/config', CONFIG)
  // `/proc` shows the name of a weftd and the environment that it was started with.
  const daemon = spawn('sleep', ['600'], {
    argv0: 'weftd',
    env: { FLANNELD_ETCD_USERNAME: 'node', FLANNELD_ETCD_PASSWORD: 'sesame' },
  })
  await once(daemon, 'spawn')
  const leases = `${server.endpoint} /n`
  const about = { ...soundStatus.daemon, pid: daemon.pid!, leases, etcdFiles: { caFile: server.certificate } }
  const status = createServer((_request, response) => response.end(JSON.stringify({ ...soundStatus, daemon: about })))
  const socket = join(folder, 'credentials')
  await new Promise<void>((resolve) => status.listen(socket, resolve))
  try {
    const shown = await weft(['config', 'get', '--status-socket', socket])
    expect(shown).toEqual({ code: 0, out: `${CONFIG}\n`, err: '' })
    const refused = await weft(['config', 'get', '--status-socket', socket, '--etcd-password', 'wrong'])
    expect(refused).toMatchObject({ code: 1, err: expect.stringContaining('refused the user node') })
    expect(refused.err).not.toMatch(/sesame|wrong/)
  } finally {
    status.close()
    daemon.kill()
    await server.close()
  }
})
