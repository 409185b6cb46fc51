// wg.ts - `weft wg`: shows the keys, handshakes and traffic of a node with the WireGuard backend, in the format of `wg
// show`. Works for the kernel's WireGuard and for weftd's own.

import { WeftError } from '../../base/errors.ts'
import { jsonLine } from '../../base/text.ts'
import { FAMILIES, formatNet, type Family } from '../../net/address.ts'
import { placeIn, sidesOf, type PeerStatus, type Status } from '../../report/status.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { fetchStatus } from './daemon-client.ts'
import { count, type Colour } from './look.ts'

export const wgCommand = command({
  name: 'wg',
  does: 'show keys, handshakes and traffic in the format of `wg show`, also if weftd itself encrypts',
  more: 'Never shows private or pre-shared keys. If weftd itself carries the packets, the bytes are those of inner packets, without encryption overhead.',
  flags: { ...JSON_FLAG, ...SOCKET_FLAG },
  async run({ options, screen, signal }) {
    const interfaces = interfacesOf(await fetchStatus(options['status-socket'], signal))
    screen.write(
      options.json ? jsonLine({ interfaces }) : interfaces.map((each) => textOf(each, screen.colour)).join('\n'),
    )
    return EXIT.ok
  },
})

/** A WireGuard device of the kernel, or the TUN device of weftd's own WireGuard. */
interface Interface {
  readonly name: string
  readonly publicKey: string
  readonly listeningPort: number | null
  readonly engine: string | null
  readonly hasPresharedKey: boolean
  /** The interval in seconds at which this node sends keepalives; 0 if it sends none. */
  readonly keepaliveSeconds: number
  readonly peers: readonly Peer[]
}

interface Peer {
  readonly publicKey: string
  readonly name: string | null
  readonly endpoint: string | null
  readonly allowedIps: readonly string[]
  readonly handshakeSecondsAgo: number | null
  readonly ageSeconds: number | null
  readonly receivedBytes: number | null
  readonly sentBytes: number | null
}

/**
 * Returns the WireGuard devices of this node. Throws WeftError CONFIG if the backend does not encrypt, and COMMAND if
 * the node has no lease or no device.
 */
export function interfacesOf(status: Status): readonly Interface[] {
  const { node, config, lease, dataPath, peers, trouble } = status
  if (!node || !config || !lease)
    throw new WeftError('COMMAND', `weftd has no lease yet: ${trouble ?? 'it starts'}`, {
      remedy: 'wait until weftd has a lease; `weft doctor` gives the reason for the delay',
    })
  const ends = FAMILIES.flatMap((family) => {
    const end = endOf(lease.published[DATA[family]])
    return end ? [[family, end] as const] : []
  })
  if (ends.length === 0)
    throw new WeftError('CONFIG', `this node does not encrypt packets: its backend is ${config.backendType}`, {
      remedy: '`weft peers` shows its peers; the backend wireguard encrypts (docs/wireguard.md)',
    })
  const list = peers?.list ?? []
  const names = new Set(ends.flatMap(([family]) => dataPath?.devices[family] ?? []))
  if (names.size === 0)
    throw new WeftError('COMMAND', `weftd does not carry packets now: ${trouble ?? 'it has no device'}`, {
      remedy: '`weft doctor` gives the reason why packets do not pass',
    })
  return [...names].flatMap((name) => {
    const its = ends.filter(([family]) => dataPath?.devices[family] === name)
    const families = its.map(([family]) => family)
    return its.slice(0, 1).map(([, { publicKey, port: listeningPort }]) => ({
      name,
      publicKey,
      listeningPort,
      engine: dataPath?.engine ?? null,
      hasPresharedKey: Boolean(config.backend['psk']),
      keepaliveSeconds: Number(config.backend['persistentkeepaliveinterval'] ?? 0),
      peers: list.flatMap((peer) => peerOf(peer, families)).toSorted((a, b) => agoOf(a) - agoOf(b)),
    }))
  })
}

const DATA: Readonly<Record<Family, string>> = { ipv4: 'BackendData', ipv6: 'BackendV6Data' }

function endOf(published: unknown): { readonly publicKey: string; readonly port: number | null } | undefined {
  const { PublicKey: publicKey, Port: port } = (published ?? {}) as Readonly<Record<string, unknown>>
  return typeof publicKey === 'string' ? { publicKey, port: typeof port === 'number' ? port : null } : undefined
}

/** Returns the sort key of a peer, in seconds. The peer with the latest handshake comes first, as in `wg show`. */
const agoOf = ({ handshakeSecondsAgo }: Peer): number => handshakeSecondsAgo ?? Number.MAX_VALUE

function peerOf(peer: PeerStatus, families: readonly Family[]): Peer[] {
  const sides = families.flatMap((family) => {
    const side = sidesOf(peer)[family]
    return side?.session ? [{ ...side, session: side.session, subnet: placeIn(peer, family).subnet }] : []
  })
  return sides.slice(0, 1).map(({ endpoint, session }) => ({
    publicKey: session.publicKey,
    name: peer.name ?? null,
    endpoint,
    allowedIps: sides.flatMap(({ subnet }) => (subnet ? [formatNet(subnet)] : [])),
    handshakeSecondsAgo: session.handshakeSecondsAgo,
    ageSeconds: session.ageSeconds,
    receivedBytes: session.rxBytes,
    sentBytes: session.txBytes,
  }))
}

/** Formats a device as wireguard-tools do (src/show.c, pretty_print). */
function textOf(
  { name, publicKey, listeningPort, hasPresharedKey, keepaliveSeconds, peers }: Interface,
  colour: Colour,
): string {
  const part = (head: string, facts: readonly (readonly [string, string | undefined])[]): string =>
    `${head}\n${facts.map(([what, text]) => (text === undefined ? '' : `  ${colour('bold', what)}: ${text}\n`)).join('')}`
  const parts = peers.map((peer) => {
    const { endpoint, allowedIps, handshakeSecondsAgo: ago, receivedBytes, sentBytes } = peer
    const [received, sent] = [receivedBytes ?? 0, sentBytes ?? 0]
    return part(colour('doubtful', `peer: ${peer.publicKey}`), [
      ['preshared key', hasPresharedKey ? '(hidden)' : undefined],
      ['endpoint', endpoint ?? undefined],
      ['allowed ips', allowedIps.join(', ') || '(none)'],
      ['latest handshake', ago === null ? undefined : agoText(ago)],
      ['transfer', received + sent > 0 ? `${size(received)} received, ${size(sent)} sent` : undefined],
      ['persistent keepalive', keepaliveSeconds > 0 ? `every ${spanText(keepaliveSeconds)}` : undefined],
    ])
  })
  return [
    part(colour('good', `interface: ${name}`), [
      ['public key', publicKey],
      ['private key', '(hidden)'],
      ['listening port', listeningPort === null ? undefined : String(listeningPort)],
    ]),
    ...parts,
  ].join('\n')
}

const SPANS = [
  ['year', 31_536_000],
  ['day', 86_400],
  ['hour', 3_600],
  ['minute', 60],
  ['second', 1],
] as const

/** Formats a duration as `wg show` does, such as `1 minute, 3 seconds`. */
function spanText(seconds: number): string {
  let left = Math.floor(seconds)
  const words = SPANS.flatMap(([what, length]) => {
    const number = Math.floor(left / length)
    left %= length
    return number > 0 ? [count(number, what)] : []
  })
  return words.join(', ')
}
const agoText = (seconds: number): string => (seconds < 1 ? 'Now' : `${spanText(seconds)} ago`)

function size(bytes: number): string {
  const units = ['KiB', 'MiB', 'GiB', 'TiB']
  if (bytes < 1024) return `${bytes} B`
  let [value, unit] = [bytes / 1024, 0]
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024
  return `${value.toFixed(2)} ${units[unit]}`
}
