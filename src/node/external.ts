// external.ts - finds the external interface of a node at its start.

import { isDeepStrictEqual } from 'node:util'
import { isWeftError } from '../base/errors.ts'
import type { SubnetManager } from '../control/lease/subnet-manager.ts'
import { pause, type Bell } from '../host/bell.ts'
import { chooseExternalInterface, chooseForSome, type Earlier } from '../host/choose-interface.ts'
import { resumeExternal, seeExternal, type ExternalInterface } from '../host/external-interface.ts'
import type { HostKernel } from '../host/kernel.ts'
import { FAMILIES, familiesOf, formatAddress, listed, onlyOf, type Family } from '../net/address.ts'
import { interfaceWishes, type NodeOptions } from '../options.ts'
import { waitFor, type Waiter } from './exit-or-wait.ts'
import { canForward, type NewNode } from './node.ts'
import { externalOf } from './restart/last-known.ts'

/** The interval, in ms, of the checks of the host's interfaces if the kernel reports no change. */
const LOOK_MS = 5_000
/**
 * How long, in ms, the start waits for a default route and for an address of each family of the network, before it
 * continues with fewer families.
 */
const ALL_FAMILIES_MS = 10_000
/**
 * The pause in ms between the kernel's report of a change and the next check. Such reports come in bursts, and one
 * check handles a whole burst.
 */
const SETTLE_MS = 200

interface InterfaceBefore {
  readonly earlier?: Earlier
  /**
   * Returns the interface of the data path that forwards already, else the last known interface if the flags have not
   * changed since.
   */
  readonly known?: () => Promise<ExternalInterface | undefined>
}

interface ExternalParts {
  readonly kernel: HostKernel
  readonly options: NodeOptions
  readonly manager: SubnetManager
  readonly families: readonly Family[]
  /** Rings when the host's addresses, routes or devices change. */
  readonly hostChanged: Bell
  readonly before: InterfaceBefore
}

/** Finds the external interface by the flags, and by the public IP that an operator set for this node in the store. */
export async function findExternal(
  { kernel, options, manager, families, hostChanged, before }: ExternalParts,
  waiter: Waiter,
): Promise<ExternalInterface> {
  const name = "this node's public IP"
  const find = async () => manager.publicIp?.(waiter.signal)
  const { ipv4, ipv6 } = (await waitFor(name, { failure: `failed to look for ${name}: `, find }, waiter)) ?? {}
  const given = {
    ...options,
    'public-ip': ipv4 === undefined ? options['public-ip'] : formatAddress(ipv4),
    'public-ipv6': ipv6 === undefined ? options['public-ipv6'] : formatAddress(ipv6),
  }
  return waitForInterface(kernel, given, families, hostChanged, waiter, before)
}

/**
 * Returns the external interface of the node that forwards with the last known state. If the node does not forward,
 * returns the last known interface, provided that the flags have not changed since.
 */
export async function externalBefore(node: NewNode): Promise<ExternalInterface | undefined> {
  if (canForward(node)) return node.backend.external ?? node.external
  const external = node.known && externalOf(node.known, node.options)
  if (!external) return undefined
  const { index: _index, ...unnumbered } = external // the kernel's index is valid for one boot
  return (await resumeExternal(node.kernel, external)) ?? unnumbered
}

/**
 * Waits for the external interface, because at boot its route, its address or the device itself may appear later than
 * this daemon. Accepts the interface of the node's earlier run even if this interface has no default route. If that
 * interface still has its earlier address, the node uses this address.
 */
export async function waitForInterface(
  kernel: HostKernel,
  options: NodeOptions,
  families: readonly Family[],
  hostChanged: Bell,
  { log, signal, publish = () => {} }: Waiter,
  { earlier, known = async () => undefined }: InterfaceBefore = {},
): Promise<ExternalInterface> {
  const wishes = interfaceWishes(options)
  for (const family of FAMILIES) {
    const address = wishes.publicIp[family]
    if (address !== '' && !families.includes(family))
      log.warn(`The public address ${address} is ignored: the network does not have its family`)
  }
  publish('waiting for the external interface')
  const waitS = options['iface-wait']
  const began = performance.now()
  const end = began + waitS * 1000
  const said = new Set<string>()
  const once = (message: string): void => void (said.has(message) || log.info(message), said.add(message))
  const quiet = { ...log, info: once }
  const silent = { ...log, info: () => {} }
  for (let tries = 1; ; tries++) {
    const now = performance.now()
    try {
      const found = await chooseExternalInterface(kernel, wishes, families, quiet, undefined, earlier)
      const before = await known()
      const same = await asBefore(kernel, before, families, found)
      if (same === undefined || (same === 'gone' && now >= end)) return found
      if (same !== 'gone') {
        // chooseExternalInterface has logged only `found`, the interface that weftd would choose without knowledge of
        // earlier runs. So log the chosen interface if it is a different one.
        if (!isDeepStrictEqual(same.address, found.address))
          once(`Going on with ${textOf(same)}, as this node did before`)
        return same
      }
      once(`Waiting some seconds for ${textOf(before ?? found)}, which this node used before`)
    } catch (error) {
      if (!isWeftError(error, 'INTERFACE')) throw error
      const same = await asBefore(kernel, await known(), families)
      if (same !== undefined && same !== 'gone') {
        log.warn(`${error.message}; going on with ${same.name}, which this node used before`)
        return same
      }
      const isLate = now - began >= ALL_FAMILIES_MS || now >= end
      const some =
        isLate && families.length > 1
          ? await chooseForSome(kernel, wishes, families, silent, undefined, earlier).catch((failure: unknown) => {
              if (!isWeftError(failure, 'INTERFACE')) throw failure
            })
          : undefined
      if (some) {
        log.warn(`${error.message}; going on with ${textOf(some)}`)
        return some
      }
      if (now >= end) throw error
      publish(`waiting for the external interface: ${error.message}`)
      if (tries === 1) log.warn(`${error.message}; waiting up to ${waitS} s for one`)
    }
    await hostChanged.wait(signal, Math.min(Math.max(0, end - now), LOOK_MS))
    await pause(signal, Math.min(Math.max(0, end - now), SETTLE_MS))
  }
}

const textOf = ({ name, address }: ExternalInterface): string =>
  `${name} and ${listed(address).map(formatAddress).join(' and ')}`

/**
 * Returns the earlier interface in its present state. Returns `gone` if all its addresses are missing for the moment.
 * Returns undefined if there was no earlier interface or if it belonged to another network. Also returns undefined if
 * `found` is a different interface, or if the operator gave other addresses for `found`.
 */
async function asBefore(
  kernel: HostKernel,
  before: ExternalInterface | undefined,
  families: readonly Family[],
  found?: ExternalInterface,
): Promise<ExternalInterface | 'gone' | undefined> {
  if (!before || !families.every((family) => before.families?.includes(family))) return undefined
  const { now, gone } = await seeExternal(kernel, inFamilies(before, families))
  if (found && (found.name !== now.name || !isDeepStrictEqual(namedIn(found), namedIn(now)))) return undefined
  return familiesOf(now.address).every((family) => gone[family] !== undefined) ? 'gone' : now
}

/** Returns the interface with only its addresses of the given families. */
const inFamilies = (external: ExternalInterface, families: readonly Family[]): ExternalInterface => ({
  ...external,
  families,
  address: onlyOf(families, external.address),
  publicIp: onlyOf(families, external.publicIp),
})

/** Returns the properties of an interface that the operator's flags set: the pattern and the given addresses. */
const namedIn = ({ named, pattern, address, publicIp }: ExternalInterface) => [
  pattern,
  ...FAMILIES.flatMap((family) => [
    named.address[family] ? address[family] : undefined,
    named.publicIp[family] ? publicIp[family] : undefined,
  ]),
]
