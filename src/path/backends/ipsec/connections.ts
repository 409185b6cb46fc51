// connections.ts - gives charon a connection and a shared key for each peer, and restarts charon when it ends.
//
// The settings of a connection are those of flanneld (pkg/backend/ipsec/handle_charon.go), so that a node with weftd
// and a node with flanneld can negotiate keys.

import { describeError, isWeftError, messageOf } from '../../../base/errors.ts'
import { seldom, type Log } from '../../../base/log.ts'
import type { Secret } from '../../../base/secret.ts'
import { createTurn, pause } from '../../../host/bell.ts'
import { formatNet, netContains, parseAddress, parseNet, type Net } from '../../../net/address.ts'
import { IPSEC_REQUEST_ID } from '../../catalog.ts'
import type { PolicyPeer } from '../../device/ipsec-policies.ts'
import type { ViciClient } from './vici-client.ts'
import type { ViciSection, ViciValue } from './vici-message.ts'

/**
 * The pause in ms before weftd starts charon again after charon has ended. Each further failure doubles the pause, up
 * to LONGEST_RETRY_MS.
 */
const FIRST_RETRY_MS = 200
const LONGEST_RETRY_MS = 10_000
/** The algorithms that flanneld proposes for the IKE connection. */
const IKE_PROPOSAL = 'aes256-sha256-modp4096'
/**
 * How long a peer may be silent before charon checks that the peer is alive. flanneld sets no value, so its charon
 * never checks.
 */
const DEAD_PEER_DELAY = '10s'

interface Charon {
  readonly client: ViciClient
  /** Closes the connection to charon, and ends charon if weftd started it. */
  stop(): Promise<void>
}

/**
 * The first pause in ms before weftd makes charon negotiate keys with a peer again. Each request doubles the pause, up
 * to LONGEST_NEGOTIATION_MS.
 */
const FIRST_NEGOTIATION_MS = 5_000
const LONGEST_NEGOTIATION_MS = 40_000

/**
 * The maximum number of hosts for which weftd checks charon's shared keys. charon lists the ids of the keys in one
 * packet of at most 512 KiB, in which about 12,000 ids fit. If the packet would be longer, charon sends no answer.
 */
const MOST_LISTED_KEYS = 10_000

interface ConnectionOptions {
  readonly network: Net
  readonly own: PolicyPeer
  readonly psk: Secret
  readonly espProposal: string
  readonly udpEncap: boolean
  /** True if charon carries the ESP packets. Then charon, and not weftd, must install the IPsec policies. */
  readonly isUserspace: boolean
  readonly start: (signal: AbortSignal) => Promise<Charon>
  readonly log: Log
}

/** The traffic that was encrypted and decrypted with the keys that charon negotiated with a peer. */
export interface PeerKeys {
  readonly txBytes: number
  readonly rxBytes: number
  readonly txPackets: number
  readonly rxPackets: number
}

const NO_TRAFFIC: PeerKeys = { txBytes: 0, rxBytes: 0, txPackets: 0, rxPackets: 0 }

/**
 * The traffic counts of a peer, split by the child associations with the peer. Each renewal of keys makes a new
 * association, whose counts begin at 0.
 */
interface Counted {
  /** The sums of the counts of the associations that charon has deleted. */
  readonly ended: PeerKeys
  /** The last counts of the other associations, by name, and the time of these counts in ms of performance.now(). */
  readonly last: ReadonlyMap<string, { readonly counts: PeerKeys; readonly at: number }>
}

/**
 * The time in ms after which an association that charon no longer lists counts as deleted. charon leaves out an IKE
 * association with its child associations while it works on the IKE association, and lists them again later.
 */
const DELETED_MS = 600_000

interface Loaded {
  readonly charon: Charon
  readonly connections: Set<string>
  /** The addresses of the hosts whose shared keys weftd has loaded into charon. */
  readonly hosts: Set<string>
}

/**
 * The states of a child association that can encrypt packets. While its keys are being renewed (REKEYING), it still has
 * the earlier keys.
 */
const WITH_KEYS = new Set<unknown>(['INSTALLED', 'REKEYING'])

export class IpsecConnections {
  readonly #options: ConnectionOptions
  readonly #calm: Log
  readonly #inTurn = createTurn()
  readonly #closing = new AbortController()
  /** The peers that need a connection, by the connection's name; undefined before the first `apply`. */
  #wanted: ReadonlyMap<string, PolicyPeer> | undefined
  /** The connections and keys that weftd has loaded into the running charon; undefined before weftd has loaded any. */
  #loaded: Loaded | undefined
  /** The running charon; undefined while charon is being restarted. */
  #charon: Charon | undefined
  /**
   * The names of the wanted connections that, at the last call of `keys`, had no keys and for which charon negotiated
   * no keys.
   */
  #idle: ReadonlySet<string> = new Set()
  /**
   * For each connection without keys: `at` is the time of the last request to negotiate keys, or of the loss of the
   * keys. `ms` is the pause from `at` to the next request. Times are in ms of performance.now().
   */
  readonly #asked = new Map<string, { readonly at: number; readonly ms: number }>()
  /** The traffic counts of each wanted peer, by the peer's subnet, as of the last answer of charon. */
  readonly #counted = new Map<string, Counted>()
  /** The function that is called after charon has negotiated or deleted keys, or was started again. */
  #changed: () => void = () => {}
  /** The task that starts charon again whenever charon ends, until `close` is called. */
  #running: Promise<void> = Promise.resolve()

  constructor(options: ConnectionOptions) {
    this.#options = options
    this.#calm = seldom(options.log)
  }

  /** Starts charon, and starts it again whenever it ends. Throws WeftError if the first start fails. */
  async open(signal: AbortSignal): Promise<void> {
    this.#charon = await this.#options.start(signal)
    try {
      await this.#listen(this.#charon)
      await this.#load(true)
    } catch (error) {
      await this.#charon.stop()
      throw error
    }
    this.#running = this.#run()
  }

  /** Sets the function that is called whenever the result of `keys` may have changed. */
  watch(changed: () => void): void {
    this.#changed = changed
  }

  /**
   * Loads a connection into charon for each of `peers`, and removes all other connections. Logs a failure; `resync`
   * then tries again.
   */
  async apply(peers: readonly PolicyPeer[]): Promise<void> {
    const isFirst = this.#wanted === undefined
    this.#wanted = new Map(peers.map((peer) => [this.#nameFor(peer), peer]))
    await this.#load(isFirst)
  }

  /** Loads the connections that charon lost, for example in a restart. Returns a description of each repair. */
  async resync(): Promise<readonly string[]> {
    return (await this.#load(true)).map((name) => `charon had lost the connection ${name}`)
  }

  /**
   * Returns the traffic counts of each peer that has keys, by the peer's subnet. The counts include the associations
   * that charon has deleted since weftd first read them. Returns an empty map if charon does not answer.
   */
  async keys(): Promise<ReadonlyMap<string, PeerKeys>> {
    const found = new Set<string>()
    const children = new Map<string, Map<string, PeerKeys>>()
    const list = this.#charon?.client.stream('list-sas', 'list-sa', { noblock: 'yes' })
    const associations = await list?.catch(() => undefined)
    const idle = new Set(associations && this.#wanted?.keys())
    for (const each of associations ?? [])
      for (const [name, ike] of Object.entries(each)) {
        const peer = this.#wanted?.get(name)
        if (!peer) continue
        const section = (ike as ViciSection)['child-sas'] ?? {}
        for (const [id, child] of Object.entries(section as Readonly<Record<string, ViciSection>>)) {
          if (WITH_KEYS.has(child['state'])) found.add(peer.subnet)
          const ofPeer = children.get(peer.subnet) ?? new Map<string, PeerKeys>()
          children.set(peer.subnet, ofPeer.set(id, countsOf(child)))
        }
        if (!isIdle(ike as ViciSection)) idle.delete(name)
        if (found.has(peer.subnet)) this.#asked.delete(name)
      }
    this.#idle = idle
    const totals = associations ? this.#totals(children) : new Map<string, PeerKeys>()
    return new Map([...totals].filter(([subnet]) => found.has(subnet)))
  }

  /**
   * Returns the traffic counts of each wanted peer, by the peer's subnet, over its present associations and those that
   * charon has deleted. `children` has the counts of the present associations.
   */
  #totals(children: ReadonlyMap<string, ReadonlyMap<string, PeerKeys>>): ReadonlyMap<string, PeerKeys> {
    const subnets = new Set([...(this.#wanted?.values() ?? [])].map(({ subnet }) => subnet))
    for (const subnet of this.#counted.keys()) if (!subnets.has(subnet)) this.#counted.delete(subnet)
    const totals = new Map<string, PeerKeys>()
    const now = performance.now()
    for (const subnet of subnets) {
      const before = this.#counted.get(subnet)
      const last = new Map(before?.last)
      let ended = before?.ended ?? NO_TRAFFIC
      for (const [id, { counts, at }] of last) {
        const seen = children.get(subnet)?.get(id)
        // If the counts of an association have decreased, a restarted charon has used its name for a new association.
        if (seen ? !isLess(seen, counts) : now - at < DELETED_MS) continue
        ended = plus(ended, counts)
        last.delete(id)
      }
      for (const [id, counts] of children.get(subnet) ?? []) last.set(id, { counts, at: now })
      this.#counted.set(subnet, { ended, last })
      totals.set(
        subnet,
        [...last.values()].reduce((sum, { counts }) => plus(sum, counts), ended),
      )
    }
    return totals
  }

  /**
   * Makes charon negotiate keys again with the peers in `#idle`, which have no keys. charon does not try again by
   * itself if the peer refused, or if charon could not install the keys, for example while this host had no address in
   * its subnet. The pause between two requests for a peer grows. `isChange` is true if this host may have changed, for
   * example its addresses; then each pause is as short as the first.
   */
  async negotiate(isChange: boolean): Promise<void> {
    const now = performance.now()
    const client = this.#charon?.client
    for (const name of this.#asked.keys()) if (!this.#wanted?.has(name)) this.#asked.delete(name)
    for (const name of this.#idle) {
      const { at, ms } = this.#asked.get(name) ?? { at: now, ms: FIRST_NEGOTIATION_MS }
      const peer = this.#wanted?.get(name)
      const isDue = now - at >= (isChange ? FIRST_NEGOTIATION_MS : ms)
      this.#asked.set(name, isDue ? { at: now, ms: Math.min(2 * ms, LONGEST_NEGOTIATION_MS) } : { at, ms })
      if (!isDue || !peer) continue
      try {
        // With the timeout -1 charon answers immediately, before it negotiates keys.
        await client?.request('initiate', { child: this.#childOf(peer), ike: name, timeout: '-1' })
      } catch (error) {
        // If the connection to charon has ended, do not log here, because `#run` logs the end of the connection.
        if (!client?.isOpen) return
        this.#calm.error(`Cannot negotiate keys with ${peer.host}: ${describeError(error)}`)
      }
    }
  }

  /** Closes the connection to charon, and ends charon if weftd started it. */
  async close(): Promise<void> {
    this.#closing.abort(new Error('the data path is closed'))
    this.#charon?.client.close() // so that the call does not wait for a charon that hangs
    await this.#running
    await this.#charon?.stop()
  }

  /** Starts charon again whenever charon ends, until `close` is called. */
  async #run(): Promise<void> {
    const { signal } = this.#closing
    const closed = new Promise<undefined>((resolve) => signal.addEventListener('abort', () => resolve(undefined)))
    let ms = FIRST_RETRY_MS
    let startedAt = performance.now()
    while (!signal.aborted) {
      const why = await Promise.race([this.#charon?.client.ended, closed])
      if (signal.aborted) return
      if (this.#charon) {
        this.#options.log.error(`${messageOf(why)}; starting it again`)
        await this.#charon.stop()
        this.#charon = undefined
        this.#changed()
        // If charon ends soon after each start, make the pause longer, so that weftd does not start charon in a tight
        // loop.
        const isOld = performance.now() - startedAt > LONGEST_RETRY_MS
        ms = isOld ? FIRST_RETRY_MS : Math.min(2 * ms, LONGEST_RETRY_MS)
      }
      try {
        await pause(signal, ms)
        this.#charon = await this.#options.start(signal)
        await this.#listen(this.#charon)
        startedAt = performance.now()
        await this.#load(true)
      } catch (error) {
        if (signal.aborted) return
        ms = Math.min(2 * ms, LONGEST_RETRY_MS)
        this.#calm.error(`Error starting charon daemon, trying again: ${describeError(error)}`)
      }
    }
  }

  /** Requests that charon report each change of keys. If charon refuses, the regular checks find the changes. */
  async #listen({ client }: Charon): Promise<void> {
    await client.listen('child-updown', () => this.#changed()).catch(() => {})
    this.#changed()
  }

  /**
   * Loads the connections that charon lacks, and removes the connections to former peers. If `isCheck` is true, lists
   * charon's connections first, because charon or another program may have removed some of them. Returns the names of
   * the connections that charon lost.
   */
  #load(isCheck: boolean): Promise<readonly string[]> {
    return this.#inTurn(async () => {
      const charon = this.#charon
      if (!charon || this.#closing.signal.aborted) return []
      try {
        return await this.#loadInto(charon, isCheck)
      } catch (error) {
        if (!isWeftError(error)) throw error
        // If the connection to charon has ended, do not log here, because `#run` logs the end of the connection.
        if (charon.client.isOpen) this.#calm.error(`error loading connection into IKE daemon: ${describeError(error)}`)
        return []
      }
    })
  }

  async #loadInto(charon: Charon, isCheck: boolean): Promise<readonly string[]> {
    const { client } = charon
    // A charon that ran before this process may have connections of an earlier weftd, with another PSK or other
    // options. So load all connections once. If a connection has not changed, charon keeps the keys that it negotiated
    // with the peer.
    if (this.#loaded?.charon !== charon) this.#loaded = { charon, connections: new Set(), hosts: new Set() }
    const loaded = this.#loaded
    const lost = isCheck ? await this.#check(loaded) : []
    await this.#loadKeys(loaded)
    // Until the peers are known, keep the connections that an earlier run loaded into charon.
    if (!this.#wanted) return []
    for (const name of loaded.connections)
      if (!this.#wanted.has(name)) {
        await unload(client, name)
        loaded.connections.delete(name)
        this.#options.log.info(`Unloaded connection: ${name}`)
      }
    const failures: unknown[] = []
    for (const [name, peer] of this.#wanted) {
      if (loaded.connections.has(name)) continue
      try {
        await client.request('load-conn', { [name]: this.#connectionTo(peer) })
        loaded.connections.add(name)
        this.#options.log.info(`Loaded connection: ${name}`)
      } catch (error) {
        failures.push(error) // the connections of the other peers must not wait for this one
      }
    }
    if (failures.length > 0) throw failures[0]
    return lost
  }

  /**
   * Compares `loaded` with the connections and keys that charon lists. Removes from charon those that an earlier run of
   * weftd loaded and that are not needed now. Returns the names of the connections that charon lost.
   */
  async #check(loaded: Loaded): Promise<readonly string[]> {
    const { network, log } = this.#options
    const { client } = loaded.charon
    const names = await connectionsIn(client, network)
    const lost = [...loaded.connections].filter((name) => !names.has(name))
    for (const name of lost) loaded.connections.delete(name)
    for (const name of this.#wanted ? names : [])
      if (!this.#wanted?.has(name) && !loaded.connections.has(name)) {
        await unload(client, name)
        log.info(`Unloaded connection: ${name}`)
      }
    if (this.#hosts().size > MOST_LISTED_KEYS) return lost
    const keys = await keysIn(client, network)
    for (const host of loaded.hosts) if (!keys.has(keyNameOf(network, host))) loaded.hosts.delete(host)
    const known = new Set([...this.#hosts()].map((host) => keyNameOf(network, host)))
    for (const id of this.#wanted ? keys : []) if (!known.has(id)) await client.request('unload-shared', { id })
    return lost
  }

  /** Loads the shared key for each host that lacks it, and removes the keys of hosts that are no longer peers. */
  async #loadKeys({ charon: { client }, hosts }: Loaded): Promise<void> {
    const { network, psk, log } = this.#options
    const wanted = this.#hosts()
    for (const host of wanted) {
      if (hosts.has(host)) continue
      const id = keyNameOf(network, host)
      await client.request('load-shared', { id, type: 'IKE', data: psk.reveal(), owners: [host] })
      hosts.add(host)
      log.info(`Loaded shared key for: ${host}`)
    }
    for (const host of hosts) {
      if (wanted.has(host)) continue
      await client.request('unload-shared', { id: keyNameOf(network, host) })
      hosts.delete(host)
    }
  }

  /** Returns the addresses of this host and of the wanted peers. */
  #hosts(): ReadonlySet<string> {
    return new Set([this.#options.own.host, ...[...(this.#wanted?.values() ?? [])].map((peer) => peer.host)])
  }

  #connectionTo({ subnet, host }: PolicyPeer): ViciSection {
    const { own, espProposal, udpEncap, isUserspace } = this.#options
    return {
      local_addrs: [own.host],
      remote_addrs: [host],
      proposals: [IKE_PROPOSAL],
      version: '2',
      keyingtries: '0', // no limit
      encap: udpEncap ? 'yes' : 'no',
      dpd_delay: DEAD_PEER_DELAY,
      local: { auth: 'psk' },
      remote: { auth: 'psk' },
      children: {
        [this.#childOf({ subnet, host })]: {
          local_ts: [own.subnet],
          remote_ts: [subnet],
          esp_proposals: [espProposal],
          start_action: 'start',
          close_action: 'trap',
          dpd_action: 'restart',
          mode: 'tunnel',
          reqid: String(IPSEC_REQUEST_ID),
          rekey_time: '1h',
          policies: isUserspace ? 'yes' : 'no',
        },
      },
    }
  }

  /** Returns flanneld's name for the child association (CHILD_SA) of the connection to a peer. */
  #childOf({ subnet }: PolicyPeer): string {
    return `${this.#options.own.subnet}-${subnet}`
  }

  /** Returns flanneld's name for the connection to a peer. */
  #nameFor({ subnet, host }: PolicyPeer): string {
    const { own } = this.#options
    return `${own.host}-${own.subnet}-${subnet}-${host}`
  }
}

/**
 * The common prefix of the ids of the shared keys for the network. It distinguishes these keys from the keys that
 * another weftd on this host loaded for the same hosts.
 */
const keyPrefixOf = (network: Net): string => `weft-${formatNet(network)}-`
const keyNameOf = (network: Net, host: string): string => `${keyPrefixOf(network)}${host}`

/** Lists the connections in charon that weftd loaded for the network, now or in an earlier run. */
export async function connectionsIn(client: ViciClient, network: Net): Promise<ReadonlySet<string>> {
  // Do not use the command `get-conns`, because its answer is one packet, which can hold the names of only about 7,000
  // connections.
  const events = await client.stream('list-conns', 'list-conn')
  return new Set(events.flatMap((event) => Object.keys(event)).filter((name) => isOfNetwork(name, network)))
}

/** Lists the ids of the shared keys in charon that weftd loaded for the network, now or in an earlier run. */
async function keysIn(client: ViciClient, network: Net): Promise<ReadonlySet<string>> {
  const { keys } = await client.request('get-shared')
  return new Set(listOf(keys).filter((id) => id.startsWith(keyPrefixOf(network))))
}

const listOf = (value: ViciValue | undefined): readonly string[] =>
  Array.isArray(value) ? (value as readonly string[]) : []

/** Returns true if `name` is flanneld's name of a connection between two subnets of the network. */
function isOfNetwork(name: string, network: Net): boolean {
  const [from = '', subnet = '', peer = '', to = '', ...more] = name.split('-')
  const isWithin = (text: string): boolean => {
    const net = parseNet(text)
    return net !== undefined && net.prefixLength >= network.prefixLength && netContains(network, net.address)
  }
  const areHosts = [from, to].every((text) => parseAddress(text) !== undefined)
  return more.length === 0 && areHosts && isWithin(subnet) && isWithin(peer)
}

/** Removes a connection and its keys from charon. */
async function unload(client: ViciClient, name: string): Promise<void> {
  await client.request('unload-conn', { name })
  // End the connection's IKE associations, because their keys stay valid although the connection is unloaded. charon
  // refuses this request if there are no associations.
  await client.request('terminate', { ike: name, force: 'yes', timeout: '-1' }).catch(() => {})
}

/**
 * Removes the connections and the shared keys that weftd loaded into charon for the network. Returns the names of the
 * connections.
 */
export async function unloadAll(client: ViciClient, network: Net): Promise<readonly string[]> {
  const names = [...(await connectionsIn(client, network))]
  for (const name of names) await unload(client, name)
  for (const id of await keysIn(client, network)) await client.request('unload-shared', { id })
  return names
}

/** Returns true if the IKE association has no child association, and charon is not negotiating with the peer. */
function isIdle(ike: ViciSection): boolean {
  const tasks = ['tasks-queued', 'tasks-active', 'tasks-passive'].flatMap((name) => listOf(ike[name]))
  const children = Object.keys((ike['child-sas'] ?? {}) as ViciSection)
  return ike['state'] === 'ESTABLISHED' && tasks.length === 0 && children.length === 0
}

const countsOf = (child: ViciSection): PeerKeys => ({
  txBytes: countOf(child['bytes-out']),
  rxBytes: countOf(child['bytes-in']),
  txPackets: countOf(child['packets-out']),
  rxPackets: countOf(child['packets-in']),
})

const plus = (a: PeerKeys, b: PeerKeys): PeerKeys => ({
  txBytes: a.txBytes + b.txBytes,
  rxBytes: a.rxBytes + b.rxBytes,
  txPackets: a.txPackets + b.txPackets,
  rxPackets: a.rxPackets + b.rxPackets,
})

/** Returns true if an association has counted less than before. */
const isLess = (now: PeerKeys, before: PeerKeys): boolean =>
  now.txBytes < before.txBytes ||
  now.rxBytes < before.rxBytes ||
  now.txPackets < before.txPackets ||
  now.rxPackets < before.rxPackets

const countOf = (value: ViciValue | undefined): number =>
  typeof value === 'string' && /^\d{1,15}$/.test(value) ? Number(value) : 0
