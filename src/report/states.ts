// states.ts - the states of a weftd: the effect of each on packets, and how each reader reports it. Pure.
//
// `weft status` and its exit code, the page, /livez, /readyz, the metrics, the service manager and the doctor all use this table.
// docs/status.md has the same rows; a test compares them.

/**
 * `forwarding`: weftd has no answer from the store yet, and forwards with the knowledge of an earlier run. `leaving`: weftd stops, or another
 * weftd takes over.
 */
export type StateName = 'starting' | 'forwarding' | 'working' | 'impaired' | 'leaving'

/** The causes that keep a node from a part of its work, the worst first. */
export const CAUSES = ['thread', 'path', 'bypass', 'family', 'host', 'rules', 'peers', 'store'] as const
export type Cause = (typeof CAUSES)[number]

/** A cause with its description. */
export interface Impairment {
  readonly by: Cause
  readonly what: string
}

/** A state as all readers report it. The impairments are sorted, the worst first; only the state `impaired` has any. */
export interface State {
  readonly state: StateName
  readonly impairments: readonly Impairment[]
}

export interface Reading {
  /** The state, or the cause of the impairment, as a part of a sentence. */
  readonly words: string
  /** The effect of the state on packets, as a part of a sentence. */
  readonly packets: string
  readonly tone: 'good' | 'doubtful' | 'bad'
  /** The exit code of `weft status`. */
  readonly exit: 0 | 3
  /** 503 only if a restart helps. So a supervisor that restarts on /livez never ends a weftd that forwards or waits for the store. */
  readonly livez: 200 | 503
  /** `written`: 200 as soon as subnet.env is written, as flanneld answers. */
  readonly readyz: 'written' | 503
  /** The metric weft_working. */
  readonly working: 0 | 1
  /** `weft doctor` reports at least one of these findings. */
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
    packets: 'this weftd forwards no packets; if another weftd runs, it forwards until this one takes over',
    findings: ['daemon-waits'],
  },
  forwarding: {
    words: 'forwarding as last known',
    tone: 'doubtful',
    exit: 3,
    livez: 200,
    readyz: 503,
    working: 1,
    packets: 'packets to and from the nodes that weftd knew before pass; weftd does not know what changed since then',
    findings: ['daemon-as-known'],
  },
  working: {
    words: 'working',
    tone: 'good',
    exit: 0,
    livez: 200,
    readyz: 'written',
    working: 1,
    packets: 'all packets pass',
    findings: [],
  },
  leaving: {
    words: 'leaving',
    tone: 'doubtful',
    exit: 3,
    livez: 200,
    readyz: 503,
    working: 0,
    packets: 'this weftd forwards no packets any more; if another weftd takes over, it forwards',
    findings: ['daemon-leaves'],
  },
}

const IMPAIRED: Readonly<Record<Cause, Reading>> = {
  thread: {
    words: 'a thread that hangs',
    ...GOES_ON,
    livez: 503,
    working: 0,
    packets: 'packets that this thread carries are lost',
    findings: ['data-path-down'],
  },
  path: {
    words: 'its data path',
    ...GOES_ON,
    working: 0,
    packets: 'no packets pass; weftd tries again every five seconds',
    findings: ['data-path-down'],
  },
  bypass: {
    words: 'what leads past its data path',
    ...GOES_ON,
    readyz: 503,
    working: 0,
    packets:
      'some packets leave this host past the backend: to a wrong place, or unencrypted although the backend is wireguard',
    findings: ['path-bypassed'],
  },
  family: {
    words: 'one family',
    ...GOES_ON,
    readyz: 503,
    working: 0,
    packets: 'packets of one address family (IPv4 or IPv6) are lost',
    findings: ['family-down'],
  },
  host: {
    words: 'its own host',
    ...GOES_ON,
    working: 1,
    packets:
      "packets of containers do not leave this host, new containers do not start, or another host gets this host's packets",
    findings: ['forwarding-off', 'forwarding-off-ipv6', 'subnet-env-wrong', 'address-twice', 'address-gone'],
  },
  rules: {
    words: 'its firewall rules',
    ...GOES_ON,
    working: 0,
    packets: 'packets of containers may be dropped, or leave the network without masquerading',
    findings: ['rules-failing'],
  },
  peers: {
    words: 'its peers',
    ...GOES_ON,
    working: 1,
    packets:
      'packets to the peers listed as silent or stored are lost; only long packets to the peers listed as narrow are lost',
    findings: ['peer-silent', 'peer-unusable', 'family-broken'],
  },
  store: {
    words: 'its store',
    ...GOES_ON,
    working: 1,
    packets: 'packets to known nodes pass; new nodes are not learned, and the lease is not renewed',
    findings: ['store-away', 'store-stale', 'peers-held', 'config-missing'],
  },
}

export const STATE_NAMES = ['starting', 'forwarding', 'working', 'impaired', 'leaving'] as const satisfies StateName[]

/** Returns the reading of a state. With several causes, each answer is the worst of theirs. */
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

/** The facts about a weftd that has no node yet. */
export interface Beginning {
  /** True while it forwards with the knowledge of an earlier run. */
  readonly isForwarding: boolean
  readonly leaving: string | undefined
  readonly waitsFor: string
}

export const stateBefore = ({ isForwarding, leaving }: Beginning): State => ({
  state: leaving !== undefined ? 'leaving' : isForwarding ? 'forwarding' : 'starting',
  impairments: [],
})
