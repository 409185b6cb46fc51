// own-addresses.ts - finds out which addresses, devices and leases this node had in earlier runs, even if the node's
// address has changed since.

import { hostname } from 'node:os'
import { describeError } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { hostNameIn } from '../control/lease/host-name.ts'
import type { Lease } from '../control/lease/lease.ts'
import type { SubnetManager } from '../control/lease/subnet-manager.ts'
import { pause } from '../host/bell.ts'
import type { Earlier } from '../host/choose-interface.ts'
import { openEcho } from '../host/echo.ts'
import type { HostKernel, Link } from '../host/kernel.ts'
import {
  FAMILIES,
  addressKey,
  addressText,
  familyOf,
  formatNet,
  listed,
  parseAddress,
  type Address,
  type AddressKey,
  type Nets,
} from '../net/address.ts'
import { hasBackendName } from '../path/catalog.ts'
import { throwUnlessWaiting } from './exit-or-wait.ts'
import { queryPatiently } from './loops/lease.ts'
import type { LastKnown } from './restart/last-known.ts'

/** How long, in ms, weftd waits for the answer to an echo request. REQUESTS is the number of requests. */
const ANSWER_MS = 1_000
const REQUESTS = 3
/** Matches host names that many hosts have, and that therefore identify no host. */
const NO_NAME = /^(localhost(\..*)?|\(none\)|)$/

export interface OwnAddressesParts {
  readonly manager: SubnetManager
  readonly subnet: Nets
  /** The last known state, if it came from the store that this process uses. */
  readonly known: Pick<LastKnown, 'lease' | 'external'> | undefined
  readonly kernel: HostKernel
  readonly log: Log
  readonly signal: AbortSignal
  /** Returns true if another host answers at the address. If left out, weftd sends echo requests to find out. */
  readonly answers?: (address: Address) => Promise<boolean>
  readonly name?: string
}

/**
 * Returns true for the bridge of this node's containers and for a renamed device of weft. The device has the first
 * address of the node's own subnet, and the bridge has the second.
 */
const hasOwnAddress = ({ addresses }: Link, subnet: Nets): boolean =>
  FAMILIES.some((family) => {
    const net = subnet[family]
    if (!net) return false
    const gateway = typeof net.address === 'number' ? net.address + 1 : net.address + 1n
    return addresses[family].some(({ address }) => address === gateway || address === net.address)
  })

export function ownAddresses({ manager, subnet, known, kernel, log, signal, ...given }: OwnAddressesParts) {
  const { answers = isAnswered, name = hostname() } = given
  let addresses: Promise<readonly Address[]> | undefined
  let names: Promise<ReadonlyMap<string, string>> | undefined
  let leases: Promise<readonly Lease[]> | undefined
  let hosts: Promise<ReadonlyMap<AddressKey, ReadonlySet<string>>> | undefined

  /**
   * Returns the host names in the store, by their public IPs as text. Returns an empty map if the store returns an
   * error.
   */
  const namesOf = (): Promise<ReadonlyMap<string, string>> =>
    (names ??= (async () => {
      if (!manager.claims) return new Map<string, string>()
      const query = async (till: AbortSignal) => manager.claims?.(undefined, till)
      // Ignore the error: an etcd user that was created for flanneld may be allowed to read only the leases.
      const claims = await queryPatiently("this host's name", query, log, signal).catch((error: unknown) => {
        throwUnlessWaiting(error, signal)
        log.warn(`This node may not recognise its lease if its address changed: ${describeError(error)}`)
      })
      return new Map([...(claims?.values ?? [])].flatMap(([at, claim]) => [[at, hostNameIn(claim) ?? ''] as const]))
    })())
  const leasesOf = (): Promise<readonly Lease[]> =>
    (leases ??= (async () => {
      const { entries } = await queryPatiently('an earlier lease', (till) => manager.source.list(till), log, signal)
      return entries.flatMap(({ lease }) => lease ?? [])
    })())
  /**
   * Returns the host names of each address. A dual-stack host writes its name only under its IPv4 address, so the lease
   * with this IPv4 address shows the host's IPv6 address.
   */
  const hostsOf = (): Promise<ReadonlyMap<AddressKey, ReadonlySet<string>>> =>
    (hosts ??= (async () => {
      const named = await namesOf()
      const found = new Map<AddressKey, Set<string>>()
      const add = (address: Address, host: string): void => {
        const there = found.get(addressKey(address)) ?? new Set()
        found.set(addressKey(address), there.add(host))
      }
      for (const [at, host] of named) {
        const address = parseAddress(at)
        if (address !== undefined) add(address, host)
      }
      for (const { attrs } of named.size > 0 ? await leasesOf() : []) {
        const host = named.get(addressText(attrs.publicIp))
        if (host !== undefined) for (const address of listed(attrs.publicIp)) add(address, host)
      }
      return found
    })())
  /**
   * Returns whether this host or another host has an address, by the host names in the store. Returns undefined if the
   * store does not show whose address it is.
   */
  async function ownerOf(address: Address): Promise<'this' | 'other' | undefined> {
    const owners = [...((await hostsOf()).get(addressKey(address)) ?? [])]
    if (owners.length === 0 || owners.some((owner) => NO_NAME.test(owner))) return undefined
    return owners.every((owner) => owner === name) ? 'this' : 'other'
  }

  async function findAddresses(): Promise<readonly Address[]> {
    const wasKnown = [known?.external?.address ?? {}, known?.lease.attrs.publicIp ?? {}].flatMap(listed)
    if (manager.published) {
      const before = await queryPatiently('an earlier lease', async (till) => manager.published?.(till), log, signal)
      return [...wasKnown, ...listed(before?.publicIp ?? {})]
    }
    const all = await leasesOf()
    const nets = new Set(listed(subnet).map(formatNet))
    const holders = all.filter((lease) => listed(lease.subnet).some((net) => nets.has(formatNet(net))))
    const published = [...holders, ...all].flatMap(({ attrs }) => listed(attrs.publicIp))
    const owners = await Promise.all(published.map(ownerOf))
    const held = holders.flatMap(({ attrs }) => listed(attrs.publicIp))
    return [...wasKnown, ...held, ...published.filter((_, at) => owners[at] === 'this')]
  }

  const earlier: Earlier = {
    addresses: () => (addresses ??= findAddresses()),
    isOwn: (link) => hasBackendName(link.name) || hasOwnAddress(link, subnet),
  }
  /**
   * Returns true if a lease with this node's earlier subnet and the public IP `address` is the node's own. That is so
   * if this host has the address now, or had it earlier and no other host answers there.
   */
  async function isMine(address: Address): Promise<boolean> {
    const links = await kernel.links()
    const isHere = (link: Link): boolean => link.addresses[familyOf(address)].some((each) => each.address === address)
    if (links.some((link) => !earlier.isOwn(link) && isHere(link))) return true
    const wasKnown = listed(known?.lease.attrs.publicIp ?? {}).includes(address)
    const owner = await ownerOf(address)
    if (owner === 'other' || !(wasKnown || owner === 'this')) return false
    return !(await answers(address))
  }
  return { earlier, isMine }
}

/**
 * Returns true if a host answers echo requests to this address. If this process cannot send requests, the address
 * counts as another host's.
 */
async function isAnswered(address: Address): Promise<boolean> {
  const answered = new Set<AddressKey>()
  try {
    const any = parseAddress(familyOf(address) === 'ipv4' ? '0.0.0.0' : '::') as Address
    const echo = openEcho(any, (from) => void answered.add(addressKey(from)))
    try {
      for (let sequence = 1; sequence <= REQUESTS && !answered.has(addressKey(address)); sequence++) {
        try {
          echo.send(address, sequence)
        } catch (error) {
          if ((error as NodeJS.ErrnoException).code === undefined) throw error // a system error means: no route to the address
        }
        await pause(new AbortController().signal, ANSWER_MS)
      }
    } finally {
      echo.close()
    }
  } catch {
    return true
  }
  return answered.has(addressKey(address))
}
