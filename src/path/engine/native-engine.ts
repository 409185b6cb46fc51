// native-engine.ts - the engine in C++ threads (native/): starts the threads, reads their counters, passes their
// descriptors to another process, and stops the threads.

import type { Descriptors, Drops, LoopSockets, UnknownSender } from '../../../native/addon.d.ts'
import { messageOf } from '../../base/errors.ts'
import { addon } from '../../host/addon.ts'
import { closeAll } from '../../host/unix-socket.ts'
import { FAMILIES, familyOfText, onlyOf, type Address, type Family } from '../../net/address.ts'
import type { Counters, Engine, EngineConfig, EngineSessions, OpenPath } from './engine.ts'
import { engineStartError } from './start-error.ts'
import { SLOT_NUMBERS, sumTraffic } from './traffic.ts'

interface NativeOptions {
  /** The number of forwarding threads. Each thread has a TUN queue and sockets of its own. */
  readonly workers?: number
  /**
   * The nice value of the forwarding threads, from -20 (highest priority) to 19; 0 leaves the threads at the process's
   * nice value.
   */
  readonly nice?: number
  /** How long, in microseconds, an idle thread checks its descriptors for packets before it sleeps. */
  readonly pollUs?: number
  readonly without?: readonly string[]
}

/**
 * The kernel features that are set on each UDP socket separately (native/io/udp.cc), so some sockets may have a feature
 * that others lack.
 */
const SOCKET_FEATURES: readonly string[] = ['udp-gso', 'udp-gro']
/**
 * The kernel feature that `runEngine` requests when it starts the threads. All other features are requested earlier,
 * when the descriptors are opened.
 */
const STEERING = 'tun-steering'

type Bound = Descriptors & Pick<OpenPath, 'bindAddresses'>
type OpenSockets = ReturnType<typeof addon.openSockets>
type OpenDescriptors = ReturnType<typeof addon.openDescriptors>
type RunningEngine = ReturnType<typeof addon.runEngine>

/**
 * The engine in C++ threads. Its descriptors can be lent to another process and taken back, which starts the threads
 * again.
 */
export class NativeEngine implements Engine {
  readonly kind = 'native'
  readonly notes: string[] = []
  readonly details: string[] = []
  readonly fault: Promise<Error>
  readonly sessions: EngineSessions
  readonly #config: EngineConfig
  readonly #options: Required<NativeOptions>
  /** The kernel features that the engine requests when it opens descriptors. */
  readonly #features: readonly string[]
  /** The options of the threads, which stay the same when the engine starts the threads again. */
  readonly #path: ReturnType<typeof pathOf>
  /** The addresses to which the sockets are bound, at most one of each family. */
  #bound: readonly string[]
  /** The kernel features of the open descriptors. */
  #granted: readonly string[]
  /** The threads that forward, or that forwarded last. */
  #native: RunningEngine
  /** The name that the TUN device had when the threads ran last. */
  #lastName: string
  /**
   * The sums of the counters of this object's earlier threads. After each `takeBack` new threads start, whose counters
   * begin at 0.
   */
  #counted: Counters = {}
  /** The traffic in each slot (traffic.ts) that this object's earlier threads counted. */
  #passed: Float64Array = new Float64Array()
  /** The time at which `#passed` was read, in ms of performance.now(). */
  #passedAt = 0
  /** True while the threads forward; false while the descriptors are lent to another process, and after `stop`. */
  #runs = true
  #lending: Promise<OpenPath | undefined> = Promise.resolve(undefined)
  /**
   * The descriptors of the TUN device and the sockets, from the time when this object releases them for another process
   * until `#runAgain` starts threads on them again. Undefined at other times.
   */
  #lent: OpenPath | undefined
  /** The running or completed call of `stop`; undefined if `stop` was not called. */
  #stopped: Promise<void> | undefined
  #reportFault: (error: Error) => void = () => {}

  /** Starts the threads. Throws WeftError (NO_TUN, PERMISSION, PORT_IN_USE, ADDRESS, DEVICE). */
  constructor(config: EngineConfig, { workers = 1, nice = 0, pollUs = 0, without = [] }: NativeOptions = {}) {
    this.#config = config
    this.#options = { workers, nice, pollUs, without }
    const [bindAddress = ''] = config.bindAddresses
    this.fault = new Promise<Error>((resolve) => (this.#reportFault = resolve))
    const named = addon.featureNames.filter((name) => !without.includes(name))
    this.#features = named.filter((name) => name !== STEERING)
    this.#path = pathOf(config, named.includes(STEERING))
    const { inherited } = config
    let opened: OpenDescriptors | undefined
    try {
      opened = inherited ? undefined : this.#open(bindAddress)
      const all = this.#bind(opened ? { ...opened, bindAddresses: [bindAddress] } : (inherited as OpenPath))
      this.#bound = all.bindAddresses
      this.#granted = all.features
      this.#native = this.#run(all, config.keepsSessions ?? false)
    } catch (error) {
      throw engineStartError(error, { ...config, bindAddress })
    }
    this.#lastName = (opened ?? (inherited as OpenPath)).tunName
    if (opened) this.#noteRefusals(opened)
    this.#detailRefusals()
    this.sessions = this.#sessionsOf()
  }

  get tunName(): string {
    return (this.#lastName = this.#native.tunName ?? this.#lastName)
  }

  get outers(): readonly Family[] {
    return this.#bound.map(familyOfText)
  }

  get offloads(): readonly string[] {
    return this.#native.offloads
  }

  setPeers(records: Uint8Array): void {
    this.#native.setPeers(records)
  }

  changePeers(records: Uint8Array): void {
    this.#native.changePeers(records)
  }

  async rebind(address: string): Promise<boolean> {
    if (!this.#runs || this.#stopped) return false
    const family = familyOfText(address)
    // Open the new sockets while the threads run, so that a failure interrupts no packets.
    const opened = this.#openSockets(address, this.#options.workers, this.#granted)
    this.#runs = false
    this.#lending = this.#release()
    // `stop` may be called while the threads are stopping, and then closes their descriptors.
    const on = await this.#lending.catch(() => undefined)
    if (!on) {
      closeAll(opened.loops.flatMap(fdsIn))
      return false
    }
    closeAll(on.loops.flatMap(({ sockets }) => fdsIn(sockets[family])))
    this.#lent = { ...on, ...withSockets(on, address, opened) }
    this.#bound = this.#lent.bindAddresses
    this.#granted = this.#lent.features
    this.#runAgain()
    return true
  }

  send(to: Address, port: number, datagram: Uint8Array): void {
    this.#native.send(to, port, datagram)
  }

  async followSwitches(): Promise<void> {
    if (this.#runs && !this.#stopped) await this.#native.followSwitches()
  }

  counters(): Counters {
    const names = addon.counterNames
    const { counters } = this.#native
    const sums: Record<string, bigint> = {}
    names.forEach((name, index) => {
      let sum = this.#counted[name] ?? 0n
      for (let at = index; at < counters.length; at += names.length) sum += counters[at] ?? 0n
      sums[name] = sum
    })
    return sums
  }

  traffic(slot?: number): Float64Array {
    const at = slot === undefined ? 0 : slot * SLOT_NUMBERS
    const end = slot === undefined ? undefined : at + SLOT_NUMBERS
    return sumTraffic(this.#native.traffic(slot), this.#passed.subarray(at, end), performance.now() - this.#passedAt)
  }

  drops(after: Drops['next'] = []): Drops {
    const drops = this.#native.drops(after)
    // While the descriptors are lent to another process, the engine cannot read dropped packets, and `next` is empty.
    // So return the position `after` unchanged.
    return drops.next.length > 0 ? drops : { next: after, packets: [] }
  }

  threads(): Readonly<Record<string, number>> {
    return this.#native.askThreads()
  }

  takeUnknownSenders(): readonly UnknownSender[] {
    return this.#native.takeUnknownSenders()
  }

  lend(head?: Uint8Array): Promise<OpenPath | undefined> {
    if (!this.#runs || this.#stopped) return Promise.resolve(undefined)
    this.#runs = false
    return (this.#lending = this.#release(head))
  }

  takeBack(): void {
    if (this.#stopped) return
    const runAgain = (): void => this.#runAgain()
    if (this.#lent) runAgain()
    else void this.#lending.then(runAgain, () => {})
  }

  stop(): Promise<void> {
    return (this.#stopped ??= this.#stop())
  }

  #open(bindAddress: string): OpenDescriptors {
    const { tunName, port } = this.#config
    return addon.openDescriptors({
      tunName,
      bindAddress,
      port,
      workers: this.#options.workers,
      features: this.#features,
    })
  }

  /**
   * Closes the sockets at addresses that the configuration does not name, and opens the missing sockets. If sockets
   * cannot be opened, the engine runs without them and adds a message to `notes`.
   */
  #bind(on: Bound): Bound {
    const { bindAddresses } = this.#config
    const kept = bindAddresses.filter((address) => on.bindAddresses.includes(address))
    const families = kept.map(familyOfText)
    const isKept = (family: Family): boolean => families.includes(family)
    closeAll(on.loops.flatMap(({ sockets }) => FAMILIES.flatMap((each) => (isKept(each) ? [] : fdsIn(sockets[each])))))
    const loops = on.loops.map(({ tun, sockets }) => ({ tun, sockets: onlyOf(families, sockets) }))
    const missing = bindAddresses.filter((address) => !kept.includes(address))
    const rest: Bound = { ...on, loops, bindAddresses: kept }
    return missing.reduce((bound, address) => this.#addSockets(bound, address), rest)
  }

  /** Opens sockets at `address` and adds them to the forwarding loops. Adds a message to `notes` if that fails. */
  #addSockets(on: Bound, address: string): Bound {
    try {
      return withSockets(on, address, this.#openSockets(address, on.loops.length, on.features))
    } catch (error) {
      this.notes.push(messageOf(error))
      return on
    }
  }

  #openSockets(address: string, workers: number, features: readonly string[]): OpenSockets {
    const { port } = this.#config
    try {
      return addon.openSockets({ bindAddress: address, port, workers, features })
    } catch (error) {
      const { message } = engineStartError(error, { ...this.#config, bindAddress: address })
      throw new Error(`cannot reach peers from ${address}: ${message}`, { cause: error })
    }
  }

  /**
   * Starts the threads on the descriptors `on`. From then on the threads own the descriptors, even if the start fails.
   */
  #run(on: Descriptors, keepsSessions = true): RunningEngine {
    const { nice, pollUs } = this.#options
    const peers = this.#config.peers?.() ?? new Uint8Array()
    const report = (error: Error): void => this.#reportFault(error)
    return addon.runEngine(on, { ...this.#path, nice, pollUs, peers, keepsSessions }, report, this.#config.onMail)
  }

  /** Stops the threads and returns the descriptors; undefined if `stop` was called meanwhile. */
  async #release(head?: Uint8Array): Promise<OpenPath | undefined> {
    this.#passed = this.traffic()
    this.#passedAt = performance.now()
    const descriptors = await this.#native.release(head)
    const { port } = this.#config
    this.#lent = { ...descriptors, bindAddresses: this.#bound, port, without: this.#options.without }
    return this.#stopped ? undefined : this.#lent
  }

  /** Starts threads on the descriptors that were lent to another process, if there are any. */
  #runAgain(): void {
    const on = this.#lent
    this.#lent = undefined
    if (!on) return
    const before = this.counters()
    try {
      this.#native = this.#run(on)
      this.#counted = before
      this.#runs = true
    } catch (error) {
      this.#reportFault(error as Error)
    }
  }

  async #stop(): Promise<void> {
    await this.#lending.catch(() => {})
    this.#runAgain() // the lent descriptors are open here too, and only an engine closes them
    this.#runs = false
    await this.#native.stop()
  }

  /** Adds notes for the operator if the kernel granted a smaller receive buffer than requested, or refused features. */
  #noteRefusals({ receiveBufferAsked: wanted, receiveBufferGranted: granted, features }: OpenDescriptors): void {
    if (granted < wanted) {
      this.notes.push(
        `the UDP receive buffer is ${granted >> 10} KiB instead of ${wanted >> 10}: bursts may be lost; raise net.core.rmem_max`,
      )
    }
    const refused = this.#features.filter((name) => !features.includes(name))
    if (refused.length > 0)
      this.notes.push(`the kernel does not offer ${refused.join(', ')}: forwarding works, but is slower`)
  }

  /**
   * Adds details for the log if the kernel refused the program that steers flows to TUN queues, or the priority of the
   * threads.
   */
  #detailRefusals(): void {
    const { steeringRefused, priorityRefused } = this.#native
    if (steeringRefused !== undefined) {
      this.details.push(
        `flows of which some datagrams are sent in fragments may arrive out of order (${steeringRefused}): grant CAP_BPF, ` +
          'or set --workers 1',
      )
    }
    if (priorityRefused !== undefined) {
      this.details.push(
        `the forwarding threads run at the priority of weftd instead of ${this.#options.nice} (${priorityRefused}): packets wait ` +
          'behind programs when cores are short; grant CAP_SYS_NICE or RLIMIT_NICE, or set --nice 0',
      )
    }
  }

  #sessionsOf(): EngineSessions {
    const current = (): RunningEngine => this.#native
    return {
      get areKept() {
        return current().hasKeptSessions
      },
      setKeys: (session, keys) => current().setKeys(session, keys),
      forget: (session) => current().forgetSession(session),
      takeMail: (mostOfOthers) => current().takeMail(mostOfOthers),
      send: ({ address, port: to }, datagram) => current().send(address, to, datagram),
    }
  }
}

/**
 * Returns the thread options that the configuration determines. `steers` is true if the TUN must steer flows to queues.
 */
function pathOf(config: EngineConfig, steers: boolean) {
  const {
    encapsulation,
    ownEnd = new Uint8Array(),
    mtu,
    tunAddress,
    networkAddress,
    network,
    subnet,
    settings,
  } = config
  return {
    ...settings,
    encapsulation,
    ownEnd,
    mtu,
    tunAddress,
    networkAddress,
    filter: { ...settings, network, subnet },
    persistent: config.persistent ?? false,
    steers,
  }
}

/** Returns the descriptors `on` with the sockets `opened` at `address`, in place of other sockets of this family. */
function withSockets(on: Bound, address: string, opened: OpenSockets): Bound {
  const family = familyOfText(address)
  const loops = on.loops.map(({ tun, sockets }, at) => ({ tun, sockets: { ...sockets, [family]: opened.loops[at] } }))
  const lost = new Set(SOCKET_FEATURES.filter((name) => !opened.features.includes(name)))
  const features = on.features.filter((name) => !lost.has(name))
  const others = on.bindAddresses.filter((each) => familyOfText(each) !== family)
  return { ...on, loops, features, bindAddresses: [...others, address] }
}

const fdsIn = (sockets: LoopSockets | undefined): number[] =>
  [sockets?.receiver, sockets?.sender].filter((fd) => fd !== undefined)
