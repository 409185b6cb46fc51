// peer.ts - which peer an operator means, and how it is asked whether it answers.

import { messageOf, WeftError } from '../errors.ts'
import { openEcho, type Echo } from '../host/echo.ts'
import { kindOf } from '../kinds.ts'
import { ipv4NetContains, parseIpv4, parseIpv4Net, type Ipv4, type Ipv4Net } from '../net/ipv4.ts'
import type { PeerStatus, Status } from '../status/status.ts'

const netOf = (text: string): Ipv4Net => parseIpv4Net(text) ?? { address: 0, prefixLength: 32 }

/** The peer of a subnet, a lease's key, a public IP, or an address within its subnet; of several the one with the longest prefix. */
export function peerNamed(status: Status, name: string): PeerStatus | undefined {
  const list = status.peers?.list ?? []
  const exact = list.find(({ lease, subnet, publicIp }) => [lease, subnet, publicIp].includes(name))
  return exact ?? peerWith(status, parseIpv4(name))
}

/** The peer whose subnet has this address. */
export function peerWith({ peers }: Status, address: Ipv4 | undefined): PeerStatus | undefined {
  if (address === undefined) return undefined
  return peers?.list
    .filter(({ subnet }) => ipv4NetContains(netOf(subnet), address))
    .toSorted((a, b) => netOf(b.subnet).prefixLength - netOf(a.subnet).prefixLength)[0]
}

/** From where to where a peer is asked, as weftd does it; undefined where the backend has nobody who would answer. */
export function probeOf(
  { node, config }: Status,
  { subnet, publicIp }: Pick<PeerStatus, 'subnet' | 'publicIp'>,
): { readonly from: Ipv4; readonly to: Ipv4 } | undefined {
  const asked = kindOf(config?.backendType ?? '')?.probe ?? 'nobody'
  if (!node || asked === 'nobody') return undefined
  const [from, to] =
    asked === 'host' ? [node.publicIp, publicIp] : [netOf(node.subnet), netOf(subnet)].map(({ address }) => address)
  const [source, target] = [from, to].map((each) => (typeof each === 'string' ? parseIpv4(each) : each))
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
