// underlay-choice.ts - decides over which underlay family (IPv4 or IPv6) weftd sends to each dual-stack peer. Pure.
//
// weftd probes each peer over both families, and the peer answers over the family of the probe. So both ends know the
// same about the path, and each end chooses alone. If two probes over a family are lost and the second family has
// answered since, weftd chooses the second family. If neither family answers, the peer is down or does not answer
// probes, and the choice stays. weftd chooses the preferred family again after it has answered for some time. That time
// doubles each time the preferred family fails again soon.

import { ProbeSchedule, PATIENCE_MS, type Probed } from './probe-schedule.ts'

/**
 * An underlay family: `first` is the preferred family, and `other` is the family that weftd uses if the preferred
 * family fails.
 */
export type Underlay = 'first' | 'other'

export const otherThan = (by: Underlay): Underlay => (by === 'first' ? 'other' : 'first')

/**
 * The longest interval in ms between two probes of a peer over one family, if the peer answers over neither family. It
 * is short, because weftd must soon use a family that works again.
 */
const MOST_SILENT_MS = 60_000

/**
 * Creates the probes over each family. While a peer answers over one family, weftd probes it over the second family at
 * the usual interval.
 */
export function createUnderlayProbes(everyMs: number, random: () => number): Readonly<Record<Underlay, ProbeSchedule>> {
  const most =
    (otherOnes: () => ProbeSchedule) =>
    (key: string): number =>
      otherOnes().result(key)?.isAnswering === true ? 0 : MOST_SILENT_MS
  const first: ProbeSchedule = new ProbeSchedule(
    everyMs,
    random,
    most(() => other),
  )
  const other: ProbeSchedule = new ProbeSchedule(
    everyMs,
    random,
    most(() => first),
  )
  return { first, other }
}

/** If a peer answers over one family, makes a probe of this peer over the second family due. */
export function wakeByOther(probes: Readonly<Record<Underlay, ProbeSchedule>>, now: number): void {
  for (const which of ['first', 'other'] as const)
    for (const key of probes[which].resting())
      if (probes[otherThan(which)].result(key)?.isAnswering) probes[which].wake(key, now)
}

/** The probe results of a peer over each family. */
type Answers = Readonly<Record<Underlay, Probed | undefined>>

interface UnderlayChoices {
  /** Returns the underlay family for a peer. `now` is in ms of the clock that the times in `answers` use. */
  choose(key: string, answers: Answers, now: number): Underlay
  others(): readonly string[]
  /** Continues with the choices of an earlier process, in which the peers `others` use the family `other`. */
  assume(others: readonly string[]): void
  /** Forgets the choices for all peers except those for which `isPeer` returns true. */
  keep(isPeer: (key: string) => boolean): void
}

/** The number of probe intervals for which the preferred family must answer before weftd chooses it again. */
const STEADY = 3
/**
 * If the preferred family fails within AGAIN_MS milliseconds after weftd chose it again, it must answer twice as long
 * before weftd chooses it once more, at most MOST_STEADY_MS.
 */
const AGAIN_MS = 600_000
const MOST_STEADY_MS = 3_600_000
/** The maximum time in ms from sending a probe until weftd knows that it is lost. */
const KNOWN_MS = PATIENCE_MS + 2_000

interface State {
  by: Underlay
  /**
   * For each family, the time since which the peer has answered every probe over this family, in ms of the caller's
   * clock.
   */
  readonly since: Record<Underlay, number | undefined>
  /**
   * The time in ms for which the preferred family must answer before weftd chooses it again. `backAt` is the time of
   * the last such choice.
   */
  steadyMs: number
  backAt: number
}

/**
 * Creates the choices of the underlay families. `intervalMs` returns the interval in ms between the probes of a peer.
 */
export function createUnderlayChoices(intervalMs: () => number): UnderlayChoices {
  const states = new Map<string, State>()

  function leave(state: State, now: number): void {
    const shortest = STEADY * intervalMs()
    const isAgain = now - state.backAt < AGAIN_MS
    state.steadyMs = isAgain ? Math.min(2 * Math.max(state.steadyMs, shortest), MOST_STEADY_MS) : shortest
    state.by = 'other'
  }

  function goBack(state: State, now: number): void {
    Object.assign(state, { by: 'first', backAt: now })
  }

  return {
    choose(key, answers, now) {
      const state = states.get(key) ?? begin()
      states.set(key, state)
      const { since } = state
      for (const which of ['first', 'other'] as const) {
        if (!isWhole(answers[which])) since[which] = undefined
        else since[which] ??= now
      }
      const [mine, its] = [answers[state.by], otherThan(state.by)]
      if (mine?.isAnswering === false && isProof(mine, answers[its], since[its])) {
        if (state.by === 'first') leave(state, now)
        else goBack(state, now)
      } else if (state.by === 'other' && since.first !== undefined && now - since.first >= state.steadyMs) {
        goBack(state, now)
      }
      return state.by
    },
    assume(others) {
      for (const key of others)
        if (!states.has(key)) states.set(key, { ...begin(), by: 'other', steadyMs: STEADY * intervalMs() })
    },
    others: () => [...states].flatMap(([key, { by }]) => (by === 'other' ? [key] : [])),
    keep(isPeer) {
      for (const key of states.keys()) if (!isPeer(key)) states.delete(key)
    },
  }
}

const begin = (): State => ({
  by: 'first',
  since: { first: undefined, other: undefined },
  steadyMs: 0,
  backAt: -Infinity,
})

/** Returns true if the last probe over a family was answered. */
const isWhole = (probed: Probed | undefined): probed is Probed =>
  probed?.isAnswering === true && probed.unansweredSince === undefined

/**
 * Returns true if the peer certainly answers over one family but not over the other. That is proved if, since the time
 * `since`, the peer has answered every probe over its working family, but has left a probe over the silent family
 * unanswered.
 */
const isProof = (silent: Probed, probed: Probed | undefined, since: number | undefined): boolean =>
  probed !== undefined &&
  since !== undefined &&
  probed.at > (silent.unansweredSince ?? -Infinity) &&
  silent.at - KNOWN_MS > since
