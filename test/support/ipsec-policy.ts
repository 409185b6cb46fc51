// ipsec-policy.ts - an IPsec policy as the kernel lists it, for tests.

import type { IpsecPolicy } from '../../src/host/kernel.ts'
import { familyOf, parseNet } from '../../src/net/address.ts'

/** Returns a policy that blocks all packets from `source` to `destination`, such as 10.5.1.0/24, except for the members in `part`. */
export const blockPolicy = (
  direction: IpsecPolicy['direction'],
  source: string,
  destination: string,
  part: Partial<IpsecPolicy> = {},
): IpsecPolicy => ({
  direction,
  family: familyOf(parseNet(source)!.address),
  source: parseNet(source)!,
  destination: parseNet(destination)!,
  protocol: 0,
  hasPorts: false,
  deviceIndex: 0,
  mark: undefined,
  interfaceId: 0,
  isBlock: true,
  priority: 0,
  templates: [],
  ...part,
})
