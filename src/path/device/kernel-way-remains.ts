// kernel-way-remains.ts - the eBPF programs and veth devices that an ended weftd with the option FastPath left on this
// host. The programs stop carrying packets a minute after weftd ended, but the programs and the devices stay until they
// are removed.

import { addon } from '../../host/addon.ts'
import { removeAll } from '../../host/kernel-errors.ts'
import type { HostKernel, Link } from '../../host/kernel.ts'
import type { Remains } from '../remains.ts'

/** The name of each eBPF program of weft in the lists of tc begins with this text. */
export const NAME = 'weft-'
export const isOwn = ({ name }: { readonly name: string }): boolean => name.startsWith(NAME)

/**
 * The names of a pair of veth devices. eBPF programs send packets into the first device. The packets arrive at the
 * second device, where the kernel merges TCP segments.
 */
export const JOIN_DEVICES = ['weft-join', 'weft-joined'] as const

/**
 * How long in ms the eBPF program `ingress` of an earlier weftd stays attached after its program `egress` was detached.
 * In this time the peers receive packets from this host's engine, and no longer send packets by their own eBPF
 * programs. Datagrams of those programs are useless without `ingress` if their inner checksums are unfinished.
 */
export const INGRESS_STAYS_MS = 10_000

/**
 * Returns true if an eBPF program of weft is attached. If the kernel cannot list tc filters, it does not support tc, so
 * no program is attached.
 */
function hasOwn(hook: Parameters<typeof addon.listFilters>[0]): Promise<boolean> {
  return addon.listFilters(hook).then(
    (filters) => filters.some(isOwn),
    () => false,
  )
}

/** Finds weft's eBPF programs on the interfaces `links`. */
export async function findPrograms(links: readonly Pick<Link, 'name' | 'index'>[]): Promise<readonly Remains[]> {
  const hooks = links.flatMap(({ name, index }) => [
    { name, index, isEgress: false },
    { name, index, isEgress: true },
  ])
  const found: Remains[] = []
  for (const hook of hooks) {
    if (!(await hasOwn(hook))) continue
    found.push({
      things: [`the eBPF program on ${hook.name} (${hook.isEgress ? 'egress' : 'ingress'})`],
      stays: [],
      remove: async () => {
        if (await hasOwn(hook)) await addon.detachProgram(hook)
      },
    })
  }
  return found
}

/**
 * Finds weft's eBPF programs on all interfaces of this host, and the pair of veth devices JOIN_DEVICES that belongs to
 * these programs.
 */
export async function findKernelWayRemains(kernel: HostKernel): Promise<readonly Remains[]> {
  const links = await kernel.links()
  const [name] = JOIN_DEVICES
  return [
    ...(await findPrograms(links)),
    ...links
      .filter((link) => link.name === name)
      .map((device) => ({
        things: [`device ${name} (veth)`],
        stays: [],
        remove: () => removeAll(kernel, [{ kind: 'delete link', device }]),
      })),
  ]
}

/** Removes the pair of veth devices JOIN_DEVICES, if it exists. */
export async function closeJoin(kernel: HostKernel): Promise<void> {
  await removeAll(kernel, [{ kind: 'delete link', device: { name: JOIN_DEVICES[0] } }]).catch(() => {})
}
