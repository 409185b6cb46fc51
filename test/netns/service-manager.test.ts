// service-manager.test.ts - what a service manager hears of a daemon, and that a thread that hangs does not go unseen.

import { existsSync, mkdirSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { tunAddress } from '../support/hosts.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'
import { freezeThread, startServiceManager, threadNames, type ServiceManager } from '../support/service-manager.ts'

needs(HOSTS, ...ETCD, 'ping', 'python3')

const CONFIG = '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'
const WATCHDOG_MS = 600
const HEALTH = 'http://127.0.0.1:8471/livez'

let lab: Lab
let host: Host
let etcd: Etcd | undefined
beforeEach(async () => {
  lab = await createLab({ hosts: 3 })
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

const start = (socket: string, args: readonly string[], on = host): Daemon =>
  on.startDaemon({
    args: ['--healthz-ip', '127.0.0.1', '--healthz-port', '8471', ...args],
    env: { NOTIFY_SOCKET: socket, WATCHDOG_USEC: String(WATCHDOG_MS * 1000) },
  })

/** `200 weftd is alive` or what else /livez answers in its first line. */
async function livez(on = host): Promise<string> {
  const ask = `const answer = await fetch('${HEALTH}'); console.log(answer.status, (await answer.text()).split('\\n')[0])`
  return (await on.output([process.execPath, '--input-type=module', '-e', ask])).trim()
}

/** Several more watchdog notices; how far apart they are is the notifier's and the daemon's unit tests' to say. */
async function isServed(manager: ServiceManager): Promise<void> {
  for (let times = 0; times < 4; times++) await manager.nextNotice(/^WATCHDOG=1$/)
}

/** The environment of each child of a process that has begun its own program. */
function childEnvironments(pid: number): string[] {
  const program = readlinkSync(`/proc/${pid}/exe`)
  return readdirSync('/proc').flatMap((entry) => {
    try {
      if (!new RegExp(`^PPid:\t${pid}$`, 'm').test(readFileSync(`/proc/${entry}/status`, 'utf8'))) return []
      if (readlinkSync(`/proc/${entry}/exe`) === program) return []
      return [readFileSync(`/proc/${entry}/environ`, 'utf8')]
    } catch {
      return [] // no process, or one that has just ended
    }
  })
}

describe('a service manager', () => {
  it.each(['path', 'abstract'])('is told everything by a socket of the kind: %s', async (kind) => {
    const socket = kind === 'path' ? join(lab.folder, 'notify') : `@${lab.id}`
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    const manager = await startServiceManager(host, socket)
    const daemon = start(socket, ['--etcd-endpoints', etcd.endpoint])

    // Not ready without a configuration; subnet.env is there at the moment it is.
    await manager.notice(/^STATUS=starting; waiting for the network configuration in the etcd store$/)
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

    await isServed(manager)

    // A dead store is no reason for a restart.
    await etcd.kill()
    await manager.notice(/^STATUS=impaired by its store: .*; subnet .*, 0 peers, etcd store unreachable$/)
    await isServed(manager)

    expect(await daemon.stop()).toBe(0)
    await manager.notice(/^STOPPING=1$/)
    const said = manager.notices.flatMap(({ lines }) => lines)
    expect(said.filter((line) => line === 'READY=1')).toHaveLength(1)
    expect(new Set(manager.notices.map(({ pid }) => pid))).toEqual(new Set([daemon.process.pid]))
    const statuses = said.filter((line) => line.startsWith('STATUS='))
    expect(statuses.filter((line, at) => line === statuses[at - 1])).toEqual([])
  })

  it('keeps a daemon that was taken over, which goes on when the one that took over is killed', async () => {
    const socket = join(lab.folder, 'notify')
    const manager = await startServiceManager(host, socket)
    const args = leaseDirectory()
    const served = start(socket, args)
    await manager.notice(/^READY=1$/)
    // By hand, of no unit: nobody starts it again.
    const byHand = host.startDaemon({ args: [...args, '--status-socket', `${host.statusSocket}.other`] })
    await byHand.line(/flannel is ready/)
    await served.line(/Waiting to be stopped/)
    await manager.notice(/^STATUS=.*waiting to be stopped$/)
    byHand.process.kill('SIGKILL')
    await served.line(/and nobody forwards: this one goes on/)
    await served.line(/Forwarding to 0 peers as last known/)
    await manager.notice(/^STATUS=subnet .*, 0 peers, directory store reachable$/)
    expect(manager.notices.flatMap(({ lines }) => lines)).not.toContain('STOPPING=1')
    expect(await served.stop()).toBe(0)
    await manager.notice(/^STOPPING=1$/)
  })

  it('that is not there costs one line of the log', async () => {
    const socket = join(lab.folder, 'nobody')
    const daemon = start(socket, leaseDirectory())
    // Three times it could not say by then what it waits for.
    await daemon.line(/flannel is ready/)
    expect(await livez()).toBe('200 weftd is alive')
    // One that comes later is told.
    const manager = await startServiceManager(host, socket)
    await manager.notice(/^READY=1$/)
    await isServed(manager)
    expect(daemon.lines.filter((line) => line.includes('Cannot notify the service manager'))).toHaveLength(1)
    expect(await daemon.stop()).toBe(0)
  })
})

describe('a thread that hangs', () => {
  it('of any engine: /livez names it, the watchdog is not served, and both mend with it', async () => {
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    await etcd.ctl('put', '/coreos.com/network/config', CONFIG)
    const { endpoint } = etcd
    /** One node for each case, side by side, since a thread hangs for ten seconds before it counts as hung. */
    const cases = [
      { engine: 'native', workers: 1, thread: 'weft-loop0' },
      { engine: 'native', workers: 2, thread: 'weft-loop1' },
    ]
    const nodes = await Promise.all(
      cases.map(async ({ engine, workers, thread }, index) => {
        const on = lab.hosts[index]!
        const socket = join(lab.folder, `notify${index}`)
        const manager = await startServiceManager(on, socket)
        const args = ['--etcd-endpoints', endpoint, '--engine', engine, '--workers', String(workers)]
        return { on, manager, engine, workers, thread, daemon: start(socket, args, on) }
      }),
    )
    type Node = (typeof nodes)[0]
    const each = <T>(what: (node: Node, index: number) => Promise<T>): Promise<T[]> => Promise.all(nodes.map(what))
    const talk = ({ on }: Node, index: number): Promise<void> =>
      reach(on.namespace, tunAddress(lab.hosts[(index + 1) % nodes.length]!))

    await each(({ daemon }) => daemon.line(/flannel is ready/))
    await each(talk)
    await each(async ({ on, daemon, workers }) => {
      expect(await livez(on)).toBe('200 weftd is alive')
      const names = [...threadNames(daemon.process.pid!).values()].filter((name) => name.startsWith('weft-')).toSorted()
      const numbers = Array.from({ length: workers }, (_, number) => number)
      expect(names).toEqual(numbers.map((number) => `weft-loop${number}`))
    })

    const thaws = await each(({ on, daemon, thread }) => freezeThread(on, daemon.process.pid!, thread))
    const told = await each(async ({ on, daemon, manager, thread }) => {
      await daemon.line(new RegExp(`The thread ${thread} hangs`))
      expect(await livez(on)).toMatch(new RegExp(`^503 impaired by a thread that hangs: the thread ${thread} hangs$`))
      return manager.notice(
        new RegExp(`^STATUS=impaired by a thread that hangs.*: the thread ${thread} hangs;.* reachable$`),
      )
    })
    // Another status comes 2 s later at the earliest, by the event loop that would have served the watchdog six times by then.
    await etcd.kill()
    await each(async ({ manager, thread }, index) => {
      const later = await manager.notice(
        new RegExp(`^STATUS=impaired by a thread that hangs.*: the thread ${thread} hangs; .* unreachable$`),
      )
      const [first, last] = [told[index]!, later].map((notice) => manager.notices.indexOf(notice))
      expect(manager.notices.slice(first, last).flatMap(({ lines }) => lines)).not.toContain('WATCHDOG=1')
    })

    await each(async ({ on, daemon, manager, thread }, index) => {
      await thaws[index]!()
      await daemon.line(new RegExp(`The thread ${thread} is alive again`))
      await manager.nextNotice(/^WATCHDOG=1$/)
      expect(await livez(on)).toBe('200 weftd is alive, impaired by its store: the etcd store does not answer')
    })
    await each(talk)
    await each(async ({ daemon }) => expect(await daemon.stop()).toBe(0))
  })

  it('does not keep the daemon from ending, with a line that says so', async () => {
    const daemon = start(join(lab.folder, 'nobody'), leaseDirectory())
    await daemon.line(/flannel is ready/)
    const thaw = await freezeThread(host, daemon.process.pid!, 'weft-loop0')
    const ending = daemon.stop()
    await daemon.line(/Stopping took longer than 5 s; the process is killed/)
    await thaw() // a traced thread that was killed is there until its tracer goes
    await ending
    expect(daemon.process.signalCode).toBe('SIGKILL')
  })
})
