// handshakes.ts - how the doctor judges the sessions with peers, where packets are encrypted: why there is none. Pure.
//
// Of a peer that answers nothing is said: it has keys. A packet that was lost, or sent again, makes one attempt more, or one that is stale:
// only what came twice is told.

import { titleOf, type SessionStatus, type Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import { each, type Finding, type FindingName } from './findings.ts'
import { seenSides, sideText, type SeenSide } from './sides.ts'

const TWICE = 2
/** As old as keys may be: of a handshake of longer ago there is nothing left. */
const LATELY_S = 180

export function checkHandshakes({ status, silence, answers }: Facts): Finding[] | undefined {
  if (silence !== undefined) return undefined // known to nobody
  if (!status?.peers) return undefined
  const found = status.peers.list.flatMap((peer) =>
    oncePerSession(seenSides(peer, answers).filter((side) => !isAnswering(side))).flatMap((side) => {
      const name = side.session ? troubleOf(side.session, side) : undefined
      return name && side.session ? [{ name, detail: `${sideText(side)}: ${seenText(side.session)}` }] : []
    }),
  )
  return [...found, ...unknownKeys(status)]
}

const isAnswering = ({ answers, state }: SeenSide): boolean => answers?.small ?? state === 'answering'

/** A session of both families is one: it is told by the first. */
const oncePerSession = (sides: readonly SeenSide[]): readonly SeenSide[] =>
  sides.filter((side, at) => !sides.slice(0, at).some((other) => other.endpoint === side.endpoint))

/** What came of the handshakes with a peer that does not answer. */
export function troubleOf(
  session: SessionStatus,
  { lossPercent }: Pick<SeenSide, 'lossPercent'>,
): FindingName | undefined {
  const { failure, stale, unconfirmed, attempts, ageSeconds, rxBytes, txBytes } = session
  if (failure === 'bad-key') return 'key-unusable'
  if (failure === 'not-authentic') return 'psk-differs'
  if ((stale ?? 0) >= TWICE) return 'clock-behind'
  if ((unconfirmed ?? 0) >= TWICE) return 'handshake-one-way'
  if (failure === 'no-answer' && (attempts ?? 0) >= TWICE) return 'no-handshake'
  // The kernel tells when the last handshake was, and what passed: of one that was asked in vain they wanted keys.
  if (attempts !== null || ageSeconds !== null || lossPercent === null) return undefined
  if (session.handshakeSecondsAgo === null && (rxBytes ?? 0) > 0) return 'handshake-one-way'
  return (txBytes ?? 0) > 0 ? 'no-handshake' : undefined
}

function seenText({ handshakeSecondsAgo: ago, attempts, stale, unconfirmed }: SessionStatus): string {
  const numbers: readonly (readonly [number | null, string])[] = [
    [attempts, 'begun here'],
    [unconfirmed, 'answered in vain'],
    [stale, 'too old'],
  ]
  const counted = numbers.flatMap(([number, what]) => (number ? [`${number} ${what}`] : []))
  return [ago === null ? 'no handshake was ever completed' : `the last handshake was ${Math.round(ago)} s ago`]
    .concat(counted.length > 0 ? [`${counted.join(', ')} since`] : [])
    .join(', ')
}

/** Keys of nobody's, each with the peer at whose address it is used, if there is one. */
function unknownKeys({ dataPath, peers }: Status): Finding[] {
  const lately = (dataPath?.unknownKeys ?? []).filter(({ secondsAgo }) => secondsAgo < LATELY_S)
  return each('key-unknown', lately, ({ publicKey, endpoint, secondsAgo }) => {
    const host = endpoint.replace(/:\d+$/, '').replace(/^\[(.*)\]$/, '$1')
    const peer = (peers?.list ?? []).find(({ publicIp, publicIpv6 }) => publicIp === host || publicIpv6 === host)
    const whose = peer ? `, the host of ${titleOf(peer)}, whose lease has ${peer.session?.publicKey ?? 'none'}` : ''
    return `${publicKey} from ${endpoint}${whose}, ${Math.round(secondsAgo)} s ago`
  })
}
