// host-kernel.ts - reads, changes and watches the configuration of this host's kernel with netlink sockets
// (netlink(7)).

import { readFile } from 'node:fs/promises'
import type { NetlinkMonitor } from '../../../native/addon.d.ts'
import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Family } from '../../net/address.ts'
import { addon } from '../addon.ts'
import type {
  Change,
  Device,
  Forwarding,
  HostKernel,
  IpsecSetup,
  Link,
  Neighbour,
  NftTable,
  OnKernelEvent,
  PolicyRule,
  Route,
  RouteAnswer,
  RouteFilter,
  RouteQuery,
  Topic,
  WireguardState,
} from '../kernel.ts'
import type { IndexOf, NameOf } from './interfaces.ts'
import {
  addressRequest,
  getLink,
  getLinkCounters,
  linkRequest,
  linksIn,
  listAddresses,
  listLinks,
  sendDropsIn,
} from './links.ts'
import { messagesIn, type ReceivedMessage } from './message.ts'
import { RouteDump, routeRequest } from './routes.ts'
import {
  isMissing,
  isMissingFamily,
  isMissingProtocol,
  KernelSocket,
  NETLINK,
  NO_DEVICE,
  type Answer,
} from './socket.ts'

/**
 * The number of changes that are sent at a time. While weftd builds the requests for CHANGES_AT_ONCE changes, the event
 * loop of Node.js is blocked for about 5 ms.
 */
const CHANGES_AT_ONCE = 1_000

const loadRest = () => import('./rest.ts')
type Rest = Awaited<ReturnType<typeof loadRest>>

type WireguardChange = Extract<Change, { readonly kind: 'set wireguard' }>

/** A batch of changes: either only changes of WireGuard devices, or only changes of other objects. */
interface Batch {
  readonly changes: Change[]
  readonly isWireguard: boolean
}

export class NetlinkKernel implements HostKernel {
  readonly #route = new KernelSocket(NETLINK.ROUTE)
  readonly #generic = new KernelSocket(NETLINK.GENERIC)
  readonly #netfilter = new KernelSocket(NETLINK.NETFILTER)
  readonly #xfrm = new KernelSocket(NETLINK.XFRM)
  /** The log to which each change is written if the log's verbosity is 4 or more; undefined until `logTo` is called. */
  #log: Pick<Log, 'info' | 'v'> | undefined

  /** Logs each later change as a command of `ip`, if the verbosity of the log is 4 or more. */
  logTo(log: Pick<Log, 'info' | 'v'>): void {
    this.#log = log
  }

  async links(): Promise<readonly Link[]> {
    const [links, addresses] = await this.#exchange([listLinks(), listAddresses()])
    return linksIn(await dataOf(links, 'interfaces'), await dataOf(addresses, 'addresses'))
  }

  async link(which: string | number): Promise<Link | undefined> {
    const request = getLink(which)
    if (!request) return undefined
    const [found] = await this.#exchange([request])
    if (found?.errno === NO_DEVICE.errno) return undefined
    const data = await dataOf(found, `the interface ${which}`)
    const [bare] = linksIn(data, Buffer.alloc(0))
    if (!bare) return undefined
    const [addresses] = await this.#exchange([listAddresses(bare.index)])
    if (addresses?.errno === NO_DEVICE.errno) return undefined
    return linksIn(data, await dataOf(addresses, 'addresses'))[0]
  }

  async sendDrops(which: string | number): Promise<number | undefined> {
    const request = getLinkCounters(which)
    if (!request) return undefined
    const [found] = await this.#exchange([request])
    if (found?.errno === NO_DEVICE.errno) return undefined
    return sendDropsIn(await dataOf(found, `the counters of the interface ${which}`))
  }

  async routes(which: RouteFilter): Promise<readonly Route[]> {
    const index = which.device && indexOf(which.device)
    if (index === 0) return []
    const dump = new RouteDump(which, index)
    const [answer] = await this.#exchange([dump.request])
    // If the kernel does not have this routing table, or does not support the family, there are no routes.
    if (answer && (isMissing(answer) || isMissingFamily(answer))) return []
    return dump.routesIn(await dataOf(answer, 'routes'), createNames(failWithoutDescriptors))
  }

  async lookUp(_family: Family, queries: readonly RouteQuery[]): Promise<readonly RouteAnswer[]> {
    const { lookedUpIn, lookUpRequest, refusalOf } = await loadRest()
    const requests = queries.map((query) => lookUpRequest(query, indexOf))
    const answers = await this.#exchange(requests.filter((request) => request !== undefined))
    const nameOf = createNames(failWithoutDescriptors)
    let at = 0
    return requests.map((request) => {
      const answer = request && answers[at++]
      return answer ? lookedUpIn(answer, nameOf) : refusalOf('ENODEV')
    })
  }

  async rules(family: Family): Promise<readonly PolicyRule[] | undefined> {
    const { rulesIn, rulesRequest } = await loadRest()
    const [answer] = await this.#exchange([rulesRequest(family)])
    if (answer && isMissingFamily(answer)) return undefined
    return rulesIn(messagesIn(await dataOf(answer, 'policy rules')), family)
  }

  async neighbours(family: Family, device?: Device): Promise<readonly Neighbour[]> {
    const index = device && indexOf(device)
    if (index === 0) return []
    const { neighboursIn, neighboursRequest } = await loadRest()
    const [answer] = await this.#exchange([neighboursRequest(family, index)])
    if (answer && (isMissing(answer) || isMissingFamily(answer))) return []
    return neighboursIn(messagesIn(await dataOf(answer, 'neighbours')), family, index)
  }

  async forwarding(device: Device): Promise<readonly Forwarding[]> {
    const index = indexOf(device)
    if (index === 0) return []
    const { forwardingEntriesIn, forwardingRequest } = await loadRest()
    const [answer] = await this.#exchange([forwardingRequest(index)])
    if (answer && isMissing(answer)) return []
    return forwardingEntriesIn(messagesIn(await dataOf(answer, 'forwarding entries')), index)
  }

  async wireguard(device: Device): Promise<WireguardState> {
    const { readError, readWireguard } = await loadRest()
    const { answer, state } = await readWireguard(this.#generic, device)
    if (state) return state
    throw readError(`the WireGuard device ${device.name}`, answer)
  }

  async hasIpsecPolicies(): Promise<boolean> {
    const { countPolicies, hasPoliciesIn } = await loadRest()
    const [answer] = await this.#xfrm.exchange([countPolicies()])
    if (answer && isMissingProtocol(answer)) return false
    return hasPoliciesIn(messagesIn(await dataOf(answer, 'IPsec policies')))
  }

  async ipsec(): Promise<IpsecSetup> {
    const { defaultsIn, getDefaults, listPolicies, listStates, policiesIn, statesIn } = await loadRest()
    const [policies, states, defaults] = await this.#xfrm.exchange([listPolicies(), listStates(), getDefaults()])
    if (policies && isMissingProtocol(policies)) return { policies: [], states: [], blockedByDefault: [] }
    try {
      return {
        policies: policiesIn(messagesIn(await dataOf(policies, 'IPsec policies'))),
        states: statesIn(messagesIn(await dataOf(states, 'IPsec states'))),
        // Kernels before Linux 5.15 do not know the request for the default policies.
        blockedByDefault: defaults?.errno === 0 ? defaultsIn(messagesIn(defaults.data)) : [],
      }
    } finally {
      states?.data.fill(0) // the kernel's list of states has their keys
    }
  }

  async nftTables(): Promise<readonly NftTable[] | undefined> {
    const { tablesIn, tablesRequest } = await loadRest()
    const data = await this.#nftData(tablesRequest())
    return data && tablesIn(data)
  }

  async nftGeneration(): Promise<number | undefined> {
    const { generationIn, generationRequest } = await loadRest()
    const data = await this.#nftData(generationRequest())
    return data && generationIn(data)
  }

  async legacyTables(family: Family): Promise<readonly string[] | undefined> {
    try {
      // net/netfilter/x_tables.c
      const names = await readFile(`/proc/net/${family === 'ipv4' ? 'ip' : 'ip6'}_tables_names`, 'utf8')
      return names.split('\n').filter((name) => name !== '')
    } catch (error) {
      return (error as NodeJS.ErrnoException).code === 'ENOENT' ? [] : undefined // the kernel has no legacy iptables
    }
  }

  async change(changes: readonly Change[]): Promise<readonly (WeftError | undefined)[]> {
    const errors: (WeftError | undefined)[] = []
    for (const batch of batchesOf(changes)) {
      const answers = await this.#send(batch)
      for (const [at, change] of batch.changes.entries()) {
        const answer = answers[at] ?? NO_DEVICE
        const error = answer.errno === 0 ? undefined : (await loadRest()).changeError(change, answer)
        errors.push(error)
        if (!this.#log?.v(4)) continue
        const { wordsOf } = await loadRest()
        this.#log.info(error ? error.message : `The kernel accepted \`${wordsOf(change)}\``)
      }
    }
    return errors
  }

  async watch(topics: readonly Topic[], onEvent: OnKernelEvent, signal: AbortSignal): Promise<void> {
    const { eventOf, groupsOf } = await loadRest()
    const { route, xfrm } = groupsOf(topics)
    const monitors: NetlinkMonitor[] = []
    const stop = (): void => monitors.forEach((monitor) => monitor.stop())
    if (signal.aborted) return
    signal.addEventListener('abort', stop, { once: true })
    try {
      const take = (report: ReceivedMessage, nameOf: NameOf): void => {
        const event = eventOf(report, nameOf)
        if (event) onEvent(event, this.#route.hasCaused(report))
      }
      const lost = (): void => onEvent({ of: 'anything' }, false)
      if (route.length > 0) monitors.push(watchGroups(NETLINK.ROUTE, route, take, lost, signal))
      if (xfrm.length > 0)
        monitors.push(watchGroups(NETLINK.XFRM, xfrm, () => onEvent({ of: 'ipsec policies' }, false), lost, signal))
    } catch (error) {
      // A kernel without IPsec refuses this request, and has no IPsec policies.
      if (isWithoutIpsec(error)) return
      stop()
      signal.removeEventListener('abort', stop) // the caller may try again many times
      throw error
    }
  }

  /** Sends a batch. The answer of a change is undefined if an interface that the change names does not exist. */
  async #send({ changes, isWireguard }: Batch): Promise<readonly (Answer | undefined)[]> {
    if (isWireguard) return (await loadRest()).setWireguard(this.#generic, changes as WireguardChange[])
    const rest = changes.some(isOfRest) ? await loadRest() : undefined
    const requests = changes.map((change) => requestOf(change, indexOf, rest))
    const answers = await this.#exchange(requests.filter((request) => request !== undefined))
    let at = 0
    return requests.map((request) => (request ? answers[at++] : undefined))
  }

  /**
   * Returns the kernel's answer to a request to nftables; undefined if the kernel has no nftables or refuses the
   * request.
   */
  async #nftData(request: Buffer): Promise<Buffer | undefined> {
    const [answer] = await this.#netfilter.exchange([request])
    return answer?.errno === 0 ? answer.data : undefined
  }

  async #exchange(requests: readonly Buffer[]): Promise<readonly Answer[]> {
    const answers = await this.#route.exchange(requests)
    if (this.#log?.v(4) && answers.some(({ isInterrupted }) => isInterrupted))
      this.#log.info('Another program changed the kernel objects while the kernel listed them')
    return answers
  }
}

/** Returns true for the error of watching NETLINK_XFRM on a kernel that is built without IPsec. */
const isWithoutIpsec = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === 'EPROTONOSUPPORT'

/**
 * Watches groups of a netlink subsystem. Calls `take` with each report of the kernel, and `lost` if reports were lost.
 * Calls neither after `signal` has aborted.
 */
const watchGroups = (
  protocol: number,
  groups: readonly number[],
  take: (report: ReceivedMessage, nameOf: NameOf) => void,
  lost: () => void,
  signal: AbortSignal,
): NetlinkMonitor =>
  addon.watchNetlink(protocol, groups, (reports, isLossy) => {
    if (isLossy) lost()
    const nameOf = createNames()
    // An earlier call of `take` or `lost` may have aborted the signal.
    for (const report of messagesIn(reports)) if (!signal.aborted) take(report, nameOf)
  })

/** The kernel of this host, in the network namespace of this process. */
export const hostKernel = new NetlinkKernel()

/**
 * Divides changes into batches. weftd determines the index of an interface when it sends the batch. So a change that
 * names an interface begins a new batch if an earlier change in the batch creates or deletes an interface.
 */
function batchesOf(changes: readonly Change[]): readonly Batch[] {
  const batches: Batch[] = []
  let changesNames = false
  for (const change of changes) {
    const isWireguard = change.kind === 'set wireguard'
    const last = batches.at(-1)
    const mustWait = changesNames && devicesOf(change).some(({ index }) => index === undefined)
    if (last && last.isWireguard === isWireguard && last.changes.length < CHANGES_AT_ONCE && !mustWait) {
      last.changes.push(change)
    } else {
      batches.push({ changes: [change], isWireguard })
      changesNames = false
    }
    changesNames ||= change.kind === 'add link' || change.kind === 'delete link'
  }
  return batches
}

/** Returns the interfaces that a change names. */
function devicesOf(change: Change): readonly Device[] {
  if (change.kind === 'add link') return change.link.vxlan?.underlay ? [change.link.vxlan.underlay] : []
  return 'device' in change && change.device ? [change.device] : []
}

/** Returns true for a change whose request the module rest.ts makes. */
const isOfRest = ({ kind }: Change): boolean => /rule|neighbour|forwarding/.test(kind)

/** Returns the request that makes a change; undefined if an interface that the change names does not exist. */
function requestOf(change: Change, indexes: IndexOf, rest: Rest | undefined): Buffer | undefined {
  switch (change.kind) {
    case 'add link':
    case 'set link':
    case 'delete link':
      return linkRequest(change, indexes)
    case 'replace address':
    case 'delete address':
      return addressRequest(change, indexes)
    case 'add route':
    case 'replace route':
    case 'delete route':
      return routeRequest(change, indexes)
    case 'add rule':
    case 'delete rule':
      return rest?.ruleRequest(change)
    case 'replace neighbour':
    case 'delete neighbour':
    case 'replace forwarding':
    case 'delete forwarding':
      return rest?.entryRequest(change, indexes)
    case 'set wireguard':
      return undefined
  }
}

const indexOf: IndexOf = ({ name, index }) => {
  if (index !== undefined) return index
  try {
    return addon.interfaceIndex(name)
  } catch (error) {
    throw new WeftError('KERNEL', `cannot look up the interface ${name}: ${messageOf(error)}`, {
      remedy: 'raise the limit of open files of this process (LimitNOFILE of systemd, or `ulimit -n`)',
      cause: error,
    })
  }
}

/**
 * Returns a function that looks up the name of each interface only once. Calls `onMissing` when an interface has no name.
 */
function createNames(onMissing = (): void => {}): NameOf {
  const names = new Map<number, string>()
  return (index) => {
    const known = names.get(index)
    if (known !== undefined) return known
    const name = addon.interfaceName(index)
    if (name === '') onMissing()
    names.set(index, name)
    return name
  }
}

/**
 * Throws WeftError KERNEL if this process has no free file descriptor, without which an interface has no name for
 * `interfaceName`. Otherwise weftd would take routes through the interface for blackholes. Must not be called for the
 * kernel's reports, because no caller would catch the error.
 */
const failWithoutDescriptors = (): void => void indexOf({ name: 'lo' }) // reports the error, unlike interfaceName

/**
 * Returns the messages of an answer. If the kernel refused the request, throws an error which says that the kernel
 * refused to list the objects `what`.
 */
async function dataOf(answer: Answer | undefined, what: string): Promise<Buffer> {
  if (answer?.errno === 0) return answer.data
  throw (await loadRest()).readError(what, answer ?? NO_DEVICE)
}
