// ping.ts - `weft ping`: asks a peer's host whether it answers, through the data path.

import { describeError, isWeftError, WeftError } from '../../base/errors.ts'
import { jsonLine } from '../../base/text.ts'
import { pause } from '../../host/bell.ts'
import { FAMILY_NAMES, formatAddress, formatNet, type Family } from '../../net/address.ts'
import { placeIn, sidesOf, titleOf, type PeerStatus } from '../../report/status.ts'
import { askStatus } from './ask.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { milliseconds } from './look.ts'
import { askedPeer, createAsker, probesWanted, type Asker, type Probe } from './peer.ts'

const WAIT_MS = 1_000

export const pingCommand = command({
  name: 'ping',
  args: 'PEER',
  does: 'ping a peer through the data path',
  more:
    'PEER is its name, its subnet, an address in it, or its public IP, of IPv4 or IPv6. A peer of both families is asked by both. ' +
    'Exits with 3 when nothing comes back by one of them.',
  flags: {
    count: { default: 4, help: 'how often' },
    size: {
      default: 0,
      help: 'size of the whole packet in bytes, which nobody on the way may fragment; 0: a small one',
    },
    family: { default: '', placeholder: 'FAMILY', help: 'ask by ipv4 or ipv6 alone' },
    ...JSON_FLAG,
    ...SOCKET_FLAG,
  },
  async run({ options: { count, size, family, json, 'status-socket': socket }, args: [name = ''], screen, signal }) {
    if (count < 1 || size < 0 || size > 65_535) {
      throw new WeftError('USAGE', `--count is ${count} and --size ${size}`, {
        remedy: 'give it a count of 1 or more, and at most 65535 bytes',
      })
    }
    const status = await askStatus(socket, signal)
    const { peer, probes } = askedPeer(status, name)
    const wanted = probesWanted(probes, family)
    const mtu = status.dataPath?.mtu ?? 0
    if (mtu > 0 && size > mtu) {
      throw new WeftError('USAGE', `--size is ${size}, and the data path of this host takes ${mtu}`, {
        remedy: 'give that many bytes at most',
      })
    }
    const asked: Asked[] = []
    try {
      const failures: WeftError[] = []
      for (const probe of wanted)
        asked.push({ probe, asker: askerFor(probe, (failure) => failures.push(failure)), times: [] })
      const [first] = failures
      if (first && failures.length === wanted.length) throw first
      for (const failure of failures) screen.warn(`weft ping: ${describeError(failure)}`)
      for (let number = 0; number < count; number++) {
        if (number > 0) await pause(signal, WAIT_MS).catch(() => {})
        if (signal.aborted) break // the answers until then are told
        const took = await Promise.all(asked.map(({ asker, probe }) => asker.ask(probe.to, WAIT_MS, size)))
        asked.forEach(({ probe, times }, at) => {
          const time = took[at]
          times.push(time)
          if (json) return
          const said =
            time === undefined ? screen.colour('bad', 'no answer') : screen.colour('good', milliseconds(time))
          screen.write(`${placeText(peer, probe)}: ${said}\n`)
        })
      }
    } finally {
      for (const { asker } of asked) asker.close()
    }
    if (json) screen.write(jsonLine(toJson(peer, asked)))
    else for (const one of asked) screen.write(sumText(one, asked.length > 1))
    return asked.every(({ times }) => answeredOf(times).length > 0) ? EXIT.ok : EXIT.wrong
  },
})

/** A family by which a peer is asked, and the round trips in ms; undefined of what was not answered. */
interface Asked {
  readonly probe: Probe
  readonly asker: Asker
  readonly times: (number | undefined)[]
}

/** One that nothing answers where this host has not the address to ask from, as while it does not carry the family. */
function askerFor({ from }: Probe, failed: (why: WeftError) => void): Asker {
  try {
    return createAsker(from)
  } catch (error) {
    if (!isWeftError(error, 'ADDRESS')) throw error
    failed(error)
    return { ask: async () => undefined, close: () => {} }
  }
}

function placeText(peer: PeerStatus, { family, to }: Probe): string {
  const { subnet, publicIp } = placeIn(peer, family)
  const host = sidesOf(peer)[family]?.endpoint ?? (publicIp === undefined ? peer.publicIp : formatAddress(publicIp))
  const place = { name: peer.name ?? null, subnet: subnet ? formatNet(subnet) : peer.subnet }
  return `${titleOf(place)} at ${host} (${formatAddress(to)})`
}

const answeredOf = (times: Asked['times']): number[] => times.filter((time) => time !== undefined)
const lossOf = (times: Asked['times']): number =>
  Math.round((100 * (times.length - answeredOf(times).length)) / times.length)

function sumText({ probe: { family }, times }: Asked, isOneOfTwo: boolean): string {
  const answered = answeredOf(times)
  const spread =
    answered.length === 0 ? '' : `, ${milliseconds(Math.min(...answered))} to ${milliseconds(Math.max(...answered))}`
  const by = isOneOfTwo ? `${FAMILY_NAMES[family]}: ` : ''
  return `${by}${answered.length} of ${times.length} answered (${lossOf(times)}% lost)${spread}\n`
}

/** By each family, and the first one as if there were no other. */
function toJson(peer: PeerStatus, asked: readonly Asked[]) {
  const resultOf = ({ probe: { to }, times }: Asked) => ({
    address: formatAddress(to),
    roundTripsMs: times.map((time) => time ?? null),
    lossPercent: lossOf(times),
  })
  const [first] = asked
  const of = (family: Family) => {
    const one = asked.find(({ probe }) => probe.family === family)
    return one ? resultOf(one) : null
  }
  return {
    peer: peer.subnet,
    name: peer.name ?? null,
    ...(first ? resultOf(first) : {}),
    families: { ipv4: of('ipv4'), ipv6: of('ipv6') },
  }
}
