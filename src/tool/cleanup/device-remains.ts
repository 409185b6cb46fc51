// device-remains.ts - devices and routes that flannel's daemons left on this host.

import { isWeftError } from '../../base/errors.ts'
import type { Run } from '../../host/command.ts'
import { ipJson } from '../../host/links.ts'
import { findDevices } from '../../path/device/flannel-devices.ts'
import type { Remains } from '../../path/remains.ts'

interface JsonRoute {
  type?: string
  dst?: string
  gateway?: string
  metric?: number
  protocol?: string
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
