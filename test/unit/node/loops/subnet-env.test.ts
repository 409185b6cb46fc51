// subnet-env.test.ts - when subnet.env is written.

import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { expect, it, vi } from 'vitest'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { ByFamily } from '../../../../src/net/address.ts'
import { planOf } from '../../../support/data-paths.ts'
import {
  openFake,
  backend,
  dataPaths,
  installRig,
  inTurns,
  lines,
  logged,
  ownership,
  readiness,
  ready,
  start,
  store,
  subnetFile,
  told,
  until,
} from '../../../support/node-rig.ts'

installRig()

it('continues if subnet.env cannot be written, and is not ready', async () => {
  mkdirSync(subnetFile())
  start()
  await until(() => logged(/^W Failed to write subnet file: .*--subnet-file/) && logged(/Running backend/))
  expect([logged(/flannel is ready/), readiness()]).toEqual([false, false])
  // Like flanneld, weftd must have sent READY=1 nevertheless.
  await until(() => told.some((status) => status.includes(`: ${subnetFile()} is not written; `)))
  // weftd must try to write the file every five seconds, without logging each failure.
  for (let tries = 0; tries < 4; tries++) {
    await vi.advanceTimersByTimeAsync(5_000)
    for (let turns = 0; turns < 50; turns++) await new Promise((resolve) => setImmediate(resolve))
  }
  expect(lines.filter((line) => line.includes('Failed to write subnet file')).length).toBeLessThanOrEqual(2)
  rmSync(subnetFile(), { recursive: true })
  await inTurns(() => logged(/flannel is ready/))
  expect(readiness()).toBe(true)
  expect(logged(/Repaired/)).toBe(false)
})

it('writes subnet.env again when it was removed or changed, logs that, and otherwise does not write it', async () => {
  start()
  await ready()
  const text = readFileSync(subnetFile(), 'utf8')
  const writes = (): number => lines.filter((line) => line.includes('Wrote subnet file')).length
  await vi.advanceTimersByTimeAsync(30_000)
  expect(writes()).toBe(1)
  const spoils = [() => rmSync(subnetFile()), () => writeFileSync(subnetFile(), 'FLANNEL_MTU=1\n')]
  for (const [index, spoil] of spoils.entries()) {
    spoil()
    await inTurns(() => writes() === index + 2)
    expect(readFileSync(subnetFile(), 'utf8')).toBe(text)
    expect(logged(new RegExp(`^W Repaired: .*was gone or changed \\(repair ${index + 1} `))).toBe(true)
  }
})

it.each([
  [
    'both',
    { ipv4: 1, ipv6: 1n },
    '',
    'FLANNEL_NETWORK=10.5.0.0/24\nFLANNEL_SUBNET=10.5.0.SUBNET/26\nFLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:LAST::1/64\n',
  ],
  [
    'IPv6 alone',
    { ipv6: 1n },
    '"EnableIPv4":false,',
    'FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:LAST::1/64\n',
  ],
  // The node still has a subnet of the missing family, but no routes.
  ['IPv4 alone of both', { ipv4: 1 }, '', 'FLANNEL_NETWORK=10.5.0.0/24\nFLANNEL_SUBNET=10.5.0.129/26\n'],
] as const)('has %s families of those that are enabled and leased', async (_what, publicIp, off, text) => {
  const config = parseNetworkConfig(`{${off}"Network":"10.5.0.0/24","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}`)
  const prepare = async () => ({ publicIp, backendType: '' })
  // The backend of the rig has its own address in the IPv4 subnet.
  const none = { address: 0, prefixLength: 32 }
  const plan = planOf((lease) => openFake({ ...lease, subnet: { ...lease.subnet, ipv4: lease.subnet.ipv4 ?? none } }))
  if (!('ipv6' in publicIp)) store.put('10.5.0.128-26&fd00:5:0:7::-64', '{"PublicIP":"0.0.0.1"}')
  start({ config, backend: { ...backend, prepare, plan } })
  await ready()
  const known = text.replace(/10\.5\.0\.SUBNET/, '10.5.0.(65|129|193)').replace('LAST', '[0-9a-f]+')
  expect(readFileSync(subnetFile(), 'utf8')).toMatch(new RegExp(`^${known}FLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n$`))
  if ('ipv6' in publicIp) await until(() => store.claimed().includes('ipv4' in publicIp ? '0.0.0.1' : '::1'))
})

const BOTH = '{"Network":"10.5.0.0/24","EnableIPv6":true,"IPv6Network":"fd00:5::/48"}'
function startBoth(mtu: number, lacking: ByFamily<string> = {}): void {
  const plan = planOf(async (lease) => {
    const dataPath = await openFake(lease)
    dataPaths.at(-1)!.lacking = lacking
    return dataPath
  }, mtu)
  const prepare = async () => ({ publicIp: { ipv4: 1, ipv6: 1n }, backendType: '' })
  start({ config: parseNetworkConfig(BOTH), backend: { ...backend, prepare, plan } })
}
const names = (): string[] =>
  [...readFileSync(subnetFile(), 'utf8').matchAll(/FLANNEL_(\w*)SUBNET/g)].map(([name]) => name)

it.each([
  [1279, ['FLANNEL_SUBNET']],
  [1280, ['FLANNEL_SUBNET', 'FLANNEL_IPV6_SUBNET']],
])('with an MTU of %i it names what the kernel lets containers have', async (mtu, subnets) => {
  startBoth(mtu)
  await ready()
  expect(names()).toEqual(subnets)
  expect(logged(/^W .* omits IPv6, because containers cannot have addresses of that family now$/)).toBe(
    subnets.length === 1,
  )
})

it('leaves out a family that was not carried for ten seconds, and adds it again when it is carried', async () => {
  startBoth(1472, { ipv6: 'it is off here' })
  await ready()
  expect(names()).toHaveLength(2)
  await vi.advanceTimersByTimeAsync(9_000)
  expect(names()).toHaveLength(2)
  await inTurns(() => names().length === 1)
  expect(names()).toEqual(['FLANNEL_SUBNET'])
  dataPaths[0]!.lacking = {}
  await inTurns(() => names().length === 2)
  expect(logged(/names all families of this node again/)).toBe(true)
  expect(logged(/Repaired/)).toBe(false)
  dataPaths[0]!.lacking = { ipv4: 'it is off too', ipv6: 'it is off here' }
  await vi.advanceTimersByTimeAsync(60_000)
  expect(names()).toHaveLength(2) // no file without a subnet
})

it('leaves subnet.env to a successor that owns the data path, and repairs it again after the path is back', async () => {
  start()
  await ready()
  const text = readFileSync(subnetFile(), 'utf8')
  const isOurs = vi.spyOn(ownership, 'isOurs', 'get').mockReturnValue(false)
  writeFileSync(subnetFile(), 'FLANNEL_MTU=1\n') // as a successor with other flags writes it
  const end = process.hrtime.bigint() + 300_000_000n // in which a repair would have written the file
  await inTurns(() => process.hrtime.bigint() > end)
  expect([readFileSync(subnetFile(), 'utf8'), logged(/Repaired/)]).toEqual(['FLANNEL_MTU=1\n', false])
  isOurs.mockRestore()
  await inTurns(() => readFileSync(subnetFile(), 'utf8') === text)
})
