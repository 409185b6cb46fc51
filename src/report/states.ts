// states.ts - the table of weftd's states: how each state affects packets, and what each output of weft shows for it.
// Pure.
//
// `weft status` and its exit code, the page, /livez, /readyz, the metrics, the service manager and the doctor all use
// this table. A test compares it with docs/status.md.

/**
 * The states of weftd. In the state `forwarding` weftd forwards with the peers that the previous process saved, until
 * the store answers. In the state `leaving` weftd stops, or another weftd takes over.
 */
export type StateName = 'starting' | 'forwarding' | 'working' | 'impaired' | 'leaving'

/** The causes that can impair a node, worst first. */
export const CAUSES = ['thread', 'path', 'bypass', 'family', 'host', 'rules', 'peers', 'store'] as const
export type Cause = (typeof CAUSES)[number]

/** One of the causes that impair a node, with a description. */
export interface Impairment {
  readonly by: Cause
  readonly what: string
}

/** The state of a weftd. `impairments` lists the causes, worst first; it is empty unless the state is `impaired`. */
export interface State {
  readonly state: StateName
  readonly impairments: readonly Impairment[]
}

interface Reading {
  /** The name of the state or of the cause that impairs the node, in words that fit into a sentence. */
  readonly words: string
  /** How the state affects packets, in words that fit into a sentence. */
  readonly packets: string
  readonly tone: 'good' | 'doubtful' | 'bad'
  /** The exit code of `weft status` in this state. */
  readonly exit: 0 | 3
  /**
   * The HTTP status of /livez. It is 503 only if a restart would help. So a service manager that restarts weftd on 503
   * never ends a weftd that forwards or waits.
   */
  readonly livez: 200 | 503
  /** The HTTP status of /readyz. `written` means 200 as soon as weftd has written subnet.env, as in flanneld. */
  readonly readyz: 'written' | 503
  /** The value of the metric weft_working in this state. */
  readonly working: 0 | 1
  /** The findings of `weft doctor` that can explain this state; the doctor reports at least one of them. */
  readonly findings: readonly string[]
}

const CONTINUES = { tone: 'bad', exit: 3, livez: 200, readyz: 'written' } as const

const STATES: Readonly<Record<Exclude<StateName, 'impaired'>, Reading>> = {
  starting: {
    words: 'starting',
    tone: 'doubtful',
    exit: 3,
    livez: 200,
    readyz: 503,
    working: 0,
    packets:
      'this weftd forwards no packets yet; if an earlier weftd runs, the earlier weftd forwards until this weftd takes over',
    findings: ['daemon-waits'],
  },
  forwarding: {
    words: 'forwarding as last known',
    tone: 'doubtful',
    exit: 3,
    livez: 200,
    readyz: 503,
    working: 1,
    packets: 'packets to and from the last known nodes pass, but weftd does not learn of later changes of the network',
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
    packets: 'this weftd no longer forwards packets; if another weftd takes over, the other weftd forwards',
    findings: ['daemon-leaves'],
  },
}

const IMPAIRED: Readonly<Record<Cause, Reading>> = {
  thread: {
    words: 'a thread that hangs',
    ...CONTINUES,
    livez: 503,
    working: 0,
    packets: 'packets that the hanging thread would carry are lost',
    findings: ['data-path-down'],
  },
  path: {
    words: 'its data path',
    ...CONTINUES,
    working: 0,
    packets: 'no packets pass; weftd tries to open the data path again every second',
    findings: ['data-path-down'],
  },
  bypass: {
    words: 'routes that bypass its data path',
    ...CONTINUES,
    readyz: 503,
    working: 0,
    packets:
      'some packets leave this host without the backend: unencrypted, even with wireguard, or to a wrong destination',
    findings: ['path-bypassed'],
  },
  family: {
    words: 'one family',
    ...CONTINUES,
    readyz: 503,
    working: 0,
    packets: 'all IPv4 packets or all IPv6 packets are lost',
    findings: ['family-down'],
  },
  host: {
    words: 'its own host',
    ...CONTINUES,
    working: 1,
    packets:
      'packets of containers do not leave this host, new containers do not start, or another host gets packets for this host',
    findings: [
      'forwarding-off',
      'forwarding-off-ipv6',
      'subnet-env-wrong',
      'address-twice',
      'address-gone',
      'route-unpublished',
    ],
  },
  rules: {
    words: 'its firewall rules',
    ...CONTINUES,
    working: 0,
    packets: 'packets of containers may be dropped, or may leave the network without masquerading',
    findings: ['rules-failing'],
  },
  peers: {
    words: 'its peers',
    ...CONTINUES,
    working: 1,
    packets:
      'packets to the peers listed as silent or not reached are lost, unless only the firewall of a silent peer drops the echo requests; long packets to the peers listed as narrow are lost',
    findings: ['peer-silent', 'peer-unusable', 'peers-without-keys', 'family-broken'],
  },
  store: {
    words: 'its store',
    ...CONTINUES,
    working: 1,
    packets: 'packets to known nodes pass, but weftd does not learn of new nodes and cannot renew its lease',
    findings: ['store-away', 'store-stale', 'lease-unrenewed', 'peers-held', 'config-missing'],
  },
}

export const STATE_NAMES = ['starting', 'forwarding', 'working', 'impaired', 'leaving'] as const satisfies StateName[]

/**
 * Returns the table's row for a state. If several causes impair the node, joins the texts and the findings of their
 * rows, and takes the worst results of /livez, /readyz and weft_working.
 */
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
    ...CONTINUES,
    words: `impaired by ${all.map(({ words }) => words).join(' and ')}`,
    packets: all.map(({ packets }) => packets).join('; '),
    livez: all.some(({ livez }) => livez === 503) ? 503 : 200,
    readyz: all.some(({ readyz }) => readyz === 503) ? 503 : 'written',
    working: all.some(({ working }) => working === 0) ? 0 : 1,
    findings: all.flatMap(({ findings }) => findings),
  }
}

/** The facts about a weftd that has no lease yet. */
export interface Beginning {
  /** True while weftd forwards with the last known state. */
  readonly isForwarding: boolean
  /** Why weftd leaves the network; undefined if weftd does not leave. */
  readonly leaving: string | undefined
  readonly waitsFor: string
}

export const stateBefore = ({ isForwarding, leaving }: Beginning): State => ({
  state: leaving !== undefined ? 'leaving' : isForwarding ? 'forwarding' : 'starting',
  impairments: [],
})
