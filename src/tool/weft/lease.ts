// lease.ts - `weft lease`: shows, releases and reserves the leases in the store.

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

const MORE = "Uses the store of this host's daemon unless flags name another store."
const flags = { ...SOCKET_FLAG, ...STORE_FLAGS }

interface Read {
  readonly entry: StoreEntry
  readonly lease: Lease | undefined
  /** Why the store's entry is not a valid lease; null if the entry is valid. */
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

/**
 * Returns the backend type of a lease for display. The backends `udp` and `alloc` publish no type; a lease without a
 * type is shown as `udp`.
 */
const typeText = (published: string): string => published || DEFAULT_TYPE

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

/**
 * Returns `this node` if the lease is this node's own, else the condition of the peer with this lease, as this host's
 * weftd sees it. Returns null if weftd does not know the lease.
 */
function nodeState(status: Status | undefined, key: string): 'this node' | Condition | null {
  if (key === status?.lease?.key) return 'this node'
  const peer = status?.peers?.list.find(({ lease }) => lease === key)
  return peer ? conditionOf(peer) : null
}

/**
 * Formats when a lease ends, such as `in 23 h`. The table cell is marked as doubtful if the node should already have
 * renewed the lease.
 */
function endText(at: number | undefined, isReservation: boolean): Cell {
  if (isReservation) return 'never'
  if (at === undefined) return '-'
  const leftS = Math.max(0, (at - Date.now()) / 1000)
  return leftS < ENDING_S ? ['doubtful', `in ${duration(leftS)}`] : `in ${duration(leftS)}`
}
/**
 * The time in seconds before its end from which a lease counts as not renewed in time. By default, nodes renew a lease
 * an hour before its end. The store does not contain the --subnet-lease-renew-margin of the nodes.
 */
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
  does: 'list the leases in the store, when each ends, and the state of its node',
  more:
    `${MORE} ENDS is when a lease ends unless its node renews it. By default a node renews its lease an hour before the end. ` +
    "NODE IS the state of the node that this host's daemon knows, as in `weft peers`. Exits with 3 if a lease cannot be read.",
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

/**
 * Finds the store's entry with exactly the given subnets. If there is none, finds an entry whose subnets contain the
 * given subnets.
 */
function findEntry(entries: readonly StoreEntry[], subnet: Nets): StoreEntry | undefined {
  const name = leaseKey(subnet)
  const has = (nets: Nets, net: Net): boolean => listed(nets).some((each) => formatNet(each) === formatNet(net))
  return (
    entries.find(({ key }) => key === name) ??
    entries.find(({ key }) => listed(subnet).every((net) => has(parseLeaseKey(key) ?? {}, net)))
  )
}

function entryOf(entries: readonly StoreEntry[], subnet: Nets): StoreEntry {
  const entry = findEntry(entries, subnet)
  if (entry) return entry
  throw new WeftError('USAGE', `there is no lease of ${subnetName(subnet)}`, {
    remedy: '`weft lease ls` shows the leases',
  })
}

const nameOf = (key: string): string => subnetName(parseLeaseKey(key) ?? {})

export const leaseShowCommand = command({
  name: 'lease show',
  args: 'SUBNET',
  does: 'show one lease with all data that its node published',
  more: `${MORE} Exits with 3 if the lease cannot be read.`,
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

/** Formats the value of a lease's field for display. If the lease publishes no type, shows the default type. */
const textOf = (key: string, value: unknown): string => (key === 'type' ? typeText(String(value)) : String(value))

/**
 * Describes the running node that uses a lease; returns undefined if this host's weftd knows no node with this lease.
 */
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
  does: 'delete a lease or a reservation, so that another node may get the subnet',
  more: `${MORE} A running node would take the subnet again, so without --force its lease is not deleted.`,
  flags: { force: { default: false, help: 'delete the lease even if its node answers' }, ...flags },
  run: ({ options, args: [name = ''], screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, status, signal }) => {
      const entry = entryOf((await store.list(signal)).entries, subnetNamed(name))
      const holder = holderOf(status, entry.key)
      if (holder !== undefined && !options.force) {
        throw new WeftError('USAGE', `${nameOf(entry.key)} is held by ${holder}`, {
          remedy: 'stop the daemon of that node first, or give --force',
        })
      }
      if (!(await store.delete(entry.key, entry, signal))) throw changed(entry.key)
      screen.write(`released ${nameOf(entry.key)}\n`)
      return EXIT.ok
    }),
})

const changed = (key: string): WeftError =>
  new WeftError('STORE', `the lease of ${nameOf(key)} was changed by another program meanwhile`, {
    remedy: 'check the lease with `weft lease show`, and try again',
  })

export const leaseReserveCommand = command({
  name: 'lease reserve',
  args: 'SUBNET [NODE]',
  does: 'make a lease permanent, or reserve a free subnet for the node with this public IP',
  more: `${MORE} For a dual-stack node separate the IPv4 and the IPv6 value by a comma. \`weft lease release\` undoes it.`,
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
          remedy: 'reserve the overlapping subnet instead, or release the overlapping subnet first',
        })
      }
    }),
})

/** Throws WeftError USAGE if the configuration does not allow this subnet for a node. */
function checkGiven(net: Net, config: NetworkConfig): void {
  const range = config[familyOf(net)]
  if (range && isCompatible(net, range)) return
  throw new WeftError('USAGE', `the network configuration does not allow the subnet ${formatNet(net)}`, {
    remedy: range
      ? `give one of /${range.subnetLength} from ${formatAddress(range.subnetMin)} to ${formatAddress(range.subnetMax)}`
      : 'the network does not have this family',
  })
}

/**
 * Returns the value with which a lease is reserved, which is its present value. Throws WeftError USAGE if the operator
 * named a `node` that is not the node in the present value.
 */
function valueFor(before: StoreEntry, node: string | undefined): string {
  const { lease } = read(before)
  if (node === undefined || (lease && isOfOneNode(lease.attrs, { publicIp: addressesIn(node) }))) return before.value
  throw new WeftError(
    'USAGE',
    `${before.key} is leased by ${lease ? addressesText(lease.attrs.publicIp) : 'a node that cannot be read'}`,
    {
      remedy: 'release the lease of that node first, or leave the node out',
    },
  )
}

/**
 * Parses the addresses of a node: `192.0.2.7`, `fd77::7`, or both with a comma between them. Throws WeftError USAGE.
 */
function addressesIn(text: string | undefined): Addresses {
  const all = (text ?? '').split(',').map((part) => parseAddress(part) || undefined)
  const found = {
    ipv4: all.find((each) => typeof each === 'number'),
    ipv6: all.find((each) => typeof each === 'bigint'),
  }
  if (all.length === listed(found).length) return found
  throw new WeftError(
    'USAGE',
    text === undefined ? 'the subnet is free, and no node is named' : `${text} is not an address`,
    {
      remedy: "give the node's public IP after the subnet, or its two addresses separated by a comma",
    },
  )
}
