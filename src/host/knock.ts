// knock.ts - asks a UDP port whether anybody is behind it: nobody answers that, but who is in the way may say so by ICMP.

import { createSocket } from 'node:dgram'
import { familyOf, formatAddress, type Address } from '../net/address.ts'

/**
 * `refused`: the host is up, and nothing listens there; `prohibited`: a firewall, there or on the way, says that it lets nothing through;
 * `own-firewall`: this host's own does not let it out; `no-route`: this host has no way there. That a host is unreachable the kernel
 * tells a socket only when asked to, and it need not stay so (net/ipv4/icmp.c, icmp_err_convert: not fatal).
 */
export type Knocked = 'refused' | 'prohibited' | 'own-firewall' | 'no-route'

const ON_THE_WAY: Readonly<Record<string, Knocked>> = {
  ECONNREFUSED: 'refused',
  EHOSTUNREACH: 'prohibited',
  ENETUNREACH: 'prohibited',
  EACCES: 'prohibited', // of IPv6
}
const HERE: Readonly<Record<string, Knocked>> = {
  EPERM: 'own-firewall',
  EACCES: 'own-firewall',
  ENETUNREACH: 'no-route',
  EHOSTUNREACH: 'no-route',
}

/** Sends an empty datagram and waits for what comes back; undefined when nothing does. Of no port of this host's in particular. */
export function knock(to: Address, port: number, waitMs: number): Promise<Knocked | undefined> {
  const socket = createSocket(familyOf(to) === 'ipv4' ? 'udp4' : 'udp6')
  return new Promise((resolve) => {
    const end = (what: Knocked | undefined): void => {
      clearTimeout(timer)
      socket.removeAllListeners().on('error', () => {})
      socket.close()
      resolve(what)
    }
    const timer = setTimeout(() => end(undefined), waitMs)
    let codes = HERE
    socket.on('error', (error: NodeJS.ErrnoException) => end(codes[error.code ?? '']))
    // Node.js hands the callback what keeps it from connecting, such as that there is no route, and emits no error then.
    socket.connect(port, formatAddress(to), (refused?: NodeJS.ErrnoException) => {
      if (refused) return end(HERE[refused.code ?? ''])
      socket.send(Buffer.alloc(0), (error: NodeJS.ErrnoException | null) => {
        if (error) end((error.code === 'ECONNREFUSED' ? ON_THE_WAY : HERE)[error.code ?? ''])
        codes = ON_THE_WAY
      })
    })
  })
}
