// udp-probe.ts - probes a UDP port with an empty datagram. No program answers an empty datagram, but a host or a
// firewall may send an ICMP error.

import { createSocket } from 'node:dgram'
import { familyOf, formatAddress, type Address } from '../net/address.ts'

/**
 * The result of a probe. `refused`: the host is up, and no program listens on the port. `prohibited`: a firewall on the
 * path or on the probed host rejects the datagram. `own-firewall`: the firewall of this host rejects the datagram.
 * `no-route`: this host has no route to the address. There is no result for ICMP host unreachable, because by default
 * the kernel does not report this error to a socket (net/ipv4/icmp.c, icmp_err_convert: not fatal).
 */
export type UdpProbeResult = 'refused' | 'prohibited' | 'own-firewall' | 'no-route'

/**
 * The result for each error code that the socket reports after the datagram was sent. The kernel makes these codes from
 * ICMP errors.
 */
const AFTER_SENDING: Readonly<Record<string, UdpProbeResult>> = {
  ECONNREFUSED: 'refused',
  EHOSTUNREACH: 'prohibited',
  ENETUNREACH: 'prohibited',
  EACCES: 'prohibited', // over IPv6
}
/** The result for each error code with which connect or send fails on this host. */
const BEFORE_SENDING: Readonly<Record<string, UdpProbeResult>> = {
  EPERM: 'own-firewall',
  EACCES: 'own-firewall',
  ENETUNREACH: 'no-route',
  EHOSTUNREACH: 'no-route',
}

/**
 * Sends an empty UDP datagram, and waits for an ICMP error for at most `waitMs` milliseconds. Resolves with undefined
 * if no error comes.
 */
export function probeUdpPort(to: Address, port: number, waitMs: number): Promise<UdpProbeResult | undefined> {
  const socket = createSocket(familyOf(to) === 'ipv4' ? 'udp4' : 'udp6')
  return new Promise((resolve) => {
    const end = (what: UdpProbeResult | undefined): void => {
      clearTimeout(timer)
      socket.removeAllListeners().on('error', () => {})
      socket.close()
      resolve(what)
    }
    const timer = setTimeout(() => end(undefined), waitMs)
    let codes = BEFORE_SENDING
    socket.on('error', (error: NodeJS.ErrnoException) => end(codes[error.code ?? '']))
    // If connect fails, for example because this host has no route, Node.js passes the error to this callback and emits
    // no `error` event.
    socket.connect(port, formatAddress(to), (refused?: NodeJS.ErrnoException) => {
      if (refused) return end(BEFORE_SENDING[refused.code ?? ''])
      socket.send(Buffer.alloc(0), (error: NodeJS.ErrnoException | null) => {
        if (error) end((error.code === 'ECONNREFUSED' ? AFTER_SENDING : BEFORE_SENDING)[error.code ?? ''])
        codes = AFTER_SENDING
      })
    })
  })
}
