// package.test.ts - installs the result of `npm pack` on a bare Debian without a compiler and runs it. Installs it also
// without a prebuilt addon, which npm then compiles.

import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { execute, output } from '../../lab/command.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { fetchNode, insteadIn, makeDebian, npmFolder } from '../support/debian.ts'
import { printStep } from '../support/long-step.ts'
import { HOSTS, needs, NODE } from '../support/needs.ts'

const MINUTE = 60_000
/** The oldest version that package.json allows, and the supported versions. */
const MAJORS = [20, 22, 24] as const
const { version } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { version: string }

const missing = needs(HOSTS, 'mmdebstrap', 'ping', NODE)

/** The lab that holds the folder with the Debian, the releases of Node.js and the package. */
let workshop: Lab
let debian: string
let archive: string

const nodeOf = (major: number): string => join(debian, `opt/node${major}`)
/** Returns a command that runs a program in the Debian. A release of Node.js, and the package that it installed, come first in the PATH. */
const inDebian = (major: number, ...command: readonly string[]): string[] => [
  'chroot',
  debian,
  'env',
  '-i',
  'HOME=/root',
  `npm_config_prefix=/opt/weft${major}`,
  ...(process.env['NODE_EXTRA_CA_CERTS'] ? ['NODE_EXTRA_CA_CERTS=/opt/authority.pem'] : []),
  `PATH=/opt/weft${major}/bin:/opt/node${major}/bin:/usr/sbin:/usr/bin`,
  ...command,
]

beforeAll(async () => {
  if (missing !== undefined) return
  workshop = await createLab({ hosts: 0 })
  debian = join(workshop.folder, 'debian')
  printStep('a bare Debian')
  // The README requires ip, and iptables for firewall rules.
  await makeDebian(debian, ['iproute2', 'iptables'])
  cpSync('/etc/resolv.conf', join(debian, 'etc/resolv.conf'), { dereference: true })
  const authority = process.env['NODE_EXTRA_CA_CERTS']
  if (authority) cpSync(authority, join(debian, 'opt/authority.pem'), { dereference: true })
  writeFileSync(
    join(debian, 'root/.npmrc'),
    `registry=${(await output(['npm', 'config', 'get', 'registry'])).trim()}\n`,
  )
  const npm = await npmFolder()
  for (const major of MAJORS) {
    printStep(`Node.js ${major}`)
    await fetchNode(major, nodeOf(major))
    cpSync(npm, join(nodeOf(major), 'lib/node_modules/npm'), { recursive: true })
    symlinkSync('../lib/node_modules/npm/bin/npm-cli.js', join(nodeOf(major), 'bin/npm'))
  }
  printStep('npm pack')
  const pack = ['npm', '--prefix', packageRoot, 'pack', packageRoot, '--silent', '--pack-destination', workshop.folder]
  archive = (await output(pack, { timeoutMs: 10 * MINUTE })).trim()
  cpSync(join(workshop.folder, archive), join(debian, 'opt', archive))
}, 30 * MINUTE)
afterAll(async () => await workshop?.close(), 5 * MINUTE)

describe('the package on a bare Debian', () => {
  let lab: Lab | undefined
  afterEach(async () => {
    await lab?.close()
    lab = undefined
  })

  it('prints only its name on stdout, whatever npm pack builds', () => {
    expect(archive).toBe(`weft-${version}.tgz`)
  })

  it.each(MAJORS)('is installed by Node %d without a compiler', async (major) => {
    for (const tool of ['cc', 'gcc', 'g++', 'make', 'python3'])
      expect(existsSync(join(debian, 'usr/bin', tool)), tool).toBe(false)
    await output(inDebian(major, 'npm', 'install', '--global', '--no-audit', '--no-fund', `/opt/${archive}`), {
      timeoutMs: 10 * MINUTE,
    })
    const folder = join(debian, `opt/weft${major}/lib/node_modules/weft`)
    expect(existsSync(join(folder, 'build'))).toBe(false)
    expect(readdirSync(join(folder, 'node_modules'))).toContain('etcd3')
    expect(readdirSync(join(folder, 'node_modules'))).not.toContain('node-gyp')

    expect((await execute(inDebian(major, 'weftd', '--version'))).stderr).toBe(`${version}\n`)
    expect(await output(inDebian(major, 'weft', 'version'))).toBe(`${version}\n`)
    // The addon lists the features when it gets an unknown one.
    const { code, stderr } = await execute(inDebian(major, 'weftd', '--without', 'magic'))
    expect(stderr).toMatch(/choose from .*udp-gso/)
    expect(code).toBe(2)
  })

  it('makes nodes that exchange packets, each with another version of Node.js', async () => {
    lab = await createLab({ hosts: MAJORS.length })
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
    const { folder } = lab
    const start = (host: Host, major: number): Daemon =>
      host.startDaemon({
        args: ['--lease-dir', leases, '--ip-masq'],
        before: insteadIn(debian, folder, inDebian(major, 'weftd')),
      })
    const daemons = lab.hosts.map((host, index) => start(host, MAJORS[index]!))
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    for (const [index, pod] of pods.entries()) await reach(pod.namespace, pods[(index + 1) % pods.length]!.address)
    for (const [index, daemon] of daemons.entries()) {
      expect(daemon.lines.filter((line) => /^[EF]\d/.test(line))).toEqual([])
      const mapped = readFileSync(`/proc/${daemon.process.pid}/maps`, 'utf8')
      expect(mapped).toContain(`/opt/weft${MAJORS[index]}/lib/node_modules/weft/prebuilds/linux-${process.arch}/`)
    }
    for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
  })
})

describe('the package on a machine without a prebuilt addon', () => {
  it('compiles the addon during the installation', async () => {
    const prefix = join(workshop.folder, 'compiled')
    const node = nodeOf(22)
    const command = [
      'env',
      `PATH=${prefix}/bin:${node}/bin:${process.env['PATH']}`,
      `npm_config_prefix=${prefix}`,
      `npm_config_nodedir=${node}`, // the headers that node-gyp would download
    ]
    // The package without its prebuilt addons, as on a machine that has none.
    const unpacked = join(workshop.folder, 'unpacked')
    mkdirSync(unpacked)
    await output(['tar', '-xzf', join(workshop.folder, archive), '-C', unpacked])
    rmSync(join(unpacked, 'package/prebuilds'), { recursive: true })
    const bare = join(workshop.folder, 'bare.tgz')
    await output(['tar', '-czf', bare, '-C', unpacked, 'package'])
    await output([...command, 'npm', 'install', '--global', '--no-audit', '--no-fund', bare], {
      timeoutMs: 10 * MINUTE,
    })
    expect(existsSync(join(prefix, 'lib/node_modules/weft/build/Release/weft.node'))).toBe(true)
    const { stderr } = await execute([...command, 'weftd', '--without', 'magic'])
    expect(stderr).toMatch(/choose from .*udp-gso/)
  })
})
