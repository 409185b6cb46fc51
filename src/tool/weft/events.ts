// events.ts - `weft events`: shows how the states of peers changed, including events before the last start of weftd.

import { existsSync } from 'node:fs'
import { messageOf, isWeftError, WeftError } from '../../base/errors.ts'
import { jsonLine } from '../../base/text.ts'
import { eventsFile, FLANNEL_FLAGS } from '../../options.ts'
import { readEvents } from '../../report/events-file.ts'
import { eventsReport, peerEventText, type EventsReport, type PeerEvent } from '../../report/peer-events.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { fetchEvents } from './daemon-client.ts'
import { duration, table, type Cell, type Tone } from './look.ts'

const UNITS: Readonly<Record<string, number>> = { s: 1, m: 60, min: 60, h: 3600, d: 86_400 }

export const eventsCommand = command({
  name: 'events',
  does: 'show events of peers: silent, back, moved, slow, long packets lost',
  more: 'Includes events from before weftd started, which it keeps in a file beside subnet.env. If no weftd answers, shows only that file.',
  flags: {
    since: {
      default: '',
      placeholder: 'DURATION|TIME',
      help: "show only later events: 90s, 30m, 12h or 7d ago, or a date or time by this host's clock, such as 2026-11-23T03:00",
    },
    ...JSON_FLAG,
    ...SOCKET_FLAG,
    'subnet-file': { ...FLANNEL_FLAGS['subnet-file'], help: "the daemon's subnet file, used if no daemon answers" },
  },
  async run({ options: { since, json, 'status-socket': socket, 'subnet-file': subnetFile }, screen, signal }) {
    const from = sinceOf(since, Date.now())
    const { events, ...report } = await reportOf(socket, subnetFile, signal, (line) => screen.warn(line))
    const shown = events.filter(({ at }) => Date.parse(at) >= from)
    if (json) screen.write(jsonLine({ ...report, events: shown }))
    else if (shown.length === 0) screen.write(`No ${since === '' ? '' : 'later '}events of peers are recorded.\n`)
    else {
      const rows = shown.map((event): Cell[] => [
        new Date(event.at).toISOString().replace('.000Z', 'Z'),
        event.peer,
        event.publicIp,
        [TONES[event.what], peerEventText(event, duration)],
      ])
      screen.write(table([['AT', 'PEER', 'HOST', 'WHAT'], ...rows], screen.colour))
    }
    return EXIT.ok
  },
})

const TONES: Readonly<Record<PeerEvent['what'], Tone>> = {
  silent: 'bad',
  'one-way': 'bad',
  back: 'good',
  moved: 'doubtful',
  rerouted: 'doubtful',
  narrow: 'bad',
  whole: 'good',
  slow: 'doubtful',
  usual: 'good',
}

/** Fetches the events of peers from weftd. If weftd does not answer, reads the file that the last weftd wrote. */
async function reportOf(
  socket: string,
  subnetFile: string,
  signal: AbortSignal,
  warn: (line: string) => void,
): Promise<EventsReport> {
  try {
    return await fetchEvents(socket, signal)
  } catch (error) {
    if (!isWeftError(error) || error.code === 'PERMISSION' || signal.aborted) throw error
    const path = eventsFile({ 'subnet-file': subnetFile })
    const events = await readEvents(path).catch((unread: unknown) => {
      throw new WeftError(error.code, `${error.message}, and ${path} cannot be read: ${messageOf(unread)}`, {
        remedy: 'run this as root; if the daemon has another --subnet-file, give that option here too',
        cause: unread,
      })
    })
    const source = existsSync(path) ? `the events are from ${path}` : `no events are known, because there is no ${path}`
    warn(`weft events: ${error.message}; ${source}`)
    return eventsReport(new Date().toISOString(), events)
  }
}

/** Returns false for dates such as 2026-02-30, which Date.parse of V8 takes for 2 March. */
function isDate(date: string): boolean {
  const time = Date.parse(`${date}T00:00Z`)
  return !Number.isNaN(time) && new Date(time).toISOString().startsWith(date)
}

/**
 * Parses the value of --since: a duration before `now`, a time, or a date, which means the beginning of that day.
 * Returns ms since 1970; -Infinity if the text is empty. Throws WeftError USAGE.
 */
export function sinceOf(text: string, now: number): number {
  if (text === '') return -Infinity
  const [, number, unit = ''] = /^(\d{1,9}(?:\.\d{1,3})?)([a-z]+)$/.exec(text) ?? []
  const seconds = Object.hasOwn(UNITS, unit) ? UNITS[unit] : undefined
  if (number !== undefined && seconds !== undefined) return now - Number(number) * seconds * 1000
  const [date = ''] = /^\d{4}-\d\d-\d\d(?=[T ]\d\d:\d\d|$)/.exec(text) ?? []
  // Date.parse reads a date without a time as a day in UTC (ECMA-262, section 21.4.3.2).
  const time = isDate(date) ? Date.parse(text === date ? `${date}T00:00` : text) : NaN
  if (!Number.isNaN(time)) return time
  throw new WeftError('USAGE', `--since is ${text}`, { remedy: 'write the time as 30m, 12h, 7d, or 2026-11-23T03:00' })
}
