// handshakes.ts - finds out why there is no WireGuard session with a peer. Pure.
//
// A peer that answers probes has a session, so the check skips it. One lost or repeated packet can cause a failed
// handshake attempt or a stale handshake. So the doctor reports failed attempts and stale handshakes only if there were
// at least two.

import { titleOf, type SessionStatus, type Status } from '../../report/status.ts'
import type { Facts } from './facts.ts'
import { each, type Finding, type FindingName } from './findings.ts'
import { seenSides, sideText, type SeenSide } from './sides.ts'

const TWICE = 2
/**
 * The age in seconds up to which the doctor reports handshakes with unknown keys. Session keys expire after this time
 * (WireGuard's REJECT_AFTER_TIME).
 */
const RECENT_S = 180

export function checkHandshakes({ status, silence, answers }: Facts): Finding[] | undefined {
  if (silence !== undefined) return undefined // only a running weftd has sessions
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

/**
 * If both families of a peer use the same WireGuard session, removes the second family. So the doctor reports a fault
 * of the session only once.
 */
const oncePerSession = (sides: readonly SeenSide[]): readonly SeenSide[] =>
  sides.filter((side, at) => !sides.slice(0, at).some((other) => other.endpoint === side.endpoint))

/**
 * Returns the finding that explains why a silent peer has no working WireGuard session; undefined if the session shows
 * no fault.
 */
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
  // Continue only if the kernel carries the packets (`attempts` is null), there are no valid keys, and weftd has probed
  // the peer. Because of the probes the kernel must have tried a handshake, although the kernel does not count its
  // attempts.
  if (attempts !== null || ageSeconds !== null || lossPercent === null) return undefined
  if (session.handshakeSecondsAgo === null && (rxBytes ?? 0) > 0) return 'handshake-one-way'
  return (txBytes ?? 0) > 0 ? 'no-handshake' : undefined
}

function seenText({ handshakeSecondsAgo: ago, attempts, stale, unconfirmed }: SessionStatus): string {
  const numbers: readonly (readonly [number | null, string])[] = [
    [attempts, 'started here'],
    [unconfirmed, 'answered but not confirmed'],
    [stale, 'with an old timestamp'],
  ]
  const counted = numbers.flatMap(([number, what]) => (number ? [`${number} ${what}`] : []))
  return [ago === null ? 'no handshake was ever completed' : `the last handshake was ${Math.round(ago)} s ago`]
    .concat(counted.length > 0 ? [`${counted.join(', ')} since`] : [])
    .join(', ')
}

/**
 * Finds recent handshakes with keys that are in no lease. If a peer has the sender's address, the finding names that
 * peer.
 */
function unknownKeys({ dataPath, peers }: Status): Finding[] {
  const recent = (dataPath?.unknownKeys ?? []).filter(({ secondsAgo }) => secondsAgo < RECENT_S)
  return each('key-unknown', recent, ({ publicKey, endpoint, secondsAgo }) => {
    const host = endpoint.replace(/:\d+$/, '').replace(/^\[(.*)\]$/, '$1')
    const peer = (peers?.list ?? []).find(({ publicIp, publicIpv6 }) => publicIp === host || publicIpv6 === host)
    const whose = peer ? `, the host of ${titleOf(peer)}, whose lease has ${peer.session?.publicKey ?? 'no key'}` : ''
    return `${publicKey} from ${endpoint}${whose}, ${Math.round(secondsAgo)} s ago`
  })
}
