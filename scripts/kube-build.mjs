// kube-build.mjs - builds a program of Kubernetes, such as kubelet, for the tests from Debian's source package.
//
// Debian has the source of Kubernetes 1.20 but no packages of its servers. A build takes about five minutes on two
// cores and temporarily 3 GB of disk space. The script builds a program only once, and keeps it in ~/.cache/weft or
// $XDG_CACHE_HOME/weft.

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
/** The folder into which Debian's packages of Go libraries install their source. */
const LIBRARIES = '/usr/share/gocode/src'
/**
 * Go libraries in the source of Kubernetes that assume the map layout of an older Go version. With Debian's Go compiler
 * they make the server panic when it decodes a ClusterRoleBinding. The build replaces them by Debian's own packages of
 * these libraries, which work with Debian's compiler.
 */
const NEWER = ['github.com/modern-go/reflect2', 'github.com/json-iterator/go']

const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'weft')

/** The approximate duration of each step of a build in seconds, on two cores; for the progress bar. */
const SECONDS = { lists: 10, source: 30, build: 280 }

/**
 * Runs a command and writes all output of the command to stderr, because stdout must contain only the path of the
 * program.
 * @param {string} command
 * @param {readonly string[]} args
 * @param {object} [options]
 */
async function run(command, args, options = {}) {
  const end = await runAloud(command, args, { stdout: process.stderr, ...options }).catch((error) => error.message)
  if (end !== 0)
    throw new Error(`${[command, ...args].join(' ')} failed: ${typeof end === 'string' ? end : `exit code ${end}`}`)
}

/**
 * Builds the program of Kubernetes called `name`, and moves it to the path `program`.
 * @param {string} name
 * @param {string} program
 * @param {string} tags The build tags of the Go compiler.
 */
async function build(name, program, tags) {
  const total = SECONDS.lists + SECONDS.source + SECONDS.build
  const progress = createProgress(name, { total, pace: 'seconds' })
  mkdirSync(cache, { recursive: true })
  const work = mkdtempSync(join(cache, 'build-'))
  undo(() => rmSync(work, { recursive: true, force: true }))
  // Give apt separate lists of packages and sources, because this machine's own lists may not include source packages
  // and must not change.
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
  // The makefile puts the programs for this machine's architecture into _output/bin. Use this fixed path, because a
  // search of the tree would not end: the tree contains a link to itself.
  copyFileSync(join(tree, '_output/bin', name), `${program}.part`)
  renameSync(`${program}.part`, program)
  progress.end()
}

/**
 * Prints the path of a program of Kubernetes, such as `kubelet`. Builds the program first if it is not in the cache.
 * `variable` names the environment variable with which a user can set the path of an existing program.
 * @param {string} name
 * @param {string} variable
 * @param {string} [tags] The Go compiler's flag for build tags, which leave out parts of the program.
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
