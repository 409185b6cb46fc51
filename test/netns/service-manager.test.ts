// service-manager.test.ts - what a service manager hears of a daemon, and that a thread that hangs does not go unseen.

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { freezeThread, startServiceManager, threadNames, type ServiceManager } from '../support/service-manager.ts'

const CONFIG = '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'
const WATCHDOG_MS = 600
const HEALTH = 'http://127.0.0.1:8471/livez'
/** Five looks, two seconds apart, and the one before them. */
const NOTICED_MS = 20_000

let lab: Lab
let host: Host
let etcd: Etcd | undefined
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  host = lab.hosts[0]!
})
afterEach(async () => {
  await lab.close()
  await etcd?.close()
  etcd = undefined
})

function leaseDirectory(): string[] {
  const folder = join(lab.folder, 'leases')
  mkdirSync(folder)
  writeFileSync(join(folder, 'config'), CONFIG)
  return ['--lease-dir', folder]
}

const start = (socket: string, args: readonly string[]): Daemon =>
  host.startDaemon({
    args: ['--healthz-ip', '127.0.0.1', '--healthz-port', '8471', ...args],
    env: { NOTIFY_SOCKET: socket, WATCHDOG_USEC: String(WATCHDOG_MS * 1000) },
  })

/** `200 weftd is alive` or what else /livez answers in its first line. */
async function livez(): Promise<string> {
  const ask = `const answer = await fetch('${HEALTH}'); console.log(answer.status, (await answer.text()).split('\\n')[0])`
  return (await host.output([process.execPath, '--input-type=module', '-e', ask])).trim()
}

/** The median of the times between the next nine watchdog notices, as a part of what the manager allows. */
async function watchdogRate(manager: ServiceManager): Promise<number> {
  const times: number[] = []
  while (times.length < 10) times.push((await manager.nextNotice(/^WATCHDOG=1$/)).ms)
  const gaps = times.slice(1).map((time, at) => time - times[at]!)
  return gaps.toSorted((x, y) => x - y)[4]! / WATCHDOG_MS
}

/** The environment of each child of a process. */
function childEnvironments(pid: number): string[] {
  const children = readdirSync('/proc').filter((entry) => {
    try {
      return new RegExp(`^PPid:\t${pid}$`, 'm').test(readFileSync(`/proc/${entry}/status`, 'utf8'))
    } catch {
      return false
    }
  })
  return children.map((child) => readFileSync(`/proc/${child}/environ`, 'utf8'))
}

describe('a service manager', () => {
  it.each(['path', 'abstract'])('is told everything by a socket of the kind: %s', async (kind) => {
    const socket = kind === 'path' ? join(lab.folder, 'notify') : `@${lab.id}`
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    const manager = await startServiceManager(host, socket)
    const daemon = start(socket, ['--etcd-endpoints', etcd.endpoint])

    // Not ready without a configuration; subnet.env is there at the moment it is.
    await manager.notice(/^STATUS=waiting for the network configuration in the etcd store$/)
    const written: boolean[] = []
    void manager.notice(/^READY=1$/).then(() => written.push(existsSync(host.subnetFile)))
    expect(existsSync(host.subnetFile)).toBe(false)
    await etcd.ctl('put', '/coreos.com/network/config', CONFIG)
    await manager.notice(/^READY=1$/)
    expect(written).toEqual([true])
    expect(daemon.lines.some((line) => line.includes('Running backend.'))).toBe(true)
    await manager.notice(/^STATUS=subnet 10\.5\.\d+\.0\/24, 0 peers, etcd store reachable$/)

    // No command that the daemon runs can speak in its name.
    const environments = childEnvironments(daemon.process.pid!)
    expect(environments.length).toBeGreaterThan(0)
    expect(environments.filter((text) => /NOTIFY_SOCKET|WATCHDOG/.test(text))).toEqual([])

    expect(Math.abs((await watchdogRate(manager)) - 0.5)).toBeLessThan(0.2)

    // A dead store is no reason for a restart.
    await etcd.kill()
    await manager.notice(/^STATUS=subnet .*, 0 peers, etcd store unreachable$/)
    expect(Math.abs((await watchdogRate(manager)) - 0.5)).toBeLessThan(0.2)

    expect(await daemon.stop()).toBe(0)
    const said = manager.notices.flatMap(({ lines }) => lines)
    expect(said.filter((line) => line === 'READY=1')).toHaveLength(1)
    await manager.notice(/^STOPPING=1$/)
    expect(new Set(manager.notices.map(({ pid }) => pid))).toEqual(new Set([daemon.process.pid]))
    const statuses = said.filter((line) => line.startsWith('STATUS='))
    expect(statuses.filter((line, at) => line === statuses[at - 1])).toEqual([])
  })

  it('that is not there costs one line of the log', async () => {
    const daemon = start(join(lab.folder, 'nobody'), leaseDirectory())
    await daemon.line(/flannel is ready/)
    await new Promise((resolve) => setTimeout(resolve, 4 * WATCHDOG_MS))
    expect(daemon.lines.filter((line) => line.includes('Cannot tell the service manager'))).toHaveLength(1)
    expect(await livez()).toBe('200 weftd is alive')
    expect(await daemon.stop()).toBe(0)
  })
})

describe('a thread that hangs', () => {
  it.each([
    ['native', 1, 'weft-loop0'],
    ['native', 2, 'weft-tun1'],
    ['naive', 1, 'weft-loop0'],
  ])(
    '%s engine, %i workers, %s: /livez names it, the watchdog is not served, and both mend with it',
    async (engine, workers, thread) => {
      const socket = join(lab.folder, 'notify')
      const manager = await startServiceManager(host, socket)
      const args = leaseDirectory()
      const daemon = start(socket, [...args, '--engine', engine, '--workers', String(workers)])
      const peer = lab.hosts[1]!.startDaemon({ args })
      await Promise.all([daemon.line(/flannel is ready/), peer.line(/flannel is ready/)])
      const address = (lab.hosts[1]!.subnetEnv()['FLANNEL_SUBNET'] ?? '').replace(/\.1\/\d+$/, '.0')
      await reach(host.namespace, address)
      expect(await livez()).toBe('200 weftd is alive')
      const names = [...threadNames(daemon.process.pid!).values()].filter((name) => name.startsWith('weft-')).toSorted()
      const numbers = Array.from({ length: workers }, (_, number) => number)
      expect(names).toEqual(
        [
          ...numbers.map((number) => `weft-loop${number}`),
          ...(engine === 'naive' ? [] : numbers.map((number) => `weft-tun${number}`)),
        ].toSorted(),
      )

      const thaw = await freezeThread(host, daemon.process.pid!, thread)
      await daemon.line(new RegExp(`The thread ${thread} hangs`), NOTICED_MS)
      expect(await livez()).toMatch(new RegExp(`^503 the thread ${thread} has hung for 1\\d s$`))
      await manager.notice(new RegExp(`^STATUS=subnet .* the thread ${thread} hangs`))
      const served = manager.notices.length
      await new Promise((resolve) => setTimeout(resolve, 3 * WATCHDOG_MS))
      expect(manager.notices.slice(served).flatMap(({ lines }) => lines)).not.toContain('WATCHDOG=1')

      await thaw()
      await daemon.line(new RegExp(`The thread ${thread} goes on`))
      await manager.nextNotice(/^WATCHDOG=1$/)
      expect(await livez()).toBe('200 weftd is alive')
      await reach(host.namespace, address)
      expect(await daemon.stop()).toBe(0)
    },
    60_000,
  )

  it('does not keep the daemon from ending, with a line that says so', async () => {
    const daemon = start(join(lab.folder, 'nobody'), leaseDirectory())
    await daemon.line(/flannel is ready/)
    const thaw = await freezeThread(host, daemon.process.pid!, 'weft-loop0')
    const ending = daemon.stop()
    await daemon.line(/Stopping took longer than 5 s; the process is killed/, 10_000)
    await thaw() // a traced thread that was killed is there until its tracer goes
    await ending
    expect(daemon.process.signalCode).toBe('SIGKILL')
  }, 30_000)
})
