// echo.ts - ICMP and ICMPv6 echo requests from an address of this host, and what answers them.

import { closeSync } from 'node:fs'
import { formatAddress, parseAddress, type Address, type Family } from '../net/address.ts'
import { addon } from './addon.ts'

export interface Echo {
  /**
   * Sends a packet of `bytes`, or of as few as it takes, that nobody may fragment, to an address of the source's family. Throws an
   * Error with `code`, EMSGSIZE among them.
   */
  send(to: Address, sequence: number, bytes?: number): void
  /** The whole packet of such a request, for whoever sends it in a datagram of a family: its answer comes back by that, and here. */
  packet(to: Address, sequence: number, outer: Family): Uint8Array
  close(): void
}

export type OpenEcho = (
  source: Address,
  onAnswer: (from: Address, sequence: number, roundTripMs: number) => void,
) => Echo

/**
 * Throws an Error with `code`: EPERM or EACCES where this host does not allow it to us, EADDRNOTAVAIL when it has no such address,
 * EAFNOSUPPORT when its kernel lacks the family.
 */
export const openEcho: OpenEcho = (source, onAnswer) => {
  const socket = addon.openEcho(formatAddress(source))
  const watcher = addon.watchReadable(socket.fd, () => {
    for (const { from, sequence, microseconds } of addon.takeEchoes(socket)) {
      const address = parseAddress(from)
      if (address !== undefined) onAnswer(address, sequence, microseconds / 1000)
    }
  })
  return {
    send: (to, sequence, bytes = 0) => addon.sendEcho(socket, formatAddress(to), sequence, bytes),
    packet: (to, sequence, outer) => addon.echoPacket(socket, source, to, sequence, outer === 'ipv4' ? 4 : 6),
    close() {
      watcher.stop()
      closeSync(socket.fd)
    },
  }
}
