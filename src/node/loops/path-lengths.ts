// path-lengths.ts - searches for the longest packet that reaches each peer: decides which peer gets an echo request of
// which length, and evaluates the answers. Pure.
//
// This is Packetization Layer Path MTU Discovery (RFC 8899), in which the peer's kernel answers. A length counts as too
// long if the peer answered no request of that length, but answered small requests that were sent at the same time.
// Without the small requests, a peer that is down, or a path that loses packets of any length, would look like a path
// that loses long packets.

import type { Address } from '../../net/address.ts'
import { lengthsUpTo } from '../../net/lengths.ts'

/**
 * The number of unanswered requests of one length after which the length counts as too long (RFC 8899 section 5.1.2,
 * MAX_PROBES). TRY_EVERY_MS is the interval of these requests in ms (section 5.1.1, PROBE_TIMER).
 */
const TRIES = 3
const TRY_EVERY_MS = 1_000
/**
 * The number of unanswered requests after which the greatest length counts as too long. It exceeds TRIES, so that a
 * path which loses one packet in twenty does not count as a path that loses long packets.
 */
const TRIES_OF_LONGEST = 5
/**
 * The maximum number of requests of one length. Each small request without an answer adds two requests, because the
 * path then loses packets of any length.
 */
const MOST_TRIES = 15
/**
 * The interval in ms at which weftd checks that packets of a known length still reach the peer (RFC 8899 section 5.1.1,
 * CONFIRMATION_TIMER). weftd checks with echo requests, so a failed check loses no data. RAISE_EVERY_MS is the interval
 * at which weftd tries a greater length (PMTU_RAISE_TIMER).
 */
const CONFIRM_EVERY_MS = 10_000
/**
 * The time in ms that each peer adds to the interval CONFIRM_EVERY_MS, so that the number of requests per second does
 * not grow with the number of peers.
 */
const CONFIRM_ONE_MS = 300
const RAISE_EVERY_MS = 30_000
/**
 * The pause in ms after a search in which the peer answered no request. SOON_MS is the maximum delay in ms of the
 * search for a new or changed peer.
 */
const RETRY_MS = 10_000
const SOON_MS = 1_000
/**
 * The maximum number of peers per second to which a request is sent. Each of these peers gets a small request in
 * addition.
 */
const ASKED_A_SECOND = 5
/** The number of different ICMP sequence numbers (RFC 792). */
const SEQUENCES = 0x10000
export interface SearchedPeer {
  readonly key: string
  /** The endpoint of the peer's datagrams, as address and port. A new endpoint means a new path to the peer. */
  readonly endpoint: string
  /** The address of the peer that answers echo requests through the data path. */
  readonly address: Address
}

export interface Question extends SearchedPeer {
  readonly sequence: number
  /** The length of the request packet in bytes; 0 for the smallest possible request. */
  readonly bytes: number
}

/** The result of the search for the longest packet that reaches one peer. */
export interface PathLength {
  /** True if the longest packet that containers may send reaches the peer. */
  readonly isWhole: boolean
  /**
   * The length in bytes of the longest packet that reaches the peer; undefined if full-size packets do not reach it and
   * the search still runs.
   */
  readonly bytes: number | undefined
  /** The time when full-size packets stopped reaching the peer, or began to reach it, in ms of the caller's clock. */
  readonly since: number
}

interface Known extends SearchedPeer {
  nextAt: number
  raiseAt: number
  limit: number | undefined
  search: Search | undefined
  length: PathLength | undefined
}

/**
 * A binary search through the sorted sizes: the size at index `passes` reaches the peer, the size at `fails` does not,
 * and the size at `at` is tried now.
 */
interface Search {
  readonly sizes: readonly number[]
  /** True if the search began with the greatest length. */
  readonly isForLonger: boolean
  passes: number
  fails: number
  at: number
  tries: number
  /**
   * The number of small requests that were sent together with the tried size; `answered` is the number of their
   * answers.
   */
  small: number
  answered: number
}

export class PathSearch {
  /** The number of bytes that the encapsulation adds to a packet. */
  readonly #overhead: number
  /** The longest packet in bytes that containers may send. */
  readonly #wanted: number
  /** Returns the path MTU that the kernel knows for a peer; undefined if no requests may be sent to the peer now. */
  readonly #knownMtu: (key: string) => number | undefined
  readonly #random: () => number
  readonly #known = new Map<string, Known>()
  /** The peers for which a search for the longest packet is running. */
  readonly #begun = new Set<Known>()
  /** The peers without a running search, by the second in which their next search is due. */
  readonly #later = new Map<number, Known[]>()
  /** The peers for which a request is due, in the order of their due times. */
  readonly #come: Known[] = []
  /** The number of peers at the beginning of `#come` that were already handled. */
  #taken = 0
  /**
   * For each peer that full-size packets do not reach, by lease key: the length in bytes of the longest packet that
   * reaches the peer.
   */
  readonly #limits = new Map<string, number>()
  /** A copy of `#limits` for the caller; undefined if `#limits` has changed since the copy was made. */
  #shownLimits: ReadonlyMap<string, number> | undefined
  readonly #waiting = new Map<
    number,
    { readonly peer: Known; readonly search: Search; readonly at: number | undefined }
  >()
  #news = new Set<string>()
  #next: number

  constructor(overhead: number, wanted: number, knownMtu: (key: string) => number | undefined, random: () => number) {
    this.#overhead = overhead
    this.#wanted = wanted
    this.#knownMtu = knownMtu
    this.#random = random
    this.#next = Math.floor(random() * SEQUENCES)
  }

  /**
   * Sets the addresses of one peer, or removes the peer if `place` is undefined. `now` is the time in ms of the
   * caller's clock.
   */
  look(key: string, place: Omit<SearchedPeer, 'key'> | undefined, now: number): void {
    const before = this.#known.get(key)
    if (before && before.endpoint === place?.endpoint && before.address === place.address) return
    if (before) {
      this.#forget(before)
      this.#begun.delete(before)
      this.#known.delete(key)
      this.#setLimit(key, undefined)
    }
    if (!place) return
    const { endpoint, address } = place
    const nothing = { limit: undefined, search: undefined, length: undefined }
    const peer: Known = { key, endpoint, address, nextAt: 0, raiseAt: 0, ...nothing }
    this.#known.set(key, peer)
    this.#schedule(peer, now + SOON_MS * this.#random())
  }

  /** Replaces the set of peers. `now` is the time in ms of the caller's clock. */
  keep(peers: readonly SearchedPeer[], now: number): void {
    const keys = new Set(peers.map(({ key }) => key))
    for (const key of this.#known.keys()) if (!keys.has(key)) this.look(key, undefined, now)
    for (const peer of peers) this.look(peer.key, peer, now)
  }

  /** Returns the requests to send now. The caller must call `due` about once a second. */
  due(now: number): readonly Question[] {
    const questions: Question[] = []
    let peersAsked = 0
    for (const peer of this.#turns(now)) {
      const more = this.#questionsFor(peer, now)
      if (more.length > 0) peersAsked++
      questions.push(...more)
      if (peersAsked === ASKED_A_SECOND) break
    }
    return questions
  }

  answered(sequence: number, from: Address, now: number): void {
    const { peer, search, at } = this.#waiting.get(sequence) ?? {}
    // Ignore an answer from an address to which weftd sent no request, because the answer shows nothing about the peer.
    if (!peer || !search || peer.address !== from) return
    this.#waiting.delete(sequence)
    if (at === undefined) search.answered++
    else this.#conclude(peer, search, true, now)
  }

  /**
   * Returns, for each peer that full-size packets do not reach, the length of the longest packet that reaches it, by
   * lease key. Returns the same map as the last call if no limit has changed.
   */
  limits(): ReadonlyMap<string, number> {
    return (this.#shownLimits ??= new Map(this.#limits))
  }

  #setLimit(key: string, bytes: number | undefined): void {
    if (this.#limits.get(key) === bytes) return
    this.#shownLimits = undefined
    if (bytes === undefined) this.#limits.delete(key)
    else this.#limits.set(key, bytes)
  }

  /** Returns the result of the search for one peer; undefined if the peer has no result yet. */
  length(key: string): PathLength | undefined {
    return this.#known.get(key)?.length
  }

  takeNews(): ReadonlySet<string> {
    const before = this.#news
    this.#news = new Set()
    return before
  }

  /** Returns the results by lease key. Peers without a result are left out. */
  lengths(): ReadonlyMap<string, PathLength> {
    return new Map([...this.#known].flatMap(([key, { length }]) => (length ? [[key, length] as const] : [])))
  }

  /**
   * Begins to search for the longest packet that reaches `peer`. Tries the size that last reached the peer. Tries the
   * greatest size if no size has reached the peer, or if it is time to try a greater size.
   */
  #begin(peer: Known, longest: number, now: number): Search {
    const sizes = lengthsUpTo(longest, this.#overhead)
    const confirmed = peer.limit === undefined || now >= peer.raiseAt ? -1 : sizes.indexOf(peer.limit)
    const at = confirmed === -1 ? sizes.length - 1 : confirmed
    return { sizes, isForLonger: confirmed === -1, passes: -1, fails: at + 1, at, tries: 0, small: 0, answered: 0 }
  }

  /**
   * Records the longest packet that reaches a peer. `bytes` is undefined if weftd only knows that full-size packets do
   * not reach the peer.
   */
  #learn(peer: Known, bytes: number | undefined, now: number): void {
    const isWhole = bytes !== undefined && bytes >= this.#wanted
    const since = peer.length?.isWhole === isWhole ? peer.length.since : now
    if (peer.length?.since !== since || peer.length.bytes !== bytes) this.#news.add(peer.key)
    peer.length = { isWhole, bytes, since }
  }

  /** Ends the search of a peer. The next search of the peer is due at `nextAt`. */
  #end(peer: Known, nextAt: number): void {
    this.#forget(peer)
    peer.search = undefined
    this.#begun.delete(peer)
    this.#schedule(peer, nextAt)
  }

  /** Schedules a search for a peer that has no running search. */
  #schedule(peer: Known, nextAt: number): void {
    peer.nextAt = nextAt
    const second = Math.ceil(nextAt / 1000)
    const others = this.#later.get(second)
    if (others) others.push(peer)
    else this.#later.set(second, [peer])
  }

  /**
   * Yields the peers to which a request is due: first the peers with a running search, then the rest, the longest
   * overdue first.
   */
  *#turns(now: number): Generator<Known, void, undefined> {
    yield* [...this.#begun].filter(({ nextAt }) => nextAt <= now).toSorted((a, b) => a.nextAt - b.nextAt)
    for (const second of [...this.#later.keys()].filter((each) => each * 1000 <= now).toSorted((a, b) => a - b)) {
      for (const peer of (this.#later.get(second) ?? []).toSorted((a, b) => a.nextAt - b.nextAt)) this.#come.push(peer)
      this.#later.delete(second)
    }
    while (this.#taken < this.#come.length) {
      const peer = this.#come[this.#taken++]
      // Skip a peer that was removed, or whose search already runs.
      if (peer && this.#known.get(peer.key) === peer && !peer.search) yield peer
    }
    this.#come.length = 0
    this.#taken = 0
  }

  /** Forgets the requests to a peer, so that late answers have no effect. */
  #forget(peer: Known): void {
    for (const [sequence, request] of this.#waiting) if (request.peer === peer) this.#waiting.delete(sequence)
  }

  /** Records whether the tried size reaches the peer (`isPassing`), and chooses the next size. */
  #conclude(peer: Known, search: Search, isPassing: boolean, now: number): void {
    if (isPassing) search.passes = search.at
    else search.fails = search.at
    const { sizes, passes, fails } = search
    if (fails - passes > 1) {
      // The greatest size that reaches the peer is not known yet. But a greater size failed and the size at `passes`
      // reached the peer. So record that full-size packets do not reach the peer.
      if (passes !== -1 && peer.length?.isWhole !== false) this.#learn(peer, undefined, now)
      this.#forget(peer)
      search.at = (passes + fails) >> 1
      Object.assign(search, { tries: 0, small: 0, answered: 0 })
      peer.nextAt = now
      return
    }
    // If the peer answers only small requests, a firewall drops long echo requests, so the search has no result.
    if (passes === -1) peer.length = undefined
    else {
      this.#learn(peer, sizes[passes], now)
      const found = passes === sizes.length - 1 ? undefined : sizes[passes]
      if (search.isForLonger || found !== peer.limit) peer.raiseAt = now + RAISE_EVERY_MS
      peer.limit = found
      this.#setLimit(peer.key, found)
    }
    this.#end(peer, now + Math.max(CONFIRM_EVERY_MS, this.#known.size * CONFIRM_ONE_MS))
  }

  /** Returns a request of the size at index `at`, or a small request if `at` is undefined. */
  #newQuestion(peer: Known, search: Search, at: number | undefined): Question {
    const sequence = this.#next
    this.#next = (this.#next + 1) % SEQUENCES
    this.#waiting.set(sequence, { peer, search, at })
    const { key, endpoint, address } = peer
    return { key, endpoint, address, sequence, bytes: (at === undefined ? undefined : search.sizes[at]) ?? 0 }
  }

  /**
   * Returns the requests to send now to a peer. If the tried size got no answer after enough requests, concludes that
   * this size does not reach the peer.
   */
  #questionsFor(peer: Known, now: number): readonly Question[] {
    const longest = this.#knownMtu(peer.key)
    if (longest === undefined) {
      this.#end(peer, now + RETRY_MS)
      return []
    }
    const before = peer.search
    const isSilent = before && before.answered === 0 && before.tries >= leastTriesOf(before)
    if (before && (isSilent || before.tries >= triesOf(before))) {
      if (isSilent || before.tries >= MOST_TRIES) {
        this.#end(peer, now + RETRY_MS)
        return []
      }
      // If the kernel's path MTU is now smaller than the tried size, a router has reported the smaller MTU. In that
      // case draw no conclusion from the missing answers.
      if ((before.sizes[before.at] ?? 0) <= longest) this.#conclude(peer, before, false, now)
      if (peer.nextAt > now) return []
    }
    // The kernel's path MTU changed, so start the search again.
    if (peer.search?.sizes.at(-1) !== longest) {
      this.#forget(peer)
      peer.search = this.#begin(peer, longest, now)
      this.#begun.add(peer)
    }
    const { search } = peer
    search.tries++
    peer.nextAt = now + TRY_EVERY_MS
    if (search.tries === 1) return [this.#newQuestion(peer, search, search.at)]
    search.small++
    return [this.#newQuestion(peer, search, search.at), this.#newQuestion(peer, search, undefined)]
  }
}

/** Returns the number of requests after which the tried size counts as too long for the path. */
function triesOf(search: Search): number {
  return Math.min(MOST_TRIES, leastTriesOf(search) + 2 * (search.small - search.answered))
}

function leastTriesOf({ sizes, at }: Search): number {
  return at === sizes.length - 1 ? TRIES_OF_LONGEST : TRIES
}
