// path-lengths.ts - searches the longest packet that reaches each peer: decides which peer gets an echo request of which length, and
// evaluates the answers. Pure.
//
// This is Packetization Layer Path MTU Discovery (RFC 8899) with the peer's kernel as the other end. A length does not pass if no request
// of that length was answered, but small requests that were sent with it were. Without the small requests, a peer that is down or a path
// that loses packets of any length would look the same.

import type { Address } from '../../net/address.ts'
import { lengthsUpTo } from '../../net/lengths.ts'

/** The number of requests of one length (RFC 8899 section 5.1.2, MAX_PROBES) and their interval (5.1.1, PROBE_TIMER). */
const TRIES = 3
const TRY_EVERY_MS = 1_000
/** The number of requests of the longest length, so that a path which loses one packet in twenty does not count as narrow. */
const TRIES_OF_LONGEST = 5
/** The maximum number of requests of one length. Each lost small request adds two requests. */
const MOST_TRIES = 15
/**
 * The interval at which a length that passes is tried again (5.1.1, CONFIRMATION_TIMER). If a length does not pass any more, only the
 * requests are lost, and no data. RAISE_EVERY_MS is the interval for a longer length (PMTU_RAISE_TIMER).
 */
const CONFIRM_EVERY_MS = 10_000
/** The time in ms that each peer adds to the interval CONFIRM_EVERY_MS, so that many peers do not cost more. */
const CONFIRM_ONE_MS = 300
const RAISE_EVERY_MS = 30_000
/** The pause after a search in which the peer was silent, and the time within which a new or changed peer is searched. */
const RETRY_MS = 10_000
const SOON_MS = 1_000
/** The maximum number of peers that get a request per second, each with a small request in addition. */
const ASKED_A_SECOND = 5
/** ICMP's sequence numbers (RFC 792). */
const SEQUENCES = 0x10000
export interface SearchedPeer {
  /** The key of the peer's lease. */
  readonly key: string
  /** The endpoint of its datagrams; another endpoint is another path. */
  readonly endpoint: string
  /** The address that answers through the data path. */
  readonly address: Address
}

export interface Question extends SearchedPeer {
  readonly sequence: number
  /** The length of the packet; 0 for the smallest request. */
  readonly bytes: number
}

/** The result of the search for the longest packet that reaches one peer. */
export interface PathLength {
  /** True if a packet as long as containers may send reaches the peer. */
  readonly isWhole: boolean
  /** The longest packet that reaches the peer; undefined while the search on a narrow path runs. */
  readonly bytes: number | undefined
  /** The time when the path became whole or narrow, by the caller's clock. */
  readonly since: number
}

export interface PathSearch {
  /** Replaces the set of peers. */
  keep(peers: readonly SearchedPeer[], now: number): void
  /** Changes the addresses of one peer; undefined removes the peer. */
  look(key: string, peer: Omit<SearchedPeer, 'key'> | undefined, now: number): void
  /** Returns the requests to send now. Must be called about once a second. */
  due(now: number): readonly Question[]
  /** Evaluates an answer. */
  answered(sequence: number, from: Address, now: number): void
  /** Returns the longest packet that reaches each peer with a narrow path, by lease key. */
  limits(): ReadonlyMap<string, number>
  /** Returns the results by lease key, without peers that have none yet. */
  lengths(): ReadonlyMap<string, PathLength>
  /** Returns the result of one peer; undefined if it has none yet. */
  length(key: string): PathLength | undefined
  /** Returns the keys of the peers whose result has changed since the last call. */
  takeNews(): ReadonlySet<string>
}

interface Known extends SearchedPeer {
  nextAt: number
  raiseAt: number
  limit: number | undefined
  search: Search | undefined
  length: PathLength | undefined
}

/**
 * A binary search through the sorted sizes: the size at index `passes` reaches the peer, the size at `fails` does not, and the size at `at`
 * is tried now.
 */
interface Search {
  readonly sizes: readonly number[]
  /** True if the search began with the longest size. */
  readonly isForLonger: boolean
  passes: number
  fails: number
  at: number
  tries: number
  /** The number of small requests that were sent with the size at `at`, and the number of their answers. */
  small: number
  answered: number
}

/**
 * `overhead` is the overhead of a packet in bytes. `wanted` is the longest packet that containers may send. `knownMtu` returns the path MTU
 * that the kernel knows; undefined if the peer must not get requests now. `random` returns 0 to 1.
 */
export function createPathSearch(
  overhead: number,
  wanted: number,
  knownMtu: (key: string) => number | undefined,
  random: () => number,
): PathSearch {
  const known = new Map<string, Known>()
  /**
   * The peers with a running search. `later` has the other peers by the second in which they are due, and `come` those whose second has
   * come, in order.
   */
  const begun = new Set<Known>()
  const later = new Map<number, Known[]>()
  const come: Known[] = []
  let taken = 0 // the number of peers in `come` that were handled
  const limits = new Map<string, number>()
  /** The requests that wait for an answer, by sequence number. */
  const waiting = new Map<number, { readonly peer: Known; readonly search: Search; readonly at: number | undefined }>()
  let news = new Set<string>()
  let next = Math.floor(random() * SEQUENCES)

  function begin(peer: Known, longest: number, now: number): Search {
    const sizes = lengthsUpTo(longest, overhead)
    const confirmed = peer.limit === undefined || now >= peer.raiseAt ? -1 : sizes.indexOf(peer.limit)
    const at = confirmed === -1 ? sizes.length - 1 : confirmed
    return { sizes, isForLonger: confirmed === -1, passes: -1, fails: at + 1, at, tries: 0, small: 0, answered: 0 }
  }

  /** Records the longest packet that reaches a peer; undefined if only known that the path is narrow. */
  function learn(peer: Known, bytes: number | undefined, now: number): void {
    const isWhole = bytes !== undefined && bytes >= wanted
    const since = peer.length?.isWhole === isWhole ? peer.length.since : now
    if (peer.length?.since !== since || peer.length.bytes !== bytes) news.add(peer.key)
    peer.length = { isWhole, bytes, since }
  }

  function end(peer: Known, nextAt: number): void {
    forget(peer)
    peer.search = undefined
    begun.delete(peer)
    schedule(peer, nextAt)
  }

  function schedule(peer: Known, nextAt: number): void {
    peer.nextAt = nextAt
    const second = Math.ceil(nextAt / 1000)
    const others = later.get(second)
    if (others) others.push(peer)
    else later.set(second, [peer])
  }

  /** Yields the due peers: first those with a running search, then those that wait longest. */
  function* turns(now: number): Generator<Known, void, undefined> {
    yield* [...begun].filter(({ nextAt }) => nextAt <= now).toSorted((a, b) => a.nextAt - b.nextAt)
    for (const second of [...later.keys()].filter((each) => each * 1000 <= now).toSorted((a, b) => a - b)) {
      for (const peer of (later.get(second) ?? []).toSorted((a, b) => a.nextAt - b.nextAt)) come.push(peer)
      later.delete(second)
    }
    while (taken < come.length) {
      const peer = come[taken++]
      // A removed peer, and a peer whose search runs already, is skipped.
      if (peer && known.get(peer.key) === peer && !peer.search) yield peer
    }
    come.length = 0
    taken = 0
  }

  function forget(peer: Known): void {
    for (const [sequence, request] of waiting) if (request.peer === peer) waiting.delete(sequence)
  }

  /** Evaluates whether the tried size passed. */
  function conclude(peer: Known, search: Search, isPassing: boolean, now: number): void {
    if (isPassing) search.passes = search.at
    else search.fails = search.at
    const { sizes, passes, fails } = search
    if (fails - passes > 1) {
      // The longest size that passes is not known yet. But a size above the small request passed, so the path is narrow.
      if (passes !== -1 && peer.length?.isWhole !== false) learn(peer, undefined, now)
      forget(peer)
      search.at = (passes + fails) >> 1
      Object.assign(search, { tries: 0, small: 0, answered: 0 })
      peer.nextAt = now
      return
    }
    // If only small requests are answered, a firewall drops long echo requests.
    if (passes === -1) peer.length = undefined
    else {
      learn(peer, sizes[passes], now)
      const found = passes === sizes.length - 1 ? undefined : sizes[passes]
      if (search.isForLonger || found !== peer.limit) peer.raiseAt = now + RAISE_EVERY_MS
      peer.limit = found
      if (found === undefined) limits.delete(peer.key)
      else limits.set(peer.key, found)
    }
    end(peer, now + Math.max(CONFIRM_EVERY_MS, known.size * CONFIRM_ONE_MS))
  }

  function newQuestion(peer: Known, search: Search, at: number | undefined): Question {
    const sequence = next
    next = (next + 1) % SEQUENCES
    waiting.set(sequence, { peer, search, at })
    const { key, endpoint, address } = peer
    return { key, endpoint, address, sequence, bytes: (at === undefined ? undefined : search.sizes[at]) ?? 0 }
  }

  function questionsFor(peer: Known, now: number): readonly Question[] {
    const longest = knownMtu(peer.key)
    if (longest === undefined) {
      end(peer, now + RETRY_MS)
      return []
    }
    const before = peer.search
    const isSilent = before && before.answered === 0 && before.tries >= leastTriesOf(before)
    if (before && (isSilent || before.tries >= triesOf(before))) {
      if (isSilent || before.tries >= MOST_TRIES) {
        end(peer, now + RETRY_MS)
        return []
      }
      // If the kernel's path MTU is smaller meanwhile, a router has reported it, so this size needs no conclusion.
      if ((before.sizes[before.at] ?? 0) <= longest) conclude(peer, before, false, now)
      if (peer.nextAt > now) return []
    }
    // The kernel's path MTU changed, so the search starts again.
    if (peer.search?.sizes.at(-1) !== longest) {
      forget(peer)
      peer.search = begin(peer, longest, now)
      begun.add(peer)
    }
    const { search } = peer
    search.tries++
    peer.nextAt = now + TRY_EVERY_MS
    if (search.tries === 1) return [newQuestion(peer, search, search.at)]
    search.small++
    return [newQuestion(peer, search, search.at), newQuestion(peer, search, undefined)]
  }

  /** Returns the number of requests after which the tried size does not pass. */
  function triesOf(search: Search): number {
    return Math.min(MOST_TRIES, leastTriesOf(search) + 2 * (search.small - search.answered))
  }

  function leastTriesOf({ sizes, at }: Search): number {
    return at === sizes.length - 1 ? TRIES_OF_LONGEST : TRIES
  }

  function look(key: string, place: Omit<SearchedPeer, 'key'> | undefined, now: number): void {
    const before = known.get(key)
    if (before && before.endpoint === place?.endpoint && before.address === place.address) return
    if (before) {
      forget(before)
      begun.delete(before)
      known.delete(key)
      limits.delete(key)
    }
    if (!place) return
    const { endpoint, address } = place
    const nothing = { limit: undefined, search: undefined, length: undefined }
    const peer: Known = { key, endpoint, address, nextAt: 0, raiseAt: 0, ...nothing }
    known.set(key, peer)
    schedule(peer, now + SOON_MS * random())
  }

  return {
    keep(peers, now) {
      const keys = new Set(peers.map(({ key }) => key))
      for (const key of known.keys()) if (!keys.has(key)) look(key, undefined, now)
      for (const peer of peers) look(peer.key, peer, now)
    },
    look,
    due(now) {
      const questions: Question[] = []
      let peersAsked = 0
      for (const peer of turns(now)) {
        const more = questionsFor(peer, now)
        if (more.length > 0) peersAsked++
        questions.push(...more)
        if (peersAsked === ASKED_A_SECOND) break
      }
      return questions
    },
    answered(sequence, from, now) {
      const { peer, search, at } = waiting.get(sequence) ?? {}
      // An answer from an address that got no request proves nothing.
      if (!peer || !search || peer.address !== from) return
      waiting.delete(sequence)
      if (at === undefined) search.answered++
      else conclude(peer, search, true, now)
    },
    limits: () => new Map(limits),
    length: (key) => known.get(key)?.length,
    takeNews() {
      const before = news
      news = new Set()
      return before
    },
    lengths: () => new Map([...known].flatMap(([key, { length }]) => (length ? [[key, length] as const] : []))),
  }
}
