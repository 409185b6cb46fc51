// release.test.ts - `npm run release:test`: makes the release twice, and runs it without Node.js on bare Debian systems, in containers, and in
// emulators for the other architectures. The npm package runs with each supported Node.js.
//
// WEFT_RELEASE_DIR names a release of the same commit that was made elsewhere. That release is then tested and compared with one made here.
// WEFT_RELEASE_ARCH makes and tests a release for some architectures only, such as amd64,arm64 (the option --arch). amd64 must be among them.

import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { execute, output } from '../../lab/command.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { ARCHITECTURES as ALL } from '../../scripts/release/architectures.mjs'
import { partial } from '../../scripts/release/fetch.mjs'
import { imageBase } from '../../scripts/release/image-base.mjs'
import { sysroot } from '../../scripts/release/inputs.mjs'
import { architecturesIn } from '../../scripts/release/options.mjs'
import { DEBIANS, fetchNode, insteadIn, makeDebian, makeMuslNode, npmFolder } from '../support/debian.ts'
import { eventually } from '../support/event.ts'
import { printStep } from '../support/long-step.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'
import { exchangeByContainers, isolatePodman, type Podman } from '../support/podman.ts'
import { bootDebian, hasSystemd, type Systemd } from '../support/systemd.ts'

const MINUTE = 60_000
const MB = 1_000_000
const { version } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { version: string }
const RELEASES = Object.keys(DEBIANS) as (keyof typeof DEBIANS)[]
/** The Debian release whose systemd is booted. */
const NEWEST = 'trixie'

const CHOSEN = process.env['WEFT_RELEASE_ARCH']
const ARCHITECTURES = CHOSEN === undefined ? ALL : architecturesIn(CHOSEN)

/** The oldest version of Node.js that package.json allows, and the supported ones. */
const MAJORS = [20, 22, 24] as const
const NPM = `weft-npm-${version}.tgz`
const publisher = JSON.parse(readFileSync(join(packageRoot, 'scripts/release/publisher.json'), 'utf8')) as {
  readonly image: string
  readonly npm: string
}
const IMAGE = `${publisher.image}:${version}`

const missing = needs(
  HOSTS,
  'mmdebstrap',
  'ping',
  'dpkg-deb',
  'rpmbuild',
  ...ARCHITECTURES.flatMap(({ gnu, qemu }) => (qemu ? [`${gnu}-g++`, qemu] : [])),
  'podman',
  'runc',
)

const OFFICIAL = ARCHITECTURES.filter(({ integrity }) => integrity !== undefined)
/** The architectures for which the npm package has an addon for musl. */
const WITH_MUSL = ARCHITECTURES.filter(({ musl }) => musl !== undefined)
/** The architectures on which Debian's nodejs runs weft. */
const BY_DEBIAN = ARCHITECTURES.filter(({ integrity }) => integrity === undefined)

const cacheHome = process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache')

/** The temporary folder, with two clones and the Debian systems. */
let workshop: Lab
let release: string
let podman: Podman
/** Returns the path of an installed executable. A release from elsewhere may lack the executable bit. */
const executableOf = (architecture: string): string => join(workshop.folder, `weftd-${architecture}`)
const debianOf = (name: string): string => join(workshop.folder, name)
/** Runs a command with /proc mounted, as on a host. */
const inDebian = (name: string, ...command: readonly string[]): string[] => [
  'unshare',
  '--mount',
  'sh',
  '-c',
  'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"',
  debianOf(name),
  'env',
  '-i',
  'PATH=/usr/sbin:/usr/bin:/sbin:/bin',
  ...command,
]

function copyTo(name: string): string {
  const clone = join(workshop.folder, name)
  const made = new Set(['build', 'dist', 'release', 'prebuilds', '.setup-lock'].map((each) => join(packageRoot, each)))
  cpSync(packageRoot, clone, { recursive: true, filter: (path) => !made.has(path), verbatimSymlinks: true })
  return clone
}

async function releaseOf(clone: string, umask: string, ...settings: readonly string[]): Promise<string> {
  const options = CHOSEN === undefined ? [] : ['--', '--arch', CHOSEN]
  const command = ['env', ...settings, 'npm', '--prefix', clone, 'run', '--silent', 'release', ...options]
  await output(['sh', '-c', 'umask $0; exec "$@"', umask, ...command], { timeoutMs: 60 * MINUTE })
  return join(clone, 'release')
}

beforeAll(async () => {
  if (missing !== undefined) return
  workshop = await createLab({ hosts: 0 })
  printStep('a release')
  release = process.env['WEFT_RELEASE_DIR'] ?? (await releaseOf(copyTo('first'), '022'))
  for (const { name } of OFFICIAL) {
    const file = join(release, `weftd-linux-${name}`)
    chmodSync(file, 0o644) // the mode of a downloaded file
    await output(['install', '-m', '0755', file, executableOf(name)])
  }
  podman = isolatePodman(join(workshop.folder, 'podman'))
}, 60 * MINUTE)
afterAll(async () => {
  if (podman) await podman.run('rm', '--all', '--force', '--time', '1')
  await workshop?.close()
}, 5 * MINUTE)

const made = new Set<string>()
/** Makes the Debian systems that do not exist yet. Each group of tests calls it, so that chosen tests make only what they need. */
async function makeDebians(...names: readonly (typeof RELEASES)[number][]): Promise<void> {
  if (missing !== undefined) return
  for (const name of names.filter((each) => !made.has(each))) {
    printStep(`a bare Debian, ${name}`)
    const init = name === NEWEST ? ['systemd', 'systemd-sysv', 'dbus'] : []
    await makeDebian(debianOf(name), ['iproute2', 'iptables', ...init], name)
    made.add(name)
  }
}

let lab: Lab | undefined
let systemd: Systemd | undefined
afterEach(async () => {
  await systemd?.close()
  await lab?.close()
  systemd = lab = undefined
})

async function openLab(
  hosts: number,
  Backend: object = { Type: 'udp' },
): Promise<{ readonly lab: Lab; readonly leases: string }> {
  const opened = (lab = await createLab({ hosts }))
  const leases = join(opened.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
  return { lab: opened, leases }
}

/** Checks that containers reach each other in a ring, and that no daemon has logged a problem. */
async function exchange(hosts: readonly Host[], daemons: readonly Daemon[]): Promise<void> {
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  const pods = await Promise.all(hosts.map((host) => host.startPod()))
  for (const [index, pod] of pods.entries()) await reach(pod.namespace, pods[(index + 1) % pods.length]!.address)
  for (const daemon of daemons) expect(daemon.lines.filter((line) => /^[EF]\d/.test(line))).toEqual([])
}

/** The engines and backends with which two hosts exchange packets. */
const FORWARDING = [
  ['native', { Type: 'udp' }],
  ['dgram', { Type: 'udp' }],
  ['native', { Type: 'wireguard', DataPath: 'userspace' }],
] as const

/** Checks that two hosts whose weftd is the command `weftd` exchange packets. */
async function forwards(
  weftd: readonly string[],
  engine: string,
  backend: object,
  env: Readonly<Record<string, string>> = {},
): Promise<void> {
  const { lab: opened, leases } = await openLab(2, backend)
  const daemons = opened.hosts.map((host) =>
    host.startDaemon({
      args: ['--lease-dir', leases, '--engine', engine],
      env: { WIREGUARD_KEY_FILE: join(opened.folder, `${host.name}-wgkey`), ...env },
      before: ['sh', '-c', `shift 2; exec ${weftd.join(' ')} "$@"`, 'sh'],
    }),
  )
  await exchange(opened.hosts, daemons)
  // An emulated weftd on a busy machine may need longer than the 5 s after which it ends itself, so its exit code is not checked.
  for (const daemon of daemons) await daemon.stop()
}

describe('a release', () => {
  it('is complete, and its checksums are right', async () => {
    expect(readdirSync(release).toSorted()).toEqual(
      [
        ...OFFICIAL.flatMap(({ name }) => [`weftd-linux-${name}`, `weftd-linux-${name}.cdx.json`]),
        ...ARCHITECTURES.flatMap(({ debian }) => [`weft_${version}_${debian}.deb`, `weft-image-${debian}.cdx.json`]),
        ...BY_DEBIAN.map(({ debian }) => `weft-deb-${debian}.cdx.json`),
        ...OFFICIAL.map(({ rpm }) => `weft-${version}.${rpm}.rpm`),
        NPM,
        'weft-npm.cdx.json',
        `weft-image-${version}.tar`,
        `weft-chart-${version}.tgz`,
        'weft.yaml',
        'LICENCES',
        'NOTES.md',
        'SHA256SUMS',
      ].toSorted(),
    )
    const lacks = partial(ARCHITECTURES) ?? 'This release is for'
    expect(readFileSync(join(release, 'NOTES.md'), 'utf8').includes(lacks)).toBe(ARCHITECTURES.length < ALL.length)
    await output(['sh', '-c', `cd '${release}' && sha256sum --check --strict SHA256SUMS`])
    expect(statSync(join(release, 'weftd-linux-x64')).size).toBeLessThan(110 * MB)
  })

  it(
    'has the same bytes in another folder, with another umask, of somebody who shares nothing',
    async () => {
      const home = join(workshop.folder, 'home')
      mkdirSync(home)
      writeFileSync(join(home, '.rpmmacros'), '%vendor Somebody\n%optflags -O0\n')
      const settings = [`HOME=${home}`, `XDG_CACHE_HOME=${cacheHome}`, 'NODE_OPTIONS=--stack-trace-limit=50']
      const again = await releaseOf(copyTo("and/a second's, 100%d"), '077', ...settings)
      const sums = (folder: string): string => readFileSync(join(folder, 'SHA256SUMS'), 'utf8')
      expect(sums(again)).toBe(sums(release))
    },
    60 * MINUTE,
  )

  it('lists its components with their licenses', () => {
    const { components } = JSON.parse(readFileSync(join(release, 'weftd-linux-x64.cdx.json'), 'utf8')) as {
      components: { name: string; version: string }[]
    }
    const texts = readFileSync(join(release, 'LICENCES'), 'utf8')
    const names = components.map(({ name }) => name)
    expect(names).toEqual(expect.arrayContaining(['etcd3', '@grpc/grpc-js', 'winston', 'lru-cache', 'node']))
    for (const { name, version: its } of components)
      if (!['node', 'libstdc++'].includes(name)) expect(texts).toContain(`${name} ${its} (`)
  })
})

describe('the executable', () => {
  it('is weftd, weft or flanneld depending on its name, and weft by its first argument', async () => {
    const folder = join(workshop.folder, 'names')
    mkdirSync(folder)
    for (const name of ['weftd', 'weft', 'flanneld']) symlinkSync(executableOf('x64'), join(folder, name))
    const run = (...words: string[]) => execute(['env', '-i', `PATH=${folder}`, ...words])
    const told = `${version}\n`
    for (const words of [
      ['weft', 'version'],
      ['weftd', 'weft', 'version'],
    ])
      expect(await run(...words)).toMatchObject({ stdout: told, stderr: '', code: 0 })
    for (const name of ['weftd', 'flanneld'])
      expect(await run(name, '--version')).toMatchObject({ stdout: '', stderr: told, code: 0 })
    expect((await run('flanneld', '--help')).stderr).toMatch(/^Usage: flanneld /)
    expect((await run('weft', 'help')).stdout).toMatch(/^Usage: weft /)
  })

  it('ignores NODE_OPTIONS', async () => {
    const run = ['env', 'NODE_OPTIONS=--require /nonexistent.js', executableOf('x64'), '--version']
    expect(await execute(run)).toMatchObject({ stderr: `${version}\n`, code: 0 })
  })

  it('leaves no file of its addon, and uses the next folder if one is full', async () => {
    const full = [
      'exec 3<"$0"',
      'mount -t tmpfs -o size=8k none /tmp; mount -t tmpfs none /dev/shm',
      '! /proc/self/fd/3 --without magic', // loads the addon to list its features
      'ls -A /tmp /dev/shm',
    ]
    const script = ['sh', '-ec', full.join('\n'), executableOf('x64')]
    const { stdout, stderr, code } = await execute(['unshare', '--mount', 'env', '-u', 'TMPDIR', ...script])
    expect([stdout, code]).toEqual(['/dev/shm:\n\n/tmp:\n', 0])
    expect(stderr).toMatch(/unknown feature; choose from /)
  })

  it('reports the folders in which it cannot store its addon', async () => {
    // Open the executable first, because a mount may hide it.
    const noexec = [
      'exec 3<"$0"',
      'for folder in /tmp /dev/shm /run /var/tmp; do mount -t tmpfs -o noexec none $folder; done',
      'exec /proc/self/fd/3 --without magic',
    ]
    const script = ['sh', '-ec', noexec.join('\n'), executableOf('x64')]
    const { stderr, code } = await execute(['unshare', '--mount', ...script])
    expect(code).toBe(1)
    expect(stderr).toMatch(/; set TMPDIR to a folder that can be written and is not mounted noexec\n$/)
  })

  it('logs the same source lines as a weftd that is not bundled', async () => {
    const { lab: opened, leases } = await openLab(2)
    const [a, b] = opened.hosts as [Host, Host]
    const inside = a.startDaemon({
      args: ['--lease-dir', leases],
      before: ['sh', '-c', `shift 2; exec ${executableOf('x64')} "$@"`, 'sh'],
    })
    const beside = b.startDaemon({ args: ['--lease-dir', leases] })
    await exchange([a, b], [inside, beside])
    const places = ({ lines }: Daemon): string[] =>
      lines.flatMap((line) => /^I\d+ [\d:.]+ +\d+ ([\w-]+\/[\w.-]+):\d+\] [A-Z]/.exec(line)?.[1] ?? [])
    expect(places(inside).length).toBeGreaterThan(10)
    expect(new Set(places(inside))).toEqual(new Set(places(beside)))
    for (const daemon of [inside, beside]) expect(await daemon.stop()).toBe(0)
  })

  it('encrypts with its built-in OpenSSL, and understands a weftd that uses that of Node.js', async () => {
    const { lab: opened, leases } = await openLab(2, { Type: 'wireguard', DataPath: 'userspace' })
    const daemons = opened.hosts.map((host, index) =>
      host.startDaemon({
        args: ['--lease-dir', leases],
        env: { WIREGUARD_KEY_FILE: join(opened.folder, `${host.name}-wgkey`) },
        ...(index === 0 ? { before: ['sh', '-c', `shift 2; exec ${executableOf('x64')} "$@"`, 'sh'] } : {}),
      }),
    )
    await exchange(opened.hosts, daemons)
    for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
  })
})

describe('the Debian package', () => {
  beforeAll(() => makeDebians(...RELEASES), 60 * MINUTE)

  it.each(RELEASES)('is installed on a bare %s', async (name) => {
    const debian = debianOf(name)
    const file = `weft_${version}_amd64.deb`
    cpSync(join(release, file), join(debian, 'tmp', file))
    cpSync('/etc/resolv.conf', join(debian, 'etc/resolv.conf'), { dereference: true })
    await output(inDebian(name, 'apt-get', 'install', '-y', '-q', '--no-install-recommends', `/tmp/${file}`), {
      timeoutMs: 10 * MINUTE,
    })
    expect(existsSync(join(debian, 'usr/bin/node'))).toBe(false)
    expect(await output(inDebian(name, 'weft', 'version'))).toBe(`${version}\n`)
    expect((await execute(inDebian(name, 'weftd', '--without', 'magic'))).stderr).toMatch(/choose from .*udp-gso/)
  })

  it('makes nodes that exchange packets, each on a different Debian', async () => {
    const { lab: opened, leases } = await openLab(RELEASES.length)
    const daemons = opened.hosts.map((host, index) =>
      host.startDaemon({
        args: ['--lease-dir', leases],
        before: insteadIn(debianOf(RELEASES[index]!), opened.folder, inDebian(RELEASES[index]!, 'weftd')),
      }),
    )
    await exchange(opened.hosts, daemons)
    for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
  })

  it.each(RELEASES)('keeps a changed configuration, and leaves nothing after a purge: %s', async (name) => {
    const debian = debianOf(name)
    const files = (await output(inDebian(name, 'dpkg', '-L', 'weft'))).trim().split('\n')
    const settings = join(debian, 'etc/default/weftd')
    writeFileSync(settings, 'FLANNELD_V=1\n')
    // A weftd without a unit continues during an upgrade, and is stopped at removal, because it could not be cleaned up later.
    const { lab: opened, leases } = await openLab(1)
    const [host] = opened.hosts as [Host]
    const daemon = host.startDaemon({
      args: ['--lease-dir', leases],
      before: insteadIn(debian, opened.folder, inDebian(name, 'weftd')),
    })
    await daemon.line(/flannel is ready/)
    await output(inDebian(name, 'dpkg', '--force-confold', '-i', `/tmp/weft_${version}_amd64.deb`))
    expect(readFileSync(settings, 'utf8')).toBe('FLANNELD_V=1\n')
    const removal = await host.run(inDebian(name, 'dpkg', '--remove', 'weft'))
    expect(removal).toMatchObject({ code: 0, stderr: expect.not.stringMatching(/still runs|could not/) as string })
    expect(await daemon.stop()).toBe(0)
    expect(existsSync(settings)).toBe(true)
    await output(inDebian(name, 'dpkg', '--purge', 'weft'))
    const own = files.filter((path) => /weft/.test(path))
    expect(own).toContain('/usr/bin/weftd')
    expect(own.filter((path) => existsSync(join(debian, path)))).toEqual([])
  })
})

describe('the Debian package under systemd', () => {
  beforeAll(() => makeDebians(NEWEST), 60 * MINUTE)

  it('is upgraded under traffic without losing a packet, keeps its configuration, and leaves nothing after a purge', async ({
    skip,
  }) => {
    skip(!hasSystemd, 'no systemd, or no cgroups of version 2')
    const debian = debianOf(NEWEST)
    const file = `/opt/weft_${version}_amd64.deb`
    const { lab: opened, leases } = await openLab(2)
    const [a, b] = opened.hosts as [Host, Host]
    // The previous version is the same program under another version number.
    const older = join(opened.folder, 'older')
    await output(['dpkg-deb', '--raw-extract', join(release, `weft_${version}_amd64.deb`), older])
    const control = readFileSync(join(older, 'DEBIAN/control'), 'utf8')
    writeFileSync(join(older, 'DEBIAN/control'), control.replace(/^Version: .*$/m, 'Version: 0.0.1'))
    await output(['dpkg-deb', '-Znone', '--build', older, join(debian, 'opt/older.deb')], {
      timeoutMs: 5 * MINUTE,
    })
    cpSync(join(release, `weft_${version}_amd64.deb`), join(debian, file))

    systemd = await bootDebian(a, debian, opened.folder)
    const run = async (...words: string[]): Promise<string> => {
      const { code, stdout, stderr } = await systemd!.run(...words)
      if (code !== 0) throw new Error(`${words.join(' ')} ended with ${code}: ${stdout}${stderr}`)
      return stdout
    }
    await run('dpkg', '-i', '/opt/older.deb')
    expect((await systemd.run('systemctl', 'is-active', 'weftd')).stdout).toBe('inactive\n')
    const settings = `FLANNELD_LEASE_DIR=/srv/leases\nFLANNELD_IFACE=eth0\n`
    writeFileSync(join(debian, 'etc/default/weftd'), settings)
    mkdirSync(join(debian, 'etc/systemd/system/weftd.service.d'), { recursive: true })
    const dropIn = join(debian, 'etc/systemd/system/weftd.service.d/leases.conf')
    writeFileSync(dropIn, '[Service]\nReadWritePaths=/srv/leases\n')
    await systemd.systemctl('daemon-reload')
    await systemd.systemctl('enable', '--now', 'weftd')
    const peer = b.startDaemon({ args: ['--lease-dir', leases] })
    await peer.line(/flannel is ready/)
    writeFileSync(a.subnetFile, systemd.read('/run/flannel/subnet.env')!)
    const [from, to] = [await a.startPod(), await b.startPod()]
    await reach(from.namespace, to.address)

    const first = await systemd.mainPid()
    // The queue of the TUN device holds 4,000 packets, which is 20 s of this traffic.
    const pings = pinging(from, to, { everyS: 0.005 })
    await run('dpkg', '-i', file)
    await eventually(async () => {
      const state = await systemd!.property('ActiveState')
      if (state !== 'active' || (await systemd!.mainPid()) === first) throw new Error(`weftd is ${state}`)
    })
    const { sent, lost } = await pings.stop()
    expect(sent).toBeGreaterThan(100)
    expect(lost).toBe(0)
    expect(await run('dpkg-query', '--show', '--showformat', '${Version}', 'weft')).toBe(version)
    expect(readFileSync(join(debian, 'etc/default/weftd'), 'utf8')).toBe(settings)

    await run('dpkg', '--purge', 'weft')
    expect((await systemd.run('systemctl', 'is-active', 'weftd')).stdout).not.toBe('active\n')
    expect(await a.output(['ip', '-o', 'link'])).not.toContain('flannel0')
    for (const path of ['etc/default/weftd', 'usr/bin/weftd', 'usr/bin/weft', 'lib/systemd/system/weftd.service'])
      expect(existsSync(join(debian, path)), path).toBe(false)
    for (const path of ['/run/weft', '/run/flannel/subnet.env']) expect(systemd.read(path), path).toBeUndefined()
    rmSync(dropIn)
    expect(await peer.stop()).toBe(0)
  })
})

describe('the RPM package', () => {
  beforeAll(() => makeDebians('bookworm'), 60 * MINUTE)

  it('installs and removes its files, and keeps a changed configuration', async () => {
    const debian = debianOf('bookworm')
    const file = join(release, `weft-${version}.x86_64.rpm`)
    // rpm's database is in the folder. Dependencies are ignored, because this is not Fedora.
    const rpm = (...words: string[]) =>
      output(['rpm', '--root', debian, '--nodeps', ...words], { timeoutMs: 5 * MINUTE })
    await rpm('--install', file)
    expect(await output(inDebian('bookworm', 'weft', 'version'))).toBe(`${version}\n`)
    expect(await rpm('--verify', 'weft')).toBe('')
    const settings = join(debian, 'etc/default/weftd')
    writeFileSync(settings, 'FLANNELD_V=1\n')
    await rpm('--upgrade', '--force', file)
    expect(readFileSync(settings, 'utf8')).toBe('FLANNELD_V=1\n')
    await rpm('--erase', 'weft')
    for (const path of ['usr/bin/weftd', 'usr/bin/weft', 'usr/lib/systemd/system/weftd.service', 'run/weft'])
      expect(existsSync(join(debian, path)), path).toBe(false)
  })

  it('exists for each architecture, and requires the programs that weft runs', async () => {
    for (const { rpm: name } of OFFICIAL) {
      const ask = (...words: string[]) => output(['rpm', '-qp', ...words, join(release, `weft-${version}.${name}.rpm`)])
      expect(await ask('--queryformat', '%{name} %{version} %{arch} %{license}')).toBe(
        `weft ${version} ${name} Apache-2.0`,
      )
      expect(await ask('--requires')).toMatch(/^glibc >= 2\.28$/m)
      expect((await ask('--configfiles')).trim()).toBe('/etc/default/weftd')
    }
  })
})

describe('the npm package', () => {
  beforeAll(() => makeDebians('bookworm'), 60 * MINUTE)

  const debian = debianOf.bind(undefined, 'bookworm')
  const byNode = (major: number, ...command: readonly string[]): string[] =>
    inDebian(
      'bookworm',
      'env',
      `npm_config_prefix=/opt/weft${major}`,
      'HOME=/root',
      `PATH=/opt/weft${major}/bin:/opt/node${major}/bin:/usr/sbin:/usr/bin`,
      ...command,
    )

  it.each(MAJORS)('is installed by Node %d without a network, a compiler or a script', async (major) => {
    const node = join(debian(), `opt/node${major}`)
    await fetchNode(major, node)
    cpSync(await npmFolder(), join(node, 'lib/node_modules/npm'), { recursive: true })
    symlinkSync('../lib/node_modules/npm/bin/npm-cli.js', join(node, 'bin/npm'))
    cpSync(join(release, NPM), join(debian(), 'opt', NPM))
    const install = [
      'npm',
      'install',
      '--global',
      '--offline',
      '--ignore-scripts',
      '--no-audit',
      '--no-fund',
      `/opt/${NPM}`,
    ]
    await output(['unshare', '--net', ...byNode(major, ...install)], { timeoutMs: 10 * MINUTE })
    const told = JSON.parse(await output(byNode(major, 'weft', 'version', '--json'))) as { node: string }
    expect(told).toMatchObject({ version, node: expect.stringMatching(new RegExp(`^${major}\\.`)) as string })
    expect((await execute(byNode(major, 'weftd', '--without', 'magic'))).stderr).toMatch(/choose from .*udp-gso/)
  })

  it('makes nodes that exchange packets, each with a different Node.js', async () => {
    const { lab: opened, leases } = await openLab(MAJORS.length)
    const daemons = opened.hosts.map((host, index) =>
      host.startDaemon({
        args: ['--lease-dir', leases, '--ip-masq'],
        before: insteadIn(debian(), opened.folder, byNode(MAJORS[index]!, 'weftd')),
      }),
    )
    await exchange(opened.hosts, daemons)
    for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
  })

  it('contains an addon for each architecture and all licenses', async () => {
    const names = (await output(['tar', '-tzf', join(release, NPM)])).split('\n')
    const addons = names.filter((name) => name.endsWith('.node')).toSorted()
    expect(addons).toEqual(
      [
        ...ARCHITECTURES.map(({ name }) => `package/prebuilds/linux-${name}/weft.napi.glibc.node`),
        ...WITH_MUSL.map(({ name }) => `package/prebuilds/linux-${name}/weft.napi.musl.node`),
      ].toSorted(),
    )
    const { components } = JSON.parse(readFileSync(join(release, 'weft-npm.cdx.json'), 'utf8')) as {
      components: unknown[]
    }
    const manifests = names.filter((name) => /node_modules\/(@[^/]+\/)?[^/@]+\/package\.json$/.test(name))
    expect(manifests.length).toBeGreaterThan(50)
    expect(components).toHaveLength(manifests.length + 2) // libstdc++ and libc++ in the addons
  })
})

describe.each(WITH_MUSL)('the npm package with musl on $debian', (architecture) => {
  /** The command that runs Node.js for musl, and the folder of the installed package. */
  let node: string[]
  let installed: string

  beforeAll(async () => {
    if (missing !== undefined) return
    printStep(`Node.js for musl, ${architecture.debian}`)
    const folder = join(workshop.folder, `musl-${architecture.debian}`)
    node = await makeMuslNode(folder, architecture)
    // A PATH without a compiler: npm finds only a shell, and the Node.js that runs the package's script.
    const bin = join(folder, 'bin')
    mkdirSync(bin)
    symlinkSync('/bin/sh', join(bin, 'sh'))
    writeFileSync(join(bin, 'node'), `#!/bin/sh\nexec ${node.join(' ')} "$@"\n`, { mode: 0o755 })
    const npm = join(await npmFolder(), 'bin/npm-cli.js')
    const install = [
      'install',
      '--global',
      `--prefix=${folder}`,
      '--offline',
      '--no-audit',
      '--no-fund',
      join(release, NPM),
    ]
    // Without the file /etc/alpine-release, node-gyp-build takes the name of the C library from LIBC.
    const settings = [`PATH=${bin}`, 'LIBC=musl', `HOME=${folder}`]
    await output(['env', '-i', ...settings, ...node, npm, ...install], { timeoutMs: 10 * MINUTE })
    installed = join(folder, 'lib/node_modules', publisher.npm)
  }, 20 * MINUTE)

  it('is installed without a compiler, and reports musl', async () => {
    expect(existsSync(join(installed, 'build'))).toBe(false)
    const command = ['env', 'LIBC=musl', ...node, join(installed, 'bin/weft'), 'version', '--json']
    const told = JSON.parse(await output(command, { timeoutMs: MINUTE })) as object
    expect(told).toMatchObject({
      version,
      arch: architecture.name,
      libc: 'musl',
      runtime: expect.any(String) as string,
    })
  })

  it.each(FORWARDING)('forwards packets: %s %j', (engine, backend) =>
    forwards([...node, join(installed, 'bin/weftd')], engine, backend, { LIBC: 'musl' }),
  )
})

describe('the image', () => {
  beforeAll(async () => {
    if (missing !== undefined) return
    printStep('the images')
    await podman.run('load', '--quiet', '--input', join(release, `weft-image-${version}.tar`))
  }, 20 * MINUTE)

  const layout = async (path: string): Promise<unknown> =>
    JSON.parse(await output(['tar', '-xOf', join(release, `weft-image-${version}.tar`), path]))

  it('is one index of all architectures, and manifest and chart contain its digest', async () => {
    const { manifests } = (await layout('index.json')) as { manifests: [{ digest: string }] }
    const [{ digest }] = manifests
    const index = (await layout(`blobs/sha256/${digest.slice(7)}`)) as { manifests: { platform: object }[] }
    expect(index.manifests.map(({ platform }) => platform)).toEqual(
      ARCHITECTURES.map(({ platform }) => ({ ...platform, os: 'linux' })),
    )
    const manifest = readFileSync(join(release, 'weft.yaml'), 'utf8')
    const whole = `${IMAGE}@${digest}`
    expect(manifest.match(/image: .*weft.*/g)).toEqual([`image: ${whole}`, `image: ${whole}`])
    const names = ARCHITECTURES.map(({ platform }) => platform.architecture)
    expect(manifest).toContain(`{ key: kubernetes.io/arch, operator: In, values: [${names.join(', ')}] }`)
    const chart = join(release, `weft-chart-${version}.tgz`)
    const values = await output(['tar', '-xzOf', chart, 'flannel/values.yaml'])
    expect(values).toContain(`    repository: ${publisher.image}\n    tag: ${version}@${digest}\n`)
    const files = (await output(['tar', '-tzf', chart])).split('\n').filter((name) => /[^/]$/.test(name))
    const source = readdirSync(join(packageRoot, 'deploy/charts/weft'), { recursive: true, withFileTypes: true })
    expect(files).toHaveLength(source.filter((each) => each.isFile()).length)
  })

  it('is small, and contains no package manager, compiler or interpreter', async () => {
    const folder = (await podman.run('image', 'mount', IMAGE)).trim()
    const size = Number(await output(['sh', '-c', 'tar -C "$0" -c . | wc -c', folder]))
    process.stdout.write(`  the image: ${(size / MB).toFixed(0)} MB, ${(size / 2 ** 20).toFixed(0)} MiB\n`)
    expect(size).toBeLessThan(120 * MB)
    for (const { size: packed } of await layersOf()) expect(packed).toBeLessThan(50 * MB)
    expect(statSync(folder).mode & 0o777).toBe(0o755)
    const programs = ['usr/bin', 'usr/sbin', 'usr/local/bin'].flatMap((path) => readdirSync(join(folder, path)))
    expect(programs).toEqual(expect.arrayContaining(['ip', 'iptables', 'ip6tables-restore', 'nft', 'sh', 'weft']))
    expect(programs.filter((name) => /^(apt|dpkg|perl|python|gcc|cc|node|npm)/.test(name))).toEqual([])
    const packages = readdirSync(join(folder, 'var/lib/dpkg/status.d'))
    for (const name of packages.filter((each) => !/^lib(stdc|gcc)/.test(each)))
      expect(existsSync(join(folder, `usr/share/doc/${name}/copyright`)), name).toBe(true)
  })

  async function layersOf(): Promise<{ readonly size: number }[]> {
    const { manifests } = (await layout('index.json')) as { manifests: [{ digest: string }] }
    const index = (await layout(`blobs/sha256/${manifests[0].digest.slice(7)}`)) as { manifests: { digest: string }[] }
    const { layers } = (await layout(`blobs/sha256/${index.manifests[0]!.digest.slice(7)}`)) as {
      layers: { size: number }[]
    }
    return layers
  }

  it('exchanges packets in runc as in Kubernetes: one capability, a read-only root, filtered system calls', async () => {
    const { lab: opened, leases } = await openLab(2)
    const mounted = ['-v', `${leases}:/var/lib/weft`]
    await exchangeByContainers(podman, IMAGE, opened.hosts, opened.id, ['--lease-dir', '/var/lib/weft'], mounted)
  })
})

/** Returns the command that runs weftd of an architecture with qemu-user: the executable, or the files of the Debian package. */
async function emulatedWeftd(architecture: (typeof ARCHITECTURES)[number]): Promise<string[]> {
  const { name, debian, qemu = '', integrity } = architecture
  if (integrity) return [qemu, '-L', sysroot(architecture)!, executableOf(name)]
  const tree = join(workshop.folder, `deb-${debian}`)
  const root = imageBase(architecture)
  if (!existsSync(tree)) await output(['dpkg-deb', '-x', join(release, `weft_${version}_${debian}.deb`), tree])
  return [qemu, '-L', root, join(root, 'usr/bin/node'), join(tree, 'usr/bin/weftd')]
}

// The package of an architecture with official builds of Node.js contains Node.js.
it.each(ARCHITECTURES.filter(({ integrity }) => integrity === undefined))(
  'the Debian package for $debian requires Node.js',
  async ({ debian }) => {
    const field = (each: string) =>
      output(['dpkg-deb', '--field', join(release, `weft_${version}_${debian}.deb`), each])
    expect(await field('Architecture')).toBe(`${debian}\n`)
    expect(await field('Depends')).toMatch(/\bnodejs \(>= 20\.19\)/)
  },
)

describe.each(ARCHITECTURES.filter(({ qemu }) => qemu !== undefined))('$debian, emulated', (architecture) => {
  const { name, qemu = '', integrity, platform } = architecture

  it('runs, and reports its architecture and the C library', async () => {
    const weftd = await emulatedWeftd(architecture)
    const weft = integrity ? [...weftd, 'weft'] : [...weftd.slice(0, -1), weftd.at(-1)!.replace(/weftd$/, 'weft')]
    const told = JSON.parse(await output([...weft, 'version', '--json'], { timeoutMs: MINUTE })) as object
    expect(told).toMatchObject({ version, arch: name, libc: expect.stringMatching(/^glibc 2\./) as string })
  })

  // qemu-user 7.2 does not convert the byte order of the netlink attribute IFLA_MTU, so an emulated weftd of a big-endian
  // architecture cannot set the MTU of its device (docs/releasing.md).
  it.each(platform.architecture === 's390x' ? [] : FORWARDING)('forwards packets: %s %j', async (engine, backend) =>
    forwards(await emulatedWeftd(architecture), engine, backend),
  )

  // Must be last, because podman keeps only one image per name.
  it('has an image whose programs find their libraries', async () => {
    const archive = `oci-archive:${join(release, `weft-image-${version}.tar`)}`
    const variant = platform.variant ? ['--variant', platform.variant] : []
    const pull = ['pull', '--quiet', '--arch', platform.architecture, ...variant, archive]
    const id = (await podman.run(...pull)).trim()
    const folder = (await podman.run('image', 'mount', id)).trim()
    const inImage = (program: string, ...words: string[]) =>
      execute([qemu, '-L', folder, join(folder, program), ...words], { timeoutMs: MINUTE })
    const weftd = integrity ? ['opt/weft/bin/weftd'] : ['usr/bin/node', join(folder, 'opt/weft/bin/weftd')]
    const [program, ...words] = weftd as [string, ...string[]]
    expect((await inImage(program, ...words, '--without', 'magic')).stderr).toMatch(/choose from .*udp-gso/)
    expect((await inImage('usr/bin/ip', '-V')).stdout).toMatch(/^ip utility/)
    expect((await inImage('usr/bin/busybox', 'echo', 'here')).stdout).toBe('here\n')
  })
})
