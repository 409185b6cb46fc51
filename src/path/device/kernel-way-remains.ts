// kernel-way-remains.ts - the programs and devices that a daemon with a FastPath left on this host. After a minute they carry no packets, but
// they stay until they are removed.

import { addon } from '../../host/addon.ts'
import { removeAll } from '../../host/kernel-errors.ts'
import type { HostKernel, Link } from '../../host/kernel.ts'
import type { Remains } from '../remains.ts'

/** The name of each program of weft in the lists of tc begins with this text. */
export const NAME = 'weft-'
export const isOwn = ({ name }: { readonly name: string }): boolean => name.startsWith(NAME)

/** Packets are sent into the first of these devices, and arrive at the second, where the kernel joins TCP segments. */
export const JOIN_DEVICES = ['weft-join', 'weft-joined'] as const

/** True if a program of weft is attached. A kernel that cannot list filters has no tc, and so no program. */
function hasOwn(hook: Parameters<typeof addon.listFilters>[0]): boolean {
  try {
    return addon.listFilters(hook).some(isOwn)
  } catch {
    return false
  }
}

/** Finds weft's programs on these interfaces. */
export function findPrograms(links: readonly Pick<Link, 'name' | 'index'>[]): readonly Remains[] {
  const hooks = links.flatMap(({ name, index }) => [
    { name, index, isEgress: false },
    { name, index, isEgress: true },
  ])
  return hooks.filter(hasOwn).map((hook) => ({
    things: [`the eBPF program on ${hook.name} (${hook.isEgress ? 'egress' : 'ingress'})`],
    stays: [],
    remove: async () => addon.detachProgram(hook),
  }))
}

/** Finds weft's programs on all interfaces of this host, and the devices at which the kernel joined segments. */
export async function findKernelWayRemains(kernel: HostKernel): Promise<readonly Remains[]> {
  const links = await kernel.links()
  const [name] = JOIN_DEVICES
  return [
    ...findPrograms(links),
    ...links
      .filter((link) => link.name === name)
      .map((device) => ({
        things: [`device ${name} (veth)`],
        stays: [],
        remove: () => removeAll(kernel, [{ kind: 'delete link', device }]),
      })),
  ]
}

/** Removes the devices at which the kernel joined segments, if they are there. */
export async function closeJoin(kernel: HostKernel): Promise<void> {
  await removeAll(kernel, [{ kind: 'delete link', device: { name: JOIN_DEVICES[0] } }]).catch(() => {})
}
