// crossing.ts - checks that packets with addresses of containers cross the underlay, if the backend routes them without
// a tunnel. Hosts that answer each other do not prove this, because a cloud may drop packets that have other addresses
// than those of its hosts (source/destination check, port security). Pure.

import { isCrossing, type BridgeAnswer } from './bridge-probes.ts'
import type { Facts } from './facts.ts'
import type { Finding } from './findings.ts'
import { sideIn, sideText } from './sides.ts'

/** Returns true if no bridge answered in one of the families, so weft does not know whether packets are dropped. */
const isAnyUnanswered = (bridgeAnswers: readonly BridgeAnswer[]): boolean =>
  bridgeAnswers.some(({ family }) => !bridgeAnswers.some((each) => each.family === family && each.isBridgeAnswered))

export function checkCrossing({ status, bridgeAnswers = [] }: Facts): Finding[] | undefined {
  if (!status?.config || !status.node) return undefined
  if (!isCrossing(status) || status.peers?.list.length === 0) return []
  if (bridgeAnswers.length === 0) return undefined
  const dropped = bridgeAnswers.filter(({ isBridgeAnswered, isHostAnswered }) => isHostAnswered && !isBridgeAnswered)
  if (dropped.length === 0 && isAnyUnanswered(bridgeAnswers)) return undefined
  return dropped.flatMap(({ lease, family }): Finding[] => {
    const peer = status.peers?.list.find((each) => each.lease === lease)
    return peer ? [{ name: 'source-unanswered', detail: sideText(sideIn(peer, family)) }] : []
  })
}
