// echo.ts - sends ICMP and ICMPv6 echo requests from an address of this host, and receives the answers.

import { closeSync } from 'node:fs'
import { formatAddress, parseAddress, type Address, type Family } from '../net/address.ts'
import { addon } from './addon.ts'

export interface Echo {
  /**
   * Sends an echo request that routers must not fragment. `bytes` is the length of the packet including its headers; if
   * it is left out, the request has the minimum length. The destination `to` must have the family of the socket's
   * source. Throws an Error with `code`, such as EMSGSIZE.
   */
  send(to: Address, sequence: number, bytes?: number): void
  /**
   * Returns an echo request as an IP packet. The caller sends the packet inside a datagram of the family `outer`, and
   * this socket receives the answer to the request.
   */
  packet(to: Address, sequence: number, outer: Family): Uint8Array
  close(): void
}

export type OpenEcho = (
  source: Address,
  onAnswer: (from: Address, sequence: number, roundTripMs: number) => void,
) => Echo

/**
 * Opens a socket for echo requests from the address `source`. Throws an Error with `code`: EPERM or EACCES if this
 * process lacks the permission, EADDRNOTAVAIL if the host does not have the address, EAFNOSUPPORT if the kernel lacks
 * the family.
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
