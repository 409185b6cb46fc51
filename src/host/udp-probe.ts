// udp-probe.ts - probes a UDP port with an empty datagram. No program answers it, but a host or a firewall may send an ICMP error.

import { createSocket } from 'node:dgram'
import { familyOf, formatAddress, type Address } from '../net/address.ts'

/**
 * `refused`: the host is up, and no program listens on the port. `prohibited`: a firewall there, or between, rejects the datagram.
 * `own-firewall`: this host's firewall rejects it. `no-route`: this host has no route to the address. ICMP host unreachable is not
 * reported, because the kernel does not report it to a socket by default (net/ipv4/icmp.c, icmp_err_convert: not fatal).
 */
export type UdpProbeResult = 'refused' | 'prohibited' | 'own-firewall' | 'no-route'

/** The meaning of an error after the datagram was sent: an ICMP error. */
const AFTER_SENDING: Readonly<Record<string, UdpProbeResult>> = {
  ECONNREFUSED: 'refused',
  EHOSTUNREACH: 'prohibited',
  ENETUNREACH: 'prohibited',
  EACCES: 'prohibited', // over IPv6
}
/** The meaning of an error of connect or send on this host. */
const BEFORE_SENDING: Readonly<Record<string, UdpProbeResult>> = {
  EPERM: 'own-firewall',
  EACCES: 'own-firewall',
  ENETUNREACH: 'no-route',
  EHOSTUNREACH: 'no-route',
}

/** Sends an empty datagram from any port, and waits for an ICMP error; undefined if none comes. */
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
    // If connect fails, as without a route, Node.js passes the error to the callback and emits no event.
    socket.connect(port, formatAddress(to), (refused?: NodeJS.ErrnoException) => {
      if (refused) return end(BEFORE_SENDING[refused.code ?? ''])
      socket.send(Buffer.alloc(0), (error: NodeJS.ErrnoException | null) => {
        if (error) end((error.code === 'ECONNREFUSED' ? AFTER_SENDING : BEFORE_SENDING)[error.code ?? ''])
        codes = AFTER_SENDING
      })
    })
  })
}
