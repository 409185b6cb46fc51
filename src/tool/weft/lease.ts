// lease.ts - `weft lease`: the leases in the store, shown, released, reserved.

import { messageOf, WeftError } from '../../base/errors.ts'
import { jsonLine, printable } from '../../base/text.ts'
import { parseNetworkConfig, type NetworkConfig } from '../../control/config/network-config.ts'
import { isCompatible } from '../../control/lease/allocate.ts'
import { createAlone } from '../../control/lease/claim.ts'
import { decodeLease } from '../../control/lease/decode.ts'
import { hostNameIn } from '../../control/lease/host-name.ts'
import { encodeLeaseValue, isOfOneNode, leaseKey, parseLeaseKey, type Lease } from '../../control/lease/lease.ts'
import type { StoreEntry } from '../../control/store/store.ts'
import {
  addressText,
  compareAddresses,
  familyOf,
  formatAddress,
  formatNet,
  listed,
  netsOverlap,
  netText,
  parseAddress,
  primary,
  type Address,
  type Addresses,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { STORE_FLAGS } from '../../options.ts'
import { DEFAULT_TYPE } from '../../path/catalog.ts'
import { briefly, conditionOf, sidesOf, type Condition, type Status } from '../../report/status.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { duration, table, type Cell, type Tone } from './look.ts'
import { subnetName, subnetNamed, withStore } from './store.ts'

const MORE = "Without flags that name a store it is the store of this host's daemon."
const flags = { ...SOCKET_FLAG, ...STORE_FLAGS }

interface Read {
  readonly entry: StoreEntry
  readonly lease: Lease | undefined
  /** The reason why it is no lease. */
  readonly problem: string | null
}

function read(entry: StoreEntry): Read {
  try {
    return { entry, lease: decodeLease(entry.key, entry.value), problem: null }
  } catch (error) {
    return { entry, lease: undefined, problem: messageOf(error) }
  }
}

const addressesText = (addresses: Addresses): string =>
  listed(addresses).map(formatAddress).join(',') || addressText(addresses)

/** Returns the backend type of a lease for display. `udp` and `alloc` publish no type; such a lease is shown as `udp`. */
const typeText = (published: string): string => published || DEFAULT_TYPE

/** What programs get of one: by what it is known, and what it has of IPv6. */
const toJson = ({ entry, lease, problem }: Read) => ({
  key: entry.key,
  subnet: lease ? netText(lease.subnet) : null,
  ipv6Subnet: lease?.subnet.ipv6 ? formatNet(lease.subnet.ipv6) : null,
  publicIp: lease ? addressText(lease.attrs.publicIp) : null,
  publicIpv6: lease?.attrs.publicIp.ipv6 === undefined ? null : formatAddress(lease.attrs.publicIp.ipv6),
  type: lease?.attrs.backendType ?? null,
  reserved: entry.isReservation,
  value: entry.value,
  problem,
})

/** How a lease's node is, as far as this host's daemon knows: `this node`, or the state of a peer; null where it knows nothing. */
function nodeState(status: Status | undefined, key: string): 'this node' | Condition | null {
  if (key === status?.lease?.key) return 'this node'
  const peer = status?.peers?.list.find(({ lease }) => lease === key)
  return peer ? conditionOf(peer) : null
}

/** `in 23 h`, and what it is when it should have been renewed long ago. */
function endText(at: number | undefined, isReservation: boolean): Cell {
  if (isReservation) return 'never'
  if (at === undefined) return '-'
  const leftS = Math.max(0, (at - Date.now()) / 1000)
  return leftS < ENDING_S ? ['doubtful', `in ${duration(leftS)}`] : `in ${duration(leftS)}`
}
/** A node renews its lease an hour before the end (--subnet-lease-renew-margin). */
const ENDING_S = 1800

const STATE_TONES: Readonly<Record<Condition, Tone | undefined>> = {
  answering: 'good',
  programmed: undefined,
  silent: 'bad',
  narrow: 'bad',
  stored: 'doubtful',
}
function stateCell(state: ReturnType<typeof nodeState>): Cell {
  if (state === null) return '-'
  const tone = state === 'this node' ? undefined : STATE_TONES[state]
  return tone ? [tone, state] : state
}

export const leaseLsCommand = command({
  name: 'lease ls',
  does: 'list the leases in the store, with their ends, and how their nodes are',
  more:
    `${MORE} ENDS is when a lease ends unless its node renews it, which it does an hour before. ` +
    "NODE IS as this host's daemon knows it, as in `weft peers`. Exits with 3 when a lease cannot be read.",
  flags: { ...JSON_FLAG, ...flags },
  run: ({ options, screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, status, signal }) => {
      const all = (await store.list(signal)).entries.map(read)
      const ends = await store.ends(signal)
      const { values: claims } = await store.claims(undefined, signal)
      const nameOf = ({ lease }: Read): string | null =>
        (lease && hostNameIn(claims.get(addressText(lease.attrs.publicIp)) ?? '')) ?? null
      const addressIn = ({ lease }: Read): Address => (lease && primary(lease.subnet)?.address) ?? 0
      const byAddress = (a: Read, b: Read): number => compareAddresses(addressIn(a), addressIn(b))
      const leases = all.toSorted(byAddress)
      if (options.json) {
        const known = (each: Read) => {
          const { key } = each.entry
          const at = ends.get(key)
          const expiresAt = at === undefined ? null : new Date(at).toISOString()
          return { expiresAt, nodeState: nodeState(status, key), name: nameOf(each) }
        }
        screen.write(jsonLine(leases.map((each) => ({ ...toJson(each), ...known(each) }))))
      } else {
        const rows = leases.map((each): Cell[] => {
          const { entry, lease, problem } = each
          return [
            briefly(nameOf(each) ?? '-'),
            lease ? subnetName(lease.subnet) : entry.key,
            lease ? addressesText(lease.attrs.publicIp) : '-',
            lease ? typeText(lease.attrs.backendType) : '-',
            entry.isReservation ? 'reserved' : 'lease',
            endText(ends.get(entry.key), entry.isReservation),
            problem === null ? stateCell(nodeState(status, entry.key)) : ['bad', problem],
          ]
        })
        screen.write(table([['NAME', 'SUBNET', 'NODE', 'TYPE', 'KIND', 'ENDS', 'NODE IS'], ...rows], screen.colour))
      }
      return leases.every(({ problem }) => problem === null) ? EXIT.ok : EXIT.wrong
    }),
})

/** The entry that has these subnets, and of several the one that has no others. */
function findEntry(entries: readonly StoreEntry[], subnet: Nets): StoreEntry | undefined {
  const name = leaseKey(subnet)
  const has = (nets: Nets, net: Net): boolean => listed(nets).some((each) => formatNet(each) === formatNet(net))
  return (
    entries.find(({ key }) => key === name) ??
    entries.find(({ key }) => listed(subnet).every((net) => has(parseLeaseKey(key) ?? {}, net)))
  )
}

/** Throws WeftError USAGE. */
function entryOf(entries: readonly StoreEntry[], subnet: Nets): StoreEntry {
  const entry = findEntry(entries, subnet)
  if (entry) return entry
  throw new WeftError('USAGE', `there is no lease of ${subnetName(subnet)}`, { remedy: 'see `weft lease ls`' })
}

/** All that a key names. */
const nameOf = (key: string): string => subnetName(parseLeaseKey(key) ?? {})

export const leaseShowCommand = command({
  name: 'lease show',
  args: 'SUBNET',
  does: 'show one lease, with all that its node published',
  more: `${MORE} Exits with 3 when the lease cannot be read.`,
  flags: { ...JSON_FLAG, ...flags },
  run: ({ options, args: [name = ''], screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, signal }) => {
      const shown = toJson(read(entryOf((await store.list(signal)).entries, subnetNamed(name))))
      if (options.json) screen.write(jsonLine(shown))
      else
        for (const [key, value] of Object.entries(shown))
          if (value !== null) screen.write(`${screen.colour('dim', key.padEnd(10))} ${printable(textOf(key, value))}\n`)
      return shown.problem === null ? EXIT.ok : EXIT.wrong
    }),
})

/** Formats a value for display; a lease that publishes no type is shown with the default type. */
const textOf = (key: string, value: unknown): string => (key === 'type' ? typeText(String(value)) : String(value))

/** The node that would lose its subnet, as far as this host knows: one that answers. */
function holderOf(status: Status | undefined, key: string): string | undefined {
  if (status?.lease?.key === key) return 'this node'
  const peer = status?.peers?.list.find(({ lease }) => lease === key)
  const isThere = peer !== undefined && listed(sidesOf(peer)).some(({ state }) => state === 'answering')
  return isThere
    ? `${peer.name ? `${briefly(peer.name)} (${peer.publicIp})` : peer.publicIp}, which answers`
    : undefined
}

export const leaseReleaseCommand = command({
  name: 'lease release',
  args: 'SUBNET',
  does: 'delete a lease or a reservation, so that another node may have the subnet',
  more: `${MORE} A node that runs would take the subnet again: without --force its lease is not released.`,
  flags: { force: { default: false, help: 'release it even if its node answers' }, ...flags },
  run: ({ options, args: [name = ''], screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, status, signal }) => {
      const entry = entryOf((await store.list(signal)).entries, subnetNamed(name))
      const holder = holderOf(status, entry.key)
      if (holder !== undefined && !options.force) {
        throw new WeftError('USAGE', `${nameOf(entry.key)} is held by ${holder}`, {
          remedy: 'stop its daemon first, or give --force',
        })
      }
      if (!(await store.delete(entry.key, entry, signal))) throw changed(entry.key)
      screen.write(`released ${nameOf(entry.key)}\n`)
      return EXIT.ok
    }),
})

const changed = (key: string): WeftError =>
  new WeftError('STORE', `the lease of ${nameOf(key)} was changed by somebody else meanwhile`, {
    remedy: 'look at it, and try again',
  })

export const leaseReserveCommand = command({
  name: 'lease reserve',
  args: 'SUBNET [NODE]',
  does: 'make a lease one without an end, or reserve a free subnet for the node that has this public IP',
  more: `${MORE} One of each family with a comma between them. \`weft lease release\` undoes it.`,
  flags,
  run: ({ options, args: [name = '', node], screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, signal }) => {
      const subnet = subnetNamed(name)
      const { entries } = await store.list(signal)
      const before = findEntry(entries, subnet)
      const key = before?.key ?? leaseKey(subnet)
      const written = before
        ? await store.update(key, valueFor(before, node), { ...before, isReservation: true }, signal)
        : await reserveFree(addressesIn(node))
      if (!written) throw changed(key)
      screen.write(`reserved ${nameOf(key)}\n`)
      return EXIT.ok

      async function reserveFree(publicIp: Addresses) {
        const config = parseNetworkConfig(await store.config(signal))
        for (const net of listed(subnet)) checkGiven(net, config)
        const across = entries.find((entry) => netsOverlap(parseLeaseKey(entry.key) ?? {}, subnet))
        if (across) throw isAcross(across.key)
        const attrs = { publicIp, backendType: '' }
        const value = encodeLeaseValue(attrs)
        const created = await createAlone(store, value, { subnet, attrs, own: [] }, signal)
        if (created.written) return store.update(key, value, { ...created.written, value, isReservation: true }, signal)
        if (created.across) throw isAcross(created.across.key)
        return undefined
      }

      function isAcross(other: string): WeftError {
        return new WeftError('USAGE', `${other} overlaps ${subnetName(subnet)}`, {
          remedy: 'reserve that, or release it first',
        })
      }
    }),
})

/** Throws WeftError USAGE for what no node draws. */
function checkGiven(net: Net, config: NetworkConfig): void {
  const range = config[familyOf(net)]
  if (range && isCompatible(net, range)) return
  throw new WeftError('USAGE', `no node can have ${formatNet(net)} by the network configuration`, {
    remedy: range
      ? `give one of /${range.subnetLength} from ${formatAddress(range.subnetMin)} to ${formatAddress(range.subnetMax)}`
      : 'it has not this family',
  })
}

/** What is to stand there: as it was, unless another node is named. */
function valueFor(before: StoreEntry, node: string | undefined): string {
  const { lease } = read(before)
  if (node === undefined || (lease && isOfOneNode(lease.attrs, { publicIp: addressesIn(node) }))) return before.value
  throw new WeftError(
    'USAGE',
    `${before.key} is leased by ${lease ? addressesText(lease.attrs.publicIp) : 'nobody who can be read'}`,
    {
      remedy: 'release it first, or leave the node out',
    },
  )
}

/** `192.0.2.7`, `fd77::7`, or both with a comma between them. */
function addressesIn(text: string | undefined): Addresses {
  const all = (text ?? '').split(',').map((part) => parseAddress(part) || undefined)
  const found = {
    ipv4: all.find((each) => typeof each === 'number'),
    ipv6: all.find((each) => typeof each === 'bigint'),
  }
  if (all.length === listed(found).length) return found
  throw new WeftError('USAGE', text === undefined ? 'the subnet is free: whose is it to be' : `${text} is no address`, {
    remedy: "give the node's public IP behind the subnet, or both with a comma between them",
  })
}
