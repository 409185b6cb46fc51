// broken-table.ts - the tables of docs/broken-networks.md: written from the reports in `npm run test:broken`, and parsed by a test.

import { FAULTS, FAULT_NAMES, READERS, type Expected, type FaultName, type Reader } from '../../lab/broken.ts'

/** Faults are made on the last host. `there` is that host, `here` another one. */
export const SIDES = ['there', 'here'] as const
export type Side = (typeof SIDES)[number]

/** The names of the two hosts in the page's tables. */
const HOSTS: Readonly<Record<Side, string>> = {
  there: 'on the host with the fault',
  here: 'on a host without the fault',
}
/** The text of a cell if no tool reports a fault. */
const NOTHING = 'no tool reports a fault'

/** The limit for the first true report, in seconds. */
export const SOON_S = 15

export interface SideReports {
  /** The words that each reader reported once all expected words had appeared. */
  readonly words: Readonly<Record<Reader, readonly string[]>>
  /** Per reader the seconds from the fault to the first expected word. */
  readonly seconds: Partial<Readonly<Record<Reader, number>>>
}
export interface Reports extends Readonly<Record<Side, SideReports>> {
  readonly name: FaultName
  /** The seconds from the repair until status and doctor find nothing wrong on either side. */
  readonly greenSeconds: number
}

export const mustOf = (words = ''): string[] => words.split(' ').filter((word) => word !== '' && !word.endsWith('?'))
const mayOf = (words = ''): string[] => words.split(' ').map((word) => word.replace('?', ''))

/** Lists the differences from the expected words: `doctor: not path-mtu`, `page: though peer-lossy`. */
export const wrongOf = (expected: Expected, words: Readonly<Record<Reader, readonly string[]>>): string[] =>
  READERS.flatMap((reader) => {
    const missing = mustOf(expected[reader]).filter((word) => !words[reader].includes(word))
    const extra = words[reader].filter((word) => !mayOf(expected[reader]).includes(word))
    return [...missing.map((word) => `${reader}: not ${word}`), ...extra.map((word) => `${reader}: though ${word}`)]
  })

/** Returns the reader with the first true report and its time; undefined if no report was expected. */
export function firstOf({ seconds }: SideReports): readonly [Reader, number] | undefined {
  const all = Object.entries(seconds) as [Reader, number][]
  return all.toSorted(([, a], [, b]) => a - b)[0]
}

const row = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
const header = (cells: readonly string[]): string => `${row(cells)}\n${row(cells.map(() => '---'))}`

const NO_DAEMON = { 'no-daemon': 'no answer from weftd' }
/** The page's texts for words that only the tests use, per reader. The page shows a word without a text as code. */
const TEXTS: Partial<Readonly<Record<Reader, Readonly<Record<string, string>>>>> = {
  status: {
    ...NO_DAEMON,
    'by-peers': 'an impaired node (cause: peers)',
    'by-store': 'an impaired node (cause: store)',
    'by-host': 'an impaired node (cause: host)',
    'not-whole': 'silent peers',
    store: 'an unreachable store',
    repairs: 'repairs that weftd made',
    slow: 'a slow peer',
    loss: 'lost probes',
    narrow: 'a small path MTU',
  },
  page: { ...NO_DAEMON, red: 'a red verdict', amber: 'an amber verdict' },
  explain: {
    'no-daemon': 'its start because weftd does not answer',
    'out:peer': 'its step `peer` for outgoing packets',
    'out:route': 'its step `route` for outgoing packets',
    'out:firewall': 'its step `firewall` for outgoing packets',
    'out:mtu': 'its step `MTU` for outgoing packets',
    'in:firewall': 'its step `firewall` for incoming packets',
  },
  events: {
    repaired: 'a repair that weftd made',
    twin: 'another node with the same address',
    'lease-lost': 'a lost lease',
    'config-gone': 'a missing configuration',
    'not-written': 'a failed write of `subnet.env`',
  },
  bench: {
    ...NO_DAEMON,
    'no-daemon-there': 'no answer from the weftd of the other host',
    'silent-there': 'no answer from the other host',
    'not-inside': 'that packets pass only outside the tunnel',
    broken: 'a failed TCP stream',
    slow: 'a slow peer',
    loss: 'lost packets',
    narrow: 'a small path MTU',
  },
}
const shown = (reader: Reader, words: readonly string[]): string =>
  words.map((word) => TEXTS[reader]?.[word] ?? `\`${word}\``).join(' and ')
const wordOf = (reader: Reader, text: string): string =>
  Object.entries(TEXTS[reader] ?? {}).find(([, each]) => each === text)?.[0] ?? text.replaceAll('`', '')

const COLUMNS = ['fault', 'host', 'reports', 'first true report'] as const
/** The beginning of each reader's part in a row of the table, before the words of the report. */
const REPORTS: Readonly<Record<Reader, string>> = {
  status: '`weft status` reports ',
  page: 'the status page shows ',
  doctor: '`weft doctor` finds ',
  explain: '`weft explain` stops at ',
  bench: '`weft bench` reports ',
  alerts: 'Prometheus fires ',
  events: 'the log reports ',
}

/** The name of each reader in the column of the first report. */
const READER_NAMES: Readonly<Record<Reader, string>> = {
  status: '`weft status`',
  page: 'the status page',
  doctor: '`weft doctor`',
  explain: '`weft explain`',
  bench: '`weft bench`',
  alerts: 'Prometheus',
  events: 'the log',
}

/** Returns the table with one row for each fault and host; a row has the words of each reader that reports a fault. */
function saidTable(all: readonly Reports[]): string {
  const rows = all.flatMap((reports) =>
    SIDES.map((side) => {
      const [reader, seconds] = firstOf(reports[side]) ?? []
      const { words } = reports[side]
      const texts = READERS.filter((each) => words[each].length > 0).map(
        (each) => `${REPORTS[each]}${shown(each, words[each])}`,
      )
      const first =
        reader === undefined || seconds === undefined
          ? 'none: the test requires no report on this host'
          : `${READER_NAMES[reader]} is the first to report the fault, ${seconds.toFixed(1)} s after the fault began`
      const fault = `\`${reports.name}\` (${FAULTS[reports.name].title})`
      return row([fault, HOSTS[side], texts.join('; ') || NOTHING, first])
    }),
  )
  return [header(COLUMNS), ...rows].join('\n')
}

/** Returns the table of how each fault is made and repaired. */
function madeTable(all: readonly Reports[]): string {
  const rows = all.map(({ name, greenSeconds }) => {
    const { title, does, remedy } = FAULTS[name]
    return row([
      `\`${name}\``,
      title,
      does,
      remedy,
      `${greenSeconds.toFixed(0)} s after the repair no tool reports the fault any more`,
    ])
  })
  return [header(['fault', 'name', 'how the test makes the fault', 'remedy', 'end of the reports']), ...rows].join('\n')
}

const MARK = { said: 'SAID', made: 'MADE' } as const
const between = (mark: string): RegExp => new RegExp(`(<!-- ${mark} -->\\n)[^]*?(<!-- END -->)`)

/** Returns the page with tables of these reports. */
export function withTables(page: string, all: readonly Reports[]): string {
  const sorted = FAULT_NAMES.flatMap((name) => all.filter((reports) => reports.name === name))
  const put = (text: string, mark: string, table: string): string =>
    text.replace(between(mark), (_, before: string, after: string) => `${before}\n${table}\n\n${after}`)
  return put(put(page, MARK.said, saidTable(sorted)), MARK.made, madeTable(sorted))
}

/** Parses the reports from the page's tables. */
export function reportsOf(page: string): { name: string; side: string; reports: SideReports }[] {
  const table = between(MARK.said).exec(page)?.[0] ?? ''
  return [...table.matchAll(/^\| `([\w-]+)` \([^|]+\) \| (on (?:the|a) host \w+ the fault) \| (.*) \| (.*) \|$/gm)].map(
    ([, name = '', host = '', texts = '', first = '']) => {
      const wordsOf = (reader: Reader): string[] => {
        const text =
          texts
            .split('; ')
            .find((each) => each.startsWith(REPORTS[reader]))
            ?.slice(REPORTS[reader].length) ?? ''
        return text === '' ? [] : text.split(' and ').map((each) => wordOf(reader, each))
      }
      const words = Object.fromEntries(
        READERS.map((reader) => [reader, wordsOf(reader)]),
      ) as unknown as SideReports['words']
      const [, tool, seconds] =
        /^(.+) is the first to report the fault, ([\d.]+) s after the fault began$/.exec(first) ?? []
      const reader = READERS.find((each) => READER_NAMES[each] === tool)
      const side = SIDES.find((each) => HOSTS[each] === host) ?? host
      return { name, side, reports: { words, seconds: reader === undefined ? {} : { [reader]: Number(seconds) } } }
    },
  )
}
