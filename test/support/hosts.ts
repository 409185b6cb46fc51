// hosts.ts - queries that tests make to a lab's hosts and their daemons.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from 'vitest'
import { output, type Finished } from '../../lab/command.ts'
import { EVENT_MS, packageRoot, type Daemon, type Host } from '../../lab/lab.ts'
import { STATUS_SCHEMA, type Status } from '../../src/report/status.ts'
import type { FindingName } from '../../src/tool/doctor/findings.ts'
import { fetchReport } from '../../src/tool/weft/daemon-client.ts'

/** Returns the subnet of a host, such as `10.5.7.0/24`. */
export const subnetOf = (host: Host): string => (host.subnetEnv()['FLANNEL_SUBNET'] ?? '').replace(/\.1\//, '.0/')

/** Returns the address of its device. */
export const tunAddress = (host: Host): string => subnetOf(host).split('/')[0]!

const said = (what: string, subnet: string): RegExp =>
  new RegExp(`Subnet ${what}: ${subnet.replaceAll('.', String.raw`\.`)}$`)

/** The log line for a new peer. */
export const added = (peer: Host | string): RegExp => said('added', typeof peer === 'string' ? peer : subnetOf(peer))

/** The log line for a removed peer. */
export const removed = (subnet: string): RegExp => said('removed', subnet)

/** Returns the CPU time of a daemon's threads by name in seconds, in user and kernel mode (proc_pid_stat(5): utime, stime). */
export function cpuOfThreads({
  process: { pid },
}: Daemon): { name: string; isMain: boolean; user: number; system: number }[] {
  return readdirSync(`/proc/${pid}/task`).map((id) => {
    const stat = readFileSync(`/proc/${pid}/task/${id}/stat`, 'utf8')
    const [begin, end] = [stat.indexOf('('), stat.lastIndexOf(')')]
    const fields = stat.slice(end).split(' ')
    const [user, system] = [Number(fields[12]) / 100, Number(fields[13]) / 100]
    return { name: stat.slice(begin + 1, end), isMain: Number(id) === pid, user, system }
  })
}

/** Returns the CPU time of a daemon's main thread, which does everything except forwarding. */
export function cpuSeconds(daemon: Daemon): number {
  const { user, system } = cpuOfThreads(daemon).find(({ isMain }) => isMain)!
  return user + system
}

/** Pings `times` times in sequence; rejects if a ping is not answered within a minute. Unlike with `reach` no ping may be lost. */
export async function answers(namespace: string, address: string, times = 3): Promise<void> {
  // Each ping is a process of its own, because ping gives the last one of several only the interval to be answered (iputils,
  // ping_common.c).
  for (let number = 0; number < times; number++)
    await output(['ip', 'netns', 'exec', namespace, 'ping', '-n', '-c', '1', '-W', String(EVENT_MS / 1000), address])
}

/** Returns the command that runs weft on a host. */
export const weftOf = (host: Host, words: readonly string[]): string[] => [
  process.execPath,
  join(packageRoot, 'bin/weft'),
  ...words,
  '--status-socket',
  host.statusSocket,
]
/** Runs weft on a host with the command prefix `before`. */
export const weft = (host: Host, words: readonly string[], before: readonly string[] = []): Promise<Finished> =>
  host.run([...before, ...weftOf(host, words)])
/**
 * Requests what `weft status --json` prints directly from the daemon. Waits longer than `weft status`, because the
 * machine may be slow.
 */
export const statusOf = (host: Host): Promise<Status> =>
  fetchReport(host.statusSocket, '/status.json', STATUS_SCHEMA, new AbortController().signal, EVENT_MS)

interface Check {
  readonly check: string
  readonly state: string
  readonly findings: readonly { readonly name: FindingName; readonly detail: string }[]
}
/** Returns the doctor's findings without duplicates, and its exit code. */
export async function doctor(host: Host, before: readonly string[] = []) {
  const { code, stdout, stderr } = await weft(host, ['doctor', '--json', '--subnet-file', host.subnetFile], before)
  expect(stderr).toBe('')
  const checks = JSON.parse(stdout) as Check[]
  const findings = checks.flatMap((each) => each.findings)
  return {
    code,
    checks,
    names: [...new Set(findings.map(({ name }) => name))],
    details: findings.map(({ detail }) => detail),
  }
}

/** Returns the environment in which weftd finds a kernel without a device type; `modules` are loaded before weftd too. */
export const withoutDeviceType = (type: string, ...modules: readonly string[]): Readonly<Record<string, string>> => ({
  NODE_OPTIONS: ['no-device-type', ...modules]
    .map((name) => `--import ${join(packageRoot, `dist/test/support/${name}.js`)}`)
    .join(' '),
  WITHOUT_DEVICE_TYPES: type,
})
