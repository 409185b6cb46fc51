// connections.ts - keeps charon's connections and shared keys equal to the peers, and restarts charon when it ends.
//
// The members of a connection are those of flanneld (pkg/backend/ipsec/handle_charon.go), so that a node with weftd and
// a node with flanneld can negotiate keys.

import { describeError, isWeftError, messageOf } from '../../../base/errors.ts'
import { seldom, type Log } from '../../../base/log.ts'
import type { Secret } from '../../../base/secret.ts'
import { pause } from '../../../host/bell.ts'
import { createTurn } from '../../../host/turn.ts'
import { REQUEST_ID, type PolicyPeer } from '../../device/ipsec-policies.ts'
import type { Charon } from './charon.ts'
import type { ViciSection } from './vici-message.ts'

/**
 * The pause in ms before charon is started again after its end. Each further failure doubles the pause, up to
 * LONGEST_RETRY_MS.
 */
const FIRST_RETRY_MS = 200
const LONGEST_RETRY_MS = 10_000
/** flanneld's proposal for the keys of the IKE connection. */
const IKE_PROPOSAL = 'aes256-sha256-modp4096'
/**
 * How long a peer may be silent before charon checks that the peer is alive. flanneld sets no value, and charon never
 * checks then.
 */
const DEAD_PEER_DELAY = '10s'

interface ConnectionOptions {
  readonly own: PolicyPeer
  readonly psk: Secret
  readonly espProposal: string
  readonly udpEncap: boolean
  /** True if charon carries the ESP packets, so that charon needs the policies too. */
  readonly isUserspace: boolean
  readonly start: (signal: AbortSignal) => Promise<Charon>
  readonly log: Log
}

/** The state of the keys that charon negotiated with a peer. */
export interface PeerKeys {
  readonly txBytes: number
  readonly rxBytes: number
  readonly txPackets: number
  readonly rxPackets: number
}

export class IpsecConnections {
  readonly #options: ConnectionOptions
  readonly #calm: Log
  readonly #inTurn = createTurn()
  readonly #closing = new AbortController()
  /** The wanted peers by the name of their connection. */
  #wanted: ReadonlyMap<string, PolicyPeer> = new Map()
  /** The running charon; undefined while charon is being restarted. */
  #charon: Charon | undefined
  /** The task that restarts charon; it ends after `close` was called. */
  #running: Promise<void> = Promise.resolve()

  constructor(options: ConnectionOptions) {
    this.#options = options
    this.#calm = seldom(options.log)
  }

  /** Starts charon. Throws WeftError if that fails. Later charon is started again whenever it ends. */
  async open(signal: AbortSignal): Promise<void> {
    this.#charon = await this.#options.start(signal)
    await this.#load()
    this.#running = this.#run()
  }

  /** Makes charon's connections equal to these peers. A failure is logged, and `resync` tries again. */
  async apply(peers: readonly PolicyPeer[]): Promise<void> {
    this.#wanted = new Map(peers.map((peer) => [this.#nameFor(peer), peer]))
    await this.#load()
  }

  /** Loads the connections that charon lost, for example in a restart. Returns a description of each repair. */
  async resync(): Promise<readonly string[]> {
    return (await this.#load()).map((name) => `charon had lost the connection ${name}`)
  }

  get isRunning(): boolean {
    return this.#charon !== undefined
  }

  /**
   * Returns, by the peer's subnet, the packet counts for each peer that has keys. Returns an empty map while charon
   * does not answer.
   */
  async keys(): Promise<ReadonlyMap<string, PeerKeys>> {
    const found = new Map<string, PeerKeys>()
    const associations = await this.#charon?.client.stream('list-sas', 'list-sa', { noblock: 'yes' }).catch(() => [])
    for (const each of associations ?? [])
      for (const [name, ike] of Object.entries(each)) {
        const peer = this.#wanted.get(name)
        if (peer) add(found, peer.subnet, ike as ViciSection)
      }
    return found
  }

  /** Closes the connection to charon, and ends charon if weftd started it. */
  async close(): Promise<void> {
    this.#closing.abort(new Error('the data path is closed'))
    await this.#running
    await this.#charon?.stop()
  }

  /** Starts charon again whenever it ends, until `close` is called. */
  async #run(): Promise<void> {
    const { signal } = this.#closing
    const closed = new Promise<undefined>((resolve) => signal.addEventListener('abort', () => resolve(undefined)))
    let ms = FIRST_RETRY_MS
    while (!signal.aborted) {
      const why = await Promise.race([this.#charon?.client.ended, closed])
      if (signal.aborted) return
      if (this.#charon) {
        this.#options.log.error(`${messageOf(why)}; starting it again`)
        await this.#charon.stop()
        this.#charon = undefined
      }
      try {
        await pause(signal, ms)
        this.#charon = await this.#options.start(signal)
        await this.#load()
        ms = FIRST_RETRY_MS
      } catch (error) {
        if (signal.aborted) return
        ms = Math.min(2 * ms, LONGEST_RETRY_MS)
        this.#calm.error(`Error starting charon daemon, trying again: ${describeError(error)}`)
      }
    }
  }

  /**
   * Loads the missing connections into charon, and removes superfluous ones. Returns the names of the loaded
   * connections.
   */
  #load(): Promise<readonly string[]> {
    return this.#inTurn(async () => {
      const charon = this.#charon
      if (!charon) return []
      try {
        return await this.#loadInto(charon)
      } catch (error) {
        if (!isWeftError(error)) throw error
        this.#calm.error(`error loading connection into IKE daemon: ${describeError(error)}`)
        return []
      }
    })
  }

  async #loadInto({ client }: Charon): Promise<readonly string[]> {
    const { own, log } = this.#options
    const { conns = [] } = await client.request('get-conns')
    const there = new Set(Array.isArray(conns) ? (conns as readonly string[]) : [])
    const { keys = [] } = await client.request('get-shared')
    const shared = new Set(Array.isArray(keys) ? (keys as readonly string[]) : [])
    for (const host of new Set([own.host, ...[...this.#wanted.values()].map((peer) => peer.host)])) {
      if (shared.has(keyNameOf(host))) continue
      await client.request('load-shared', {
        id: keyNameOf(host),
        type: 'IKE',
        data: this.#options.psk.reveal(),
        owners: [host],
      })
      log.info(`Loaded shared key for: ${host}`)
    }
    for (const name of there) {
      if (!name.startsWith(`${own.host}-`) || this.#wanted.has(name)) continue
      await client.request('unload-conn', { name })
      // End the connection's associations, because their keys would stay valid otherwise. charon refuses this request
      // if there are no associations.
      await client.request('terminate', { ike: name, force: 'yes', timeout: '-1' }).catch(() => {})
      log.info(`Unloaded connection: ${name}`)
    }
    const missing = [...this.#wanted].filter(([name]) => !there.has(name))
    for (const [name, peer] of missing) {
      await client.request('load-conn', { [name]: this.#connectionTo(peer) })
      log.info(`Loaded connection: ${name}`)
    }
    return missing.map(([name]) => name)
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
        [`${own.subnet}-${subnet}`]: {
          local_ts: [own.subnet],
          remote_ts: [subnet],
          esp_proposals: [espProposal],
          start_action: 'start',
          close_action: 'trap',
          dpd_action: 'restart',
          mode: 'tunnel',
          reqid: String(REQUEST_ID),
          rekey_time: '1h',
          policies: isUserspace ? 'yes' : 'no',
        },
      },
    }
  }

  /** Returns flanneld's name for the connection to a peer. */
  #nameFor({ subnet, host }: PolicyPeer): string {
    const { own } = this.#options
    return `${own.host}-${own.subnet}-${subnet}-${host}`
  }
}

const keyNameOf = (host: string): string => `weft-${host}`

/** Adds the packet counts of the installed child associations of one IKE association. */
function add(found: Map<string, PeerKeys>, subnet: string, ike: ViciSection): void {
  const children = Object.values((ike['child-sas'] ?? {}) as ViciSection) as ViciSection[]
  for (const child of children) {
    if (child['state'] !== 'INSTALLED') continue
    const before = found.get(subnet)
    found.set(subnet, {
      txBytes: (before?.txBytes ?? 0) + Number(child['bytes-out'] ?? 0),
      rxBytes: (before?.rxBytes ?? 0) + Number(child['bytes-in'] ?? 0),
      txPackets: (before?.txPackets ?? 0) + Number(child['packets-out'] ?? 0),
      rxPackets: (before?.rxPackets ?? 0) + Number(child['packets-in'] ?? 0),
    })
  }
}
