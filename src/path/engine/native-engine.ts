// native-engine.ts - the engine in C++ threads (native/): starts it, reads its counters, passes its descriptors on and stops it.

import type { Descriptors } from '../../../native/addon.d.ts'
import { addon } from '../../host/addon.ts'
import { closeAll } from '../../host/unix-socket.ts'
import type { Counters, Engine, EngineConfig, OpenPath } from './engine.ts'
import { engineStartError } from './start-error.ts'
import { SLOT_NUMBERS, sumTraffic } from './traffic.ts'

interface NativeOptions {
  /** The number of forwarding threads. Each has its own TUN queue and socket. */
  readonly workers?: number
  /** The nice value of the forwarding threads, from -20 (highest priority) to 19; with 0 they run at the process's nice value. */
  readonly nice?: number
  /** How long, in microseconds, an idle thread polls its descriptors before it sleeps. */
  readonly pollUs?: number
  readonly without?: readonly string[]
}

/** The kernel features that are set on each UDP socket (native/io/udp.cc), so that a socket may lack one that the others have. */
const SOCKET_FEATURES: readonly string[] = ['udp-gso', 'udp-gro']
/** The kernel feature that `runEngine` requests; all others are requested when the descriptors are opened. */
const STEERING = 'tun-steering'

/** Starts the native engine. Throws WeftError (NO_TUN, PERMISSION, PORT_IN_USE, ADDRESS, DEVICE). */
export function startNativeEngine(
  config: EngineConfig,
  { workers = 1, nice = 0, pollUs = 0, without = [] }: NativeOptions = {},
): Engine {
  let reportFault: (error: Error) => void = () => {}
  const fault = new Promise<Error>((resolve) => {
    reportFault = resolve
  })
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
  const { tunName, bindAddress, port, persistent = false, inherited } = config
  let { otherAddress } = config
  const named = addon.featureNames.filter((name) => !without.includes(name))
  const features = named.filter((name) => name !== STEERING)
  const filter = { ...settings, network, subnet }
  const path = {
    ...settings,
    encapsulation,
    ownEnd,
    mtu,
    tunAddress,
    networkAddress,
    filter,
    persistent,
    steers: named.includes(STEERING),
  }
  const { peers = () => new Uint8Array() } = config
  const notes: string[] = []
  const open = (): ReturnType<typeof addon.openDescriptors> =>
    addon.openDescriptors({ tunName, bindAddress, port, workers, features })
  /**
   * Adds sockets of the second outer family to the descriptors, if `otherAddress` is set. If they cannot be opened, the engine runs with
   * one family and adds a note.
   */
  const withOther = (on: Descriptors & Pick<OpenPath, 'otherAddress'>): Descriptors => {
    if (on.otherAddress === otherAddress) return on
    closeAll(
      on.loops.flatMap(({ otherSocket, otherSender }) => [otherSocket, otherSender].filter((fd) => fd !== undefined)),
    )
    const loops = on.loops.map(({ tun, socket, sender }) => ({
      tun,
      socket,
      ...(sender === undefined ? {} : { sender }),
    }))
    if (otherAddress === undefined) return { ...on, loops }
    try {
      const wanted = { bindAddress: otherAddress, port, workers: loops.length, features: on.features }
      const more = addon.openSockets(wanted)
      const both = loops.map((loop, at) => {
        const { socket: otherSocket, sender: otherSender } = more.loops[at] as (typeof more.loops)[number]
        return { ...loop, otherSocket, ...(otherSender === undefined ? {} : { otherSender }) }
      })
      const lost = new Set(SOCKET_FEATURES.filter((name) => !more.features.includes(name)))
      return { ...on, loops: both, features: on.features.filter((name) => !lost.has(name)) }
    } catch (error) {
      const { message } = engineStartError(error, { ...config, bindAddress: otherAddress })
      notes.push(`cannot reach peers from ${otherAddress}: ${message}`)
      return { ...on, loops }
    }
  }
  const isWithOther = ({ loops }: Descriptors): boolean => loops.every(({ otherSocket }) => otherSocket !== undefined)
  const run = (on: Descriptors, keepsSessions = true): ReturnType<typeof addon.runEngine> =>
    addon.runEngine(
      on,
      { ...path, nice, pollUs, peers: peers(), keepsSessions },
      (error) => reportFault(error),
      config.onMail,
    )
  let opened: ReturnType<typeof open> | undefined
  let native: ReturnType<typeof run>
  let hasOther = false
  try {
    opened = inherited ? undefined : open()
    const all = withOther(opened ?? (inherited as OpenPath))
    hasOther = isWithOther(all)
    native = run(all, config.keepsSessions ?? false)
  } catch (error) {
    throw engineStartError(error, config)
  }
  if (opened) {
    const { receiveBufferAsked: wanted, receiveBufferGranted: granted } = opened
    if (granted < wanted) {
      notes.push(
        `the UDP receive buffer is ${granted >> 10} KiB instead of ${wanted >> 10}: bursts may be lost; raise net.core.rmem_max`,
      )
    }
    const refused = features.filter((name) => !opened.features.includes(name))
    if (refused.length > 0)
      notes.push(`the kernel does not offer ${refused.join(', ')}: forwarding works, but is slower`)
  }

  const details: string[] = []
  if (native.steeringRefused !== undefined) {
    details.push(
      `flows of which some datagrams are sent in fragments may arrive out of order (${native.steeringRefused}): grant CAP_BPF, ` +
        'or set --workers 1',
    )
  }
  if (native.priorityRefused !== undefined) {
    details.push(
      `the forwarding threads run at the priority of weftd instead of ${nice} (${native.priorityRefused}): packets wait ` +
        'behind programs when cores are short; grant CAP_SYS_NICE or RLIMIT_NICE, or set --nice 0',
    )
  }

  const names = addon.counterNames
  /**
   * The sums of the counters of this object's earlier native engines. A new one starts after each `takeBack`, and its own counters start at
   * 0.
   */
  let counted: Counters = {}
  function counters(): Counters {
    const sums: Record<string, bigint> = {}
    names.forEach((name, index) => {
      let sum = counted[name] ?? 0n
      for (let at = index; at < native.counters.length; at += names.length) sum += native.counters[at] ?? 0n
      sums[name] = sum
    })
    return sums
  }
  /** The traffic by slot that earlier native engines of this object counted; `passedAt` is when it was read, in ms of performance.now(). */
  let passed: Float64Array = new Float64Array()
  let passedAt = 0
  /** True while the native engine forwards; false while its descriptors are passed on, and after `stop`. */
  let runs = true
  let lending: Promise<OpenPath | undefined> = Promise.resolve(undefined)
  const traffic = (slot?: number): Float64Array => {
    const at = slot === undefined ? 0 : slot * SLOT_NUMBERS
    const end = slot === undefined ? undefined : at + SLOT_NUMBERS
    return sumTraffic(native.traffic(slot), passed.subarray(at, end), performance.now() - passedAt)
  }
  /** The TUN's name when the native engine last ran. */
  let lastName = (opened ?? (inherited as OpenPath)).tunName
  let lent: OpenPath | undefined
  function takeBack(): void {
    const on = lent
    lent = undefined
    if (!on) return
    const before = counters()
    try {
      native = run(on) // the engine owns the descriptors from here on, even if this throws
      counted = before
      runs = true
    } catch (error) {
      reportFault(error as Error)
    }
  }
  async function release(head?: Uint8Array): Promise<OpenPath | undefined> {
    passed = traffic()
    passedAt = performance.now()
    const descriptors = await native.release(head)
    const other = hasOther ? { otherAddress } : {}
    lent = { ...descriptors, bindAddress, ...other, port, without }
    return stopped ? undefined : lent
  }
  async function bindOther(address: string): Promise<void> {
    if (!runs || stopped || !hasOther) return
    runs = false
    lending = release()
    await lending
    // If `stop` was called meanwhile, it took the descriptors back and closed them, so that there are none to bind.
    if (!lent) return
    const notesBefore = notes.length
    const on = lent
    otherAddress = address
    lent = { ...on, ...withOther(on), otherAddress }
    hasOther = isWithOther(lent)
    takeBack()
    const [note] = notes.splice(notesBefore)
    if (note !== undefined) throw new Error(note)
  }
  let stopped: Promise<void> | undefined
  async function stop(): Promise<void> {
    await lending.catch(() => {})
    takeBack() // the lent descriptors are open here too, and only an engine closes them
    runs = false
    await native.stop()
  }
  return {
    kind: 'native',
    get tunName() {
      return (lastName = native.tunName ?? lastName)
    },
    get offloads() {
      return native.offloads
    },
    notes,
    details,
    fault,
    setPeers: (records) => native.setPeers(records),
    changePeers: (records) => native.changePeers(records),
    hasOther,
    bindOther,
    send: (to, toPort, datagram) => void native.send(to, toPort, datagram),
    followSwitches() {
      if (runs && !stopped) native.followSwitches()
    },
    counters,
    traffic,
    drops(after = []) {
      const drops = native.drops(after)
      // While the descriptors are passed on, the engine has no drops to read, and `next` is empty.
      return drops.next.length > 0 ? drops : { next: after, packets: [] }
    },
    threads: () => native.askThreads(),
    takeUnknownSenders: () => native.takeUnknownSenders(),
    sessions: {
      get areKept() {
        return native.hasKeptSessions
      },
      setKeys: (session, keys) => native.setKeys(session, keys),
      forget: (session) => native.forgetSession(session),
      takeMail: (mostOfOthers) => native.takeMail(mostOfOthers),
      send: ({ address, port: to }, datagram) => native.send(address, to, datagram),
    },
    lend(head) {
      if (!runs || stopped) return Promise.resolve(undefined)
      runs = false
      return (lending = release(head))
    },
    takeBack() {
      if (stopped) return
      if (lent) takeBack()
      else void lending.then(takeBack, () => {})
    },
    stop: () => (stopped ??= stop()),
  }
}
