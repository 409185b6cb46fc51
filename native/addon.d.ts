// addon.d.ts - the interface between JavaScript and C++.
//
// JavaScript decides and validates; C++ trusts its arguments. No packet, log line, retry or timer crosses the
// interface, only the headers of dropped packets on request. If the kernel refuses a call, the function throws an Error
// with `code` (an errno name such as 'EPERM') and `syscall`.

/** Options for opening the TUN and the sockets. */
export interface OpenOptions {
  /** An interface name, or a pattern such as `flannel%d`, for which the kernel takes the first free number. */
  tunName: string
  /** The local address of the UDP sockets, of either family, as text. */
  bindAddress: string
  /** The local UDP port, which is also the peers' port unless a peer record names another one. */
  port: number
  /** The number of loops (1 to 16). Each has a TUN queue, a socket and a thread. */
  workers: number
  /** The requested features, from `featureNames`. */
  features: readonly string[]
}

/**
 * Open descriptors, as numbers. The owner of this object must close them or pass them to `runEngine`. A process may
 * hand them to another process, which has its own numbers for them.
 */
export interface Descriptors {
  /** The interface name that the kernel chose. */
  readonly tunName: string
  /** The features that the kernel granted, except those that failed since. */
  readonly features: readonly string[]
  readonly loops: readonly LoopDescriptors[]
  /** The saved sessions of the previous engine. Exactly one engine gets the keys (native/io/handover_state.h). */
  readonly handoverState?: number
}

/** The descriptors of one loop. */
export interface LoopDescriptors {
  readonly tun: number
  readonly socket: number
  /** The sending socket, if the loop has one of its own. */
  readonly sender?: number
  /** The sockets of the other family, if datagrams are of both families. */
  readonly otherSocket?: number
  readonly otherSender?: number
}

/** An IPv4 address as a number in host order, or an IPv6 address as a bigint. */
export type Address = number | bigint

/** A network, by its first address and its prefix length. */
export interface Net {
  readonly address: Address
  readonly prefixLength: number
}

/** A value for each family that the network has. */
export interface ByFamily<T> {
  readonly ipv4?: T | undefined
  readonly ipv6?: T | undefined
}

/** Which packets from peers enter (native/core/filter.h). */
export interface FilterOptions {
  /**
   * `strict`: inner and outer addresses must match. `inner`: only the inner addresses must. `off`: all packets enter.
   */
  readonly verifySource: 'strict' | 'inner' | 'off'
  /** The networks of the cluster. */
  readonly network: ByFamily<Net>
  /** The subnets of this node. */
  readonly subnet: ByFamily<Net>
}

/** A sender whose packet was refused. */
export interface UnknownSender {
  /** The datagram's source address. */
  readonly from: Address
  /** The packet's source address. */
  readonly source: Address
  readonly destination: Address
  /** Why it was refused: a name from `counterNames`. */
  readonly reason: string
}

/** A dropped packet (native/core/drops.h). */
export interface DroppedPacket {
  /** The time in microseconds since 1970. Drops of one batch have the same time. */
  readonly atUs: number
  /**
   * The counter of the drop, from `counterNames`. Packets to peers have names with `tx_`, packets from peers with
   * `rx_`.
   */
  readonly reason: string
  /** The number of packets; a superpacket counts as its segments. */
  readonly packets: number
  /** The length in bytes. For a superpacket it is the total, for a truncated datagram the received part. */
  readonly length: number
  /** The other host: the datagram's sender or receiver; 0 if it is not known. */
  readonly peer: Address
  /** The length of the encapsulation's header at the beginning of `headers`; 0 if it was removed. */
  readonly encapBytes: number
  /** The first bytes of the packet. */
  readonly headers: Uint8Array
}

/** The kept drops, and the numbers to pass to the next call so that it returns only later drops. */
export interface Drops {
  readonly next: readonly number[]
  readonly packets: readonly DroppedPacket[]
}

/** Options for running an engine. Only the peer table can be changed later. */
export interface RunOptions {
  /** The name of the encapsulation, from `encapsulationNames`. */
  encapsulation: string
  /** The source addresses of ICMP errors to peers: the TUN's own addresses. */
  tunAddress: ByFamily<Address>
  /**
   * The source addresses of ICMP errors into the TUN. The IPv4 address must not be this host's own, because the kernel
   * would refuse it.
   */
  networkAddress: ByFamily<Address>
  filter: FilterOptions
  /** True if the MSS of new TCP connections is lowered to what fits (native/core/mss.h). */
  clampMss: boolean
  /** The encapsulation's facts about this host, in the layout of its file in native/encap; at most 72 bytes. */
  ownEnd: Uint8Array
  /** The MTU of the TUN, in bytes. */
  mtu: number
  /**
   * The first peer table, in the format of `setPeers`. It is set before the threads start, because packets may already
   * wait.
   */
  peers: Uint8Array
  /**
   * True if the TUN must choose lanes so that flows with fragments stay in order (native/io/steering.h). Used only with
   * several lanes.
   */
  steers?: boolean
  /** True if the engine continues the sessions that came with the descriptors; otherwise those sessions end. */
  keepsSessions: boolean
  /** True if the TUN keeps existing, with its addresses and routes, after all of its queues are closed. */
  persistent: boolean
  /** The nice value of the threads, -20 (highest priority) to 19; 0 means that of the process. */
  nice: number
  /** How long a thread polls before it sleeps, in microseconds; 0 means that it does not poll. */
  pollUs: number
}

/** The keys that a handshake yields, of 32 bytes each. */
export interface SessionKeys {
  /** True if this host began the handshake. Such keys are used immediately, others when the peer has used them. */
  readonly isInitiator: boolean
  /**
   * The 32-bit numbers of this pair of keys: the peer's messages name `ownIndex`, this host's messages name
   * `peerIndex`.
   */
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

/** The engine's reports about handshakes (native/core/mailbox.h). */
export interface Mail {
  /**
   * Handshake messages, those from peers' addresses first. Also the first bytes of data messages (type 4) for unknown
   * sessions, because their sender may use a session that a restart ended.
   */
  readonly controlMessages: readonly (UdpEndpoint & { readonly bytes: Buffer })[]
  /** The sessions that need a handshake. */
  readonly wanted: readonly number[]
  /** The sessions whose next keys are in use from now on, because the peer has used them. */
  readonly confirmed: readonly number[]
  /** The sessions whose peer sends from a new address, as authenticated packets show. */
  readonly moved: readonly (UdpEndpoint & { readonly session: number })[]
}

export interface NativeEngine {
  /**
   * The features in use, from `featureNames`: the granted ones, except those that failed since or that the device's
   * switches forbid.
   */
  readonly offloads: string[]
  /**
   * Reads the device's switches (`ethtool -k`: generic-receive-offload, rx-udp-gro-forwarding) and joins received
   * packets accordingly.
   */
  followSwitches(): void
  /**
   * Live counters, `counterNames.length` per loop, one loop after another. The threads write them; do not write to
   * them.
   */
  readonly counters: BigUint64Array
  /** True if the engine continues the sessions that came with the descriptors. */
  readonly hasKeptSessions: boolean
  /** Why the TUN does not choose lanes by `steers`; undefined if it does. */
  readonly steeringRefused?: string
  /** Why the threads do not run at the requested priority; undefined if they do. */
  readonly priorityRefused?: string
  /**
   * Replaces the peer table by these records (path/engine/peers.ts). Each loop uses it from its next batch on. A peer
   * with an unchanged record keeps the path MTU that was learnt.
   */
  setPeers(records: Uint8Array): void
  /**
   * Adds, changes or removes the peers of these records. All others stay. The cost depends on the number of records,
   * not on the size of the table.
   */
  changePeers(records: Uint8Array): void
  /** Sends one datagram from the well-known port. Does not block. Returns false if the kernel refused it. */
  send(to: Address, port: number, datagram: Uint8Array): boolean
  /**
   * Returns the number of rounds of each thread so far, by thread name (/proc/PID/task/TID/comm), and wakes each
   * thread. A thread that is alive goes round at least once more.
   */
  askThreads(): Record<string, number>
  /**
   * Returns five numbers per slot: packets and bytes sent, packets and bytes received, and the milliseconds since the
   * last packet was received (-1 for never). It covers all slots that records have named, or only `slot`.
   */
  traffic(slot?: number): Float64Array
  /** Installs keys. `session` is the number in the peer's records. */
  setKeys(session: number, keys: SessionKeys): void
  /** Wipes the keys of a session and drops its waiting packets. */
  forgetSession(session: number): void
  /**
   * Returns everything since the last call. Of the messages from unknown hosts it returns at most `mostOfOthers` and
   * discards the rest.
   */
  takeMail(mostOfOthers: number): Mail
  /** Returns the unknown senders since the last call, at most a few dozen per loop. */
  takeUnknownSenders(): UnknownSender[]
  /** Returns the kept drops of each loop and direction, from these numbers on. An empty list returns all of them. */
  drops(after: readonly number[]): Drops
  /**
   * Stops and joins the threads after at most one batch, and returns the descriptors, still open, for another engine.
   * Packets wait in them in the meantime. The sessions are saved with the descriptors, and `head` describes them to the
   * successor. Rejects with EBADF if the engine has already ended.
   */
  release(head?: Uint8Array): Promise<Descriptors>
  /** Stops and joins the threads in the same way, and closes the descriptors, which deletes the TUN. Idempotent. */
  stop(): Promise<void>
}

export interface Tun {
  readonly fd: number
  readonly name: string
}

/** Watches a descriptor for input on the event loop. */
export interface ReadWatcher {
  /** Stops watching. Idempotent; does not close the descriptor. */
  stop(): void
}

/** The names of the counters, in the order of `NativeEngine.counters`. */
export const counterNames: string[]

/** The description of each counter, in the same order. */
export const counterTexts: string[]

/**
 * The layouts and limits that both languages share: the offsets of a peer's record, and the limits that the dgram
 * engine shares with the native one. The files of native/core explain each of them.
 */
export const layout: {
  /** `isGone` and `isFromKnownPort` are flags, `bytes` is the size, all others are offsets (native/core/peers.h). */
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
  /** The maximum number of slots, and how many numbers `traffic` returns for each. */
  readonly traffic: { readonly slots: number; readonly numbers: number }
  /**
   * The number of drops that are kept per direction, the interval after a burst, and the maximum number of bytes of
   * each drop.
   */
  readonly drops: { readonly kept: number; readonly everyUs: number; readonly headerBytes: number }
  /**
   * The interval between queries of a path MTU, the packet size that always fits, the smallest plausible MTU, and the
   * length of the outer IPv4 and UDP headers.
   */
  readonly path: {
    readonly askEveryMs: number
    readonly alwaysFits: number
    readonly least: number
    readonly outerBytes: number
  }
  /** The limits on ICMP errors: burst and interval for one sender, then for all senders together. */
  readonly icmp: {
    readonly senderBurst: number
    readonly senderEveryMs: number
    readonly burst: number
    readonly everyMs: number
  }
}

/** The names of the encapsulations (native/encap/all.h). */
export const encapsulationNames: string[]

/** The names of the features (native/core/features.h). */
export const featureNames: string[]

/** Opens the TUN and the sockets. The sizes of the receive buffer are those of one socket, in bytes. */
export function openDescriptors(
  options: OpenOptions,
): Descriptors & { readonly receiveBufferAsked: number; readonly receiveBufferGranted: number }

/** Opens the sockets of one more family, for loops that have a TUN and sockets of the other family. */
export function openSockets(options: Omit<OpenOptions, 'tunName'>): {
  readonly features: readonly string[]
  readonly loops: readonly { readonly socket: number; readonly sender?: number }[]
}

/** Reads the head of saved sessions without taking the keys. Returns undefined if the memory has another format. */
export function handoverHead(fd: number): Buffer | undefined

/**
 * Starts the threads. The engine owns the descriptors from now on, even if this throws. `onFault` is called at most
 * once, when a loop cannot continue (the TUN was deleted, or an unexpected errno); the engine must still be stopped.
 * `onMail` is called when `takeMail` has something to return, for an encapsulation with sessions.
 */
export function runEngine(
  descriptors: Descriptors,
  options: RunOptions,
  onFault: (error: Error) => void,
  onMail?: () => void,
): NativeEngine

/** Opens a non-blocking TUN without packet information and virtio header, for the dgram engine. */
export function openTun(name: string, persistent: boolean): Tun

/** Sets whether the TUN keeps existing, with its addresses and routes, after all of its queues are closed. */
export function setTunPersistent(fd: number, persistent: boolean): void

/**
 * Returns the path MTU in bytes from an address of this host to another address of its family, as the kernel knows it;
 * 0 if the kernel does not know it.
 */
export function pathMtu(from: string, to: string): number

/**
 * Calls `onReadable` from the event loop while `fd` has input (level-triggered, libuv's uv_poll). Regular files cannot
 * be watched.
 */
export function watchReadable(fd: number, onReadable: () => void): ReadWatcher

/**
 * Takes an exclusive open-file-description lock on the whole file (fcntl F_OFD_SETLKW, Linux 3.15), waiting in a thread
 * of libuv's pool. The lock ends when the descriptor is closed or the process ends.
 */
export function lockFile(fd: number): Promise<void>

/**
 * Takes the same lock if it is free (F_OFD_SETLK); returns false otherwise. The lock belongs to the open file: a
 * process that receives the descriptor holds it too, and it ends when the last descriptor is closed. Throws an Error
 * with `code`.
 */
export function tryLockFile(fd: number): boolean

/**
 * Sends one datagram with descriptors to a Unix socket, named by its path, or by `@` and its abstract name. Does not
 * block: if the reader is behind, it throws EAGAIN.
 */
export function notify(socket: string, message: string, fds: readonly number[]): void

// Sequenced packets between processes of this host (unix(7)), each a text and descriptors. The owner of a descriptor
// must close it. None of these functions blocks.

/** Listens at a path. Only this user may connect. An existing socket file is removed. */
export function listenUnix(path: string): number

/** Connects to a listener. Throws ECONNREFUSED or ENOENT if there is none, EAGAIN if its queue is full. */
export function connectUnix(path: string): number

/** Returns the next connection, or undefined if none waits. */
export function acceptUnix(listener: number): number | undefined

/**
 * Returns the pid of the process at the other end in this process's namespace (SO_PEERCRED); 0 if it has none there.
 */
export function peerPid(connection: number): number

/** Sends at most 64 KiB of text and 253 descriptors. The descriptors stay open here; the receiver gets its own. */
export function sendParcel(connection: number, text: string, fds: readonly number[]): void

/** Returns undefined if no packet waits, and an empty text at the end of the connection. */
export function receiveParcel(connection: number): { text: string; fds: number[] } | undefined

/**
 * A socket for echo requests of one family (ICMP or ICMPv6). `raw` is true if the kernel does not allow ping sockets.
 */
export interface EchoSocket {
  readonly fd: number
  readonly raw: boolean
  /** The identifier in each of its requests. */
  readonly mark: number
}

/** A reply: the address that it came from, as text, and the time since the request was sent. */
export interface EchoAnswer {
  readonly from: string
  readonly sequence: number
  readonly microseconds: number
}

/**
 * Opens an echo socket that sends from this address, of either family, as text. Throws the errno of the raw socket:
 * EPERM if neither net.ipv4.ping_group_range nor CAP_NET_RAW allows it, EAFNOSUPPORT if the kernel lacks the family.
 */
export function openEcho(source: string): EchoSocket

/**
 * Sends a request with a 16-bit sequence number to an address of the socket's family, as text, in a packet of `bytes`
 * that must not be fragmented. A request has a minimum length, which is used if `bytes` is smaller.
 */
export function sendEcho(socket: EchoSocket, to: string, sequence: number, bytes?: number): void

/**
 * Returns the IP packet of a request with the minimum length, from an address of this host. The caller sends it in a
 * datagram of IP version `outer`; the socket receives the reply, which the peer's native engine sends over that version
 * too. Empty if the socket is invalid.
 */
export function echoPacket(socket: EchoSocket, from: Address, to: Address, sequence: number, outer: 4 | 6): Uint8Array

/** Returns the replies to this socket's requests that have arrived, at most 64. */
export function takeEchoes(socket: EchoSocket): EchoAnswer[]

/**
 * Returns freed memory to the kernel, and unmaps the pages of the program's own files, which are read again from the
 * page cache when they are used. Takes some milliseconds.
 */
export function giveBackMemory(): void

/**
 * Ends the process immediately (_exit(2)). process.exit would join libuv's threads, and one of them may hang in a file
 * system.
 */
export function exitNow(code: number): never
