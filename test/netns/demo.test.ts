// demo.test.ts - `npm run demo` shows each host's subnets and addresses, and which hosts reach each other. With options it also makes and
// names a fault, or encrypts and shows the packets on the underlay.

import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { FAULT_NAMES } from '../../lab/broken.ts'
import { ended, execute } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, 'ping', 'iperf3', 'iptables', 'unshare', 'tcpdump')

it('has a line of each network for each host, with the round-trip times per family, and ends by itself', async () => {
  const { code, stdout } = await execute([
    process.execPath,
    join(packageRoot, 'dist/lab/demo.js'),
    '--once',
    '--hosts',
    '2',
  ])
  expect({ code, stdout }).toMatchObject({ code: 0 })
  const ms = String.raw`\d+\.\d\d`
  const lines = [
    String.raw`host1   192\.168\.77\.1   10\.5\.\d+\.0/24 +10\.5\.\d+\.2 +- +${ms} ms`,
    String.raw`host2   192\.168\.77\.2   10\.5\.\d+\.0/24 +10\.5\.\d+\.2 +${ms} ms +-`,
    String.raw`host1   10\.6\.\d+\.0/24 +fd00:6:0:[\da-f]+::/64 +- +${ms}, ${ms} ms`,
    String.raw`host2   10\.6\.\d+\.0/24 +fd00:6:0:[\da-f]+::/64 +${ms}, ${ms} ms +-`,
  ]
  for (const line of lines) expect(stdout).toMatch(new RegExp(`^  ${line}$`, 'm'))
  expect(stdout).toMatch(/All hosts are removed/)
})

const OVER = [
  ['ipv4', String.raw`192\.168\.77\.`, 'IPv4'],
  ['ipv6', 'fd77::', 'IPv6'],
] as const
it.each(OVER)('carries both families over one outer family: %s', async (underlay, address, name) => {
  const { code, stdout } = await execute([
    process.execPath,
    join(packageRoot, 'dist/lab/demo.js'),
    '--once',
    '--hosts',
    '2',
    '--underlay',
    underlay,
  ])
  expect({ code, stdout }).toMatchObject({ code: 0 })
  expect(stdout).toContain(`A dual-stack network over ${name}. Ping over IPv4, IPv6`)
  const times = String.raw`\d+\.\d\d, \d+\.\d\d ms`
  const subnets = String.raw`10\.5\.\d+\.0/24 +fd00:5:0:[\da-f]+::/64`
  expect(stdout).toMatch(new RegExp(`^  host1   ${address}1 +${subnets} +- +${times}$`, 'm'))
  expect(stdout).toMatch(new RegExp(`^  host2   ${address}2 +${subnets} +${times} +-$`, 'm'))
  expect(stdout).toMatch(/TCP between containers, through weft +\S+ Gbit\/s, \S+ Gbit\/s, over IPv4 and IPv6$/m)
})

it.each([
  ['--underlay', 'ipv5', '--underlay is ipv5; it must be ipv4 or ipv6'],
  ['--underlay', 'ipv6', '--encrypted', '--underlay excludes --encrypted, and the engine dgram'],
  ['--underlay', 'ipv6', '--engine', 'dgram', '--underlay excludes --encrypted, and the engine dgram'],
])('refuses %s %s %s', async (...words) => {
  const said = words.pop()!
  expect(await execute([process.execPath, join(packageRoot, 'dist/lab/demo.js'), ...words])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining(said),
  })
})

it('encrypts, so the text in the container does not appear on the underlay', async () => {
  const { code, stdout } = await execute([
    process.execPath,
    join(packageRoot, 'dist/lab/demo.js'),
    '--once',
    '--hosts',
    '2',
    '--encrypted',
  ])
  expect({ code, stdout }).toMatchObject({ code: 0 })
  expect(stdout).toMatch(/^  in the container +20 +20 +20$/m)
  expect(stdout).toMatch(/^  on the cable, UDP 51820 +20 +0 +0$/m)
  expect(stdout).toMatch(/No packet on the cable shows the text/)
  const other = await execute([
    process.execPath,
    join(packageRoot, 'dist/lab/demo.js'),
    '--encrypted',
    '--engine',
    'dgram',
  ])
  expect(other).toMatchObject({ code: 2, stderr: expect.stringContaining('--encrypted excludes --broken') })
})

const FAULTS = [
  ['route', 'wrong route', 'foreign-route', []],
  ['port', 'firewall in', 'port-dropped', ['--underlay', 'ipv6']],
] as const
it.each(FAULTS)('breaks a network, explains the fault and undoes it: %s', async (name, title, finding, more) => {
  const demo = spawn(process.execPath, [
    join(packageRoot, 'dist/lab/demo.js'),
    '--broken',
    name,
    '--hosts',
    '2',
    ...more,
  ])
  let said = ''
  demo.stdout.setEncoding('utf8').on('data', (text: string) => (said += text))
  await eventually(() => expect(said).toMatch(/Enter explains the fault/))
  const tool = /^ +(\S+host2\/weft) doctor$/m.exec(said)?.[1] ?? ''
  const { code, stdout } = await execute([tool, 'doctor'])
  expect({ code, stdout }).toEqual({ code: 3, stdout: expect.stringContaining(finding) })
  demo.stdin.write('\n')
  const explained = new RegExp(`The fault: ${title}\\..*\\n +The remedy: .*\\n\\n.*repaired: `)
  await eventually(() => expect(said).toMatch(explained))
  demo.kill('SIGINT')
  await ended(demo)
  expect([demo.exitCode, said]).toEqual([0, expect.stringMatching(/All hosts are removed/)])
  const wrong = await execute([process.execPath, join(packageRoot, 'dist/lab/demo.js'), '--broken', 'nothing'])
  expect(wrong).toMatchObject({ code: 2, stderr: `--broken is nothing; it must be one of ${FAULT_NAMES.join(', ')}\n` })
})
