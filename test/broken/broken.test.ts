// broken.test.ts - `npm run test:broken`: breaks networks in eighteen ways, and records what each reader reports on both sides and how
// soon. The reports are in build/broken; with WEFT_TABLE=1 the tables of docs/broken-networks.md are made from them.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, expect, it, vi } from 'vitest'
import {
  FAULT_NAMES,
  FAULTS,
  openNetwork,
  READERS,
  type Expected,
  type Fault,
  type Member,
  type Network,
  type Reader,
} from '../../lab/broken.ts'
import { EVENT_MS, packageRoot } from '../../lab/lab.ts'
import {
  firstOf,
  mustOf,
  SIDES,
  SOON_S,
  withTables,
  wrongOf,
  type Reports,
  type Side,
  type SideReports,
} from '../support/broken-table.ts'
import { HOSTS, lackOf, needs } from '../support/needs.ts'
import { HEALTHZ_PORT, startReaders, type Readers } from '../support/readers.ts'

needs(HOSTS, 'prometheus', 'curl')

/** The time in ms for which readers are run again until they report what is expected. */
const LOOK_MS = 20_000
const GREEN_MS = 240_000
/** All readers except the one that measures for seconds and fills the link. */
const QUICK = READERS.filter((reader) => reader !== 'bench')
/** The words that are reported for a while after their cause is gone. */
const PAST: readonly string[] = ['loss', 'repairs', 'peer-lossy', 'packets-dropped']
const OUTPUT = join(packageRoot, 'build/broken')
const PAGE = join(packageRoot, 'docs/broken-networks.md')

let network: Network | undefined
afterEach(async () => {
  await network?.close()
  network = undefined
})

afterAll(() => {
  if (!process.env['WEFT_TABLE']) return
  const files = FAULT_NAMES.map((name) => join(OUTPUT, `${name}.json`)).filter((file) => existsSync(file))
  const all = files.map((file) => JSON.parse(readFileSync(file, 'utf8')) as Reports)
  writeFileSync(PAGE, withTables(readFileSync(PAGE, 'utf8'), all))
})

interface Looking {
  readonly readers: Readers
  readonly expected: Expected
  readonly me: Member
  readonly other: Member
  readonly began: { readonly at: number; readonly date: number }
  /** Words of PAST that were reported already. */
  readonly before: ReadonlySet<string>
}

/** Runs all readers on a host until each has reported what is expected, and once more. */
async function readAll({
  readers,
  expected,
  me,
  other,
  began,
  before,
}: Looking): Promise<SideReports & { readonly texts: object }> {
  const seconds: Partial<Record<Reader, number>> = {}
  const words = {} as Record<Reader, readonly string[]>
  const texts: Partial<Record<Reader, string>> = {}
  const open = new Set<Reader>(READERS.filter((reader) => mustOf(expected[reader]).length > 0))
  const read = async (reader: Reader): Promise<void> => {
    const said = await readers.read(me, other, reader, began.date)
    words[reader] = said.words.filter((word) => !before.has(word))
    texts[reader] = said.text
    const must = mustOf(expected[reader])
    const { [reader]: reports } = words
    if (must.some((word) => reports.includes(word))) seconds[reader] ??= (performance.now() - began.at) / 1000
    if (must.every((word) => reports.includes(word))) open.delete(reader)
  }
  while (performance.now() - began.at < LOOK_MS && QUICK.some((reader) => open.has(reader)))
    for (const reader of QUICK) if (open.has(reader)) await read(reader)
  await read('bench')
  for (const reader of QUICK) await read(reader)
  return { words, seconds, texts }
}

/** True if any of a few packets between two containers is answered. */
const arePodsTogether = async (one: Member, other: Member): Promise<boolean> =>
  (await one.pod.run(['ping', '-c', '3', '-i', '0.2', '-W', '2', other.pod.address])).code === 0

it.each(FAULT_NAMES)(
  'reports %s',
  async (name) => {
    const fault: Fault = FAULTS[name]
    const lacks = lackOf(...(fault.needs ?? []))
    if (lacks !== undefined) throw new Error(lacks)
    network = await openNetwork(fault, {
      hosts: 3,
      args: ['--probe-interval', '10', '--healthz-port', String(HEALTHZ_PORT), '--status-ip', '0.0.0.0'],
    })
    const { last, members } = network
    const first = members[0] as Member
    const readers = await startReaders(network, [first, last])
    const ends = { there: [last, first], here: [first, last] } as const
    const areWell = async (which: readonly Reader[], but: readonly string[] = []): Promise<void> => {
      for (const side of SIDES)
        for (const reader of which) {
          const { words, text } = await readers.read(...ends[side], reader, Date.now())
          expect({ [`${reader} ${side}`]: words.filter((word) => !but.includes(word)) }, text).toEqual({
            [`${reader} ${side}`]: [],
          })
        }
    }
    // weftd watches for a duplicate node for minutes after it has found one.
    const becomeWell = (which: readonly Reader[]): Promise<void> =>
      vi.waitFor(() => areWell(which, PAST), { timeout: GREEN_MS, interval: 500 })
    // A probe is lost if it arrives before the lease of its sender is known.
    const pastOf = async (side: Side): Promise<ReadonlySet<string>> => {
      const said = await Promise.all(QUICK.map((reader) => readers.read(...ends[side], reader, Date.now())))
      return new Set(said.flatMap(({ words }) => words.filter((word) => PAST.includes(word))))
    }
    await becomeWell(QUICK)
    const before = { there: await pastOf('there'), here: await pastOf('here') }
    const undo = await fault.make(network)
    const began = { at: performance.now(), date: Date.now() - 1000 }
    const [there, here] = await Promise.all(
      SIDES.map((side) => {
        const [me, other] = ends[side]
        return readAll({ readers, expected: fault[side], me, other, began, before: before[side] })
      }),
    )
    if (!there || !here) throw new Error('a side has no reports')
    const isCutOff = !(await arePodsTogether(first, last))
    const undone = performance.now()
    await undo()
    await becomeWell(['status', 'doctor'])
    const reports = { name, greenSeconds: (performance.now() - undone) / 1000, there, here }
    mkdirSync(OUTPUT, { recursive: true })
    writeFileSync(join(OUTPUT, `${name}.json`), JSON.stringify(reports, undefined, 1))
    const wrong = Object.fromEntries(SIDES.map((side) => [side, wrongOf(fault[side], reports[side].words)]))
    expect(wrong).toEqual({ there: [], here: [] })
    // The worst result is a loss of all packets between containers while the doctor finds nothing on either side.
    const found = SIDES.flatMap((side) => reports[side].words.doctor)
    if (isCutOff) expect(found, 'containers are cut off').not.toEqual([])
    for (const side of SIDES) expect(firstOf(reports[side])?.[1] ?? 0).toBeLessThan(SOON_S)
  },
  10 * EVENT_MS,
)
