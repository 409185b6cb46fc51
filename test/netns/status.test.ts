// status.test.ts - real daemons tell how they are, at their sockets and ports.

import { afterEach, beforeEach, expect, it } from 'vitest'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { request } from 'node:http'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import type { Status } from '../../src/status/status.ts'
import { eventually } from '../support/event.ts'
import { added, answers, subnetOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS)

let lab: Lab
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
})
afterEach(() => lab.close())

/** What a daemon tells at its socket. */
const ask = ({ statusSocket }: Host, method = 'GET'): Promise<{ code: number | undefined; text: string }> =>
  new Promise((resolve, reject) => {
    request({ socketPath: statusSocket, path: '/status.json', method }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.on('end', () => resolve({ code: response.statusCode, text: Buffer.concat(parts).toString() }))
    })
      .once('error', reject)
      .end()
  })
const statusOf = async (host: Host): Promise<Status> => JSON.parse((await ask(host)).text) as Status

it.each(['native', 'dgram'])('tells what passed to and from each peer, with the %s engine', async (engine) => {
  const leases = join(lab.folder, 'leases')
  await lab.hosts[0]!.output(['mkdir', '-p', leases])
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
  const [first, second] = lab.hosts as [Host, Host]
  const args = ['--lease-dir', leases, '--engine', engine, '--healthz-port', '8080']
  const daemons = lab.hosts.map((host) => host.startDaemon({ args }))
  await Promise.all(daemons.map((daemon) => daemon.line(/Running backend/)))
  await daemons[0]!.line(added(second))
  await daemons[1]!.line(added(first))
  const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
  await answers(pods[0]!.namespace, pods[1]!.address, 5)

  const status = await eventually(async () => {
    const node = await statusOf(first)
    expect(node.dataPath!.threads).toHaveLength(engine === 'native' ? 8 : 0)
    return node
  })
  expect(status).toMatchObject({
    ...{ schema: 1, state: 'working', subnetFileWritten: true },
    node: { subnet: subnetOf(first), publicIp: first.address, externalInterface: 'eth0' },
    dataPath: { open: true, device: 'flannel0', engine, mtu: 1472 },
    peers: { stored: 1, programmed: 1 },
  })
  const [peer] = status.peers!.list
  expect(peer).toMatchObject({
    ...{ subnet: subnetOf(second), endpoint: `${second.address}:8285`, state: 'programmed' },
    ...{ txPackets: status.dataPath!.counters['tx_packets'], rxPackets: status.dataPath!.counters['rx_packets'] },
    ...{ txBytes: status.dataPath!.counters['tx_bytes'], rxBytes: status.dataPath!.counters['rx_bytes'] },
  })
  expect(peer!.rxPackets).toBeGreaterThanOrEqual(5)
  expect(peer!.heardSecondsAgo).toBeLessThan(60)
  expect((await ask(first, 'POST')).code).toBe(405)
  expect(JSON.parse(await first.output(['curl', '-sS', `http://127.0.0.1:8080/status.json`]))).toMatchObject({
    schema: 1,
  })

  // The peer goes and comes: what was counted of it stays its own.
  await daemons[1]!.stop()
  const restarted = second.startDaemon({ args })
  await restarted.line(/Running backend/)
  await restarted.line(added(first))
  await answers(pods[0]!.namespace, pods[1]!.address, 2)
  expect((await statusOf(first)).peers!.list[0]!.rxPackets).toBeGreaterThanOrEqual(peer!.rxPackets! + 2)
})
