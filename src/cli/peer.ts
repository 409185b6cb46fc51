// peer.ts - which peer an operator means, and how it is asked whether it answers.

import { messageOf, WeftError } from '../errors.ts'
import { openEcho, type Echo } from '../host/echo.ts'
import { kindOf } from '../kinds.ts'
import { netContains, parseAddress, parseNet, type Address } from '../net/address.ts'
import { parseIpv4, parseIpv4Net, type Ipv4 } from '../net/ipv4.ts'
import type { PeerStatus, Status } from '../status/status.ts'

/** The peer of a subnet, a lease's key, a public IP, or an address within its subnet; of several the one with the longest prefix. */
export function peerNamed(status: Status, name: string): PeerStatus | undefined {
  const list = status.peers?.list ?? []
  const exact = list.find(({ lease, subnet, publicIp }) => [lease, subnet, publicIp].includes(name))
  return exact ?? peerWith(status, parseAddress(name))
}

/** The peer whose subnet has this address. */
export function peerWith({ peers }: Status, address: Address | undefined): PeerStatus | undefined {
  if (address === undefined) return undefined
  const withNets = peers?.list.map((peer) => ({ peer, net: parseNet(peer.subnet) }))
  const having = withNets?.flatMap(({ peer, net }) => (net && netContains(net, address) ? [{ peer, net }] : []))
  return having?.toSorted((a, b) => b.net.prefixLength - a.net.prefixLength)[0]?.peer
}

const firstIn = (subnet: string): Ipv4 | undefined => parseIpv4Net(subnet)?.address

/** From where to where a peer is asked, as weftd does it; undefined where the backend has nobody who would answer. */
export function probeOf(
  { node, config }: Status,
  { subnet, publicIp }: Pick<PeerStatus, 'subnet' | 'publicIp'>,
): { readonly from: Ipv4; readonly to: Ipv4 } | undefined {
  const asked = kindOf(config?.backendType ?? '')?.probe ?? 'nobody'
  if (!node || asked === 'nobody') return undefined
  const [source, target] =
    asked === 'host' ? [node.publicIp, publicIp].map(parseIpv4) : [node.subnet, subnet].map(firstIn)
  return source === undefined || target === undefined ? undefined : { from: source, to: target }
}

/** The peer of this name, and how it is asked. Throws WeftError where there is none, or nobody to ask. */
export function askedPeer(status: Status, name: string) {
  const peer = peerNamed(status, name)
  if (!peer) throw new WeftError('USAGE', `there is no peer ${name}`, { remedy: 'see `weft peers`' })
  const probe = probeOf(status, peer)
  if (probe) return { peer, probe }
  throw new WeftError('CONFIG', `with the ${status.config?.backendType} backend weft knows nobody who would answer`, {
    remedy: 'ask a container of that node',
  })
}

/** Asks one after another of a socket, and resolves with the round-trip time in ms, undefined when nothing came in time. */
export interface Asker {
  ask(to: Ipv4, waitMs: number, bytes?: number): Promise<number | undefined>
  close(): void
}

/** Throws WeftError PERMISSION where this host does not let us ask, ADDRESS when it has no such address. */
export function createAsker(from: Ipv4, open = openEcho): Asker {
  let next = Math.floor(Math.random() * 0x10000)
  const waiting = new Map<number, { readonly to: Ipv4; readonly tell: (roundTripMs: number) => void }>()
  let echo: Echo
  try {
    echo = open(from, (who, sequence, roundTripMs) => {
      const request = waiting.get(sequence)
      if (request?.to === who) request.tell(roundTripMs)
    })
  } catch (error) {
    const isForbidden = ['EPERM', 'EACCES'].includes((error as NodeJS.ErrnoException).code ?? '')
    throw new WeftError(isForbidden ? 'PERMISSION' : 'ADDRESS', `nobody can be asked: ${messageOf(error)}`, {
      remedy: isForbidden ? 'run as root' : 'see whether the data path is up: `weft status`',
      cause: error,
    })
  }
  return {
    ask: (to, waitMs, bytes) =>
      new Promise((resolve, reject) => {
        const sequence = next
        next = (next + 1) % 0x10000
        const timer = setTimeout(() => end(undefined), waitMs)
        const end = (roundTripMs: number | undefined): void => {
          clearTimeout(timer)
          waiting.delete(sequence)
          resolve(roundTripMs)
        }
        waiting.set(sequence, { to, tell: end })
        try {
          echo.send(to, sequence, bytes)
        } catch (error) {
          // What the kernel will not send nobody answers; but that it is too large for the device it says here.
          if ((error as NodeJS.ErrnoException).code === undefined) reject(error)
          else end(undefined)
        }
      }),
    close: () => echo.close(),
  }
}
