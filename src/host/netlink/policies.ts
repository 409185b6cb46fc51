// policies.ts - the netlink requests that count and list IPsec policies and states, and their answers (linux/xfrm.h). All
// functions are pure.

import { ADDRESS_BITS, netAround, type Address, type Family, type Net } from '../../net/address.ts'
import type { IpsecDirection, IpsecPolicy, IpsecTemplate } from '../kernel.ts'
import { addressIn, FAMILY_NUMBERS, MessageWriter, NLM_F, ReceivedMessage } from './message.ts'

const XFRM_MSG_NEWSA = 0x10
const XFRM_MSG_GETSA = 0x12
const XFRM_MSG_NEWPOLICY = 0x13
const XFRM_MSG_GETPOLICY = 0x15
const XFRM_MSG_NEWSPDINFO = 0x24
const XFRM_MSG_GETSPDINFO = 0x25
/** Linux 5.15. */
const XFRM_MSG_GETDEFAULT = 0x28
/** The attribute with a `struct xfrmu_spdinfo`, whose first three numbers count policies for in, out and forward. */
const XFRMA_SPD_INFO = 1
const COUNTS = 3
const U32_BYTES = 4

/** Returns the request that counts the IPsec policies. Its fixed header has only flags, which the kernel ignores. */
export const countPolicies = (): Buffer => new MessageWriter(XFRM_MSG_GETSPDINFO, NLM_F.ACK).u32(0).finish()

/** Returns true if the answer counts at least one policy. Policies of single sockets do not count. */
export function hasPoliciesIn(messages: Iterable<ReceivedMessage>): boolean {
  for (const message of messages) {
    if (message.type !== XFRM_MSG_NEWSPDINFO) continue
    const counts = message
      .attributes(U32_BYTES)
      .bytes(XFRMA_SPD_INFO)
      ?.subarray(0, COUNTS * U32_BYTES)
    if (counts?.some((byte) => byte !== 0)) return true
  }
  return false
}

export const listPolicies = (): Buffer => new MessageWriter(XFRM_MSG_GETPOLICY, NLM_F.DUMP).finish()
export const listStates = (): Buffer => new MessageWriter(XFRM_MSG_GETSA, NLM_F.DUMP).finish()
/** Returns the request for the default policies. Its fixed header is a `struct xfrm_userpolicy_default` with padding. */
export const getDefaults = (): Buffer => new MessageWriter(XFRM_MSG_GETDEFAULT, NLM_F.ACK).u32(0).finish()

/**
 * The positions of the members of `struct xfrm_userpolicy_info`, which begins with a `struct xfrm_selector` and is
 * POLICY_BYTES long.
 */
const AT = {
  destination: 0,
  source: 16,
  ports: 32,
  family: 40,
  destinationLength: 42,
  sourceLength: 43,
  protocol: 44,
  device: 48,
  priority: 152,
  direction: 160,
  action: 161,
} as const
const POLICY_BYTES = 168
/** The length of the four numbers about ports in a selector. */
const PORTS_BYTES = 8
/** The number of the action XFRM_POLICY_BLOCK. */
const BLOCK = 1
/** The directions, indexed by the kernel's numbers (XFRM_POLICY_IN is 0). Policies of sockets have higher numbers. */
const DIRECTIONS: readonly IpsecDirection[] = ['in', 'out', 'fwd']
const XFRMA = { TEMPLATES: 5, MARK: 21, INTERFACE_ID: 31 } as const
/** The length of a `struct xfrm_user_tmpl`, and the positions of its members. */
const TEMPLATE_BYTES = 64
const IN_TEMPLATE = { protocol: 20, family: 24, source: 28, requestId: 44, mode: 48, optional: 50 } as const
/** The positions of the members of `struct xfrm_usersa_info`. */
const IN_STATE = { destination: 56, spi: 72, protocol: 76, source: 80, requestId: 208, family: 212, mode: 214 } as const
const ADDRESS_BYTES: Readonly<Record<Family, number>> = { ipv4: 4, ipv6: 16 }

const familyBy = (number: number): Family | undefined =>
  number === FAMILY_NUMBERS.ipv4 ? 'ipv4' : number === FAMILY_NUMBERS.ipv6 ? 'ipv6' : undefined

/** Reads an address of a `xfrm_address_t`, which has 16 bytes for both families. */
const addressAt = ({ body }: ReceivedMessage, at: number, family: Family): Address | undefined =>
  at + 16 <= body.length ? addressIn(body, at, at + ADDRESS_BYTES[family]) : undefined

function netAt(message: ReceivedMessage, at: number, family: Family, length: number): Net | undefined {
  const address = addressAt(message, at, family)
  return address === undefined ? undefined : netAround(address, Math.min(length, ADDRESS_BITS[family]))
}

/**
 * Reads the policies in the order in which they were made, because the kernel lists the newest policy first
 * (xfrm_policy_insert in net/xfrm/xfrm_policy.c). Leaves out the policies of single sockets.
 */
export function policiesIn(messages: Iterable<ReceivedMessage>): IpsecPolicy[] {
  const policies: IpsecPolicy[] = []
  for (const message of messages) {
    const family = familyBy(message.u16(AT.family))
    const direction = DIRECTIONS[message.u8(AT.direction)]
    if (message.type !== XFRM_MSG_NEWPOLICY || message.body.length < POLICY_BYTES || !family || !direction) continue
    const source = netAt(message, AT.source, family, message.u8(AT.sourceLength))
    const destination = netAt(message, AT.destination, family, message.u8(AT.destinationLength))
    if (!source || !destination) continue
    const attributes = message.attributes(POLICY_BYTES)
    policies.push({
      direction,
      family,
      source,
      destination,
      protocol: message.u8(AT.protocol),
      hasPorts: message.body.subarray(AT.ports, AT.ports + PORTS_BYTES).some((byte) => byte !== 0),
      deviceIndex: message.u32(AT.device),
      mark: markIn(attributes.bytes(XFRMA.MARK)),
      interfaceId: attributes.u32(XFRMA.INTERFACE_ID) ?? 0,
      isBlock: message.u8(AT.action) === BLOCK,
      priority: message.u32(AT.priority),
      templates: templatesIn(attributes.bytes(XFRMA.TEMPLATES)),
    })
  }
  return policies.toReversed()
}

/** Reads a `struct xfrm_mark`, which has a mark and a mask. Returns undefined if the mask is 0. */
function markIn(bytes: Buffer = Buffer.alloc(0)): number | undefined {
  const message = new ReceivedMessage(0, 0, bytes)
  return message.u32(U32_BYTES) === 0 ? undefined : message.u32(0)
}

function templatesIn(bytes: Buffer = Buffer.alloc(0)): IpsecTemplate[] {
  const templates: IpsecTemplate[] = []
  for (let at = 0; at + TEMPLATE_BYTES <= bytes.length; at += TEMPLATE_BYTES) {
    const message = new ReceivedMessage(0, 0, bytes.subarray(at, at + TEMPLATE_BYTES))
    const family = familyBy(message.u16(IN_TEMPLATE.family)) ?? 'ipv4'
    templates.push({
      family,
      source: addressAt(message, IN_TEMPLATE.source, family) ?? 0,
      destination: addressAt(message, 0, family) ?? 0,
      protocol: message.u8(IN_TEMPLATE.protocol),
      requestId: message.u32(IN_TEMPLATE.requestId),
      mode: message.u8(IN_TEMPLATE.mode),
      isOptional: message.u8(IN_TEMPLATE.optional) !== 0,
    })
  }
  return templates
}

/** Reads the states. Leaves out states without an SPI, which only wait for keys. */
export function statesIn(messages: Iterable<ReceivedMessage>): IpsecTemplate[] {
  const states: IpsecTemplate[] = []
  for (const message of messages) {
    const family = familyBy(message.u16(IN_STATE.family))
    if (message.type !== XFRM_MSG_NEWSA || !family || message.u32(IN_STATE.spi) === 0) continue
    const source = addressAt(message, IN_STATE.source, family)
    const destination = addressAt(message, IN_STATE.destination, family)
    if (source === undefined || destination === undefined) continue
    const protocol = message.u8(IN_STATE.protocol)
    const [requestId, mode] = [message.u32(IN_STATE.requestId), message.u8(IN_STATE.mode)]
    states.push({ family, source, destination, protocol, requestId, mode, isOptional: false })
  }
  return states
}

/** Reads in which directions the kernel drops packets that match no policy. */
export function defaultsIn(messages: Iterable<ReceivedMessage>): IpsecDirection[] {
  for (const message of messages) {
    // The three bytes of `struct xfrm_userpolicy_default` are in the order in, fwd, out.
    if (message.type === XFRM_MSG_GETDEFAULT)
      return (['in', 'fwd', 'out'] as const).filter((_direction, at) => message.u8(at) === BLOCK)
  }
  return []
}
