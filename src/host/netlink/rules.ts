// rules.ts - netlink requests and answers about policy rules (linux/fib_rules.h). All functions are pure.

import { netAround, type Address, type Family, type Net } from '../../net/address.ts'
import type { Change, PolicyRule, RulePart } from '../kernel.ts'
import { FAMILY_NUMBERS, familyIn, MessageWriter, NLM_F, type Attributes, type ReceivedMessage } from './message.ts'

export const RTM_NEWRULE = 32
export const RTM_DELRULE = 33
const RTM_GETRULE = 34

/** The length of `struct fib_rule_hdr` in bytes. */
const HEADER = 12
/** The types of the attributes of a policy rule (FRA_* in linux/fib_rules.h). */
const FRA = {
  DST: 1,
  SRC: 2,
  IIFNAME: 3,
  PRIORITY: 6,
  FWMARK: 10,
  TUN_ID: 12,
  TABLE: 15,
  FWMASK: 16,
  OIFNAME: 17,
  L3MDEV: 19,
  IP_PROTO: 22,
  SPORT_RANGE: 23,
  DPORT_RANGE: 24,
  DSCP: 25,
} as const
const FIB_RULE_INVERT = 2
const TO_TABLE = 1
const ACTIONS: Readonly<Record<number, string>> = {
  [TO_TABLE]: 'lookup',
  2: 'goto',
  3: 'nop',
  6: 'blackhole',
  7: 'unreachable',
  8: 'prohibit',
}
const ACTION_NUMBERS = { blackhole: 6, unreachable: 7, prohibit: 8 } as const
const ALL_BITS = 0xff_ff_ff_ff

export type RuleChange = Extract<Change, { readonly kind: 'add rule' | 'delete rule' }>

/** Returns the request that lists the rules of a family. */
export const rulesRequest = (family: Family): Buffer =>
  new MessageWriter(RTM_GETRULE, NLM_F.DUMP).raw(headerOf(family, {})).finish()

/** Returns the netlink request that adds or deletes a policy rule. */
export function ruleRequest({ kind, family, priority, iif, from, to, action }: RuleChange): Buffer {
  const isNew = kind === 'add rule'
  const table = typeof action === 'object' ? action.table : undefined
  // Identify a rule to delete by its table alone, without its action, as `ip rule` does.
  const actionNumber = typeof action === 'string' ? ACTION_NUMBERS[action] : isNew ? TO_TABLE : 0
  const type = isNew ? RTM_NEWRULE : RTM_DELRULE
  const writer = new MessageWriter(type, NLM_F.ACK | (isNew ? NLM_F.CREATE | NLM_F.EXCL : 0))
  writer.raw(headerOf(family, { from, to, table, action: actionNumber })).attributeU32(FRA.PRIORITY, priority)
  if (iif !== undefined) writer.text(FRA.IIFNAME, iif)
  if (from && from.prefixLength > 0) writer.address(FRA.SRC, from.address)
  if (to && to.prefixLength > 0) writer.address(FRA.DST, to.address)
  if (table !== undefined && table > 0xff) writer.attributeU32(FRA.TABLE, table)
  return writer.finish()
}

interface HeaderParts {
  readonly from?: Net | undefined
  readonly to?: Net | undefined
  readonly table?: number | undefined
  readonly action?: number
}

/**
 * Returns a `struct fib_rule_hdr`. A table number above 255 does not fit into this structure; it has an attribute of
 * its own.
 */
function headerOf(family: Family, { from, to, table = 0, action = 0 }: HeaderParts): Uint8Array {
  const bytes = new Uint8Array(HEADER)
  bytes[0] = FAMILY_NUMBERS[family]
  bytes[1] = to?.prefixLength ?? 0
  bytes[2] = from?.prefixLength ?? 0
  bytes[4] = table > 0xff ? 0 : table
  bytes[7] = action
  return bytes
}

/** Reads a rule from a message; undefined if the message does not describe a rule for IPv4 or IPv6. */
function ruleIn(message: ReceivedMessage): PolicyRule | undefined {
  if (familyIn(message) === undefined) return undefined
  const attributes = message.attributes(HEADER)
  const isL3mdev = attributes.u8(FRA.L3MDEV) === 1
  const action = message.u8(7)
  const mark = attributes.u32(FRA.FWMARK)
  const mask = attributes.u32(FRA.FWMASK)
  const part = partIn(message, attributes)
  const netOf = (address: Address | undefined, prefixLength: number): Net | undefined =>
    address === undefined || prefixLength === 0 ? undefined : netAround(address, prefixLength)
  return {
    priority: attributes.u32(FRA.PRIORITY) ?? 0,
    table: action !== TO_TABLE || isL3mdev ? undefined : (attributes.u32(FRA.TABLE) ?? message.u8(4)),
    action: isL3mdev ? 'l3mdev' : (ACTIONS[action] ?? String(action)),
    iif: attributes.text(FRA.IIFNAME),
    oif: attributes.text(FRA.OIFNAME),
    from: netOf(attributes.address(FRA.SRC), message.u8(2)),
    to: netOf(attributes.address(FRA.DST), message.u8(1)),
    mark: mark ?? (mask === undefined ? undefined : 0),
    mask: mask ?? ALL_BITS,
    isInverted: (message.u32(8) & FIB_RULE_INVERT) !== 0,
    ...(part ? { part } : {}),
  }
}

/** Reads the protocol, ports, TOS, DSCP and tunnel of a rule; undefined if the rule has none of them. */
function partIn(message: ReceivedMessage, attributes: Attributes): RulePart | undefined {
  const [protocol, dscp] = [attributes.u8(FRA.IP_PROTO), attributes.u8(FRA.DSCP)]
  const [sport, dport] = [portsIn(attributes.bytes(FRA.SPORT_RANGE)), portsIn(attributes.bytes(FRA.DPORT_RANGE))]
  const [tos, tunnel] = [message.u8(3), attributes.bytes(FRA.TUN_ID)]
  const part = {
    ...(protocol ? { protocol } : {}),
    ...(sport ? { sport } : {}),
    ...(dport ? { dport } : {}),
    ...(tos === 0 ? {} : { tos }),
    ...(dscp === undefined ? {} : { dscp }),
    ...(tunnel?.length === 8 ? { tunnel: tunnel.readBigUInt64BE() } : {}),
  }
  return Object.keys(part).length > 0 ? part : undefined
}

/** Reads a `struct fib_rule_port_range`, two numbers of 16 bits in the byte order of the host. */
function portsIn(bytes: Buffer | undefined): readonly [number, number] | undefined {
  if (bytes?.length !== 4) return undefined
  const [first, last] = new Uint16Array(Uint8Array.from(bytes).buffer)
  return first === undefined || last === undefined ? undefined : [first, last]
}

/** Reads the rules of a family from the kernel's answer, in the order in which the kernel applies them. */
export function rulesIn(messages: Iterable<ReceivedMessage>, family: Family): PolicyRule[] {
  const rules: PolicyRule[] = []
  for (const message of messages) {
    if (message.type !== RTM_NEWRULE || familyIn(message) !== family) continue
    const rule = ruleIn(message)
    if (rule) rules.push(rule)
  }
  return rules
}
