// ping.ts - `weft ping`: asks a peer's host whether it answers, through the data path.

import { WeftError } from '../errors.ts'
import { pause } from '../host/bell.ts'
import { formatIpv4 } from '../net/ipv4.ts'
import { jsonLine } from '../text.ts'
import { askStatus } from './ask.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { milliseconds } from './look.ts'
import { askedPeer, createAsker } from './peer.ts'

const WAIT_MS = 1_000

export const pingCommand = command({
  name: 'ping',
  args: 'PEER',
  does: 'ask a peer through the data path whether it answers',
  more: 'PEER is its subnet, an address within it, or its public IP. Exits with 3 when nothing comes back.',
  flags: {
    count: { default: 4, help: 'how often' },
    size: { default: 0, help: 'bytes of the whole packet, which nobody may fragment; 0 for a small one' },
    ...JSON_FLAG,
    ...SOCKET_FLAG,
  },
  async run({ options: { count, size, json, 'status-socket': socket }, args: [name = ''], screen, signal }) {
    if (count < 1 || size < 0 || size > 65_535) {
      throw new WeftError('USAGE', `--count is ${count} and --size ${size}`, {
        remedy: 'give it a count of 1 or more, and at most 65535 bytes',
      })
    }
    const status = await askStatus(socket, signal)
    const { peer, probe } = askedPeer(status, name)
    const mtu = status.dataPath?.mtu ?? 0
    if (mtu > 0 && size > mtu) {
      throw new WeftError('USAGE', `--size is ${size}, and the data path of this host takes ${mtu}`, {
        remedy: 'give it as many bytes at most',
      })
    }
    const asker = createAsker(probe.from)
    const times: (number | undefined)[] = []
    try {
      for (let number = 0; number < count; number++) {
        if (number > 0) await pause(signal, WAIT_MS).catch(() => {})
        if (signal.aborted) break // what was heard until then is told
        const took = await asker.ask(probe.to, WAIT_MS, size)
        times.push(took)
        if (json) continue
        const said = took === undefined ? screen.colour('bad', 'no answer') : screen.colour('good', milliseconds(took))
        screen.write(`${peer.subnet} at ${peer.endpoint ?? peer.publicIp} (${formatIpv4(probe.to)}): ${said}\n`)
      }
    } finally {
      asker.close()
    }
    const answered = times.filter((time) => time !== undefined)
    const lossPercent = Math.round((100 * (times.length - answered.length)) / times.length)
    if (json) {
      const roundTripsMs = times.map((time) => time ?? null)
      screen.write(jsonLine({ peer: peer.subnet, address: formatIpv4(probe.to), roundTripsMs, lossPercent }))
    } else {
      const spread =
        answered.length === 0
          ? ''
          : `, ${milliseconds(Math.min(...answered))} to ${milliseconds(Math.max(...answered))}`
      screen.write(`${answered.length} of ${times.length} answered (${lossPercent}% lost)${spread}\n`)
    }
    return answered.length > 0 ? EXIT.ok : EXIT.wrong
  },
})
