// page-status.ts - the status of a healthy node with the peers of a test.

import { conditionOf, countPeers, type PeerStatus, type Status } from '../../src/report/status.ts'
import { soundPeer, soundStatus } from './facts.ts'

/** Returns the peer with 10.5.N.0/24, which answers. A peer whose state is `programmed` did not answer its probes. */
export function peerWith(number: number, known: Partial<PeerStatus> = {}): PeerStatus {
  const lossPercent = { stored: null, programmed: 100, answering: 0 }[known.state ?? 'answering']
  return {
    ...soundPeer,
    lossPercent,
    txBytes: 1000,
    rxBytes: 2000,
    lease: `10.5.${number}.0-24`,
    subnet: `10.5.${number}.0/24`,
    publicIp: `192.168.77.${number}`,
    endpoint: `192.168.77.${number}:8285`,
    way: 'tunnel',
    ...known,
  }
}

/** Returns a status whose peers are probed unless `known` says otherwise. */
export const statusWith = (list: readonly PeerStatus[], known: Partial<Status> = {}, isProbing = true): Status => ({
  ...soundStatus,
  ...(list.some((peer) => ['silent', 'stored'].includes(conditionOf(peer)))
    ? { state: 'impaired', impairments: [{ by: 'peers', what: 'some do not answer' }], trouble: 'some do not answer' }
    : {}),
  peers: countPeers(list, isProbing ? 10 : null),
  ...known,
})
