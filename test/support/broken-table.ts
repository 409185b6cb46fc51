// broken-table.ts - the tables of docs/broken-networks.md: written from the reports in `npm run test:broken`, and parsed by a test.

import { FAULTS, FAULT_NAMES, READERS, type Expected, type FaultName, type Reader } from '../../lab/broken.ts'

/** The two hosts that report about a fault: `there` is the last host, on which the fault is made, and `here` is another host. */
export const SIDES = ['there', 'here'] as const
export type Side = (typeof SIDES)[number]

/** The names of the two hosts in the page's tables. */
const HOSTS: Readonly<Record<Side, string>> = { there: 'faulty host', here: 'other host' }
/** The text of a cell if no tool reports a fault. */
const NOTHING = 'no tool reports a fault'

/** The limit of the first true line. */
export const SOON_S = 15

export interface SideHeard {
  /** The words of each reader's report, as of the end of the observation. */
  readonly words: Readonly<Record<Reader, readonly string[]>>
  /** The seconds from the fault to the first expected word, by reader. */
  readonly seconds: Partial<Readonly<Record<Reader, number>>>
}
export interface Heard extends Readonly<Record<Side, SideHeard>> {
  readonly name: FaultName
  /** The seconds from the repair until status and doctor found nothing wrong on either side. */
  readonly greenSeconds: number
}

export const mustOf = (words = ''): string[] => words.split(' ').filter((word) => word !== '' && !word.endsWith('?'))
const mayOf = (words = ''): string[] => words.split(' ').map((word) => word.replace('?', ''))

/** Lists the words that are missing (`doctor: not path-mtu`) or unexpected (`page: though peer-lossy`). */
export const wrongOf = (expected: Expected, words: Readonly<Record<Reader, readonly string[]>>): string[] =>
  READERS.flatMap((reader) => {
    const missing = mustOf(expected[reader]).filter((word) => !words[reader].includes(word))
    const extra = words[reader].filter((word) => !mayOf(expected[reader]).includes(word))
    return [...missing.map((word) => `${reader}: not ${word}`), ...extra.map((word) => `${reader}: though ${word}`)]
  })

/** Returns the first reader with an expected word, and its seconds; undefined if no word is expected. */
export function firstOf({ seconds }: SideHeard): readonly [Reader, number] | undefined {
  const all = Object.entries(seconds) as [Reader, number][]
  return all.toSorted(([, a], [, b]) => a - b)[0]
}

const row = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
const header = (cells: readonly string[]): string => `${row(cells)}\n${row(cells.map(() => '---'))}`
const shown = (words: readonly string[]): string => words.map((word) => `\`${word}\``).join(' ')

const COLUMNS = ['fault', 'host', 'reports', 'first true report'] as const

/** Returns the table of all reports, with one row for each fault and host. */
function saidTable(all: readonly Heard[]): string {
  const rows = all.flatMap((heard) =>
    SIDES.map((side) => {
      const [reader, seconds] = firstOf(heard[side]) ?? []
      const { words } = heard[side]
      const reports = READERS.filter((each) => words[each].length > 0).map((each) => `${each}: ${shown(words[each])}`)
      const first = reader === undefined || seconds === undefined ? 'none' : `${reader}, after ${seconds.toFixed(1)} s`
      return row([`\`${heard.name}\` (${FAULTS[heard.name].title})`, HOSTS[side], reports.join('; ') || NOTHING, first])
    }),
  )
  return [header(COLUMNS), ...rows].join('\n')
}

/** Returns the table of how each fault is made, its remedy, and how soon no report finds a fault after the repair. */
function madeTable(all: readonly Heard[]): string {
  const rows = all.map(({ name, greenSeconds }) => {
    const { title, does, remedy } = FAULTS[name]
    return row([`\`${name}\``, title, does, remedy, `green after ${greenSeconds.toFixed(0)} s`])
  })
  return [header(['fault', 'name', 'how it is made', 'remedy', 'green after']), ...rows].join('\n')
}

const MARK = { said: 'SAID', made: 'MADE' } as const
const between = (mark: string): RegExp => new RegExp(`(<!-- ${mark} -->\\n)[^]*?(<!-- END -->)`)

/** Returns the page with its tables replaced by those of these reports. */
export function withTables(page: string, all: readonly Heard[]): string {
  const sorted = FAULT_NAMES.flatMap((name) => all.filter((heard) => heard.name === name))
  const put = (text: string, mark: string, table: string): string =>
    text.replace(between(mark), (_, before: string, after: string) => `${before}\n${table}\n\n${after}`)
  return put(put(page, MARK.said, saidTable(sorted)), MARK.made, madeTable(sorted))
}

/** Parses the page's table of reports. */
export function heardOf(page: string): { name: string; side: string; heard: SideHeard }[] {
  const table = between(MARK.said).exec(page)?.[0] ?? ''
  return [...table.matchAll(/^\| `([\w-]+)` \([^|]+\) \| (\w+ host) \| (.*) \| (.*) \|$/gm)].map(
    ([, name = '', host = '', reports = '', first = '']) => {
      const wordsOf = (reader: Reader): string[] => {
        const report = reports.split('; ').find((each) => each.startsWith(`${reader}: `)) ?? ''
        return [...report.matchAll(/`([^`]+)`/g)].map(([, word = '']) => word)
      }
      const words = Object.fromEntries(
        READERS.map((reader) => [reader, wordsOf(reader)]),
      ) as unknown as SideHeard['words']
      const [, reader, seconds] = /^(\w+), after ([\d.]+) s$/.exec(first) ?? []
      const side = SIDES.find((each) => HOSTS[each] === host) ?? host
      return { name, side, heard: { words, seconds: reader === undefined ? {} : { [reader]: Number(seconds) } } }
    },
  )
}
