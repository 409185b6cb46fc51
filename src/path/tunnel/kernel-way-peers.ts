// kernel-way-peers.ts - decides for which peers the eBPF programs carry the packets. A peer is promoted, that is, the
// programs carry its packets, after a test connection to the peer succeeded (kernel-way-proof.ts). If a promoted peer
// no longer answers, the engine carries its packets again.
//
// The engine always knows every peer. One update of a map promotes a peer, and one update ends the promotion, so no
// packet is lost at the change.

import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { HostKernel, RouteAnswer } from '../../host/kernel.ts'
import type { FollowedLink } from '../../host/links.ts'
import {
  familyOf,
  formatAddress,
  formatNet,
  listed,
  netContains,
  type Address,
  type Net,
  type Nets,
} from '../../net/address.ts'
import type { FastPath } from '../contract.ts'
import type { Engine } from '../engine/engine.ts'
import type { Peer } from '../engine/peers.ts'
import { SLOT_NUMBERS } from '../engine/traffic.ts'
import { encodePeer, mapOf, peerKey, PROMOTED, TRIED } from './kernel-way-maps.ts'
import type { KernelPrograms } from './kernel-way-programs.ts'
import { PROOF_BYTES, ProofConnection, type ProofFailure } from './kernel-way-proof.ts'

/**
 * weftd tests a peer for the eBPF programs if the engine has sent the peer at least this number of packets between two
 * calls of `look`.
 */
const BUSY_PACKETS = 10
/**
 * The maximum number of peers whose packets the eBPF programs carry. MOST_PROOFS is the maximum number of simultaneous
 * test connections.
 */
const MOST_PROMOTED = 1_024
const MOST_PROOFS = 4
/**
 * The shortest pause in ms between a failed test connection to a peer and the next test connection. MOST_RETRY_MS is
 * the longest pause.
 */
const RETRY_MS = 10_000
const MOST_RETRY_MS = 600_000
/**
 * How long, in ms, the eBPF programs continue to carry packets to a peer that no longer answers the message `?` on its
 * test connection. SILENT_MS applies if no packets arrive from the peer, otherwise UNANSWERED_MS. UNANSWERED_MS is
 * longer, because the kernel of a peer carries packets even while the peer's daemon is stopped for some seconds.
 */
const UNANSWERED_MS = 20_000
const SILENT_MS = 6_000
/**
 * How long, in ms, the eBPF programs carry packets to a peer after the test connection to the peer's daemon ended
 * without the message `bye`. The time is shorter than UNCONFIRMED_MS, after which the peer's own eBPF programs no
 * longer carry packets.
 */
const ORPHANED_MS = 45_000
/**
 * How long, in ms, the program `ingress` accepts a peer's datagrams over IPv4 after weftd has begun to reach the peer over
 * IPv6. A peer that gets no answer over IPv4 sends over IPv4 for at most UNANSWERED_MS, or ORPHANED_MS.
 */
const IPV4_STAYS_MS = 60_000
/** After this time, in ms, without packets to or from a peer, the engine carries the peer's packets again. */
const IDLE_MS = 300_000
/** The length in bytes of the outer IPv4 and UDP headers. */
const OUTER_BYTES = 28

/** The options of the tunnel and the functions of the host that this file needs. */
export interface PromotionParts {
  readonly kernel: HostKernel
  readonly log: Log
  readonly engine: Pick<Engine, 'tunName' | 'traffic'>
  /** Returns this host's IPv4 address, to which the engine is bound; undefined if it is bound to none. */
  readonly ownHost: () => Address | undefined
  readonly port: number
  /** The MTU of the tunnel in bytes. */
  readonly mtu: number
  readonly networks: Nets
  readonly subnets: Nets
  /** Returns the kernel's path MTU in bytes between two addresses; 0 if the kernel does not know it. */
  readonly pathMtu: (from: string, to: string) => number
}

/** The state of the eBPF programs. */
interface ProgramsState {
  /** The external interface, which another program may rename. */
  readonly uplink: FollowedLink
  /** Returns the loaded eBPF programs; undefined before they are loaded, and after they are closed. */
  readonly programs: () => KernelPrograms | undefined
  /** Returns true while the eBPF programs are attached and no other process is taking them over. */
  readonly isActive: () => boolean
  /** Called if the kernel refuses to change a map of the eBPF programs. */
  readonly refused: (reason: string) => void
}

/** A peer's subnet, and whether the eBPF programs carry the packets to this subnet. */
interface WayPeer {
  peer: Peer
  /** The subnet as text. */
  readonly name: string
  /**
   * `engine`: the engine carries all packets to the peer. `tried`: the eBPF programs carry only the packets of a test
   * connection. `kernel`: the programs carry all packets that they support.
   */
  state: 'engine' | 'tried' | 'kernel'
  /** The longest packet in bytes that reaches the peer, equal to the value in the eBPF map. */
  limit: number
  /** The last test connection that succeeded. */
  connection?: ProofConnection | undefined
  /** True while a test connection to the peer runs. */
  isProving: boolean
  /**
   * The number of tests of the peer that failed since a test last succeeded. `retryAt` is the time in ms before which
   * no further test begins.
   */
  failures: number
  retryAt: number
  /** The number of packets that the engine had sent to the peer as of the last `look`. */
  sentBefore: number
  /**
   * The number of packets that the engine had received from the peer when the test connection ended without the message
   * `bye`.
   */
  receivedAtEnd?: number | undefined
  /**
   * The number of packets that the eBPF programs have carried between this host and the peer. `carriedAt` is the time
   * in ms at which the number last changed.
   */
  carried: number
  carriedAt: number
  /**
   * The time in ms until which the program `ingress` accepts the peer's datagrams over IPv4, although weftd reaches the
   * peer over IPv6; 0 if it does not.
   */
  ipv4Until: number
}

const FAILURES: Readonly<Record<ProofFailure, string>> = {
  refused: 'no weftd with a FastPath answers there',
  silent: 'the proof got no answer',
  wrong: 'the bytes of the proof arrived damaged',
  'not-carried': 'the kernel of one of the two hosts did not carry the proof',
  left: "the peer's kernel has stopped to carry packets",
}

export class KernelWayPeers {
  readonly #parts: PromotionParts
  readonly #way: ProgramsState
  /** The peers, by their subnet as text. */
  readonly #peers = new Map<string, WayPeer>()
  /** The peers, by the tunnel address (as text) from which their test connections come. */
  readonly #byAddress = new Map<string, WayPeer>()
  /** The number of test connections that run now. */
  #proofs = 0
  /** The number of calls of `takeBackAll`, after which the result of an earlier test no longer counts. */
  #changes = 0
  #takenBack = 0
  #lastTakenBack: { readonly subnet: string; readonly reason: string } | undefined

  constructor(parts: PromotionParts, way: ProgramsState) {
    this.#parts = parts
    this.#way = way
  }

  /**
   * The number of promoted peers, to which the eBPF programs carry packets, and how often and why the engine took
   * packets back from these programs.
   */
  get state(): Pick<FastPath, 'promoted' | 'takenBack' | 'lastTakenBack'> {
    return {
      promoted: this.#promoted,
      takenBack: this.#takenBack,
      lastTakenBack: this.#lastTakenBack ?? null,
    }
  }

  /** The traffic slots of all peers. */
  get slots(): ReadonlySet<number> {
    return new Set([...this.#peers.values()].map(({ peer }) => peer.slot ?? 0))
  }

  get #promoted(): number {
    let count = 0
    for (const { state } of this.#peers.values()) if (state === 'kernel') count++
    return count
  }

  /** Returns true if a test connection may come from this source address: the tunnel address of a peer. */
  isPeer(address: string): boolean {
    return this.#byAddress.has(plain(address))
  }

  /**
   * Called when the peer with this tunnel address has tested this host with success. A pause until the next test of the
   * peer is shortened to RETRY_MS.
   */
  hasTested(address: string): void {
    const each = this.#byAddress.get(plain(address))
    if (each) each.retryAt = Math.min(each.retryAt, performance.now() + RETRY_MS)
  }

  /** Returns the number of packets that the eBPF programs have received from the peer with this tunnel address. */
  carriedFrom(address: string): number {
    const peer = this.#byAddress.get(plain(address))?.peer
    if (!peer) return 0
    // Count only packets of the family of `address`, because the kernel may carry IPv4 packets but no IPv6 packets.
    return this.#way.programs()?.traffic(peer.slot ?? 0, process.hrtime.bigint(), familyOf(peer.subnet))[2] ?? 0
  }

  /** Returns true if the eBPF programs carry the packets to this subnet. */
  carries(subnet: Net): boolean {
    return this.#peers.get(formatNet(subnet))?.state === 'kernel'
  }

  /** Makes the peers equal to the peers of the given records. */
  setPeers(peers: readonly Peer[]): void {
    const wanted = new Set(peers.map(({ subnet }) => formatNet(subnet)))
    for (const { name, peer } of this.#peers.values()) if (!wanted.has(name)) this.#remove(peer.subnet)
    for (const peer of peers) this.#set(peer)
  }

  /** Adds, changes or removes the peers of the given records. */
  change(peers: readonly Peer[]): void {
    for (const peer of peers) {
      if (peer.isGone) this.#remove(peer.subnet)
      else this.#set(peer)
    }
  }

  /**
   * Makes the engine carry the packets to peers that do not answer, and tests the peers to which the engine sends many
   * packets.
   */
  look(): void {
    const now = performance.now()
    const sent = this.#parts.engine.traffic()
    for (const each of this.#peers.values()) {
      if (each.ipv4Until !== 0 && now > each.ipv4Until) {
        each.ipv4Until = 0
        this.#write(each)
      }
      if (each.state === 'kernel') this.#watch(each, now)
      else this.#consider(each, sent, now)
    }
  }

  /** Writes all peers into the maps of newly loaded eBPF programs. */
  writeAll(): void {
    for (const each of this.#peers.values()) this.#write(each)
  }

  /** Closes all test connections, but does not change the maps of the eBPF programs. */
  forgetProofs(): void {
    for (const each of this.#peers.values()) this.#forgetProof(each)
  }

  /** Makes the engine carry the packets to all peers, without a log line. */
  returnToEngine(): void {
    for (const each of this.#peers.values()) this.#setState(each, 'engine')
  }

  /**
   * If the kernel now reaches a peer's host through another interface, makes the engine carry the packets to that peer,
   * because the eBPF programs send only through the external interface.
   */
  async checkRoutes(): Promise<void> {
    const promoted = [...this.#peers.values()].filter(({ state }) => state === 'kernel')
    const queries = promoted.map(({ peer }) => ({ to: peer.hosts.ipv4 ?? 0 }))
    const answers = await this.#parts.kernel.lookUp('ipv4', queries)
    for (const [at, each] of promoted.entries())
      if (each.state === 'kernel' && !this.#isByUplink(answers[at]))
        this.#takeBack(each, `its host is no longer reached through ${this.#way.uplink.name}`)
  }

  /** Opens a test connection to the peer if the engine has sent the peer many packets since the last call. */
  #consider(each: WayPeer, sent: Float64Array, now: number): void {
    const slot = each.peer.slot ?? 0
    const packets = sent[slot * SLOT_NUMBERS] ?? 0
    const isBusy = packets - each.sentBefore >= BUSY_PACKETS
    each.sentBefore = packets
    const host = each.peer.outer === 'ipv4' ? each.peer.hosts.ipv4 : undefined
    if (!isBusy || slot === 0 || host === undefined || each.isProving || now < each.retryAt) return
    if (this.#proofs >= MOST_PROOFS || this.#promoted >= MOST_PROMOTED) return
    // If the address of a peer's host is inside a network of the tunnel, the kernel may route datagrams to that host
    // back into the tunnel. Only the engine notices this (native/core/circle.h), so the engine must carry the packets
    // to such a peer.
    if (listed(this.#parts.networks).some((network) => netContains(network, host))) return
    void this.#prove(each, host)
  }

  /**
   * Opens a test connection to a peer. If the test succeeds, the eBPF programs begin to carry the packets to the peer.
   * A failed test does not stop them if they carry the packets already.
   */
  async #prove(each: WayPeer, host: Address): Promise<void> {
    const { log, port, kernel, subnets } = this.#parts
    const changes = this.#changes
    each.isProving = true
    this.#proofs++
    try {
      const [answer] = await kernel.lookUp('ipv4', [{ to: host }])
      const local = listed(subnets).find(({ address }) => typeof address === typeof each.peer.subnet.address)
      if (!local || !this.#isCurrent(each)) return
      if (!this.#isByUplink(answer)) return this.#fail(each, `its host is not reached through ${this.#way.uplink.name}`)
      each.limit = this.#limitOf(each.peer)
      if (each.state === 'engine') each.state = 'tried'
      this.#write(each)
      const before = this.#sentBytes(each)
      const connection = new ProofConnection({
        host: formatAddress(each.peer.subnet.address),
        port,
        localAddress: formatAddress(local.address),
        left: () => {
          if (each.connection === connection && each.state === 'kernel') this.#takeBack(each, FAILURES.left)
        },
      })
      const failure = await connection.proven
      if (!this.#isCurrent(each) || this.#changes !== changes) return connection.close()
      // The peer may have sent `bye` together with the digest.
      if (connection.isClosed && !failure) return this.#fail(each, FAILURES.left)
      if (failure) return this.#fail(each, FAILURES[failure])
      if (this.#sentBytes(each) - before < PROOF_BYTES) {
        connection.close()
        return this.#fail(each, FAILURES['not-carried'])
      }
      const isNew = each.state !== 'kernel'
      each.connection?.close()
      Object.assign(each, { connection, failures: 0, receivedAtEnd: undefined, carriedAt: performance.now() })
      this.#setState(each, 'kernel')
      if (isNew) log.info(`FastPath: the kernel carries the packets to ${each.name}`)
    } catch (error) {
      this.#fail(each, messageOf(error))
    } finally {
      each.isProving = false
      this.#proofs--
    }
  }

  /**
   * Returns true if the result of a test still counts: the peer has not been removed or replaced, and the eBPF programs
   * are attached.
   */
  #isCurrent(each: WayPeer): boolean {
    return this.#peers.get(each.name) === each && this.#way.isActive()
  }

  /** Returns true if the route leads through the external interface. */
  #isByUplink(answer: RouteAnswer | undefined): boolean {
    return answer !== undefined && 'route' in answer && answer.route.deviceIndex === this.#way.uplink.index
  }

  #fail(each: WayPeer, reason: string): void {
    const { log } = this.#parts
    if (each.state === 'kernel') return
    each.retryAt = performance.now() + Math.min(RETRY_MS * 2 ** each.failures, MOST_RETRY_MS)
    each.failures++
    this.#setState(each, 'engine')
    if (log.v(1)) log.info(`FastPath: weftd carries the packets to ${each.name}: ${reason}`)
  }

  /**
   * Makes the engine carry a peer's packets again if the peer no longer answers, or if no packets went to or from the
   * peer for IDLE_MS. Updates the length of the longest packet in the peer's map entry.
   */
  #watch(each: WayPeer, now: number): void {
    const { connection } = each
    if (!connection) return
    const numbers = this.#way.programs()?.traffic(each.peer.slot ?? 0, process.hrtime.bigint()) ?? new Float64Array()
    const carried = (numbers[0] ?? 0) + (numbers[2] ?? 0)
    if (carried !== each.carried) Object.assign(each, { carried, carriedAt: now })
    if (now - each.carriedAt > IDLE_MS) return this.#takeBack(each, 'it has no packets')
    const limit = this.#limitOf(each.peer)
    if (limit !== each.limit) {
      each.limit = limit
      this.#write(each)
    }
    if (connection.isClosed) return this.#watchOrphan(each, now - connection.answeredAt)
    connection.ask()
    const silentMs = now - connection.answeredAt
    const engineNumbers = this.#parts.engine.traffic(each.peer.slot ?? 0)
    const receivedAgo = [numbers[4] ?? -1, engineNumbers[4] ?? -1].filter((ago) => ago >= 0)
    const isDeaf = receivedAgo.every((ago) => ago > SILENT_MS)
    if (silentMs > UNANSWERED_MS || (silentMs > SILENT_MS && isDeaf)) this.#takeBack(each, 'the peer does not answer')
  }

  /**
   * Watches a peer whose daemon ended without sending `bye`. The peer's eBPF programs continue for a minute. Meanwhile
   * the peer's next daemon must pass a test connection. If the engine of the next daemon sends packets before a test
   * succeeds, the next daemon may have no FastPath, so this host's engine carries the packets again.
   */
  #watchOrphan(each: WayPeer, silentMs: number): void {
    const received = this.#parts.engine.traffic(each.peer.slot ?? 0)[2] ?? 0
    each.receivedAtEnd ??= received
    if (silentMs > ORPHANED_MS || received > each.receivedAtEnd)
      return this.#takeBack(each, "the peer's weftd has ended")
    const host = each.peer.hosts.ipv4
    // Open a test connection at each call, because the peer's next daemon may start at any time.
    if (!each.isProving && host !== undefined) void this.#prove(each, host)
  }

  /** Makes the engine carry the packets to all peers, and ends their running tests without a result. */
  takeBackAll(reason: string): void {
    this.#changes++
    for (const each of this.#peers.values()) {
      if (each.state === 'kernel') this.#takeBack(each, reason)
      else if (each.state === 'tried') this.#setState(each, 'engine')
      each.retryAt = 0
    }
  }

  #takeBack(each: WayPeer, reason: string): void {
    this.#setState(each, 'engine')
    this.#forgetProof(each)
    this.#takenBack++
    this.#lastTakenBack = { subnet: each.name, reason }
    each.failures = 0
    each.retryAt = performance.now() + RETRY_MS
    this.#parts.log.info(`FastPath: weftd carries the packets to ${each.name} again: ${reason}`)
  }

  #forgetProof(each: WayPeer): void {
    each.connection?.close()
    each.connection = undefined
    each.receivedAtEnd = undefined
  }

  #set(peer: Peer, ipv4Until = 0): void {
    const name = formatNet(peer.subnet)
    const known = this.#peers.get(name)
    if (!known) {
      const each: WayPeer = {
        peer,
        name,
        state: 'engine',
        limit: 0,
        isProving: false,
        failures: 0,
        retryAt: 0,
        sentBefore: 0,
        carried: 0,
        carriedAt: 0,
        ipv4Until,
      }
      this.#peers.set(name, each)
      this.#byAddress.set(formatAddress(peer.subnet.address), each)
      return this.#write(each)
    }
    const isMoved =
      known.peer.outer !== peer.outer || known.peer.port !== peer.port || known.peer.hosts.ipv4 !== peer.hosts.ipv4
    if (isMoved) {
      // The test connection showed only that the peer's previous address works, so test the peer again.
      if (known.state === 'kernel') this.#takeBack(known, 'weftd reaches it at another address')
      this.#forgetProof(known)
      this.#peers.delete(name) // `#set` replaces the map entry, so that `ingress` has an entry all the time
      // The peer may have promoted this host, and still send over IPv4 until it takes this host back.
      const isSameHost = known.peer.outer === 'ipv4' && known.peer.hosts.ipv4 === peer.hosts.ipv4
      return this.#set(peer, peer.outer === 'ipv6' && isSameHost ? performance.now() + IPV4_STAYS_MS : 0)
    }
    known.peer = peer
    if (known.state !== 'engine') known.limit = this.#limitOf(peer)
    this.#write(known)
  }

  #remove(subnet: Net): void {
    const name = formatNet(subnet)
    const known = this.#peers.get(name)
    if (!known) return
    this.#forgetProof(known)
    this.#peers.delete(name)
    this.#byAddress.delete(formatAddress(subnet.address))
    this.#changeMap((programs) => programs.removePeer(mapOf({ subnet }), peerKey(subnet)))
  }

  #setState(each: WayPeer, state: WayPeer['state']): void {
    each.state = state
    this.#write(each)
  }

  /** Writes the peer's map entry, unless the peer was removed or replaced while weftd waited for a test or a route. */
  #write(each: WayPeer): void {
    if (this.#peers.get(each.name) !== each) return
    const { peer, state, limit, ipv4Until } = each
    const flags = { engine: 0, tried: TRIED, kernel: PROMOTED }[state]
    const value = encodePeer(peer, limit, flags, ipv4Until !== 0)
    this.#changeMap((programs) => programs.setPeer(mapOf(peer), peerKey(peer.subnet), value))
  }

  /**
   * Changes a map of the eBPF programs. If the kernel refuses, for example because the map is full, weftd detaches the
   * programs permanently, because the map may still contain an old address of a peer's host. The caller continues,
   * because the engine, which then carries all packets, knows the new address.
   */
  #changeMap(change: (programs: KernelPrograms) => void): void {
    const programs = this.#way.programs()
    if (!programs) return
    try {
      change(programs)
    } catch (error) {
      this.#way.refused(`the kernel refuses a change of a peer: ${messageOf(error)}`)
    }
  }

  /**
   * Returns the length in bytes of the longest packet that the eBPF programs may send to the peer. The engine handles
   * longer packets.
   */
  #limitOf(peer: Peer): number {
    const { mtu, pathMtu, ownHost } = this.#parts
    const [from, to] = [ownHost(), peer.hosts.ipv4]
    const known = from === undefined || to === undefined ? 0 : pathMtu(formatAddress(from), formatAddress(to))
    const found = peer.limit === undefined || peer.limit === 0 ? mtu : peer.limit
    return Math.min(mtu, found, known > OUTER_BYTES ? known - OUTER_BYTES : mtu)
  }

  #sentBytes({ peer }: WayPeer): number {
    return this.#way.programs()?.traffic(peer.slot ?? 0, process.hrtime.bigint(), familyOf(peer.subnet))[1] ?? 0
  }
}

/** Returns a socket's address without the prefix `::ffff:` of an IPv4-mapped address. */
const plain = (address: string): string => address.replace(/^::ffff:/, '')
