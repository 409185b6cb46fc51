// path-lengths.ts - looks for the longest packet that reaches each peer, by echo requests of so many bytes: whom to ask now, with
// what size, and what the answers say. Pure.
//
// Packetization Layer Path MTU Discovery (RFC 8899), with the peer's kernel for the other end. A size does not pass when none of
// its requests was answered, and small ones were that were sent along: a peer that is down, or a path that loses packets of any
// length, says nothing of the length that passes.

import type { Address } from '../../net/address.ts'
import { lengthsUpTo } from '../../net/lengths.ts'

/** A size is asked so often (RFC 8899 section 5.1.2, MAX_PROBES), so far apart (5.1.1, PROBE_TIMER). */
const TRIES = 3
const TRY_EVERY_MS = 1_000
/** The longest is asked more often before it is said not to pass: a path of which one packet in twenty is lost is whole. */
const TRIES_OF_LONGEST = 5
/** For each small request that is lost beside it a size is asked twice more; never more often than this. */
const MOST_TRIES = 15
/**
 * A length that passes is asked again this often (5.1.1, CONFIRMATION_TIMER), and a longer one this often (PMTU_RAISE_TIMER): requests
 * of our own are lost where it does not pass, and nobody's data.
 */
const CONFIRM_EVERY_MS = 10_000
/** Less often where peers are many: one of them in so long, which bounds the cost, whatever their number. */
const CONFIRM_ONE_MS = 300
const RAISE_EVERY_MS = 30_000
/** A peer that was silent altogether is asked again then, and one that came, or has another endpoint, at some moment of the first. */
const RETRY_MS = 10_000
const SOON_MS = 1_000
/** Whatever the number of peers, so many are asked in a second at most, each by one request, and a small one along with it. */
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
  /** The length of the packet; 0 for as few bytes as it takes. */
  readonly bytes: number
}

/** The length of packets that reaches a peer. */
export interface PathLength {
  /** True when one as long as containers may send does. */
  readonly isWhole: boolean
  /** The longest that does; undefined while it is looked for, of a path that is not whole. */
  readonly bytes: number | undefined
  /** The time when the path became whole, or ceased to be, as far as is known; by the caller's clock. */
  readonly since: number
}

export interface PathSearch {
  /** These and no others are peers from now on. */
  keep(peers: readonly SearchedPeer[], now: number): void
  /** Says what a peer may be asked from now on; undefined when it is no peer any more. */
  look(key: string, peer: Omit<SearchedPeer, 'key'> | undefined, now: number): void
  /** The questions to ask now. To be called about once a second. */
  due(now: number): readonly Question[]
  /** An answer came. */
  answered(sequence: number, from: Address, now: number): void
  /** The longest packet that was found to reach a peer, by lease key; without those that a packet of any length reaches. */
  limits(): ReadonlyMap<string, number>
  /** The results by lease key, without peers of which nothing is known yet. */
  lengths(): ReadonlyMap<string, PathLength>
  /** The result of one; undefined while nothing is known of it. */
  length(key: string): PathLength | undefined
  /** The keys of those whose result is another since this was last called. */
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
 * A search through the sizes in order: the one at `passes` reaches the peer, the one at `fails` does not, `at` is being
 * asked.
 */
interface Search {
  readonly sizes: readonly number[]
  /** True when it began with the longest. */
  readonly isForLonger: boolean
  passes: number
  fails: number
  at: number
  tries: number
  /** The small requests that were sent along with `at`, and those of them that were answered. */
  small: number
  answered: number
}

/**
 * `overhead` is what stands around a packet. `wanted` is the longest packet that containers may send, and `knownMtu` says what none may
 * be longer than, by what the kernel knows of the path; undefined where a peer is not to be asked now. `random` gives 0 to 1.
 */
export function createPathSearch(
  overhead: number,
  wanted: number,
  knownMtu: (key: string) => number | undefined,
  random: () => number,
): PathSearch {
  const known = new Map<string, Known>()
  /**
   * The peers whose search is under way. Below: the others by the second in which they are due, and those whose second
   * has come, first come first.
   */
  const begun = new Set<Known>()
  const later = new Map<number, Known[]>()
  const come: Known[] = []
  let taken = 0 // of those
  const limits = new Map<string, number>()
  /** Requests of the sizes that are asked now. */
  const waiting = new Map<number, { readonly peer: Known; readonly search: Search; readonly at: number | undefined }>()
  let news = new Set<string>()
  let next = Math.floor(random() * SEQUENCES)

  function begin(peer: Known, longest: number, now: number): Search {
    const sizes = lengthsUpTo(longest, overhead)
    const confirmed = peer.limit === undefined || now >= peer.raiseAt ? -1 : sizes.indexOf(peer.limit)
    const at = confirmed === -1 ? sizes.length - 1 : confirmed
    return { sizes, isForLonger: confirmed === -1, passes: -1, fails: at + 1, at, tries: 0, small: 0, answered: 0 }
  }

  /** Learns the longest packet that reaches a peer; undefined while all that is known is that the path is not whole. */
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

  /** Whoever is due, the search that is under way first, then whoever waits longest. */
  function* turns(now: number): Generator<Known, void, undefined> {
    yield* [...begun].filter(({ nextAt }) => nextAt <= now).toSorted((a, b) => a.nextAt - b.nextAt)
    for (const second of [...later.keys()].filter((each) => each * 1000 <= now).toSorted((a, b) => a - b)) {
      for (const peer of (later.get(second) ?? []).toSorted((a, b) => a.nextAt - b.nextAt)) come.push(peer)
      later.delete(second)
    }
    while (taken < come.length) {
      const peer = come[taken++]
      // A peer that is none any more, or is asked already, is skipped.
      if (peer && known.get(peer.key) === peer && !peer.search) yield peer
    }
    come.length = 0
    taken = 0
  }

  function forget(peer: Known): void {
    for (const [sequence, request] of waiting) if (request.peer === peer) waiting.delete(sequence)
  }

  /** Concludes a question: it passed, or did not. */
  function conclude(peer: Known, search: Search, isPassing: boolean, now: number): void {
    if (isPassing) search.passes = search.at
    else search.fails = search.at
    const { sizes, passes, fails } = search
    if (fails - passes > 1) {
      // Of how much less passes there is no word yet. That something longer than a small request does says that it is the length.
      if (passes !== -1 && peer.length?.isWhole !== false) learn(peer, undefined, now)
      forget(peer)
      search.at = (passes + fails) >> 1
      Object.assign(search, { tries: 0, small: 0, answered: 0 })
      peer.nextAt = now
      return
    }
    // When only small requests are answered, somebody drops long echo requests.
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

  function ask(peer: Known, now: number): readonly Question[] {
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
      // A length that was too long by then was reported to the kernel by somebody, or it would not have said so.
      if ((before.sizes[before.at] ?? 0) <= longest) conclude(peer, before, false, now)
      if (peer.nextAt > now) return []
    }
    // The kernel learnt or forgot something: what is asked is another question.
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

  /** So often the size that is asked is asked before it is said not to pass. */
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
      let asked = 0
      for (const peer of turns(now)) {
        const more = ask(peer, now)
        if (more.length > 0) asked++
        questions.push(...more)
        if (asked === ASKED_A_SECOND) break
      }
      return questions
    },
    answered(sequence, from, now) {
      const { peer, search, at } = waiting.get(sequence) ?? {}
      // Whoever is not asked may say what it likes.
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
