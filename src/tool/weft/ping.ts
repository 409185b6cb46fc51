// ping.ts - `weft ping`: sends echo requests to a peer's host through the data path.

import { describeError, isWeftError, WeftError } from '../../base/errors.ts'
import { jsonLine } from '../../base/text.ts'
import { pause } from '../../host/bell.ts'
import { FAMILY_NAMES, formatAddress, formatNet, type Family } from '../../net/address.ts'
import { placeIn, sidesOf, titleOf, type PeerStatus } from '../../report/status.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { fetchStatus } from './daemon-client.ts'
import { milliseconds } from './look.ts'
import { peerToPing, createPinger, probesWanted, type Pinger, type Probe } from './peer.ts'

const WAIT_MS = 1_000

export const pingCommand = command({
  name: 'ping',
  args: 'PEER',
  does: 'ping a peer through the data path',
  more:
    'PEER is the name of its host, its subnet, an address in that subnet, or its public IP. A dual-stack peer is pinged over IPv4 and ' +
    'IPv6. Exits with 3 if no answer comes back over one of them.',
  flags: {
    count: { default: 4, help: 'number of pings' },
    size: {
      default: 0,
      help: 'size of the whole packet in bytes, which must not be fragmented (DF); 0: a small packet',
    },
    family: { default: '', placeholder: 'FAMILY', help: 'ping only over this family: ipv4 or ipv6' },
    ...JSON_FLAG,
    ...SOCKET_FLAG,
  },
  async run({ options: { count, size, family, json, 'status-socket': socket }, args: [name = ''], screen, signal }) {
    if (count < 1 || size < 0 || size > 65_535) {
      throw new WeftError('USAGE', `--count is ${count} and --size ${size}`, {
        remedy: 'give a count of at least 1, and a size of at most 65535 bytes',
      })
    }
    const status = await fetchStatus(socket, signal)
    const { peer, probes } = peerToPing(status, name)
    const wanted = probesWanted(probes, family)
    const mtu = status.dataPath?.mtu ?? 0
    if (mtu > 0 && size > mtu) {
      throw new WeftError('USAGE', `--size is ${size}, but the MTU of the data path is ${mtu}`, {
        remedy: 'give a size of at most the MTU',
      })
    }
    const pinged: Pinged[] = []
    try {
      const failures: WeftError[] = []
      for (const probe of wanted)
        pinged.push({ probe, pinger: pingerFor(probe, (failure) => failures.push(failure)), times: [] })
      const [first] = failures
      if (first && failures.length === wanted.length) throw first
      for (const failure of failures) screen.warn(`weft ping: ${describeError(failure)}`)
      for (let number = 0; number < count; number++) {
        if (number > 0) await pause(signal, WAIT_MS).catch(() => {})
        if (signal.aborted) break // the answers so far are still summarized
        const took = await Promise.all(pinged.map(({ pinger, probe }) => pinger.ping(probe.to, WAIT_MS, size)))
        pinged.forEach(({ probe, times }, at) => {
          const time = took[at]
          times.push(time)
          if (json) return
          const said =
            time === undefined ? screen.colour('bad', 'no answer') : screen.colour('good', milliseconds(time))
          screen.write(`${placeText(peer, probe)}: ${said}\n`)
        })
      }
    } finally {
      for (const { pinger } of pinged) pinger.close()
    }
    if (json) screen.write(jsonLine(toJson(peer, pinged)))
    else for (const one of pinged) screen.write(sumText(one, pinged.length > 1))
    return pinged.every(({ times }) => answeredOf(times).length > 0) ? EXIT.ok : EXIT.wrong
  },
})

/**
 * A probe of a peer, and the round-trip time of each echo request in ms; undefined for a request that was not answered.
 */
interface Pinged {
  readonly probe: Probe
  readonly pinger: Pinger
  readonly times: (number | undefined)[]
}

/**
 * Opens a socket for a probe. If the data path does not carry the probe's family now, this host lacks the source
 * address. In that case returns a pinger whose requests get no answer.
 */
function pingerFor({ from }: Probe, failed: (why: WeftError) => void): Pinger {
  try {
    return createPinger(from)
  } catch (error) {
    if (!isWeftError(error, 'ADDRESS')) throw error
    failed(error)
    return { ping: async () => undefined, close: () => {} }
  }
}

function placeText(peer: PeerStatus, { family, to }: Probe): string {
  const { subnet, publicIp } = placeIn(peer, family)
  const host = sidesOf(peer)[family]?.endpoint ?? (publicIp === undefined ? peer.publicIp : formatAddress(publicIp))
  const place = { name: peer.name ?? null, subnet: subnet ? formatNet(subnet) : peer.subnet }
  return `${titleOf(place)} at ${host} (${formatAddress(to)})`
}

const answeredOf = (times: Pinged['times']): number[] => times.filter((time) => time !== undefined)
const lossOf = (times: Pinged['times']): number =>
  Math.round((100 * (times.length - answeredOf(times).length)) / times.length)

function sumText({ probe: { family }, times }: Pinged, isOneOfTwo: boolean): string {
  const answered = answeredOf(times)
  const spread =
    answered.length === 0 ? '' : `, ${milliseconds(Math.min(...answered))} to ${milliseconds(Math.max(...answered))}`
  const by = isOneOfTwo ? `${FAMILY_NAMES[family]}: ` : ''
  return `${by}${answered.length} of ${times.length} answered (${lossOf(times)}% lost)${spread}\n`
}

/**
 * Formats the results for --json, by family. The results of the first family are also at the top level of the object.
 */
function toJson(peer: PeerStatus, pinged: readonly Pinged[]) {
  const resultOf = ({ probe: { to }, times }: Pinged) => ({
    address: formatAddress(to),
    roundTripsMs: times.map((time) => time ?? null),
    lossPercent: lossOf(times),
  })
  const [first] = pinged
  const of = (family: Family) => {
    const one = pinged.find(({ probe }) => probe.family === family)
    return one ? resultOf(one) : null
  }
  return {
    peer: peer.subnet,
    name: peer.name ?? null,
    ...(first ? resultOf(first) : {}),
    families: { ipv4: of('ipv4'), ipv6: of('ipv6') },
  }
}
