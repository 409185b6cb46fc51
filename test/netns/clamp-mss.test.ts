// clamp-mss.test.ts - "ClampMSS": connections of containers whose MTU is larger than the tunnel's start with segments that fit.

import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, type Host, type Lab, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping')

let lab: Lab
afterEach(() => lab?.close())

const LISTEN = `require('node:net').createServer((socket) => socket.resume()).listen(7000, () => console.log('listening'))`
const CONNECT = (address: string): string => `require('node:net').connect(7000, '${address}').resume()`
/** The bytes of TCP time stamps in each segment. */
const TIME_STAMPS = 12

/** Returns the size of the segments that the kernel of a container sends to port 7000. */
async function segmentOf(pod: Pod): Promise<number> {
  let mss = 0
  await eventually(async () => {
    const sockets = await pod.output(['ss', '-tinH', 'state', 'established', '( sport = :7000 or dport = :7000 )'])
    mss = Number(/ mss:(\d+)/.exec(sockets)?.[1] ?? 0)
    expect(mss).toBeGreaterThan(0)
  })
  return mss + TIME_STAMPS
}

it.each([
  { engine: 'native', backend: { Type: 'udp' }, mtu: 1472 },
  { engine: 'native', backend: { Type: 'udp', ClampMSS: true }, mtu: 1472 },
  { engine: 'dgram', backend: { Type: 'udp', ClampMSS: true }, mtu: 1472 },
  { engine: 'native', backend: { Type: 'vxlan', DataPath: 'userspace', ClampMSS: true }, mtu: 1450 },
])('segments fit the tunnel only with ClampMSS: $engine, $backend', async ({ engine, backend, mtu }) => {
  lab = await createLab({ hosts: 2 })
  const hosts = lab.hosts as [Host, Host]
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
  // Setting it on one host suffices for both directions.
  const daemons = [
    hosts[0].startDaemon({ args: ['--lease-dir', leases, '--engine', engine] }),
    hosts[1].startDaemon({ args: ['--lease-dir', leases, '--engine', backend.Type === 'vxlan' ? 'native' : 'dgram'] }),
  ]
  await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
  const wide = (host: Host): Promise<Pod> =>
    host.startPod({ gateway: host.subnetEnv()['FLANNEL_SUBNET']!, mtu: '1500' })
  const [from, to] = [await wide(hosts[0]), await wide(hosts[1])]
  await reach(from.namespace, to.address)
  await once(to.spawn([process.execPath, '-e', LISTEN]).stdout!, 'data')
  from.spawn([process.execPath, '-e', CONNECT(to.address)])
  const fits = 'ClampMSS' in backend ? mtu - 40 : 1500 - 40
  expect([await segmentOf(from), await segmentOf(to)]).toEqual([fits, fits])
})
