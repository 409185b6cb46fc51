// run.test.ts - a task that the user names fails with one line and the remedy if the machine lacks a prerequisite.
//
// The machines in the tests lack something: some programs in PATH, root's rights, /dev/net/tun, or the registry; or their programs fail.

import {
  accessSync,
  chmodSync,
  constants,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { execute, type Finished } from '../lab/command.ts'
import { packageRoot } from '../lab/lab.ts'
import { find, KINDS, NEEDS } from '../scripts/machine.mjs'
import { TASKS } from '../scripts/tasks.mjs'

const NODE = process.execPath
const { scripts } = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as {
  scripts: Record<string, string>
}
/** The tasks that need nothing after the build, and the tests that skip what they cannot run. */
const CONTENT = new Set(['build', 'build:native', 'test', 'test:whole'])
/** Further tasks that make hosts and are not skipped. */
const HOSTED = ['test:soak', 'test:paths', 'test:kube', 'test:kubelet', 'test:cluster', 'test:page', 'image:test']
const STRICT = Object.keys(TASKS).filter((name) => !CONTENT.has(name))

let folder: string
let clone: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-run-'))
  clone = newClone()
})
afterAll(() => rmSync(folder, { recursive: true }))

/** A complete copy of this clone. It shares nothing with this clone, because setup may empty node_modules. */
function newClone(): string {
  const place = mkdtempSync(join(folder, 'clone-'))
  for (const [from, to] of [
    ['scripts', 'scripts'],
    ['package.json', 'package.json'],
    ['package-lock.json', 'package-lock.json'],
    ['package-lock.json', 'node_modules/.package-lock.json'],
    ['build/Release/weft.node', 'build/Release/weft.node'],
  ] as const)
    cpSync(join(packageRoot, from), join(place, to), { recursive: true })
  symlinkSync(join(packageRoot, 'test'), join(place, 'test'))
  mkdirSync(join(place, 'dist'))
  writeFileSync(join(place, 'dist/.built'), '')
  return place
}

/** Makes a PATH with this machine's programs except some, and with shell scripts in place of others. */
function pathWithout(missing: readonly string[], instead: Readonly<Record<string, string>> = {}): string {
  const place = mkdtempSync(join(folder, 'path-'))
  for (const [name, text] of Object.entries(instead)) {
    writeFileSync(join(place, name), `#!/bin/sh\n${text}\n`)
    chmodSync(join(place, name), 0o755)
  }
  for (const each of (process.env['PATH'] ?? '').split(':').filter(existsSync))
    for (const name of readdirSync(each))
      if (!missing.includes(name) && !existsSync(join(place, name))) symlinkSync(join(each, name), join(place, name))
  return place
}

/** Runs a task with only the given environment. */
const runIn = (environment: Readonly<Record<string, string>>, ...command: readonly string[]): Promise<Finished> =>
  execute([
    '/usr/bin/env',
    '-i',
    `HOME=${folder}`,
    'NO_COLOR=1',
    ...Object.entries(environment).map(([name, value]) => `${name}=${value}`),
    ...command,
  ])
const task = (name: string, ...words: readonly string[]): string[] => [
  NODE,
  join(clone, 'scripts/run.mjs'),
  name,
  ...words,
]
const commandOf = (name: string): string[] => [NODE, join(packageRoot, TASKS[name]!.commands[0]![1]!)]
const PATH = process.env['PATH'] ?? ''
/** Runs as root of a new user namespace, in which a script first prepares the mounts. */
const asRootAfter = (script: string, ...command: readonly string[]): string[] => [
  'unshare',
  '--user',
  '--map-root-user',
  '--net',
  '--mount',
  'sh',
  '-ec',
  `${script}\nexec "$@"`,
  'sh',
  ...command,
]
function mayOpenTun(): boolean {
  try {
    accessSync('/dev/net/tun', constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}
const namespaces = async (): Promise<string | undefined> =>
  (await execute(asRootAfter('', 'true')).catch(() => ({ code: 1 }))).code === 0 ? undefined : 'no user namespaces here'

describe('npm run', () => {
  it('offers every task', () => {
    for (const name of Object.keys(TASKS)) expect(scripts[name]).toBe(`node scripts/run.mjs ${name}`)
    for (const { setup } of Object.values(TASKS)) expect(KINDS).toEqual(expect.arrayContaining([...setup]))
    // A script that npm passes to a shell would continue after a failed $(...).
    expect(Object.values(scripts).filter((script) => /[$`;|]/.test(script))).toEqual([])
  })

  it('knows the prerequisites of each test that it names', () => {
    const lines = (path: string): string[] =>
      path.endsWith('.ts')
        ? readFileSync(join(packageRoot, path), 'utf8').split('\n')
        : readdirSync(join(packageRoot, path))
            .filter((name) => name.endsWith('.test.ts'))
            .flatMap((name) => lines(join(path, name)))
    let count = 0
    for (const [name, { setup, commands }] of Object.entries(TASKS)) {
      const [kind] = setup.slice(1)
      if (kind === undefined) continue
      const project = { page: 'test/page', image: 'test/image' }[kind]
      const paths = commands.flat().filter((word) => word.startsWith('test/'))
      for (const line of [...paths, ...(project ? [project] : [])].flatMap(lines)) {
        const [, list] = /\bneeds\((.*)\)$/.exec(line) ?? []
        if (list === undefined) continue
        const words = list.replaceAll('ETCD', "'etcd', 'etcdctl'")
        const named = NEEDS.filter((need) => words.includes(`'${need.name}'`))
        const kinds = (need: string): string[] => NEEDS.filter((each) => each.name === need).flatMap((each) => each.for)
        for (const need of named)
          expect([name, need.name, kinds(need.name)]).toEqual([name, need.name, expect.arrayContaining([kind])])
        count += named.length
      }
    }
    expect(count).toBeGreaterThan(30)
  })

  it('refuses a missing task and a missing test file', async () => {
    expect(await runIn({ PATH }, ...task('test:everything'))).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('no such task'),
    })
    expect(await runIn({ PATH }, ...task('test', 'test/netns/none.test.ts', 'test/sim/simulation.test.ts'))).toEqual({
      code: 2,
      stdout: '',
      stderr: 'test: there is no test/netns/none.test.ts\n',
    })
  })
})

describe('the words of a task', () => {
  const OWN = Object.entries(TASKS).flatMap(([name, { usage }]) => (usage === undefined ? [] : [name]))

  it.concurrent.each(OWN)('%s --help lists them, and nothing is set up or run', async (name) => {
    const { code, stdout, stderr } = await runIn({ PATH: folder }, ...task(name, '--help'))
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    expect(stdout.split('\n')[0]).toMatch(new RegExp(`^Usage: npm run ${name}( -- \\S.*)?$`))
  })

  it.concurrent.each(Object.entries(TASKS).flatMap(([name, { accepts }]) => (accepts ? [name] : [])))(
    '%s refuses a word that it does not know, before anything is set up',
    async (name) => {
      const { code, stdout, stderr } = await runIn({ PATH: folder }, ...task(name, 'nonsense'))
      expect({ code, stdout }).toEqual({ code: 2, stdout: '' })
      expect(stderr).toMatch(new RegExp(`^${name}: "nonsense" is .*\nUsage: npm run ${name}.*\n$`))
    },
  )

  it('are those of its documents: release', () => {
    const { accepts } = TASKS['release']!
    const words = [
      '--image',
      'ghcr.io/somebody/weft',
      '--image=localhost:5000/weft',
      '--arch',
      'amd64,s390x',
      '--arch=a',
    ]
    expect(words.filter((word) => !accepts!.test(word))).toEqual([])
    expect(['amd64,x86', 'weft', '--architecture', '-a/b', ''].filter((word) => accepts!.test(word))).toEqual([])
  })

  it.concurrent.each([
    ['test', 'nonsense'],
    ['test:soak', 'nonsense'],
    ['test:vm', 'nonsense'],
    ['test:kube', 'kube/faults', 'nonsense'],
  ])('%s refuses a part of a path that no test file has: %s', async (name, ...words) => {
    const { code, stdout, stderr } = await runIn({ PATH: folder }, ...task(name, ...words))
    expect({ code, stdout, stderr }).toEqual({
      code: 2,
      stdout: '',
      stderr: `${name}: no test file has "nonsense" in its path\n`,
    })
  })

  it.concurrent.each([
    ['test:all', '--again'],
    ['test:fuzz', '60', '--keep', '--processes=2'],
    ['test:kube', 'kube/faults', 'test/kube/hosts.test.ts:10', '-t', 'no file is called so'],
    ['test:vm', '--', 'uname', '--help'],
    ['test:vm', '--kernel', '5.10', '--', 'uname', 'a word', '--help'],
    ['test:vm', '--kernel', '5.10', 'test/netns/netlink.test.ts', '-t', 'no file is called so'],
  ])('%s accepts its words: %s', async (name, ...words) => {
    const { code, stderr } = await runIn({ PATH: folder }, ...task(name, ...words))
    expect({ code, stderr }).toEqual({ code: 1, stderr: expect.stringMatching(/^setup: this machine lacks /) })
  })
})

describe('without the programs', () => {
  it.concurrent.each(STRICT)('%s ends with 1 and names the missing programs and their packages', async (name) => {
    const { code, stdout, stderr } = await runIn({ PATH: folder }, ...task(name))
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
    // A task that makes hosts first reports why they cannot be made.
    if (TASKS[name]!.makesHosts && stderr.startsWith(`${name}: `))
      expect(stderr).toMatch(/: network namespaces .*cannot be made: .*\n$/)
    else expect(stderr).toMatch(/^setup: this machine lacks .+: install the packages that Debian calls \S.*\n$/)
  })
})

describe('without the rights', () => {
  it.concurrent.for(HOSTED)('%s ends with exit code 1 and reports that it needs root', async (name, { skip }) => {
    const why = await namespaces()
    skip(why !== undefined, why)
    const { code, stdout, stderr } = await runIn({ PATH }, 'unshare', '--user', ...task(name))
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
    expect(stderr).toMatch(/^setup: this machine lacks .*root's right to make network namespaces.*run it as root\n$/)
  })

  it.concurrent.for([
    ...HOSTED.map((name) => [name, task] as const),
    ...['demo', 'bench'].map((name) => [name, commandOf] as const),
  ])('%s without /dev/net/tun ends with 1 and gives the remedy', async ([name, commandFor], { skip }) => {
    const why = await namespaces()
    skip(why !== undefined, why)
    const { code, stdout, stderr } = await runIn(
      { PATH },
      ...asRootAfter('mount -t tmpfs none /dev/net', ...commandFor(name)),
    )
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
    expect(stderr).toMatch(/^(about .*\n)?.*\/dev\/net\/tun.*modprobe tun.*--device \/dev\/net\/tun.*\n$/)
  })
})

describe('a test that cannot be run', () => {
  const files = ['test/unit/net/nets.test.ts', 'test/native/core.test.ts']
  const vitest = [NODE, join(packageRoot, 'node_modules/vitest/vitest.mjs'), 'run', '--root', packageRoot, ...files]

  it('is skipped by npm test, with the remedy, and fails in a task that names it', async () => {
    const path = pathWithout(['g++', 'apt-get'])
    const lack = 'test/native/core.test.ts: this machine lacks g++: install the packages that Debian calls g++'
    const all = await runIn({ PATH: path }, ...vitest)
    expect(all.code).toBe(0)
    expect(all.stdout).toMatch(/\nskipped: .*\n\d+ passed, 0 failed, \d+ skipped\n$/)
    expect(all.stdout).toContain(lack)
    const asked = await runIn({ PATH: path, WEFT_REQUIRE: '1' }, ...vitest)
    expect(asked.code).toBe(1)
    expect(asked.stdout).toMatch(/\ncould not run, which is a failure: .*\n\d+ passed, [1-9]\d* failed, 0 skipped\n$/)
    expect(asked.stdout).toContain(lack)
  })
})

describe('setup beside another program that installs packages', () => {
  it('waits for the program, and then installs', async ({ skip }) => {
    const why = await namespaces()
    skip(why !== undefined, why)
    // The first call of each command finds a lock of a process that soon ends.
    const apt = [
      'here=$(dirname "$0")',
      '[ -e "$here/called-$1" ] || {',
      '  touch "$here/called-$1"',
      '  sleep 0.5 >/dev/null 2>&1 &',
      '  [ "$LC_ALL" = C.UTF-8 ] || { echo "E: Sperre /var/lib/lock konnte nicht bekommen werden." >&2; exit 100; }',
      '  echo "E: Could not get lock /var/lib/lock. It is held by process $! (apt.systemd.dai)" >&2',
      '  exit 100',
      '}',
      '[ "$1" != install ] || ln -s /bin/true "$here/clang-format"',
    ].join('\n')
    const path = pathWithout(['clang-format'], { 'apt-get': apt })
    // Setup writes /usr/sbin/policy-rc.d while it installs packages.
    const setup = asRootAfter('mount -t tmpfs none /usr/sbin', NODE, join(newClone(), 'scripts/setup.mjs'), 'lint')
    const { code, stdout, stderr } = await runIn({ PATH: path }, ...setup)
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    expect(stdout).toMatch(
      /^ {2}waiting for apt\.systemd\.dai \(process \d+\), which installs packages\n {2}ok package lists {2}[\d.]+ s\n {2}waiting for apt\.systemd\.dai \(process \d+\), .*\n {2}ok install clang-format/m,
    )
  })
})

describe('setup as root', () => {
  it('removes its policy for services if a signal interrupts it', async ({ skip }) => {
    const why = await namespaces()
    skip(why !== undefined, why)
    // apt-get interrupts setup, which is its parent process, while the policy exists.
    const apt = '[ -e /usr/sbin/policy-rc.d ] && echo policy > "$(dirname "$0")/seen"\nkill -INT $PPID\nexec sleep 1'
    const path = pathWithout(['clang-format'], { 'apt-get': apt })
    const script = 'mount -t tmpfs none /usr/sbin\n"$@" || code=$?\nls /usr/sbin\nexit $code'
    const setup = ['unshare', '--user', '--map-root-user', '--mount', 'sh', '-ec', script, 'sh']
    const { code, stdout } = await runIn({ PATH: path }, ...setup, NODE, join(newClone(), 'scripts/setup.mjs'), 'lint')
    expect(readFileSync(join(path, 'seen'), 'utf8')).toBe('policy\n')
    expect({ code, stdout }).toEqual({ code: 130, stdout: '' })
  })

  it.for(['update', 'install'])(
    'continues without programs for tests if apt-get %s fails',
    async (failing, { skip }) => {
      const why = await namespaces()
      skip(why !== undefined, why)
      const apt = `[ "$1" != ${failing} ] || { echo "E: no network" >&2; exit 100; }`
      const path = pathWithout(['fish', 'mandoc'], { 'apt-get': apt })
      const setup = asRootAfter('mount -t tmpfs none /usr/sbin', NODE, join(newClone(), 'scripts/setup.mjs'))
      const only = await runIn({ PATH: path }, ...setup, 'test')
      expect({ code: only.code, stderr: only.stderr }).toEqual({ code: 0, stderr: '' })
      expect(only.stdout).toMatch(
        /\n?E: no network\nsetup: this machine lacks [^\n]*mandoc, fish[^\n]*; the tests that use it will be skipped\n/,
      )
    },
  )

  it('ends with 1 if apt-get fails for a program that not only tests need', async ({ skip }) => {
    const why = await namespaces()
    skip(why !== undefined, why)
    const path = pathWithout(['clang-format'], { 'apt-get': 'echo "E: no network" >&2; exit 100' })
    const setup = asRootAfter('mount -t tmpfs none /usr/sbin', NODE, join(newClone(), 'scripts/setup.mjs'), 'lint')
    const { code, stderr } = await runIn({ PATH: path }, ...setup)
    expect(code).toBe(1)
    expect(stderr).toMatch(/^E: no network\nsetup: package lists failed \(exit code 100\): /)
  })
})

describe('a program that is made or fetched first', () => {
  const cache = (): string => mkdtempSync(join(folder, 'cache-'))
  const offline = { npm_config_registry: 'http://127.0.0.1:9', npm_config_fetch_retries: '0' }
  const script = (name: string): string => join(packageRoot, 'scripts', name)
  /** A source tree like that of `apt-get source`, and the output of make. It has links to itself, which a search would follow forever. */
  const apt =
    'case " $* " in *" source "*) mkdir -p kubernetes-1/vendor/github.com/modern-go/reflect2 kubernetes-1/vendor/github.com/json-iterator/go;; esac'
  const make = [
    'mkdir -p _output/local/go/src/k8s.io _output/local/bin/linux/amd64',
    'ln -s "$PWD" _output/local/go/src/k8s.io/kubernetes',
    'ln -s "$PWD" _output/local/go/src/k8s.io/again',
    'echo server > _output/local/bin/linux/amd64/kube-apiserver',
    'ln -s "$PWD/_output/local/bin/linux/amd64" _output/bin',
  ].join('\n')
  const libraries = [
    'mount -t tmpfs none /usr/share',
    'mkdir -p /usr/share/gocode/src/github.com/modern-go/reflect2 /usr/share/gocode/src/github.com/json-iterator/go',
  ].join('\n')

  it('can be kube-apiserver, from a tree with circular links', async ({ skip }) => {
    const why = await namespaces()
    skip(why !== undefined, why)
    const place = cache()
    const build = asRootAfter(libraries, NODE, script('kube-apiserver.mjs'))
    const path = pathWithout([], { 'apt-get': apt, make })
    const { code, stdout, stderr } = await runIn({ PATH: path, XDG_CACHE_HOME: place }, ...build)
    const program = join(place, 'weft/kube-apiserver-1.20')
    expect({ code, stdout }, stderr).toEqual({ code: 0, stdout: `${program}\n` })
    expect(readFileSync(program, 'utf8')).toBe('server\n')
    expect(readdirSync(join(place, 'weft'))).toEqual(['kube-apiserver-1.20'])
  })

  it('ends test:kube with 1, before any test, if it cannot be built', async ({ skip }) => {
    const why = (await namespaces()) ?? (mayOpenTun() ? undefined : 'this user may not open /dev/net/tun')
    skip(why !== undefined, why)
    const programs = NEEDS.filter(
      ({ isThere, for: kinds }) => !isThere && kinds.some((kind) => ['test', 'kube'].includes(kind)),
    )
    const absent = programs.filter(({ name }) => find(name) === undefined).map(({ name }) => [name, 'exit 1'] as const)
    const path = pathWithout([], { ...Object.fromEntries(absent), 'apt-get': apt, make: 'exit 3' })
    const place = cache()
    const command = asRootAfter(libraries, ...task('test:kube'))
    const { code, stdout, stderr } = await runIn({ PATH: path, XDG_CACHE_HOME: place }, ...command)
    expect(code).toBe(1)
    expect(stdout).not.toMatch(/passed|skipped/)
    const last = stderr.trimEnd().split('\n').at(-1)
    expect(last).toMatch(/^kube-apiserver cannot be built: .* failed: exit code 3; set WEFT_KUBE_APISERVER to the path/)
  })

  it('can be Helm, or the task fails', async () => {
    const environment = { PATH, XDG_CACHE_HOME: cache(), npm_config_cache: cache(), ...offline }
    const { code, stdout, stderr } = await runIn(environment, NODE, script('helm.mjs'))
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
    expect(stderr.trimEnd().split('\n').at(-1)).toMatch(
      /^Helm cannot be fetched: .*; set WEFT_HELM to the path of a Helm program$/,
    )
  })

  it('can be the npm packages, or the task fails', async () => {
    const fresh = newClone()
    rmSync(join(fresh, 'node_modules'), { recursive: true })
    const { code, stderr } = await runIn(
      { PATH: pathWithout(['apt-get']), npm_config_cache: cache(), ...offline },
      NODE,
      join(fresh, 'scripts/run.mjs'),
      'test',
    )
    expect(code).toBe(1)
    expect(stderr).toMatch(/setup: install the npm packages failed \(exit code 1\)/)
  })
})
