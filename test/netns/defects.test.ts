// defects.test.ts - an uncaught error anywhere ends weftd like a signal: it logs the reason, packets continue, and the lease stays. Only
// the exit code differs.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { get } from 'node:http'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { connect } from '../../src/host/unix-socket.ts'
import { handoverSocket } from '../../src/node/restart/rendezvous.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS)

const CONFIG = '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'
const PORT = '8099'
let lab: Lab
let host: Host
let etcd: Etcd | undefined
let store: readonly string[]
const leases = (): string => join(lab.folder, 'leases')

async function open(): Promise<void> {
  lab = await createLab({ hosts: 1 })
  ;[host] = lab.hosts as [Host]
  mkdirSync(leases())
  writeFileSync(join(leases(), 'config'), CONFIG)
  store = ['--lease-dir', leases()]
}
afterEach(async () => {
  await lab?.close()
  await etcd?.close()
  etcd = undefined
})

/** Starts a daemon in which the callback named by `kind` throws once it is ready and has saved its state. */
async function startThrowing(kind: string): Promise<Daemon> {
  const preload = join(packageRoot, 'dist/test/support/throwing.js')
  const env = { NODE_OPTIONS: `--import ${preload}`, WEFT_THROW: kind }
  const daemon = host.startDaemon({ args: [...store, '--healthz-ip', '127.0.0.1', '--healthz-port', PORT], env })
  await daemon.line(/flannel is ready/)
  await eventually(() => readFileSync(`${host.subnetFile}.last-known`))
  return daemon
}
async function arm(daemon: Daemon): Promise<void> {
  daemon.process.kill('SIGUSR2')
  await daemon.line(/^it will throw/)
}
const said = ({ lines }: Daemon, kind: string): string[] =>
  lines.filter((line) => line.includes(`Stopping for an error that nobody caught: Error: thrown by a test: ${kind}`))

/** Checks that the end left everything a stop leaves: the next daemon forwards with the same lease before it queries the store. */
async function expectLeft(before: string): Promise<void> {
  expect(await host.output(['ip', '-br', 'link', 'show', 'dev', 'flannel0'])).toContain('UP')
  expect(await host.output(['ip', 'route', 'show', '10.5.0.0/16'])).toContain('flannel0')
  const next = host.startDaemon({ args: [...store] })
  await next.line(/Forwarding to 0 peers as last known/)
  await next.line(/flannel is ready/)
  expect(host.subnetEnv()['FLANNEL_SUBNET']).toBe(before)
  expect(await next.stop()).toBe(0)
}

const nothing = async (): Promise<void> => {}

describe('an uncaught error', () => {
  it.each<[kind: string, provoke: (daemon: Daemon) => unknown]>([
    ['promise that nobody waits for', nothing],
    ['error without a listener', nothing],
    ['timer', nothing],
    ['health port', () => void host.spawn([process.execPath, '-e', `fetch('http://127.0.0.1:${PORT}/healthz')`])],
    ['status socket', () => get({ socketPath: host.statusSocket, path: '/healthz' }).on('error', () => {})],
    ['descriptor that is readable', () => connect(handoverSocket({ 'subnet-file': host.subnetFile }))?.close()],
    ['report of the kernel', () => host.output(['ip', 'address', 'add', '198.51.100.7/32', 'dev', 'lo'])],
    ['end of a command', () => host.output(['iptables', '-w', '-F', 'FLANNEL-FWD'])],
    ['change of a file', () => writeFileSync(join(leases(), 'subnets', 'junk'), '')],
    ['listener for the stop', (daemon) => daemon.process.kill('SIGTERM')],
  ])('in a %s', async (kind, provoke) => {
    await open()
    const daemon = await startThrowing(kind)
    const subnet = host.subnetEnv()['FLANNEL_SUBNET']!
    await arm(daemon)
    await provoke(daemon)
    await ended(daemon.process)
    expect([daemon.process.exitCode, said(daemon, kind).length]).toEqual([1, 1])
    expect(readdirSync(join(leases(), 'subnets')).filter((name) => name !== 'junk')).toHaveLength(1)
    await expectLeft(subnet)
  })

  it('in the handler of a message of etcd ends weftd', async () => {
    await open()
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    await etcd.ctl('put', '/coreos.com/network/config', CONFIG)
    store = ['--etcd-endpoints', etcd.endpoint]
    const daemon = await startThrowing('message of etcd')
    const subnet = host.subnetEnv()['FLANNEL_SUBNET']!
    await arm(daemon)
    await etcd.ctl('put', '/coreos.com/network/subnets/junk', '')
    await ended(daemon.process)
    expect([daemon.process.exitCode, said(daemon, 'message of etcd').length]).toEqual([1, 1])
    expect(await etcd.ctl('get', '--prefix', '--keys-only', '/coreos.com/network/subnets/10.5.')).not.toBe('')
    await expectLeft(subnet)
  })

  it('in the handler of a fault of the engine, whose device is gone, ends weftd', async () => {
    await open()
    const daemon = await startThrowing('fault of the engine')
    await arm(daemon)
    await host.output(['ip', 'link', 'del', 'flannel0'])
    await ended(daemon.process)
    expect([daemon.process.exitCode, said(daemon, 'fault of the engine').length]).toEqual([1, 1])
    expect(readdirSync(join(leases(), 'subnets'))).toHaveLength(1)
  })

  it('a thousand times a second, also during the stop, does not keep weftd from ending, and few of them are logged', async () => {
    await open()
    const daemon = await startThrowing('thousand errors')
    const subnet = host.subnetEnv()['FLANNEL_SUBNET']!
    await arm(daemon)
    await ended(daemon.process)
    expect(daemon.process.exitCode).toBe(1)
    expect(said(daemon, 'thousand errors')).toHaveLength(1)
    expect(daemon.lines.some((line) => line.includes('Stopping took longer'))).toBe(false)
    await expectLeft(subnet)
  })
})
