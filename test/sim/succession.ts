// succession.ts - simulates the weftds of one host in virtual time. A seed decides when they start, take over, stop,
// die and freeze. The code of the hand-over, of the ownership of the data path, and of its loop is the real code;
// sockets, the lock and the engines are simulated.
//
// When a process dies, its timers never run, its descriptors are closed, and the other ends of its connections see the
// end. A frozen process (SIGSTOP) forwards nothing, and receives everything that arrived in the meantime when it
// continues.

import { setMaxListeners } from 'node:events'
import { WeftError } from '../../src/base/errors.ts'
import { parseNetworkConfig } from '../../src/control/config/network-config.ts'
import { decodeLease } from '../../src/control/lease/decode.ts'
import { managerOf } from '../../src/control/lease/store-manager.ts'
import { runNode } from '../../src/daemon.ts'
import { createBell, pause } from '../../src/host/bell.ts'
import { hostKernel } from '../../src/host/netlink/host-kernel.ts'
import type { Connection, Listener, Parcel } from '../../src/host/unix-socket.ts'
import { endDataPath } from '../../src/node/end.ts'
import { keepDataPath } from '../../src/node/loops/data-path.ts'
import { canForward, createNode } from '../../src/node/node.ts'
import { earlierRun } from '../../src/node/restart/earlier-run.ts'
import { enterHandover, type Inheritable } from '../../src/node/restart/handover.ts'
import { Superseded } from '../../src/node/restart/lender.ts'
import { fdsOf } from '../../src/node/restart/open-path.ts'
import { VERSION } from '../../src/node/restart/protocol.ts'
import type { Lock, Rendezvous } from '../../src/node/restart/rendezvous.ts'
import type { Backend, DataPath } from '../../src/path/contract.ts'
import type { OpenPath } from '../../src/path/engine/engine.ts'
import { permitAll } from '../support/alone.ts'
import { EXTERNAL, openPaths, planOf } from '../support/data-paths.ts'
import { createMemoryStore } from '../support/memory-store.ts'
import { nodeOptions } from '../support/options.ts'
import { randomFrom, type Random } from '../support/packet-model.ts'
import { takeOverTime, type Machine, type VirtualTime } from './virtual-time.ts'

/** The maximum time in ms for which no process forwards while one could. */
const BOUND_MS = 5_000
/** The pause in ms before a service manager restarts a process, as in deploy/weftd.service. */
const RESTART_MS = 2_000
/** The additional time in ms that is allowed, because calls on a busy machine take longer. */
const SLACK_MS = 200

/** The seeds above this number decide which processes AppArmor or SELinux restricts. */
const DENIED_SEEDS = 1_000_000

/** The errors with which a process may end. */
const REFUSALS =
  /does not let this one take over|does not answer|another weftd runs on this host for the store|took over before this one|cannot be opened|has the port/

export const FATES = [
  'stop',
  'kill',
  'freeze',
  'thaw',
  'fail',
  'third',
  'full backlog',
  'unseen',
  'refit',
  'another store',
  'another version',
  'full buffer',
  'kernel',
  'denied connection',
  'denied descriptors',
] as const
export type Fate = (typeof FATES)[number]

interface Outcome {
  readonly struck: ReadonlySet<Fate>
  /** The important events of the run, such as `taken over`, `taken back` and `as last known`. */
  readonly reached: ReadonlySet<string>
  readonly violations: readonly string[]
  readonly log: readonly string[]
}

const CONFIGS = {
  tun: parseNetworkConfig('{"Network":"10.5.0.0/24"}'),
  kernel: parseNetworkConfig('{"Network":"10.5.0.0/24","Backend":{"Type":"vxlan"}}'),
}
const LEASE = decodeLease('10.5.0.64-26', '{"PublicIP":"192.0.2.1","PublicIPv6":null}')

/** An open file, which all processes that have a descriptor of it share. */
interface OpenFile {
  readonly what: 'lock' | 'path'
  /** The processes that have it open, once for each descriptor. */
  holders: Process[]
}

interface Plan {
  /** The number of the engine's loops. A process with another number cannot use its descriptors. */
  readonly workers: number
  /** The step that fails; undefined if none does. */
  readonly failsAt: 'start' | 'open' | 'firewall' | undefined
  /** The time in ms for which the store does not answer the process. */
  readonly storeMs: number
  readonly store: string
  readonly isManaged: boolean
  /**
   * The kind of the data path: the process's own engine, or a device of the kernel, which has no descriptors to lend.
   */
  readonly kind: 'tun' | 'kernel'
  /** The version of the protocol. */
  readonly version: number
  /** The operation that AppArmor or SELinux forbids the process: connections, or the receipt of descriptors. */
  readonly denied: 'connection' | 'descriptors' | undefined
}

interface Process {
  readonly name: string
  readonly pid: number
  readonly machine: Machine
  readonly stopping: AbortController
  isDead: boolean
  isFrozen: boolean
  /** True if a service manager runs the process and restarts it. */
  readonly isManaged: boolean
  /** True if another process has taken over, and this one waits for the service manager to stop it. */
  isWaiting: boolean
  ends: Socket[]
  ended: boolean
  /** True if opening the data path fails at random. */
  readonly isUnable: boolean
  /** True if a fate has struck it. */
  isStruck: boolean
  /** The version of the hand-over protocol that the process uses. */
  readonly version: number
  readonly plan: Plan
}

/** One end of a connection. */
interface Socket {
  readonly owner: Process
  other: Socket | undefined
  readonly queue: { readonly text: string; readonly files: readonly OpenFile[] }[]
  wake: () => void
  isOpen: boolean
  /** The virtual time in ms at which the last message to this end arrives. Nothing that is sent later arrives earlier. */
  lastArrival: number
  /** True if the other end is closed, and everything that it sent has arrived. */
  isOver: boolean
}

/** Runs one seed. `give` gets the function that closes descriptors of the simulation. */
export async function simulateSuccession(
  seed: number,
  give: (closeAll: (fds: readonly number[]) => void) => void,
): Promise<Outcome> {
  const random = randomFrom(seed)
  const time = takeOverTime(1_700_000_000_000)
  const world = createWorld(time, random, randomFrom(seed + DENIED_SEEDS))
  give(world.closeAll)
  try {
    await world.run()
    return world.outcome
  } finally {
    time.restore()
  }
}

function createWorld(time: VirtualTime, random: Random, deniedRandom: Random) {
  const below = (limit: number): number => random.below(limit)
  const chance = (probability: number): boolean => random.chance(probability)
  const struck = new Set<Fate>()
  const reached = new Set<string>()
  const violations: string[] = []
  const log: string[] = []
  const say = (process: Process | undefined, line: string): void =>
    void log.push(`${String(time.now() - 1_700_000_000_000).padStart(6)} ${process?.name ?? '-'}: ${line}`)
  const between = (least: number, most: number): number => least + below(most - least)
  const processes: Process[] = []
  const files = new Map<number, { file: OpenFile; owner: Process }>()
  let lastFd = 100
  let lastPid = 0
  /** The lock file of the host. */
  let lockFile: OpenFile | undefined
  let listening: { owner: Process; pending: Socket[]; wake: () => void } | undefined
  /** The running engine of each process, with its open file. */
  const engines = new Map<Process, OpenFile>()
  /** The TUN device. It remains when a process dies, and only one process at a time can open it. */
  let pathFile: OpenFile | undefined
  /** True if a device of the kernel forwards. `lastKnown` is the kind of the data path that forwarded last. */
  let doesKernelForward: boolean = false
  /** The processes that have the kernel's device open, each with the function by which the kernel's reports wake its loop. */
  const kernels = new Map<Process, () => void>()
  let lastKnown: Plan['kind'] = 'tun'
  let isBacklogFull: boolean = false
  /** The process to which nobody can send now, because its buffers are full. */
  let full: Process | undefined
  const areOfBothKinds = chance(0.3)
  let arePidsSeen: boolean = true
  const store = createMemoryStore()
  store.put(LEASE.key, '{"PublicIP":"192.0.2.1","PublicIPv6":null}')

  const heldBy = (file: OpenFile | undefined): Process[] => file?.holders ?? []
  function openFd(file: OpenFile, owner: Process): number {
    file.holders.push(owner)
    files.set(++lastFd, { file, owner })
    return lastFd
  }
  function closeFd(fd: number): void {
    const open = files.get(fd)
    if (!open) {
      violations.push(`descriptor ${fd} was closed twice`)
      return
    }
    files.delete(fd)
    open.file.holders.splice(open.file.holders.indexOf(open.owner), 1)
  }

  /** Runs `work` after `ms` on the process's own clock, which stops while the process is frozen. */
  const onMachine = (process: Process, work: () => void, ms = 0): void =>
    process.machine.run(() => void setTimeout(() => process.isDead || work(), ms))

  function socketPair(a: Process, b: Process): [Socket, Socket] {
    const make = (owner: Process): Socket => ({
      owner,
      other: undefined,
      queue: [],
      wake: () => {},
      isOpen: true,
      lastArrival: 0,
      isOver: false,
    })
    const [left, right] = [make(a), make(b)]
    left.other = right
    right.other = left
    a.ends.push(left)
    b.ends.push(right)
    return [left, right]
  }
  const drop = (sent: readonly OpenFile[], holder: Process): void => {
    for (const file of sent) file.holders.splice(file.holders.indexOf(holder), 1)
  }
  /** Runs `work` after `ms` milliseconds, but not before the last message to the socket `to` has arrived. */
  function inOrder(to: Socket, ms: number, work: () => void): void {
    to.lastArrival = Math.max(to.lastArrival, time.now() + ms)
    time.at(to.lastArrival - time.now(), work)
  }
  function shut(socket: Socket): void {
    if (!socket.isOpen) return
    socket.isOpen = false
    for (const message of socket.queue.splice(0)) drop(message.files, socket.owner)
    const { other } = socket
    if (!other) return
    const end = (): void => {
      other.isOver = true
      other.wake()
    }
    inOrder(other, 1, end)
  }
  /**
   * The code under test has one protocol version. A reader sees its own version as VERSION, and every other version as
   * VERSION + 1.
   */
  const asReadBy = (reader: Process, version: number): number => (version === reader.version ? VERSION : VERSION + 1)
  function connectionOf(socket: Socket): Connection {
    const { owner } = socket
    let hasLostDescriptors = false
    const taken = (): Parcel | undefined => {
      const message = socket.queue.shift()
      if (!message) return undefined
      if (message.files.length > 0 && owner.plan.denied === 'descriptors') {
        struck.add('denied descriptors')
        drop(message.files, owner)
        hasLostDescriptors = true
        socket.isOver = true
        return undefined
      }
      const fds = message.files.map((file) => openFd(file, owner))
      drop(message.files, owner)
      return {
        text: message.text.replace(/"weft":(\d+)/, (_all, number) => `"weft":${asReadBy(owner, Number(number))}`),
        fds,
      }
    }
    return {
      peerPid: arePidsSeen ? (socket.other?.owner.pid ?? 0) : 0,
      get hasLostDescriptors() {
        return hasLostDescriptors
      },
      send(text, fds = []) {
        if (!/still/.test(text)) say(owner, `says ${text.slice(0, 120)}`)
        const { other } = socket
        if (!socket.isOpen || !other?.isOpen) throw Object.assign(new Error('it has gone'), { code: 'EPIPE' })
        if (other.owner === full) {
          struck.add('full buffer')
          throw Object.assign(new Error('sendmsg: EAGAIN'), { code: 'EAGAIN' })
        }
        // The receiver has the sent files open as soon as they are sent, even before it reads the message.
        const sent = fds.map((fd) => files.get(fd)?.file).filter((file) => file !== undefined)
        if (sent.length !== fds.length) violations.push('a closed descriptor was sent')
        for (const file of sent) file.holders.push(other.owner)
        inOrder(other, between(1, 4), () => {
          if (!other.isOpen) return drop(sent, other.owner)
          other.queue.push({ text: text.replace(/"weft":\d+/, `"weft":${owner.version}`), files: sent })
          other.wake()
        })
      },
      async receive(signal) {
        for (;;) {
          const parcel = taken()
          if (parcel) return parcel
          if (socket.isOver || !socket.isOpen) return undefined
          const bell = createBell()
          socket.wake = () => onMachine(owner, () => bell.ring())
          try {
            await bell.wait(signal)
          } catch (error) {
            // A message that has arrived is read before the time limit ends (lender.ts, receive).
            const late = taken()
            if (late) return late
            throw error
          }
        }
      },
      close: () => shut(socket),
    }
  }

  function rendezvousOf(process: Process): Rendezvous {
    const lockOf = (fd: number): Lock => {
      let open: number | undefined = fd
      return {
        get fd() {
          return open
        },
        sign: () => {},
        close() {
          if (open !== undefined) closeFd(open)
          open = undefined
        },
      }
    }
    return {
      path: 'subnet.env.handover',
      tryLock() {
        if (lockFile && heldBy(lockFile).length > 0) return undefined
        lockFile = { what: 'lock', holders: [] }
        return lockOf(openFd(lockFile, process))
      },
      untilFree: () => new Promise(() => {}),
      receivedLock: lockOf,
      owner: () => heldBy(lockFile)[0]?.pid,
      remove: () => {},
      connect() {
        const there = listening
        if (!there || there.owner.isDead) return undefined
        if (process.plan.denied === 'connection') {
          struck.add('denied connection')
          throw Object.assign(new Error('connect: EACCES'), { code: 'EACCES' })
        }
        if (isBacklogFull) {
          struck.add('full backlog')
          throw Object.assign(new Error('connect: EAGAIN'), { code: 'EAGAIN' })
        }
        const [mine, theirs] = socketPair(process, there.owner)
        there.pending.push(theirs)
        there.wake()
        return connectionOf(mine)
      },
      listen(): Listener {
        const bell = createBell()
        const mine = { owner: process, pending: [] as Socket[], wake: () => onMachine(process, () => bell.ring()) }
        listening = mine
        return {
          async accept(signal) {
            for (;;) {
              const socket = mine.pending.shift()
              if (socket) return connectionOf(socket)
              await bell.wait(signal)
            }
          },
          close() {
            if (listening === mine) listening = undefined
            for (const socket of mine.pending) shut(socket)
          },
        }
      },
      kill(pid) {
        const other = processes.find((each) => each.pid === pid)
        if (!other || other.isDead) return false
        say(process, `kills ${other.name}`)
        die(other)
        return true
      },
    }
  }

  function die(process: Process): void {
    if (process.isDead) return
    process.isDead = true
    process.ended = true
    process.machine.freeze(Infinity)
    engines.delete(process)
    kernels.delete(process)
    for (const [owner, wake] of kernels) onMachine(owner, wake)
    if (listening?.owner === process) {
      for (const socket of listening.pending) shut(socket)
      listening = undefined
    }
    for (const [fd, { owner }] of files) if (owner === process) closeFd(fd)
    for (const socket of process.ends) shut(socket)
  }

  function startEngine(process: Process, path: OpenPath | undefined): DataPath & { readonly open: OpenPath } {
    let fds: number[]
    if (path) fds = path.loops.flatMap(({ tun, sockets }) => [tun, sockets.ipv4!.receiver])
    else {
      if (heldBy(pathFile).length > 0)
        throw new WeftError('PORT_IN_USE', `${process.name}: ${heldBy(pathFile)[0]!.name} has the port`)
      pathFile = { what: 'path', holders: [] }
      fds = [openFd(pathFile, process), openFd(pathFile, process)]
    }
    const file = files.get(fds[0]!)!.file
    engines.set(process, file)
    doesKernelForward = false
    lastKnown = 'tun'
    say(process, 'forwards')
    const described = (): OpenPath => ({
      tunName: 'flannel0',
      bindAddresses: ['192.0.2.1'],
      port: 8285,
      features: [],
      without: [],
      loops: [{ tun: fds[0]!, sockets: { ipv4: { receiver: fds[1]! } } }],
    })
    const stop = (): void => {
      if (engines.delete(process)) say(process, 'forwards no more')
    }
    return {
      open: described(),
      families: ['ipv4'],
      unusable: () => new Set(),
      fault: new Promise(() => {}),
      apply: async () => {},
      resync: async () => [],
      carrier: () => ({ device: 'flannel0', engine: 'native', features: [] }),
      peers: () => [],
      counters: () => ({}),
      handover: {
        isLendable: true,
        async leave() {
          await busy(process, 5, 60)
          stop()
          return [described()]
        },
        async takeBack() {
          say(process, 'forwards again')
          engines.set(process, file)
        },
      },
      async close() {
        await busy(process, 5, 60)
        stop()
        for (const fd of fds) closeFd(fd)
        fds = []
      },
    }
  }

  /**
   * Makes a device of the kernel. The kernel then forwards, even if the process dies, until a TUN gets the network's
   * route.
   */
  async function openKernel(process: Process, wake: () => void): Promise<DataPath> {
    await busy(process, 10, 300)
    const others = [...engines.keys()].filter(isActive)
    if (others.length > 0 && arePidsSeen) violations.push(`two forward: the kernel and ${others[0]!.name}`)
    doesKernelForward = true
    lastKnown = 'kernel'
    kernels.set(process, wake)
    say(process, 'has the kernel forward')
    return {
      families: ['ipv4'],
      unusable: () => new Set(),
      fault: new Promise(() => {}),
      apply: async () => {},
      // A process that hung may have replaced the device, and has ended since.
      async resync() {
        if (doesKernelForward || [...engines.keys()].some(isActive)) return []
        doesKernelForward = true
        return ['flannel.1 was gone']
      },
      carrier: () => ({ device: 'flannel.1', engine: 'kernel', features: [] }),
      peers: () => [],
      counters: () => ({}),
      close: async () => void kernels.delete(process),
    }
  }

  /** Waits for a random time in ms, as a call to the host takes. */
  const busy = (process: Process, least: number, most: number): Promise<void> =>
    new Promise((resolve) => onMachine(process, resolve, between(least, most)))

  function begin(plan: Plan): Process {
    const process: Process = {
      name: `${String.fromCodePoint(65 + (lastPid % 26))}${++lastPid}`,
      pid: lastPid,
      machine: time.newMachine(),
      stopping: new AbortController(),
      isDead: false,
      isFrozen: false,
      isManaged: plan.isManaged,
      isWaiting: false,
      ends: [],
      ended: false,
      isStruck: false,
      isUnable: plan.failsAt === 'open',
      version: plan.version,
      plan,
    }
    setMaxListeners(0, process.stopping.signal)
    processes.push(process)
    say(process, `starts: ${JSON.stringify(plan)}`)
    process.machine.run(() => void live(process, plan).catch((error: unknown) => finish(process, plan, error)))
    return process
  }

  /** Ends the process, or lets it wait until it is stopped, as weftd.ts does. */
  function finish(process: Process, plan: Plan, error: unknown): void {
    if (process.isDead) return
    say(process, `ends: ${(error as Error).message}`)
    if (!(error instanceof Superseded)) {
      // A process that no fate struck ends only with one of the known errors.
      if (
        !process.isStruck &&
        plan.failsAt === undefined &&
        plan.store === 'one' &&
        !isOver &&
        !REFUSALS.test((error as Error).message)
      )
        violations.push(`${process.name} ended for no reason: ${(error as Error).message}`)
      return exit(process, plan)
    }
    error.confirm()
    reached.add('taken over')
    if (!process.isManaged) return exit(process, plan)
    process.isWaiting = true
    const look = (): void => {
      if (heldBy(lockFile).length > 0) return onMachine(process, look, 20)
      say(process, 'finds that nobody forwards, and goes on')
      reached.add('goes on')
      exit(process, plan, 0)
    }
    look()
  }
  function exit(process: Process, plan: Plan, restartMs = RESTART_MS): void {
    const leaked = [...files.values()].filter(({ owner }) => owner === process)
    if (leaked.length > 0)
      violations.push(`${process.name} left ${leaked.length} descriptors open: ${leaked[0]!.file.what}`)
    process.isWaiting = false
    die(process)
    // A process that hung in another PID namespace may have made the kernel's device after another process had taken over. The loop of that
    // process removes the device as a leftover.
    if (!arePidsSeen && [...engines.keys()].some(isActive)) doesKernelForward = false
    if (process.isManaged && !isOver)
      time.at(restartMs, () => void (isOver || begin({ ...plan, failsAt: undefined, storeMs: 10, store: 'one' })))
  }

  /** Runs the process as runDaemon does, without Linux. */
  async function live(process: Process, plan: Plan): Promise<never> {
    const { stopping } = process
    const { signal } = stopping
    const logTo = (line: string): void => {
      say(process, line)
      if (/forwarding again/.test(line)) reached.add('taken back')
      if (/as last known/.test(line)) reached.add('as last known')
      if (/hands nothing over/.test(line)) reached.add('refused')
      if (/cannot hand over/.test(line)) reached.add('waits for the end')
    }
    const logger = { info: logTo, warn: logTo, error: logTo, v: () => false }
    const options = nodeOptions({ 'subnet-file': 'not written', 'probe-interval': 0 })
    const node = createNode({ options, store: 'store', kernel: hostKernel, log: logger, stopping })
    const { ownership } = node
    const makeBackend = (kind: Plan['kind'], inheritable: Inheritable): Backend => ({
      name: 'simulated',
      external: EXTERNAL,
      tunNames: kind === 'tun' ? ['flannel%d'] : undefined,
      prepare: async () => (await busy(process, 1, 50), LEASE.attrs),
      plan: planOf(async () => {
        if (kind === 'kernel') return openKernel(process, () => ownership.recheck.ring())
        const wanted = {
          bindAddresses: ['192.0.2.1'],
          port: 8285,
          without: [],
          tunName: 'flannel%d',
          workers: plan.workers,
        }
        const inherited = await inheritable.take({ ...wanted })
        await busy(process, 1, 300)
        if (plan.failsAt === 'open' && chance(0.5)) {
          struck.add('fail')
          if (inherited) fdsOf([inherited]).forEach(closeFd)
          throw new WeftError('DEVICE', 'it cannot be opened')
        }
        const path = startEngine(process, inherited)
        await busy(process, 10, 300) // its device is configured
        return path
      }),
    })
    const handover = await enterHandover({
      log: logger,
      stopping,
      rendezvous: rendezvousOf(process),
      dataPath: ownership,
      lender: {
        attend(isThere) {
          ownership.hasSuccessor = isThere
          if (!isThere) node.leaseDoubt.ring()
        },
        about: () => ({
          version: '1',
          store: plan.store,
          lease: { key: LEASE.key, publicIp: '192.0.2.1' },
          healthPort: 0,
        }),
        refusal: () => undefined,
        write: () => busy(process, 1, 100),
      },
      earlierRun: async () => earlierRun([], { tunNames: ['flannel0'] }, plan.store),
      async resume(inheritable) {
        await busy(process, 10, 200)
        if (lastKnown === 'kernel') return 'nothing'
        const backend = makeBackend('tun', inheritable)
        try {
          const attrs = await backend.prepare(signal)
          const lease = { ...LEASE, attrs, expiresAt: undefined, revision: 0n }
          await ownership.open(() => openPaths(backend, lease, hostKernel, { signal, log: logger }))
          if (!ownership.dataPath) return 'failed'
          logTo('forwards as last known')
          const forwarding = Object.assign(node, { config: CONFIGS.tun, backend, lease, attrs, pathLease: lease })
          keepDataPath(forwarding).catch((error: unknown) => stopping.abort(error))
          return 'forwards'
        } catch (error) {
          logTo(`cannot go on: ${(error as Error).message}`)
          return 'failed'
        }
      },
    })
    try {
      await busy(process, 20, 100)
      if (plan.failsAt === 'start') {
        struck.add('fail')
        throw new WeftError('PORT_IN_USE', 'the health port is taken')
      }
      await pause(signal, plan.storeMs)
      const parts = {
        manager: managerOf(store),
        config: CONFIGS[plan.kind],
        backend: makeBackend(plan.kind, handover),
        firewall: {
          resyncMs: 600_000,
          rules: {
            async raise() {
              await busy(process, 5, 400)
              if (plan.failsAt !== 'firewall') return
              struck.add('fail')
              throw new WeftError('COMMAND', 'iptables failed')
            },
            resync: async () => [],
            subnetMoved: async () => {},
          } as never,
        },
      }
      return await runNode(node, parts, {}, handover, undefined, permitAll)
    } catch (error) {
      stopping.abort(error)
      throw error
    } finally {
      await endDataPath(node, signal.reason)
      handover.close(!canForward(node))
    }
  }

  let isOver: boolean = false
  /** The time since which no process has forwarded, for each process that could forward. */
  const silentSince = new Map<Process, number>()
  let waitingSince: number | undefined

  const isActive = (process: Process): boolean => !process.isDead && !process.isFrozen
  function check(): void {
    const forwarding = [...engines.keys()].filter(isActive)
    if (forwarding.length > 1 && arePidsSeen)
      violations.push(`two forward: ${forwarding.map(({ name }) => name).join(' and ')}`)
    const could = [...new Set(heldBy(lockFile))].filter(isActive)
    const standing =
      heldBy(lockFile).length === 0
        ? processes.filter((each) => isActive(each) && !each.isWaiting && !each.stopping.signal.aborted)
        : []
    const somebody = [...could, ...standing].filter(
      (each) => !each.isWaiting && !each.isUnable && !each.stopping.signal.aborted,
    )
    // A frozen process in another PID namespace blocks device and port, because no process can kill it: if it opened its own path, or if it
    // got descriptors of a path that the process which lent them has closed since.
    const isStuck = ({ isFrozen, isDead }: Process): boolean => !arePidsSeen && isFrozen && !isDead
    const isKept = [...engines.keys()].some(isStuck)
    const isKeptFrom = (each: Process): boolean => heldBy(pathFile).some(isStuck) && !heldBy(pathFile).includes(each)
    const able = new Set(
      forwarding.length > 0 || doesKernelForward || isKept ? [] : somebody.filter((each) => !isKeptFrom(each)),
    )
    for (const each of silentSince.keys()) if (!able.has(each)) silentSince.delete(each)
    for (const each of able) {
      const since = silentSince.get(each) ?? time.now()
      silentSince.set(each, since)
      if (time.now() - since <= BOUND_MS + SLACK_MS) continue
      violations.push(`nobody forwards for ${time.now() - since} ms, though ${each.name} could`)
      silentSince.delete(each)
    }
    // A service manager considers the node as running, although its only process just waits and no other process
    // exists.
    const idle = processes.filter((each) => isActive(each) && each.isWaiting)
    const others = processes.filter((each) => !each.isDead && !each.isWaiting)
    if (idle.length === 0 || others.length > 0) waitingSince = undefined
    else waitingSince ??= time.now()
    if (waitingSince !== undefined && time.now() - waitingSince > 2_000) {
      violations.push(`${idle[0]!.name} waits to be stopped, and nobody is left`)
      waitingSince = undefined
    }
  }

  function kindOf(): Plan['kind'] {
    if (!areOfBothKinds || chance(0.5)) return 'tun'
    struck.add('kernel')
    return 'kernel'
  }
  function versionOf(): number {
    if (chance(0.95)) return VERSION
    struck.add('another version')
    return VERSION + 1
  }
  const alive = (): Process[] => processes.filter(({ isDead }) => !isDead)
  const freeze = (process: Process, ms: number): void => {
    if (process.isFrozen) return
    struck.add('freeze')
    say(process, `stands still for ${ms} ms`)
    process.isFrozen = true
    process.isStruck = true
    process.machine.freeze(ms)
    time.at(ms, () => {
      if (process.isDead) return
      struck.add('thaw')
      say(process, 'goes on')
      process.isFrozen = false
    })
  }
  function strike(): void {
    const there = alive()
    const victim = there[below(Math.max(1, there.length))]
    const dice = below(1_000) / 1_000
    if (dice < 0.3 || !victim) {
      if (there.length >= 4) return
      if (there.length > 1) struck.add('third')
      const isOther = chance(0.1)
      if (isOther) struck.add('another store')
      const workers = chance(0.7) ? 1 : 2
      if (workers > 1) struck.add('refit')
      begin({
        workers,
        failsAt: chance(0.75) ? undefined : random.of(['start', 'open', 'firewall'] as const),
        storeMs: chance(0.6) ? between(1, 200) : between(200, 20_000),
        store: isOther ? 'another' : 'one',
        isManaged: chance(0.4),
        kind: kindOf(),
        version: versionOf(),
        denied: deniedRandom.chance(0.1) ? deniedRandom.of(['connection', 'descriptors'] as const) : undefined,
      })
    } else if (dice < 0.5) {
      struck.add('kill')
      say(victim, 'is killed')
      die(victim)
      if (victim.isManaged)
        time.at(
          100,
          () => void (isOver || begin({ ...victim.plan, workers: 1, failsAt: undefined, storeMs: 10, store: 'one' })),
        )
    } else if (dice < 0.7) {
      struck.add('stop')
      say(victim, 'is told to stop')
      victim.isStruck = true
      // To a process that stands still the signal comes when it goes on.
      onMachine(victim, () => {
        if (victim.isWaiting) return die(victim)
        victim.stopping.abort(new Error('stopped by a signal'))
      })
    } else if (dice < 0.95) freeze(victim, chance(0.5) ? between(10, 3_000) : between(3_000, 15_000))
    else if (chance(0.5)) {
      full = victim
      time.at(between(100, 3_000), () => (full = undefined))
    } else {
      isBacklogFull = true
      time.at(between(100, 8_000), () => (isBacklogFull = false))
    }
  }

  async function run(): Promise<void> {
    arePidsSeen = chance(0.8)
    if (!arePidsSeen) struck.add('unseen')
    const sound = { workers: 1, failsAt: undefined, storeMs: between(1, 300), store: 'one', denied: undefined }
    begin({ ...sound, isManaged: chance(0.5), kind: kindOf(), version: VERSION })
    const pass = async (ms: number): Promise<void> => {
      for (let left = ms; left > 0; left -= 20) {
        await time.advance(Math.min(20, left))
        check()
      }
    }
    await pass(1_000)
    for (let strikes = 0; strikes < 12; strikes++) {
      strike()
      // Most fates strike while a hand-over takes place.
      await pass(chance(0.7) ? between(1, 600) : between(600, 8_000))
    }
    isBacklogFull = false
    full = undefined
    // The faults are over, so every process must reach a final state within this time.
    await pass(30_000)
    const forward = (): number => [...engines.keys()].filter(isActive).length + Number(doesKernelForward)
    const there = (): number => alive().filter(({ isWaiting }) => !isWaiting).length
    // The last process may have ended just now, so its successor gets time to start.
    for (let left = BOUND_MS; left > 0 && there() > 0 && forward() === 0; left -= 20) await pass(20)
    if (there() > 0 && forward() !== 1) violations.push(`in the end ${forward()} of ${there()} forward`)
    isOver = true
    for (const each of alive()) {
      each.stopping.abort(new Error('the simulation is over'))
      if (each.isWaiting) die(each)
    }
    await pass(10_000)
    for (const each of alive()) violations.push(`${each.name} does not end`)
  }

  return {
    run,
    closeAll: (fds: readonly number[]) => fds.forEach(closeFd),
    get outcome(): Outcome {
      return { struck, reached, violations, log }
    },
  }
}
