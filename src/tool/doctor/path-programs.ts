// path-programs.ts - names the eBPF programs, tc filters and queueing disciplines on the way of lost packets, which weft
// doctor cannot evaluate. Pure.

import type { Facts } from './facts.ts'
import { each, type Finding } from './findings.ts'
import { seenSides, type SeenSide } from './sides.ts'

/** At this percentage of lost probes or more, packets to a peer are lost. */
const LOSSY_PERCENT = 20

/** Returns true if the peer answers over one family, but some packets to it are lost. */
function isLossy({ answers, lossPercent, ...side }: SeenSide): boolean {
  if (!isAnswering({ answers, ...side })) return false
  return (lossPercent ?? 0) >= LOSSY_PERCENT || answers?.large === false
}

const isAnswering = ({ answers, state }: Pick<SeenSide, 'answers' | 'state'>): boolean =>
  answers?.small ?? state === 'answering'

const isSilent = ({ answers, state, lossPercent }: SeenSide): boolean =>
  state !== 'stored' && (answers ? !answers.small : lossPercent !== null && state !== 'answering')

/**
 * Reports the programs only if packets are lost, because they may be sound. A silent peer proves no loss if other peers
 * answer over the family and its host answers no ping, because that host is probably off.
 */
export function checkPrograms({ status, answers, reaches, programs = [], bridgeAnswers = [] }: Facts): Finding[] {
  const sides = (status?.peers?.list ?? []).flatMap((peer) => seenSides(peer, answers))
  const answering = new Set(sides.filter(isAnswering).map(({ family }) => family))
  const isLosing = (side: SeenSide): boolean => {
    if (!isSilent(side)) return isLossy(side)
    const reach = reaches.get(side.peer.lease)
    // An error of the port, such as `refused`, explains the silence.
    return reach?.port === undefined && (!answering.has(side.family) || reach?.isPinged === true)
  }
  // A peer without containers has no bridge that could answer.
  const isUncrossed = bridgeAnswers.some(({ isBridgeAnswered, isHostAnswered }) => isHostAnswered && !isBridgeAnswered)
  const isLost = sides.some(isLosing) || isUncrossed
  return isLost ? each('program-on-path', programs, ({ device, what }) => `${device}: ${what}`) : []
}
