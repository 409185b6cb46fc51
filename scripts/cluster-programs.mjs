// cluster-programs.mjs - gets the programs of a Kubernetes cluster for `npm run test:cluster`, and prints the path of a folder with them.
//
// Each program is taken from the first of these places that has it: the cache (~/.cache/weft or $XDG_CACHE_HOME/weft), Kubernetes' release
// server if the user names it in WEFT_KUBERNETES_RELEASES (such as https://dl.k8s.io), and Go's module proxy, from whose modules the program
// is built. The first build takes about half an hour on two cores. SOURCES in the printed folder says where each program came from.
//
// WEFT_KUBERNETES selects the version of Kubernetes. A user who has all of the programs sets WEFT_CLUSTER_PROGRAMS to their folder instead;
// then this script does not run.

import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  appendFileSync,
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { flanneld, FLANNELD, FLANNEL_VERSION, MODULE as FLANNEL } from './flanneld.mjs'
import { createProgress, runAloud } from './progress.mjs'
import { undo } from './undo.mjs'

/** The newest version of Kubernetes that Go's module proxy has. WEFT_KUBERNETES selects another version, such as v1.30.14. */
export const NEWEST_KUBERNETES = 'v1.37.2'
const { XDG_CACHE_HOME = '' } = process.env
const cache = join(isAbsolute(XDG_CACHE_HOME) ? XDG_CACHE_HOME : join(homedir(), '.cache'), 'weft')

/**
 * The programs of a simulated node whose architecture is not this machine's. Such a node is part of the test of a
 * release's manifest. The node runs them in an emulator. The programs are built only if WEFT_RELEASE_DIR names a
 * release. qemu-user reports that the kernel cannot filter system calls. But runc, which is not emulated, does filter
 * them, so this script replaces containerd's check of the kernel.
 */
const EMULATED = {
  architecture: 'arm64',
  programs: ['containerd', 'ctr'],
  replaced: {
    path: 'pkg/seccomp/seccomp_linux.go',
    text: 'package seccomp\n\nfunc isEnabled() bool { return true }\n',
  },
}

/**
 * Programs that are built from one version of a Go module.
 * @typedef {object} GoSet
 * @property {string} module
 * @property {string} version
 * @property {Readonly<Record<string, string>>} programs The package of each program, relative to the module.
 * @property {number} seconds The approximate duration of the first build on two cores, in seconds; for the progress bar.
 * @property {string} [tags] Build tags.
 * @property {string} [ldflags]
 * @property {boolean} [needsC] True if the programs contain C code.
 * @property {string} [main] The text of a Go program to build in place of the module's own main package.
 * @property {boolean} [isReleased] True if WEFT_KUBERNETES_RELEASES has the programs.
 */

/**
 * Returns the programs of a cluster with this version of Kubernetes.
 * @param {string} kubernetes
 * @returns {readonly GoSet[]}
 */
export function goSets(kubernetes) {
  const [major, minor] = kubernetes.slice(1).split('.')
  const release = 'k8s.io/component-base/version'
  const inKubernetes = (...names) => Object.fromEntries(names.map((name) => [name, `cmd/${name}`]))
  const containerd = 'v2.4.2'
  return [
    {
      module: 'k8s.io/kubernetes',
      version: kubernetes,
      programs: inKubernetes(
        'kube-apiserver',
        'kube-controller-manager',
        'kube-scheduler',
        'kubelet',
        'kube-proxy',
        'kubectl',
      ),
      seconds: 1500,
      // Without these version numbers the programs call themselves v0.0.0-master, and the API server refuses some of
      // them as too old.
      ldflags: `-X ${release}.gitVersion=${kubernetes} -X ${release}.gitMajor=${major} -X ${release}.gitMinor=${minor}`,
      tags: 'providerless',
      isReleased: true,
    },
    {
      module: 'github.com/containerd/containerd/v2',
      version: containerd,
      programs: inKubernetes('containerd', 'containerd-shim-runc-v2', 'ctr'),
      seconds: 200,
      ldflags: `-X github.com/containerd/containerd/v2/version.Version=${containerd}`,
      tags: 'no_btrfs no_zfs no_devmapper urfave_cli_no_docs',
    },
    {
      module: 'github.com/opencontainers/runc',
      version: 'v1.5.2',
      programs: { runc: '.' },
      seconds: 40,
      tags: 'seccomp urfave_cli_no_docs',
      needsC: true,
    },
    {
      module: 'github.com/containernetworking/plugins',
      version: 'v1.10.0',
      programs: {
        bridge: 'plugins/main/bridge',
        loopback: 'plugins/main/loopback',
        'host-local': 'plugins/ipam/host-local',
        portmap: 'plugins/meta/portmap',
      },
      seconds: 30,
    },
    {
      // flannel's CNI plugin is not available as a Go module of its own. Until v0.9.1, this module contained the
      // plugin.
      module: 'github.com/containernetworking/plugins',
      version: 'v0.9.1',
      programs: { 'flannel-cni': 'plugins/meta/flannel' },
      seconds: 20,
    },
    {
      module: 'github.com/coredns/coredns',
      version: 'v1.15.0',
      programs: { coredns: '.' },
      seconds: 120,
      main: corednsMain(['cache', 'errors', 'health', 'kubernetes', 'loadbalance', 'ready', 'reload']),
    },
    {
      module: 'go.etcd.io/etcd/server/v3',
      version: 'v3.6.16',
      programs: { etcd: '.' },
      seconds: 90,
    },
    {
      module: FLANNEL,
      version: FLANNEL_VERSION,
      programs: { 'flannel-install-conf': 'cmd/install_conf' },
      seconds: 5,
    },
  ]
}

/**
 * Returns the text of CoreDNS's main package with only the plugins `plugins`. The build of all plugins takes much
 * longer, because some plugins use the libraries of cloud providers.
 * @param {readonly string[]} plugins
 */
function corednsMain(plugins) {
  const path = 'github.com/coredns/coredns'
  const imports = plugins.map((name) => `\t_ "${path}/plugin/${name}"`).join('\n')
  return `package main\n\nimport (\n\t"${path}/coremain"\n${imports}\n)\n\nfunc main() { coremain.Run() }\n`
}

/**
 * Returns the text of a go.mod that requires the Go module of `set`. Go ignores the `replace` lines of a required
 * module. So the new go.mod replaces the modules that Kubernetes develops in its folder `staging` by their published
 * versions, which have the same minor and patch number. It copies each `replace` line that names a version of another
 * module.
 * @param {GoSet} set
 * @param {string} own The text of the module's own go.mod.
 */
export function goMod({ module, version }, own) {
  const go = /^go (\S+)/m.exec(own)?.[1] ?? '1.21'
  const staged = [...own.matchAll(/^\s*(?:replace )?(k8s\.io\/\S+) => \.\/staging\//gm)].map(([, name]) => name)
  const replaced = staged.map((name) => `replace ${name} => ${name} ${version.replace(/^v1\./, 'v0.')}`)
  const others = [...own.matchAll(/^\s*(?:replace )?(\S+(?: v\S+)? => [^\s./]\S* v\S+)/gm)].map(
    ([, line]) => `replace ${line}`,
  )
  return [`module weft.test/cluster`, `go ${go}`, `require ${module} ${version}`, ...replaced, ...others, ''].join('\n')
}

/**
 * The path of a program in the cache, such as ~/.cache/weft/kubelet-v1.37.2, or containerd-v2.4.2-arm64 for another architecture than this
 * machine's.
 */
export const cached = (name, { version }, architecture) =>
  join(cache, [name, version, architecture].filter(Boolean).join('-'))

/**
 * Downloads a Go module, and returns the paths of its folder and files.
 * @param {Pick<GoSet, 'module' | 'version'>} set
 * @param {string} cwd
 */
export function downloadOf({ module, version }, cwd) {
  const args = ['mod', 'download', '-json', `${module}@${version}`]
  const { status, stdout, stderr, error } = spawnSync('go', args, { cwd, encoding: 'utf8' })
  if (status === 0) return JSON.parse(stdout)
  const said = /"Error": "(.*)"/.exec(stdout ?? '')?.[1]
  throw new Error(`go ${args.join(' ')} failed: ${error?.message ?? (said || stderr.trim())}`)
}

/**
 * Builds the named programs of a Go module (`set`) one after another, and puts each into the cache of weft. Go's own
 * cache keeps the packages that the programs share.
 * @param {GoSet} set
 * @param {readonly string[]} names
 * @param {typeof EMULATED} [emulated] The settings for an emulated node.
 */
export async function build(set, names, emulated) {
  mkdirSync(cache, { recursive: true })
  const work = mkdtempSync(join(cache, 'build-'))
  const remove = undo(() => rmSync(work, { recursive: true, force: true }))
  const { GoMod, Dir } = downloadOf(set, work)
  writeFileSync(join(work, 'go.mod'), goMod(set, readFileSync(GoMod, 'utf8')))
  if (set.main) writeFileSync(join(work, 'main.go'), set.main)
  if (emulated) {
    // Go builds no changed file of its module cache, so build from a copy of the module.
    const copy = join(work, 'module')
    cpSync(Dir, copy, { recursive: true })
    const file = join(copy, emulated.replaced.path)
    chmodSync(dirname(file), 0o755)
    rmSync(file)
    writeFileSync(file, emulated.replaced.text)
    appendFileSync(join(work, 'go.mod'), `replace ${set.module} => ./module\n`)
  }
  for (const name of names) {
    const target = set.main ? '.' : join(set.module, set.programs[name])
    const flags = ['-mod=mod', '-trimpath', '-buildvcs=false', `-ldflags=-s -w ${set.ldflags ?? ''}`]
    const args = ['build', ...flags, ...(set.tags ? [`-tags=${set.tags}`] : []), '-o', join(work, name), target]
    const code = await runAloud('go', args, {
      cwd: work,
      stdout: process.stderr,
      env: {
        ...process.env,
        CGO_ENABLED: set.needsC ? '1' : '0',
        ...(emulated ? { GOARCH: emulated.architecture } : {}),
      },
    })
    if (code !== 0) throw new Error(`go build of ${target} ${set.version} ended with exit code ${code}`)
    renameSync(join(work, name), cached(name, set, emulated?.architecture))
  }
  remove()
}

/**
 * Downloads a program of Kubernetes from the release server that the user named, and compares it with the server's
 * checksum file for the program.
 * @param {string} server
 * @param {string} name
 * @param {GoSet} set
 */
export async function download(server, name, set) {
  const architecture = process.arch === 'x64' ? 'amd64' : process.arch
  const url = `${server.replace(/\/$/, '')}/${set.version}/bin/linux/${architecture}/${name}`
  const get = async (path) => {
    const answer = await fetch(path)
    if (!answer.ok) throw new Error(`${path} answers ${answer.status}`)
    return Buffer.from(await answer.arrayBuffer())
  }
  const [bytes, sum] = [await get(url), (await get(`${url}.sha256`)).toString().trim()]
  const found = createHash('sha256').update(bytes).digest('hex')
  if (found !== sum) throw new Error(`${url} has the checksum ${found}, and not ${sum}`)
  const part = `${cached(name, set)}.part`
  writeFileSync(part, bytes)
  chmodSync(part, 0o755)
  renameSync(part, cached(name, set))
}

/**
 * Gets all programs for a version of Kubernetes, and returns the path of a folder that contains each program under its
 * name.
 * @param {string} kubernetes
 */
async function programs(kubernetes) {
  const sets = goSets(kubernetes)
  const missing = (set) => Object.keys(set.programs).filter((name) => !existsSync(cached(name, set)))
  const server = process.env.WEFT_KUBERNETES_RELEASES ?? ''
  mkdirSync(cache, { recursive: true })
  const total = sets.filter((set) => missing(set).length > 0).reduce((sum, { seconds }) => sum + seconds, 0)
  const progress = createProgress('the programs of a cluster', { total, pace: 'seconds' })
  const sources = {}
  for (const set of sets) {
    for (const name of Object.keys(set.programs)) sources[name] = `the cache: ${cached(name, set)}`
    if (missing(set).length === 0) continue
    progress.now(`${set.module} ${set.version}`, set.seconds)
    for (const name of set.isReleased && server !== '' ? missing(set) : []) {
      await download(server, name, set)
      sources[name] = `${server}: ${name} ${set.version}`
    }
    const names = missing(set)
    if (names.length === 0) continue
    progress.plain(`${names.join(', ')}: being built from the Go module ${set.module} ${set.version}`)
    await build(set, names)
    for (const name of names) sources[name] = `the Go module ${set.module} ${set.version}`
  }
  const { architecture } = EMULATED
  const foreign = process.env.WEFT_RELEASE_DIR ? EMULATED.programs : []
  const containerd = sets.find((set) => 'containerd' in set.programs)
  const unbuilt = foreign.filter((name) => !existsSync(cached(name, containerd, architecture)))
  if (unbuilt.length > 0) await build(containerd, unbuilt, EMULATED)
  sources.flanneld = existsSync(FLANNELD) ? `the cache: ${FLANNELD}` : `the Go module ${FLANNEL} ${FLANNEL_VERSION}`
  await flanneld()
  const manifests = join(cache, `flannel-${FLANNEL_VERSION}`)
  if (!existsSync(manifests)) {
    cpSync(downloadOf({ module: FLANNEL, version: FLANNEL_VERSION }, cache).Dir, `${manifests}.part`, {
      recursive: true,
    })
    renameSync(`${manifests}.part`, manifests)
  }
  progress.end()
  const folder = join(cache, `cluster-${kubernetes}`)
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder)
  for (const set of sets)
    for (const name of Object.keys(set.programs))
      symlinkSync(join('..', basename(cached(name, set))), join(folder, name))
  mkdirSync(join(folder, architecture))
  for (const name of foreign)
    symlinkSync(join('../..', basename(cached(name, containerd, architecture))), join(folder, architecture, name))
  symlinkSync(join('..', basename(FLANNELD)), join(folder, 'flanneld'))
  symlinkSync(join('..', basename(manifests)), join(folder, 'flannel-source'))
  const lines = Object.entries(sources).map(([name, source]) => `${name}: ${source}`)
  writeFileSync(join(folder, 'SOURCES'), `${lines.join('\n')}\n`)
  process.stderr.write(`${lines.join('\n')}\n`)
  return folder
}

async function main() {
  const kubernetes = process.env.WEFT_KUBERNETES ?? NEWEST_KUBERNETES
  try {
    if (!/^v1\.\d+\.\d+$/.test(kubernetes))
      throw new Error(`WEFT_KUBERNETES=${JSON.stringify(kubernetes)} is not a version such as ${NEWEST_KUBERNETES}`)
    process.stdout.write(`${await programs(kubernetes)}\n`)
  } catch (error) {
    process.stderr.write(
      `the programs of a cluster cannot be made: ${error.message}; the build needs Go 1.26 or later, a C compiler and libseccomp-dev.` +
        ' Or set WEFT_CLUSTER_PROGRAMS to a folder with the programs.\n',
    )
    process.exitCode = 1
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main()
