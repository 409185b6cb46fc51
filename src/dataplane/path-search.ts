// path-search.ts - looks for the longest packet that reaches each peer, by echo requests of so many bytes: whom to ask now, with
// what size, and what the answers say. Pure.
//
// Packetization Layer Path MTU Discovery (RFC 8899), with the peer's kernel for the other end. A size does not pass when none of
// three requests was answered, and a small one was that was sent along: a peer that is down says nothing of its path.

import type { Ipv4 } from '../net/ipv4.ts'

/** A size is asked so often (RFC 8899 section 5.1.2, MAX_PROBES), so far apart (5.1.1, PROBE_TIMER). */
const TRIES = 3
const TRY_EVERY_MS = 1_000
/** What passes is asked again so often (5.1.1, CONFIRMATION_TIMER), and what is longer (PMTU_RAISE_TIMER). */
const CONFIRM_EVERY_MS = 60_000
const RAISE_EVERY_MS = 600_000
/** A peer that was silent altogether is asked again then, and one that came, or has another endpoint, at some moment of the first. */
const RETRY_MS = 10_000
const SOON_MS = 1_000
/** Whatever the number of peers, so many are asked in a second at most, each by one request, and a small one along with it. */
const ASKED_A_SECOND = 5
/** ICMP's sequence numbers (RFC 792). */
const SEQUENCES = 0x10000
/**
 * What a path may take, of datagrams with all their headers: what every host does, IPv6's least, Ethernet's, and what tunnels, PPPoE
 * and clouds leave of it; jumbo frames.
 */
const PATH_BYTES = [576, 1024, 1200, 1280, 1400, 1420, 1450, 1492, 1500, 4352, 8896, 9000]

export interface SearchedPeer {
  /** Of its lease. */
  readonly key: string
  /** Where its datagrams go; another one is another path. */
  readonly endpoint: string
  /** What answers by way of the data path. */
  readonly address: Ipv4
}

export interface Question extends SearchedPeer {
  readonly sequence: number
  /** Of the packet; 0 for as few as it takes. */
  readonly bytes: number
}

export interface PathSearch {
  /** These and no others are peers from now on. */
  keep(peers: readonly SearchedPeer[], now: number): void
  /** What there is to be asked of one of them from now on; nothing where it is no peer any more. */
  look(key: string, peer: Omit<SearchedPeer, 'key'> | undefined, now: number): void
  /** What to ask now. To be called about once a second. */
  due(now: number): readonly Question[]
  /** An answer came. */
  answered(sequence: number, from: Ipv4, now: number): void
  /** The longest packet that was found to reach a peer, by lease key; without those that a packet of any length reaches. */
  limits(): ReadonlyMap<string, number>
}

interface Known extends SearchedPeer {
  nextAt: number
  raiseAt: number
  limit: number | undefined
  search: Search | undefined
}

/** By sizes in order: the one at `passes` reaches the peer, the one at `fails` does not; `at` is asked. */
interface Search {
  readonly sizes: readonly number[]
  /** Whether it began with the longest. */
  readonly isForLonger: boolean
  passes: number
  fails: number
  at: number
  tries: number
  isPeerThere: boolean
}

/**
 * `overhead` is what stands before a packet. `knownMtu` says what no packet may be longer than, by what the kernel knows of the
 * path; undefined where a peer is not to be asked now. `random` gives 0 to 1.
 */
export function createPathSearch(
  overhead: number,
  knownMtu: (key: string) => number | undefined,
  random: () => number,
): PathSearch {
  const known = new Map<string, Known>()
  /** Those whose search is under way; the others by the second in which they are due; those of them whose second came, the first first. */
  const begun = new Set<Known>()
  const later = new Map<number, Known[]>()
  const come: Known[] = []
  let taken = 0 // of those
  const limits = new Map<string, number>()
  /** Requests of the sizes that are asked now. */
  const waiting = new Map<number, { readonly peer: Known; readonly search: Search; readonly at: number | undefined }>()
  let next = Math.floor(random() * SEQUENCES)

  function begin(peer: Known, longest: number, now: number): Search {
    const sizes = PATH_BYTES.map((bytes) => bytes - overhead).filter((bytes) => bytes < longest)
    sizes.push(longest)
    const confirmed = peer.limit === undefined || now >= peer.raiseAt ? -1 : sizes.indexOf(peer.limit)
    const at = confirmed === -1 ? sizes.length - 1 : confirmed
    return { sizes, isForLonger: confirmed === -1, passes: -1, fails: at + 1, at, tries: 0, isPeerThere: false }
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
      // One that is no peer any more, or is asked already.
      if (peer && known.get(peer.key) === peer && !peer.search) yield peer
    }
    come.length = 0
    taken = 0
  }

  function forget(peer: Known): void {
    for (const [sequence, request] of waiting) if (request.peer === peer) waiting.delete(sequence)
  }

  /** What is asked now passed, or did not. */
  function conclude(peer: Known, search: Search, isPassing: boolean, now: number): void {
    if (isPassing) search.passes = search.at
    else search.fails = search.at
    const { sizes, passes, fails } = search
    if (fails - passes > 1) {
      forget(peer)
      search.at = (passes + fails) >> 1
      search.tries = 0
      search.isPeerThere = false
      peer.nextAt = now
      return
    }
    // Where only small ones are answered, it is long echo requests that somebody does not want.
    if (passes !== -1) {
      const found = passes === sizes.length - 1 ? undefined : sizes[passes]
      if (search.isForLonger || found !== peer.limit) peer.raiseAt = now + RAISE_EVERY_MS
      peer.limit = found
      if (found === undefined) limits.delete(peer.key)
      else limits.set(peer.key, found)
    }
    end(peer, now + CONFIRM_EVERY_MS)
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
    if (before && before.tries === TRIES) {
      if (!before.isPeerThere) {
        end(peer, now + RETRY_MS)
        return []
      }
      // What was too long by then somebody told the kernel, or it would not have said so.
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
    const small = search.tries === 1 ? [] : [newQuestion(peer, search, undefined)]
    return [newQuestion(peer, search, search.at), ...small]
  }

  function look(key: string, wanted: Omit<SearchedPeer, 'key'> | undefined, now: number): void {
    const before = known.get(key)
    if (before && before.endpoint === wanted?.endpoint && before.address === wanted.address) return
    if (before) {
      forget(before)
      begun.delete(before)
      known.delete(key)
      limits.delete(key)
    }
    if (!wanted) return
    const { endpoint, address } = wanted
    const peer: Known = { key, endpoint, address, nextAt: 0, raiseAt: 0, limit: undefined, search: undefined }
    known.set(key, peer)
    schedule(peer, now + SOON_MS * random())
  }

  return {
    keep(peers, now) {
      const wanted = new Set(peers.map(({ key }) => key))
      for (const key of known.keys()) if (!wanted.has(key)) look(key, undefined, now)
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
      if (at === undefined) search.isPeerThere = true
      else conclude(peer, search, true, now)
    },
    limits: () => new Map(limits),
  }
}
