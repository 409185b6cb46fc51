// neighbours.ts - netlink requests and answers about entries of the neighbour tables, and about forwarding entries of
// vxlan devices (linux/neighbour.h). All functions are pure.

import { familyOf, type Family } from '../../net/address.ts'
import type { Change, Forwarding, Neighbour } from '../kernel.ts'
import type { IndexOf } from './interfaces.ts'
import { AF_BRIDGE, FAMILY_NUMBERS, familyIn, MessageWriter, NLM_F, type ReceivedMessage } from './message.ts'

export const RTM_NEWNEIGH = 28
export const RTM_DELNEIGH = 29
const RTM_GETNEIGH = 30

/** The length of `struct ndmsg` in bytes. */
const HEADER = 12
/** The types of the attributes of a neighbour or forwarding entry (NDA_* in linux/neighbour.h). */
const NDA = { DST: 1, LLADDR: 2, IFINDEX: 8, MASTER: 9 } as const
const NUD_NOARP = 0x40
const NUD_PERMANENT = 0x80
/** The state of a forwarding entry that neither expires nor changes; `bridge fdb` calls it `permanent`. */
const FORWARDING_STATE = NUD_PERMANENT | NUD_NOARP
/** The flags of an entry in the device's own forwarding table, and of an entry in the table of the device's bridge. */
const NTF_SELF = 2
const NTF_MASTER = 4
/** The states of a neighbour entry in the order in which `ip` prints them. */
const STATES: readonly (readonly [number, string])[] = [
  [0x01, 'INCOMPLETE'],
  [0x02, 'REACHABLE'],
  [0x04, 'STALE'],
  [0x08, 'DELAY'],
  [0x10, 'PROBE'],
  [0x20, 'FAILED'],
  [NUD_NOARP, 'NOARP'],
  [NUD_PERMANENT, 'PERMANENT'],
]

export type EntryChange = Extract<
  Change,
  { readonly kind: 'replace neighbour' | 'delete neighbour' | 'replace forwarding' | 'delete forwarding' }
>

/**
 * Returns the request that lists the neighbour entries of a family; only those of one interface if its index is given.
 */
export const neighboursRequest = (family: Family, deviceIndex?: number): Buffer =>
  dumpOf(FAMILY_NUMBERS[family], deviceIndex)

/** Returns the request that lists the forwarding entries of one interface. */
export const forwardingRequest = (deviceIndex: number): Buffer => dumpOf(AF_BRIDGE, deviceIndex)

function dumpOf(family: number, deviceIndex: number | undefined): Buffer {
  // Linux before 4.20 accepts `struct ndmsg` as the header of a request for forwarding entries, but ignores its index
  // and lists the entries of all interfaces (net/core/rtnetlink.c, rtnl_fdb_dump). So the functions that read the
  // answer compare the index, too.
  const writer = headed(RTM_GETNEIGH, NLM_F.DUMP, family, 0, 0, 0)
  if (deviceIndex !== undefined) writer.attributeU32(NDA.IFINDEX, deviceIndex)
  return writer.finish()
}

/** Returns the netlink request that makes a change of an entry; undefined if the interface does not exist. */
export function entryRequest(change: EntryChange, indexOf: IndexOf): Buffer | undefined {
  const index = indexOf(change.device)
  if (index === 0) return undefined
  const isNew = change.kind === 'replace neighbour' || change.kind === 'replace forwarding'
  const type = isNew ? RTM_NEWNEIGH : RTM_DELNEIGH
  const flags = NLM_F.ACK | (isNew ? NLM_F.CREATE | NLM_F.REPLACE : 0)
  switch (change.kind) {
    case 'replace forwarding':
    case 'delete forwarding':
      return headed(type, flags, AF_BRIDGE, index, FORWARDING_STATE, NTF_SELF)
        .mac(NDA.LLADDR, change.mac)
        .address(NDA.DST, change.host)
        .finish()
    case 'replace neighbour':
    case 'delete neighbour': {
      const family = FAMILY_NUMBERS[familyOf(change.address)]
      const writer = headed(type, flags, family, index, NUD_PERMANENT, 0).address(NDA.DST, change.address)
      if (change.kind === 'replace neighbour') writer.mac(NDA.LLADDR, change.mac)
      return writer.finish()
    }
  }
}

/** Begins a message with a `struct ndmsg`. */
function headed(
  type: number,
  flags: number,
  family: number,
  index: number,
  state: number,
  entryFlags: number,
): MessageWriter {
  return new MessageWriter(type, flags).u8(family).u8(0).u16(0).u32(index).u16(state).u8(entryFlags).u8(0)
}

/** Reads a neighbour entry from a message; undefined if the message does not describe an IPv4 or IPv6 neighbour. */
export function neighbourIn(message: ReceivedMessage): Neighbour | undefined {
  const family = familyIn(message)
  const attributes = message.attributes(HEADER)
  const address = attributes.address(NDA.DST)
  if (family === undefined || address === undefined || familyOf(address) !== family) return undefined
  return {
    deviceIndex: message.u32(4),
    address,
    mac: attributes.mac(NDA.LLADDR) ?? '',
    states: statesOf(message.u16(8)),
  }
}

/**
 * The list of states that all permanent entries share. On a node with thousands of peers most entries are permanent.
 */
const PERMANENT: readonly string[] = ['PERMANENT']

function statesOf(state: number): readonly string[] {
  if (state === NUD_PERMANENT) return PERMANENT
  return state === 0 ? ['NONE'] : STATES.filter(([bit]) => (state & bit) !== 0).map(([, name]) => name)
}

/**
 * Reads an entry of a device's own forwarding table from a message; undefined if the message does not describe such an
 * entry. Entries of the table of the device's bridge have the same family and the attribute NDA_MASTER.
 */
export function forwardingIn(message: ReceivedMessage): Forwarding | undefined {
  if (message.u8(0) !== AF_BRIDGE || (message.u8(10) & NTF_MASTER) !== 0) return undefined
  const attributes = message.attributes(HEADER)
  const mac = attributes.mac(NDA.LLADDR)
  if (mac === undefined || attributes.has(NDA.MASTER)) return undefined
  const isPermanent = (message.u16(8) & NUD_PERMANENT) !== 0
  return { deviceIndex: message.u32(4), mac, host: attributes.address(NDA.DST), isPermanent }
}

/**
 * Reads the neighbour entries of a family, only those of one interface if its index is given, from the kernel's answer.
 */
export function neighboursIn(
  messages: Iterable<ReceivedMessage>,
  family: Family,
  deviceIndex?: number,
): readonly Neighbour[] {
  const entries: Neighbour[] = []
  for (const message of messages) {
    if (message.type !== RTM_NEWNEIGH || familyIn(message) !== family) continue
    if (deviceIndex !== undefined && message.u32(4) !== deviceIndex) continue
    const entry = neighbourIn(message)
    if (entry) entries.push(entry)
  }
  return entries
}

/** Reads the forwarding entries of one interface from the kernel's answer. */
export function forwardingEntriesIn(messages: Iterable<ReceivedMessage>, deviceIndex: number): readonly Forwarding[] {
  const entries: Forwarding[] = []
  for (const message of messages) {
    if (message.type !== RTM_NEWNEIGH || message.u32(4) !== deviceIndex) continue
    const entry = forwardingIn(message)
    if (entry) entries.push(entry)
  }
  return entries
}
