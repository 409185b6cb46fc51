// peer.ts - which peer an operator means, and how it is asked whether it answers.

import { messageOf, WeftError } from '../../base/errors.ts'
import { nameIn } from '../../base/go-flags.ts'
import { openEcho, type Echo } from '../../host/echo.ts'
import {
  FAMILIES,
  familiesOf,
  familyOf,
  formatAddress,
  formatNet,
  netContains,
  parseAddress,
  parseNet,
  type Address,
  type Family,
} from '../../net/address.ts'
import { kindOf } from '../../path/catalog.ts'
import { placeIn, sidesOf, type PeerStatus, type Status } from '../../report/status.ts'

/**
 * The peer of a subnet, a lease's key, a public IP, or an address within its subnet, of either family; of several the one with the
 * longest prefix. Else that of a host's name, or of its first label. Throws WeftError USAGE where several have the name.
 */
export function peerNamed(status: Status, name: string): PeerStatus | undefined {
  const [address, net] = [parseAddress(name), parseNet(name)]
  const text = address === undefined ? (net ? formatNet(net) : name) : formatAddress(address)
  const exact = status.peers?.list.find(({ lease, subnet, publicIp, ipv6Subnet, publicIpv6 }) =>
    [lease, subnet, publicIp, ipv6Subnet, publicIpv6].includes(text),
  )
  if (exact || address !== undefined || net) return exact ?? peerWith(status, address)
  const [one, ...others] = peersCalled(status, name)
  if (!one || others.length === 0) return one
  const all = [one, ...others]
  const few = all.slice(0, NAMED).map(({ subnet, publicIp }) => `${subnet} at ${publicIp}`)
  const more = all.length > NAMED ? [`${all.length - NAMED} more`] : []
  throw new WeftError('USAGE', `${all.length} peers are called ${nameIn(name)}: ${[...few, ...more].join(', ')}`, {
    remedy: 'give the subnet or the address of one of them',
  })
}

/** Named of what may be many. */
const NAMED = 5

const firstLabel = (name: string): string => name.split('.')[0] ?? ''

/** The peers with this name, else those whose name begins with this label: `host2` is `host2.example.org`. */
function peersCalled({ peers }: Status, name: string): readonly PeerStatus[] {
  const wanted = name.toLowerCase()
  const having = (nameOf: (whole: string) => string): readonly PeerStatus[] =>
    peers?.list.filter((peer) => peer.name && nameOf(peer.name.toLowerCase()) === wanted) ?? []
  const whole = wanted === '' ? [] : having((each) => each)
  return whole.length > 0 || wanted === '' || wanted.includes('.') ? whole : having(firstLabel)
}

/** True for the name of the host itself. */
export function isOwnName({ node }: Status, name: string): boolean {
  const [wanted, own] = [name.toLowerCase(), node?.hostname.toLowerCase() ?? '']
  return wanted !== '' && (wanted === own || wanted === firstLabel(own))
}

/** The peer whose subnet has this address. */
function peerWith({ peers }: Status, address: Address | undefined): PeerStatus | undefined {
  if (address === undefined) return undefined
  const withNets = peers?.list.map((peer) => ({ peer, net: placeIn(peer, familyOf(address)).subnet }))
  const having = withNets?.flatMap(({ peer, net }) => (net && netContains(net, address) ? [{ peer, net }] : []))
  return having?.toSorted((a, b) => b.net.prefixLength - a.net.prefixLength)[0]?.peer
}

/** The addresses of a family from which and at which weftd asks a peer. */
export interface Probe<A extends Address = Address> {
  readonly family: Family
  readonly from: A
  readonly to: A
}

/** How weftd asks a peer, by each family that both have; nothing when the backend has nobody who would answer. */
export function probesOf({ node, config }: Status, peer: PeerStatus): readonly Probe[] {
  const asked = kindOf(config?.backendType ?? '')?.probe ?? 'nobody'
  if (!node || asked === 'nobody') return []
  const addressOf = ({ subnet, publicIp }: ReturnType<typeof placeIn>): Address | undefined =>
    asked === 'host' ? publicIp : subnet?.address
  return familiesOf(sidesOf(peer)).flatMap((family) => {
    const [from, to] = [addressOf(placeIn(node, family)), addressOf(placeIn(peer, family))]
    return from === undefined || to === undefined ? [] : [{ family, from, to }]
  })
}

/** The peer of this name, and how it is asked. Throws WeftError where there is none, or nobody to ask. */
export function askedPeer(status: Status, name: string) {
  const peer = peerNamed(status, name)
  if (!peer && isOwnName(status, name))
    throw new WeftError('USAGE', `${nameIn(name)} is this host itself`, {
      remedy: 'name another one, see `weft peers`',
    })
  if (!peer) throw new WeftError('USAGE', `there is no peer ${nameIn(name)}`, { remedy: 'see `weft peers`' })
  const probes = probesOf(status, peer)
  if (probes.length > 0) return { peer, probes }
  throw new WeftError(
    'CONFIG',
    `with the ${status.config?.backendType} backend weft knows no address that would answer`,
    {
      remedy: 'ask a container of that node',
    },
  )
}

/** The probes by the family that an operator names, all where that is empty. Throws WeftError USAGE for one that there is none of. */
export function probesWanted(probes: readonly Probe[], family: string): readonly Probe[] {
  const wanted = probes.filter((probe) => family === '' || probe.family === family)
  if (wanted.length > 0) return wanted
  const isOne = FAMILIES.some((each) => each === family)
  throw new WeftError('USAGE', `--family is ${family}${isOne ? ', and the peer is not reached by that' : ''}`, {
    remedy: `give ${probes.map((probe) => probe.family).join(' or ')}, or leave it out`,
  })
}

/** Asks one after another of a socket, and resolves with the round-trip time in ms, undefined when nothing came in time. */
export interface Asker {
  ask(to: Address, waitMs: number, bytes?: number): Promise<number | undefined>
  close(): void
}

/** Throws WeftError PERMISSION where this host does not let us ask, ADDRESS when it has no such address. */
export function createAsker(from: Address, open = openEcho): Asker {
  let next = Math.floor(Math.random() * 0x10000)
  const waiting = new Map<number, { readonly to: Address; readonly tell: (roundTripMs: number) => void }>()
  let echo: Echo
  try {
    echo = open(from, (who, sequence, roundTripMs) => {
      const request = waiting.get(sequence)
      if (request?.to === who) request.tell(roundTripMs)
    })
  } catch (error) {
    const isForbidden = ['EPERM', 'EACCES'].includes((error as NodeJS.ErrnoException).code ?? '')
    throw new WeftError(isForbidden ? 'PERMISSION' : 'ADDRESS', `no peer can be pinged: ${messageOf(error)}`, {
      remedy: isForbidden ? 'run as root' : 'check that the data path is up: `weft status`',
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
          // A request that the kernel will not send stays unanswered; but a size that is too large for the device is
          // reported here.
          if ((error as NodeJS.ErrnoException).code === undefined) reject(error)
          else end(undefined)
        }
      }),
    close: () => echo.close(),
  }
}
