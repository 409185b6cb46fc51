// states.ts - the states that a weftd can be in: what each means for packets, and what every reader makes of it. Pure.
//
// One table: `weft status` and its exit code, the page, /livez, /readyz, the metrics, the service manager and the doctor speak from it,
// and docs/status.md has the same rows, which a test compares.

/** `forwarding`: by what the weftd before it knew, until the store has answered. `leaving`: it stops, or another weftd takes over. */
export type StateName = 'starting' | 'forwarding' | 'working' | 'impaired' | 'leaving'

/** What keeps a node from all of its work; the first is the worst. */
export const CAUSES = ['thread', 'path', 'bypass', 'family', 'host', 'rules', 'peers', 'store'] as const
export type Cause = (typeof CAUSES)[number]

/** Something that keeps a node from a part of its work, in words. */
export interface Impairment {
  readonly by: Cause
  readonly what: string
}

/** A state, as all readers tell it; there are impairments where it is `impaired`, and only there: the worst first. */
export interface State {
  readonly state: StateName
  readonly impairments: readonly Impairment[]
}

interface Reading {
  /** The state, or what it is impaired by, as a part of a sentence. */
  readonly words: string
  readonly packets: string
  readonly tone: 'good' | 'doubtful' | 'bad'
  /** The exit code of `weft status`. */
  readonly exit: 0 | 3
  /** 503 only where a restart mends it: whoever restarts by /livez ends no weftd that forwards, or that waits for others. */
  readonly livez: 200 | 503
  /** `written`: 200 once subnet.env was written, as flanneld. */
  readonly readyz: 'written' | 503
  /** The metric weft_working. */
  readonly working: 0 | 1
  /** The findings of `weft doctor` that tell of it: at least one of them. */
  readonly findings: readonly string[]
}

const GOES_ON = { tone: 'bad', exit: 3, livez: 200, readyz: 'written' } as const

const STATES: Readonly<Record<Exclude<StateName, 'impaired'>, Reading>> = {
  starting: {
    words: 'starting',
    tone: 'doubtful',
    exit: 3,
    livez: 200,
    readyz: 503,
    working: 0,
    packets: 'this weftd forwards none; where another one runs, that forwards until this one takes over',
    findings: ['daemon-waits'],
  },
  forwarding: {
    words: 'forwarding as last known',
    tone: 'doubtful',
    exit: 3,
    livez: 200,
    readyz: 503,
    working: 1,
    packets: 'those to and from the nodes that were last known pass; what has changed since then is not known',
    findings: ['daemon-as-known'],
  },
  working: {
    words: 'working',
    tone: 'good',
    exit: 0,
    livez: 200,
    readyz: 'written',
    working: 1,
    packets: 'all pass',
    findings: [],
  },
  leaving: {
    words: 'leaving',
    tone: 'doubtful',
    exit: 3,
    livez: 200,
    readyz: 503,
    working: 0,
    packets: 'this weftd forwards none any more; another one that takes over does',
    findings: ['daemon-leaves'],
  },
}

const IMPAIRED: Readonly<Record<Cause, Reading>> = {
  thread: {
    words: 'a thread that hangs',
    ...GOES_ON,
    livez: 503,
    working: 0,
    packets: 'those that this thread carries do not pass',
    findings: ['data-path-down'],
  },
  path: {
    words: 'its data path',
    ...GOES_ON,
    working: 0,
    packets: 'none pass; weftd tries again every five seconds',
    findings: ['data-path-down'],
  },
  bypass: {
    words: 'what leads past its data path',
    ...GOES_ON,
    readyz: 503,
    working: 0,
    packets:
      'some leave this host by another way than the backend: unencrypted, though that is wireguard, or to a wrong place',
    findings: ['path-bypassed'],
  },
  family: {
    words: 'one family',
    ...GOES_ON,
    readyz: 503,
    working: 0,
    packets: 'those of one of IPv4 and IPv6 do not pass',
    findings: ['family-down'],
  },
  host: {
    words: 'its own host',
    ...GOES_ON,
    working: 1,
    packets:
      "containers' packets do not leave this host, new containers do not start, or another host gets our packets",
    findings: ['forwarding-off', 'forwarding-off-ipv6', 'subnet-env-wrong', 'address-twice', 'address-gone'],
  },
  rules: {
    words: 'its firewall rules',
    ...GOES_ON,
    working: 0,
    packets: "containers' packets may be dropped, or leave the network without masquerading",
    findings: ['rules-failing'],
  },
  peers: {
    words: 'its peers',
    ...GOES_ON,
    working: 1,
    packets:
      'those to the peers listed as silent or not reached are lost; to those listed as narrow only long ones are',
    findings: ['peer-silent', 'peer-unusable', 'family-broken'],
  },
  store: {
    words: 'its store',
    ...GOES_ON,
    working: 1,
    packets: 'those to known nodes pass; a new node is not known, and the lease is not renewed',
    findings: ['store-away', 'store-stale', 'peers-held', 'config-missing'],
  },
}

export const STATE_NAMES = ['starting', 'forwarding', 'working', 'impaired', 'leaving'] as const satisfies StateName[]

/** How a state is read. Of several causes each has its say: the worst counts. */
export function readingOf({
  state,
  impairments,
}: {
  readonly state: StateName
  readonly impairments: readonly Pick<Impairment, 'by'>[]
}): Reading {
  if (state !== 'impaired') return STATES[state]
  const all = CAUSES.filter((cause) => impairments.some(({ by }) => by === cause)).map((by) => IMPAIRED[by])
  return {
    ...GOES_ON,
    words: `impaired by ${all.map(({ words }) => words).join(' and ')}`,
    packets: all.map(({ packets }) => packets).join('; '),
    livez: all.some(({ livez }) => livez === 503) ? 503 : 200,
    readyz: all.some(({ readyz }) => readyz === 503) ? 503 : 'written',
    working: all.some(({ working }) => working === 0) ? 0 : 1,
    findings: all.flatMap(({ findings }) => findings),
  }
}

/** A weftd that has no node yet. */
export interface Beginning {
  /** True while it forwards by what was last known. */
  readonly isForwarding: boolean
  readonly leaving: string | undefined
  readonly waitsFor: string
}

export const stateBefore = ({ isForwarding, leaving }: Beginning): State => ({
  state: leaving !== undefined ? 'leaving' : isForwarding ? 'forwarding' : 'starting',
  impairments: [],
})
