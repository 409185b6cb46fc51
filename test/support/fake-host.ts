// fake-host.ts - a mock host with one TUN and the routes to the networks 10.5.0.0/16 and fd00:5::/48. Commands change it and are recorded.

import { beforeEach } from 'vitest'
import { WeftError } from '../../src/base/errors.ts'
import type { Log } from '../../src/base/log.ts'
import type { Run } from '../../src/host/command.ts'

interface FakeHost {
  commands: string[]
  link: { mtu: number; txqlen: number; flags: string[]; addr_info: object[] } | undefined
  routes: { dst?: string; type?: string; dev?: string; metric?: number }[]
  /** The routes to fd00:5::/48. */
  routes6: FakeHost['routes']
  fails: RegExp | undefined
  lines: string[]
  external: string
}
/** The host of the running test. */
export let host: FakeHost

export function installHost(): void {
  beforeEach(() => {
    host = {
      commands: [],
      link: undefined,
      routes: [],
      routes6: [],
      fails: undefined,
      lines: [],
      external: '',
    }
  })
}

export const run: Run = async (file, args) => {
  const command = [file, ...args].join(' ')
  if (host.fails?.test(command)) throw new WeftError('PERMISSION', `\`${command}\` failed`)
  if (command === 'ip -j address show dev eth0') return host.external
  if (command === 'ip -j -4 route show exact 10.5.0.0/16') return JSON.stringify(host.routes)
  if (command === 'ip -j -4 route show root 10.5.0.0/16')
    return JSON.stringify(host.routes.map((route) => ({ dst: '10.5.0.0/16', ...route })))
  const [, way] = /^ip -j -6 route show (exact|root) fd00:5::\/48$/.exec(command) ?? []
  if (way) return JSON.stringify(host.routes6.map((route) => ({ dst: 'fd00:5::/48', metric: 1024, ...route })))
  if (command === 'ip -j address show dev flannel0') {
    if (!host.link) throw new WeftError('COMMAND', 'Device "flannel0" does not exist.')
    return JSON.stringify([{ ifindex: 9, ifname: 'flannel0', ...host.link }])
  }
  host.commands.push(command)
  const link = host.link!
  const setting = /^ip link set dev flannel0 mtu (\d+) txqueuelen (\d+) up$/.exec(command)
  if (setting) Object.assign(link, { mtu: Number(setting[1]), txqlen: Number(setting[2]), flags: ['UP'] })
  const [, address = ''] = /^ip address replace (\S+)\/\d+ /.exec(command) ?? []
  if (address !== '') {
    const [family, prefixlen] = address.includes(':') ? ['inet6', 128] : ['inet', 32]
    const others = link.addr_info.filter((each) => (each as { family?: string }).family !== family)
    link.addr_info = [...others, { family, local: address, prefixlen, scope: 'global' }]
  }
  if (command.startsWith('ip route replace fd00:5::/48')) host.routes6 = [{ dev: 'flannel0' }]
  else if (command.startsWith('ip route replace'))
    host.routes = [...host.routes.filter(({ metric }) => metric), { dev: 'flannel0' }]
  return ''
}

const say = (message: string): void => void host.lines.push(message)
export const log: Log = { info: say, warn: say, error: say, v: () => false }
