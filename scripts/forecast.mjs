// forecast.mjs - writes the first line of `npm test`: how long the tests will take on this machine, which tests will be
// skipped, and how to enable the skipped tests.
//
// test/selection.json has the CPU seconds of each test file on a reference machine. The script times a fixed
// computation to find how much slower this machine is than the reference machine.

import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { availableParallelism, loadavg } from 'node:os'
import { join } from 'node:path'
import { find, HOSTS, missingFor, sayLack, whyNoHosts } from './machine.mjs'

/**
 * The seconds that `calibrate` takes on an idle core of the reference machine, on which the figures of
 * test/selection.json were measured.
 */
const REFERENCE_SECONDS = 0.04
/**
 * The elapsed time of `npm test` on the reference machine, divided by its CPU seconds per core. The ratio is above 1
 * because tests also wait.
 */
const WAITING = 1.15
/**
 * The CPU seconds that a complete setup takes on the reference machine: setup installs Debian and npm packages, and
 * compiles the addon and TypeScript.
 */
const SETUP_SECONDS = 70

/** Network devices that some tests need and that not every kernel can make, with the arguments of `ip link add`. */
const DEVICES = {
  vxlan: 'probe type vxlan id 1 dstport 8472',
  wireguard: 'probe type wireguard',
  ipip: 'probe type ipip remote 192.0.2.1 local 192.0.2.2',
}

/**
 * Runs a fixed computation five times. Returns the CPU seconds of the fastest run, so that a short disturbance does not
 * matter, and the mean number of other threads that could run after each of the five runs (proc(5), fourth field of
 * /proc/loadavg).
 */
function calibrate() {
  const rounds = Array.from({ length: 5 }, () => {
    const before = process.cpuUsage()
    Array.from({ length: 100_000 }, (_, index) => String((index * 7_919) % 100_003)).sort()
    const { user, system } = process.cpuUsage(before)
    const running = Number.parseInt(read('/proc/loadavg').split(' ')[3] ?? '', 10)
    return { seconds: (user + system) / 1e6, others: Math.max(0, (running || 1) - 1) }
  })
  return {
    seconds: Math.min(...rounds.map(({ seconds }) => seconds)),
    others: rounds.reduce((sum, { others }) => sum + others, 0) / rounds.length,
  }
}

/**
 * Returns the trimmed text of a file; an empty text if the file cannot be read.
 * @param {string} path
 */
function read(path) {
  try {
    return readFileSync(path, 'utf8').trim()
  } catch {
    return ''
  }
}

/**
 * Returns the number of cores that this process may use. The cgroup of the process may limit the process to fewer cores
 * than the machine has (cgroups(7): the file cpu.max, or cpu.cfs_quota_us in version 1).
 */
export function usableCores() {
  const own = read('/proc/self/cgroup').split('\n')
  /**
   * Returns the path of this process's cgroup on the line of /proc/self/cgroup that matches `pattern`.
   * @param {RegExp} pattern
   */
  const folder = (pattern) => own.find((line) => pattern.test(line))?.split(':')[2] ?? '/'
  const [quota = '', period] = read(join('/sys/fs/cgroup', folder(/^0::/), 'cpu.max')).split(' ')
  const old = join('/sys/fs/cgroup/cpu', folder(/:([^:]*,)?cpu(,[^:]*)?:/))
  const limits = [
    Number(quota) / Number(period),
    Number(read(join(old, 'cpu.cfs_quota_us'))) / Number(read(join(old, 'cpu.cfs_period_us'))),
  ]
  return Math.min(availableParallelism(), ...limits.filter((limit) => limit > 0))
}

/**
 * Lists the entries of DEVICES that this kernel cannot make. The check needs root and the right to make network
 * namespaces.
 */
const missingDevices = () =>
  Object.entries(DEVICES).flatMap(([name, words]) => {
    const { status } = spawnSync('unshare', ['--net', 'ip', 'link', 'add', ...words.split(' ')])
    return status === 0 ? [] : [`this kernel has no ${name} device`]
  })

/**
 * Formats a duration for people, rounded to a multiple of 5 seconds, or rounded up to whole minutes.
 * @param {number} seconds
 */
const duration = (seconds) =>
  seconds < 90 ? `${Math.max(5, 5 * Math.round(seconds / 5))} seconds` : `${Math.ceil(seconds / 60)} minutes`

/**
 * @typedef {object} Machine
 * @property {number} slowness The duration of a fixed computation on this machine, divided by its duration on the
 * reference machine.
 * @property {number} cores The number of cores that this process may use, for example 0.25 in a cgroup with a quarter
 * of a core.
 * @property {number} load The number of other processes that compete for the cores of this machine.
 * @property {boolean} isSetUp
 * @property {boolean} hasHosts Whether tests can make network namespaces and TUN devices.
 * @property {readonly string[]} lacks The missing prerequisites, each with its remedy if there is one.
 */

/**
 * @typedef {{ file: string, cpu: number, part?: number, hosts?: boolean }} Cost One line of test/selection.json, with
 * the CPU seconds of a test file.
 */

/**
 * Returns the text that announces the expected duration of the test files `costs` and the tests that will be skipped.
 * @param {readonly Cost[]} costs
 * @param {Machine} machine
 */
export function forecastLine(costs, { slowness, cores, load, isSetUp, hasHosts, lacks }) {
  const running = costs.filter(({ hosts }) => hasHosts || !hosts)
  const seconds = running.reduce((sum, { cpu, part }) => sum + (part ?? cpu), 0) * slowness * WAITING
  // For example, on a machine with two cores and two other busy processes, this process gets half of each core: one
  // core in total.
  const share = cores / (1 + load / Math.max(1, cores))
  const setup = isSetUp ? '' : `, with about ${duration((SETUP_SECONDS * slowness) / share)} of set-up before`
  const skips = lacks.length === 0 ? 'Nothing will be skipped.' : `Tests will be skipped: ${lacks.join('; ')}.`
  return `This takes about ${duration(seconds / share)} on this machine${setup}. ${skips}`
}

/**
 * Returns the first line of output of `npm test`, or of `npm run test:whole` if `isWhole` is true.
 * @param {string} root The project's folder.
 * @param {boolean} isWhole
 */
export function forecast(root, isWhole) {
  /** @type {(Cost & { in: string })[]} */
  const table = JSON.parse(readFileSync(join(root, 'test/selection.json'), 'utf8'))
  const costs = isWhole
    ? table.map(({ file, cpu, hosts }) => ({ file, cpu, hosts }))
    : table.filter((entry) => entry.in === 'test')
  const isSetUp = existsSync(join(root, 'dist/.built'))
  const mayInstall = process.getuid?.() === 0 && find('apt-get') !== undefined
  const missing = missingFor(['test'], false).filter((need) => !mayInstall || need.package === undefined)
  const noHosts = whyNoHosts()
  const { seconds, others } = calibrate()
  return forecastLine(costs, {
    slowness: seconds / REFERENCE_SECONDS,
    cores: usableCores(),
    // The load of the last minute includes the set-up that has just ended.
    load: Math.min(others, loadavg()[0] ?? 0),
    isSetUp,
    hasHosts: noHosts === undefined,
    lacks: [
      ...(missing.length > 0 ? [sayLack(missing)] : []),
      ...(noHosts === undefined ? missingDevices() : [`${HOSTS} are missing: ${noHosts}`]),
    ],
  })
}
