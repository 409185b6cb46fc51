// speed.test.ts - guards, not a benchmark: the native engine is clearly faster than one packet a system call, and the
// kernel hands it what containers send uncut.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { CASES } from '../../bench/cases.ts'
import { measure } from '../../bench/measure.ts'
import { ratio } from '../../bench/result.ts'
import { createLab, type Host } from '../../lab/lab.ts'
import { iperfServer, reach } from '../../lab/measure.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'g++', 'iperf3', 'ping')

/** Far below what is measured on a quiet machine (7 and 2), far above what a lost offload leaves (1 to 3). */
const TCP_AT_LEAST = 4
const SMALL_PACKETS_AT_LEAST = 1.2

it('the native engine beats the naive one in the same run', async () => {
  const cases = (['tcp', 'udp64-flood'] as const).map((name) => [name, CASES[name]!] as const)
  const { series } = await measure({
    name: 'guard',
    link: 'plain',
    ends: 'hosts',
    cases,
    paths: ['native', 'naive'],
    rounds: 3,
    seconds: 1,
  })
  const timesNaive = (metric: string): number => {
    const { values } = series.find((each) => `${each.case} ${each.metric}` === metric)!
    return ratio(values['native'], values['naive'])!
  }
  expect(timesNaive('tcp throughput')).toBeGreaterThan(TCP_AT_LEAST)
  expect(timesNaive('udp64-flood received')).toBeGreaterThan(SMALL_PACKETS_AT_LEAST)
})

it('superpackets of containers reach the engine whole', async () => {
  const lab = await createLab({ hosts: 2 })
  try {
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
    const [sender, receiver] = lab.hosts as [Host, Host]
    const daemons = lab.hosts.map((host) => host.startDaemon({ args: ['--lease-dir', leases] }))
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    const [from, to] = [await sender.startPod(), await receiver.startPod()]
    await reach(from.namespace, to.address)
    const server = await iperfServer((command) => receiver.spawn(['ip', 'netns', 'exec', to.namespace, ...command]))
    const { bitsPerSecond } = await server.run(from.namespace, to.address, 1)
    // What the TUN counts as sent is what the engine has read from it.
    const [link] = JSON.parse(await sender.output(['ip', '-s', '-j', 'link', 'show', 'flannel0'])) as [
      { readonly stats64: { readonly tx: { readonly packets: number; readonly bytes: number } } },
    ]
    const { packets, bytes } = link.stats64.tx
    expect(bytes).toBeGreaterThan((bitsPerSecond / 8) * 0.9)
    expect(bytes / packets).toBeGreaterThan(10 * 1472)
  } finally {
    await lab.close()
  }
})
