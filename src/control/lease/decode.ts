// decode.ts - decodes flannel's keys and values, and makes a store a source of leases.

import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { parseIpv4 } from '../../net/ipv4.ts'
import { parseIpv6 } from '../../net/ipv6.ts'
import { jsonKind, readGoJsonObject } from '../config/go-json.ts'
import type { Store, StoreChange, StoreEntry } from '../store/store.ts'
import { parseLeaseKey, type Lease } from './lease.ts'
import type { Change, Entry, LeaseSource } from './subnet-manager.ts'

/**
 * The maximum number of characters of a lease value; weft refuses longer values. The values that nodes write have at
 * most a few hundred bytes.
 */
const LONGEST_VALUE = 65_536

/**
 * Makes a source of leases from a store. The source's cursors are revisions of the store. If `log` is given, the source
 * logs each change of a lease in flanneld's words.
 */
export function sourceOf(store: Store, log?: Pick<Log, 'info'>): LeaseSource<bigint> {
  return {
    name: store.name,
    async list(signal) {
      const { revision, entries } = await store.list(signal)
      return { cursor: revision, entries: entries.map(decodeEntry) }
    },
    async *watch(after, signal) {
      for await (const { revision, changes: raw } of store.watch(after, signal)) {
        const changes = raw.map(decodeChange)
        for (const change of changes)
          if (change.kind === 'put' ? change.entry.lease : parseLeaseKey(change.key))
            log?.info(`watchSubnets: got valid subnet event with revision ${revision}`)
        yield { cursor: revision, changes }
      }
    },
    isAfter: (a, b) => a > b,
  }
}

function decodeChange(change: StoreChange): Change {
  return change.kind === 'put' ? { kind: 'put', entry: decodeEntry(change.entry) } : { kind: 'delete', key: change.key }
}

function decodeEntry({ key, value, revision, isReservation }: StoreEntry): Entry {
  try {
    return { key, lease: { ...decodeLease(key, value), ...(isReservation ? {} : { revision }) } }
  } catch (error) {
    return { key, problem: messageOf(error) }
  }
}

/** Decodes a store entry to a lease. Throws an Error that says why the key or the value is not a lease. */
export function decodeLease(key: string, value: string): Lease {
  if (value.length > LONGEST_VALUE) throw new Error(`the value has ${value.length} characters`)
  const subnet = parseLeaseKey(key)
  if (!subnet) throw new Error('the key names no subnet; it should look like 10.5.1.0-24')
  let members
  try {
    members = readGoJsonObject(value)
  } catch (error) {
    throw new Error(`the value is not a JSON object: ${messageOf(error)}`, { cause: error })
  }
  // If a lease value has no PublicIP, its IPv4 address is 0.0.0.0, as in flannel. flannel writes 0.0.0.0 for a node
  // without IPv4. flannel refuses a PublicIP that is null.
  const ipv4 = members.has('publicip') ? readAddress(members.get('publicip'), parseIpv4) : 0
  if (ipv4 === undefined) throw new Error(`PublicIP is ${JSON.stringify(members.get('publicip'))}`)
  const v6 = members.get('publicipv6') ?? undefined
  const ipv6 = readAddress(v6, parseIpv6)
  if (v6 !== undefined && ipv6 === undefined) throw new Error(`PublicIPv6 is ${JSON.stringify(v6)}`)
  const backendType = members.get('backendtype') ?? ''
  if (typeof backendType !== 'string') throw new Error(`BackendType is ${jsonKind(backendType)}`)
  return {
    key,
    subnet,
    attrs: {
      publicIp: { ipv4: ipv4 === 0 ? undefined : ipv4, ipv6: ipv6 === 0n ? undefined : ipv6 },
      backendType,
      ...(members.has('backenddata') ? { backendData: members.get('backenddata') } : {}),
      ...(members.has('backendv6data') ? { backendV6Data: members.get('backendv6data') } : {}),
    },
  }
}

function readAddress<T>(value: unknown, parse: (text: string) => T | undefined): T | undefined {
  return typeof value === 'string' ? parse(value) : undefined
}
