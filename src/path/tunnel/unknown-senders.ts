// unknown-senders.ts - logs the senders of packets that the engine refused. Each sender is logged once, with a remedy.

import type { Log } from '../../base/log.ts'
import { formatAddress, netsText } from '../../net/address.ts'
import { reasonToDrop, type FilterOptions, type UnknownSender } from '../engine/filter.ts'
import { createPeerTable, hostOf, type Peer, type PeerTable } from '../engine/peers.ts'

const MAX_REMEMBERED = 1024
/**
 * The maximum number of warnings per minute. Without this limit, one host that forges many sender addresses could flood
 * the log. A sender that exceeds the limit is logged later if it still sends.
 */
const MAX_PER_MINUTE = 8

export class UnknownSenderLog {
  readonly #filter: FilterOptions
  readonly #log: Log
  readonly #now: () => number
  /** Returns all peers. Called only when a refused sender is checked again and the peer table is not built yet. */
  #peers: () => readonly Peer[] = () => []
  /** The table of all peers; undefined until a refused sender is checked again. */
  #table: PeerTable | undefined
  /** The senders that were passed to the previous call of `report`. */
  #before: readonly UnknownSender[] = []
  /**
   * The senders that were already logged: each entry is the text of a sender and of the reason why its packet was
   * dropped.
   */
  readonly #logged = new Set<string>()
  /** The times, in ms of `#now`, of the warnings of the last minute. */
  #loggedAt: readonly number[] = []

  constructor(filter: FilterOptions, log: Log, now: () => number = () => performance.now()) {
    this.#filter = filter
    this.#log = log
    this.#now = now
  }

  setPeers(peers: () => readonly Peer[]): void {
    this.#peers = peers
    this.#table = undefined
  }

  changePeers(peers: readonly Peer[]): void {
    this.#table?.change(peers)
  }

  /**
   * Logs those senders of the previous call that are still unknown to this node, and keeps `senders` for the next call.
   * Because of this delay weftd does not log a node if its first packets arrive before its lease.
   */
  report(senders: readonly UnknownSender[]): void {
    const before = this.#before
    this.#before = senders
    if (before.length === 0) return
    const known = (this.#table ??= createPeerTable(this.#peers()))
    const early = new Set<string>()
    for (const sender of before) {
      const from = formatAddress(sender.from)
      // Check the packet again, because the peers may have changed since the engine refused the packet. The packet may
      // now be acceptable, or be refused for another reason.
      const reason = reasonToDrop(this.#filter, known, sender)
      if (reason === undefined) {
        if (!this.#logged.has(`early ${from}`)) early.add(from)
        continue
      }
      const key = `${reason} ${from}`
      this.#loggedAt = this.#loggedAt.filter((at) => this.#now() - at < 60_000)
      if (this.#logged.has(key) || this.#loggedAt.length >= MAX_PER_MINUTE) continue
      this.#remember(key)
      this.#loggedAt = [...this.#loggedAt, this.#now()]
      this.#warn({ ...sender, reason }, known)
    }
    for (const from of early) this.#remember(`early ${from}`)
    if (early.size > 0)
      this.#log.info(`Packets that came before their sender's lease was known were dropped: ${[...early].join(', ')}`)
  }

  #remember(key: string): void {
    this.#logged.add(key)
    if (this.#logged.size > MAX_REMEMBERED) this.#logged.delete([...this.#logged][0] as string)
  }

  #warn(sender: UnknownSender, known: PeerTable): void {
    const filter = this.#filter
    const log = this.#log
    const { from, source, destination, reason } = sender
    const [origin, claimed] = [formatAddress(from), formatAddress(source)]
    const peer = known.find(source)
    if (reason === 'rx_drop_destination') {
      const [to, subnet] = [formatAddress(destination), netsText(filter.subnet)]
      log.warn(
        `Packets from ${origin} are not let in: they are for ${to}, which is not in this node's subnet ${subnet}`,
      )
    } else if (filter.provesSender && peer) {
      log.warn(
        `Packets from ${origin} are not let in: ${claimed} belongs to the node at ${formatAddress(hostOf(peer))}, and with WireGuard a ` +
          'node may send from its own subnet alone. See which node has which subnet: `weft lease ls`',
      )
    } else if (filter.provesSender && reason === 'rx_drop_unknown_sender') {
      log.warn(
        `Packets from ${origin} are not let in: they come from ${claimed}, and with WireGuard a node may send from its own subnet alone. ` +
          'Have that node masquerade them (`--ip-masq`), or have the program there use the address of the WireGuard device',
      )
    } else if (reason === 'rx_drop_unknown_sender') {
      log.warn(
        `Packets from ${origin} are not let in: no lease assigns ${claimed} to this sender. If the sender is a node, see that its lease ` +
          'is in the store; else block it in the firewall',
      )
    } else if (peer) {
      log.warn(
        `Packets from ${origin} are not let in: ${claimed} belongs to the node at ${formatAddress(hostOf(peer))}. They are forged, ` +
          'or set "VerifySource": "inner" if that peer is behind NAT or published another address with --public-ip',
      )
    } else {
      log.warn(`Packets from ${origin} are not let in: they claim to be from ${claimed}, which no other node can have`)
    }
  }
}
