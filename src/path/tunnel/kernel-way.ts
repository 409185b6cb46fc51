// kernel-way.ts - the kernel's way: eBPF programs that carry the same datagrams as the engine, for peers to which a proof succeeded.
// docs/design/kernel-way.md describes the programs, the proof, and what stays with the engine.
//
// The engine has every peer at all times. A peer is promoted by one update of a map, and taken back by another one, so no packet is lost in
// between. `look` does all periodic work: the daemon calls it every two seconds.

import { messageOf } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Run } from '../../host/command.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { FollowedLink, ipJson, routeFor, routesFor } from '../../host/links.ts'
import { formatAddress, formatNet, listed, netContains, type Address, type Net, type Nets } from '../../net/address.ts'
import type { TunnelSettings } from '../catalog.ts'
import type { FastPath } from '../contract.ts'
import { closeJoin, isOwn } from '../device/kernel-way-remains.ts'
import type { Engine } from '../engine/engine.ts'
import type { Peer } from '../engine/peers.ts'
import { SLOT_NUMBERS } from '../engine/traffic.ts'
import { JoinChoice, openJoin } from './kernel-way-join.ts'
import { encodePeer, mapOf, peerKey, PROMOTED, TRIED } from './kernel-way-maps.ts'
import { areAttached, KernelPrograms, programInFront, type Bpf } from './kernel-way-programs.ts'
import { PROOF_BYTES, ProofConnection, ProofServer, type ProofFailure } from './kernel-way-proof.ts'

/** The programs stop to carry packets if no process has confirmed their maps for this time, in ms. */
const UNCONFIRMED_MS = 60_000
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
/** The time in ms between the last word to the peers and the end of the programs. */
const FAREWELL_MS = 300
/** The length in bytes of the outer IPv4 and UDP headers. */
const OUTER_BYTES = 28

export interface KernelWayParts {
  readonly bpf: Bpf
  readonly run: Run
  readonly kernel: HostKernel
  readonly log: Log
  readonly engine: Pick<Engine, 'tunName' | 'traffic'>
  /** The name of the external interface. */
  readonly uplink: string
  /** Returns this host's IPv4 address, to which the engine is bound; undefined if it is bound to none. */
  readonly ownHost: () => Address | undefined
  readonly port: number
  /** The MTU of the tunnel. */
  readonly mtu: number
  readonly networks: Nets
  readonly subnets: Nets
  readonly settings: TunnelSettings
  /** True if datagrams may be IPv4 or IPv6. The engine must then see this host's probes, which name the family. */
  readonly hasTwoOuters: boolean
  /** Returns the kernel's path MTU between two addresses; 0 if the kernel does not know it. */
  readonly pathMtu: (from: string, to: string) => number
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

interface Hooks {
  readonly uplink: number
  readonly tunnel: number
}

/** The facts about the uplink after whose change each peer must be proven again. */
interface Uplink {
  readonly index: number
  readonly mtu: number
  readonly qdisc: string
  readonly isEthernet: boolean
}

const IPSEC = 'this host has IPsec policies'

const FAILURES: Readonly<Record<ProofFailure, string>> = {
  refused: 'no weftd with a FastPath answers there',
  silent: 'the proof got no answer',
  wrong: 'the bytes of the proof arrived damaged',
  'not-carried': 'the kernel of one of the two hosts did not carry the proof',
  left: "the peer's kernel has stopped to carry packets",
}

export class KernelWay {
  readonly #parts: KernelWayParts
  readonly #peers = new Map<string, WayPeer>()
  /** The peers by their tunnel address as text, from which their proofs come. */
  readonly #byAddress = new Map<string, WayPeer>()
  readonly #server: ProofServer
  /** The external interface, which another program may rename. */
  readonly #link: FollowedLink
  #programs: KernelPrograms | undefined
  /** The hooks of the attached programs; undefined while the programs are not attached. */
  #hooks: Hooks | undefined
  /** Why the kernel carries no packets; undefined while it may. */
  #reason: string | undefined = 'it is not open yet'
  #uplink: Uplink | undefined
  #features = ''
  /** The choice whether TCP segments are joined, and the indices of the devices that join them; undefined until they exist. */
  readonly #joinChoice = new JoinChoice()
  #join: readonly [number, number] | undefined
  #proofs = 0
  #takenBack = 0
  #lastTakenBack: { readonly subnet: string; readonly reason: string } | undefined
  /** True after `pause` and `close`, until `resume`. */
  #isPaused = false
  /** True if the kernel refused the programs, so that no other attempt is made. */
  #isFinal = false
  /** The last end of the programs, which waits until the peers have heard the farewell. */
  #ending: Promise<void> = Promise.resolve()
  /** True after this process has searched the programs of an earlier process. */
  #isCleared = false
  /** True while a search for IPsec policies runs. */
  #isSearchingPolicies = false

  constructor(parts: KernelWayParts) {
    this.#parts = parts
    this.#link = new FollowedLink(parts.uplink)
    this.#server = new ProofServer({
      isPeer: (address) => this.#byAddress.has(plain(address)),
      carriedFrom: (address) => this.#received(this.#byAddress.get(plain(address))),
    })
  }

  /** The state for reports. */
  get state(): FastPath {
    return {
      isActive: this.#hooks !== undefined,
      reason: this.#reason ?? null,
      promoted: this.#promoted,
      takenBack: this.#takenBack,
      lastTakenBack: this.#lastTakenBack ?? null,
    }
  }

  get #promoted(): number {
    let count = 0
    for (const { state } of this.#peers.values()) if (state === 'kernel') count++
    return count
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

  /**
   * Confirms the maps, takes back the peers that do not answer, and begins proofs. The daemon calls it every two seconds. An error ends the
   * kernel's way and never the daemon.
   */
  look(): void {
    if (!this.#hooks || this.#isPaused) return
    try {
      this.#confirm()
      const problem = this.#problemNow()
      if (problem !== undefined) return void this.#end(problem)
      this.#watchPolicies()
      this.#chooseJoin()
      const now = performance.now()
      const sent = this.#parts.engine.traffic()
      for (const each of this.#peers.values()) {
        if (each.state === 'kernel') this.#watch(each, now)
        else this.#consider(each, sent, now)
      }
    } catch (error) {
      void this.#end(messageOf(error))
    }
  }

  /**
   * Checks the interfaces, and loads, attaches or detaches the programs. The tunnel calls it first when it is open, and then with each check
   * of the data path. Does not reject: if the kernel refuses, the engine carries all packets.
   */
  async check(): Promise<void> {
    if (this.#isPaused || this.#isFinal) return
    try {
      await this.#ending
      const uplink = await this.#readUplink()
      const problem = uplink ? await this.#problemWith(uplink) : `${this.#link.name} is gone`
      if (this.#isPaused) return
      if (!uplink || problem !== undefined) await this.#stop(problem ?? '')
      else await this.#follow(uplink)
      if (uplink && !this.#hooks) await this.#clear(uplink)
    } catch (error) {
      await this.#stop(messageOf(error))
    }
  }

  /** The counters of the engine to which the packets of the kernel's way are added. */
  counters(): Readonly<Record<string, bigint>> {
    if (!this.#programs) return {}
    const { sent, sentBytes, received, receivedBytes, lost } = this.#programs.counters()
    return {
      tx_packets: sent,
      tx_bytes: sentBytes,
      rx_packets: received,
      rx_bytes: receivedBytes,
      kernel_tx_packets: sent,
      kernel_rx_packets: received,
      kernel_lost: lost,
    }
  }

  /** Returns the traffic of a slot, or of all slots, as `Engine.traffic` does. */
  traffic(slot?: number): Float64Array {
    if (!this.#programs) return new Float64Array()
    const now = process.hrtime.bigint()
    if (slot !== undefined) return this.#programs.traffic(slot, now)
    const slots = new Set([...this.#peers.values()].map(({ peer }) => peer.slot ?? 0))
    const numbers = new Float64Array((Math.max(0, ...slots) + 1) * SLOT_NUMBERS).map((_, at) =>
      at % SLOT_NUMBERS === SLOT_NUMBERS - 1 ? -1 : 0,
    )
    for (const each of slots) if (each > 0) numbers.set(this.#programs.traffic(each, now), each * SLOT_NUMBERS)
    return numbers
  }

  /** Stops all work, but leaves the programs as they are: the next process replaces them, and its peers continue. */
  pause(): void {
    this.#isPaused = true
    this.#server.close()
    for (const each of this.#peers.values()) this.#forgetProof(each)
  }

  /** Continues after `pause`, because no other process took over. */
  async resume(): Promise<void> {
    this.#isPaused = false
    this.#hooks = undefined
    for (const each of this.#peers.values()) this.#setState(each, 'engine')
    await this.check()
  }

  /** Takes all peers back, and detaches the programs. */
  async close(): Promise<void> {
    if (this.#hooks && !this.#isPaused) await this.#end('weftd stops')
    else if (!this.#isPaused) await this.#ending
    this.#isPaused = true
    this.#server.close()
    this.#programs?.close()
    this.#programs = undefined
  }

  /** Attaches the programs, or continues with the attached programs after a change of the uplink. */
  async #follow(uplink: Uplink): Promise<void> {
    const before = this.#uplink
    this.#uplink = uplink
    if (!this.#hooks) return this.#begin(uplink)
    if (before?.index !== uplink.index) return this.#end('the external interface was replaced')
    if (JSON.stringify(before) !== JSON.stringify(uplink)) this.#takeBackAll(`${this.#link.name} has changed`)
    await this.#checkRoutes()
  }

  /** Takes back the peers whose hosts the kernel now reaches through another interface, because the programs send only through the uplink. */
  async #checkRoutes(): Promise<void> {
    const promoted = [...this.#peers.values()].filter(({ state }) => state === 'kernel')
    const hostOf = ({ peer }: WayPeer): string => formatAddress(peer.hosts.ipv4 ?? 0)
    const routes = await routesFor(this.#parts.run, 'ipv4', promoted.map(hostOf))
    for (const each of promoted)
      if (each.state === 'kernel' && routes.get(hostOf(each))?.device !== this.#link.name)
        this.#takeBack(each, `its host is no longer reached through ${this.#link.name}`)
  }

  #stop(reason: string): Promise<void> | void {
    return this.#hooks ? this.#end(reason) : this.#refuse(reason)
  }

  async #begin(uplink: Uplink): Promise<void> {
    const { bpf, engine, subnets, port, log, run } = this.#parts
    if (!this.#programs) {
      const object = bpf.kernelWayObject()
      if (!object) return this.#refuseForGood('this weft was built without clang')
      try {
        this.#programs = new KernelPrograms(bpf, object)
      } catch (error) {
        return this.#refuseForGood(refusalOf(error))
      }
      for (const each of this.#peers.values()) this.#write(each)
    }
    const [tun] = await ipJson<{ ifindex?: number }>(run, ['link', 'show', 'dev', engine.tunName])
    // The tunnel may have passed the data path on, or closed.
    if (this.#isPaused || this.#isFinal || !this.#programs) return
    const hooks = { uplink: uplink.index, tunnel: tun?.ifindex ?? 0 }
    const front = programInFront(bpf, hooksOf(hooks))
    if (front !== undefined) return this.#refuse(`${front} runs before a program of weft`)
    this.#features = bpf.activeFeatures(this.#link.name)
    this.#hooks = hooks
    this.#confirm()
    this.#programs.attach(hooks)
    this.#reason = undefined
    this.#isCleared = true
    for (const subnet of listed(subnets))
      await this.#server.listen(formatAddress(subnet.address), port).catch((error: unknown) => {
        log.warn(`FastPath: peers cannot prove their way to this node: ${messageOf(error)}`)
      })
    // The programs have ended meanwhile, or the next process needs the port.
    if (this.#isPaused || this.#hooks !== hooks) return this.#server.close()
    log.info(`FastPath: the kernel can carry packets between ${engine.tunName} and ${this.#link.name}`)
  }

  #refuse(reason: string): void {
    const { log } = this.#parts
    if (log.v(1) && reason !== this.#reason) log.info(`FastPath: weftd carries all packets: ${reason}`)
    this.#reason = reason
  }

  #refuseForGood(reason: string): void {
    this.#isFinal = true
    this.#refuse(reason)
  }

  /** Detaches the programs of an earlier process, which this process does not replace. They know neither its peers nor its rules. */
  async #clear(uplink: Uplink): Promise<void> {
    if (this.#isCleared) return
    this.#isCleared = true
    const { bpf, run, engine } = this.#parts
    const [tun] = await ipJson<{ ifindex?: number }>(run, ['link', 'show', 'dev', engine.tunName])
    if (this.#isPaused) return
    try {
      for (const hook of hooksOf({ uplink: uplink.index, tunnel: tun?.ifindex ?? 0 }))
        if (bpf.listFilters(hook).some(isOwn)) bpf.detachProgram(hook)
    } catch {
      // The kernel has no tc, or weftd lacks the capability. Programs that stay carry nothing after a minute.
    }
  }

  /**
   * Takes all peers back, says farewell to those that send in the kernel's way, and detaches the programs. Does not reject. Resolves after
   * the programs are detached.
   */
  #end(reason: string): Promise<void> {
    const hooks = this.#hooks
    if (!hooks) return this.#ending
    this.#hooks = undefined
    const { log } = this.#parts
    if (reason !== this.#reason) log.info(`FastPath: weftd carries all packets: ${reason}`)
    this.#reason = reason
    this.#takeBackAll(reason)
    this.#server.leave()
    this.#ending = this.#detach(hooks)
    return this.#ending
  }

  async #detach(hooks: Hooks): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, FAREWELL_MS))
    // Since `pause` the programs may be those of the next process.
    if (this.#isPaused) return
    try {
      this.#programs?.detach(hooks)
    } catch (error) {
      // The interfaces may be gone. Programs that stay carry nothing after a minute.
      this.#refuse(messageOf(error))
    }
    if (this.#join) await closeJoin(this.#parts.run)
    this.#join = undefined
  }

  /** Reads the external interface, which may have a new name. Returns undefined if it is gone. */
  async #readUplink(): Promise<Uplink | undefined> {
    interface JsonLink {
      readonly ifindex?: number
      readonly mtu?: number
      readonly qdisc?: string
      readonly link_type?: string
    }
    const { run } = this.#parts
    if (!(await this.#link.find(run))) return undefined
    const [link] = await ipJson<JsonLink>(run, ['link', 'show', 'dev', this.#link.name])
    const { ifindex: index = 0, mtu = 0, qdisc = '', link_type: type } = link ?? {}
    return { index, mtu, qdisc, isEthernet: type === 'ether' }
  }

  /** Returns why the kernel must not carry packets; undefined if it may. */
  async #problemWith(uplink: Uplink): Promise<string | undefined> {
    const { settings, bpf, ownHost } = this.#parts
    const { name } = this.#link
    if (settings.verifySource === 'off') return 'VerifySource is "off"'
    if (ownHost() === undefined) return 'the datagrams between the hosts are IPv6'
    if (!uplink.isEthernet) return `${name} is not an Ethernet interface`
    if (await this.#hasPolicies()) return IPSEC
    const front = programInFront(bpf, [{ index: uplink.index, isEgress: false }])
    return front === undefined ? undefined : `${front} of ${name} runs before weft's program`
  }

  /**
   * True if packets between hosts may be encrypted by IPsec. The programs send and receive without a look at the policies, so they would send
   * such packets in the clear.
   */
  async #hasPolicies(): Promise<boolean> {
    const policies = await this.#parts.run('ip', ['xfrm', 'policy']).catch((error: unknown) => {
      if (/not supported/.test(messageOf(error))) return '' // a kernel without IPsec
      throw error
    })
    return /\bdir (in|out)\b/.test(policies)
  }

  /** Ends the programs if IPsec policies have appeared. The kernel reports no event for these, so each `look` searches them. */
  #watchPolicies(): void {
    if (this.#isSearchingPolicies) return
    this.#isSearchingPolicies = true
    this.#hasPolicies()
      .then((has) => (has && !this.#isPaused ? this.#end(IPSEC) : undefined))
      .catch(() => {}) // `check` searches them too, and ends the programs if it cannot
      .finally(() => (this.#isSearchingPolicies = false))
  }

  /** Returns why the attached programs must end now; undefined if they may continue. Takes all peers back after a change of offloads. */
  #problemNow(): string | undefined {
    const { bpf } = this.#parts
    const { name: uplink } = this.#link
    if (!this.#hooks) return undefined
    const hooks = hooksOf(this.#hooks)
    if (!areAttached(bpf, hooks)) return 'another program has detached the programs of weft'
    const front = programInFront(bpf, hooks)
    if (front !== undefined) return `${front} runs before a program of weft`
    const features = bpf.activeFeatures(uplink)
    if (features !== this.#features) {
      this.#features = features
      this.#takeBackAll(`the offloads of ${uplink} have changed`)
    }
    return undefined
  }

  #confirm(): void {
    const { settings, subnets, port, hasTwoOuters, ownHost } = this.#parts
    const host = ownHost()
    if (!this.#hooks || typeof host !== 'number') return
    this.#programs?.setConfig({
      untilNs: process.hrtime.bigint() + BigInt(UNCONFIRMED_MS) * 1_000_000n,
      ...this.#hooks,
      join: this.#joinChoice.isOn ? (this.#join?.[0] ?? 0) : 0,
      ownHost: host,
      port,
      proofPort: port,
      subnets,
      leavesSyn: settings.clampMss,
      leavesProbes: hasTwoOuters,
    })
  }

  /** Lets the kernel join received TCP segments, or stops it, as the link needs. */
  #chooseJoin(): void {
    const { run, bpf, log } = this.#parts
    const programs = this.#programs
    if (!programs) return
    const isChanged = this.#joinChoice.take(programs.counters())
    // Without the program at the devices, or without the devices, the kernel would drop all TCP of promoted peers.
    const isLost = this.#join && !areAttached(bpf, [{ index: this.#join[1], isEgress: false }])
    if (isLost) {
      this.#join = undefined
      this.#confirm()
    } else if (!isChanged) return
    if (this.#join || !this.#joinChoice.isOn) return this.#confirm()
    openJoin(run, bpf).then(
      (indices) => {
        // The programs have ended meanwhile.
        if (!this.#hooks) return void closeJoin(run)
        if (this.#isPaused) return
        programs.attachJoined(indices[1])
        this.#join = indices
        this.#confirm()
      },
      (error: unknown) => log.warn(`FastPath: received TCP segments are not joined: ${messageOf(error)}`),
    )
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
    const { log, port, run, subnets } = this.#parts
    const { name: uplink } = this.#link
    each.isProving = true
    this.#proofs++
    try {
      const route = await routeFor(run, host)
      const local = listed(subnets).find(({ address }) => typeof address === typeof each.peer.subnet.address)
      if (!local || !this.#isCurrent(each)) return
      if (route?.device !== uplink) return this.#fail(each, `its host is not reached through ${uplink}`)
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
    return this.#peers.get(each.name) === each && this.#hooks !== undefined && !this.#isPaused
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
    const numbers = this.#programs?.traffic(each.peer.slot ?? 0, process.hrtime.bigint()) ?? new Float64Array()
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

  #takeBackAll(reason: string): void {
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
    if (!this.#programs) return
    try {
      change(this.#programs)
    } catch (error) {
      this.#isFinal = true
      void this.#stop(`the kernel refuses a change of a peer: ${messageOf(error)}`)
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
    return this.#programs?.traffic(peer.slot ?? 0, process.hrtime.bigint())[1] ?? 0
  }

  #received(each: WayPeer | undefined): number {
    return this.#programs?.traffic(each?.peer.slot ?? 0, process.hrtime.bigint())[2] ?? 0
  }
}

const hooksOf = ({ uplink, tunnel }: Hooks) => [
  { index: uplink, isEgress: false },
  { index: tunnel, isEgress: true },
]

/** Returns an address of a socket without the prefix of an IPv4-mapped address. */
const plain = (address: string): string => address.replace(/^::ffff:/, '')

/** Describes why the kernel refused the programs. */
function refusalOf(error: unknown): string {
  const { code, log = '' } = error as { readonly code?: string; readonly log?: string }
  if (code === 'EPERM') return 'the kernel refuses eBPF programs: grant CAP_BPF and CAP_NET_ADMIN'
  const last = log.trim().split('\n').slice(-3).join('; ')
  return `the kernel refuses the eBPF programs: ${messageOf(error)}${last === '' ? '' : ` (${last})`}`
}
