// policies.ts - the netlink request that counts IPsec policies, and its answer (linux/xfrm.h). All functions are pure.

import { MessageWriter, NLM_F, type ReceivedMessage } from './message.ts'

const XFRM_MSG_NEWSPDINFO = 0x24
const XFRM_MSG_GETSPDINFO = 0x25
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
