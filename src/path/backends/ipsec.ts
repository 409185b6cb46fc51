// ipsec.ts - the ipsec backend: strongSwan's charon negotiates keys with each peer, and the kernel or charon carries the ESP packets.
//
// The lease, the policies, charon's connections and the error texts are those of flanneld (pkg/backend/ipsec). If the kernel carries the
// packets, there is no device and no route, because the policies decide which packets are encrypted.

import { describeError, isWeftError, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import { sideOf, type Lease, type LeaseAttrs, type OwnLease } from '../../control/lease/lease.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { formatAddress, formatNet, netAround, netContains, type Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, PathPeer, PathTraffic } from '../contract.ts'
import { IpsecPolicies, POLICY_CHANGES, removePolicies, type PolicyPeer } from '../device/ipsec-policies.ts'
import { removeUnreachable, UnreachableNetwork } from '../device/unreachable-network.ts'
import { PeerFilter } from '../tunnel/peer-filter.ts'
import { Charon, checkPrograms, isCharonRunning } from './ipsec/charon.ts'
import { IpsecConnections, type PeerKeys } from './ipsec/connections.ts'
import { canKernelCarryEsp } from './ipsec/kernel-esp.ts'
import { leaveCharon } from './ipsec/leave-charon.ts'
import { KernelPath } from './kernel-path.ts'

const TYPE = 'ipsec'
const NEEDS = `the ${TYPE} backend`
const { overhead } = KINDS.ipsec
/** The length of the UDP header in bytes, which the option UDPEncap adds. */
const UDP_HEADER = 8
/** The MTU of the device of charon's plugin kernel-libipsec (strongSwan: src/libstrongswan/networking/tun_device.c). */
const USERSPACE_MTU = 1400

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
    async prepare(signal): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      carryIpv4Alone(NEEDS, config, log)
      if (!(await isCharonRunning(signal))) checkPrograms()
      isUserspace = await choose()
      checkHosts()
      return { publicIp: external.publicIp, backendType: TYPE }
    },
    plan: () => [
      {
        families: ['ipv4'],
        mtu: mtuOf(),
        external: { families: ['ipv4'], isBound: true, isByName: false },
        watched: POLICY_CHANGES,
        open,
      },
    ],
    async withdraw(_lease, signal) {
      try {
        const names = await leaveCharon([ipv4For(NEEDS, config).network], signal)
        return names.map((name) => `the connection ${name} of charon`)
      } catch (error) {
        if (!isWeftError(error)) throw error
        log.error(`The connections of charon stay: ${describeError(error)}`)
        return []
      }
    },
  }

  /** Returns flanneld's MTU. charon always carries ESP packets in UDP datagrams, and its own device has a smaller MTU. */
  function mtuOf(): number {
    if (isUserspace) return Math.min(external.mtu - overhead - UDP_HEADER, USERSPACE_MTU)
    return external.mtu - overhead - (udpEncap ? UDP_HEADER : 0)
  }

  /** True if this host has its address within the network. Then packets between hosts must pass the policies. */
  function hasHosts(): boolean {
    const { network } = ipv4For(NEEDS, config)
    return netContains(network, ipv4For(NEEDS, external.publicIp))
  }

  /**
   * Throws WeftError CONFIG if hosts have addresses within the network and charon carries the packets, because the unreachable route would
   * cut off the hosts.
   */
  function checkHosts(): void {
    if (!hasHosts()) return
    const where = `this host's address ${formatAddress(ipv4For(NEEDS, external.publicIp))} is within the network`
    if (isUserspace)
      throw new WeftError('CONFIG', `${where}, which the ${TYPE} backend with "DataPath": "userspace" cannot carry`, {
        remedy: 'choose a network that contains no address of a host',
      })
    log.warn(`${where}: packets of this host itself to containers of other nodes can leave unencrypted`)
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
      : new IpsecPolicies({ network: formatNet(network), own, hasHosts: hasHosts(), run, log })
    const connections = new IpsecConnections({
      network,
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
    await guard.block()
    await (isUserland ? removePolicies(run, formatNet(network)) : removeUnreachable(run, network))
    await connections.open(signal)
    const ownSubnet = ipv4For(NEEDS, lease.subnet)
    const filter = new PeerFilter<Net>({
      type: TYPE,
      lease,
      network,
      log,
      otherType: ({ attrs }) => `Ignoring non-ipsec event: type: ${attrs.backendType}`,
      alsoUnusable: (peer) =>
        netContains(sideOf(peer, 'ipv4').subnet, ownSubnet.address)
          ? `its subnet contains this node's ${formatNet(ownSubnet)}`
          : undefined,
    })
    return new IpsecPath({ filter, guard, connections, isUserspace: isUserland, log })
  }
}

interface IpsecParts {
  readonly filter: PeerFilter
  readonly guard: IpsecPolicies | UnreachableNetwork
  readonly connections: IpsecConnections
  readonly isUserspace: boolean
  readonly log: Log
}

class IpsecPath extends KernelPath {
  readonly #filter: PeerFilter
  /** Refuses unencrypted packets of the network. */
  readonly #guard: IpsecPolicies | UnreachableNetwork
  readonly #connections: IpsecConnections
  /** True if charon carries the ESP packets. */
  readonly #isUserspace: boolean
  readonly #log: Log
  /** The peers by lease key, without those whose subnet contains the subnet of another peer. */
  #peers: ReadonlyMap<string, Lease> = new Map()
  /** The keys of the leases whose subnet contains the subnet of another peer. */
  #wide: ReadonlySet<string> = new Set()
  /** The counts of the peers with keys, by the peer's subnet, as of the last repair or the last `traffic`. */
  #keys: ReadonlyMap<string, PeerKeys> = new Map()

  constructor({ filter, guard, connections, isUserspace, log }: IpsecParts) {
    super({ families: ['ipv4'], probeSource: {}, filters: [filter] })
    this.#filter = filter
    this.#guard = guard
    this.#connections = connections
    this.#isUserspace = isUserspace
    this.#log = log
  }

  /** True while a peer has no keys, because the kernel does not report when charon negotiates them. */
  get unreported(): boolean {
    return this.#withoutKeys() > 0
  }

  override carrier(): ReturnType<DataPath['carrier']> {
    return this.#isUserspace ? { engine: 'none', features: [] } : super.carrier()
  }

  async traffic(): Promise<ReadonlyMap<string, PathTraffic>> {
    await this.#readKeys()
    const found = new Map<string, PathTraffic>()
    for (const [key, peer] of this.#peers) {
      const counts = this.#keys.get(policyPeer(peer).subnet)
      if (counts) found.set(key, { ...counts, lastReceivedAt: undefined })
    }
    return found
  }

  override counters(): Readonly<Record<string, bigint>> {
    const { peers_unusable: unusable = 0n } = super.counters()
    return {
      peers_unusable: unusable + BigInt(this.#wide.size),
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
    return repaired
  }

  /** Lists the peers that have keys. Packets to a peer without keys are dropped. */
  protected listPeers(): readonly PathPeer[] {
    const way = this.#isUserspace ? {} : { way: 'kernel' as const }
    return [...this.#peers.values()]
      .filter((peer) => this.#guard.isSet(policyPeer(peer)) && this.#keys.has(policyPeer(peer).subnet))
      .map((peer) => ({ key: peer.key, ipv4: { endpoint: policyPeer(peer).host, ...way } }))
  }

  /** Like flanneld, weftd keeps the policies, so that no packet leaves unencrypted while weftd is stopped. charon ends. */
  protected override async end(): Promise<void> {
    await this.#connections.close()
  }

  async #readKeys(): Promise<void> {
    this.#keys = await this.#connections.keys()
  }

  #withoutKeys(): number {
    return [...this.#peers.values()].filter((peer) => !this.#keys.has(policyPeer(peer).subnet)).length
  }

  /**
   * Leaves out the peers whose subnet contains the subnet of another peer. The kernel prefers no policy of a smaller subnet, so such a lease
   * would get the packets of other nodes.
   */
  #leaveOutWide(): void {
    const peers = [...this.#filter.peers()]
    const lengths = [...new Set(peers.map(([, peer]) => sideOf(peer, 'ipv4').subnet.prefixLength))]
    const containing = new Set<string>()
    for (const [, peer] of peers) {
      const { address, prefixLength } = sideOf(peer, 'ipv4').subnet
      for (const length of lengths) if (length < prefixLength) containing.add(formatNet(netAround(address, length)))
    }
    const wide = new Set(peers.flatMap(([key, peer]) => (containing.has(policyPeer(peer).subnet) ? [key] : [])))
    for (const key of wide)
      if (!this.#wide.has(key))
        this.#log.warn(`Lease ${key} is not used: its subnet contains the subnet of another node`)
    this.#wide = wide
    this.#peers = new Map(peers.filter(([key]) => !wide.has(key)))
  }
}

function policyPeer(peer: Lease): PolicyPeer {
  const { subnet, host } = sideOf(peer, 'ipv4')
  return { subnet: formatNet(subnet), host: formatAddress(host) }
}
