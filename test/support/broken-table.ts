// broken-table.ts - the tables of docs/broken-networks.md: written from the reports in `npm run test:broken`, and parsed by a test.

import { FAULTS, FAULT_NAMES, READERS, type Expected, type FaultName, type Reader } from '../../lab/broken.ts'

/** Faults are made on the last host: what is said there, and on another one. */
export const SIDES = ['there', 'here'] as const
export type Side = (typeof SIDES)[number]

/** The limit of the first true line. */
export const SOON_S = 15

export interface SideHeard {
  /** The words that each reader said, when all had said what they had to say. */
  readonly words: Readonly<Record<Reader, readonly string[]>>
  /** The seconds from the fault to the first of the words that were to be said, by reader. */
  readonly seconds: Partial<Readonly<Record<Reader, number>>>
}
export interface Heard extends Readonly<Record<Side, SideHeard>> {
  readonly name: FaultName
  /** The seconds from the undoing until status and doctor found nothing wrong any more, on both sides. */
  readonly greenSeconds: number
}

export const mustOf = (words = ''): string[] => words.split(' ').filter((word) => word !== '' && !word.endsWith('?'))
const mayOf = (words = ''): string[] => words.split(' ').map((word) => word.replace('?', ''))

/** What is not as expected: `doctor: not path-mtu`, `page: though peer-lossy`. */
export const wrongOf = (expected: Expected, words: Readonly<Record<Reader, readonly string[]>>): string[] =>
  READERS.flatMap((reader) => {
    const missing = mustOf(expected[reader]).filter((word) => !words[reader].includes(word))
    const extra = words[reader].filter((word) => !mayOf(expected[reader]).includes(word))
    return [...missing.map((word) => `${reader}: not ${word}`), ...extra.map((word) => `${reader}: though ${word}`)]
  })

/** The reader who said something true first, and when; undefined where nobody had anything to say. */
export function firstOf({ seconds }: SideHeard): readonly [Reader, number] | undefined {
  const all = Object.entries(seconds) as [Reader, number][]
  return all.toSorted(([, a], [, b]) => a - b)[0]
}

const row = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`
const header = (cells: readonly string[]): string => `${row(cells)}\n${row(cells.map(() => '---'))}`
const shown = (words: readonly string[]): string =>
  words.length === 0 ? '·' : words.map((word) => `\`${word}\``).join(' ')

const COLUMNS = ['fault', 'side', ...READERS, 'first true line'] as const

/** What each said. */
function saidTable(all: readonly Heard[]): string {
  const rows = all.flatMap((heard) =>
    SIDES.map((side) => {
      const [reader, seconds] = firstOf(heard[side]) ?? []
      const first = reader === undefined || seconds === undefined ? '·' : `${seconds.toFixed(1)} s, ${reader}`
      return row([`\`${heard.name}\``, side, ...READERS.map((each) => shown(heard[side].words[each])), first])
    }),
  )
  return [header(COLUMNS), ...rows].join('\n')
}

/** How each is made, and what makes it green again. */
function madeTable(all: readonly Heard[]): string {
  const rows = all.map(({ name, greenSeconds }) => {
    const { title, does, remedy } = FAULTS[name]
    return row([`\`${name}\``, title, does, remedy, `${greenSeconds.toFixed(0)} s`])
  })
  return [header(['fault', 'name', 'how it is made', 'remedy', 'green after']), ...rows].join('\n')
}

const MARK = { said: 'SAID', made: 'MADE' } as const
const between = (mark: string): RegExp => new RegExp(`(<!-- ${mark} -->\\n)[^]*?(<!-- END -->)`)

/** The page with the tables of what was heard. */
export function withTables(page: string, all: readonly Heard[]): string {
  const sorted = FAULT_NAMES.flatMap((name) => all.filter((heard) => heard.name === name))
  const put = (text: string, mark: string, table: string): string =>
    text.replace(between(mark), (_, before: string, after: string) => `${before}\n${table}\n\n${after}`)
  return put(put(page, MARK.said, saidTable(sorted)), MARK.made, madeTable(sorted))
}

/** What the page's tables say was heard. */
export function heardOf(page: string): { name: string; side: string; heard: SideHeard }[] {
  const table = between(MARK.said).exec(page)?.[0] ?? ''
  return [...table.matchAll(/^\| `([\w-]+)` \| (\w+) \| (.*) \|$/gm)].map(([, name = '', side = '', cells = '']) => {
    const texts = cells.split(' | ')
    const wordsIn = (text = ''): string[] => [...text.matchAll(/`([^`]+)`/g)].map(([, word = '']) => word)
    const words = Object.fromEntries(
      READERS.map((reader, at) => [reader, wordsIn(texts[at])]),
    ) as unknown as SideHeard['words']
    const [, seconds, reader] = /^([\d.]+) s, (\w+)$/.exec(texts.at(-1) ?? '') ?? []
    return { name, side, heard: { words, seconds: reader === undefined ? {} : { [reader]: Number(seconds) } } }
  })
}
