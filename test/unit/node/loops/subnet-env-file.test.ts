// subnet-env-file.test.ts - the file's bytes, its replacement, and how an earlier one is read.

import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { createLog } from '../../../../src/base/log.ts'
import { formatIpv4Net, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { parseIpv6Net } from '../../../../src/net/ipv6.ts'
import { formatSubnetEnv, readPreviousNets, writeSubnetEnv } from '../../../../src/node/loops/subnet-env-file.ts'
import { createEvents } from '../../../../src/report/events.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'subnet-env-'))
})
afterEach(() => {
  vi.restoreAllMocks()
  rmSync(folder, { recursive: true })
})

const ipv4 = { network: parseIpv4Net('10.1.0.0/16')!, subnet: parseIpv4Net('10.1.74.0/24')! }
const ipv6 = { network: parseIpv6Net('2001:cafe::/32')!, subnet: parseIpv6Net('2001:cafe:42::/64')! }
const env = { network: { ipv4: ipv4.network }, subnet: { ipv4: ipv4.subnet }, mtu: 1472, ipMasq: false }

describe('subnet.env', () => {
  it("has flannel's bytes and mode, whatever the umask, and leaves no other file", async () => {
    const path = join(folder, 'a/b/subnet.env')
    const umask = process.umask(0o077)
    try {
      await writeSubnetEnv(path, env)
      await writeSubnetEnv(path, env)
    } finally {
      process.umask(umask)
    }
    expect(readFileSync(path, 'utf8')).toBe(
      'FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n',
    )
    expect(statSync(path).mode & 0o777).toBe(0o644)
    expect(readdirSync(join(folder, 'a/b'))).toEqual(['subnet.env'])
  })

  it("has the lines of each family of the network, in flannel's order", () => {
    const text4 = 'FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.1/24\n'
    const text6 = 'FLANNEL_IPV6_NETWORK=2001:cafe::/32\nFLANNEL_IPV6_SUBNET=2001:cafe:42::1/64\n'
    const rest = 'FLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n'
    const both = {
      network: { ipv4: ipv4.network, ipv6: ipv6.network },
      subnet: { ipv4: ipv4.subnet, ipv6: ipv6.subnet },
    }
    expect(formatSubnetEnv({ ...env, ...both })).toBe(text4 + text6 + rest)
    expect(formatSubnetEnv({ ...env, network: { ipv6: ipv6.network }, subnet: { ipv6: ipv6.subnet } })).toBe(
      text6 + rest,
    )
  })

  it('is on the disk before it takes the place of the old one', async () => {
    const path = join(folder, 'subnet.env')
    await writeSubnetEnv(path, env)
    const before = readFileSync(path, 'utf8')
    const file = await open(path)
    const sync = vi.spyOn(Object.getPrototypeOf(file) as typeof file, 'sync')
    await file.close()
    const atSync: string[] = []
    sync.mockImplementation(async () => void atSync.push(readFileSync(path, 'utf8'), ...readdirSync(folder)))
    await writeSubnetEnv(path, { ...env, mtu: 1400 })
    expect(atSync).toEqual([before, expect.stringMatching(/^\.subnet\.env/), 'subnet.env'])
    expect(readFileSync(path, 'utf8')).toContain('MTU=1400\n')
  })

  it('gives the remedy if it cannot be written', async () => {
    writeFileSync(join(folder, 'file'), '')
    await expect(writeSubnetEnv(join(folder, 'file/subnet.env'), env)).rejects.toMatchObject({
      code: 'PERMISSION',
      remedy: expect.stringContaining('--subnet-file'),
    })
  })

  const NONE = 'W no subnet found for key: FLANNEL_SUBNET in file: FILE'
  const bad = (part: string): string =>
    `E Couldn't parse previous FLANNEL_SUBNET from subnet file at FILE: invalid CIDR address: ${part}`
  const read = async (path: string): Promise<[string | undefined, string[]]> => {
    const said: string[] = []
    const say = (letter: string) => (message: string) => void said.push(`${letter} ${message.replace(path, 'FILE')}`)
    const { subnet } = await readPreviousNets(path, { warn: say('W'), error: say('E') })
    return [subnet.ipv4 && formatIpv4Net(subnet.ipv4), said]
  }

  it("that is missing at a first start causes flanneld's warning and a line that explains it", async () => {
    const events = createEvents()
    const lines: string[] = []
    const log = createLog(
      0,
      (line) => void lines.push(line),
      (level, text) => events.add(level, text),
    )
    const path = join(folder, 'subnet.env')
    await readPreviousNets(path, log)
    writeFileSync(path, 'FLANNEL_MTU=1450\n')
    await readPreviousNets(path, log)
    expect(lines.map((line) => line[0])).toEqual(['W', 'W'])
    expect(events.last().map(({ level }) => level)).toEqual(['info', 'warn'])
  })

  it.each([
    ['FLANNEL_SUBNET=10.1.74.1/24\n', '10.1.74.0/24', []],
    ['FLANNEL_SUBNET=10.1.74.1/24', '10.1.74.0/24', []],
    ['export FLANNEL_SUBNET="10.1.74.1/24" # ours\n', '10.1.74.0/24', []],
    ["# a file of ours\n\nFLANNEL_SUBNET='10.1.74.1/24'\nFLANNEL_MTU=1472\n", '10.1.74.0/24', []],
    ['FLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_SUBNET=10.1.75.1/24\n', '10.1.75.0/24', []],
    ['FLANNEL_SUBNET=10.244.1.0/24,not-a-cidr\n', '10.244.1.0/24', [bad('not-a-cidr')]],
    [
      'FLANNEL_SUBNET=10.244.1.0/24,not-a-cidr,10.244.2.0/24\n',
      undefined,
      [
        bad('not-a-cidr'),
        'E error reading subnet: more than 1 entry found for key: FLANNEL_SUBNET in file FILE: 10.244.1.0/24,not-a-cidr,10.244.2.0/24',
      ],
    ],
    ['FLANNEL_SUBNET=not-a-cidr\n', undefined, [bad('not-a-cidr'), NONE]],
    ['FLANNEL_SUBNET=\n', undefined, [NONE]],
    ['FLANNEL_NETWORK=10.1.0.0/16\n', undefined, [NONE]],
    ['', undefined, [NONE]],
  ])('reads %j as %j', async (text, subnet, said) => {
    const path = join(folder, 'subnet.env')
    writeFileSync(path, text)
    expect(await read(path)).toEqual([subnet, said])
  })

  it.each([
    ['10.5.34.1/24', 'fd00:5:34::1/64', []],
    ['10.5.34.1/24', undefined, []], // a node with IPv4 alone does not miss IPv6
    [undefined, 'fd00:5:34::1/64', []],
    ['10.5.34.1/24', '', ['W no subnet found for key: FLANNEL_IPV6_SUBNET in file: FILE']],
    ['', 'fd00:5:34::1/64', [NONE]],
    [
      '10.5.34.1/24',
      'fd00:5:34::1/64,fd00:5:35::1/64',
      [
        'E error reading subnet: more than 1 entry found for key: FLANNEL_IPV6_SUBNET in file FILE: fd00:5:34::1/64,fd00:5:35::1/64',
      ],
    ],
    [
      '10.5.34.1/24',
      '10.5.34.1/24',
      [
        "E Couldn't parse previous FLANNEL_IPV6_SUBNET from subnet file at FILE: invalid CIDR address: 10.5.34.1/24",
        'W no subnet found for key: FLANNEL_IPV6_SUBNET in file: FILE',
      ],
    ],
  ])('reads the subnets %j and %j', async (v4, v6, expected) => {
    const path = join(folder, 'subnet.env')
    const of4 = v4 === undefined ? '' : `FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=${v4}\n`
    const of6 = v6 === undefined ? '' : `FLANNEL_IPV6_NETWORK=fd00:5::/32\nFLANNEL_IPV6_SUBNET=${v6}\n`
    writeFileSync(path, `${of4}${of6}FLANNEL_MTU=1450\n`)
    const said: string[] = []
    const say = (letter: string) => (message: string) => void said.push(`${letter} ${message.replace(path, 'FILE')}`)
    const { network, subnet } = await readPreviousNets(path, { warn: say('W'), error: say('E') })
    expect(said).toEqual(expected)
    expect(network).toEqual({
      ipv4: v4 === undefined ? undefined : parseIpv4Net('10.5.0.0/16'),
      ipv6: v6 === undefined ? undefined : parseIpv6Net('fd00:5::/32'),
    })
    expect(subnet).toEqual({
      ipv4: v4 ? parseIpv4Net('10.5.34.0/24') : undefined,
      ipv6: v6 === 'fd00:5:34::1/64' ? parseIpv6Net('fd00:5:34::/64') : undefined,
    })
  })

  it("warns in flanneld's words at the first start, and reports why a file cannot be read", async () => {
    expect(await read(join(folder, 'none'))).toEqual([undefined, [NONE]])
    const [subnet, [error, ...more]] = await read(folder)
    expect([subnet, more]).toEqual([undefined, [NONE]])
    expect(error).toMatch(/^E Couldn't fetch previous FLANNEL_SUBNET from subnet file at FILE: EISDIR/)
  })

  it('returns the network of an earlier run, and logs nothing about an odd one', async () => {
    const path = join(folder, 'subnet.env')
    const network = async (text: string): Promise<string | undefined> => {
      writeFileSync(path, `${text}\nFLANNEL_SUBNET=10.1.74.1/24\n`)
      const refuse = (message: string): never => expect.unreachable(message)
      const previous = await readPreviousNets(path, { warn: refuse, error: refuse })
      return previous.network.ipv4 && formatIpv4Net(previous.network.ipv4)
    }
    expect(await network('FLANNEL_NETWORK=10.1.0.0/16')).toBe('10.1.0.0/16')
    for (const odd of ['', 'FLANNEL_NETWORK=x', 'FLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16'])
      expect(await network(odd)).toBeUndefined()
  })
})
