// pods.test.ts - successive weftds in two pods of a host, as in an update with maxSurge. Each pod has its own processes and files; they
// share only the host's network and the folder of subnet.env.

import { chownSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended, output, type Finished } from '../../lab/command.ts'
import { createLab, packageRoot, whyNoVxlan, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { subnetOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'

needs(HOSTS, 'ping')

const HEALTH_PORT = 7001

let lab: Lab
let a: Host
let b: Host
let containers: [Pod, Pod]
afterEach(() => lab?.close())

/** A daemon that is the first process of a pod. */
interface DaemonPod extends Omit<Daemon, 'lines'> {
  lines: string[]
  /** The pid of the pod's process on the host. */
  readonly pid: number
  /** Runs weft in the pod. */
  weft(...words: string[]): Promise<Finished>
  /** Stops the container like kubelet; returns the exit code. */
  end(): Promise<number | null>
}

const leases = (): string => join(lab.folder, 'leases')
/** Each pod has its own folder. */
const own = (): string => join(lab.folder, 'own')
const socket = (): string => join(own(), 'weftd.sock')

const startPod = (host: Host, ...more: string[]): Promise<DaemonPod> => startPodBy('exec "$@"', host, ...more)

/** Starts weftd by a shell command, in which "$@" stands for weftd. */
async function startPodBy(command: string, host: Host, ...more: string[]): Promise<DaemonPod> {
  const daemon = host.startDaemon({
    args: [
      '--lease-dir',
      leases(),
      '--status-socket',
      socket(),
      '--healthz-ip',
      '127.0.0.1',
      '--healthz-port',
      String(HEALTH_PORT),
      ...more,
    ],
    before: [
      'unshare',
      '--pid',
      '--fork',
      '--kill-child',
      '--mount',
      '--mount-proc',
      'sh',
      '-c',
      `mount -t tmpfs tmpfs ${own()} && ${command}`,
      'sh',
    ],
  })
  await daemon.line(/CLI flags config/)
  const parent = daemon.process.pid!
  const pid = Number(readFileSync(`/proc/${parent}/task/${parent}/children`, 'utf8'))
  const inside = [
    'nsenter',
    '--target',
    String(pid),
    '--mount',
    '--pid',
    process.execPath,
    join(packageRoot, 'bin/weft'),
  ]
  return {
    ...daemon,
    lines: daemon.lines as string[],
    pid,
    weft: (...words) => host.run([...inside, ...words, '--status-socket', socket()]),
    async end() {
      process.kill(pid, 'SIGTERM')
      await ended(daemon.process)
      return daemon.process.exitCode
    },
  }
}

const ready = (pod: DaemonPod): Promise<Finished> => pod.weft('ready', '--wait', '60')

async function open(backend: object, ...more: string[]): Promise<DaemonPod> {
  lab = await createLab({ hosts: 2 })
  ;[a, b] = lab.hosts as [Host, Host]
  for (const folder of [leases(), own()]) mkdirSync(folder)
  writeFileSync(join(leases(), 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
  const [pod, other] = [await startPod(a, ...more), await startPod(b, ...more)]
  for (const each of [pod, other]) expect(await ready(each)).toMatchObject({ code: 0, stdout: 'ready\n' })
  containers = [await a.startPod(), await b.startPod()]
  await reach(containers[0].namespace, containers[1].address)
  return pod
}

const lease = (): string => readFileSync(join(leases(), 'subnets', subnetOf(a).replace('/', '-')), 'utf8')

const UPDATES = [
  { name: 'udp', backend: { Type: 'udp' } },
  { name: 'vxlan by weftd', backend: { Type: 'vxlan', DataPath: 'userspace' } },
  { name: 'vxlan by the kernel', backend: { Type: 'vxlan', DataPath: 'kernel' }, why: whyNoVxlan },
  { name: 'host-gw', backend: { Type: 'host-gw' } },
]
describe.each(UPDATES)('an update with maxSurge, $name', ({ backend, why }) => {
  it('loses no packet, and keeps the lease', async ({ skip }) => {
    const lack = await why?.()
    skip(lack !== undefined, lack)
    const before = await open(backend)
    const held = lease()
    const pings = pinging(...containers)
    const after = await startPod(a)
    await after.line(/Another weftd forwards \(pid unknown\)/)
    expect(await ready(after)).toMatchObject({ code: 0, stdout: 'ready\n' })
    await before.line(/Waiting to be stopped/)
    // The port belongs to the new daemon by then, or soon. kubelet then ends the old one, which has nothing to remove.
    expect(await before.end()).toBe(0)
    const { sent, lost } = await pings.stop()
    expect(lost).toBe(0)
    expect(sent).toBeGreaterThan(100)
    expect(lease()).toBe(held)
    await eventually(async () => expect(await probe('readyz')).toBe('flanneld is ready'))
    expect(await after.end()).toBe(0)
  })
})

/** Requests a path on the host's port, like kubelet. */
async function probe(path: string): Promise<string> {
  const asking = 'fetch(process.argv[1]).then((answer) => answer.text()).then(console.log)'
  return (await a.output([process.execPath, '-e', asking, `http://127.0.0.1:${HEALTH_PORT}/${path}`])).trim()
}

describe('a new pod that is not ready', () => {
  it('reports its own state and reason, while the old pod answers on the port', async () => {
    const before = await open({ Type: 'udp' })
    const config = join(leases(), 'config')
    renameSync(config, `${config}-away`)
    const pings = pinging(...containers)
    const after = await startPod(a)
    await after.line(/Another weftd forwards/)
    await eventually(async () => expect((await after.weft('ready')).code).toBe(3))
    const said = await after.weft('ready', '--wait', '1')
    expect(said).toMatchObject({ code: 3 })
    expect(said.stdout).toMatch(/^not ready: starting; another weftd forwards; waiting for the network configuration/)
    expect(await probe('readyz')).toBe('flanneld is ready')
    expect((await before.weft('ready')).code).toBe(0)
    // kubelet gives up and stops the pod.
    expect(await after.end()).toBe(0)
    expect((await pings.stop()).lost).toBe(0)
    expect(before.lines.filter((line) => /Ending|forwarding again/.test(line))).toEqual([])
  })

  it('because its flags are wrong does not take the data path over, however often it is started', async () => {
    const before = await open({ Type: 'udp' })
    const pings = pinging(...containers)
    for (let time = 0; time < 3; time++) {
      const wrong = await startPod(a, '--lease-dir', join(lab.folder, 'nowhere'))
      await wrong.line(/another weftd runs on this host for the store directory/)
      await ended(wrong.process)
      expect(wrong.process.exitCode).toBe(1)
    }
    expect((await pings.stop()).lost).toBe(0)
    expect((await before.weft('ready')).code).toBe(0)
  })
})

it('an old pod whose successor dies continues, and hands over to the next one', async () => {
  const before = await open({ Type: 'udp' })
  for (let time = 0; time < 2; time++) {
    const after = await startPod(a)
    await before.line(/Waiting to be stopped/)
    before.lines.length = 0
    const route = await a.output(['ip', 'route', 'show', '10.5.0.0/16'])
    process.kill(after.pid, 'SIGKILL')
    await before.line(/The weftd that had taken over has ended, and nobody forwards: this one goes on$/)
    await before.line(/Forwarding to 1 peers as last known/)
    await reach(containers[0].namespace, containers[1].address)
    expect(await a.output(['ip', 'route', 'show', '10.5.0.0/16'])).toBe(route)
    expect(await ready(before)).toMatchObject({ code: 0, stdout: 'ready\n' })
    expect(before.process.exitCode).toBe(null)
  }
  const pings = pinging(...containers)
  const after = await startPod(a)
  expect(await ready(after)).toMatchObject({ code: 0 })
  await before.line(/Waiting to be stopped/)
  expect(await before.end()).toBe(0)
  expect((await pings.stop()).lost).toBe(0)
})

it('forwards again if a successor in another pod hangs, which it cannot end', async () => {
  const before = await open({ Type: 'udp' })
  const program = `
    const { connect } = await import(${JSON.stringify(join(packageRoot, 'dist/src/host/unix-socket.js'))})
    const connection = connect(process.argv[1])
    for (const want of ['meet', 'path']) {
      connection.send(JSON.stringify({ weft: 2, want }))
      await connection.receive(new AbortController().signal)
    }
    connection.send(JSON.stringify({ weft: 2, want: 'still' }))
    setInterval(() => {}, 1e6)
    await connection.receive(new AbortController().signal)
    console.log('sent')`
  const hanging = a.spawn([
    'unshare',
    '--pid',
    '--fork',
    '--kill-child',
    process.execPath,
    '--input-type=module',
    '-e',
    program,
    `${a.subnetFile}.handover`,
  ])
  const sent = new Promise<string>((resolve) =>
    hanging.stdout!.once('data', (text: Buffer) => resolve(text.toString())),
  )
  await before.line(/The weftd that was taking over hung; forwarding again/)
  await reach(containers[0].namespace, containers[1].address)
  expect(await sent).toBe('sent\n')
})

it('if a host starts two pods simultaneously, one forwards, and the other waits and continues when the first has ended', async () => {
  const pod = await open({ Type: 'udp' })
  process.kill(pod.pid, 'SIGKILL')
  await ended(pod.process)
  rmSync(`${a.subnetFile}.last-known`) // /run is empty after a boot
  await a.output(['ip', 'link', 'del', 'flannel0'])
  const both = await Promise.all([startPod(a), startPod(a)])
  const waiting = await Promise.race(
    both.map(async (each) => {
      await each.line(/Waiting to be stopped/)
      return each
    }),
  )
  const forwarding = both.find((each) => each !== waiting)!
  expect(await ready(forwarding)).toMatchObject({ code: 0 })
  await reach(containers[0].namespace, containers[1].address)
  expect(await forwarding.end()).toBe(0)
  await waiting.line(/this one goes on/)
  await reach(containers[0].namespace, containers[1].address)
  expect(await ready(waiting)).toMatchObject({ code: 0 })
})

it('without maxSurge the new pod starts from the last known state', async () => {
  const before = await open({ Type: 'udp' })
  expect(await before.end()).toBe(0)
  const after = await startPod(a)
  await after.line(/Forwarding to 1 peers as last known/)
  expect(await ready(after)).toMatchObject({ code: 0 })
  await reach(containers[0].namespace, containers[1].address)
})

it('no remedy names a pid of another pod, because that pid means another process in this pod', async () => {
  const before = await open({ Type: 'udp' })
  process.kill(before.pid, 'SIGSTOP')
  const after = await startPod(a)
  const said = await after.line(/another weftd .* does not answer/)
  expect(said).toMatch(/\(pid unknown\)/)
  expect(said).not.toMatch(/kill -9/)
  process.kill(before.pid, 'SIGCONT')
  await ended(after.process)
  await reach(containers[0].namespace, containers[1].address)
})

describe('an update in which the new pod is denied', () => {
  it('the socket: the old pod forwards, and the new pod follows its end with the last known state', async () => {
    const before = await open({ Type: 'udp' })
    // Without CAP_DAC_OVERRIDE root may not connect to the socket of another user.
    chownSync(`${a.subnetFile}.handover`, 65_534, 65_534)
    const pings = pinging(...containers)
    const after = await startPodBy('exec setpriv --inh-caps=-all --bounding-set=-all,+net_admin "$@"', a)
    await after.line(/cannot hand over: this weftd may not connect to/)
    expect(await after.weft('ready')).not.toMatchObject({ code: 0 })
    const { sent, lost } = await pings.stop()
    expect(lost).toBe(0)
    expect(sent).toBeGreaterThan(100)
    expect(await before.end()).toBe(0)
    await after.line(/as last known/)
    expect(await ready(after)).toMatchObject({ code: 0, stdout: 'ready\n' })
    await reach(containers[0].namespace, containers[1].address)
    expect(await after.end()).toBe(0)
  })

  it('the queues and sockets, by AppArmor: the old pod forwards again immediately', async ({ skip }) => {
    const enabled = '/sys/module/apparmor/parameters/enabled'
    skip(!existsSync(enabled) || !readFileSync(enabled, 'utf8').startsWith('Y'), 'this kernel has no AppArmor')
    const before = await open({ Type: 'udp' })
    const file = join(lab.folder, 'profile')
    // The rules of containerd's default profile (contrib/apparmor/template.go), but without the right to receive a TUN queue.
    writeFileSync(
      file,
      'profile weft-test flags=(attach_disconnected,mediate_deleted) {\n  network,\n  capability,\n  file,\n  deny /dev/net/tun rw,\n}\n',
    )
    const folder = '/sys/kernel/security'
    const load = `test -e ${folder}/apparmor || mount -t securityfs securityfs ${folder}; apparmor_parser --replace ${file}`
    await output(['sh', '-c', load])
    const pings = pinging(...containers)
    const after = await startPodBy('echo exec weft-test > /proc/self/attr/apparmor/exec && exec "$@"', a)
    await after.line(/cannot hand over: this weftd may not receive its queues and sockets/)
    await before.line(/The weftd that was taking over went away; forwarding again/)
    await reach(containers[0].namespace, containers[1].address)
    expect((await pings.stop()).lost).toBe(0)
  })
})
