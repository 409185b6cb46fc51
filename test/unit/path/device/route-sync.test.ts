// route-sync.test.ts - which routes through a backend's own device belong to a peer and are removed, and which do not.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Ipv4Lease } from '../../../../src/control/lease/lease.ts'
import type { Run } from '../../../../src/host/command.ts'
import { FollowedLink } from '../../../../src/host/links.ts'
import { hostKernel } from '../../../../src/host/no-kernel.ts'
import { parseIpv4Net } from '../../../../src/net/ipv4.ts'
import { RouteSync } from '../../../../src/path/device/route-sync.ts'
import { DirectHops } from '../../../../src/path/tunnel/direct-routing.ts'

it("removes an earlier process's routes to peers through its own device, and keeps the device's own routes", async () => {
  const batches: string[] = []
  const routes = [
    { dst: '10.5.2.0/24', gateway: '10.5.2.0', dev: 'flannel.1', flags: ['onlink'] },
    { dst: '10.5.7.0/24', dev: 'flannel.1', scope: 'link' },
    { dst: '10.5.8.0/24', gateway: '192.0.2.8', dev: 'eth0' },
  ]
  const run: Run = async (_file, args, options) => {
    if (options?.input !== undefined) batches.push(options.input)
    return args.includes('-j') ? JSON.stringify(routes) : ''
  }
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const sync = new RouteSync({
    network: parseIpv4Net('10.5.0.0/16')!,
    ownDevice: { name: 'flannel.1' },
    run,
    kernel: hostKernel,
    log,
  })
  await sync.apply(new Map())
  expect(batches.join('').match(/route del \S+/g)).toEqual(['route del 10.5.2.0/24'])
})

it('considers a peer without output of `ip` unreachable only if `ip` ran to its end', async () => {
  const [near, far] = ['10.5.2.0/24', '10.5.3.0/24'].map((subnet, at): Ipv4Lease => {
    const attrs = { publicIp: { ipv4: 0xc0000202 + at }, backendType: '' }
    return { key: subnet, subnet: { ipv4: parseIpv4Net(subnet)! }, attrs }
  })
  const stdout = '[{"dst":"192.0.2.2","dev":"eth0"}]\n'
  const after =
    (code: number | null): Run =>
    () =>
      Promise.reject(
        new WeftError('COMMAND', 'failed', { cause: Object.assign(new Error('failed'), { code, stdout }) }),
      )
  const peers = new Map([near!, far!].map((peer) => [peer.key, peer]))
  const direct = new DirectHops(after(1), 'ipv4')
  await direct.lookUp(peers)
  expect(direct.hops()).toEqual(new Map([['10.5.2.0/24', { gateway: '192.0.2.2', device: new FollowedLink('eth0') }]]))
  await expect(new DirectHops(after(null), 'ipv4').lookUp(peers)).rejects.toMatchObject({ code: 'COMMAND' })
})

it('replaces a route with several gateways to a peer, which is not the route of a link', async () => {
  const batches: string[] = []
  const nexthops = ['192.0.2.8', '192.0.2.9'].map((gateway) => ({ gateway, dev: 'eth0', weight: 1, flags: [] }))
  const run: Run = async (_file, args, options) => {
    if (args.includes('-j')) return JSON.stringify([{ dst: '10.5.2.0/24', nexthops }])
    batches.push(options?.input ?? '')
    return ''
  }
  const log = { info: () => {}, warn: () => {}, error: () => {}, v: () => false }
  const sync = new RouteSync({ network: parseIpv4Net('10.5.0.0/16')!, run, kernel: hostKernel, log })
  await sync.apply(new Map([['10.5.2.0/24', { gateway: '192.0.2.2', device: new FollowedLink('eth0') }]]))
  expect(batches.join('')).toContain('route replace 10.5.2.0/24 via 192.0.2.2')
})

it('does not replace the route of a bridge: it logs the route once, and adds the peer’s route when the bridge’s is gone', async () => {
  const [lines, batches]: [string[], string[]] = [[], []]
  const bridge = { dst: '10.5.2.0/24', dev: 'cni0', protocol: 'kernel', scope: 'link', prefsrc: '10.5.2.1' }
  let routes: object[] = [bridge, { dst: '10.5.3.0/24', gateway: '192.0.2.9', dev: 'eth0' }]
  const run: Run = async (_file, args, options) => {
    if (args.includes('-j')) {
      const lists = options?.input?.trimEnd().split('\n')
      const to = (line: string): object[] =>
        routes.filter((each) => (each as { dst: string }).dst === line.split(' ').at(-1))
      return lists ? lists.map((line) => JSON.stringify(to(line))).join('\n') : JSON.stringify(routes)
    }
    if (options?.input !== undefined) batches.push(options.input)
    return ''
  }
  const say = (line: string): void => void lines.push(line)
  const sync = new RouteSync({
    network: parseIpv4Net('10.5.0.0/16')!,
    run,
    kernel: hostKernel,
    log: { info: say, warn: say, error: say, v: () => false },
  })
  const hop = (last: number) => ({ gateway: `192.0.2.${last}`, device: new FollowedLink('eth0') })
  await sync.apply(
    new Map([
      ['10.5.2.0/24', hop(2)],
      ['10.5.3.0/24', hop(3)],
    ]),
  )
  await sync.resync()
  expect(batches.join('')).not.toContain('10.5.2.0/24')
  expect(batches.join('')).toContain('route replace 10.5.3.0/24 via 192.0.2.3')
  expect(lines.filter((line) => line.includes("10.5.2.0/24, a peer's subnet, leads to cni0"))).toHaveLength(1)
  expect(['10.5.2.0/24', '10.5.3.0/24'].map((to) => sync.isSet(to))).toEqual([false, true])
  routes = []
  await sync.resync()
  expect(batches.at(-1)).toContain('route replace 10.5.2.0/24 via 192.0.2.2')
  expect(sync.isSet('10.5.2.0/24')).toBe(true)
})

/** A host with an interface of index 2, whose routes follow a new name of the interface, as in the kernel. */
function renaming() {
  const host = { name: 'eth0', routes: new Map<string, string>(), changes: [] as string[] }
  const run: Run = async (_file, args, options) => {
    const device = args.includes('dev') ? args.at(-1) : undefined
    if (args.includes('address')) {
      if (device !== undefined && device !== host.name)
        throw new WeftError('COMMAND', `Device "${device}" does not exist.`)
      return JSON.stringify([{ ifindex: 2, ifname: host.name }])
    }
    const lists = [...host.routes].map(([dst, gateway]) => ({ dst, gateway, dev: host.name }))
    if (args.includes('-j') && options?.input === undefined) return JSON.stringify(lists)
    const answers: string[] = []
    for (const line of options?.input?.trimEnd().split('\n') ?? [args.join(' ')]) {
      const [, verb = '', to = '', gateway = '', dev = ''] =
        /^route (replace|del|show exact) (\S+)(?: via (\S+) dev (\S+))?/.exec(line) ?? []
      if (verb === 'show exact') answers.push(JSON.stringify(lists.filter(({ dst }) => dst === to)))
      else if (dev !== host.name) throw new WeftError('COMMAND', `Cannot find device "${dev}"`)
      else if (verb === 'del') host.routes.delete(to)
      else host.routes.set(to, gateway)
      if (verb !== 'show exact') host.changes.push(line)
    }
    return answers.join('\n')
  }
  const errors: string[] = []
  const log = { info: () => {}, warn: () => {}, error: (line: string) => void errors.push(line), v: () => false }
  const device = new FollowedLink('eth0', 2)
  const hops = (...thirds: readonly number[]) =>
    new Map(thirds.map((third) => [`10.5.${third}.0/24`, { gateway: `192.0.2.${third}`, device }]))
  return {
    host,
    errors,
    hops,
    sync: new RouteSync({ network: parseIpv4Net('10.5.0.0/16')!, run, kernel: hostKernel, log }),
  }
}

it('keeps the routes through a renamed interface, and adds and removes routes under the new name', async () => {
  const { host, errors, hops, sync } = renaming()
  await sync.apply(hops(2, 3))
  Object.assign(host, { name: 'uplink0', changes: [] })
  expect(await sync.resync()).toEqual([])
  expect(host.changes).toEqual([])
  await sync.apply(hops(3, 4), new Set(['10.5.2.0/24', '10.5.4.0/24']))
  expect([...host.routes.keys()]).toEqual(['10.5.3.0/24', '10.5.4.0/24'])
  expect(errors).toEqual([])
})

it('uses a new name immediately if peers change before the next check', async () => {
  const { host, errors, hops, sync } = renaming()
  await sync.apply(hops(2, 3))
  Object.assign(host, { name: 'uplink0', changes: [] })
  await sync.apply(hops(3, 4), new Set(['10.5.2.0/24', '10.5.4.0/24']))
  expect([...host.routes.keys()]).toEqual(['10.5.3.0/24', '10.5.4.0/24'])
  expect(host.changes).toEqual([
    'route del 10.5.2.0/24 via 192.0.2.2 dev uplink0',
    expect.stringContaining('route replace 10.5.4.0/24 via 192.0.2.4 dev uplink0'),
  ])
  // Without a removed peer the kernel's refusal shows that the name is old.
  Object.assign(host, { name: 'uplink1' })
  await sync.apply(hops(3, 4, 5), new Set(['10.5.5.0/24']))
  expect([...host.routes.keys()]).toEqual(['10.5.3.0/24', '10.5.4.0/24', '10.5.5.0/24'])
  expect([errors, sync.isSet('10.5.5.0/24')]).toEqual([[], true])
})
