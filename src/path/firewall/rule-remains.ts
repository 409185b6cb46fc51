// rule-remains.ts - finds and removes the firewall rules of flannel that are on this host, whether iptables or nft set
// them.

import { describeError, isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { notInstalled, type Run } from '../../host/command.ts'
import { isIptables162, isNfTables, WAIT } from '../../host/iptables.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { FAMILIES } from '../../net/address.ts'
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
  /** Descriptions of the tables whose rules no installed tool can show. */
  readonly unseen: readonly string[]
}

/**
 * An iptables command, to whose name `-save` and `-restore` are appended. `wait` has the arguments with which
 * `-restore` waits for the lock of iptables.
 */
interface Tool {
  readonly name: string
  readonly wait: readonly string[]
}

interface Listing extends Tool {
  readonly tables: Tables
}

const TABLES = FLANNEL_CHAINS.map(({ table }) => table)

/**
 * Finds the rules and chains of flannel for `networks`, in legacy iptables and iptables-nft and in both families. If
 * `discover` is true, also finds the rules for other networks that flannel's own rules name.
 */
export async function findIptablesRemains(
  run: Run,
  kernel: HostKernel,
  networks: ReadonlySet<string>,
  discover: boolean,
): Promise<Search> {
  const listings: Listing[] = []
  const remains: Remains[] = []
  const unseen: string[] = []
  const present = await kernel.nftTables()
  for (const of of FAMILIES) {
    const { nft: family, iptables: command } = WORDS[of]
    const hasNft =
      present?.some((table) => table.family === family && TABLES.some((name) => name === table.name)) ?? true
    const legacyNames = await kernel.legacyTables(of)
    const hasLegacy = legacyNames?.some((each) => TABLES.some((name) => name === each)) ?? true
    if (!hasNft && !hasLegacy) continue
    if (hasLegacy) {
      const legacy = await listKind(run, command, 'legacy', unseen)
      if (legacy) listings.push(legacy)
      else unseen.push(...unseenTables(legacyNames ?? [], command))
    }
    if (!hasNft) continue
    const nft = await listKind(run, command, 'nft', unseen)
    if (nft) listings.push(nft)
    else remains.push(...(await findByNft(run, family, present !== undefined, unseen, discover ? undefined : networks)))
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

/** Returns the version that a command prints; an empty text if the command is not installed. */
async function versionOf(run: Run, command: string): Promise<string> {
  try {
    return await run(command, ['--version'])
  } catch (error) {
    if (notInstalled(error)) return ''
    throw error
  }
}

/**
 * Returns the rules of legacy iptables or of iptables-nft; undefined if no command for them is installed. Since version
 * 1.8 legacy iptables and iptables-nft have separate commands, and `iptables --version` prints which of the two the
 * command `iptables` is. Versions before 1.8 are always legacy iptables.
 */
async function listKind(
  run: Run,
  command: string,
  kind: 'legacy' | 'nft',
  unseen: string[],
): Promise<Listing | undefined> {
  const found = await list(run, { name: `${command}-${kind}`, wait: WAIT }, unseen)
  if (found) return found
  const version = await versionOf(run, command)
  if (isNfTables(version) !== (kind === 'nft')) return undefined
  return list(run, { name: command, wait: isIptables162(version) ? WAIT : [] }, unseen)
}

/**
 * Returns the rules that a tool lists; undefined if it is not installed. The command has no option -t, because with -t
 * legacy iptables would create a missing table.
 */
async function list(run: Run, tool: Tool, unseen: string[]): Promise<Listing | undefined> {
  try {
    return { ...tool, tables: readTables(await run(`${tool.name}-save`, [])) }
  } catch (error) {
    if (notInstalled(error)) return undefined
    if (!isWeftError(error)) throw error
    unseen.push(describeError(error))
    return { ...tool, tables: new Map() }
  }
}

/**
 * Describes the legacy tables of this network namespace, whose names the kernel lists (net/netfilter/x_tables.c), for
 * hosts without a tool that can show the tables' rules.
 */
function unseenTables(names: readonly string[], command: string): string[] {
  const tables = TABLES.filter((table) => names.includes(table))
  const where = `the legacy kind of ${command} has tables here (${tables.join(', ')})`
  return tables.length === 0 ? [] : [`${where}, and ${command}-legacy, which can show their rules, is not installed`]
}

/**
 * Finds the rules that iptables-nft set, with the program nft, on a host where iptables is not installed. `isThere`
 * is true if the kernel has such tables. If nft then cannot list the tables, adds the reason to `unseen`.
 */
async function findByNft(
  run: Run,
  family: string,
  isThere: boolean,
  unseen: string[],
  networks?: ReadonlySet<string>,
): Promise<Remains[]> {
  const remains: Remains[] = []
  const names = await nftTables(run, family, (why) => void (isThere && unseen.push(why)))
  for (const table of names.filter((name) => (TABLES as string[]).includes(name))) {
    const json = await run('nft', ['-j', '-a', 'list', 'table', family, table])
    const { rules, removal, stays } = foundIn(json, family, table, networks)
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

/** Calls findFlannelNftRules. Throws WeftError COMMAND if the listing is not complete. */
function foundIn(
  json: string,
  family: string,
  table: string,
  networks?: ReadonlySet<string>,
): ReturnType<typeof findFlannelNftRules> {
  try {
    return findFlannelNftRules(family, table, json, networks)
  } catch (error) {
    throw new WeftError('COMMAND', `nft did not print the whole table ${family} ${table}: ${messageOf(error)}`, {
      remedy: 'run `nft -j list ruleset`; if its output is not valid JSON, install another version of nft',
      cause: error,
    })
  }
}

/**
 * Finds the nftables tables that weftd or flanneld set in nftables mode. If the kernel lists its tables, a table is
 * also found if nft, which `remove` needs, is not installed.
 */
export async function findNftablesRemains(run: Run, kernel: HostKernel): Promise<readonly Remains[]> {
  const remains: Remains[] = []
  const present = await kernel.nftTables()
  for (const { nft: family, table: name } of Object.values(WORDS)) {
    const isThere = present
      ? present.some((table) => table.family === family && table.name === name)
      : (await nftTables(run, family)).includes(name)
    if (!isThere) continue
    remains.push({
      things: [`nft: table ${family} ${name}`],
      stays: [],
      remove: async () => void (await run('nft', ['delete', 'table', family, name])),
    })
  }
  return remains
}

/**
 * Returns the names of a family's nftables tables. If nft is not installed or fails, for example because the kernel
 * lacks nftables, calls `onFailure` with the reason and returns an empty list.
 */
async function nftTables(run: Run, family: string, onFailure = (_why: string): void => {}): Promise<string[]> {
  try {
    const text = await run('nft', ['list', 'tables', family])
    return text.split('\n').flatMap((line) => (line.startsWith('table ') ? line.split(' ').slice(2) : []))
  } catch (error) {
    if (!isWeftError(error, 'COMMAND')) throw error
    onFailure(describeError(error))
    return []
  }
}
