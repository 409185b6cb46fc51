// underlay-choice.ts - by which family of the network between the hosts each peer is reached, where both can be had. Pure.
//
// Each peer is asked by both families all the while, and answers by the family that it was asked by. So both ends of a path know the same
// of it, whichever they have chosen, and each chooses by itself: a family that has not answered twice is left for the other, if that has
// answered since. Where neither answers the peer is down, or does not answer requests at all: its packets go where they went, also when it
// is back, and is heard by the one before it was asked by the other. They go back to the family that is preferred once it has answered
// for some time, which is twice as long each time that it fails soon again.

import { createProbes, PATIENCE_MS, type Probed, type Probes } from './probe-schedule.ts'

/** The family that is preferred, or the one that takes its place. */
export type Underlay = 'first' | 'other'

export const otherThan = (by: Underlay): Underlay => (by === 'first' ? 'other' : 'first')

/** The longest interval between probes, over each family, of a peer that is silent over both. A family that is back must be used soon. */
const MOST_SILENT_MS = 60_000

/** Creates the probes over each family. While a peer answers over one family, it is probed over the other at the usual interval. */
export function createUnderlayProbes(everyMs: number, random: () => number): Readonly<Record<Underlay, Probes>> {
  const most =
    (otherOnes: () => Probes) =>
    (key: string): number =>
      otherOnes().result(key)?.isAnswering === true ? 0 : MOST_SILENT_MS
  const first: Probes = createProbes(
    everyMs,
    random,
    most(() => other),
  )
  const other: Probes = createProbes(
    everyMs,
    random,
    most(() => first),
  )
  return { first, other }
}

/** Makes peers that answer over one family due for a probe over the other family. */
export function wakeByOther(probes: Readonly<Record<Underlay, Probes>>, now: number): void {
  for (const which of ['first', 'other'] as const)
    for (const key of probes[which].resting())
      if (probes[otherThan(which)].result(key)?.isAnswering) probes[which].wake(key, now)
}

/** The answers of a peer to requests by each. */
type Answers = Readonly<Record<Underlay, Probed | undefined>>

interface UnderlayChoices {
  /** The family by which a peer is reached, by its answers; `now` is in ms of the clock that those have. */
  choose(key: string, answers: Answers, now: number): Underlay
  /** The keys of those that are not reached by the first. */
  others(): readonly string[]
  /** Goes on with what another one had chosen: these peers are not reached by the first. */
  assume(others: readonly string[]): void
  /** Forgets all peers but these. */
  keep(isPeer: (key: string) => boolean): void
}

/** In intervals at which peers are asked: the time for which the first has to answer before packets go by it again. */
const STEADY = 3
/** A first that fails so soon after packets went back to it has to answer twice as long the next time, at most the latter. */
const AGAIN_MS = 600_000
const MOST_STEADY_MS = 3_600_000
/** What is known to be lost at a time was sent no longer before. */
const KNOWN_MS = PATIENCE_MS + 2_000

interface State {
  by: Underlay
  /** The time since when each answers without a loss. */
  readonly since: Record<Underlay, number | undefined>
  /** The time for which the first has to before packets go back to it, and when they did last. */
  steadyMs: number
  backAt: number
}

/** `intervalMs` gives that at which a peer is asked. */
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

/** True of a peer whose last request was answered. */
const isWhole = (probed: Probed | undefined): probed is Probed =>
  probed?.isAnswering === true && probed.unansweredSince === undefined

/** True where a family answered, without a loss since `since`, after the silent one had lost a request, and that lost one that was sent later. */
const isProof = (silent: Probed, probed: Probed | undefined, since: number | undefined): boolean =>
  probed !== undefined &&
  since !== undefined &&
  probed.at > (silent.unansweredSince ?? -Infinity) &&
  silent.at - KNOWN_MS > since
