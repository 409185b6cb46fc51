// docker-opts.test.ts - the five cases of flannel's TestMkDockerOpts, and edge cases of the script.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseEnv } from 'node:util'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { packageRoot } from '../../../../lab/lab.ts'
import { parseIpv4 } from '../../../../src/net/ipv4.ts'
import { dockerOpts } from '../../../../src/tool/weft/docker-opts.ts'
import { main } from '../../../../src/tool/weft/weft.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

let folder: string
let kernel: ModelKernel
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'docker-opts-'))
  kernel = new ModelKernel()
  kernel.addLink({ name: 'eth0' })
  kernel.addLink({ name: 'docker0', type: 'bridge' })
})
afterEach(() => rmSync(folder, { recursive: true }))

const SUBNET_ENV = 'FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n'
const written = (): string => readFileSync(join(folder, 'docker.env'), 'utf8')

/** Runs the command in a folder with this subnet.env. */
async function make(args: readonly string[], env: string | undefined = SUBNET_ENV, environment = {}): Promise<string> {
  if (env !== '') writeFileSync(join(folder, 'subnet.env'), env)
  await dockerOpts(['-f', join(folder, 'subnet.env'), '-d', join(folder, 'docker.env'), ...args], environment, kernel)
  return written()
}

const EACH = 'DOCKER_OPT_BIP="--bip=10.1.74.1/24"\nDOCKER_OPT_IPMASQ="--ip-masq=true"\nDOCKER_OPT_MTU="--mtu=1472"\n'
const ALL = '" --bip=10.1.74.1/24 --ip-masq=true --mtu=1472"\n'

describe('weft docker-opts', () => {
  it.each([
    [[], `${EACH}DOCKER_OPTS=${ALL}`],
    [['-i'], EACH],
    [['-c'], `DOCKER_OPTS=${ALL}`],
    [['-i', '-c'], `${EACH}DOCKER_OPTS=${ALL}`],
    [['-ic'], `${EACH}DOCKER_OPTS=${ALL}`],
    [['-k', 'CUSTOM_KEY'], `${EACH}CUSTOM_KEY=${ALL}`],
    [
      ['-m'],
      'DOCKER_OPT_BIP="--bip=10.1.74.1/24"\nDOCKER_OPT_MTU="--mtu=1472"\nDOCKER_OPTS=" --bip=10.1.74.1/24 --mtu=1472"\n',
    ],
    [['-cm'], 'DOCKER_OPTS=" --bip=10.1.74.1/24 --mtu=1472"\n'],
    [['-im'], 'DOCKER_OPT_BIP="--bip=10.1.74.1/24"\nDOCKER_OPT_MTU="--mtu=1472"\n'],
  ])('%j', async (args, expected) => {
    expect(await make(args)).toBe(expected)
  })

  it('masquerades in Docker exactly when flannel does not', async () => {
    expect(await make(['-c'], 'FLANNEL_IPMASQ=true\n')).toBe('DOCKER_OPTS=" --ip-masq=false"\n')
    await expect(make([], 'FLANNEL_IPMASQ=yes\n')).rejects.toThrow('Invalid value of FLANNEL_IPMASQ: yes')
  })

  it('prints the settings that Docker needs for IPv6 if subnet.env has IPv6', async () => {
    const ipv6 = 'FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:7::1/64\n'
    expect(await make([], SUBNET_ENV + ipv6)).toBe(
      'DOCKER_OPT_BIP="--bip=10.1.74.1/24"\nDOCKER_OPT_FIXED_CIDR_V6="--fixed-cidr-v6=fd00:5:0:7::/64"\n' +
        'DOCKER_OPT_IPMASQ="--ip-masq=true"\nDOCKER_OPT_IPV6="--ipv6"\nDOCKER_OPT_MTU="--mtu=1472"\n' +
        'DOCKER_OPTS=" --bip=10.1.74.1/24 --fixed-cidr-v6=fd00:5:0:7::/64 --ip-masq=true --ipv6 --mtu=1472"\n',
    )
    expect(await make(['-c'], `${ipv6}FLANNEL_MTU=1450\n`)).toBe(
      'DOCKER_OPTS=" --fixed-cidr-v6=fd00:5:0:7::/64 --ipv6 --mtu=1450"\n',
    )
    kernel.addRoute('ipv6', { destination: 'fd00:5:0:7::/64', gateway: 'fd00::1', device: 'eth0' })
    await expect(make(['-c'], ipv6)).rejects.toThrow('Your routing table already contains the subnet: fd00:5:0:7::/64')
    await expect(make(['-c'], 'FLANNEL_IPV6_SUBNET=10.5.1.1/24\n')).rejects.toMatchObject({
      code: 'USAGE',
      message: 'Invalid value of FLANNEL_IPV6_SUBNET: 10.5.1.1/24',
    })
  })

  it('reads the environment if the file does not exist', async () => {
    expect(await make(['-c'], '', { FLANNEL_MTU: '1400' })).toBe('DOCKER_OPTS=" --mtu=1400"\n')
    expect(kernel.reads).toEqual([])
  })

  it.each([
    [['-c'], { DOCKER_OPTS: '--debug' }, `DOCKER_OPTS="--debug ${ALL.slice(1)}`],
    [['-c', '-k', 'MINE'], { MINE: '-x -y', DOCKER_OPTS: '--debug' }, `MINE="-x -y ${ALL.slice(1)}`],
    [['-c', '-k', 'MINE'], { MINE: '', DOCKER_OPTS: '--debug' }, `MINE=${ALL}`],
    [
      ['-ic'],
      { DOCKER_OPT_DNS: '--dns=192.0.2.1', DOCKER_OPT_A: '-a', DOCKER_OPT_MTU: '--mtu=9' },
      `DOCKER_OPT_A="-a"\n${EACH.replace('DOCKER_OPT_IPMASQ', 'DOCKER_OPT_DNS="--dns=192.0.2.1"\nDOCKER_OPT_IPMASQ')}` +
        'DOCKER_OPTS=" -a --bip=10.1.74.1/24 --dns=192.0.2.1 --ip-masq=true --mtu=1472"\n',
    ],
  ])('%j keeps what the environment has, %j', async (args, environment, expected) => {
    expect(await make(args, undefined, environment)).toBe(expected)
  })

  it("ends the kept options with a space if there are no others, as flannel's script does", async () => {
    expect(await make(['-c'], '', { DOCKER_OPTS: '--debug' })).toBe('DOCKER_OPTS="--debug "\n')
    expect(await make(['-c'], '')).toBe('DOCKER_OPTS=""\n')
  })

  it.each([
    ['-h', 1],
    ['-?', 1],
    ['--help', 0],
  ])('%s prints its usage and exits with %d', async (flag, code) => {
    let said = ''
    const keep = (text: unknown): boolean => Boolean((said += String(text)))
    const spies = [process.stdout, process.stderr].map((stream) => vi.spyOn(stream, 'write').mockImplementation(keep))
    try {
      expect(await main(['docker-opts', flag])).toBe(code)
    } finally {
      for (const spy of spies) spy.mockRestore()
    }
    expect(said).toContain('Usage: weft docker-opts')
  })

  it('writes the file, and fails if the subnet is routed through a gateway', async () => {
    kernel.addRoute('ipv4', { destination: '10.1.74.0/24', gateway: '192.0.2.1', device: 'eth0' })
    await expect(make(['-c'])).rejects.toThrow(
      'Your routing table already contains the subnet: 10.1.74.0/24 via 192.0.2.1 dev eth0',
    )
    expect(written()).toBe(`DOCKER_OPTS=${ALL}`)
  })

  it('accepts a subnet that is already on a bridge', async () => {
    kernel.addAddress('docker0', { address: parseIpv4('10.1.74.1')!, prefixLength: 24 })
    expect(await make(['-c'])).toBe(`DOCKER_OPTS=${ALL}`)
  })

  it('refuses unknown arguments', async () => {
    await expect(make(['-x'])).rejects.toThrow("'-x'")
    await expect(make(['-k'])).rejects.toThrow('-k')
  })
})

it('does not repeat the options of the last start with the drop-in of docs/docker.md, whose EnvironmentFile is the output', () => {
  const dropIn = readFileSync(join(packageRoot, 'docs/docker.md'), 'utf8')
  const [, command = ''] = /^ExecStartPre=(.*)$/m.exec(dropIn) ?? []
  expect(/^EnvironmentFile=-(.*)$/m.exec(dropIn)?.[1]).toBe('/run/docker_opts.env')
  const [from, to] = ['subnet.env', 'docker_opts.env'].map((name) => join(folder, name)) as [string, string]
  writeFileSync(from, 'FLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_MTU=1472\n')
  const start = (env: NodeJS.ProcessEnv): string => {
    const weft = [process.execPath, join(packageRoot, 'bin/weft')]
    const [file = '', ...words] = command.split(' ').flatMap((word) => (word === '/usr/bin/weft' ? weft : word))
    const ran = spawnSync(file, [...words, '-f', from, '-d', to], { env, encoding: 'utf8' })
    expect([ran.status, ran.stderr]).toEqual([0, ''])
    return readFileSync(to, 'utf8')
  }
  const first = start(process.env)
  expect(first).toContain('DOCKER_OPTS=" --bip=10.1.74.1/24 --mtu=1472"')
  expect(start({ ...process.env, ...parseEnv(first) })).toBe(first)
})
