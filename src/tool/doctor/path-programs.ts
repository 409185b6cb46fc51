// path-programs.ts - names the eBPF programs, tc filters and queueing disciplines on the way of lost packets, which weft
// doctor cannot evaluate. Pure.

import type { Facts } from './facts.ts'
import { each, type Finding } from './findings.ts'
import { seenSides, type SeenSide } from './sides.ts'

/** At this percentage of lost probes or more, packets to a peer are lost. */
const LOSSY_PERCENT = 20

function isLosing({ answers, state, lossPercent }: SeenSide): boolean {
  if (state === 'stored') return false
  if ((lossPercent ?? 0) >= LOSSY_PERCENT) return true
  return answers ? !answers.large : lossPercent !== null && state !== 'answering'
}

/** Reports the programs only if packets are lost, because a program may be harmless. */
export function checkPrograms({ status, answers, programs = [], bridgeAnswers = [] }: Facts): Finding[] {
  const sides = (status?.peers?.list ?? []).flatMap((peer) => seenSides(peer, answers))
  const isLost = sides.some(isLosing) || bridgeAnswers.some(({ isBridgeAnswered }) => !isBridgeAnswered)
  return isLost ? each('program-on-path', programs, ({ device, what }) => `${device}: ${what}`) : []
}
