// unknown-senders.ts - says whose packets the engine does not let in, each once, and what to do.

import type { Log } from '../../base/log.ts'
import { formatAddress, netsText } from '../../net/address.ts'
import { reasonToDrop, type FilterOptions, type Stranger } from '../engine/filter.ts'
import { createPeerTable, type Peer, type PeerTable } from '../engine/peers.ts'

/** Strangers that are remembered as named. */
const MOST_NAMED = 1024
/** Anybody can pretend to be many: so many are named a minute, and the others later if they still send. */
const NAMED_A_MINUTE = 8

export interface StrangerLog {
  /** Sets where the peers are asked for when there are strangers. */
  setPeers(peers: () => readonly Peer[]): void
  /** Tells of peers that have changed since. */
  changePeers(peers: readonly Peer[]): void
  /** Names those of the call before that are new and still are strangers: a lease may come after its node's first packets. */
  name(strangers: readonly Stranger[]): void
}

/** `now` is in ms and never goes back. */
export function createStrangerLog(
  filter: FilterOptions,
  log: Log,
  now: () => number = () => performance.now(),
): StrangerLog {
  let peers: () => readonly Peer[] = () => []
  let table: PeerTable | undefined
  let before: readonly Stranger[] = []
  const named = new Set<string>()
  let namedAt: readonly number[] = []
  return {
    setPeers(all) {
      peers = all
      table = undefined
    },
    changePeers: (changes) => table?.change(changes),
    name(newest) {
      const strangers = before
      before = newest
      if (strangers.length === 0) return
      const known = (table ??= createPeerTable(peers()))
      const early = new Set<string>()
      for (const stranger of strangers) {
        const from = formatAddress(stranger.from)
        // The peers of now decide: a source that was unknown may be a peer's by now, and forged.
        const reason = reasonToDrop(filter, known, stranger)
        if (reason === undefined) {
          if (!named.has(`early ${from}`)) early.add(from)
          continue
        }
        const key = `${reason} ${from}`
        namedAt = namedAt.filter((at) => now() - at < 60_000)
        if (named.has(key) || namedAt.length >= NAMED_A_MINUTE) continue
        remember(key)
        namedAt = [...namedAt, now()]
        warn({ ...stranger, reason }, known)
      }
      for (const from of early) remember(`early ${from}`)
      if (early.size > 0)
        log.info(`Packets that came before their sender's lease was known were dropped: ${[...early].join(', ')}`)
    },
  }

  function remember(key: string): void {
    named.add(key)
    if (named.size > MOST_NAMED) named.delete([...named][0] as string)
  }

  function warn(stranger: Stranger, known: PeerTable): void {
    const { from, source, destination, reason } = stranger
    const [sender, claimed] = [formatAddress(from), formatAddress(source)]
    const peer = known.find(source)
    if (reason === 'rx_drop_destination') {
      const [to, subnet] = [formatAddress(destination), netsText(filter.subnet)]
      log.warn(
        `Packets from ${sender} are not let in: they are for ${to}, which is not in this node's subnet ${subnet}`,
      )
    } else if (filter.provesSender && peer) {
      log.warn(
        `Packets from ${sender} are not let in: ${claimed} belongs to the node at ${formatAddress(peer.endpoint)}, and with WireGuard a ` +
          'node may send from its own subnet alone. See which node has which subnet: `weft lease ls`',
      )
    } else if (filter.provesSender && reason === 'rx_drop_unknown_sender') {
      log.warn(
        `Packets from ${sender} are not let in: they come from ${claimed}, and with WireGuard a node may send from its own subnet alone. ` +
          'Have that node masquerade them (`--ip-masq`), or have the program there use the address of the WireGuard device',
      )
    } else if (reason === 'rx_drop_unknown_sender') {
      log.warn(
        `Packets from ${sender} are not let in: no lease says that ${claimed} is there. If that is a node, see that its lease ` +
          'is in the store; else have the firewall keep it out',
      )
    } else if (peer) {
      log.warn(
        `Packets from ${sender} are not let in: ${claimed} belongs to the node at ${formatAddress(peer.endpoint)}. They are forged, ` +
          'or set "VerifySource": "inner" if that peer is behind NAT or published another address with --public-ip',
      )
    } else {
      log.warn(`Packets from ${sender} are not let in: they claim to be from ${claimed}, which no other node can have`)
    }
  }
}
