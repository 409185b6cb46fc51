// doctor-direct.test.ts - `weft doctor` on healthy hosts whose peers' packets bypass the tunnel (DirectRouting and host-gw), with the
// strict rp_filter of many distributions.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { createLab, whyNoVxlan, type Daemon, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { ping, reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, weft } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

const lacks = needs(HOSTS, 'iptables', 'nft')

let lab: Lab
let daemons: Daemon[] = []
beforeAll(async () => {
  if (lacks) return
  lab = await createLab({ hosts: 2 })
  mkdirSync(join(lab.folder, 'leases'))
  for (const host of lab.hosts)
    await host.output(['sh', '-c', 'for each in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $each; done'])
})
afterAll(() => lab?.close())

beforeEach(async ({ skip }) => {
  const why = await whyNoVxlan()
  skip(why !== undefined, why)
})

it.each([
  ['vxlan with DirectRouting', { Type: 'vxlan', DataPath: 'kernel', DirectRouting: true }],
  ['host-gw', { Type: 'host-gw' }],
])('finds nothing wrong with %s', async (_what, backend) => {
  await Promise.all(daemons.map((daemon) => daemon.stop()))
  writeFileSync(join(lab.folder, 'leases/config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
  const args = ['--lease-dir', join(lab.folder, 'leases'), '--probe-interval', '1']
  daemons = lab.hosts.map((host) => host.startDaemon({ args }))
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  const [first, second] = lab.hosts as [Host, Host]
  const [here, there] = await Promise.all([first.startPod(), second.startPod()])
  await reach(here.namespace, there.address)
  for (const host of lab.hosts)
    await eventually(async () => expect((await statusOf(host)).peers).toMatchObject({ stored: 1, answering: 1 }))
  for (const host of lab.hosts) {
    const { code, names, details } = await doctor(host)
    expect([code, names, details]).toEqual([0, [], []])
  }
  const explained = await weft(first, ['explain', there.address, here.address])
  // With host-gw only the hosts answer probes, which does not show that packets of containers arrive.
  const says = backend.Type === 'host-gw' ? /no step is known to stop it/ : /it would get through/
  expect(explained).toMatchObject({ code: 0, stdout: expect.stringMatching(says) })
  if (backend.Type === 'host-gw') await judgesTheUnderlay(first, second, [here, there])
})

/** Drops packets with addresses of containers between the hosts, as a cloud does, where the first host cannot see it. */
async function judgesTheUnderlay(first: Host, second: Host, [here, there]: readonly [Pod, Pod]): Promise<void> {
  const rule = (verb: string, end: string): Promise<string> =>
    second.output(['iptables', '-t', 'raw', verb, 'PREROUTING', '-i', 'eth0', end, '10.5.0.0/16', '-j', 'DROP'])
  const lost = () => ping(here.namespace, there.address, { count: 2 })
  await rule('-A', '-s')
  expect(await lost()).toEqual([])
  expect(await doctor(first)).toMatchObject({ code: 0, names: ['source-unanswered'] })
  await rule('-A', '-d')
  const { names, checks } = await doctor(first)
  expect([names, checks.find(({ check }) => check === 'crossing')?.state]).toEqual([[], 'unknown'])
  await rule('-D', '-s')
  await rule('-D', '-d')
  await reach(here.namespace, there.address)
}
