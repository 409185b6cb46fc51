// kube-build.mjs - a program of Kubernetes for the tests: Debian's source, built once.
//
// Debian has the source of 1.20 and no packages of its servers (a build takes some five minutes of two cores, and 3 GB
// of disk that are given back). What is built stays in a cache beside no project: ~/.cache/weft, or $XDG_CACHE_HOME/weft.

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
/** Where Debian's packages of Go libraries put their source. */
const LIBRARIES = '/usr/share/gocode/src'
/**
 * Vendored copies that were made for an older Go, whose maps they read by hand: with Debian's compiler the server panics as it
 * decodes a ClusterRoleBinding. Debian's own packages of the same libraries know the newer Go.
 */
const NEWER = ['github.com/modern-go/reflect2', 'github.com/json-iterator/go']

const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'weft')

/** The seconds that the steps take, about, on two cores. */
const SECONDS = { lists: 10, source: 30, build: 280 }

/** All output goes to stderr: stdout is for the path.
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
  // Lists and sources of its own: the machine's may name no sources, and are left as they are.
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
  // Where its makefile leaves what is for this machine. The tree is not to be searched: it has a link to itself in it.
  copyFileSync(join(tree, '_output/bin', name), `${program}.part`)
  renameSync(`${program}.part`, program)
  progress.end()
}

/**
 * Prints the path of a program of Kubernetes, `kubelet` and the like, which is built if it was not yet; `variable` names one that somebody has.
 * @param {string} name
 * @param {string} variable
 * @param {string} [tags] Flags of Go's for what is left out.
 */
export async function printProgram(name, variable, tags = '') {
  const program = join(cache, `${name}-1.20`)
  try {
    if (!existsSync(program)) {
      process.stderr.write(`${name} is built from Debian's source into ${cache}: about five minutes\n`)
      await build(name, program, tags)
    }
    process.stdout.write(`${program}\n`)
  } catch (error) {
    process.stderr.write(
      `${name} cannot be built: ${error.message}; set ${variable} to the path of one that you have\n`,
    )
    process.exitCode = 1
  }
}
