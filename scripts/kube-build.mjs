// kube-build.mjs - builds a program of Kubernetes for the tests from Debian's source.
//
// Debian has the source of Kubernetes 1.20 but no packages of its servers. A build takes about five minutes on two cores, and temporarily
// 3 GB of disk. The program is kept in ~/.cache/weft or $XDG_CACHE_HOME/weft, and is built only once.

import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { createProgress, runAloud } from './progress.mjs'
import { undo } from './undo.mjs'

const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'
/** The folder into which Debian's packages of Go libraries put their source. */
const LIBRARIES = '/usr/share/gocode/src'
/**
 * Vendored libraries that depend on the map layout of an older Go. Built by Debian's compiler, the server panics when it decodes a
 * ClusterRoleBinding. Debian's own packages of these libraries support the newer Go, so they replace the vendored copies.
 */
const NEWER = ['github.com/modern-go/reflect2', 'github.com/json-iterator/go']

const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'weft')

/** The approximate seconds of each step on two cores. */
const SECONDS = { lists: 10, source: 30, build: 280 }

/** Runs a command. All of its output goes to stderr, because stdout is for the path.
 * @param {string} command
 * @param {readonly string[]} args
 * @param {object} [options] */
async function run(command, args, options = {}) {
  const end = await runAloud(command, args, { stdout: process.stderr, ...options }).catch((error) => error.message)
  if (end !== 0)
    throw new Error(`${[command, ...args].join(' ')} failed: ${typeof end === 'string' ? end : `exit code ${end}`}`)
}

/** @param {string} name
 * @param {string} program
 * @param {string} tags */
async function build(name, program, tags) {
  const total = SECONDS.lists + SECONDS.source + SECONDS.build
  const progress = createProgress(name, { total, pace: 'seconds' })
  mkdirSync(cache, { recursive: true })
  const work = mkdtempSync(join(cache, 'build-'))
  undo(() => rmSync(work, { recursive: true, force: true }))
  // Use separate lists and sources. The machine's own may name no source packages, and must not change.
  for (const folder of ['lists/partial', 'cache/archives/partial', 'source', 'go/src/k8s.io'])
    mkdirSync(join(work, folder), { recursive: true })
  writeFileSync(
    join(work, 'sources.list'),
    `deb-src [signed-by=${KEYRING}] http://deb.debian.org/debian bookworm main\n`,
  )
  const apt = [
    '-o',
    `Dir::Etc::sourcelist=${join(work, 'sources.list')}`,
    '-o',
    'Dir::Etc::sourceparts=/dev/null',
    '-o',
    `Dir::State::lists=${join(work, 'lists')}`,
    '-o',
    `Dir::Cache=${join(work, 'cache')}`,
    '-o',
    'APT::Sandbox::User=root',
    '-o',
    'APT::Update::Error-Mode=any',
  ]
  progress.now('package lists', SECONDS.lists)
  await run('apt-get', [...apt, '-q', 'update'])
  progress.now("Debian's source", SECONDS.source)
  await run('apt-get', [...apt, '-q', 'source', 'kubernetes'], { cwd: join(work, 'source') })
  const folder = readdirSync(join(work, 'source'), { withFileTypes: true }).find((each) => each.isDirectory())
  const tree = join(work, 'go/src/k8s.io/kubernetes')
  renameSync(join(work, 'source', folder.name), tree)
  for (const library of NEWER) {
    rmSync(join(tree, 'vendor', library), { recursive: true })
    cpSync(join(LIBRARIES, library), join(tree, 'vendor', library), { recursive: true, dereference: true })
  }
  progress.now('build', SECONDS.build)
  await run('nice', ['-n', '10', 'make', `WHAT=cmd/${name}`, 'GO111MODULE=off', `GOFLAGS=${tags}`], {
    cwd: tree,
    env: { ...process.env, GOPATH: join(work, 'go'), GOCACHE: join(work, 'go-cache') },
  })
  // The makefile leaves the programs for this machine in _output/bin. Do not search the tree, because it contains a link to itself.
  copyFileSync(join(tree, '_output/bin', name), `${program}.part`)
  renameSync(`${program}.part`, program)
  progress.end()
}

/**
 * Prints the path of a program of Kubernetes, such as `kubelet`, and builds it first if necessary. `variable` is the environment variable
 * by which a user can provide the program instead.
 * @param {string} name
 * @param {string} variable
 * @param {string} [tags] The flag of Go that excludes parts of the program.
 */
export async function printProgram(name, variable, tags = '') {
  const program = join(cache, `${name}-1.20`)
  try {
    if (!existsSync(program)) {
      process.stderr.write(`${name} is built from Debian's source into ${cache}; this takes about five minutes\n`)
      await build(name, program, tags)
    }
    process.stdout.write(`${program}\n`)
  } catch (error) {
    process.stderr.write(
      `${name} cannot be built: ${error.message}; set ${variable} to the path of a ${name} program\n`,
    )
    process.exitCode = 1
  }
}
