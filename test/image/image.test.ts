// image.test.ts - `npm run image:test`: builds the container image without a Docker engine, and lets two containers exchange packets.
//
// test/support/container-image.ts builds the image. The containers run with the command of docs/docker.md, each on a host of the lab. That
// takes more than a minute on two cores; the limit is nine.

import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { execute, output } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, packageRoot, type Lab } from '../../lab/lab.ts'
import { buildImage, IMAGE, nodeMajor } from '../support/container-image.ts'
import { HOSTS, needs, NODE } from '../support/needs.ts'
import { exchangeByContainers, isolatePodman, startContainer, type Podman } from '../support/podman.ts'

const MINUTE = 60_000
const root = (path: string): string => join(packageRoot, path)

/** The lab that holds the folder; the containers have labs of their own. */
let workshop: Lab
let engine: Podman | undefined
const podman = (...args: readonly string[]): Promise<string> => engine!.run(...args)
const reason = needs(HOSTS, 'podman', 'runc', 'mmdebstrap', 'ping', NODE)

beforeAll(async () => {
  if (reason !== undefined) return
  workshop = await createLab({ hosts: 0 })
  engine = isolatePodman(join(workshop.folder, 'podman'))
  await buildImage(engine)
}, 60 * MINUTE)
afterAll(async () => {
  if (engine) await podman('rm', '--all', '--force', '--time', '1')
  await workshop?.close()
}, 5 * MINUTE)

/** Returns the folder with the image's files, and the paths of the files. */
async function tree(): Promise<{ folder: string; paths: string[] }> {
  const folder = (await podman('image', 'mount', IMAGE)).trim()
  return { folder, paths: readdirSync(folder, { recursive: true, encoding: 'utf8' }) }
}

describe('the image', () => {
  it('contains everything that weft needs to run, and neither a compiler nor npm', async () => {
    const { folder, paths } = await tree()
    const programs = paths.filter((path) => /^(usr\/(local\/)?)?s?bin\/[^/]+$|^opt\/bin\//.test(path))
    const tools = /^(cc|c\+\+|as|ld|(g\+\+|gcc|cpp|clang|make|python|npm|npx|yarn|tsc|node-gyp)[-.\d]*)$/
    expect(programs.length).toBeGreaterThan(100)
    expect(programs.filter((path) => tools.test(path.split('/').at(-1)!))).toEqual([])
    for (const name of [
      'ip',
      'iptables',
      'iptables-restore',
      'ip6tables',
      'ip6tables-restore',
      'nft',
      'node',
      'weft',
      'weftd',
    ])
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

  it('has at most the size in docs/docker.md', async () => {
    const { folder } = await tree()
    const bytes = async (what: string): Promise<number> => Number(await output(['sh', '-c', what, 'sh', folder]))
    const packed = await bytes('tar -C "$1" -c . | gzip | wc -c')
    const unpacked = await bytes('tar -C "$1" -c . | wc -c')
    const base = await bytes(`wc -c < ${join(workshop.folder, 'podman/base.tar')}`)
    const node = statSync(join(folder, 'usr/local/bin/node')).size
    const mb = (value: number): string => `${(value / 1e6).toFixed(0)} MB`
    process.stdout.write(`  ${mb(unpacked)}: Debian ${mb(base)}, Node.js ${mb(node)}; ${mb(packed)} compressed\n`)
    const text = readFileSync(root('docs/docker.md'), 'utf8').replaceAll('\n', ' ')
    const stated = /(\d+) MB \((\d+) MB compressed\), of which Debian 12 takes (\d+) MB and Node\.js (\d+)/.exec(text)!
    for (const [index, measured] of [unpacked, packed, base, node].entries())
      expect(Math.abs(Number(stated[index + 1]) - measured / 1e6) / (measured / 1e6), stated[0]).toBeLessThan(0.05)
  })

  it("has flannel's other programs at the same paths as flannel's image", async () => {
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

  it('describes itself in the labels of the Open Container Initiative', async () => {
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

  it("has a supported Node.js, and Debian's authorities at the path that weftd reads", async () => {
    const { folder } = await tree()
    expect(await output(['chroot', folder, 'node', '-p', 'process.versions.node'])).toMatch(
      new RegExp(String.raw`^${nodeMajor}\.`),
    )
    const authorities = readFileSync(join(folder, 'etc/ssl/certs/ca-certificates.crt'), 'utf8')
    expect(authorities.match(/BEGIN CERTIFICATE/g)?.length).toBeGreaterThan(50)
  })
})

describe('two containers run with the command of docs/docker.md', () => {
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

  it('exchange packets, with leases in etcd', async () => {
    lab = await createLab({ hosts: 2 })
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    await etcd.ctl('put', '/coreos.com/network/config', config)
    await exchangeByContainers(engine!, IMAGE, lab.hosts, lab.id, ['--etcd-endpoints', etcd.endpoint], [])
  })

  /** Runs a container on a host with a rule of iptables-legacy; returns its log, and the kinds of iptables that have its rules. */
  async function besideLegacy(options: readonly string[]): Promise<{ log: string; nft: boolean; legacy: boolean }> {
    lab = await createLab({ hosts: 1 })
    const host = lab.hosts[0]!
    await host.output(['iptables-legacy', '-A', 'INPUT', '-s', '192.0.2.1', '-j', 'DROP'])
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), config)
    const args = ['--lease-dir', '/var/lib/weft']
    const given = ['-v', `${leases}:/var/lib/weft`, ...options]
    const container = await startContainer(engine!, IMAGE, host, `${lab.id}-${host.name}`, args, given)
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
    // The options that docs/docker.md gives for such a host.
    const given = /`(--cap-add NET_RAW [^`]*)`/.exec(readFileSync(root('docs/docker.md'), 'utf8'))![1]!.split(/\s+/)
    const { log, nft, legacy } = await besideLegacy(given)
    expect({ nft, legacy }).toEqual({ nft: false, legacy: true })
    expect(log.split('\n').filter((line) => /^[EFf]/.test(line))).toEqual([])
  })

  it('log a line if the kernel refuses to tell which kind that is', async ({ skip }) => {
    skip((await execute(['unshare', '--net', 'iptables-legacy', '-L'])).code !== 0, 'no iptables of the legacy kind')
    const { log, nft, legacy } = await besideLegacy([])
    expect({ nft, legacy }).toEqual({ nft: true, legacy: false })
    expect(log).toMatch(/^flanneld: the host has or had rules of legacy iptables.* add --cap-add NET_RAW/m)
  })

  it('are found by weft cleanup while they wait for their configuration, although they have no device yet', async () => {
    lab = await createLab({ hosts: 1 })
    const host = lab.hosts[0]!
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    const args = ['--lease-dir', '/var/lib/weft']
    const container = await startContainer(engine!, IMAGE, host, `${lab.id}-${host.name}`, args, [
      '-v',
      `${leases}:/var/lib/weft`,
    ])
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
    await exchangeByContainers(
      engine!,
      IMAGE,
      lab.hosts,
      lab.id,
      ['--lease-dir', '/var/lib/weft'],
      ['-v', `${leases}:/var/lib/weft`],
    )
  })
})
