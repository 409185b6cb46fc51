// forecast.mjs - the first line of `npm test`: its duration on this machine, the tests that it will skip, and how to enable them.
//
// The figures of test/selection.json are CPU seconds of one machine. A fixed piece of work shows how much slower this machine is.

import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { availableParallelism, loadavg } from 'node:os'
import { join } from 'node:path'
import { find, HOSTS, missingFor, sayLack, whyNoHosts } from './machine.mjs'

/** The result of `calibrate` on the machine of the figures in test/selection.json, with idle cores. */
const REFERENCE_SECONDS = 0.04
/** The duration of `npm test` on the reference machine, divided by its CPU seconds per core. It is above 1 because tests also wait. */
const WAITING = 1.15
/** CPU seconds of a complete set-up on the reference machine: Debian packages, npm packages, addon, TypeScript. */
const SETUP_SECONDS = 70

/** Devices that some tests need and some kernels lack, with the arguments of `ip link add`. */
const DEVICES = {
  vxlan: 'probe type vxlan id 1 dstport 8472',
  wireguard: 'probe type wireguard',
  ipip: 'probe type ipip remote 192.0.2.1 local 192.0.2.2',
}

/** Returns the CPU seconds of a fixed piece of work: the minimum of five rounds, so that a short disturbance does not count. */
function calibrate() {
  const rounds = Array.from({ length: 5 }, () => {
    const before = process.cpuUsage()
    Array.from({ length: 100_000 }, (_, index) => String((index * 7_919) % 100_003)).sort()
    const { user, system } = process.cpuUsage(before)
    return (user + system) / 1e6
  })
  return Math.min(...rounds)
}

/** @param {string} path */
function read(path) {
  try {
    return readFileSync(path, 'utf8').trim()
  } catch {
    return ''
  }
}

/** The cores that this process may use: a cgroup may allow less than the machine has (cgroups(7): cpu.max, or cpu.cfs_quota_us of version 1). */
export function usableCores() {
  const own = read('/proc/self/cgroup').split('\n')
  /** @param {RegExp} pattern */
  const folder = (pattern) => own.find((line) => pattern.test(line))?.split(':')[2] ?? '/'
  const [quota = '', period] = read(join('/sys/fs/cgroup', folder(/^0::/), 'cpu.max')).split(' ')
  const old = join('/sys/fs/cgroup/cpu', folder(/:([^:]*,)?cpu(,[^:]*)?:/))
  const limits = [
    Number(quota) / Number(period),
    Number(read(join(old, 'cpu.cfs_quota_us'))) / Number(read(join(old, 'cpu.cfs_period_us'))),
  ]
  return Math.min(availableParallelism(), ...limits.filter((limit) => limit > 0))
}

/** Lists the devices that this kernel cannot make. Only root with the right to make namespaces can find out. */
const missingDevices = () =>
  Object.entries(DEVICES).flatMap(([name, words]) => {
    const { status } = spawnSync('unshare', ['--net', 'ip', 'link', 'add', ...words.split(' ')])
    return status === 0 ? [] : [`this kernel has no ${name} device`]
  })

/** @param {number} seconds */
const duration = (seconds) =>
  seconds < 90 ? `${Math.max(5, 5 * Math.round(seconds / 5))} seconds` : `${Math.ceil(seconds / 60)} minutes`

/**
 * @typedef {object} Machine
 * @property {number} slowness The duration of a fixed piece of work, divided by its duration on the reference machine.
 * @property {number} cores The number of cores that this process may use; 0.25 in a cgroup with a quarter of a core.
 * @property {number} load The number of processes that already compete for a core.
 * @property {boolean} isSetUp
 * @property {boolean} hasHosts Whether tests can make network namespaces and TUN devices.
 * @property {readonly string[]} lacks The missing prerequisites, each with its remedy if there is one.
 */

/** @typedef {{ file: string, cpu: number, part?: number, hosts?: boolean }} Cost One line of test/selection.json. */

/**
 * Returns the line for the test files that will run.
 * @param {readonly Cost[]} costs
 * @param {Machine} machine
 */
export function forecastLine(costs, { slowness, cores, load, isSetUp, hasHosts, lacks }) {
  const running = costs.filter(({ hosts }) => hasHosts || !hosts)
  const seconds = running.reduce((sum, { cpu, part }) => sum + (part ?? cpu), 0) * slowness * WAITING
  // With two other busy processes, this process gets half of two cores.
  const share = cores / (1 + load / Math.max(1, cores))
  const setup = isSetUp ? '' : `, with about ${duration((SETUP_SECONDS * slowness) / share)} of set-up before`
  const skips = lacks.length === 0 ? 'Nothing will be skipped.' : `Tests will be skipped: ${lacks.join('; ')}.`
  return `This takes about ${duration(seconds / share)} on this machine${setup}. ${skips}`
}

/**
 * Returns the line for `npm test`, or with `isWhole` for `npm run test:whole`.
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
  return forecastLine(costs, {
    slowness: calibrate() / REFERENCE_SECONDS,
    cores: usableCores(),
    load: loadavg()[0] ?? 0,
    isSetUp,
    hasHosts: noHosts === undefined,
    lacks: [
      ...(missing.length > 0 ? [sayLack(missing)] : []),
      ...(noHosts === undefined ? missingDevices() : [`${HOSTS} are missing: ${noHosts}`]),
    ],
  })
}
