// states.test.ts - during an outage an operator queries one report after another: all must show the same state, and it must be true of the
// packets.

import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, packageRoot, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { readingOf, type Cause, type StateName } from '../../src/report/states.ts'
import type { Status } from '../../src/report/status.ts'
import { eventually } from '../support/event.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'
import { startServiceManager, type ServiceManager } from '../support/service-manager.ts'

needs(HOSTS, ...ETCD, 'curl', 'ping')

let lab: Lab
let etcd: Etcd | undefined
afterEach(async () => {
  await lab?.close()
  await etcd?.close()
  etcd = undefined
})

const CONFIG = '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}'
const weft = (host: Host, ...args: string[]) =>
  host.run([join(packageRoot, 'bin/weft'), ...args, '--status-socket', host.statusSocket])

/** Returns all reports: the HTTP status and first line of the probes, the exit code and heading of `weft status`, and so on. */
async function readersOf(host: Host) {
  const ask = async (path: string): Promise<readonly [code: number, body: string]> => {
    const url = `http://weftd/${path}`
    const args = ['curl', '-s', '-w', '\n%{http_code}', '--unix-socket', host.statusSocket, url]
    const [, body = '', code] = /^(.*)\n(\d+)$/s.exec(await host.output(args)) ?? []
    return [Number(code), body]
  }
  const { state, impairments } = JSON.parse((await ask('status.json'))[1]) as Status
  const status = await weft(host, 'status')
  const doctor = JSON.parse((await weft(host, 'doctor', '--json')).stdout) as { findings: { name: string }[] }[]
  const metrics = (await ask('metrics'))[1]
  return {
    state,
    by: impairments.map(({ by }) => by),
    exit: status.code,
    heading: /^weftd \S+(?: on \S+)?, (.*) \(up /.exec(status.stdout)?.[1],
    livez: (await ask('livez'))[0],
    readyz: (await ask('readyz'))[0],
    working: Number(/^weft_working (\d)$/m.exec(metrics)?.[1]),
    states: [...metrics.matchAll(/^weft_state\{state="(\w+)"\} 1$/gm)].map(([, name]) => name),
    impaired: [...metrics.matchAll(/^weft_impaired\{by="(\w+)"\} 1$/gm)].map(([, by]) => by),
    findings: doctor.flatMap(({ findings }) => findings.map(({ name }) => name)),
  }
}

/** Waits until each report shows what the table says for this state. */
async function isTold(host: Host, manager: ServiceManager, state: StateName, ...by: Cause[]): Promise<void> {
  const reading = readingOf({ state, impairments: by.map((each) => ({ by: each })) })
  await eventually(async () => {
    const { findings, ...reports } = await readersOf(host)
    expect(reports).toEqual({
      state,
      by,
      exit: reading.exit,
      heading: reading.words,
      livez: reading.livez,
      readyz: reading.readyz === 'written' ? 200 : 503,
      working: reading.working,
      states: [state],
      impaired: by,
    })
    for (const name of reading.findings.length === 0 ? [] : [reading.findings])
      expect(
        findings.some((each) => name.includes(each)),
        findings.join(', '),
      ).toBe(true)
    if (reading.findings.length === 0) expect(findings).toEqual([])
  })
  const word = state === 'working' ? 'subnet' : reading.words
  const said = (): string | undefined =>
    manager.notices.flatMap(({ lines }) => lines).findLast((line) => line.startsWith('STATUS='))
  await eventually(() => expect(said()).toMatch(new RegExp(`^STATUS=${word}`)))
}

it('all reports agree while etcd dies, weftd is killed and restarted, etcd comes back, and a peer dies', async () => {
  lab = await createLab({ hosts: 2 })
  const [a, b] = lab.hosts as [Host, Host]
  etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
  await etcd.ctl('put', '/coreos.com/network/config', CONFIG)
  const socket = join(lab.folder, 'notify')
  const manager = await startServiceManager(a, socket)
  const args = ['--etcd-endpoints', etcd.endpoint, '--probe-interval', '1']
  const start = (host: Host): Daemon =>
    host.startDaemon({ args, ...(host === a ? { env: { NOTIFY_SOCKET: socket } } : {}) })
  const daemons = [start(a), start(b)] as const
  for (const daemon of daemons) await daemon.line(/flannel is ready/)
  const pods: [Pod, Pod] = [await a.startPod(), await b.startPod()]
  const passes = (): Promise<void> => reach(pods[0].namespace, pods[1].address)
  await passes()
  await isTold(a, manager, 'working')

  await etcd.kill()
  await isTold(a, manager, 'impaired', 'store')
  await passes()

  await daemons[0].stop('SIGKILL')
  const next = start(a)
  await next.line(/Forwarding to 1 peers as last known/)
  await isTold(a, manager, 'forwarding')
  await passes()

  await etcd.start()
  await next.line(/flannel is ready/)
  await isTold(a, manager, 'working')
  await passes()

  await daemons[1].stop('SIGKILL')
  await isTold(a, manager, 'impaired', 'peers')
  await a.output(['sh', '-c', 'echo 0 > /proc/sys/net/ipv4/ip_forward'])
  await isTold(a, manager, 'impaired', 'host', 'peers')

  await next.stop()
  await manager.notice(/^STATUS=leaving$/)
})
