// ipsec.ts - the ipsec backend: strongSwan's charon negotiates keys with each peer, and the kernel or charon carries the ESP packets.
//
// The lease, the policies, charon's connections and the error texts are those of flanneld (pkg/backend/ipsec). If the kernel carries the
// packets, there is no device and no route, because the policies decide which packets are encrypted.

import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import { sideOf, type Lease, type LeaseAttrs, type OwnLease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { formatAddress, formatNet, type Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, Counting, DataPath, PathPeer, PathTraffic } from '../contract.ts'
import { IpsecPolicies, POLICY_CHANGES, removePolicies, type PolicyPeer } from '../device/ipsec-policies.ts'
import { ROUTE_WORDS } from '../device/route-sync.ts'
import { removeUnreachable, UnreachableNetwork } from '../device/unreachable-network.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import { Charon, findCharon, isCharonRunning } from './ipsec/charon.ts'
import { IpsecConnections, type PeerKeys } from './ipsec/connections.ts'
import { canKernelCarryEsp } from './ipsec/kernel-esp.ts'
import { KernelPath } from './kernel-path.ts'

const TYPE = 'ipsec'
const NEEDS = `the ${TYPE} backend`
const { overhead } = KINDS.ipsec
/** The length of the UDP header in bytes, which the option UDPEncap adds. */
const UDP_HEADER = 8

export function createIpsecBackend({ config, settings, external: found, run, log }: BackendParts<'ipsec'>): Backend {
  const { psk, udpEncap, espProposal, dataPath } = settings
  let external = found
  /** True if charon carries the ESP packets; undefined before `prepare`. */
  let isUserspace: boolean | undefined
  log.info(`IPSec config: UDPEncap=${udpEncap} ESPProposal=${espProposal}`)

  /** Chooses the carrier of the packets: the configured one, or the kernel if it has ESP, otherwise charon. */
  async function choose(): Promise<boolean> {
    if (isUserspace !== undefined) return isUserspace
    const chosen = dataPath ? dataPath === 'userspace' : !(await canKernelCarryEsp(run))
    if (!chosen) log.info('ESP packets are carried by the kernel')
    else log.info(`ESP packets are carried by charon: ${dataPath ? 'DataPath is userspace' : 'the kernel has no ESP'}`)
    return chosen
  }

  return {
    name: TYPE,
    devices: [],
    usesIpsec: true,
    get external() {
      return external
    },
    words: ROUTE_WORDS,
    async prepare(signal): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      carryIpv4Alone(NEEDS, config, log)
      if (!(await isCharonRunning(signal))) findCharon()
      isUserspace = await choose()
      return { publicIp: external.publicIp, backendType: TYPE }
    },
    plan: () => [
      {
        families: ['ipv4'],
        mtu: external.mtu - overhead - (udpEncap ? UDP_HEADER : 0),
        external: { families: ['ipv4'], isBound: true },
        watched: POLICY_CHANGES,
        open,
      },
    ],
  }

  async function open(lease: OwnLease, _leases: ReadonlyMap<string, Lease>, signal: AbortSignal): Promise<DataPath> {
    const { network } = ipv4For(NEEDS, config)
    const own = {
      subnet: formatNet(ipv4For(NEEDS, lease.subnet)),
      host: formatAddress(ipv4For(NEEDS, external.publicIp)),
    }
    const isUserland = isUserspace === true
    const guard = isUserland
      ? new UnreachableNetwork(network, run)
      : new IpsecPolicies({ network: formatNet(network), own, run, log })
    const connections = new IpsecConnections({
      own,
      psk,
      espProposal,
      udpEncap,
      isUserspace: isUserland,
      start: (stop) => Charon.start(isUserland, log, stop),
      log,
    })
    // The guard comes first, so that no packet leaves unencrypted. Afterwards the other guard, which an earlier run with another carrier
    // may have left, is removed, because it blocks all packets.
    await guard.apply([])
    await (isUserland ? removePolicies(run, own, formatNet(network)) : removeUnreachable(run, network))
    await connections.open(signal)
    return new IpsecPath(new PeerFilter<Net>({ type: TYPE, lease, network, log }), guard, connections)
  }
}

class IpsecPath extends KernelPath implements Counting {
  readonly counting: Counting = this
  readonly #filter: PeerFilter
  /** Refuses unencrypted packets of the network. */
  readonly #guard: IpsecPolicies | UnreachableNetwork
  readonly #connections: IpsecConnections
  /** The counts of the peers with keys, by the peer's subnet, as of the last repair or the last `traffic`. */
  #keys: ReadonlyMap<string, PeerKeys> = new Map()

  constructor(filter: PeerFilter, guard: IpsecPolicies | UnreachableNetwork, connections: IpsecConnections) {
    super({ families: ['ipv4'], probeSource: {}, filters: [filter] })
    this.#filter = filter
    this.#guard = guard
    this.#connections = connections
  }

  async traffic(): Promise<ReadonlyMap<string, PathTraffic>> {
    this.#keys = await this.#connections.keys()
    const found = new Map<string, PathTraffic>()
    for (const [key, peer] of this.#filter.peers()) {
      const counts = this.#keys.get(policyPeer(peer).subnet)
      if (counts) found.set(key, { ...counts, lastReceivedAt: undefined })
    }
    return found
  }

  override counters(): Readonly<Record<string, bigint>> {
    const without = [...this.#filter.peers().values()].filter((peer) => !this.#keys.has(policyPeer(peer).subnet))
    return { ...super.counters(), peers_without_keys: BigInt(without.length) }
  }

  protected async setPeers(
    leases: ReadonlyMap<string, Lease>,
    ownKey: string,
    touched?: ReadonlySet<string>,
  ): Promise<void> {
    this.#filter.take(leases, ownKey, touched)
    const peers = [...this.#filter.peers().values()].map(policyPeer)
    await this.#guard.apply(peers)
    await this.#connections.apply(peers)
  }

  protected async repair(): Promise<readonly string[]> {
    const repaired = [...(await this.#guard.resync()), ...(await this.#connections.resync())]
    this.#keys = await this.#connections.keys()
    return repaired
  }

  protected listPeers(): readonly PathPeer[] {
    return [...this.#filter.peers().values()]
      .filter((peer) => this.#guard.isSet(policyPeer(peer)))
      .map((peer) => ({ key: peer.key, ipv4: { endpoint: policyPeer(peer).host, way: 'kernel' as const } }))
  }

  /** Like flanneld, weftd keeps the policies, so that no packet leaves unencrypted while weftd is stopped. charon ends. */
  protected override async end(): Promise<void> {
    await this.#connections.close()
  }
}

function policyPeer(peer: Lease): PolicyPeer {
  const { subnet, host } = sideOf(peer, 'ipv4')
  return { subnet: formatNet(subnet), host: formatAddress(host) }
}
