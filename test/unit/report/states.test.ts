// states.test.ts - the table of states: docs/status.md has the same rows, and all outputs agree with it.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'
import { formatMetrics } from '../../../src/report/metrics.ts'
import { verdictOf } from '../../../src/report/page/model.ts'
import type { Snapshot } from '../../../src/report/snapshot.ts'
import { isReadyNow, stateOf } from '../../../src/report/snapshot.ts'
import { CAUSES, readingOf, stateBefore, STATE_NAMES, type Cause, type State } from '../../../src/report/states.ts'
import { countPeers, type Status } from '../../../src/report/status.ts'
import { lookAtThreads, type Threads } from '../../../src/report/threads.ts'
import { diagnose, diagnoseStatus } from '../../../src/tool/doctor/checks.ts'
import type { Facts } from '../../../src/tool/doctor/facts.ts'
import { FINDINGS } from '../../../src/tool/doctor/findings.ts'
import { isWell } from '../../../src/tool/weft/status.ts'
import { sound, soundPeer, soundStatus } from '../../support/facts.ts'
import { beginningWith, wellNode } from '../../support/snapshot.ts'

/** Every state; `impaired` once for each cause. */
const STATES: readonly State[] = STATE_NAMES.flatMap((state): State[] =>
  state === 'impaired'
    ? CAUSES.map((by) => ({ state, impairments: [{ by, what: `the ${by}` }] }))
    : [{ state, impairments: [] }],
)
/** The colours of the tones in `weft status` and on the status page. */
const COLOURS = { good: 'green', doubtful: 'yellow', bad: 'red' } as const
const nameOf = ({ state, impairments: [one] }: State): string =>
  one ? `\`${state}\` by \`${one.by}\`` : `\`${state}\``

it('docs/status.md has the same table', () => {
  const page = readFileSync(join(packageRoot, 'docs/status.md'), 'utf8')
  const [, section = ''] = page.split('\n## States\n')
  const rows = section
    .split('\n## ')[0]!
    .split('\n')
    .filter((line) => line.startsWith('| `'))
  expect(rows).toEqual(
    STATES.map((state) => {
      const { packets, exit, livez, readyz, working, tone, findings } = readingOf(state)
      const ready = readyz === 'written' ? '200 once weftd wrote `subnet.env`' : '503'
      const found =
        findings.length === 0 ? 'no finding' : `finding ${findings.map((name) => `\`${name}\``).join(' or ')}`
      const values = [`exit code ${exit}`, `\`/livez\` ${livez}`, `\`/readyz\` ${ready}`, `\`weft_working\` ${working}`]
      return `| ${[nameOf(state), packets, ...values, `colour ${COLOURS[tone]}`, found].join(' | ')} |`
    }),
  )
})

describe.each(STATES.map((state) => [nameOf(state), state] as const))('%s', (_name, state) => {
  const reading = readingOf(state)
  const status: Status = { ...soundStatus, ...state, trouble: 'why' }

  it('the state is the same in weft status, the page and the metrics', async () => {
    expect(isWell(status)).toBe(reading.exit === 0)
    expect(verdictOf({ ...status, ...peersOf(state) }).tone).toBe(reading.tone)
    const { body } = await formatMetrics(status)
    expect(body).toContain(`\nweft_working ${reading.working}\n`)
    for (const each of STATE_NAMES)
      expect(body).toContain(`\nweft_state{state="${each}"} ${each === state.state ? 1 : 0}\n`)
    for (const by of CAUSES)
      expect(body).toContain(
        `\nweft_impaired{by="${by}"} ${state.impairments.some((each) => each.by === by) ? 1 : 0}\n`,
      )
  })

  it('the description of a state begins with its name', () => {
    expect(reading.words.split(' ')[0]).toBe(state.state)
  })

  it('a state names only findings that the doctor has', () => {
    for (const name of reading.findings) expect(FINDINGS).toHaveProperty(name)
    const facts: Facts = { ...sound, ...factsOf(state), status: { ...status, ...peersOf(state), ...partsOf(state) } }
    const found = diagnose(facts).flatMap(({ findings = [] }) => findings.map(({ name }) => name as string))
    expect(
      reading.findings.length === 0 ? found : found.filter((name) => reading.findings.includes(name)).length,
    ).toEqual(reading.findings.length === 0 ? [] : 1)
  })
})

/** Returns the other fields of a status with this state. */
const is = (state: State, by: Cause): boolean => state.impairments.some((each) => each.by === by)
const peersOf = (state: State): Pick<Status, 'peers'> => ({
  peers: is(state, 'peers')
    ? countPeers([{ ...soundPeer, state: 'programmed', lossPercent: 100 }], 10)
    : soundStatus.peers,
})
const partsOf = (state: State): Partial<Status> => ({
  ...(is(state, 'store') ? { store: { ...soundStatus.store, reachable: false } } : {}),
  ...(is(state, 'path') ? { dataPath: { ...soundStatus.dataPath!, open: false } } : {}),
  ...(is(state, 'thread')
    ? { dataPath: { ...soundStatus.dataPath!, threads: [{ name: 'weft-loop0', hungSeconds: 20 }] } }
    : {}),
  ...(is(state, 'family')
    ? {
        config: { ...soundStatus.config!, ipv6Network: 'fd00::/48' },
        dataPath: { ...soundStatus.dataPath!, lacking: { ipv4: null, ipv6: 'no device' } },
      }
    : {}),
})
const factsOf = (state: State): Partial<Facts> => ({
  ...(is(state, 'host') ? { isForwarding: false } : {}),
  ...(is(state, 'peers') ? { answers: new Map() } : {}),
})

const hung = [0, 1, 2, 3, 4, 5].reduce<Threads>(
  (threads, look) => lookAtThreads(threads, { 'weft-loop1': 7 }, 180_000 + look * 2_000),
  new Map(),
)

it.each<[Cause, Partial<Snapshot>]>([
  ['thread', { threads: hung }],
  ['path', { isOpen: false }],
  ['family', { lacking: { ipv6: 'no device' } }],
  ['host', { isPublished: false }],
  ['host', { host: ['b uses the same public IP'] }],
  ['rules', { rules: 'iptables failed' }],
  ['peers', { silent: 1 }],
  ['peers', { unusable: 1 }],
  ['store', { isFailing: true }],
  ['store', { comparedAt: 10_000 }],
  ['store', { held: 1 }],
])('a node is impaired by %s, and as ready as the table says: %o', (by, differs) => {
  const state = stateOf({ ...wellNode, ...differs })
  expect([state.state, state.impairments.map((each) => each.by)]).toEqual(['impaired', [by]])
  expect(isReadyNow({ ...wellNode, ...differs })).toBe(readingOf(state).readyz === 'written')
  expect(isReadyNow({ ...wellNode, ...differs, isReady: false })).toBe(false)
})

it('combines several causes to their worst values', () => {
  const by = (...causes: Cause[]) => readingOf({ state: 'impaired', impairments: causes.map((each) => ({ by: each })) })
  expect(by('store', 'peers', 'store').words).toBe('impaired by its peers and its store')
  expect(by('store', 'thread')).toMatchObject({ livez: 503, readyz: 'written', working: 0 })
  expect(by('store', 'family', 'peers')).toMatchObject({ livez: 200, readyz: 503, working: 0 })
  expect(by('store', 'peers')).toMatchObject({ livez: 200, readyz: 'written', working: 1 })
  expect(by('store', 'peers').packets).toMatch(/^packets to the peers .*; packets to known nodes pass/)
})

it('the state before there is a node depends on forwarding, unless the daemon leaves', () => {
  expect(stateBefore(beginningWith('a lease')).state).toBe('starting')
  expect(stateBefore(beginningWith('a lease', true)).state).toBe('forwarding')
  expect(stateBefore({ ...beginningWith('a lease', true), leaving: 'it stops' }).state).toBe('leaving')
  expect(stateOf({ ...wellNode, leaving: 'it stops', isOpen: false })).toEqual({ state: 'leaving', impairments: [] })
})

it('returns 503 for /livez only if a thread hangs, so a weftd that forwards is never restarted', () => {
  const restarts = STATES.filter((state) => readingOf(state).livez === 503)
  expect(restarts.map(nameOf)).toEqual(['`impaired` by `thread`'])
})

it('a state has findings on the page too if the problem is in the daemon itself', () => {
  const found = (state: State): string[] => diagnoseStatus({ ...soundStatus, ...state }).map(({ name }) => name)
  expect(STATES.filter(({ state }) => state !== 'impaired').flatMap(found)).toEqual([
    'daemon-waits',
    'daemon-as-known',
    'daemon-leaves',
  ])
})
