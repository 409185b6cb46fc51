// ipsec-path.ts - the data path of the backend ipsec: the kernel's IPsec policies, charon's connections, and the state
// of the peers. If charon carries the packets, an unreachable route and a routing rule (userspace-guard.ts) replace the
// policies.

import type { Log } from '../../../base/log.ts'
import { sideOf, type Lease, type OwnLease } from '../../../control/lease/lease.ts'
import { withLatePromise } from '../../../host/bell.ts'
import { formatAddress, formatNet, netAround, netContains, type Address, type Net } from '../../../net/address.ts'
import type { Counting, DataPath, PathPeer, PathTraffic } from '../../contract.ts'
import type { IpsecPolicies, PolicyPeer } from '../../device/ipsec-policies.ts'
import type { UserspaceGuard } from '../../device/userspace-guard.ts'
import { PeerFilter } from '../../tunnel/peer-filter.ts'
import { KernelPath } from '../kernel-path.ts'
import type { IpsecConnections, PeerKeys } from './connections.ts'

/** How long, in ms, a status report waits for charon's traffic counts. After that it shows the last known counts. */
const COUNT_MS = 500
/** The pause in ms before weftd handles charon's reports of changed keys, because such reports come in bursts. */
const SETTLE_MS = 100
/**
 * The interval in ms at which weftd lists the keys again while a peer lacks keys. charon's list omits a peer whose keys
 * charon is changing at that moment.
 */
const AGAIN_MS = 5_000

/**
 * The time in ms for which a peer must lack keys before weftd logs that the keys are missing. charon usually negotiates
 * keys in less time.
 */
const MISSING_MS = 4_000

/**
 * Returns an IPv4 address of this host that is within the network. Checks the public IP and the interface's own
 * address, because these differ behind NAT. If such an address exists, weftd must not block the packets that hosts send
 * to each other.
 */
export function hostWithin(network: Net, publicIp: Address, address: Address | undefined): string | undefined {
  const found = [publicIp, address].find((each) => each !== undefined && netContains(network, each))
  return found === undefined ? undefined : formatAddress(found)
}

interface FilterParts {
  readonly lease: OwnLease
  readonly network: Net
  readonly log: Log
}

/**
 * Makes the filter of the peers. The filter refuses a subnet that contains this node's own subnet, because the IPsec
 * policies for that subnet would also match packets between containers of this node.
 */
export function createFilter(type: string, { lease, network, log }: FilterParts): PeerFilter {
  const own = sideOf(lease, 'ipv4').subnet
  return new PeerFilter<Net>({
    type,
    lease,
    network,
    log,
    otherType: ({ attrs }) => `Ignoring non-${type} event: type: ${attrs.backendType}`,
    alsoUnusable: (peer) =>
      netContains(sideOf(peer, 'ipv4').subnet, own.address)
        ? `its subnet contains this node's ${formatNet(own)}`
        : undefined,
  })
}

interface IpsecParts {
  readonly filter: PeerFilter
  readonly guard: IpsecPolicies | UserspaceGuard
  readonly connections: IpsecConnections
  readonly isUserspace: boolean
  readonly log: Log
}

export class IpsecPath extends KernelPath implements Counting {
  readonly counting: Counting = this
  readonly #filter: PeerFilter
  /** Makes the kernel drop packets of the flannel network that are not encrypted. */
  readonly #guard: IpsecPolicies | UserspaceGuard
  readonly #connections: IpsecConnections
  /** True if charon carries the ESP packets. */
  readonly #isUserspace: boolean
  readonly #log: Log
  /** The peers by lease key, without those whose subnet contains the subnet of another peer. */
  #peers: ReadonlyMap<string, Lease> = new Map()
  /** The keys of the leases whose subnet contains the subnet of another peer. */
  #wide: ReadonlySet<string> = new Set()
  /**
   * The traffic counts of the peers with keys, by the peer's subnet, as of the last repair or the last call of
   * `traffic`.
   */
  #keys: ReadonlyMap<string, PeerKeys> = new Map()
  /**
   * For each peer without keys, by lease key: the time since which the keys are missing, in ms of performance.now(),
   * and whether weftd has logged that they are missing.
   */
  readonly #missing = new Map<string, { readonly since: number; isLogged: boolean }>()
  #timer: NodeJS.Timeout | undefined
  #readAt = 0
  #isClosed = false
  /**
   * The running request to charon for the traffic counts; concurrent callers share it. Undefined if none is running.
   */
  #reading: Promise<void> | undefined

  constructor({ filter, guard, connections, isUserspace, log }: IpsecParts) {
    super({ families: ['ipv4'], probeSource: {}, filters: [filter] })
    this.#filter = filter
    this.#guard = guard
    this.#connections = connections
    this.#isUserspace = isUserspace
    this.#log = log
    connections.watch(() => this.#readSoon(SETTLE_MS))
  }

  override carrier(): ReturnType<DataPath['carrier']> {
    return this.#isUserspace ? { engine: 'none', features: [] } : super.carrier()
  }

  async traffic(): Promise<ReadonlyMap<string, PathTraffic>> {
    await withLatePromise(COUNT_MS, (late) => Promise.race([this.#readKeys(), late]))
    const found = new Map<string, PathTraffic>()
    for (const [key, peer] of this.#peers) {
      const counts = this.#keys.get(policyPeer(peer).subnet)
      if (counts) found.set(key, { ...counts, lastReceivedAt: undefined })
    }
    return found
  }

  override unusable(): ReadonlySet<string> {
    return new Set([...super.unusable(), ...this.#wide])
  }

  override counters(): Readonly<Record<string, bigint>> {
    return {
      peers_without_keys: BigInt(this.#withoutKeys()),
    }
  }

  protected async setPeers(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: ReadonlySet<string>,
  ): Promise<void> {
    this.#filter.take(leases, ownKey, touched)
    this.#leaveOutWide()
    const peers = [...this.#peers.values()].map(policyPeer)
    await this.#guard.apply(peers)
    await this.#connections.apply(peers)
  }

  protected async repair(): Promise<readonly string[]> {
    const repaired = [...(await this.#guard.resync()), ...(await this.#connections.resync())]
    await this.#readKeys()
    await this.#connections.negotiate(true)
    return repaired
  }

  /** Lists the peers that have keys. Packets to a peer without keys are dropped. */
  protected listPeers(): readonly PathPeer[] {
    const way = this.#isUserspace ? {} : { way: 'kernel' as const }
    return [...this.#peers.values()]
      .filter((peer) => this.#guard.isSet(policyPeer(peer)) && this.#keys.has(policyPeer(peer).subnet))
      .map((peer) => ({ key: peer.key, ipv4: { endpoint: policyPeer(peer).host, ...way } }))
  }

  /**
   * Ends charon if weftd started it. Keeps the IPsec policies, as flanneld does, so that no packet leaves unencrypted
   * while weftd is stopped.
   */
  protected override async end(): Promise<void> {
    this.#isClosed = true
    clearTimeout(this.#timer)
    await this.#connections.close()
  }

  #readKeys(): Promise<void> {
    this.#reading ??= this.#connections
      .keys()
      .then((keys) => {
        this.#keys = keys
        this.#logMissing()
        if (this.#withoutKeys() > 0) this.#readSoon(AGAIN_MS)
      })
      .finally(() => (this.#reading = undefined))
    return this.#reading
  }

  /** Plans to read the keys after `ms` milliseconds, unless weftd already plans to read them earlier. */
  #readSoon(ms: number): void {
    const at = performance.now() + ms
    if (this.#isClosed || (this.#timer && this.#readAt <= at)) return
    clearTimeout(this.#timer)
    this.#readAt = at
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      void this.#readKeys().then(() => this.#connections.negotiate(false))
    }, ms)
  }

  /** Logs once for each peer that the peer has no keys, and once that it has keys again. */
  #logMissing(): void {
    const now = performance.now()
    for (const key of this.#missing.keys()) if (!this.#peers.has(key)) this.#missing.delete(key)
    for (const [key, lease] of this.#peers) {
      const { subnet, host } = policyPeer(lease)
      const before = this.#missing.get(key)
      if (this.#keys.has(subnet)) {
        if (before?.isLogged) this.#log.info(`charon has keys again for ${subnet} at ${host}`)
        this.#missing.delete(key)
      } else if (!before) this.#missing.set(key, { since: now, isLogged: false })
      else if (!before.isLogged && now - before.since >= MISSING_MS) {
        before.isLogged = true
        this.#log.warn(`charon has no keys for ${subnet} at ${host}: packets to and from this peer are dropped`)
      }
    }
  }

  #withoutKeys(): number {
    return [...this.#peers.values()].filter((peer) => !this.#keys.has(policyPeer(peer).subnet)).length
  }

  /**
   * Leaves out the peers whose subnet contains the subnet of another peer. The kernel does not prefer the policy of the
   * smaller subnet, so a peer with the wider subnet would get the packets of other nodes.
   */
  #leaveOutWide(): void {
    const peers = [...this.#filter.peers()]
    const lengths = [...new Set(peers.map(([, peer]) => sideOf(peer, 'ipv4').subnet.prefixLength))]
    const containing = new Set<string>()
    for (const [, peer] of peers) {
      const { address, prefixLength } = sideOf(peer, 'ipv4').subnet
      for (const length of lengths) if (length < prefixLength) containing.add(formatNet(netAround(address, length)))
    }
    const why = 'its subnet contains the subnet of another node'
    const wide = new Set(peers.flatMap(([key, peer]) => (containing.has(policyPeer(peer).subnet) ? [key] : [])))
    for (const key of wide) if (!this.#wide.has(key)) this.#log.warn(`${unused(key)}: ${why}`)
    this.#wide = wide
    this.#peers = new Map(peers.filter(([key]) => !wide.has(key)))
  }
}

const unused = (key: string): string => `Lease ${key} is not used`

function policyPeer(peer: Lease): PolicyPeer {
  const { subnet, host } = sideOf(peer, 'ipv4')
  return { subnet: formatNet(subnet), host: formatAddress(host) }
}
