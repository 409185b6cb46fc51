// fake-host.ts - a host with one TUN and the routes to the network 10.5.0.0/16; commands change it, and are recorded.

import { beforeEach } from 'vitest'
import { WeftError } from '../../src/base/errors.ts'
import type { Run } from '../../src/host/command.ts'
import type { Log } from '../../src/base/log.ts'

export interface FakeHost {
  commands: string[]
  link: { mtu: number; txqlen: number; flags: string[]; addr_info: object[] } | undefined
  routes: { dst?: string; type?: string; dev?: string; metric?: number }[]
  fails: RegExp | undefined
  lines: string[]
  external: string
}
/** The host of the test that runs. */
export let host: FakeHost

export function installHost(): void {
  beforeEach(() => {
    host = {
      commands: [],
      link: undefined,
      routes: [],
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
  if (command === 'ip -j address show dev flannel0') {
    if (!host.link) throw new WeftError('COMMAND', 'Device "flannel0" does not exist.')
    return JSON.stringify([{ ifindex: 9, ifname: 'flannel0', ...host.link }])
  }
  host.commands.push(command)
  const link = host.link!
  const setting = /^ip link set dev flannel0 mtu (\d+) txqueuelen (\d+) up$/.exec(command)
  if (setting) Object.assign(link, { mtu: Number(setting[1]), txqlen: Number(setting[2]), flags: ['UP'] })
  if (command.startsWith('ip address replace'))
    link.addr_info = [{ family: 'inet', local: '10.5.72.0', prefixlen: 32, scope: 'global' }]
  if (command.startsWith('ip route replace'))
    host.routes = [...host.routes.filter(({ metric }) => metric), { dev: 'flannel0' }]
  return ''
}

const say = (message: string): void => void host.lines.push(message)
export const log: Log = { info: say, warn: say, error: say, v: () => false }
