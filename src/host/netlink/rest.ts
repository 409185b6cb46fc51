// rest.ts - the netlink code that weftd does not need when it starts with the stored state of its previous run.
// host-kernel.ts loads this code at its first use, because packets are lost while a starting weftd loads modules.

export { wordsOf } from '../ip-words.ts'
export { entryRequest, forwardingEntriesIn, forwardingRequest, neighboursIn, neighboursRequest } from './neighbours.ts'
export { generationIn, generationRequest, tablesIn, tablesRequest } from './nftables.ts'
export {
  countPolicies,
  defaultsIn,
  getDefaults,
  hasPoliciesIn,
  listPolicies,
  listStates,
  policiesIn,
  statesIn,
} from './policies.ts'
export { changeError, readError } from './refusal.ts'
export { eventOf, groupsOf } from './reports.ts'
export { lookedUpIn, lookUpRequest, refusalOf } from './route-lookups.ts'
export { ruleRequest, rulesIn, rulesRequest } from './rules.ts'
export { readWireguard, setWireguard } from './wireguard.ts'
