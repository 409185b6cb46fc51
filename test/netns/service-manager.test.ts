// service-manager.test.ts - the notices that a service manager gets from a daemon, and the detection of a thread that hangs.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
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

const start = (
  socket: string,
  args: readonly string[],
  on = host,
  env: Readonly<Record<string, string>> = {},
): Daemon =>
  on.startDaemon({
    args: ['--healthz-ip', '127.0.0.1', '--healthz-port', '8471', ...args],
    env: { NOTIFY_SOCKET: socket, WATCHDOG_USEC: String(WATCHDOG_MS * 1000), ...env },
  })

/** Returns the first line of /livez, for example `200 weftd is alive`. */
async function livez(on = host): Promise<string> {
  const ask = `const answer = await fetch('${HEALTH}'); console.log(answer.status, (await answer.text()).split('\\n')[0])`
  return (await on.output([process.execPath, '--input-type=module', '-e', ask])).trim()
}

/** Waits for several more watchdog notices. Unit tests of the notifier and the daemon check their interval. */
async function isServed(manager: ServiceManager): Promise<void> {
  for (let times = 0; times < 4; times++) await manager.nextNotice(/^WATCHDOG=1$/)
}

/** Puts a program in front of iptables-save that records its environment. Returns the PATH, and a function that reads the record. */
async function recordEnvironments(): Promise<{ readonly PATH: string; readonly recorded: () => string }> {
  const [folder, list] = [join(lab.folder, 'recording'), join(lab.folder, 'environments')]
  const real = (await host.output(['sh', '-c', 'command -v iptables-save'])).trim()
  mkdirSync(folder)
  writeFileSync(join(folder, 'iptables-save'), `#!/bin/sh\nenv >> '${list}'\nexec '${real}' "$@"\n`, { mode: 0o755 })
  return { PATH: `${folder}:${process.env['PATH']}`, recorded: () => readFileSync(list, 'utf8') }
}

describe('a service manager', () => {
  it.each(['path', 'abstract'])('is notified of every state over a socket of the kind: %s', async (kind) => {
    const socket = kind === 'path' ? join(lab.folder, 'notify') : `@${lab.id}`
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    const manager = await startServiceManager(host, socket)
    const { PATH, recorded } = await recordEnvironments()
    const daemon = start(socket, ['--etcd-endpoints', etcd.endpoint], host, { PATH })

    // weftd is not ready without a configuration; subnet.env exists when it reports ready.
    await manager.notice(/^STATUS=starting; waiting for the network configuration in the etcd store$/)
    const written: boolean[] = []
    void manager.notice(/^READY=1$/).then(() => written.push(existsSync(host.subnetFile)))
    expect(existsSync(host.subnetFile)).toBe(false)
    await etcd.ctl('put', '/coreos.com/network/config', CONFIG)
    await manager.notice(/^READY=1$/)
    expect(written).toEqual([true])
    expect(daemon.lines.some((line) => line.includes('Running backend.'))).toBe(true)
    await manager.notice(/^STATUS=subnet 10\.5\.\d+\.0\/24, 0 peers, etcd store reachable$/)

    // No command that the daemon runs may get the socket and notify in its name.
    expect(recorded()).toMatch(/^PATH=/m)
    expect(recorded()).not.toMatch(/NOTIFY_SOCKET|WATCHDOG/)

    await isServed(manager)

    // An unavailable store does not justify a restart.
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

  it('keeps its daemon after a hand-over, which continues when its successor is killed', async () => {
    const socket = join(lab.folder, 'notify')
    const manager = await startServiceManager(host, socket)
    const args = leaseDirectory()
    const served = start(socket, args)
    await manager.notice(/^READY=1$/)
    // Started by hand outside a unit, so no service manager restarts it.
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

  it('that is missing causes one line in the log', async () => {
    const socket = join(lab.folder, 'nobody')
    const daemon = start(socket, leaseDirectory())
    // By then three notices have failed.
    await daemon.line(/flannel is ready/)
    expect(await livez()).toBe('200 weftd is alive')
    // A service manager that starts later gets the notices.
    const manager = await startServiceManager(host, socket)
    await manager.notice(/^READY=1$/)
    await isServed(manager)
    expect(daemon.lines.filter((line) => line.includes('Cannot notify the service manager'))).toHaveLength(1)
    expect(await daemon.stop()).toBe(0)
  })
})

describe('a thread that hangs', () => {
  it('of any engine is named by /livez and stops the keep-alive messages, until it continues', async () => {
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    await etcd.ctl('put', '/coreos.com/network/config', CONFIG)
    const { endpoint } = etcd
    /** All cases run in parallel, because a thread counts as hung after ten seconds. */
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
    const noticed = await each(async ({ on, daemon, manager, thread }) => {
      await daemon.line(new RegExp(`The thread ${thread} hangs`))
      expect(await livez(on)).toMatch(new RegExp(`^503 impaired by a thread that hangs: the thread ${thread} hangs$`))
      return manager.notice(
        new RegExp(`^STATUS=impaired by a thread that hangs.*: the thread ${thread} hangs;.* reachable$`),
      )
    })
    // The next status comes at least 2 s later from the event loop, which would have sent six watchdog notices by then.
    await etcd.kill()
    await each(async ({ manager, thread }, index) => {
      const later = await manager.notice(
        new RegExp(`^STATUS=impaired by a thread that hangs.*: the thread ${thread} hangs; .* unreachable$`),
      )
      const [first, last] = [noticed[index]!, later].map((notice) => manager.notices.indexOf(notice))
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

  it('does not keep the daemon from ending, which it logs', async () => {
    const daemon = start(join(lab.folder, 'nobody'), leaseDirectory())
    await daemon.line(/flannel is ready/)
    const thaw = await freezeThread(host, daemon.process.pid!, 'weft-loop0')
    const ending = daemon.stop()
    await daemon.line(/Stopping took longer than 9 s; the process is killed/)
    await thaw() // a killed process stays until its tracer exits
    await ending
    expect(daemon.process.signalCode).toBe('SIGKILL')
  })
})
