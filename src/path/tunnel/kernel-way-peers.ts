// kernel-way-peers.ts - promotes peers: decides for which peers the eBPF programs carry the packets, by proofs, and takes a peer back that
// no longer answers.
//
// The engine has every peer at all times. A peer is promoted by one update of a map, and taken back by another one, so no packet is lost in
// between.

import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { HostKernel, RouteAnswer } from '../../host/kernel.ts'
import type { FollowedLink } from '../../host/links.ts'
import { formatAddress, formatNet, listed, netContains, type Address, type Net, type Nets } from '../../net/address.ts'
import type { FastPath } from '../contract.ts'
import type { Engine } from '../engine/engine.ts'
import type { Peer } from '../engine/peers.ts'
import { SLOT_NUMBERS } from '../engine/traffic.ts'
import { encodePeer, mapOf, peerKey, PROMOTED, TRIED } from './kernel-way-maps.ts'
import type { KernelPrograms } from './kernel-way-programs.ts'
import { PROOF_BYTES, ProofConnection, type ProofFailure } from './kernel-way-proof.ts'

/** A peer is a candidate if the engine has sent it this number of packets between two calls of `look`. */
const BUSY_PACKETS = 10
/** The maximum numbers of promoted peers, and of proofs that run at the same time. */
const MOST_PROMOTED = 1_024
const MOST_PROOFS = 4
/** The shortest and the longest pause in ms before another proof to a peer whose proof failed. */
const RETRY_MS = 10_000
const MOST_RETRY_MS = 600_000
/**
 * The times in ms without an answer after which a peer is taken back: while packets arrive from the peer, and while none arrive. A daemon
 * that is stopped for some seconds does not answer, but its kernel continues.
 */
const UNANSWERED_MS = 20_000
const SILENT_MS = 6_000
/** How long a peer stays promoted after the connection to its daemon ended without a word. It is less than UNCONFIRMED_MS of the peer. */
const ORPHANED_MS = 45_000
/** The time in ms for which a promoted peer may have no packets. */
const IDLE_MS = 300_000
/** The length in bytes of the outer IPv4 and UDP headers. */
const OUTER_BYTES = 28

/** The options of the tunnel, and the functions that act on the host, as far as the promotion of peers needs them. */
export interface PromotionParts {
  readonly kernel: HostKernel
  readonly log: Log
  readonly engine: Pick<Engine, 'tunName' | 'traffic'>
  /** Returns this host's IPv4 address, to which the engine is bound; undefined if it is bound to none. */
  readonly ownHost: () => Address | undefined
  readonly port: number
  /** The MTU of the tunnel. */
  readonly mtu: number
  readonly networks: Nets
  readonly subnets: Nets
  /** Returns the kernel's path MTU between two addresses; 0 if the kernel does not know it. */
  readonly pathMtu: (from: string, to: string) => number
}

/** The programs, as their owner reports them. */
interface ProgramsState {
  /** The external interface, which another program may rename. */
  readonly uplink: FollowedLink
  /** Returns the loaded programs; undefined before they are loaded, and after they are closed. */
  readonly programs: () => KernelPrograms | undefined
  /** Returns true while the programs are attached, and no other process takes them over. */
  readonly isActive: () => boolean
  /** Called if the kernel refuses to change a map. */
  readonly refused: (reason: string) => void
}

/** A peer's subnet, and the state of its promotion. */
interface WayPeer {
  peer: Peer
  /** The subnet as text. */
  readonly name: string
  /** `tried`: only the packets of a proof take the kernel's way. `kernel`: all packets do that the programs understand. */
  state: 'engine' | 'tried' | 'kernel'
  /** The longest packet in bytes that reaches the peer, as it is in the map. */
  limit: number
  /** The connection of the last proof that succeeded. */
  connection?: ProofConnection | undefined
  /** True while a proof runs. */
  isProving: boolean
  /** The number of proofs that failed one after the other, and the time in ms before which no other proof begins. */
  failures: number
  retryAt: number
  /** The packets that the engine had sent, as of the last `look`. */
  sentBefore: number
  /** The packets that the engine had received when the connection ended without a word. */
  receivedAtEnd?: number | undefined
  /** The packets that the programs had carried as of the last change of that number, and the time of the change in ms. */
  carried: number
  carriedAt: number
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
  /** The peers by their subnet as text. */
  readonly #peers = new Map<string, WayPeer>()
  /** The peers by their tunnel address as text, from which their proofs come. */
  readonly #byAddress = new Map<string, WayPeer>()
  /** The number of proofs that run now. */
  #proofs = 0
  #takenBack = 0
  #lastTakenBack: { readonly subnet: string; readonly reason: string } | undefined

  constructor(parts: PromotionParts, way: ProgramsState) {
    this.#parts = parts
    this.#way = way
  }

  /** The state for reports. */
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

  /** True if a proof may come from this address of a socket. */
  isPeer(address: string): boolean {
    return this.#byAddress.has(plain(address))
  }

  /** Returns the number of packets that the programs have received from the peer with this address of a socket. */
  carriedFrom(address: string): number {
    const slot = this.#byAddress.get(plain(address))?.peer.slot ?? 0
    return this.#way.programs()?.traffic(slot, process.hrtime.bigint())[2] ?? 0
  }

  /** True if the kernel carries the packets to this subnet. */
  carries(subnet: Net): boolean {
    return this.#peers.get(formatNet(subnet))?.state === 'kernel'
  }

  /** Makes the peers equal to these records. */
  setPeers(peers: readonly Peer[]): void {
    const wanted = new Set(peers.map(({ subnet }) => formatNet(subnet)))
    for (const { name, peer } of this.#peers.values()) if (!wanted.has(name)) this.#remove(peer.subnet)
    for (const peer of peers) this.#set(peer)
  }

  /** Adds, changes or removes the peers of these records. */
  change(peers: readonly Peer[]): void {
    for (const peer of peers) {
      if (peer.isGone) this.#remove(peer.subnet)
      else this.#set(peer)
    }
  }

  /** Takes back the peers that do not answer, and begins proofs. */
  look(): void {
    const now = performance.now()
    const sent = this.#parts.engine.traffic()
    for (const each of this.#peers.values()) {
      if (each.state === 'kernel') this.#watch(each, now)
      else this.#consider(each, sent, now)
    }
  }

  /** Writes all peers into the maps of newly loaded programs. */
  writeAll(): void {
    for (const each of this.#peers.values()) this.#write(each)
  }

  /** Ends all connections of proofs, but leaves the maps as they are. */
  forgetProofs(): void {
    for (const each of this.#peers.values()) this.#forgetProof(each)
  }

  /** Makes the engine carry the packets to all peers, without a report. */
  returnToEngine(): void {
    for (const each of this.#peers.values()) this.#setState(each, 'engine')
  }

  /** Takes back the peers whose hosts the kernel now reaches through another interface, because the programs send only through the uplink. */
  async checkRoutes(): Promise<void> {
    const promoted = [...this.#peers.values()].filter(({ state }) => state === 'kernel')
    const queries = promoted.map(({ peer }) => ({ to: peer.hosts.ipv4 ?? 0 }))
    const answers = await this.#parts.kernel.lookUp('ipv4', queries)
    for (const [at, each] of promoted.entries())
      if (each.state === 'kernel' && !this.#isByUplink(answers[at]))
        this.#takeBack(each, `its host is no longer reached through ${this.#way.uplink.name}`)
  }

  /** Begins a proof to a peer to which the engine sends many packets. */
  #consider(each: WayPeer, sent: Float64Array, now: number): void {
    const slot = each.peer.slot ?? 0
    const packets = sent[slot * SLOT_NUMBERS] ?? 0
    const isBusy = packets - each.sentBefore >= BUSY_PACKETS
    each.sentBefore = packets
    const host = each.peer.outer === 'ipv4' ? each.peer.hosts.ipv4 : undefined
    if (!isBusy || slot === 0 || host === undefined || each.isProving || now < each.retryAt) return
    if (this.#proofs >= MOST_PROOFS || this.#promoted >= MOST_PROMOTED) return
    // Datagrams to an address inside the tunnel could come back for ever, which only the engine notices (native/core/circle.h).
    if (listed(this.#parts.networks).some((network) => netContains(network, host))) return
    void this.#prove(each, host)
  }

  /** Proves the kernel's way to a peer, and promotes the peer. For a promoted peer a failed proof changes nothing. */
  async #prove(each: WayPeer, host: Address): Promise<void> {
    const { log, port, kernel, subnets } = this.#parts
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
      })
      const failure = await connection.proven
      if (!this.#isCurrent(each)) return connection.close()
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

  /** True if the peer may still be promoted: it has not been removed or replaced, and the programs are attached. */
  #isCurrent(each: WayPeer): boolean {
    return this.#peers.get(each.name) === each && this.#way.isActive()
  }

  /** True if the kernel sends packets with this route through the external interface. */
  #isByUplink(answer: RouteAnswer | undefined): boolean {
    return answer !== undefined && 'route' in answer && answer.route.deviceIndex === this.#way.uplink.index
  }

  #fail(each: WayPeer, reason: string): void {
    const { log } = this.#parts
    each.retryAt = performance.now() + Math.min(RETRY_MS * 2 ** each.failures, MOST_RETRY_MS)
    each.failures++
    if (each.state === 'kernel') return
    this.#setState(each, 'engine')
    if (log.v(1)) log.info(`FastPath: weftd carries the packets to ${each.name}: ${reason}`)
  }

  /** Takes a promoted peer back if it no longer answers, and keeps the length of its packets right. */
  #watch(each: WayPeer, now: number): void {
    const { connection } = each
    if (!connection) return
    if (connection.hasLeft) return this.#takeBack(each, FAILURES.left)
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
   * Watches a peer whose daemon ended without a word. Its kernel continues for a minute, and its next daemon proves itself. If the engine
   * of the next daemon sends packets, but no proof succeeds, that daemon has no FastPath.
   */
  #watchOrphan(each: WayPeer, silentMs: number): void {
    const received = this.#parts.engine.traffic(each.peer.slot ?? 0)[2] ?? 0
    each.receivedAtEnd ??= received
    if (silentMs > ORPHANED_MS || (received > each.receivedAtEnd && each.failures > 0))
      return this.#takeBack(each, "the peer's weftd has ended")
    const host = each.peer.hosts.ipv4
    // Try at each call, because the next daemon may begin at any time.
    if (!each.isProving && host !== undefined) void this.#prove(each, host)
  }

  takeBackAll(reason: string): void {
    for (const each of this.#peers.values()) {
      if (each.state === 'kernel') this.#takeBack(each, reason)
      each.retryAt = 0
    }
  }

  #takeBack(each: WayPeer, reason: string): void {
    this.#setState(each, 'engine')
    this.#forgetProof(each)
    this.#takenBack++
    this.#lastTakenBack = { subnet: each.name, reason }
    each.retryAt = performance.now() + RETRY_MS
    this.#parts.log.info(`FastPath: weftd carries the packets to ${each.name} again: ${reason}`)
  }

  #forgetProof(each: WayPeer): void {
    each.connection?.close()
    each.connection = undefined
    each.receivedAtEnd = undefined
  }

  #set(peer: Peer): void {
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
      }
      this.#peers.set(name, each)
      this.#byAddress.set(formatAddress(peer.subnet.address), each)
      return this.#write(each)
    }
    const isMoved =
      known.peer.outer !== peer.outer || known.peer.port !== peer.port || known.peer.hosts.ipv4 !== peer.hosts.ipv4
    if (isMoved) {
      // The proof was about another address.
      this.#remove(peer.subnet)
      return this.#set(peer)
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

  #write({ peer, state, limit }: WayPeer): void {
    const flags = { engine: 0, tried: TRIED, kernel: PROMOTED }[state]
    this.#changeMap((programs) => programs.setPeer(mapOf(peer), peerKey(peer.subnet), encodePeer(peer, limit, flags)))
  }

  /**
   * Changes a map. If the kernel refuses, for example because the map is full, the programs end for good, because their map may name an
   * earlier host of a peer. The caller continues: the engine has the peer.
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

  /** Returns the longest packet in bytes that the kernel may send to the peer. The engine handles longer packets. */
  #limitOf(peer: Peer): number {
    const { mtu, pathMtu, ownHost } = this.#parts
    const [from, to] = [ownHost(), peer.hosts.ipv4]
    const known = from === undefined || to === undefined ? 0 : pathMtu(formatAddress(from), formatAddress(to))
    const found = peer.limit === undefined || peer.limit === 0 ? mtu : peer.limit
    return Math.min(mtu, found, known > OUTER_BYTES ? known - OUTER_BYTES : mtu)
  }

  #sentBytes({ peer }: WayPeer): number {
    return this.#way.programs()?.traffic(peer.slot ?? 0, process.hrtime.bigint())[1] ?? 0
  }
}

/** Returns an address of a socket without the prefix of an IPv4-mapped address. */
const plain = (address: string): string => address.replace(/^::ffff:/, '')
