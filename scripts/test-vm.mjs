// test-vm.mjs - runs tests on Debian's kernels in QEMU: `npm run test:vm -- [--kernel VERSION] [FILE...] [-t NAME]`, or
// `npm run test:vm -- [--kernel VERSION] -- COMMAND...`.
//
// QEMU emulates the virtual machine, which needs no rights and no hardware virtualization, but is ten to twenty times
// slower than this machine. The virtual machine sees this machine's file system; its changes go to a tmpfs on top of
// that file system and are lost (vm/initramfs). So the command (vm/guest) runs the same programs on another kernel. Each
// kernel comes from the Debian package that `linux-image-amd64` depends on; the script unpacks it into build/vm and
// never installs it. Each run of tests gets a new virtual machine, so that it does not depend on earlier runs.

import { spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  watch,
  writeFileSync,
} from 'node:fs'
import { availableParallelism } from 'node:os'
import { basename, dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { flanneld } from './flanneld.mjs'
import { createProgress, runAloud } from './progress.mjs'
import { undo } from './undo.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const folder = join(root, 'build/vm')
/** The factor by which the tests' time limits are multiplied in the virtual machine, because emulation is slow. */
const PATIENCE = 10
const MEMORY_MIB = 4096
/** The time in ms without output after which a virtual machine counts as hung. vitest prints a line after each test. */
const SILENCE_MS = 20 * 60_000
/**
 * The kernel modules that mount the root file system: the virtio bus, 9p for this machine's files, and overlay for the
 * writable layer on top of them.
 */
const ROOT_MODULES = ['virtio_pci', '9pnet_virtio', '9p', 'overlay']

/** The versions of Linux on which the tests can run, each with the Debian release that contains it. */
const KERNELS = new Map([
  ['6.1', 'bookworm'],
  ['5.10', 'bullseye'],
])
/**
 * The server with Debian's packages. It does not keep the security updates of old Debian releases, so the script uses
 * only the packages of the release itself.
 */
const MIRROR = 'http://deb.debian.org/debian'
const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'

/**
 * The arguments of vitest for the tests that run on each kernel of KERNELS. These tests cover every netlink request
 * that weft sends to the kernel.
 */
const ON_EACH_KERNEL = [
  ['test/netns/netlink.test.ts'],
  ['test/netns/netlink-routes.test.ts'],
  ['test/netns/netlink-wireguard.test.ts'],
  ['test/netns/without-iproute2.test.ts', '-t', 'wireguard'],
  ['test/netns/privileges.test.ts', '-t', 'carry packets by (wireguard by the kernel|ipip)'],
]
/**
 * The arguments of vitest for the tests that run only on the first kernel of KERNELS. These tests cover the packet
 * engine on a kernel that lacks newer features, and backends whose devices some kernels lack.
 */
const ON_FIRST_KERNEL = [
  ['test/native/engines.test.ts'],
  ['test/netns/backends.test.ts'],
  ['test/netns/ipip.test.ts'],
  ['test/netns/wireguard.test.ts'],
  ['test/netns/wireguard-handshakes.test.ts', '-t', 'with kernel'],
  ['test/netns/wireguard-userspace.test.ts', '-t', 'beside the kernel'],
  ['test/netns/wireguard-mixed.test.ts', '-t', 'of kernel'],
  ['test/netns/vxlan.test.ts', '-t', 'a cluster of both (has|sends)'],
  ['test/netns/ipsec-mixed.test.ts'],
  ['test/native/kernel-way.test.ts'],
  ['test/netns/kernel-way.test.ts', '-t', '^(?!.*inside IPv4)'],
  ['test/netns/kernel-way-mixed.test.ts'],
]

function fail(message) {
  process.stderr.write(`test:vm: ${message}\n`)
  process.exit(2)
}

/** Returns the stdout of a program. Ends this script if the program fails. */
function outputOf(command, args, cwd = root) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: 'utf8' })
  if (status !== 0) fail(`${[command, ...args].join(' ')} failed: ${error?.message ?? stderr.trim()}`)
  return stdout
}

/**
 * Returns the options with which apt's programs use the packages of a Debian release, and not those of this machine's
 * release. apt keeps its lists in `work`.
 */
function aptOptions(release, work) {
  writeFileSync(join(work, 'sources'), `deb [signed-by=${KEYRING}] ${MIRROR} ${release} main\n`)
  mkdirSync(join(work, 'lists/partial'), { recursive: true })
  const settings = {
    'Dir::Etc::SourceList': join(work, 'sources'),
    'Dir::Etc::SourceParts': '-',
    'Dir::State::Lists': join(work, 'lists'),
    'Dir::Cache': join(work, 'cache'),
    'APT::Architecture': 'amd64',
    'APT::Sandbox::User': 'root', // because apt's own user may be unable to read the folder
    'Acquire::Languages': 'none',
  }
  return Object.entries(settings).flatMap(([name, value]) => ['-o', `${name}=${value}`])
}

/**
 * Returns the folder with the unpacked package of a kernel. Downloads and unpacks the package if the folder does not
 * exist.
 */
function unpackedKernel(version) {
  const unpacked = join(folder, version)
  if (existsSync(unpacked)) return unpacked
  const release = KERNELS.get(version)
  process.stdout.write(`Linux ${version} of Debian ${release} is downloaded into ${relative(process.cwd(), folder)}\n`)
  mkdirSync(folder, { recursive: true })
  const work = mkdtempSync(join(folder, 'work-'))
  const removeWork = undo(() => rmSync(work, { recursive: true, force: true }))
  const options = aptOptions(release, work)
  outputOf('apt-get', [...options, 'update', '-qq'])
  const depends = outputOf('apt-cache', [...options, 'depends', 'linux-image-amd64'])
  const name = /Depends: (linux-image-\S+)/.exec(depends)?.[1]
  if (name === undefined) fail(`${MIRROR} has no linux-image-amd64 in ${release}`)
  const part = join(work, 'part')
  mkdirSync(part)
  outputOf('apt-get', [...options, 'download', '-q', name], part)
  const [archive] = readdirSync(part)
  outputOf('dpkg', ['-x', archive, '.'], part)
  rmSync(join(part, archive))
  outputOf('depmod', ['-b', part, versionOf(part)])
  renameSync(part, unpacked)
  removeWork()
  return unpacked
}

const versionOf = (unpacked) => readdirSync(join(unpacked, 'lib/modules'))[0]

/**
 * Packs the initramfs, the first file system of the virtual machine: busybox, the modules for the root file system in
 * loading order, and the start script.
 */
function packInitramfs(unpacked, to) {
  const tree = `${to}-tree`
  for (const each of ['bin', 'modules', 'proc', 'sys', 'dev', 'lower', 'upper', 'root'])
    mkdirSync(join(tree, each), { recursive: true })
  copyFileSync(outputOf('sh', ['-c', 'command -v busybox']).trim(), join(tree, 'bin/busybox'))
  copyFileSync(join(root, 'scripts/vm/initramfs'), join(tree, 'init'))
  chmodSync(join(tree, 'init'), 0o755)
  const query = ['-d', unpacked, '-S', versionOf(unpacked), '-a', '--show-depends', ...ROOT_MODULES]
  const paths = new Set([...outputOf('modprobe', query).matchAll(/^insmod (\S+)/gm)].map(([, path]) => path))
  for (const [index, path] of [...paths].entries())
    copyFileSync(path, join(tree, 'modules', `${String(index).padStart(2, '0')}-${basename(path)}`))
  outputOf('sh', ['-c', `find . | cpio --quiet -o -H newc > "$0"`, to], tree)
  rmSync(tree, { recursive: true })
}

const quoted = (words) => words.map((word) => `'${word.replaceAll("'", `'\\''`)}'`).join(' ')

/**
 * Returns the arguments of QEMU for a virtual machine with a kernel. `exchange` is the folder that this machine shares
 * with the virtual machine.
 */
function qemuArguments(unpacked, exchange) {
  const share = (tag, path, readonly) => [
    '-virtfs',
    `local,path=${path},mount_tag=${tag},security_model=none,multidevs=remap${readonly ? ',readonly=on' : ''}`,
  ]
  return [
    ['-accel', 'tcg,thread=multi'],
    ['-cpu', 'max'],
    ['-smp', String(Math.min(availableParallelism(), 4))],
    ['-m', String(MEMORY_MIB)],
    ['-display', 'none'],
    ['-monitor', 'none'],
    ['-serial', `file:${join(exchange, 'console')}`],
    ['-nic', 'none'],
    ['-no-reboot'],
    ['-kernel', join(unpacked, 'boot', `vmlinuz-${versionOf(unpacked)}`)],
    ['-initrd', join(exchange, 'initrd')],
    // On a busy machine the emulated timer may be late, and without no_timer_check the kernel then panics while it boots.
    ['-append', 'console=ttyS0 quiet panic=-1 random.trust_cpu=on no_timer_check'],
    share('tree', '/', true),
    share('modules', join(unpacked, 'lib/modules'), true),
    share('exchange', exchange, false),
  ].flat()
}

/**
 * Runs a command in a new virtual machine with the kernel `version`, and shows its output. Resolves with the output, the
 * exit code, the kernel's full version and the duration.
 */
async function runThere(version, command, exchange) {
  const unpacked = unpackedKernel(version)
  const at = (name) => join(exchange, name)
  mkdirSync(exchange, { recursive: true })
  packInitramfs(unpacked, at('initrd'))
  copyFileSync(join(root, 'scripts/vm/guest'), at('guest'))
  const env = {
    HOME: '/root',
    PATH: `${process.env.PATH}:/usr/sbin:/sbin`,
    TMPDIR: '/run/tmp', // not the tree's /tmp, because the labs of other processes there would look like leftovers
    NO_COLOR: '1',
    ...Object.fromEntries(Object.entries(process.env).filter(([name]) => name.startsWith('WEFT_'))),
    // The npm script sets WEFT_PATIENCE (the factor for time limits) for this machine. Emulation needs a larger factor.
    WEFT_PATIENCE: Math.max(PATIENCE, Number(process.env.WEFT_PATIENCE ?? 0)),
  }
  const set = Object.entries(env).map(([name, value]) => `${name}=${value}`)
  writeFileSync(at('command'), `cd ${quoted([root])} && exec env ${quoted([...set, ...command])}\n`)
  writeFileSync(at('output'), '')

  const began = performance.now()
  // With --pdeathsig the kernel ends QEMU if this script is killed.
  const qemu = spawn('setpriv', ['--pdeathsig', 'KILL', 'qemu-system-x86_64', ...qemuArguments(unpacked, exchange)])
  let said = ''
  qemu.stderr.setEncoding('utf8').on('data', (text) => (said += text))
  const kill = () => qemu.kill('SIGKILL')
  const ended = undo(kill)
  const limit = setTimeout(() => {
    said += `it printed nothing for ${SILENCE_MS / 60_000} minutes`
    kill()
  }, SILENCE_MS)
  const watcher = watch(at('output'), () => limit.refresh())
  const ends = (child) => new Promise((resolve) => child.on('error', resolve).on('close', resolve))
  const shown = runAloud('tail', ['-f', '-n', '+1', `--pid=${qemu.pid}`, at('output')])
  await ends(qemu)
  clearTimeout(limit)
  watcher.close()
  ended()
  await shown
  const read = (name) => (existsSync(at(name)) ? readFileSync(at(name), 'utf8').trim() : undefined)
  const code = read('code')
  if (code === undefined)
    process.stderr.write(
      `test:vm: the machine ended before the command: ${said}\n${read('console')?.split('\n').slice(-20).join('\n')}\n`,
    )
  return {
    code: code === undefined ? undefined : Number(code),
    output: read('output') ?? '',
    kernel: read('kernel') ?? versionOf(unpacked),
    seconds: Math.round((performance.now() - began) / 1000),
  }
}

/**
 * Returns the numbers of passed, failed and skipped tests from the last line of vitest. A run without that line, or
 * with an exit code other than 0, counts as failed.
 */
function countsOf({ code, output }) {
  const last = [...output.matchAll(/^(\d+) passed, (\d+) failed, (\d+) skipped$/gm)].at(-1)
  const [passed, failed, skipped] = last?.slice(1).map(Number) ?? [0, 0, 0]
  return { passed, failed: code === 0 && last ? failed : Math.max(failed, 1), skipped }
}

const sentence = ({ passed, failed, skipped }) => `${passed} passed, ${failed} failed, ${skipped} skipped`

/**
 * Runs the command of the user in a virtual machine with the kernel `version`, and exits with the exit code of the
 * command.
 */
async function runCommand(version, command) {
  const { code, kernel, seconds } = await runThere(version, command, join(runs, 'command'))
  process.stdout.write(`ended with ${code ?? 'the machine'} on Linux ${kernel}, emulated, after ${seconds} s\n`)
  process.exitCode = code ?? 1
}

/** Runs tests, each group `{ version, words }` in a new virtual machine. `words` are the arguments of vitest. */
async function runTests(groups) {
  const files = groups.flatMap(({ words }) => words).filter((word) => word.endsWith('.test.ts'))
  const missing = files.find((file) => !existsSync(join(root, file)))
  if (missing !== undefined) fail(`there is no ${missing}`)
  // Print each test when it ends. A test file takes minutes in the virtual machine, so the output then shows which test
  // hangs.
  const reporters = ['--reporter=verbose', '--reporter=./test/support/summary-reporter.ts']
  const vitest = [process.execPath, join(root, 'node_modules/vitest/vitest.mjs'), 'run', ...reporters]
  // Build flanneld on this machine, because the virtual machine has no network.
  if (files.includes('test/netns/ipsec-mixed.test.ts')) await flanneld()
  const lines = []
  const total = { passed: 0, failed: 0, skipped: 0 }
  const progress = createProgress('test:vm', { total: groups.length })
  for (const [index, { version, words }] of groups.entries()) {
    progress.now(`${words.join(' ')} on Linux ${version}`)
    process.stdout.write(`\n${words.join(' ')} on Linux ${version}\n`)
    const run = await runThere(version, [...vitest, ...words], join(runs, String(index + 1)))
    const counts = countsOf(run)
    for (const name of Object.keys(total)) total[name] += counts[name]
    const line = `${words.join(' ')} on Linux ${run.kernel}, emulated: ${sentence(counts)}, ${run.seconds} s`
    process.stdout.write(`${line}\n`)
    lines.push(line)
  }
  progress.end()
  process.stdout.write(`\n${lines.join('\n')}\n${sentence(total)}\n`)
  process.exitCode = total.failed === 0 ? 0 : 1
}

const runs = join(folder, 'runs')
rmSync(runs, { recursive: true, force: true })

const args = process.argv.slice(2)
const wanted = args[0] === '--kernel' ? args.splice(0, 2)[1] : undefined
if (wanted !== undefined && !KERNELS.has(wanted))
  fail(`there is no kernel ${wanted}; the kernels are ${[...KERNELS.keys()].join(' and ')}`)
const [first] = KERNELS.keys()
if (args[0] === '--') {
  await runCommand(wanted ?? first, args.slice(1))
} else if (args.length > 0) {
  await runTests([{ version: wanted ?? first, words: args }])
} else {
  const ofKernel = (version) => [...ON_EACH_KERNEL, ...(version === first ? ON_FIRST_KERNEL : [])]
  const versions = [...KERNELS.keys()].filter((version) => version === (wanted ?? version))
  await runTests(versions.flatMap((version) => ofKernel(version).map((words) => ({ version, words }))))
}
