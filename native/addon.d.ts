// addon.d.ts - the contract: all that crosses between JavaScript and C++.
//
// JavaScript decides and checks, C++ trusts what it is given. No packet, log line, retry or timer crosses; of packets that
// were dropped the headers do, when they are asked for.
// Every function throws an Error with `code` (an errno name such as 'EPERM') and `syscall` when the kernel refuses.

/** The options with which the TUN and the sockets are opened. */
export interface OpenOptions {
  /** Interface name, or a pattern such as `flannel%d` of which the kernel takes the first free one. */
  tunName: string
  /** Address of either family that the UDP socket is bound to, as text. */
  bindAddress: string
  /** UDP port, both the one bound to and the one sent to unless a peer record names another. */
  port: number
  /** Number of loops, each with one TUN queue, one socket and its thread; 1 to 16. */
  workers: number
  /** Features to ask for, of `featureNames`. */
  features: readonly string[]
}

/**
 * Open descriptors, as numbers: whoever has this object has to close them, or to give them to `runEngine`. A process
 * may hand them to another, which runs an engine on them with the numbers that they have there.
 */
export interface Descriptors {
  /** The interface's name as the kernel gave it. */
  readonly tunName: string
  /** The features that the kernel granted of those asked for, less those that failed since. */
  readonly features: readonly string[]
  readonly loops: readonly LoopDescriptors[]
  /** Memory with the sessions of the engine that ran on them, of which one engine gets the keys: native/io/bequest.h. */
  readonly bequest?: number
}

/** The descriptors of a loop. */
export interface LoopDescriptors {
  readonly tun: number
  readonly socket: number
  /** Where a loop sends by a socket of its own. */
  readonly sender?: number
  /** The two of the other family, where datagrams are of both. */
  readonly otherSocket?: number
  readonly otherSender?: number
}

/** An IPv4 address in host order, or an IPv6 address. */
export type Address = number | bigint

/** A network: its first address, and its prefix length. */
export interface Net {
  readonly address: Address
  readonly prefixLength: number
}

/** What there is of each family. */
export interface ByFamily<T> {
  readonly ipv4?: T | undefined
  readonly ipv6?: T | undefined
}

/** Chooses the packets from peers that are let in: native/core/filter.h. */
export interface FilterOptions {
  /** `strict`; `inner`: whatever the datagram's source; `off`: all are. */
  readonly verifySource: 'strict' | 'inner' | 'off'
  /** The cluster's. */
  readonly network: ByFamily<Net>
  /** This node's part of it. */
  readonly subnet: ByFamily<Net>
}

/** A sender of whom a packet was not let in, and why. */
export interface Stranger {
  /** The datagram's source. */
  readonly from: Address
  /** The packet's. */
  readonly source: Address
  readonly destination: Address
  /** The counter that has it, of `counterNames`. */
  readonly reason: string
}

/** A packet that was dropped, as far as it was kept: native/core/drops.h. */
export interface DroppedPacket {
  /** Microseconds since 1970; of those that were read at once the same. */
  readonly atUs: number
  /** The counter that has it, of `counterNames`; those to peers begin with `tx_`, those from peers with `rx_`. */
  readonly reason: string
  /** The number of packets in it: a superpacket counts as its segments. */
  readonly packets: number
  /** Its bytes on the wire; of a superpacket all, of a datagram that the receive buffer cut what that took. */
  readonly length: number
  /** The host that the datagram came from, or would have gone to; 0 when that is not known. */
  readonly peer: Address
  /** The number of first bytes that the encapsulation put before a packet: where no packet was found, they are still there. */
  readonly encapBytes: number
  /** The bytes that it begins with. */
  readonly headers: Uint8Array
}

/** The packets that were dropped last, and what to name to be told of later ones alone. */
export interface Drops {
  readonly next: readonly number[]
  readonly packets: readonly DroppedPacket[]
}

/** The options with which an engine runs. All of them are fixed for its life but the peer table. */
export interface RunOptions {
  /** The encapsulation of inner packets, by its name in native/encap/all.h. */
  encapsulation: string
  /** The addresses that ICMP errors to peers are sent from (the TUN's own). */
  tunAddress: ByFamily<Address>
  /** The same of ICMP errors into the TUN: of IPv4 none of this host's, whose kernel takes those for forged. */
  networkAddress: ByFamily<Address>
  filter: FilterOptions
  /** True when TCP connections are to begin with segments that fit (native/core/mss.h). */
  clampMss: boolean
  /** The encapsulation's facts about this host, as its file in native/encap has them: at most 40 bytes. */
  ownEnd: Uint8Array
  /** The MTU of the TUN, in bytes. */
  mtu: number
  /** The first peer table, as `setPeers` takes it: packets may be waiting in the descriptors. */
  peers: Uint8Array
  /** True if the TUN must choose lanes so that flows with fragments stay in order (native/io/steering.h). Used only with several lanes. */
  steers?: boolean
  /** True when the sessions that came with the descriptors are gone on with; otherwise they end, for everybody. */
  keepsSessions: boolean
  /** True when the TUN stays, with its addresses and routes, when all of its queues are closed. */
  persistent: boolean
  /** Priority of the threads, -20 (first) to 19; 0: that of the process. */
  nice: number
  /** Microseconds that a thread looks again for, giving way, before it sleeps; 0: it sleeps at once. */
  pollUs: number
}

/** The keys of a session, as a handshake yields them; of 32 bytes each. */
export interface SessionKeys {
  /** True for the keys of who began the handshake: they are in use at once, others from the first packet that the peer seals with them. */
  readonly isInitiator: boolean
  /** The numbers by which the peer names this pair of keys to us, and we to it; 32 bits. */
  readonly ownIndex: number
  readonly peerIndex: number
  readonly sendKey: Uint8Array
  readonly receiveKey: Uint8Array
}

/** An address and a UDP port. */
export interface UdpEndpoint {
  readonly address: Address
  readonly port: number
}

/** What the engine says of handshakes: native/core/mailbox.h. */
export interface Mail {
  /**
   * Messages of handshakes, those of peers' hosts first; and of packets that came for no session the first bytes, which begin with 4:
   * their sender may believe in one of before a reset.
   */
  readonly letters: readonly (UdpEndpoint & { readonly bytes: Buffer })[]
  /** The numbers of sessions that want a handshake. */
  readonly wanted: readonly number[]
  /** The numbers of those whose next keys are in use from now on, since the peer has used them. */
  readonly confirmed: readonly number[]
  /** Sessions whose peer has proved to send from elsewhere. */
  readonly moved: readonly (UdpEndpoint & { readonly session: number })[]
}

export interface NativeEngine {
  /** The features in use now, of `featureNames`: the granted ones, less those that failed since or that the device's switches forbid. */
  readonly offloads: string[]
  /** Reads the device's switches (`ethtool -k`: generic-receive-offload, rx-udp-gro-forwarding) and joins received packets accordingly. */
  followSwitches(): void
  /**
   * Live counters, `counterNames.length` a loop, loops one after another; written by the loops' threads,
   * to be read only.
   */
  readonly counters: BigUint64Array
  /** True when it goes on with the sessions that came with the descriptors: they were there, whole, and nobody else's. */
  readonly hasKeptSessions: boolean
  /** The reason why the TUN does not choose lanes by `steers`; undefined if it does. */
  readonly steeringRefused?: string
  /** The reason why the threads run at the process's priority instead of the one asked for. */
  readonly priorityRefused?: string
  /**
   * Makes the peer table equal these records (see path/engine/peers.ts); in force at each loop's next batch. A peer that is the same
   * keeps what was learnt of the path to it.
   */
  setPeers(records: Uint8Array): void
  /** Puts these peers, or takes away those whose record says so; all others stay. Costs what they cost, not the table. */
  changePeers(records: Uint8Array): void
  /** Sends one datagram from the port that peers know. Never waits; false when the kernel refused it. */
  send(to: Address, port: number, datagram: Uint8Array): boolean
  /**
   * The rounds that each thread has gone until now, by the thread's name (that of /proc/PID/task/TID/comm). Then wakes
   * each: a thread that is alive goes round once more.
   */
  askThreads(): Record<string, number>
  /**
   * Traffic to and from each peer, by the slot that its record names: five numbers a slot, packets and bytes sent,
   * packets and bytes let in, and the milliseconds since the last of those came (-1: none did). As far as slots were
   * named. One slot alone, if there is such a one, when it is given.
   */
  traffic(slot?: number): Float64Array
  /** Gives a session keys; `session` is the number that the records of its peer have. */
  setKeys(session: number, keys: SessionKeys): void
  /** Wipes the keys of a session, and what waits in it. */
  forgetSession(session: number): void
  /** What was said since the last call, and at most so many messages of hosts that are no peers; the others of theirs are thrown away. */
  takeMail(mostOfOthers: number): Mail
  /** The strangers since the last call, as far as there is room for them: a few dozen a loop. */
  takeStrangers(): Stranger[]
  /** The last packets that were dropped, of each loop and direction, from those numbers on; an empty list for all that are kept. */
  drops(after: readonly number[]): Drops
  /**
   * Stops and joins the threads, after at most one batch, and gives the descriptors back, open, for another engine:
   * packets wait in them meanwhile. Its sessions go with them, and `head`, which tells whoever goes on with those what it has to
   * know. Instead of `stop`; rejects with EBADF where the engine was ended before.
   */
  release(head?: Uint8Array): Promise<Descriptors>
  /** Stops and joins the threads likewise and closes the descriptors, with which the TUN disappears. Nothing is done twice. */
  stop(): Promise<void>
}

export interface Tun {
  readonly fd: number
  readonly name: string
}

/** Watches a descriptor for input on the event loop. */
export interface ReadWatcher {
  /** Idempotent; does not close the descriptor. */
  stop(): void
}

/** The names of the counters, in the order in which they stand in `NativeEngine.counters`. */
export const counterNames: string[]

/** The text of each counter, in the same order. */
export const counterTexts: string[]

/**
 * The layout that both languages count on: the offsets of a peer's record, and the limits that the dgram engine keeps
 * as the native one does. The files of native/core that have them explain each.
 */
export const layout: {
  /** `isGone` and `isFromKnownPort` are flags, all others but `bytes` are offsets: native/core/peers.h. */
  readonly peerRecord: Readonly<
    Record<
      | 'bytes'
      | 'subnetFamily'
      | 'prefixLength'
      | 'endpointFamily'
      | 'flags'
      | 'port'
      | 'limit'
      | 'subnet'
      | 'endpoint'
      | 'encap'
      | 'slot'
      | 'other'
      | 'isGone'
      | 'isFromKnownPort',
      number
    >
  >
  /** The number of slots that there may be, and of numbers that `traffic` has for each. */
  readonly traffic: { readonly slots: number; readonly numbers: number }
  /** The number of drops that are kept each way, the interval at which more are kept, and the bytes of each. */
  readonly drops: { readonly kept: number; readonly everyUs: number; readonly headerBytes: number }
  /**
   * The interval at which the kernel is asked about a path, the size that fits any, the least that a path must take,
   * and the bytes of IPv4 and UDP.
   */
  readonly path: {
    readonly askEveryMs: number
    readonly alwaysFits: number
    readonly least: number
    readonly outerBytes: number
  }
  /** The ICMP errors that one sender is told at once, one in which time, and those for all of them. */
  readonly icmp: {
    readonly senderBurst: number
    readonly senderEveryMs: number
    readonly burst: number
    readonly everyMs: number
  }
}

/** The names of the encapsulations that the engine speaks: native/encap/all.h. */
export const encapsulationNames: string[]

/** The names of the engine's features; native/core/features.h says what each is. */
export const featureNames: string[]

/** Opens the TUN and the sockets. The receive buffer is one socket's, in bytes. */
export function openDescriptors(
  options: OpenOptions,
): Descriptors & { readonly receiveBufferAsked: number; readonly receiveBufferGranted: number }

/** Opens the sockets of one family alone, for loops that have a TUN and sockets of the other. */
export function openSockets(options: Omit<OpenOptions, 'tunName'>): {
  readonly features: readonly string[]
  readonly loops: readonly { readonly socket: number; readonly sender?: number }[]
}

/** What stands before the sessions of an engine that was released, and can be read before they are taken; undefined where it is none. */
export function bequestHead(fd: number): Buffer | undefined

/**
 * Starts the threads on descriptors that are the engine's from now on, also when this throws. `onFault` is called at
 * most once, when a loop cannot go on (the TUN was deleted, an unexpected errno); the engine must still be stopped. `onMail` is
 * called when there is something to take with `takeMail`, of an encapsulation with sessions.
 */
export function runEngine(
  descriptors: Descriptors,
  options: RunOptions,
  onFault: (error: Error) => void,
  onMail?: () => void,
): NativeEngine

/** Opens a TUN without packet information or virtio header, non-blocking, for the dgram engine. */
export function openTun(name: string, persistent: boolean): Tun

/** Makes the TUN of this queue stay, or not, with its addresses and routes, when all of its queues are closed. */
export function setTunPersistent(fd: number, persistent: boolean): void

/** The MTU of the path from an address of this host to another of its family, as the kernel knows it; 0 when it does not. */
export function pathMtu(from: string, to: string): number

/** Calls `onReadable` from the event loop whenever `fd` has input (level-triggered, libuv's uv_poll), which files have not. */
export function watchReadable(fd: number, onReadable: () => void): ReadWatcher

/**
 * Takes an exclusive open-file-description lock on the whole file (fcntl F_OFD_SETLKW, Linux 3.15), waiting in a
 * thread of libuv's pool. It ends when the descriptor is closed, or the process dies.
 */
export function lockFile(fd: number): Promise<void>

/**
 * Takes the same lock if nobody has it (F_OFD_SETLK); false when somebody does. It belongs to the open file: whoever is sent the
 * descriptor has it too, and it ends when the last of them is closed. Throws an Error with `code`.
 */
export function tryLockFile(fd: number): boolean

/**
 * Sends one datagram to a Unix socket, named by its path, or by `@` and its abstract name, and descriptors with it. Never
 * waits: a reader that is behind makes it fail with EAGAIN.
 */
export function notify(socket: string, message: string, fds: readonly number[]): void

// Sequenced packets between processes of this host (unix(7)), each a text and descriptors. All descriptors are closed by
// whoever has them, and none of these calls waits.

/** Listens at a path, for this user alone; what stood there before is removed. */
export function listenUnix(path: string): number

/** A connection to whoever listens there; throws ECONNREFUSED or ENOENT when nobody does, EAGAIN when others wait already. */
export function connectUnix(path: string): number

/** The next connection, or undefined when none waits. */
export function acceptUnix(listener: number): number | undefined

/** The process at the other end of a connection, by its id as it is here (SO_PEERCRED); 0 when it has none here. */
export function peerPid(connection: number): number

/** Takes at most 64 KiB of text and 253 descriptors, which stay open here; the receiver has its own. */
export function sendParcel(connection: number, text: string, fds: readonly number[]): void

/** Undefined when none waits; an empty text at the end of the connection. */
export function receiveParcel(connection: number): { text: string; fds: number[] } | undefined

/** A socket for echo requests of one family, by ICMP or ICMPv6; `raw` where the kernel's own kind for this is not allowed. */
export interface EchoSocket {
  readonly fd: number
  readonly raw: boolean
  /** The identifier in each of its requests. */
  readonly mark: number
}

/** An answer to a request: the address that it came from, as text, and the time since the request was sent. */
export interface EchoAnswer {
  readonly from: string
  readonly sequence: number
  readonly microseconds: number
}

/**
 * Opens one that sends from this address of either family, as text. Throws the errno of the raw one: EPERM where neither
 * net.ipv4.ping_group_range nor CAP_NET_RAW allows it, EAFNOSUPPORT where the kernel lacks the family.
 */
export function openEcho(source: string): EchoSocket

/**
 * Sends a request to an address of the socket's family, as text, with a sequence number of 16 bits: a packet of `bytes`, or of as few
 * as it takes, that nobody may fragment.
 */
export function sendEcho(socket: EchoSocket, to: string, sequence: number, bytes?: number): void

/**
 * The whole IP packet of such a request from an address of this host's, as few bytes as it takes, for whoever sends it in a datagram
 * of IP version `outer`: the socket takes the answer, which a native engine sends by that version too. Empty when the socket is none.
 */
export function echoPacket(socket: EchoSocket, from: Address, to: Address, sequence: number, outer: 4 | 6): Uint8Array

/** The answers to this socket's requests that have come, 64 at most. */
export function takeEchoes(socket: EchoSocket): EchoAnswer[]

/**
 * Gives back to the kernel what malloc keeps of freed memory, and the pages of the program's own files, which come again from the page
 * cache when they are used. Takes some milliseconds.
 */
export function giveBackMemory(): void

/** Ends the process at once (_exit(2)). process.exit joins libuv's threads, of which one may wait for ever for a file server. */
export function exitNow(code: number): never
