// peer.ts - finds the peer that an operator names, and pings the peer through the data path.

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
 * Finds a peer by its subnet, lease key, public IP, or an address in its subnet. If several subnets contain the
 * address, the subnet with the longest prefix wins. Any other text is a host name or the first label of a host name.
 * Throws WeftError USAGE if several peers have the name.
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
    remedy: 'give the subnet or the address of the peer that you mean',
  })
}

/** The maximum number of peers that an error message names. */
const NAMED = 5

const firstLabel = (name: string): string => name.split('.')[0] ?? ''

/**
 * Finds the peers with the host name `name`. If there are none, finds the peers whose host name has `name` as the first
 * label, such as `host2` for `host2.example.org`.
 */
function peersCalled({ peers }: Status, name: string): readonly PeerStatus[] {
  const wanted = name.toLowerCase()
  const having = (nameOf: (whole: string) => string): readonly PeerStatus[] =>
    peers?.list.filter((peer) => peer.name && nameOf(peer.name.toLowerCase()) === wanted) ?? []
  const whole = wanted === '' ? [] : having((each) => each)
  return whole.length > 0 || wanted === '' || wanted.includes('.') ? whole : having(firstLabel)
}

export function isOwnName({ node }: Status, name: string): boolean {
  const [wanted, own] = [name.toLowerCase(), node?.hostname.toLowerCase() ?? '']
  return wanted !== '' && (wanted === own || wanted === firstLabel(own))
}

function peerWith({ peers }: Status, address: Address | undefined): PeerStatus | undefined {
  if (address === undefined) return undefined
  const withNets = peers?.list.map((peer) => ({ peer, net: placeIn(peer, familyOf(address)).subnet }))
  const having = withNets?.flatMap(({ peer, net }) => (net && netContains(net, address) ? [{ peer, net }] : []))
  return having?.toSorted((a, b) => b.net.prefixLength - a.net.prefixLength)[0]?.peer
}

export interface Probe<A extends Address = Address> {
  readonly family: Family
  readonly from: A
  readonly to: A
}

/**
 * Returns a probe of the peer over each family that both nodes have. Returns an empty list if the backend gives the
 * peer no address that answers echo requests.
 */
export function probesOf({ node, config }: Status, peer: PeerStatus): readonly Probe[] {
  const target = kindOf(config?.backendType ?? '')?.probe ?? 'nobody'
  if (!node || target === 'nobody') return []
  const addressOf = ({ subnet, publicIp }: ReturnType<typeof placeIn>): Address | undefined =>
    target === 'host' ? publicIp : subnet?.address
  return familiesOf(sidesOf(peer)).flatMap((family) => {
    const [from, to] = [addressOf(placeIn(node, family)), addressOf(placeIn(peer, family))]
    return from === undefined || to === undefined ? [] : [{ family, from, to }]
  })
}

/**
 * Finds the peer called `name`, and its probes. Throws WeftError if there is no such peer, or if weft cannot probe the
 * peer.
 */
export function peerToPing(status: Status, name: string) {
  const peer = peerNamed(status, name)
  if (!peer && isOwnName(status, name))
    throw new WeftError('USAGE', `${nameIn(name)} is this host itself`, {
      remedy: 'name a host other than this one; `weft peers` lists the peers',
    })
  if (!peer)
    throw new WeftError('USAGE', `there is no peer ${nameIn(name)}`, { remedy: '`weft peers` lists the peers' })
  const probes = probesOf(status, peer)
  if (probes.length > 0) return { peer, probes }
  throw new WeftError(
    'CONFIG',
    `the nodes of a ${status.config?.backendType} network have no address that answers pings`,
    {
      remedy: 'ping a container of that node',
    },
  )
}

/**
 * Selects the probes over the family that the operator named; all probes if `family` is empty. Throws WeftError USAGE
 * if no probe is left.
 */
export function probesWanted(probes: readonly Probe[], family: string): readonly Probe[] {
  const wanted = probes.filter((probe) => family === '' || probe.family === family)
  if (wanted.length > 0) return wanted
  const isOne = FAMILIES.some((each) => each === family)
  throw new WeftError('USAGE', `--family is ${family}${isOne ? ', but the peer has no address of that family' : ''}`, {
    remedy: `give ${probes.map((probe) => probe.family).join(' or ')}, or leave it out`,
  })
}

export interface Pinger {
  ping(to: Address, waitMs: number, bytes?: number): Promise<number | undefined>
  close(): void
}

/**
 * Opens a socket for ICMP echo requests. Throws WeftError PERMISSION if this user may not open such a socket, and
 * ADDRESS if the host does not have the address `from`.
 */
export function createPinger(from: Address, open = openEcho): Pinger {
  let next = Math.floor(Math.random() * 0x10000)
  const waiting = new Map<number, { readonly to: Address; readonly resolve: (roundTripMs: number) => void }>()
  let echo: Echo
  try {
    echo = open(from, (who, sequence, roundTripMs) => {
      const request = waiting.get(sequence)
      if (request?.to === who) request.resolve(roundTripMs)
    })
  } catch (error) {
    const isForbidden = ['EPERM', 'EACCES'].includes((error as NodeJS.ErrnoException).code ?? '')
    throw new WeftError(isForbidden ? 'PERMISSION' : 'ADDRESS', `no peer can be pinged: ${messageOf(error)}`, {
      remedy: isForbidden ? 'run weft ping as root' : 'check that the data path is up: `weft status`',
      cause: error,
    })
  }
  return {
    ping: (to, waitMs, bytes) =>
      new Promise((resolve, reject) => {
        const sequence = next
        next = (next + 1) % 0x10000
        const timer = setTimeout(() => end(undefined), waitMs)
        const end = (roundTripMs: number | undefined): void => {
          clearTimeout(timer)
          waiting.delete(sequence)
          resolve(roundTripMs)
        }
        waiting.set(sequence, { to, resolve: end })
        try {
          echo.send(to, sequence, bytes)
        } catch (error) {
          // If the kernel returns an error for a request, the request counts as unanswered. Reject only with an error
          // without a code, which means that the request is too long for the device.
          if ((error as NodeJS.ErrnoException).code === undefined) reject(error)
          else end(undefined)
        }
      }),
    close: () => echo.close(),
  }
}
