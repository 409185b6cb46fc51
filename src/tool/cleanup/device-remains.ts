// device-remains.ts - devices and routes that flannel's daemons left on this host.

import { isWeftError } from '../../base/errors.ts'
import type { Run } from '../../host/command.ts'
import { ipJson, isNamedBy, isTunOpen } from '../../host/links.ts'
import { KINDS, type Kind } from '../../path/kinds.ts'
import type { Remains } from '../../path/remains.ts'

interface JsonLink {
  ifindex?: number
  ifname?: string
  flags?: string[]
  linkinfo?: { info_kind?: string; info_data?: { id?: number; external?: boolean; type?: string; persist?: boolean } }
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
  /** True when a process forwards packets through it. */
  readonly inUse: boolean
}

const DEVICES = Object.values<Kind>(KINDS).flatMap(({ devices }) => devices)

/** The devices that backends make: a name alone does not make a device flannel's. */
async function deviceOf({ ifindex = 0, ifname: name = '', flags = [], linkinfo }: JsonLink): Promise<Device[]> {
  const kind = linkinfo?.info_kind ?? ''
  const data = linkinfo?.info_data ?? {}
  const isOurs =
    DEVICES.some(([type, pattern]) => type === kind && isNamedBy(pattern, name)) &&
    (kind !== 'tun' || data.type === 'tun') &&
    // A VNI is the number in the name; flannel's devices are told none packet by packet.
    !data.external &&
    (data.id === undefined || name.endsWith(`.${data.id}`))
  if (!isOurs) return []
  // A TUN that is not persistent ends with its process; a persistent one has a carrier while a process has it open.
  const inUse = kind === 'tun' && (data.persist === false || (await isTunOpen(name, ifindex, flags)))
  return [{ name, kind, inUse }]
}

/** Finds all devices of flannel's or weft's on this host. */
export async function findDevices(run: Run): Promise<Device[]> {
  const links = await ipJson<JsonLink>(run, ['-d', 'link', 'show'])
  return (await Promise.all(links.map(deviceOf))).flat()
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
      stays: [],
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
    stays: [],
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
