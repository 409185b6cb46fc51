// lease.ts - `weft lease`: the leases in the store, shown, released, reserved.

import { ipv4For, parseNetworkConfig } from '../config/network-config.ts'
import { messageOf, WeftError } from '../errors.ts'
import { isCompatible } from '../lease/allocate.ts'
import { decodeLease } from '../lease/decode.ts'
import { encodeLeaseValue, leaseKey, type Lease } from '../lease/lease.ts'
import { addressText, compareAddresses, netsOverlap, netText, primary, type Address } from '../net/address.ts'
import { formatIpv4, formatIpv4Net, parseIpv4, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import type { Status } from '../status/status.ts'
import type { StoreEntry } from '../store/store.ts'
import { jsonLine, printable } from '../text.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG, STORE_FLAGS } from './command.ts'
import { table, type Cell } from './look.ts'
import { subnetNamed, withStore } from './store.ts'

const MORE = "Without flags of a store it is that of this host's daemon."
const flags = { ...SOCKET_FLAG, ...STORE_FLAGS }

interface Read {
  readonly entry: StoreEntry
  readonly lease: Lease | undefined
  /** Why it is none. */
  readonly problem: string | null
}

function read(entry: StoreEntry): Read {
  try {
    return { entry, lease: decodeLease(entry.key, entry.value), problem: null }
  } catch (error) {
    return { entry, lease: undefined, problem: messageOf(error) }
  }
}

/** What programs get of one. */
const toJson = ({ entry, lease, problem }: Read) => ({
  key: entry.key,
  subnet: lease ? netText(lease.subnet) : null,
  publicIp: lease ? addressText(lease.attrs.publicIp) : null,
  type: lease?.attrs.backendType ?? null,
  reserved: entry.isReservation,
  ...{ value: entry.value, problem },
})

export const leaseLsCommand = command({
  name: 'lease ls',
  does: 'list the leases that are in the store',
  more: `${MORE} Exits with 3 when one cannot be read.`,
  flags: { ...JSON_FLAG, ...flags },
  run: ({ options, screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, status, signal }) => {
      const all = (await store.list(signal)).entries.map(read)
      const addressIn = ({ lease }: Read): Address => (lease && primary(lease.subnet)?.address) ?? 0
      const byAddress = (a: Read, b: Read): number => compareAddresses(addressIn(a), addressIn(b))
      const leases = all.toSorted(byAddress)
      if (options.json) screen.write(jsonLine(leases.map(toJson)))
      else {
        const rows = leases.map(({ entry, lease, problem }): Cell[] => [
          lease ? netText(lease.subnet) : entry.key,
          lease ? addressText(lease.attrs.publicIp) : '-',
          lease?.attrs.backendType || '-',
          entry.isReservation ? 'reserved' : 'lease',
          problem === null ? (entry.key === status?.lease?.key ? 'this node' : '') : ['bad', problem],
        ])
        screen.write(table([['SUBNET', 'NODE', 'TYPE', 'KIND', ''], ...rows], screen.colour))
      }
      return leases.every(({ problem }) => problem === null) ? EXIT.ok : EXIT.wrong
    }),
})

/** The entry of a subnet. Throws WeftError USAGE. */
function entryOf(entries: readonly StoreEntry[], subnet: Ipv4Net): StoreEntry {
  const name = leaseKey({ ipv4: subnet })
  const entry = entries.find(({ key }) => key === name || key.startsWith(`${name}&`))
  if (entry) return entry
  throw new WeftError('USAGE', `there is no lease of ${formatIpv4Net(subnet)}`, { remedy: 'see `weft lease ls`' })
}

export const leaseShowCommand = command({
  name: 'lease show',
  args: 'SUBNET',
  does: 'show one lease, and all that its node published',
  more: `${MORE} Exits with 3 when it cannot be read.`,
  flags: { ...JSON_FLAG, ...flags },
  run: ({ options, args: [name = ''], screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, signal }) => {
      const shown = toJson(read(entryOf((await store.list(signal)).entries, subnetNamed(name))))
      if (options.json) screen.write(jsonLine(shown))
      else
        for (const [key, value] of Object.entries(shown))
          if (value !== null) screen.write(`${screen.colour('dim', key.padEnd(9))} ${printable(String(value))}\n`)
      return shown.problem === null ? EXIT.ok : EXIT.wrong
    }),
})

/** Who would lose its subnet, as far as this host knows: a node that is there. */
function holderOf(status: Status | undefined, key: string): string | undefined {
  if (status?.lease?.key === key) return 'this node'
  const peer = status?.peers?.list.find(({ lease }) => lease === key)
  return peer?.state === 'answering' ? `${peer.publicIp}, which answers` : undefined
}

export const leaseReleaseCommand = command({
  name: 'lease release',
  args: 'SUBNET',
  does: 'delete a lease or a reservation, so that another node may have the subnet',
  more: `${MORE} A node that is there takes the subnet again, and is refused without --force.`,
  flags: { force: { default: false, help: 'also where its node answers' }, ...flags },
  run: ({ options, args: [name = ''], screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, status, signal }) => {
      const subnet = subnetNamed(name)
      const entry = entryOf((await store.list(signal)).entries, subnet)
      const holder = holderOf(status, entry.key)
      if (holder !== undefined && !options.force) {
        throw new WeftError('USAGE', `${formatIpv4Net(subnet)} is held by ${holder}`, {
          remedy: 'stop its daemon first, or give --force',
        })
      }
      if (!(await store.delete(entry.key, entry, signal))) throw changed(subnet)
      screen.write(`released ${formatIpv4Net(subnet)}\n`)
      return EXIT.ok
    }),
})

const changed = (subnet: Ipv4Net): WeftError =>
  new WeftError('STORE', `the lease of ${formatIpv4Net(subnet)} was changed by somebody else meanwhile`, {
    remedy: 'look at it, and try again',
  })

export const leaseReserveCommand = command({
  name: 'lease reserve',
  args: 'SUBNET [NODE]',
  does: 'make a lease one without an end, or reserve a free subnet for the node that has this public IP',
  more: `${MORE} \`weft lease release\` undoes it.`,
  flags,
  run: ({ options, args: [name = '', node], screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, signal }) => {
      const subnet = subnetNamed(name)
      const { entries } = await store.list(signal)
      const key = leaseKey({ ipv4: subnet })
      const before = entries.find((entry) => entry.key === key)
      const written = before
        ? await store.update(before.key, valueFor(before, node), { ...before, isReservation: true }, signal)
        : await reserveFree(subnet, node)
      if (!written) throw changed(subnet)
      screen.write(`reserved ${formatIpv4Net(subnet)}\n`)
      return EXIT.ok

      async function reserveFree(free: Ipv4Net, address: string | undefined) {
        const range = ipv4For('a reservation', parseNetworkConfig(await store.config(signal)))
        if (!isCompatible(free, range)) {
          throw new WeftError('USAGE', `no node can have ${formatIpv4Net(free)} by the network configuration`, {
            remedy: `give one of /${range.subnetLength} from ${formatIpv4(range.subnetMin)} to ${formatIpv4(range.subnetMax)}`,
          })
        }
        const across = entries.map(read).find(({ lease }) => lease && netsOverlap(lease.subnet, { ipv4: free }))
        if (across) {
          throw new WeftError('USAGE', `${across.entry.key} lies across ${formatIpv4Net(free)}`, {
            remedy: 'reserve that, or release it first',
          })
        }
        const value = encodeLeaseValue({ publicIp: { ipv4: addressOf(address) }, backendType: '' })
        const created = await store.create(key, value, signal)
        const entry = { key, value, isReservation: true }
        return created && store.update(key, value, { ...entry, revision: created.revision }, signal)
      }
    }),
})

/** What is to stand there: as it was, unless another node is named. */
function valueFor(before: StoreEntry, node: string | undefined): string {
  const { lease } = read(before)
  if (node === undefined || lease?.attrs.publicIp.ipv4 === addressOf(node)) return before.value
  throw new WeftError(
    'USAGE',
    `${before.key} is leased by ${lease ? addressText(lease.attrs.publicIp) : 'nobody who can be read'}`,
    {
      remedy: 'release it first, or leave the node out',
    },
  )
}

function addressOf(text: string | undefined): Ipv4 {
  const address = parseIpv4(text ?? '')
  if (address) return address
  throw new WeftError(
    'USAGE',
    text === undefined ? 'the subnet is free: whose is it to be' : `${text} is no IPv4 address`,
    {
      remedy: "give the node's public IP behind the subnet",
    },
  )
}
