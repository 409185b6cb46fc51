// fabric.test.ts - Type `http` with real daemons and packets: a third host routes each node's subnet, as the nodes
// request by HTTP.

import type { ChildProcess } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, packageRoot, SWITCH_ADDRESS, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { switchBackend } from '../support/fake-switch.ts'
import { doctor, statusOf, subnetOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping')

const PORT = 8080
const CREDENTIAL = 'secret-of-switch'

let lab: Lab
let hosts: readonly [Host, Host]
let folder: string
let program: ChildProcess

const routesOfSwitch = (): Promise<string> => lab.switch.output(['ip', 'route', 'show', 'proto', 'static'])
const routeTo = (host: Host): string => `${subnetOf(host)} via ${host.address} dev br0`

/** Starts the API of the switch, and waits until it listens. */
async function startSwitch(): Promise<void> {
  const script = join(packageRoot, 'dist/test/support/switch-program.js')
  const words = [SWITCH_ADDRESS, String(PORT), join(lab.folder, 'credential'), '192.168.77.']
  program = lab.switch.spawn([process.execPath, script, ...words])
  let said = ''
  program.stdout?.on('data', (piece: Buffer) => (said += piece.toString()))
  program.stderr?.on('data', (piece: Buffer) => (said += piece.toString()))
  await eventually(() => expect(said).toContain('ready'))
}
async function stopSwitch(): Promise<void> {
  program.kill('SIGKILL')
  await ended(program)
}

const start = (host: Host, ...more: string[]): Daemon => host.startDaemon({ args: ['--lease-dir', folder, ...more] })
async function ready(host: Host): Promise<Daemon> {
  const daemon = start(host)
  await daemon.line(/flannel is ready/)
  return daemon
}

beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  hosts = lab.hosts as unknown as [Host, Host]
  folder = join(lab.folder, 'leases')
  mkdirSync(folder)
  // The program writes the file too; daemons that start before it need it.
  writeFileSync(
    join(lab.folder, 'credential'),
    `http://${SWITCH_ADDRESS}:${PORT} ${CREDENTIAL}
`,
  )
  const Backend = switchBackend(`http://${SWITCH_ADDRESS}:${PORT}`, join(lab.folder, 'credential'))
  writeFileSync(join(folder, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
  const settings = ['ipv4/ip_forward=1', 'ipv4/conf/all/send_redirects=0', 'ipv4/conf/br0/send_redirects=0']
  for (const setting of settings) {
    const [name, value] = setting.split('=')
    await lab.switch.output(['sh', '-c', `echo ${value} > /proc/sys/net/${name}`])
  }
})
afterEach(() => lab?.close())

describe('http', () => {
  it('has the switch route packets between containers, through its outage and restart', async () => {
    await startSwitch()
    const [one, two] = hosts
    const daemons = [await ready(one), await ready(two)]
    expect(await routesOfSwitch()).toContain(routeTo(one))
    expect(await routesOfSwitch()).toContain(routeTo(two))
    expect(readFileSync(one.subnetFile, 'utf8')).toContain('FLANNEL_MTU=1500\n')
    // Nothing on the host leads there but the default route.
    expect(await one.output(['ip', 'route', 'show', 'root', '10.5.0.0/16'])).toBe('')
    const [podOne, podTwo] = [await one.startPod(), await two.startPod()]
    await reach(podOne.namespace, podTwo.address)
    await reach(podTwo.namespace, podOne.address)

    await stopSwitch()
    await reach(podOne.namespace, podTwo.address)
    expect(await daemons[0]!.stop()).toBe(0)
    const again = start(one)
    await again.line(/^E.*The route to \S+ cannot be published: GET 192\.168\.77\.254:8080\/api\/routes: no answer: /)
    await again.line(/flannel is ready/)
    await reach(podOne.namespace, podTwo.address)

    // The switch comes back without the route.
    await lab.switch.output(['ip', 'route', 'del', subnetOf(one)])
    await startSwitch()
    await again.line(/The route to \S+ is in 192\.168\.77\.254:8080$/)
    expect(await routesOfSwitch()).toContain(routeTo(one))
    await reach(podTwo.namespace, podOne.address)
    const { dataPath } = await statusOf(one)
    expect(dataPath?.counters).toMatchObject({ route_missing: 0 })
    for (const { lines } of [...daemons, again]) expect(lines.join('\n')).not.toContain(CREDENTIAL)
  })

  it('withdraws the route when the node leaves, and weft cleanup withdraws it after a crash', async () => {
    await startSwitch()
    const [one, two] = hosts
    const daemons = [await ready(one), await ready(two)]
    const leaving = start(two, '--leave')
    await ended(leaving.process)
    expect([leaving.process.exitCode, leaving.lines.join('\n')]).toEqual([0, expect.any(String)])
    await daemons[1]!.line(/removed route 10\.5\.\d+\.0\/24 to 192\.168\.77\.2 in 192\.168\.77\.254:8080$/)
    expect((await routesOfSwitch()).trim()).toMatch(/^10\.5\.\d+\.0\/24 via 192\.168\.77\.1 dev br0\s*$/)

    await eventually(() => expect(existsSync(`${one.subnetFile}.last-known`)).toBe(true))
    await daemons[0]!.stop('SIGKILL')
    const weft = [process.execPath, join(packageRoot, 'bin/weft'), 'cleanup', '-f', one.subnetFile]
    const dry = await one.run([...weft, '--dry-run'])
    expect(dry.stdout).toMatch(/^would remove the published route to 10\.5\.\d+\.0\/24$/m)
    expect(await routesOfSwitch()).toContain('via 192.168.77.1')
    await stopSwitch()
    const failed = await one.run(weft)
    expect(failed.stderr).toMatch(/cannot remove the published route to 10\.5\.\d+\.0\/24: .*no answer/)
    expect(failed.code).not.toBe(0)
    await startSwitch()
    const done = await one.run(weft)
    expect([done.code, done.stderr]).toEqual([0, ''])
    expect(done.stdout).toMatch(/^removed the published route to 10\.5\.\d+\.0\/24$/m)
    expect(await routesOfSwitch()).toBe('')
  })

  it('keeps the route of another node, and names that route', async () => {
    await startSwitch()
    const [one, two] = hosts
    const daemon = await ready(one)
    const subnet = subnetOf(one)
    expect(await daemon.stop()).toBe(0)
    await stopSwitch()
    await lab.switch.output(['ip', 'route', 'replace', subnet, 'via', two.address, 'proto', 'static'])
    await startSwitch()
    const again = start(one)
    await again.line(
      /^E.*has a route to \S+ that leads to 192\.168\.77\.2, not to this node; it stays; remove that route/,
    )
    await again.line(/flannel is ready/)
    expect(await routesOfSwitch()).toContain(`${subnet} via 192.168.77.2`)
    await lab.switch.output(['ip', 'route', 'del', subnet])
    await stopSwitch()
    await startSwitch()
    await again.line(/The route to \S+ is in 192\.168\.77\.254:8080$/)
  })

  it('has weft doctor find a route that is not published, and a route table that is full', async () => {
    const Backend = { ...switchBackend(`http://${SWITCH_ADDRESS}:${PORT}`, join(lab.folder, 'credential')), Limit: 1 }
    writeFileSync(join(folder, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
    const [one, two] = hosts
    const daemon = await ready(one)
    expect((await doctor(one)).names).toContain('route-unpublished')
    await startSwitch()
    await daemon.line(/The route to \S+ is in 192\.168\.77\.254:8080$/)
    expect((await doctor(one)).names).not.toContain('route-unpublished')
    await ready(two)
    const { names, details } = await doctor(two)
    expect(names).toContain('route-table-full')
    expect(names).not.toContain('route-unpublished')
    expect(details).toContain('1 of 1 routes')
  })
})
