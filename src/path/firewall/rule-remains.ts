// rule-remains.ts - finds what flannel left in the firewall, whichever tool put it there, and removes it.

import { readFile } from 'node:fs/promises'
import { describeError, isWeftError } from '../../base/errors.ts'
import { notInstalled, type Run } from '../../host/command.ts'
import { isIptables162, isNfTables, WAIT } from '../../host/iptables.ts'
import type { Remains } from '../remains.ts'
import {
  findFlannelNftRules,
  findFlannelRules,
  FLANNEL_CHAINS,
  flannelNetworks,
  readTables,
  removalInput,
  WORDS,
  type Tables,
} from './flannel-rules.ts'

interface Search {
  readonly remains: readonly Remains[]
  /** Places where rules may be that no tool here can show. */
  readonly unseen: readonly string[]
}

/** One of the iptables commands, without its -save, and the arguments by which its -restore waits for the lock. */
interface Tool {
  readonly name: string
  readonly wait: readonly string[]
}

interface Listing extends Tool {
  readonly tables: Tables
}

const TABLES = FLANNEL_CHAINS.map(({ table }) => table)

/**
 * Rules and chains of iptables, of both families and both kinds: of `networks`, and with `discover` also of those that rules
 * of flannel's name.
 */
export async function findIptablesRemains(run: Run, networks: ReadonlySet<string>, discover: boolean): Promise<Search> {
  const listings: Listing[] = []
  const remains: Remains[] = []
  const unseen: string[] = []
  for (const { nft: family, iptables: command } of Object.values(WORDS)) {
    // The kinds have names of their own since 1.8; what the plain command is, it says. Before there was one, the legacy one.
    const version = await versionOf(run, command)
    const plain = { name: command, wait: isIptables162(version) ? WAIT : [] }
    const isNft = isNfTables(version)
    const legacy = await list(run, [{ name: `${command}-legacy`, wait: WAIT }, ...(isNft ? [] : [plain])], unseen)
    if (legacy) listings.push(legacy)
    else unseen.push(...(await unseenTables(family, command)))
    const nft = await list(run, [{ name: `${command}-nft`, wait: WAIT }, ...(isNft ? [plain] : [])], unseen)
    if (nft) listings.push(nft)
    else remains.push(...(await findByNft(run, family, discover ? undefined : networks)))
  }
  const all = listings.flatMap(({ tables }) => TABLES.flatMap((table) => tables.get(table) ?? []))
  const known = new Set([...networks, ...(discover ? flannelNetworks(all) : [])])
  remains.unshift(...listings.flatMap((listing) => remainsIn(run, listing, known)))
  return { remains, unseen }
}

function remainsIn(run: Run, { name, wait, tables }: Listing, networks: ReadonlySet<string>): Remains[] {
  const found = new Map(
    TABLES.map((table) => [table, findFlannelRules(table, tables.get(table) ?? [], networks)] as const),
  )
  const input = removalInput(found)
  if (input === '') return []
  const label = (table: string, rule: string): string => `${name} ${table}: ${rule}`
  return [
    {
      things: [...found].flatMap(([table, { rules }]) => rules.map((rule) => label(table, rule))),
      stays: [...found].flatMap(([table, { stays }]) =>
        stays.map((rule) => `a chain of flannel's, now empty, since another rule jumps to it: ${label(table, rule)}`),
      ),
      remove: async () => void (await run(`${name}-restore`, ['--noflush', ...wait], { input, patient: true })),
    },
  ]
}

/** The version that a command prints; empty when it is not installed. */
async function versionOf(run: Run, command: string): Promise<string> {
  try {
    return await run(command, ['--version'])
  } catch (error) {
    if (notInstalled(error)) return ''
    throw error
  }
}

/** The listing of the first tool that is installed. Without -t no table is made that was not there. */
async function list(run: Run, tools: readonly Tool[], unseen: string[]): Promise<Listing | undefined> {
  for (const tool of tools) {
    try {
      return { ...tool, tables: readTables(await run(`${tool.name}-save`, [])) }
    } catch (error) {
      if (notInstalled(error)) continue
      if (!isWeftError(error)) throw error
      unseen.push(describeError(error))
      return { ...tool, tables: new Map() }
    }
  }
  return undefined
}

/** Says which tables of the legacy kind this network namespace has (net/netfilter/x_tables.c), when no tool can show them. */
async function unseenTables(family: string, command: string): Promise<string[]> {
  const names = await readFile(`/proc/net/${family}_tables_names`, 'utf8').catch(() => '') // the kernel has no such kind
  const tables = TABLES.filter((table) => names.split('\n').includes(table))
  const where = `the legacy kind of ${command} has tables here (${tables.join(', ')})`
  return tables.length === 0 ? [] : [`${where}, and ${command}-legacy, which can show their rules, is not installed`]
}

/** Finds what iptables-nft made, on a host without it. */
async function findByNft(run: Run, family: string, networks?: ReadonlySet<string>): Promise<Remains[]> {
  const remains: Remains[] = []
  for (const table of (await nftTables(run, family)).filter((name) => (TABLES as string[]).includes(name))) {
    const { rules, removal, stays } = findFlannelNftRules(
      family,
      table,
      await run('nft', ['-j', '-a', 'list', 'table', family, table]),
      networks,
    )
    if (removal.length === 0) continue
    const label = (rule: string): string => `nft ${family} ${table}: ${rule}`
    const input = removal.map((line) => `${line}\n`).join('')
    remains.push({
      things: rules.map(label),
      stays: stays.map((rule) => `a chain of flannel's, now empty, since another rule jumps to it: ${label(rule)}`),
      remove: async () => void (await run('nft', ['-f', '-'], { input })),
    })
  }
  return remains
}

/** The tables of the nftables mode. */
export async function findNftablesRemains(run: Run): Promise<readonly Remains[]> {
  const remains: Remains[] = []
  for (const { nft: family, table: name } of Object.values(WORDS)) {
    if (!(await nftTables(run, family)).includes(name)) continue
    remains.push({
      things: [`nft: table ${family} ${name}`],
      stays: [],
      remove: async () => void (await run('nft', ['delete', 'table', family, name])),
    })
  }
  return remains
}

/** The names of a family's tables; none where there is no nft, or no nftables in the kernel. */
async function nftTables(run: Run, family: string): Promise<string[]> {
  try {
    const text = await run('nft', ['list', 'tables', family])
    return text.split('\n').flatMap((line) => (line.startsWith('table ') ? line.split(' ').slice(2) : []))
  } catch (error) {
    if (isWeftError(error, 'COMMAND')) return []
    throw error
  }
}
