// capture.ts - `weft capture`: shows the packets that the data path dropped most recently and why, as text or as a
// capture file.

import { open, type FileHandle } from 'node:fs/promises'
import { version } from '../../base/assets.ts'
import { messageOf, WeftError } from '../../base/errors.ts'
import { jsonLine } from '../../base/text.ts'
import { pause } from '../../host/bell.ts'
import { HEADLESS, type DroppedPacket, type DropsReport } from '../../report/drops.ts'
import { briefly, devicesText } from '../../report/status.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { fetchDrops } from './daemon-client.ts'
import { count, type Screen } from './look.ts'
import { packetText } from './packet-text.ts'
import { interfaceDescription, packetBlock, sectionHeader } from './pcapng.ts'

const FOLLOW_MS = 1_000
/** The number of bytes that the engine keeps of each dropped packet (native/core/drops.h). */
const MOST_BYTES = 128

export const captureCommand = command({
  name: 'capture',
  does: 'show the last dropped packets and the reasons',
  more:
    'Each thread of an engine keeps the headers of the last 256 packets that it dropped in each direction. Packets that the kernel ' +
    'carries or drops are not among them. In a capture file each packet has its reason as a comment: `tshark -T fields -e frame.comment`.',
  flags: {
    follow: { default: false, help: 'continue to show new packets until interrupted' },
    reason: {
      default: '',
      placeholder: 'NAME',
      help: 'show only packets dropped for this reason, such as tx_drop_ttl, or ttl for both directions',
    },
    write: { default: '', placeholder: 'FILE', help: 'write a capture file (pcapng); - is standard output' },
    ...JSON_FLAG,
    ...SOCKET_FLAG,
  },
  isEndless: ({ follow }) => follow,
  async run({ options: { follow, reason, write, json, 'status-socket': socket }, screen, signal }) {
    if (json && write !== '')
      throw new WeftError('USAGE', '--json and --write exclude each other', {
        remedy: 'give only one of the two flags',
      })
    if (write === '-' && screen.isTerminal)
      throw new WeftError('USAGE', 'a capture file is not for a terminal', {
        remedy: 'name a file with --write, or pipe the output into `tshark -r -`',
      })
    const first = await fetchDrops(socket, [], signal)
    if (first.engine === null || !OURS.has(first.engine)) throw notOurs(first)
    const names = reasonsNamed(reason, first)
    const output = await openOutput({ write, json, follow }, first, screen)
    let report = wanted(first, names)
    try {
      for (;;) {
        await output.add(report)
        if (!follow || !screen.isRead()) break
        await pause(signal, FOLLOW_MS)
        report = wanted(await fetchAgain(socket, report, screen, signal), names)
      }
    } finally {
      await output.end()
    }
    return EXIT.ok
  },
})

const AWAY: ReadonlySet<string> = new Set(['ENOENT', 'ECONNREFUSED', 'ECONNRESET'])

/**
 * Fetches the packets dropped since the report `before`. If weftd does not answer, waits until it does, because the
 * data path drops packets during a restart of weftd too.
 */
async function fetchAgain(
  socket: string,
  before: DropsReport,
  screen: Screen,
  signal: AbortSignal,
): Promise<DropsReport> {
  for (let isFirst = true; ; isFirst = false) {
    try {
      return await fetchDrops(socket, before.next, signal)
    } catch (error) {
      const { code } = ((error as Error).cause ?? {}) as NodeJS.ErrnoException
      if (code === undefined || !AWAY.has(code)) throw error
      if (isFirst) screen.warn(`weft capture: ${messageOf(error)}; waiting until weftd answers`)
      await pause(signal, FOLLOW_MS)
    }
  }
}

const OURS: ReadonlySet<string> = new Set(['native', 'dgram'])

function notOurs({ engine }: DropsReport): WeftError {
  if (engine === null)
    return new WeftError('CONFIG', 'weftd has no data path yet, or is opening it again', {
      remedy: '`weft status` shows the reason',
    })
  return new WeftError(
    'CONFIG',
    'weft does not carry the packets of this backend, so it does not see which are dropped',
    {
      remedy: "see the kernel's own counters: `nstat`, `ip -s link`, `tc -s qdisc`",
    },
  )
}

/**
 * Returns the drop reasons that a name matches; all reasons if the name is empty. Throws WeftError USAGE if no reason
 * matches.
 */
function reasonsNamed(name: string, { reasons }: DropsReport): ReadonlySet<string> {
  const all = Object.keys(reasons)
  const named = all.filter((each) => name === '' || each === name || each.replace(/^.x_drop_/, '') === name)
  if (named.length > 0) return new Set(named)
  throw new WeftError('USAGE', `there is no reason ${name} for drops`, { remedy: `give one of ${all.join(', ')}` })
}

function wanted(report: DropsReport, names: ReadonlySet<string>): DropsReport {
  return {
    ...report,
    reasons: Object.fromEntries(Object.entries(report.reasons).filter(([name]) => names.has(name))),
    packets: report.packets.filter(({ reason }) => names.has(reason)),
  }
}

interface Output {
  add(report: DropsReport): Promise<void>
  end(): Promise<void>
}

interface OutputOptions {
  readonly write: string
  readonly json: boolean
  readonly follow: boolean
}

async function openOutput({ write, json, follow }: OutputOptions, first: DropsReport, screen: Screen): Promise<Output> {
  if (write !== '') return captureFile(write, first, screen)
  if (json) {
    return {
      // With --follow, skip reports that contain no packets.
      async add(report) {
        if (!follow || report.packets.length > 0) screen.write(jsonLine(report))
      },
      async end() {},
    }
  }
  const tally = createTally()
  return {
    async add(report) {
      const missed = tally(report)
      screen.write(report.packets.map((packet) => line(packet, report, screen)).join(''))
      if (!follow) screen.write(`${screen.colour('dim', summary(shownOf(report), 'shown', report))}\n`)
      else if (missed > 0) screen.write(`${screen.colour('dim', `... and ${missed} more, too many to keep`)}\n`)
    },
    async end() {},
  }
}

/**
 * Formats a dropped packet as one line: `2026-11-22T13:14:15.123456Z out 10.5.1.2:4000 > 10.5.9.7:80 tcp, 60 bytes: no
 * peer has the destination (tx_drop_no_route)`
 */
function line(packet: DroppedPacket, { reasons }: DropsReport, { colour }: Screen): string {
  const { atUs, direction, reason, length, headers } = packet
  const isEncrypted = headers === '' && length > 0
  const text = isEncrypted ? 'an encrypted packet' : packetText(Buffer.from(headers, 'hex'))
  const what = [text, `${length} bytes`, ...detailsOf(packet)].join(', ')
  const means = reasons[reason]?.means ?? ''
  return `${colour('dim', timeText(atUs))} ${direction.padEnd(3)} ${what}: ${colour('bad', means)} (${reason})\n`
}

function detailsOf({ direction, packets, peer, peerName, encap }: DroppedPacket): string[] {
  const host = peerName ? `${briefly(peerName)} (${peer})` : peer
  return [
    ...(packets > 1 ? [`${packets} packets in one`] : []),
    ...(peer === null ? [] : [direction === 'out' ? `to ${host}` : `from ${host}`]),
    ...(encap === '' ? [] : [`behind ${encap}`]),
  ]
}

function timeText(us: number): string {
  const rest = String(us % 1_000).padStart(3, '0')
  return new Date(Math.floor(us / 1_000)).toISOString().replace('Z', `${rest}Z`)
}

const shownOf = ({ packets }: DropsReport): number => packets.reduce((sum, each) => sum + each.packets, 0)
/**
 * Counts the dropped packets whose headers weft saw (`seen`), and the dropped packets of which weft knows only the
 * number (`headless`).
 */
function droppedOf({ reasons }: DropsReport): { readonly seen: number; readonly headless: number } {
  let [seen, headless] = [0, 0]
  for (const [name, { packets }] of Object.entries(reasons)) {
    if (HEADLESS.has(name)) headless += packets
    else seen += packets
  }
  return { seen, headless }
}

function summary(shown: number, verb: 'shown' | 'written', report: DropsReport): string {
  const { seen, headless } = droppedOf(report)
  const unnamed = [...HEADLESS].filter((name) => (report.reasons[name]?.packets ?? 0) > 0)
  const unseen = headless === 0 ? '' : `; of ${headless} more the kernel reports only the number: ${unnamed.join(', ')}`
  const names = Object.keys(report.reasons)
  const why = names.length > 2 ? '' : ` for ${names.join(' or ')}`
  if (seen === 0 && shown === 0) return `no packet was dropped${why} since the data path was opened${unseen}`
  const all = count(Math.max(seen, shown), 'packet')
  return `${verb}: ${shown} of the ${all} dropped since the data path was opened${unseen}`
}

/**
 * Makes a function that is called with each report in turn. The function returns the number of packets that were
 * dropped between the previous report and this one but that neither report lists.
 */
export function createTally(): (report: DropsReport) => number {
  let before: { readonly seen: number; readonly ahead: number } | undefined
  return (report) => {
    const { seen } = droppedOf(report)
    // Return 0 for the first report, because its counters include earlier drops. Return 0 also after the data path was
    // opened again, because its counters then restart at zero.
    if (!before || seen < before.seen) {
      before = { seen, ahead: 0 }
      return 0
    }
    // weftd reads the counters before the packets, so a report may list a packet that only the next report counts.
    const missed = seen - before.seen - before.ahead - shownOf(report)
    before = { seen, ahead: Math.max(0, -missed) }
    return Math.max(0, missed)
  }
}

/**
 * Opens a capture file that only its owner may read. The comment of each packet in the file says why the packet was
 * dropped.
 */
async function captureFile(path: string, first: DropsReport, screen: Screen): Promise<Output> {
  const file = path === '-' ? undefined : await openFile(path, screen)
  const write = async (bytes: Buffer): Promise<void> => {
    if (!file) return screen.write(bytes)
    // appendFile writes all bytes or throws, unlike write(2), which may write only a part of the bytes.
    await file.appendFile(bytes).catch((error: unknown) => {
      throw unwritable(path, error)
    })
  }
  await write(
    Buffer.concat([sectionHeader(`weft ${version()}`), interfaceDescription(devicesText(first) ?? '', MOST_BYTES)]),
  )
  let [written, said] = [0, '']
  return {
    async add(report) {
      if (report.packets.length > 0) await write(Buffer.concat(report.packets.map((packet) => blockOf(packet, report))))
      written += shownOf(report)
      said = summary(written, 'written', report)
    },
    async end() {
      await file?.close()
      if (said !== '') screen.warn(said)
    },
  }
}

function blockOf(packet: DroppedPacket, { reasons }: DropsReport): Buffer {
  const { atUs: timeUs, direction, reason, length, headers } = packet
  const comment = [`${reason}: ${reasons[reason]?.means ?? ''}`, ...detailsOf(packet)].join('; ')
  return packetBlock({ timeUs, bytes: Buffer.from(headers, 'hex'), length, direction, comment })
}

async function openFile(path: string, screen: Screen): Promise<FileHandle> {
  const file = await open(path, 'w', 0o600).catch((error: unknown) => {
    throw unwritable(path, error)
  })
  const info = await file.stat()
  // A file that existed keeps its mode, so take the rights of other users away. Some file systems have no modes, such as
  // FAT on a USB stick, and a file server may not let root change a file of another user.
  if (info.isFile() && (info.mode & 0o077) !== 0)
    await file
      .chmod(0o600)
      .catch((error: unknown) => screen.warn(`other users may read ${path}, which has packets: ${messageOf(error)}`))
  return file
}

const unwritable = (path: string, cause: unknown): WeftError =>
  new WeftError('COMMAND', `${path} cannot be written: ${messageOf(cause)}`, {
    remedy: 'name a file that weft can write',
    cause,
  })
