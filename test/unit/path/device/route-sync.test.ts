// route-sync.test.ts - which routes through a backend's own device belong to a peer and are removed, and which do not.

import { expect, it } from 'vitest'
import { WeftError } from '../../../../src/base/errors.ts'
import type { Ipv4Lease } from '../../../../src/control/lease/lease.ts'
import type { Run } from '../../../../src/host/command.ts'
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
  const sync = new RouteSync({ network: parseIpv4Net('10.5.0.0/16')!, ownDevice: 'flannel.1', run, log })
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
  expect(direct.hops()).toEqual(new Map([['10.5.2.0/24', { gateway: '192.0.2.2', device: 'eth0' }]]))
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
  const sync = new RouteSync({ network: parseIpv4Net('10.5.0.0/16')!, run, log })
  await sync.apply(new Map([['10.5.2.0/24', { gateway: '192.0.2.2', device: 'eth0' }]]))
  expect(batches.join('')).toContain('route replace 10.5.2.0/24 via 192.0.2.2')
})

it('does not replace the route of a bridge: it logs the route once, and adds the peer’s route when the other is gone', async () => {
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
    log: { info: say, warn: say, error: say, v: () => false },
  })
  const hop = (last: number) => ({ gateway: `192.0.2.${last}`, device: 'eth0' })
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
