// image.test.ts - `npm run image:test`: builds the container image without a Docker engine, and two containers exchange packets.
//
// Podman builds and runs, with a storage of its own. The base is made from Debian's packages, the node program comes from the
// npm registry; outside, deploy/Dockerfile names images for both. The containers run by the command of docs/operating.md, each
// on a host of the lab. A good minute on two cores; given up after nine.

import { cpSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { execute, executeSync, output, type Finished } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, packageRoot, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { fetchNode, makeDebian, npmFolder } from '../support/debian.ts'
import { tellStep } from '../support/long-step.ts'
import { HOSTS, needs, NODE } from '../support/needs.ts'

const MINUTE = 60_000
const IMAGE = 'localhost/weft'
const NET_ADMIN = 1n << 12n
const root = (path: string): string => join(packageRoot, path)

/** The options of `docker run` in docs/operating.md. */
const runOptions = /^docker run ((?:.*\\\n)*.*) weft /m
  .exec(readFileSync(root('docs/operating.md'), 'utf8'))![1]!
  .split(/[\s\\]+/)
  .filter(Boolean)

/** Not every root may raise that limit (CAP_SYS_RESOURCE): then the containers start without it, which is said. */
const mayRaiseNice = executeSync(['sh', '-c', 'prlimit --nice=40 true 2>&1 && echo yes']).endsWith('yes\n')

/** The release of Node.js that the image has by default. */
const nodeMajor = Number(/^ARG NODE=.*\/node:(\d+)-/m.exec(readFileSync(root('deploy/Dockerfile'), 'utf8'))![1])

/** Holds the folder; the containers have hosts of their own. */
let workshop: Lab
let podmanEnv: Readonly<Record<string, string>>
const reason = needs(HOSTS, 'podman', 'runc', 'mmdebstrap', 'ping', NODE)

/** Podman with a storage of its own. Its waiting, attached too, may not end on some kernels: nothing here waits by it. */
const command = (...args: readonly string[]): string[] => [
  'env',
  ...Object.entries(podmanEnv).map(([key, value]) => `${key}=${value}`),
  'podman',
  ...args,
]
const podman = (...args: readonly string[]): Promise<string> => output(command(...args), { timeoutMs: 20 * MINUTE })

async function step<T>(title: string, body: () => Promise<T>): Promise<T> {
  tellStep(title)
  const started = performance.now()
  const result = await body()
  process.stdout.write(`  ${title}  ${((performance.now() - started) / 1000).toFixed(0)} s\n`)
  return result
}

/** Gives podman a storage, a configuration and locks of its own below `folder`. */
function isolatePodman(folder: string): Readonly<Record<string, string>> {
  mkdirSync(folder)
  const quoted = (name: string): string => JSON.stringify(join(folder, name))
  writeFileSync(
    join(folder, 'storage.conf'),
    `[storage]\ndriver = "vfs"\ngraphroot = ${quoted('graph')}\nrunroot = ${quoted('run')}\n`,
  )
  writeFileSync(
    join(folder, 'containers.conf'),
    [
      '[containers]',
      // Podman asks for more than a machine without CAP_SYS_RESOURCE may give.
      'default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]',
      '[engine]',
      'cgroup_manager = "cgroupfs"',
      'events_logger = "file"',
      'lock_type = "file"',
      'runtime = "runc"',
      `static_dir = ${quoted('libpod')}`,
      `tmp_dir = ${quoted('tmp')}`,
      `volume_path = ${quoted('volumes')}`,
      '',
    ].join('\n'),
  )
  return {
    CONTAINERS_CONF: join(folder, 'containers.conf'),
    CONTAINERS_STORAGE_CONF: join(folder, 'storage.conf'),
    TMPDIR: folder,
  }
}

/** What debian:bookworm-slim is elsewhere. */
async function makeBase(folder: string): Promise<void> {
  const archive = join(folder, 'base.tar')
  await makeDebian(archive)
  await podman('import', '--quiet', archive, `${IMAGE}-base`)
}

/** The base with Node.js and this machine's npm: what the Dockerfile's own NODE is elsewhere. */
async function makeNode(folder: string): Promise<void> {
  const context = join(folder, 'node')
  await fetchNode(nodeMajor, join(context, 'node'))
  cpSync(await npmFolder(), join(context, 'npm'), { recursive: true })
  // Where a proxy of the machine signs the registry's certificates.
  const authority = process.env['NODE_EXTRA_CA_CERTS'] ?? ''
  writeFileSync(join(context, 'authority.pem'), authority === '' ? '' : readFileSync(authority))
  writeFileSync(
    join(context, 'Dockerfile'),
    [
      `FROM ${IMAGE}-base`,
      'COPY node/bin/node /usr/local/bin/node',
      'COPY node/include /usr/local/include',
      'COPY npm /usr/local/lib/node_modules/npm',
      'COPY authority.pem /usr/local/etc/authority.pem',
      'RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \\',
      ' && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx',
      ...(authority === '' ? [] : ['ENV NODE_EXTRA_CA_CERTS=/usr/local/etc/authority.pem']),
      '',
    ].join('\n'),
  )
  await build([], `${IMAGE}-node`, context)
}

const build = (args: readonly string[], tag: string, context: string): Promise<string> =>
  podman('build', '--isolation', 'chroot', '--layers=false', '--pull-never', ...args, '--tag', tag, context)

beforeAll(async () => {
  if (reason !== undefined) return
  workshop = await createLab({ hosts: 0 })
  const folder = join(workshop.folder, 'podman')
  podmanEnv = isolatePodman(folder)
  await step("a base of Debian's packages", () => makeBase(folder))
  await step(`with Node.js ${nodeMajor}`, () => makeNode(folder))
  const images = ['--build-arg', `NODE=${IMAGE}-node`, '--build-arg', `BASE=${IMAGE}-base`]
  await step('deploy/Dockerfile', () => build([...images, '--file', root('deploy/Dockerfile')], IMAGE, packageRoot))
}, 60 * MINUTE)
afterAll(async () => {
  if (podmanEnv) await podman('rm', '--all', '--force', '--time', '1')
  await workshop?.close()
}, 5 * MINUTE)

/** Where the image's files are, and their paths. */
async function tree(): Promise<{ folder: string; paths: string[] }> {
  const folder = (await podman('image', 'mount', IMAGE)).trim()
  return { folder, paths: readdirSync(folder, { recursive: true, encoding: 'utf8' }) }
}

describe('the image', () => {
  it('holds what runs, and neither compiler nor package manager of Node.js', async () => {
    const { folder, paths } = await tree()
    const programs = paths.filter((path) => /^(usr\/(local\/)?)?s?bin\/[^/]+$|^opt\/bin\//.test(path))
    const tools = /^(cc|c\+\+|as|ld|(g\+\+|gcc|cpp|clang|make|python|npm|npx|yarn|tsc|node-gyp)[-.\d]*)$/
    expect(programs.length).toBeGreaterThan(100)
    expect(programs.filter((path) => tools.test(path.split('/').at(-1)!))).toEqual([])
    for (const name of ['ip', 'iptables', 'iptables-restore', 'nft', 'node', 'weft', 'weftd'])
      expect(
        programs.map((path) => path.split('/').at(-1)),
        name,
      ).toContain(name)
    expect(readdirSync(join(folder, 'opt/bin')).toSorted()).toEqual(['flanneld', 'install-conf', 'mk-docker-opts.sh'])

    const app = paths.filter((path) => path.startsWith('opt/weft/'))
    expect(app.filter((path) => /\.(ts|map|cc|h|o)$/.test(path))).toEqual([])
    const { packages } = JSON.parse(readFileSync(root('package-lock.json'), 'utf8')) as {
      packages: Record<string, { dev?: boolean }>
    }
    const installed = app
      .filter((path) => /^opt\/weft\/(.*\/)?node_modules\/(@[^/]+\/)?[^/@]+\/package\.json$/.test(path))
      .map((path) => dirname(path).replace('opt/weft/', ''))
    expect(installed.length).toBeGreaterThan(20)
    expect(installed.filter((path) => !(path in packages) || packages[path]!.dev)).toEqual([])
    for (const name of ['etcd3', 'prom-client']) expect(installed).toContain(`node_modules/${name}`)
    for (const name of ['node-gyp', 'node-addon-api']) expect(installed).not.toContain(`node_modules/${name}`)
  })

  it('is as small as docs/operating.md says', async () => {
    const { folder } = await tree()
    const bytes = async (what: string): Promise<number> => Number(await output(['sh', '-c', what, 'sh', folder]))
    const packed = await bytes('tar -C "$1" -c . | gzip | wc -c')
    const unpacked = await bytes('tar -C "$1" -c . | wc -c')
    const base = await bytes(`wc -c < ${join(workshop.folder, 'podman/base.tar')}`)
    const node = statSync(join(folder, 'usr/local/bin/node')).size
    const mb = (value: number): string => `${(value / 1e6).toFixed(0)} MB`
    process.stdout.write(`  ${mb(unpacked)}: Debian ${mb(base)}, Node.js ${mb(node)}; ${mb(packed)} compressed\n`)
    const text = readFileSync(root('docs/operating.md'), 'utf8').replaceAll('\n', ' ')
    const stated = /(\d+) MB, of which Debian 12 is (\d+) and Node.js (\d+), and (\d+) MB compressed/.exec(text)!
    for (const [index, measured] of [unpacked, base, node, packed].entries())
      expect(Math.abs(Number(stated[index + 1]) - measured / 1e6) / (measured / 1e6), stated[0]).toBeLessThan(0.05)
  })

  it("has flannel's other programs where flannel's image has them", async () => {
    const { folder } = await tree()
    const start = (...args: string[]): Promise<string> => output(['chroot', folder, ...args])
    writeFileSync(join(folder, 'tmp/cni-conf.json'), '{"name":"cbr0"}')
    await start('/opt/bin/install-conf', '/tmp/cni-conf.json', '/tmp/10-flannel.conflist')
    expect(readFileSync(join(folder, 'tmp/10-flannel.conflist'), 'utf8')).toBe('{"name":"cbr0"}')
    writeFileSync(join(folder, 'tmp/subnet.env'), 'FLANNEL_MTU=1472\n')
    await start('/opt/bin/mk-docker-opts.sh', '-c', '-f', '/tmp/subnet.env', '-d', '/tmp/docker.env')
    expect(readFileSync(join(folder, 'tmp/docker.env'), 'utf8')).toBe('DOCKER_OPTS=" --mtu=1472"\n')
    const { version } = JSON.parse(readFileSync(root('package.json'), 'utf8')) as { version: string }
    expect(await start('weft', 'version')).toBe(`${version}\n`)
  })

  it('says what it is, by the labels of the Open Container Initiative', async () => {
    const labels = JSON.parse(await podman('image', 'inspect', '--format', '{{json .Labels}}', IMAGE)) as object
    const { name, version, license } = JSON.parse(readFileSync(root('package.json'), 'utf8')) as Record<string, string>
    const key = (last: string): string => `org.opencontainers.image.${last}`
    expect(labels).toMatchObject({
      [key('title')]: name,
      [key('version')]: version,
      [key('licenses')]: license,
      [key('base.name')]: `${IMAGE}-base`,
    })
  })

  it("has a supported Node.js, and Debian's authorities where weftd looks for them", async () => {
    const { folder } = await tree()
    expect(await output(['chroot', folder, 'node', '-p', 'process.versions.node'])).toMatch(
      new RegExp(String.raw`^${nodeMajor}\.`),
    )
    const authorities = readFileSync(join(folder, 'etc/ssl/certs/ca-certificates.crt'), 'utf8')
    expect(authorities.match(/BEGIN CERTIFICATE/g)?.length).toBeGreaterThan(50)
  })
})

interface Container {
  readonly pid: string
  /** The value of a field of /proc/PID/status. */
  readonly status: (field: string) => string
  /** All it has logged. */
  log(): Promise<string>
  /** Resolves when it has logged these words; rejects when it ended before. */
  logged(words: string): Promise<void>
  /** Runs a program in it. */
  run(...command: string[]): Promise<Finished>
  /** Stops it as Docker does, and returns how it ended. */
  stop(): Promise<string>
}

/** Starts a container by the command of docs/operating.md on a host of the lab, with another place for /run/flannel. */
async function startContainer(
  host: Host,
  name: string,
  args: readonly string[],
  options: readonly string[],
): Promise<Container> {
  const flannel = '/run/flannel:/run/flannel'
  expect(runOptions).toContain(flannel)
  expect(runOptions[runOptions.indexOf('--ulimit') + 1]).toBe('nice=40')
  if (!mayRaiseNice) process.stdout.write("  without --ulimit nice=40: this machine's root may not raise it\n")
  const given = runOptions
    // A container that was killed with the test would start again.
    .filter((option) => !option.startsWith('--restart'))
    .filter((option, at, all) => mayRaiseNice || !(option === '--ulimit' || all[at - 1] === '--ulimit'))
    .map((option) => (option === flannel ? `${dirname(host.subnetFile)}:/run/flannel` : option))
    .map((option) => (option === 'weftd' ? name : option))
  // Back from where `ip netns exec` hides the cgroups; what podman mounts goes with the container.
  const outside = ['nsenter', `--mount=/proc/${process.pid}/ns/mnt`, 'unshare', '--mount']
  const id = (
    await host.output([...outside, ...command('run', ...given, ...options, IMAGE, '--ip-masq', ...args)])
  ).trim()
  const pid = (await podman('inspect', '--format', '{{.State.Pid}}', id)).trim()
  const log = async (): Promise<string> => (await execute(command('logs', id))).stderr
  return {
    pid,
    status: (field) => new RegExp(`^${field}:\t(\\S+)`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]!,
    log,
    async logged(words) {
      const follower = host.spawn([...outside, ...command('logs', '--follow', id)])
      for await (const line of createInterface({ input: follower.stderr! }))
        if (line.includes(words)) return void follower.kill('SIGKILL')
      throw new Error(`the container ended:\n${await log()}`)
    },
    run: (...words) => execute(['nsenter', '--target', pid, '--mount', '--pid', '--net', ...words]),
    async stop() {
      await podman('stop', id)
      const code = (await podman('inspect', '--format', '{{.State.Status}} {{.State.ExitCode}}', id)).trim()
      await podman('rm', id)
      return code
    },
  }
}

describe('two containers by the command of docs/operating.md', () => {
  const config = '{"Network":"10.5.0.0/16"}'
  let lab: Lab | undefined
  let etcd: Etcd | undefined
  afterEach(async () => {
    if (lab)
      for (const { name } of lab.hosts) await podman('rm', '--force', '--ignore', '--time', '1', `${lab.id}-${name}`)
    await etcd?.close()
    await lab?.close()
    lab = etcd = undefined
  })

  async function exchange(hosts: readonly Host[], names: string, args: readonly string[], options: readonly string[]) {
    const start = (host: Host): Promise<Container> => startContainer(host, `${names}-${host.name}`, args, options)
    const containers = await Promise.all(hosts.map(start))
    await Promise.all(containers.map((container) => container.logged('flannel is ready')))

    for (const { pid, status } of containers) {
      expect(readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', '')).toBe('flanneld')
      for (const set of ['CapPrm', 'CapEff', 'CapBnd']) expect(BigInt(`0x${status(set)}`), set).toBe(NET_ADMIN)
      expect(status('NoNewPrivs')).toBe('1')
      expect(status('Seccomp')).toBe('2')
      // Mounted read-only: the daemon writes to what it is given and nowhere else.
      expect(readFileSync(`/proc/${pid}/mounts`, 'utf8')).toMatch(/^\S+ \/ \S+ ro\b/m)
    }
    for (const host of hosts) {
      expect(readFileSync(host.subnetFile, 'utf8')).toMatch(
        /^FLANNEL_NETWORK=10\.5\.0\.0\/16\nFLANNEL_SUBNET=10\.5\.\d+\.1\/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n$/,
      )
      const rules = await host.output(['iptables-save'])
      for (const chain of ['POSTRTG', 'FWD']) expect(rules).toContain(`-A FLANNEL-${chain} `)
    }

    const [first, second] = (await Promise.all(hosts.map((host) => host.startPod()))) as [Pod, Pod]
    await reach(first.namespace, second.address)
    await reach(second.namespace, first.address)

    for (const container of containers) {
      const { code, stderr } = await container.run('weft', 'cleanup')
      expect(stderr).toContain('flanneld still runs (pid 1)')
      expect(code).toBe(1)
      expect((await container.log()).split('\n').filter((line) => /^[EF]\d/.test(line))).toEqual([])
      expect(await container.stop()).toBe('exited 0')
    }
  }

  it('exchange packets, with leases in etcd', async () => {
    lab = await createLab({ hosts: 2 })
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    await etcd.ctl('put', '/coreos.com/network/config', config)
    await exchange(lab.hosts, lab.id, ['--etcd-endpoints', etcd.endpoint], [])
  })

  /** One on a host that has a rule of the legacy kind; returns what it says and which kinds have its rules. */
  async function besideLegacy(options: readonly string[]): Promise<{ log: string; nft: boolean; legacy: boolean }> {
    lab = await createLab({ hosts: 1 })
    const host = lab.hosts[0]!
    await host.output(['iptables-legacy', '-A', 'INPUT', '-s', '192.0.2.1', '-j', 'DROP'])
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), config)
    const args = ['--lease-dir', '/var/lib/weft']
    const given = ['-v', `${leases}:/var/lib/weft`, ...options]
    const container = await startContainer(host, `${lab.id}-${host.name}`, args, given)
    await container.logged('flannel is ready')
    const has = async (kind: string): Promise<boolean> =>
      (await host.output([`iptables-${kind}-save`])).includes('-A FLANNEL-FWD ')
    const [nft, legacy] = await Promise.all([has('nft'), has('legacy')])
    const log = await container.log()
    expect(await container.stop()).toBe('exited 0')
    return { log, nft, legacy }
  }

  it('write rules of the kind that the host uses', async ({ skip }) => {
    skip((await execute(['unshare', '--net', 'iptables-legacy', '-L'])).code !== 0, 'no iptables of the legacy kind')
    // The options that docs/operating.md gives for such a host.
    const given = /`(--cap-add NET_RAW [^`]*)`/.exec(readFileSync(root('docs/operating.md'), 'utf8'))![1]!.split(/\s+/)
    const { log, nft, legacy } = await besideLegacy(given)
    expect({ nft, legacy }).toEqual({ nft: false, legacy: true })
    expect(log.split('\n').filter((line) => /^[EFf]/.test(line))).toEqual([])
  })

  it('say so where they may not read which kind that is', async ({ skip }) => {
    skip((await execute(['unshare', '--net', 'iptables-legacy', '-L'])).code !== 0, 'no iptables of the legacy kind')
    const { log, nft, legacy } = await besideLegacy([])
    expect({ nft, legacy }).toEqual({ nft: true, legacy: false })
    expect(log).toMatch(/^flanneld: there are rules of the legacy kind of iptables.* add --cap-add NET_RAW/m)
  })

  it('that waits for its configuration is seen by weft cleanup, though it has no device yet', async () => {
    lab = await createLab({ hosts: 1 })
    const host = lab.hosts[0]!
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    const args = ['--lease-dir', '/var/lib/weft']
    const container = await startContainer(host, `${lab.id}-${host.name}`, args, ['-v', `${leases}:/var/lib/weft`])
    await container.logged("Couldn't fetch network config")
    const { code, stderr } = await container.run('weft', 'cleanup')
    expect(stderr).toContain('flanneld still runs (pid 1)')
    expect(code).toBe(1)
    expect(await container.stop()).toBe('exited 0')
  })

  it('exchange packets, with leases in a directory', async () => {
    lab = await createLab({ hosts: 2 })
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), config)
    await exchange(lab.hosts, lab.id, ['--lease-dir', '/var/lib/weft'], ['-v', `${leases}:/var/lib/weft`])
  })
})
