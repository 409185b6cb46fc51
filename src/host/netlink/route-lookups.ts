// route-lookups.ts - the requests that look up the route of a packet, and the kernel's answers. All functions are pure.

import { ADDRESS_BITS, familyOf } from '../../net/address.ts'
import type { RouteAnswer, RouteQuery } from '../kernel.ts'
import { errnoName, errnoText } from './errno.ts'
import type { IndexOf, NameOf } from './interfaces.ts'
import { FAMILY_NUMBERS, messagesIn, MessageWriter, NLM_F } from './message.ts'
import { routeIn, RTA, RTM_GETROUTE, RTM_NEWROUTE } from './routes.ts'
import type { Answer } from './socket.ts'

/** The flag that makes the kernel name the route's table in its answer to a lookup. */
const RTM_F_LOOKUP_TABLE = 0x1000

/** Returns the request that looks up the route of a packet; undefined if the packet's interface does not exist. */
export function lookUpRequest(query: RouteQuery, indexOf: IndexOf): Buffer | undefined {
  const { to, from, iif, oif, mark, part = {} } = query
  const [index, outIndex] = [iif && indexOf(iif), oif && indexOf(oif)]
  if (index === 0 || outIndex === 0) return undefined
  const family = familyOf(to)
  const bits = ADDRESS_BITS[family]
  const writer = new MessageWriter(RTM_GETROUTE, NLM_F.ACK)
  writer.u8(FAMILY_NUMBERS[family]).u8(bits)
  writer.u8(from === undefined ? 0 : bits)
  // For IPv6 the kernel refuses RTM_F_LOOKUP_TABLE, and its answer names the routing table without this flag.
  const flags = family === 'ipv4' ? RTM_F_LOOKUP_TABLE : 0
  writer.u8(part.tos ?? 0)
  writer.raw(new Uint8Array(4)).u32(flags).address(RTA.DST, to)
  if (from !== undefined) writer.address(RTA.SRC, from)
  if (index !== undefined) writer.attributeU32(RTA.IIF, index)
  if (outIndex !== undefined) writer.attributeU32(RTA.OIF, outIndex)
  if (mark !== undefined) writer.attributeU32(RTA.MARK, mark)
  if (part.protocol !== undefined) writer.bytes(RTA.IP_PROTO, Uint8Array.of(part.protocol))
  if (part.sport !== undefined) writer.bytes(RTA.SPORT, portBytes(part.sport))
  if (part.dport !== undefined) writer.bytes(RTA.DPORT, portBytes(part.dport))
  return writer.finish()
}

/** Returns a port in network byte order. */
const portBytes = (port: number): Uint8Array => Uint8Array.of(port >> 8, port & 0xff)

/** Reads the kernel's answer to a lookup. */
export function lookedUpIn({ data, errno }: Pick<Answer, 'data' | 'errno'>, nameOf: NameOf): RouteAnswer {
  if (errno !== 0) return refusalOf(errnoName(errno))
  for (const message of messagesIn(data)) {
    const route = message.type === RTM_NEWROUTE ? routeIn(message, nameOf) : undefined
    if (route) return { route }
  }
  return { refused: 'no answer', errno: '' }
}

/** Returns the answer to a lookup that the kernel refused with this error. */
export const refusalOf = (errno: string): RouteAnswer => ({ refused: errnoText(errno), errno })
