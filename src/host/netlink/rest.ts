// rest.ts - the parts of netlink that a start with the last known state does not need, in one module that
// host-kernel.ts loads at their first use. Packets are lost while a start loads modules.

export { wordsOf } from '../ip-words.ts'
export { entryRequest, forwardingEntriesIn, forwardingRequest, neighboursIn, neighboursRequest } from './neighbours.ts'
export { tablesIn, tablesRequest } from './nftables.ts'
export { countPolicies, hasPoliciesIn } from './policies.ts'
export { changeError, readError } from './refusal.ts'
export { eventOf, groupsOf } from './reports.ts'
export { lookedUpIn, lookUpRequest, refusalOf } from './route-lookups.ts'
export { ruleRequest, rulesIn, rulesRequest } from './rules.ts'
export { readWireguard, setWireguard } from './wireguard.ts'
