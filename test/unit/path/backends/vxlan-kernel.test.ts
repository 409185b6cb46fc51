// vxlan-kernel.test.ts - the cost of one changed lease beside many others, and the kernel's reports of changes by weftd
// itself.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import { readSettings } from '../../../../src/control/config/backend-options.ts'
import { parseNetworkConfig } from '../../../../src/control/config/network-config.ts'
import type { Lease } from '../../../../src/control/lease/lease.ts'
import type { Run } from '../../../../src/host/command.ts'
import { hostKernel } from '../../../../src/host/no-kernel.ts'
import { parseIpv4, parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { prepareKernelVxlan } from '../../../../src/path/backends/vxlan-kernel.ts'
import { openPaths } from '../../../support/data-paths.ts'

const PEERS = 500
const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
const mac = (number: number): string => `02:00:00:00:0${number >> 8}:${(number & 255).toString(16).padStart(2, '0')}`
function lease(number: number, at = mac(number)): Lease {
  const subnet = `10.${number >> 8}.${number & 255}.0`
  return {
    key: `${subnet}-24`,
    subnet: { ipv4: parseIpv4Net(`${subnet}/24`)! },
    attrs: {
      publicIp: { ipv4: parseIpv4('172.16.0.0')! + number },
      backendType: 'vxlan',
      backendData: { VNI: 1, VtepMAC: at },
    },
  }
}

/** A kernel that knows only the commands for a vxlan device with peers. */
function createKernel() {
  const [neighbours, forwarding] = [new Map<string, string>(), new Map<string, string>()]
  const routes = new Map<string, string>()
  const calls: string[] = []
  const info_data = { id: 1, local: '172.31.0.1', link: 'eth0', port: 8472, learning: false }
  const device = {
    ifindex: 7,
    ifname: 'flannel.1',
    mtu: 1450,
    flags: ['UP'],
    address: '02:ff:ff:ff:ff:ff',
    linkinfo: { info_kind: 'vxlan', info_data },
    addr_info: [{ local: '10.200.0.0', prefixlen: 32 }],
  }
  const show = (to: string): object[] =>
    routes.has(to) ? [{ dst: to, gateway: routes.get(to), dev: 'flannel.1', flags: ['onlink'] }] : []
  const run: Run = async (file, args, options) => {
    const text = [file, ...args].join(' ')
    calls.push(text)
    if (text.includes('neigh show')) return JSON.stringify([...neighbours].map(([dst, lladdr]) => ({ dst, lladdr })))
    if (text.includes('fdb show')) return JSON.stringify([...forwarding].map(([to, dst]) => ({ mac: to, dst })))
    if (text.includes('route show')) return JSON.stringify([...routes.keys()].flatMap(show))
    if (text.includes(' show ')) return JSON.stringify([device])
    const lines = options?.input?.trimEnd().split('\n') ?? []
    if (text.includes('-j')) return lines.map((line) => JSON.stringify(show(line.split(' ').at(-1)!))).join('\n')
    for (const line of lines) {
      const [what, verb, name = '', , third = '', , sixth = ''] = line.split(' ')
      const of = { neigh: neighbours, fdb: forwarding, route: routes }[what!]!
      if (verb === 'del') of.delete(name)
      else of.set(name, what === 'fdb' ? sixth : third)
    }
    return ''
  }
  return { run, calls, neighbours, forwarding, routes }
}

async function open() {
  const kernel = createKernel()
  const config = parseNetworkConfig('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}')
  const address = { ipv4: parseIpv4('172.31.0.1')! }
  const named = { address: { ipv4: true }, publicIp: { ipv4: true } }
  const setup = {
    names: { ipv4: 'flannel.1' },
    options: readSettings('vxlan', config.backend),
    port: 8472,
    mtus: { ipv4: 1450, ipv6: 1430 },
    macs: { ipv4: '02:ff:ff:ff:ff:ff' },
    external: { name: 'eth0', mtu: 1500, address, publicIp: address, named },
  }
  const carrier = await prepareKernelVxlan(() => setup, { config, run: kernel.run, kernel: hostKernel, log })
  const attrs = { publicIp: address, backendType: 'vxlan' }
  const own = {
    key: '10.200.0.0-24',
    subnet: { ipv4: parseIpv4Net('10.200.0.0/24')! },
    attrs,
    expiresAt: 0,
    revision: 1n,
  }
  const leases = new Map(Array.from({ length: PEERS }, (_, at) => lease(at + 1)).map((each) => [each.key, each]))
  const dataPath = await openPaths({ ...carrier, external: setup.external }, own, kernel.run, { leases, log })
  const apply = (...changed: readonly Lease[]): Promise<void> => {
    for (const each of changed) leases.set(each.key, each)
    return dataPath.apply(leases, own.key, changed.length > 0 ? new Set(changed.map(({ key }) => key)) : undefined)
  }
  await apply()
  kernel.calls.length = 0
  return { ...kernel, leases, own, dataPath, apply }
}

it('touches only the entries of a lease that changed, came or went, with the same result as a full check', async () => {
  const { calls, neighbours, forwarding, routes, leases, own, dataPath, apply } = await open()
  expect([neighbours.size, forwarding.size, routes.size]).toEqual([PEERS, PEERS, PEERS])
  await apply(lease(3, '02:99:00:00:00:03'))
  await apply(lease(PEERS + 1))
  leases.delete('10.0.4.0-24')
  await dataPath.apply(leases, own.key, new Set(['10.0.4.0-24']))
  expect(calls.filter((each) => /(neigh|fdb) show|show root/.test(each))).toEqual([])
  expect([neighbours.get('10.0.3.0'), forwarding.get('02:99:00:00:00:03')]).toEqual(['02:99:00:00:00:03', '172.16.0.3'])
  expect([forwarding.has(mac(3)), neighbours.has('10.0.4.0'), forwarding.has(mac(4))]).toEqual([false, false, false])
  expect([routes.has('10.0.4.0/24'), routes.has('10.1.245.0/24')]).toEqual([false, true])
  const said = () => [neighbours, forwarding, routes].map((each) => [...each].map(String).toSorted())
  const before = said()
  await apply()
  expect(said()).toEqual(before)
})

it('ignores reports of its own changes, but not of other changes', async () => {
  const { dataPath, leases, own, apply } = await open()
  await apply(lease(3, '02:99:00:00:00:03'))
  leases.delete('10.0.4.0-24')
  await dataPath.apply(leases, own.key, new Set(['10.0.4.0-24']))
  const matters = (line: string) => dataPath.watched[0]?.matters?.(line)
  for (const [line, isNews] of [
    ['10.0.3.0 dev flannel.1 lladdr 02:99:00:00:00:03 PERMANENT ', false],
    ['172.16.0.3 dev flannel.1 lladdr 02:99:00:00:00:03 NOARP PERMANENT ', false],
    [`Deleted 172.16.0.3 dev flannel.1 lladdr ${mac(3)} NOARP PERMANENT `, false],
    ['10.0.4.0 dev flannel.1 FAILED ', false],
    ['Deleted 10.0.4.0 dev flannel.1 FAILED ', false],
    [`10.0.3.0 dev flannel.1 lladdr ${mac(3)} PERMANENT `, true],
    ['10.0.3.0 dev flannel.1 FAILED ', true],
    ['Deleted 10.0.3.0 dev flannel.1 lladdr 02:99:00:00:00:03 PERMANENT ', true],
    [`Deleted 172.16.0.5 dev flannel.1 lladdr ${mac(5)} NOARP PERMANENT `, true],
    [`172.16.0.9 dev flannel.1 lladdr ${mac(5)} NOARP PERMANENT `, true],
    ['10.0.3.0 dev eth0 lladdr 02:99:00:00:00:03 REACHABLE ', false],
  ] as const)
    expect([line, matters(line)]).toEqual([line, isNews])
})

it('moves a peer to the tunnel while the kernel refuses its direct route, and back later', async () => {
  const peers = [lease(1), lease(2)]
  const [kernel, errors] = [createKernel(), [] as string[]]
  /** The hosts that are behind a router now. */
  const beyond = new Set<string>()
  const routes = new Map<string, { gateway: string; dev: string }>()
  const shown = (): string => JSON.stringify([...routes].map(([dst, hop]) => ({ dst, ...hop })))
  const run: Run = async (file, args, options) => {
    const text = [file, ...args].join(' ')
    if (text === 'ip -j address show dev eth0') {
      const addr_info = [{ family: 'inet', local: '172.31.0.1', prefixlen: 16, scope: 'global' }]
      return JSON.stringify([{ ifindex: 2, ifname: 'eth0', mtu: 1500, flags: ['UP'], addr_info }])
    }
    if (text.includes('route show')) return shown()
    const lines = options?.input?.trimEnd().split('\n') ?? []
    if (text.includes('route get') || lines.some((line) => line.startsWith('route get'))) {
      const hosts = lines.length > 0 ? lines.map((line) => line.split(' ').at(-1)!) : [args.at(-1)!]
      return hosts
        .map((dst) => JSON.stringify([{ dst, dev: 'eth0', ...(beyond.has(dst) ? { gateway: '172.31.0.254' } : {}) }]))
        .join('\n')
    }
    if (text.includes('-j') && lines[0]?.startsWith('route show'))
      return lines
        .map((line) => line.split(' ').at(-1)!)
        .map((dst) => JSON.stringify(routes.has(dst) ? [{ dst, ...routes.get(dst) }] : []))
        .join('\n')
    const own = lines.length > 0 ? lines : [args.join(' ')]
    if (!own.some((line) => line.startsWith('route '))) return kernel.run(file, args, options)
    let isRefused = false
    for (const line of own) {
      const [, verb, dst = '', , gateway = '', , dev = ''] = line.split(' ')
      if (verb === 'del') routes.delete(dst)
      else if (dev === 'eth0' && beyond.has(gateway)) isRefused = true
      else routes.set(dst, { gateway, dev })
    }
    if (isRefused) throw new WeftError('COMMAND', 'Nexthop has invalid gateway', { cause: { code: 2, stdout: '' } })
    return ''
  }
  const config = parseNetworkConfig('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan","DirectRouting":true}}')
  const address = { ipv4: parseIpv4('172.31.0.1')! }
  const setup = {
    names: { ipv4: 'flannel.1' },
    options: readSettings('vxlan', config.backend),
    port: 8472,
    mtus: { ipv4: 1450, ipv6: 1430 },
    macs: { ipv4: '02:ff:ff:ff:ff:ff' },
    external: { name: 'eth0', mtu: 1500, address, publicIp: address, named: { address: {}, publicIp: {} } },
  }
  const heard = { ...log, error: (line: string) => void errors.push(line) }
  const carrier = await prepareKernelVxlan(() => setup, { config, run, kernel: hostKernel, log: heard })
  const own = { ...lease(200), expiresAt: 0, revision: 1n }
  const lease200 = { ...own, subnet: { ipv4: parseIpv4Net('10.200.0.0/24')! } }
  const dataPath = await openPaths({ ...carrier, external: setup.external }, lease200, run, { log: heard })
  await dataPath.apply(new Map(peers.map((each) => [each.key, each])), own.key)
  const direct = { gateway: '172.16.0.1', dev: 'eth0' }
  expect(routes.get('10.0.1.0/24')).toEqual(direct)
  expect(kernel.neighbours.has('10.0.1.0')).toBe(false)
  // The address is removed with its routes, and returns with another prefix length.
  routes.clear()
  beyond.add('172.16.0.1')
  await dataPath.resync()
  expect(routes.get('10.0.1.0/24')).toEqual({ gateway: '10.0.1.0', dev: 'flannel.1' })
  expect([kernel.neighbours.get('10.0.1.0'), kernel.forwarding.get(mac(1))]).toEqual([mac(1), '172.16.0.1'])
  expect(routes.get('10.0.2.0/24')).toEqual({ gateway: '172.16.0.2', dev: 'eth0' })
  expect(dataPath.peers().map(({ ipv4 }) => ipv4?.way)).toEqual(['kernel', 'direct'])
  beyond.clear()
  await dataPath.resync()
  expect(routes.get('10.0.1.0/24')).toEqual(direct)
  expect(kernel.neighbours.has('10.0.1.0')).toBe(false)
  expect(errors).toEqual([expect.stringContaining('Error adding route to 10.0.1.0/24 via 172.16.0.1 dev eth0')])
})
