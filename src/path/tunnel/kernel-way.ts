// kernel-way.ts - loads, attaches and detaches the eBPF programs, which exchange the same datagrams with peers as the
// engine. kernel-way-peers.ts decides for which peers the programs carry the packets. docs/design/kernel-way.md
// describes the programs, the test of a peer, and which packets the engine still carries.
//
// `look` does all periodic work: weftd calls it every two seconds.
//
// Each system call for tc and for offloads waits for the kernel's lock of all network devices (RTNL), which other
// programs may hold for seconds. So these calls run in the background, and `#running` has the work that waits for them.

import { messageOf } from '../../base/errors.ts'
import { createTurn } from '../../host/bell.ts'
import { FollowedLink } from '../../host/links.ts'
import { formatAddress, listed, type Net } from '../../net/address.ts'
import type { TunnelSettings } from '../catalog.ts'
import type { FastPath } from '../contract.ts'
import { closeJoin, INGRESS_STAYS_MS, isOwn } from '../device/kernel-way-remains.ts'
import type { Peer } from '../engine/peers.ts'
import { SLOT_NUMBERS } from '../engine/traffic.ts'
import { JoinChoice, openJoin } from './kernel-way-join.ts'
import { KernelWayPeers, type PromotionParts } from './kernel-way-peers.ts'
import { areAttached, KernelPrograms, programInFront, type Bpf } from './kernel-way-programs.ts'
import { ProofServer } from './kernel-way-proof.ts'

/** If no weftd process writes the eBPF map `config` for this time, in ms, the eBPF programs stop carrying packets. */
const UNCONFIRMED_MS = 60_000
/**
 * The time in ms between the message `bye`, which weftd sends to the peers, and the detachment of the eBPF programs.
 */
const FAREWELL_MS = 300
export interface KernelWayParts extends PromotionParts {
  readonly bpf: Bpf
  /** The name of the external interface. */
  readonly uplink: string
  readonly settings: TunnelSettings
  /**
   * True if peers may be reached over IPv4 and IPv6. The engine must then send this host's ICMP packets, because the
   * reply to a probe must use the outer family that the probe names.
   */
  readonly hasTwoOuters: boolean
}

interface Hooks {
  readonly uplink: number
  readonly tunnel: number
}

/** The properties of the external interface. If one of them changes, each peer must be tested again. */
interface Uplink {
  readonly index: number
  readonly mtu: number
  readonly qdisc: string
  readonly isEthernet: boolean
}

const IPSEC = 'this host has IPsec policies'
const NOT_OPEN = 'it is not open yet'

export class KernelWay {
  readonly #parts: KernelWayParts
  readonly #peers: KernelWayPeers
  readonly #server: ProofServer
  /** The external interface, which another program may rename. */
  readonly #link: FollowedLink
  #programs: KernelPrograms | undefined
  /** The interfaces to which the eBPF programs are attached; undefined while the programs are not attached. */
  #hooks: Hooks | undefined
  /** Why the eBPF programs carry no packets; undefined while they may carry packets. */
  #reason: string | undefined = NOT_OPEN
  #uplink: Uplink | undefined
  #features = ''
  /**
   * Chooses whether the kernel merges TCP segments. `#join` has the indices of the devices that merge them; undefined
   * until these devices exist.
   */
  readonly #joinChoice = new JoinChoice()
  #join: readonly [number, number] | undefined
  /** True after `pause` and `close`, until `resume`. */
  #isPaused = false
  /** True if weftd must not attach eBPF programs again, because the kernel refused a program or a map. */
  #isFinal = false
  /** Resolves when the last detachment of the eBPF programs, which begins after FAREWELL_MS, is done. */
  #ending: Promise<void> = Promise.resolve()
  /** True after this process has searched for eBPF programs of an earlier process. */
  #isCleared = false
  /**
   * Runs checks and the late detachment of an earlier process's program one after another, so that none of them
   * detaches what another one attaches.
   */
  readonly #inTurn = createTurn()
  /** The work that runs in the background. `pause` and `close` wait for it. */
  readonly #running = new Set<Promise<void>>()
  /** True while a search for IPsec policies runs. */
  #isSearchingPolicies = false
  /** Resolves when the running `#watch` is done; undefined while none runs. */
  #watching: Promise<void> | undefined

  constructor(parts: KernelWayParts) {
    this.#parts = parts
    this.#link = new FollowedLink(parts.uplink)
    this.#peers = new KernelWayPeers(parts, {
      uplink: this.#link,
      programs: () => this.#programs,
      isActive: () => this.#hooks !== undefined && !this.#isPaused,
      refused: (reason) => {
        this.#isFinal = true
        void this.#stop(reason)
      },
    })
    this.#server = new ProofServer(this.#peers)
  }

  /** The state of the eBPF programs (FastPath), as weftd's status reports it. */
  get state(): FastPath {
    return {
      isActive: this.#hooks !== undefined,
      reason: this.#reason ?? null,
      ...this.#peers.state,
    }
  }

  /** Returns true if the eBPF programs carry the packets to this subnet. */
  carries(subnet: Net): boolean {
    return this.#peers.carries(subnet)
  }

  /** Makes the peers equal to the peers of the given records. */
  setPeers(peers: readonly Peer[]): void {
    this.#peers.setPeers(peers)
  }

  /** Adds, changes or removes the peers of the given records. */
  change(peers: readonly Peer[]): void {
    this.#peers.change(peers)
  }

  /**
   * Writes the map `config`, makes the engine carry the packets to peers that do not answer, tests further peers, and
   * begins a check of the hooks. weftd calls it every two seconds. An error detaches the eBPF programs, but never ends
   * weftd.
   */
  look(): void {
    if (!this.#hooks || this.#isPaused) return
    try {
      this.#confirm()
      this.#peers.look()
    } catch (error) {
      return void this.#end(messageOf(error))
    }
    if (!this.#isSearchingPolicies) void this.#watchPolicies()
    this.#watching ??= this.#track(this.#watch()).finally(() => (this.#watching = undefined))
  }

  /**
   * Checks the interfaces, and loads, attaches or detaches the eBPF programs. The tunnel calls `check` when the tunnel
   * is open, and then with each check of the data path. Does not reject: if the kernel refuses the programs, the engine
   * carries all packets.
   */
  check(): Promise<void> {
    return this.#inTurn(async () => {
      const isDone = this.#isFinal && this.#isCleared
      if (!this.#isPaused && !isDone) await this.#track(this.#check())
    })
  }

  /**
   * Returns the packets and bytes that the eBPF programs carried, under the names of the engine's counters to which
   * they are added.
   */
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

  /**
   * Returns the traffic that the eBPF programs counted in a slot, or in all slots, in the format of `Engine.traffic`.
   */
  traffic(slot?: number): Float64Array {
    if (!this.#programs) return new Float64Array()
    const now = process.hrtime.bigint()
    if (slot !== undefined) return this.#programs.traffic(slot, now)
    const slots = this.#peers.slots
    const numbers = new Float64Array((Math.max(0, ...slots) + 1) * SLOT_NUMBERS).map((_, at) =>
      at % SLOT_NUMBERS === SLOT_NUMBERS - 1 ? -1 : 0,
    )
    for (const each of slots) if (each > 0) numbers.set(this.#programs.traffic(each, now), each * SLOT_NUMBERS)
    return numbers
  }

  /**
   * Stops all work, but leaves the eBPF programs attached. The programs continue to carry packets until the next
   * process replaces them. Resolves when no work runs that could attach or detach a program of the next process.
   */
  async pause(): Promise<void> {
    this.#isPaused = true
    this.#server.close()
    this.#peers.forgetProofs()
    await this.#settled()
  }

  /** Continues the work that `pause` stopped. Called if no other process has taken over. */
  async resume(): Promise<void> {
    this.#isPaused = false
    this.#hooks = undefined
    this.#isCleared = false
    this.#reason ??= NOT_OPEN
    this.#forgetJoin() // the other process may have removed the veth devices
    this.#peers.returnToEngine()
    await this.check()
  }

  /** Makes the engine carry all packets again, and detaches the eBPF programs. */
  async close(): Promise<void> {
    await this.#settled() // a running check may attach the programs
    if (this.#hooks && !this.#isPaused) await this.#end('weftd closes its data path')
    this.#isPaused = true
    await this.#settled()
    this.#server.close()
    this.#programs?.close()
    this.#programs = undefined
  }

  /** Adds work to `#running` until it is done. The work must not reject. */
  #track(work: Promise<void>): Promise<void> {
    this.#running.add(work)
    return work.finally(() => this.#running.delete(work))
  }

  async #settled(): Promise<void> {
    while (this.#running.size > 0) await Promise.all(this.#running)
  }

  async #check(): Promise<void> {
    try {
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

  /**
   * Attaches the eBPF programs if they are not attached. If the external interface was replaced, detaches them instead.
   * If its other properties have changed, makes the engine carry the packets to all peers until the peers are tested
   * again.
   */
  async #follow(uplink: Uplink): Promise<void> {
    const before = this.#uplink
    this.#uplink = uplink
    if (!this.#hooks) return this.#begin(uplink)
    if (before?.index !== uplink.index) return this.#end('the external interface was replaced')
    if (JSON.stringify(before) !== JSON.stringify(uplink)) this.#peers.takeBackAll(`${this.#link.name} has changed`)
    await this.#peers.checkRoutes()
  }

  #stop(reason: string): Promise<void> | void {
    return this.#hooks ? this.#end(reason) : this.#refuse(reason)
  }

  async #begin(uplink: Uplink): Promise<void> {
    const { bpf, engine, subnets, port, log, kernel } = this.#parts
    await this.#ending
    if (!this.#programs) {
      const object = bpf.kernelWayObject()
      if (!object) return this.#refuseForGood('this weft was built without clang')
      try {
        this.#programs = new KernelPrograms(bpf, object)
      } catch (error) {
        return this.#refuseForGood(refusalOf(error))
      }
      this.#peers.writeAll()
    }
    const tun = await kernel.link(engine.tunName)
    // Stop if the tunnel has passed the data path on or closed it, which may happen while the kernel is queried for the
    // TUN.
    if (!this.#mayAttach()) return
    const hooks = { uplink: uplink.index, tunnel: tun?.index ?? 0 }
    const front = await programInFront(bpf, hooksOf(hooks))
    if (front !== undefined) return this.#refuse(`${front} runs before a program of weft`)
    const features = await bpf.activeFeatures(this.#link.name)
    if (!this.#mayAttach()) return
    this.#features = features
    await this.#attach(hooks)
    // A map may have refused a peer while the kernel attached the programs.
    if (this.#isFinal) return this.#end(this.#reason ?? '')
    this.#reason = undefined
    this.#isCleared = true
    for (const subnet of listed(subnets))
      await this.#server.listen(formatAddress(subnet.address), port).catch((error: unknown) => {
        log.warn(`FastPath: peers cannot prove their way to this node: ${messageOf(error)}`)
      })
    // Close the server if the eBPF programs were detached while it was starting, or if the next process may need its
    // port.
    if (this.#isPaused || this.#hooks !== hooks) return this.#server.close()
    log.info(`FastPath: the kernel can carry packets between ${engine.tunName} and ${this.#link.name}`)
  }

  #mayAttach(): boolean {
    return !this.#isPaused && !this.#isFinal && this.#programs !== undefined
  }

  /**
   * Attaches both programs, or none. Sets `#hooks` when both are attached, so that no other work takes programs that are
   * not attached yet for programs that another program has detached.
   */
  async #attach(hooks: Hooks): Promise<void> {
    const programs = this.#programs
    if (!programs) return
    this.#confirm(hooks)
    try {
      await programs.attach(hooks)
    } catch (error) {
      await programs.detach(hooks).catch(() => {}) // the error that the kernel gave first says what is wrong
      throw error
    }
    this.#hooks = hooks
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

  /**
   * Detaches the eBPF programs of an earlier process if this process does not replace them, because those programs do
   * not know this process's peers and rules. The program `ingress` stays for INGRESS_STAYS_MS, unless this host has
   * IPsec policies, which `ingress` would bypass.
   */
  async #clear(uplink: Uplink): Promise<void> {
    if (this.#isCleared) return
    this.#isCleared = true
    const { bpf, kernel, engine } = this.#parts
    const tun = await kernel.link(engine.tunName)
    const hasPolicies = await this.#hasPolicies().catch(() => true)
    const hooks = hooksOf({ uplink: uplink.index, tunnel: tun?.index ?? 0 })
    /** Returns true if the program was attached. */
    const detach = async (isEgress: boolean): Promise<boolean> => {
      let isFound = false
      for (const hook of hooks.filter((each) => each.isEgress === isEgress)) {
        // Ignore an error: the kernel has no tc, or weftd lacks the capability to use it. eBPF programs that stay
        // attached carry no packets after a minute.
        const filters = await bpf.listFilters(hook).catch(() => [])
        if (!filters.some(isOwn) || this.#isPaused || this.#hooks) continue
        isFound = await bpf.detachProgram(hook).then(
          () => true,
          () => isFound,
        )
      }
      return isFound
    }
    const detachIngress = async (): Promise<void> => void (await detach(false))
    const detachLater = async (): Promise<void> => {
      if (!this.#isPaused) await this.#track(detachIngress())
    }
    // Without `egress` on the TUN of this process, `ingress` sends packets to a TUN that is gone.
    if ((await detach(true)) && !hasPolicies) setTimeout(() => void this.#inTurn(detachLater), INGRESS_STAYS_MS).unref()
    else await detachIngress()
  }

  /**
   * Makes the engine carry all packets again, sends `bye` to the connected peers, and detaches the eBPF programs. Does
   * not reject. Resolves after the programs are detached.
   */
  #end(reason: string): Promise<void> {
    const hooks = this.#hooks
    if (!hooks) return this.#ending
    this.#hooks = undefined
    const { log } = this.#parts
    if (reason !== this.#reason) log.info(`FastPath: weftd carries all packets: ${reason}`)
    this.#reason = reason
    this.#peers.takeBackAll(reason)
    this.#server.leave()
    this.#ending = this.#track(this.#detach(hooks))
    return this.#ending
  }

  async #detach(hooks: Hooks): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, FAREWELL_MS))
    // Let only one thread of libuv's pool, which has four, wait for the RTNL.
    await this.#watching
    // Do not detach the eBPF programs after `pause`, because the attached programs may be those of the next process.
    if (this.#isPaused) return
    try {
      await this.#programs?.detach(hooks)
    } catch (error) {
      // The detachment fails if an interface is gone. eBPF programs that stay attached carry no packets after a minute.
      this.#refuse(messageOf(error))
    }
    if (this.#join) await closeJoin(this.#parts.kernel)
    this.#forgetJoin()
  }

  /** Stops sending to the veth devices. If the kernel must still merge segments, the next `look` opens them again. */
  #forgetJoin(): void {
    this.#join = undefined
    this.#joinChoice.isOn = false
  }

  /** Reads the external interface, which may have a new name. Returns undefined if it is gone. */
  async #readUplink(): Promise<Uplink | undefined> {
    const link = await this.#link.find(this.#parts.kernel)
    if (!link) return undefined
    const { index, mtu, queueDiscipline: qdisc, isEthernet } = link
    return { index, mtu, qdisc, isEthernet }
  }

  /** Returns why the eBPF programs must not carry packets; undefined if they may. */
  async #problemWith(uplink: Uplink): Promise<string | undefined> {
    const { settings, bpf, ownHost } = this.#parts
    const { name } = this.#link
    if (this.#isFinal) return this.#reason ?? ''
    if (settings.verifySource === 'off') return 'VerifySource is "off"'
    if (ownHost() === undefined) return 'the datagrams between the hosts are IPv6'
    if (!uplink.isEthernet) return `${name} is not an Ethernet interface`
    if (await this.#hasPolicies()) return IPSEC
    const front = await programInFront(bpf, [{ index: uplink.index, isEgress: false }])
    return front === undefined ? undefined : `${front} of ${name} runs before weft's program`
  }

  /**
   * Returns true if this host has IPsec policies, which may encrypt packets between hosts. The eBPF programs ignore
   * IPsec policies, so they would send such packets unencrypted.
   */
  #hasPolicies(): Promise<boolean> {
    return this.#parts.kernel.hasIpsecPolicies()
  }

  /**
   * Detaches the eBPF programs if this host has IPsec policies. `#watch` does not search for policies, because it may
   * wait for the RTNL for a long time, in which the eBPF programs would send packets unencrypted. Does not reject.
   */
  async #watchPolicies(): Promise<void> {
    this.#isSearchingPolicies = true
    // If the search for policies fails, `check` searches too, and detaches the programs if its search fails.
    const hasPolicies = await this.#hasPolicies().catch(() => false)
    this.#isSearchingPolicies = false
    if (hasPolicies && !this.#isPaused) void this.#end(IPSEC)
  }

  /**
   * Detaches the eBPF programs if the kernel says that they may no longer carry packets, and switches the merging of
   * received TCP segments on or off. weftd watches no event for new IPsec policies, tc filters or offloads, so each
   * `look` begins this check and calls `#watchPolicies`. Does not reject.
   */
  async #watch(): Promise<void> {
    const hooks = this.#hooks
    if (!hooks) return
    try {
      const problem = await this.#problemAt(hooks)
      // Ignore the answer if the programs were detached meanwhile.
      if (this.#isPaused || this.#hooks !== hooks) return
      if (problem !== undefined) return void this.#end(problem)
      await this.#chooseJoin()
    } catch (error) {
      if (!this.#isPaused && this.#hooks === hooks) void this.#end(messageOf(error))
    }
  }

  /**
   * Returns why the eBPF programs must be detached now; undefined if they may stay. If the offloads of the external
   * interface have changed, the engine carries the packets to all peers again.
   */
  async #problemAt(at: Hooks): Promise<string | undefined> {
    const { bpf } = this.#parts
    const { name: uplink } = this.#link
    const hooks = hooksOf(at)
    if (!(await areAttached(bpf, hooks))) return 'another program has detached the programs of weft'
    const front = await programInFront(bpf, hooks)
    if (front !== undefined) return `${front} runs before a program of weft`
    const features = await bpf.activeFeatures(uplink)
    if (features !== this.#features) {
      this.#features = features
      this.#peers.takeBackAll(`the offloads of ${uplink} have changed`)
    }
    return undefined
  }

  #confirm(hooks = this.#hooks): void {
    const { settings, subnets, port, hasTwoOuters, ownHost } = this.#parts
    const host = ownHost()
    if (!hooks || typeof host !== 'number') return
    this.#programs?.setConfig({
      untilNs: process.hrtime.bigint() + BigInt(UNCONFIRMED_MS) * 1_000_000n,
      ...hooks,
      join: this.#joinChoice.isOn ? (this.#join?.[0] ?? 0) : 0,
      ownHost: host,
      port,
      proofPort: port,
      subnets,
      leavesSyn: settings.clampMss,
      leavesProbes: hasTwoOuters,
    })
  }

  /** Switches the merging of received TCP segments on or off, as `#joinChoice` decides. Does not reject. */
  async #chooseJoin(): Promise<void> {
    const { kernel, bpf, log } = this.#parts
    const programs = this.#programs
    if (!programs) return
    const isChanged = this.#joinChoice.take(programs.counters())
    // Find out whether the eBPF program at the veth devices, or a device itself, is gone. In that case the kernel would
    // drop all TCP packets that are sent to the veth devices, so stop sending to them.
    const isLost = this.#join && !(await areAttached(bpf, [{ index: this.#join[1], isEgress: false }]))
    if (isLost) {
      this.#join = undefined
      this.#confirm()
    } else if (!isChanged) return
    if (this.#join || !this.#joinChoice.isOn) return this.#confirm()
    try {
      const indices = await openJoin(kernel, bpf)
      if (this.#hooks && !this.#isPaused) await programs.attachJoined(indices[1])
      // Remove the veth devices if the eBPF programs were detached while the devices were created.
      if (!this.#hooks) return await closeJoin(kernel)
      // After `pause`, perhaps no program takes the packets at the veth devices, so send no packets to them.
      if (this.#isPaused) return
      this.#join = indices
      this.#confirm()
    } catch (error) {
      log.warn(`FastPath: received TCP segments are not joined: ${messageOf(error)}`)
    }
  }
}

const hooksOf = ({ uplink, tunnel }: Hooks) => [
  { index: uplink, isEgress: false },
  { index: tunnel, isEgress: true },
]

/** Describes why the kernel refused the eBPF programs. */
function refusalOf(error: unknown): string {
  const { code, log = '' } = error as { readonly code?: string; readonly log?: string }
  if (code === 'EPERM') return 'the kernel refuses eBPF programs: grant CAP_BPF and CAP_NET_ADMIN'
  const last = log.trim().split('\n').slice(-3).join('; ')
  return `the kernel refuses the eBPF programs: ${messageOf(error)}${last === '' ? '' : ` (${last})`}`
}
