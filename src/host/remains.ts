// remains.ts - what flannel's daemons leave on a host: devices and routes; and whether one still runs.

import { readdir, readFile, readlink } from 'node:fs/promises'
import { basename } from 'node:path'
import { isWeftError } from '../errors.ts'
import { ipJson } from './links.ts'
import type { Run } from './command.ts'

/** What can be removed in one step. */
export interface Remains {
  /** A line for each thing. */
  readonly things: readonly string[]
  /** Lines for what must stay, with the reason. */
  readonly held: readonly string[]
  readonly remove: () => Promise<void>
}

interface JsonLink {
  ifname?: string
  flags?: string[]
  linkinfo?: { info_kind?: string; info_data?: { id?: number; type?: string; persist?: boolean } }
}

interface JsonRoute {
  type?: string
  dst?: string
  gateway?: string
  metric?: number
  protocol?: string
}

interface Device {
  readonly name: string
  readonly kind: string
  /** Whether a process forwards packets through it. */
  readonly held: boolean
}

/** The devices of the backends udp, vxlan, ipip and wireguard: a name alone does not make a device flannel's. */
function deviceOf({ ifname: name = '', flags = [], linkinfo }: JsonLink): Device | undefined {
  const kind = linkinfo?.info_kind ?? ''
  const data = linkinfo?.info_data ?? {}
  const isOurs =
    (kind === 'tun' && data.type === 'tun' && /^flannel\d+$/.test(name)) ||
    (kind === 'vxlan' && /^flannel(-v6)?\.\d+$/.test(name) && name.endsWith(`.${data.id}`)) ||
    (kind === 'ipip' && name === 'flannel.ipip') ||
    (kind === 'wireguard' && /^flannel-wg(-v6)?$/.test(name))
  // A TUN that is not persistent ends with its process; a persistent one has a carrier while a process has it open.
  const held = kind === 'tun' && (data.persist === false || (flags.includes('UP') && !flags.includes('NO-CARRIER')))
  return isOurs ? { name, kind, held } : undefined
}

async function findDevices(run: Run): Promise<Device[]> {
  return (await ipJson<JsonLink>(run, ['-d', 'link', 'show'])).flatMap((link) => deviceOf(link) ?? [])
}

/** Devices, with the routes that end with them. */
export async function findDeviceRemains(run: Run): Promise<Remains[]> {
  const remains: Remains[] = []
  for (const { name, kind } of await findDevices(run)) {
    const routes = (await routes46(run, ['table', 'all', 'dev', name])).filter(({ protocol }) => protocol !== 'kernel')
    const via = (gateway?: string): string => (gateway === undefined ? '' : ` via ${gateway}`)
    remains.push({
      things: [
        ...routes.map(({ dst, gateway }) => `route ${dst}${via(gateway)} dev ${name}`),
        `device ${name} (${kind})`,
      ],
      held: [],
      remove: async () => void (await run('ip', ['link', 'del', 'dev', name])),
    })
  }
  return remains
}

/** Blackhole routes of `subnets` (as `ip` writes them), by --ip-blackhole-route. */
export async function findBlackholeRemains(run: Run, subnets: ReadonlySet<string>): Promise<Remains[]> {
  const routes = (await routes46(run, ['type', 'blackhole'])).filter(({ dst = '' }) => subnets.has(dst))
  return routes.map(({ dst = '', metric = 0 }) => ({
    things: [`route blackhole ${dst}`],
    held: [],
    remove: async () => {
      const family = dst.includes(':') ? '-6' : '-4'
      await run('ip', [family, 'route', 'del', 'blackhole', dst, 'metric', String(metric)])
    },
  }))
}

/** Routes of both families. */
async function routes46(run: Run, selector: readonly string[]): Promise<JsonRoute[]> {
  const of = (family: string) =>
    ipJson<JsonRoute>(run, [family, 'route', 'show', ...selector]).catch((error: unknown) => {
      if (family === '-6' && isWeftError(error, 'COMMAND')) return [] // a kernel without IPv6
      throw error
    })
  return [...(await of('-4')), ...(await of('-6'))]
}

/** The daemons of flannel's kind that run in this network namespace, each in words; `proc` is where procfs is mounted. */
export async function findRunning(run: Run, proc = '/proc'): Promise<string[]> {
  const running: string[] = []
  const here = await readlink(`${proc}/self/ns/net`)
  for (const pid of (await readdir(proc)).filter((name) => /^\d+$/.test(name))) {
    const command = await readFile(`${proc}/${pid}/cmdline`, 'utf8').catch(() => '') // it ended
    const name = daemonName(command.split('\0'))
    if (name === undefined) continue
    // Another user's, whose namespace we may not see, is taken to be here; one that has ended meanwhile is nowhere.
    const there = await readlink(`${proc}/${pid}/ns/net`).catch((error: NodeJS.ErrnoException) =>
      error.code === 'ENOENT' || error.code === 'ESRCH' ? undefined : here,
    )
    if (there === here) running.push(`${name} still runs (pid ${pid})`)
  }
  if (running.length > 0) return running
  // In a container the processes of the host cannot be seen, but its device can.
  const held = (await findDevices(run)).filter((device) => device.held)
  return held.map(({ name }) => `a process still forwards through ${name}`)
}

/** weftd is a script: its interpreter comes first. */
function daemonName([program = '', script = '']: readonly string[]): string | undefined {
  const name = basename(program)
  if (/^(flanneld|weftd)\b/.test(name)) return name
  return name.startsWith('node') && basename(script) === 'weftd' ? 'weftd' : undefined
}
