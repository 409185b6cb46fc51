// addon.d.ts - the interface between JavaScript and C++.
//
// JavaScript decides and validates; C++ trusts its arguments. Of the packets, only the headers of dropped packets cross
// the interface. JavaScript does the logging and the retries. If a system call fails, the function throws an Error with
// `code` (an errno name such as 'EPERM') and `syscall`. No function blocks.

/** The UDP sockets to open: a group of sockets in one IP family for each loop (forwarding thread). */
export interface SocketOptions {
  /** The local IPv4 or IPv6 address, as text. */
  bindAddress: string
  /** The local UDP port on which all forwarding threads receive. */
  port: number
  /** The number of loops, 1 to 16. A loop is a thread with its own TUN queue and UDP sockets. */
  workers: number
  /** The kernel features to request, as names from `featureNames`. */
  features: readonly string[]
}

export interface OpenOptions extends SocketOptions {
  /**
   * The TUN's interface name, or a pattern such as `flannel%d`, which the kernel completes with the first free number.
   */
  tunName: string
}

/**
 * The file descriptor numbers of an open TUN and its UDP sockets. The owner of this object must close them or pass them
 * to `runEngine`.
 */
export interface Descriptors {
  /** The interface name that the kernel chose for the TUN. */
  readonly tunName: string
  /** The names of the kernel features that the kernel granted and that have not failed since then. */
  readonly features: readonly string[]
  readonly loops: readonly LoopDescriptors[]
  /**
   * A memfd with the WireGuard sessions of the previous engine. Only one engine can take the keys out of the memfd
   * (native/io/handover_state.h).
   */
  readonly handoverState?: number
}

export interface LoopDescriptors {
  readonly tun: number
  /** The UDP sockets of this forwarding thread (loop), by the IP family of the datagrams that they carry. */
  readonly sockets: ByFamily<LoopSockets>
}

/** The UDP sockets of one forwarding thread (loop) in one IP family. */
export interface LoopSockets {
  /** The socket that receives on weft's well-known port (`SocketOptions.port`). */
  readonly receiver: number
  /** The socket that sends datagrams; absent if the forwarding thread (loop) sends from `receiver`. */
  readonly sender?: number
}

/** An IPv4 address as a number in host byte order, or an IPv6 address as a bigint. */
export type Address = number | bigint

/** An IP network: its first address and its prefix length in bits. */
export interface Net {
  readonly address: Address
  readonly prefixLength: number
}

/** A value for each IP family in use. */
export interface ByFamily<T> {
  readonly ipv4?: T | undefined
  readonly ipv6?: T | undefined
}

/** The rules by which the engine accepts or drops packets from peers (native/core/filter.h). */
export interface FilterOptions {
  /**
   * The check of packets from peers. `strict`: the inner addresses and the datagram's source address must match the
   * peer table. `inner`: only the inner addresses must match. `off`: no check.
   */
  readonly verifySource: 'strict' | 'inner' | 'off'
  /** The cluster's network in each IP family. */
  readonly network: ByFamily<Net>
  readonly subnet: ByFamily<Net>
}

/** The sender of a packet that the packet filter of the engine dropped (native/core/filter.h). */
export interface UnknownSender {
  readonly from: Address
  /** The source and the destination address of the inner packet. */
  readonly source: Address
  readonly destination: Address
  /** The name of the counter that counted the dropped packet, from `counterNames`. */
  readonly reason: string
}

/** A packet that the engine dropped (native/core/drops.h). */
export interface DroppedPacket {
  /** When the engine began to process the batch of packets that contains this packet, in microseconds since 1970. */
  readonly atUs: number
  /**
   * The name of the counter that counted the dropped packet, from `counterNames`. `tx_...` counts packets to peers, and
   * `rx_...` packets from peers.
   */
  readonly reason: string
  /**
   * The number of dropped packets. A superpacket (several segments under one header) counts as the number of its
   * segments.
   */
  readonly packets: number
  /** The length of the dropped packet in bytes; for a truncated datagram, the number of bytes that were received. */
  readonly length: number
  /** The address of the peer's host: the sender or the receiver of the datagram; 0 if the address is not known. */
  readonly peer: Address
  /**
   * The length in bytes of the encapsulation's header at the beginning of `headers`; 0 if the engine had removed the
   * header.
   */
  readonly encapBytes: number
  /**
   * The first bytes of the dropped packet, at most `layout.drops.headerBytes`; only the encapsulation's header if the
   * packet is encrypted.
   */
  readonly headers: Uint8Array
}

/**
 * The dropped packets that the engine has kept. A later call `drops(next)` returns only packets that were dropped after
 * the packets in `packets`.
 */
export interface Drops {
  /** The position for the next call of `drops`: for each forwarding thread (loop) one number per direction. */
  readonly next: readonly number[]
  readonly packets: readonly DroppedPacket[]
}

/** The options of an engine. Only the peer table can be changed while the engine runs. */
export interface RunOptions {
  /** The name of the encapsulation, from `encapsulationNames`. */
  encapsulation: string
  /** The TUN's own addresses, which are the source addresses of ICMP errors to peers. */
  tunAddress: ByFamily<Address>
  /**
   * The source addresses of ICMP errors that the engine writes into the TUN. The IPv4 address must not be this host's
   * own, because the kernel drops packets whose source is an address of the host.
   */
  networkAddress: ByFamily<Address>
  filter: FilterOptions
  /**
   * True if the engine lowers the MSS in the SYN of TCP connections so that segments fit the tunnel
   * (native/core/mss.h).
   */
  clampMss: boolean
  /**
   * This host's parameters for the encapsulation, at most 72 bytes. The files of native/encap document their layout.
   */
  ownEnd: Uint8Array
  /** The MTU of the TUN, in bytes. */
  mtu: number
  /**
   * The first peer table, in the format of `setPeers`. The engine sets this table before the threads start, because
   * packets may already wait in the TUN and in the sockets.
   */
  peers: Uint8Array
  /**
   * True if the engine, and not the kernel, chooses the TUN queue of a packet, so that flows with fragmented packets
   * stay in order (native/io/steering.h).
   */
  steers?: boolean
  /** True if the engine continues the WireGuard sessions in `Descriptors.handoverState`; false if it discards them. */
  keepsSessions: boolean
  /** True if the TUN keeps existing, with its addresses and routes, after all of its queues are closed. */
  persistent: boolean
  /** The nice value of the threads, -20 (highest priority) to 19; 0 means the nice value of the process. */
  nice: number
  /** How long an idle thread polls for packets before it sleeps, in microseconds; 0 means that it does not poll. */
  pollUs: number
}

/** The pair of 32-byte keys that a WireGuard handshake yields. */
export interface SessionKeys {
  /**
   * True if this host began the handshake. The initiator sends with new keys immediately; the responder only after it
   * has received a packet encrypted with these keys.
   */
  readonly isInitiator: boolean
  /**
   * The 32-bit numbers that identify the keys in messages: the peer writes `ownIndex`, this host writes `peerIndex`.
   */
  readonly ownIndex: number
  readonly peerIndex: number
  readonly sendKey: Uint8Array
  readonly receiveKey: Uint8Array
}

export interface UdpEndpoint {
  readonly address: Address
  readonly port: number
}

/** The engine's reports to JavaScript about WireGuard handshakes (native/core/mailbox.h). */
export interface Mail {
  /**
   * Handshake messages, those from peers' addresses first, and the first bytes of data messages (type 4) for unknown
   * sessions. The sender of a data message for an unknown session may use a session that this host lost in a restart.
   */
  readonly controlMessages: readonly (UdpEndpoint & { readonly bytes: Buffer })[]
  /** The numbers of the WireGuard sessions that need a handshake. */
  readonly wanted: readonly number[]
  /** The numbers of the WireGuard sessions whose peer has now used the newest keys for the first time. */
  readonly confirmed: readonly number[]
  /** The WireGuard sessions whose peer has sent an authenticated packet from a new address. */
  readonly moved: readonly (UdpEndpoint & { readonly session: number })[]
}

export interface NativeEngine {
  /**
   * The names of the kernel features (offloads) that the kernel granted, without those that have failed or that
   * `ethtool -K` has turned off.
   */
  readonly offloads: string[]
  /** The interface name that the TUN has now; undefined after `release` and `stop`. */
  readonly tunName: string | undefined
  /**
   * Reads the TUN's generic-receive-offload and rx-udp-gro-forwarding switches (`ethtool -k`). The engine merges
   * received packets only as far as these switches allow.
   */
  followSwitches(): Promise<void>
  /**
   * The current values of all counters: `counterNames.length` values for the first forwarding thread (loop), then for
   * the second one, and so on. JavaScript must not write to this array.
   */
  readonly counters: BigUint64Array
  /** True if the engine continues the WireGuard sessions of the previous engine. */
  readonly hasKeptSessions: boolean
  /** The error with which the kernel rejected `RunOptions.steers`; undefined if the kernel accepted it. */
  readonly steeringRefused?: string
  /** The error with which the kernel rejected `RunOptions.nice`; undefined if the kernel accepted it. */
  readonly priorityRefused?: string
  /**
   * Replaces the whole peer table by the records `records` (src/path/engine/peers.ts). Each thread uses the new table
   * from its next batch on. A peer with an unchanged record keeps its learnt path MTU.
   */
  setPeers(records: Uint8Array): void
  /**
   * Adds, changes or removes the peers that the records name. The cost of a call does not depend on the size of the
   * table.
   */
  changePeers(records: Uint8Array): void
  /** Sends one datagram from weft's well-known port (`SocketOptions.port`). Returns false if the system call failed. */
  send(to: Address, port: number, datagram: Uint8Array): boolean
  /**
   * Returns the number of loop iterations of each thread, by the thread's name in /proc/PID/task/TID/comm, and wakes
   * the threads. If a later call returns the same number, the thread hangs.
   */
  askThreads(): Record<string, number>
  /**
   * Returns five numbers for each traffic slot (each peer's record names its slot): packets and bytes sent, packets and
   * bytes received, and milliseconds since the last packet was received (-1 for never). Returns the numbers of all
   * slots that peers' records have used, or only of `slot` if it is given.
   */
  traffic(slot?: number): Float64Array
  /** Installs keys in a WireGuard session. `session` is the number that the peer's records name. */
  setKeys(session: number, keys: SessionKeys): void
  /** Wipes the keys of a WireGuard session and drops the packets that wait for keys. */
  forgetSession(session: number): void
  /**
   * Returns the reports about WireGuard handshakes since the last call, with at most `mostOfOthers` messages from
   * unknown hosts. Discards all other messages from unknown hosts.
   */
  takeMail(mostOfOthers: number): Mail
  /**
   * Returns the senders whose packets the filter dropped since the last call: at most a few dozen for each forwarding
   * thread (loop).
   */
  takeUnknownSenders(): UnknownSender[]
  /**
   * Returns the dropped packets that the engine has kept since an earlier call, which returned `after` in its field
   * `next`. Returns all kept packets if `after` is empty.
   */
  drops(after: readonly number[]): Drops
  /**
   * Ends the threads, each after at most one batch, and returns the open descriptors for the next engine. Until the
   * next engine starts, arriving packets wait in the kernel's buffers. The WireGuard sessions are saved in
   * `handoverState`, together with `head`. Rejects with EBADF if the engine has already ended.
   */
  release(head?: Uint8Array): Promise<Descriptors>
  /**
   * Ends the threads and closes the descriptors, which deletes the TUN unless it is persistent. A second call has no
   * effect.
   */
  stop(): Promise<void>
}

export interface Tun {
  readonly fd: number
  readonly name: string
}

export interface ReadWatcher {
  /** Stops watching the descriptor, but does not close it. A second call has no effect. */
  stop(): void
}

/**
 * The kernel's answer to one netlink request. `exchange` returns undefined instead if the kernel acknowledged the
 * request without sending a message.
 */
export interface NetlinkAnswer {
  /** The messages of the answer, one after another (netlink(7)), without the acknowledgement. */
  readonly data: Buffer
  /** The error number with which the kernel refused the request; 0 if it accepted the request. */
  readonly errno: number
  /** The kernel's explanation of the error (NLMSGERR_ATTR_MSG, since Linux 4.12); absent if the kernel gave none. */
  readonly explanation?: string
  /** True if the listed objects changed during each of the attempts to list them (NLM_F_DUMP_INTR); else absent. */
  readonly isInterrupted?: true
}

/** A netlink socket for requests, opened at its first use. */
export interface NetlinkSocket {
  /**
   * Sends the requests, each padded to 4 bytes, and returns their answers in the same order (native/io/netlink.h). If
   * the kernel does not answer a request within 10 s, that request and all later requests have the error ETIMEDOUT. If
   * the socket cannot be opened, each answer has the errno of that failure. The caller must await one exchange before
   * it starts the next.
   */
  exchange(requests: Uint8Array): Promise<(NetlinkAnswer | undefined)[]>
  /**
   * The netlink port number of the socket; 0 if the socket is not open. The kernel's report of a change has the port of
   * the socket that requested the change.
   */
  readonly port: number
}

export interface NetlinkMonitor {
  /** Leaves the multicast groups and closes the netlink socket. A second call has no effect. */
  stop(): void
}

/** The names of the counters, in the order of `NativeEngine.counters`. */
export const counterNames: string[]

/** The description of each counter, in the order of `counterNames`. */
export const counterTexts: string[]

/** Offsets, sizes and limits that the TypeScript code shares with the C++ code. */
export const layout: {
  /**
   * The layout of a peer's record (native/core/peers.h). `isGone` and `isFromKnownPort` are bits in `flags`, `bytes` is
   * the size of a record, and all remaining members are byte offsets.
   */
  readonly peerRecord: Readonly<
    Record<
      | 'bytes'
      | 'subnetFamily'
      | 'prefixLength'
      | 'outer'
      | 'flags'
      | 'port'
      | 'limit'
      | 'subnet'
      | 'ipv6'
      | 'encap'
      | 'slot'
      | 'ipv4'
      | 'isGone'
      | 'isFromKnownPort',
      number
    >
  >
  /**
   * The limits of `traffic`. `slots`: the maximum number of traffic slots (a slot has the traffic counters of one
   * peer). `numbers`: how many numbers `traffic` returns for a slot.
   */
  readonly traffic: { readonly slots: number; readonly numbers: number }
  /**
   * The limits of `drops`. `kept`: how many dropped packets the engine keeps per forwarding thread (loop) and
   * direction. `everyUs`: the interval, in microseconds, at which it keeps further drops after a burst. `headerBytes`:
   * the maximum number of bytes of each kept packet.
   */
  readonly drops: { readonly kept: number; readonly everyUs: number; readonly headerBytes: number }
  /**
   * The limits of path MTUs. `askEveryMs`: the shortest interval between two queries of a path MTU. `alwaysFits`: the
   * size in bytes of a packet that fits every path MTU that Linux accepts. `least`: the smallest plausible MTU for
   * inner packets. `outerBytes`: the length of the outer IPv4 and UDP headers.
   */
  readonly path: {
    readonly askEveryMs: number
    readonly alwaysFits: number
    readonly least: number
    readonly outerBytes: number
  }
  /**
   * Rate limits on ICMP errors: the number of errors in a burst, and the interval in ms between further errors.
   * `senderBurst` and `senderEveryMs` limit the errors to one sender. `burst` and `everyMs` limit the errors to all
   * senders outside this node's subnet together.
   */
  readonly icmp: {
    readonly senderBurst: number
    readonly senderEveryMs: number
    readonly burst: number
    readonly everyMs: number
  }
}

/** The names of the encapsulations (native/encap/all.h). */
export const encapsulationNames: string[]

/** The names of the kernel features that the engine can request (native/core/features.h). */
export const featureNames: string[]

/** Opens the TUN and UDP sockets of one IP family. */
export function openDescriptors(options: OpenOptions): Descriptors & {
  /** The requested and the granted receive buffer of one socket, in bytes. */
  readonly receiveBufferAsked: number
  readonly receiveBufferGranted: number
}

/**
 * Opens UDP sockets of one more IP family, for forwarding threads (loops) that already have a TUN queue. `loops` has
 * the sockets of each thread.
 */
export function openSockets(options: SocketOptions): {
  readonly features: readonly string[]
  readonly loops: readonly LoopSockets[]
}

/**
 * Reads the `head` that `release` saved in `Descriptors.handoverState`, without taking the keys of the WireGuard
 * sessions out of the memfd. Returns undefined if the memfd has a format that this version does not know.
 */
export function handoverHead(fd: number): Buffer | undefined

/**
 * Starts the engine's threads. The engine owns the descriptors from now on, even if this function throws. `onFault` is
 * called at most once, when a thread cannot continue; the caller must still stop the engine. `onMail` is called when
 * `takeMail` has reports, and not again before the next call of `takeMail`.
 */
export function runEngine(
  descriptors: Descriptors,
  options: RunOptions,
  onFault: (error: Error) => void,
  onMail?: () => void,
): NativeEngine

/**
 * Opens a non-blocking TUN without packet information and virtio header, for the dgram engine, which forwards packets
 * in JavaScript.
 */
export function openTun(name: string, persistent: boolean): Tun

/**
 * Returns the present interface name of an open TUN, which another program may have renamed; an empty text if the
 * device was deleted.
 */
export function tunName(fd: number): string

/** Sets whether the kernel keeps the TUN after all of its queues are closed (`RunOptions.persistent`). */
export function setTunPersistent(fd: number, persistent: boolean): void

/**
 * Returns the kernel's path MTU in bytes from an address of this host to another address of the same IP family; 0 if
 * the kernel knows none.
 */
export function pathMtu(from: string, to: string): number

/**
 * Returns the time of the clock of WireGuard's sessions (CLOCK_BOOTTIME), in ms. The clock continues while the host is
 * suspended, and is the same for all processes of a host.
 */
export function sessionMs(): number

/**
 * Calls `onReadable` from the event loop as long as `fd` has unread input (libuv's uv_poll). `fd` must not be a regular
 * file.
 */
export function watchReadable(fd: number, onReadable: () => void): ReadWatcher

/** Makes a socket for one subsystem of the kernel, such as NETLINK_ROUTE (0); netlink(7) lists the subsystems. */
export function openNetlink(protocol: number): NetlinkSocket

/**
 * Returns the index of the interface called `name` (if_nametoindex(3)); 0 if there is no such interface. Throws any
 * other error, such as EMFILE.
 */
export function interfaceIndex(name: string): number

/**
 * Returns the name of the interface with the index `index` (if_indextoname(3)); an empty text if there is no such
 * interface.
 */
export function interfaceName(index: number): string

/**
 * Joins multicast groups of one netlink subsystem, such as RTNLGRP_* of NETLINK_ROUTE (0). Calls `onReports` from the
 * event loop with the kernel's reports of changes, one after another in a buffer. `isLossy` is true if earlier reports
 * were lost. The kernel reports each change that happens after this function has returned.
 */
export function watchNetlink(
  protocol: number,
  groups: readonly number[],
  onReports: (reports: Buffer, isLossy: boolean) => void,
): NetlinkMonitor

/**
 * Waits for an exclusive lock on the whole file (open file description lock, fcntl F_OFD_SETLKW, Linux 3.15). A process
 * that receives the descriptor shares the lock. The lock ends when all processes have closed the descriptor.
 */
export function lockFile(fd: number): Promise<void>

/**
 * Takes an exclusive lock on the whole file, as `lockFile` does, but without waiting for the lock (F_OFD_SETLK).
 * Returns false if another process has the lock.
 */
export function tryLockFile(fd: number): boolean

/**
 * Sends one datagram with file descriptors to a Unix socket, as systemd's sd_notify(3) does. `socket` is a path, or `@`
 * and an abstract name. Throws EAGAIN if the receiver's queue is full.
 */
export function notify(socket: string, message: string, fds: readonly number[]): void

/**
 * Listens on a Unix socket at a path, for packets with a text and file descriptors (SOCK_SEQPACKET, unix(7)). Only
 * processes of this process's user may connect. Removes an existing socket file first. The caller must close the
 * returned descriptor.
 */
export function listenUnix(path: string): number

/**
 * Connects to a Unix socket at a path, and returns its descriptor, which the caller must close. Throws ECONNREFUSED or
 * ENOENT if no process listens at the path, EAGAIN if the listener's queue is full.
 */
export function connectUnix(path: string): number

/**
 * Returns the descriptor of the next connection that waits at the listening Unix socket `listener`, which the caller
 * must close; undefined if no connection waits.
 */
export function acceptUnix(listener: number): number | undefined

/**
 * Returns the pid of the connection's peer (SO_PEERCRED); 0 if the peer is not visible in this process's PID namespace.
 */
export function peerPid(connection: number): number

/** Sends a packet with copies of at most 253 descriptors and at most 64 KiB of text over a Unix socket. */
export function sendParcel(connection: number, text: string, fds: readonly number[]): void

/**
 * Returns the next packet of a Unix socket; the caller must close its descriptors. Returns undefined if no packet
 * waits, and an empty text after the connection has ended.
 */
export function receiveParcel(connection: number): { text: string; fds: number[] } | undefined

/**
 * A socket for ICMP or ICMPv6 echo requests. `raw` is true for a raw socket, which is used if the kernel does not allow
 * this process ping sockets.
 */
export interface EchoSocket {
  readonly fd: number
  readonly raw: boolean
  /**
   * A number that each request of this socket contains, so that the socket ignores replies to requests of other
   * programs.
   */
  readonly mark: number
}

/** A reply to an echo request: the address from which it came, as text, and the time since the request was sent. */
export interface EchoAnswer {
  readonly from: string
  readonly sequence: number
  readonly microseconds: number
}

/**
 * Opens a socket that sends echo requests from an IPv4 or IPv6 address of this host, given as text. If neither a ping
 * socket nor a raw socket can be opened, throws the error of the raw socket: EPERM if neither net.ipv4.ping_group_range
 * nor CAP_NET_RAW allows the socket, EAFNOSUPPORT if the kernel lacks the IP family.
 */
export function openEcho(source: string): EchoSocket

/**
 * Sends an echo request with a 16-bit sequence number to an address of the socket's IP family, given as text. The
 * request is an IP packet of `bytes` bytes that must not be fragmented; if `bytes` is too small, the request has the
 * minimum length.
 */
export function sendEcho(socket: EchoSocket, to: string, sequence: number, bytes?: number): void

/**
 * Returns the shortest possible echo request as an IP packet, which the caller sends through the tunnel in a datagram
 * of IP version `outer`. `from` is an address of this host. The request contains the number `outer`, so that the peer's
 * engine sends the reply in a datagram of the same IP version. `socket` receives the reply. Returns an empty array if
 * `socket` is invalid.
 */
export function echoPacket(socket: EchoSocket, from: Address, to: Address, sequence: number, outer: 4 | 6): Uint8Array

export function takeEchoes(socket: EchoSocket): EchoAnswer[]

/**
 * Returns the object file with the eBPF programs of FastPath (native/bpf), in this machine's byte order; undefined if
 * the addon was built without clang.
 */
export function kernelWayObject(): Buffer | undefined

/** Creates an eBPF map (bpf(2)) and returns its descriptor, which the caller must close. */
export function createMap(map: {
  readonly name: string
  readonly type: number
  readonly keyBytes: number
  readonly valueBytes: number
  readonly entries: number
  readonly flags: number
}): number

/** Sets the value of a key in an eBPF map. */
export function updateMap(fd: number, key: Uint8Array, value: Uint8Array): void

/** Removes a key from an eBPF map. Returns false if the map does not have the key. */
export function deleteFromMap(fd: number, key: Uint8Array): boolean

/**
 * Reads the value of a key in an eBPF map into `value`. If the map has a value for each CPU, `value` must have room for
 * all of them. Returns false if the map does not have the key.
 */
export function lookUpInMap(fd: number, key: Uint8Array, value: Uint8Array): boolean

/**
 * Loads an eBPF program for tc and returns its descriptor, which the caller must close. If the kernel rejects the
 * program, throws an Error whose `log` is the end of the verifier's report.
 */
export function loadProgram(instructions: Uint8Array, name: string): number

/**
 * Runs an eBPF program on the packet `packet`, which no interface received (BPF_PROG_TEST_RUN). `context` is a struct
 * __sk_buff. The kernel overwrites it.
 */
export function testProgram(fd: number, packet: Uint8Array, context: Uint8Array): { result: number; packet: Buffer }

/** The hook of an interface at which eBPF programs see each received packet (ingress) or each sent packet (egress). */
export interface Hook {
  readonly index: number
  readonly isEgress: boolean
}

export interface TcFilter {
  readonly priority: number
  readonly kind: string
  readonly name: string
}

/** Attaches an eBPF program to a hook with tc, and replaces an earlier program of weft. */
export function attachProgram(hook: Hook, fd: number, name: string): Promise<void>

/** Detaches weft's eBPF program from a hook; does nothing if the hook has no program of weft. */
export function detachProgram(hook: Hook): Promise<void>

/** Lists the tc filters of a hook in the order in which they run. */
export function listFilters(hook: Hook): Promise<readonly TcFilter[]>

/** Returns the number of programs that are attached to a hook with tcx, which run before tc filters. */
export function tcxPrograms(hook: Hook): Promise<number>

/** Returns the interface's features that are on (`ethtool -k`) as text; an empty text if there is no such interface. */
export function activeFeatures(name: string): Promise<string>

/**
 * Switches generic receive offload (`gro`) or TCP segmentation offload (`tso`) of an interface on or off, as `ethtool
 * -K` does.
 */
export function setOffload(name: string, offload: 'gro' | 'tso', isOn: boolean): Promise<void>

/**
 * Gives unused memory of malloc back to the kernel, and unmaps unmodified pages of the program's own files. A call
 * takes some milliseconds.
 */
export function giveBackMemory(): void

/**
 * Ends the process immediately with _exit(2). process.exit would wait for libuv's threads, and one of these may hang.
 */
export function exitNow(code: number): never
