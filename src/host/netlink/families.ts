// families.ts - the kernel's numbers of the address families (linux/socket.h). Pure.

import type { Family } from '../../net/address.ts'
import type { ReceivedMessage } from './message.ts'

export const FAMILY_NUMBERS: Readonly<Record<Family, number>> = { ipv4: 2, ipv6: 10 }
/** The family of forwarding entries of bridges and vxlan devices. */
export const AF_BRIDGE = 7

const familyOfNumber = (number: number): Family | undefined =>
  number === FAMILY_NUMBERS.ipv4 ? 'ipv4' : number === FAMILY_NUMBERS.ipv6 ? 'ipv6' : undefined

/** Reads the family from the first byte of a message of rtnetlink(7); undefined for a family other than IPv4 and IPv6. */
export const familyIn = (message: ReceivedMessage): Family | undefined => familyOfNumber(message.u8(0))
