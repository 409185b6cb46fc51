// memory.test.ts - a host keeps the history of a peer: in its events and its counters, over a restart, in the next daemon that takes over,
// and in the file if no daemon answers.

import { once } from 'node:events'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import type { HistoryReport } from '../../src/report/hour.ts'
import type { EventsReport } from '../../src/report/peer-events.ts'
import { eventually } from '../support/event.ts'
import { statusOf, subnetOf, weft } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS)

let lab: Lab
beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
})
afterEach(() => lab.close())

const ask = (socketPath: string, path: string): Promise<string> =>
  new Promise((resolve, reject) => {
    request({ socketPath, path }, (response) => {
      const parts: Buffer[] = []
      response.on('data', (part: Buffer) => parts.push(part))
      response.once('end', () => resolve(Buffer.concat(parts).toString()))
    })
      .once('error', reject)
      .end()
  })

const eventsOf = async (host: Host, ...words: string[]): Promise<EventsReport['events']> => {
  const { stdout } = await weft(host, ['events', '--json', ...words])
  return (JSON.parse(stdout) as EventsReport).events
}
const kindsOf = async (host: Host): Promise<readonly string[]> => (await eventsOf(host)).map(({ what }) => what)

it('the events that a peer was silent and came back survive a restart, a hand-over and a time without a daemon', async () => {
  const leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16"}')
  const [first, second] = lab.hosts as [Host, Host]
  const start = (host: Host): Daemon => host.startDaemon({ args: ['--lease-dir', leases, '--probe-interval', '1'] })
  let daemon = start(first)
  const other = start(second)
  await Promise.all([daemon, other].map((each) => each.line(/flannel is ready/)))
  const answering = (number: number) =>
    eventually(async () => expect((await statusOf(first)).peers).toMatchObject({ stored: 1, answering: number }))
  await answering(1)
  expect(await kindsOf(first)).toEqual([])
  expect((await weft(first, ['events'])).stdout).toBe('No events of peers are recorded.\n')

  const fell = Date.now()
  await second.output(['iptables', '-A', 'INPUT', '-p', 'udp', '--dport', '8285', '-j', 'DROP'])
  // This host still sends probes, and they arrive at the peer; only the answers are lost.
  await eventually(async () => expect(await kindsOf(first)).toEqual(['silent', 'one-way']))
  // Each step is ten seconds long. After its end the losses of the outage no longer count.
  await eventually(async () => {
    const history = JSON.parse(await ask(first.statusSocket, '/history.json')) as HistoryReport
    expect(history.node.lossPercent.some((lost) => lost !== null && lost > 0)).toBe(true)
  })
  await second.output(['iptables', '-D', 'INPUT', '-p', 'udp', '--dport', '8285', '-j', 'DROP'])
  await eventually(async () => expect(await kindsOf(first)).toEqual(['silent', 'one-way', 'back']))
  const events = await eventsOf(first)
  for (const event of events)
    expect(event).toMatchObject({ peer: subnetOf(second), publicIp: second.address, family: 'ipv4' })
  expect(Date.parse(events[0]!.at)).toBeGreaterThan(fell)
  expect(events[2]!.afterSeconds).toBeGreaterThanOrEqual(1)
  expect(events[2]!.afterSeconds).toBeLessThanOrEqual((Date.now() - fell) / 1000)
  expect((await statusOf(first)).peerEvents).toMatchObject({ silent: 1, 'one-way': 1, back: 1, moved: 0 })
  expect(await ask(first.statusSocket, '/metrics')).toMatch(/^weft_peer_events_total\{event="back"\} 1$/m)
  expect(await eventsOf(first, '--since', '1d')).toHaveLength(3)
  expect(await eventsOf(first, '--since', '2090-01-01')).toEqual([])
  expect((await weft(first, ['events'])).stdout).toMatch(
    new RegExp(`^\\S+Z +${subnetOf(second)} +${second.address} +answers again, after `, 'm'),
  )

  // First a restart, then another daemon that takes over from the running one.
  await daemon.stop()
  const file = `${first.subnetFile}.events`
  expect(readFileSync(file, 'utf8').trim().split('\n')).toHaveLength(4)
  const dead = await weft(first, ['events', '--subnet-file', first.subnetFile])
  expect([dead.code, dead.stdout.trim().split('\n').length]).toEqual([0, 4])
  expect(dead.stderr).toContain(`the events are from ${file}`)
  daemon = start(first)
  await daemon.line(/flannel is ready/)
  expect(await kindsOf(first)).toEqual(['silent', 'one-way', 'back'])
  await answering(1)
  await other.stop('SIGKILL')
  await eventually(async () => expect((await kindsOf(first)).at(-1)).toBe('silent'))
  const successor = start(first)
  await successor.line(/Running backend/)
  if (daemon.process.exitCode === null) await once(daemon.process, 'exit')
  await answering(0)
  const back = start(second)
  await back.line(/flannel is ready/)
  await eventually(async () => expect(await kindsOf(first)).toEqual(['silent', 'one-way', 'back', 'silent', 'back']))

  // Junk in the file is logged, and later events replace it.
  await successor.stop()
  writeFileSync(file, '\0junk')
  daemon = start(first)
  await daemon.line(/W.* Cannot use the events of peers in .*: its version is undefined, .*; the list starts empty/)
  await daemon.line(/flannel is ready/)
  expect(await kindsOf(first)).toEqual([])
})
