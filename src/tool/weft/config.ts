// config.ts - `weft config`: shows, writes and checks the network configuration in the store.

import { readFile } from 'node:fs/promises'
import { text as textOf } from 'node:stream/consumers'
import { describeError, isWeftError, messageOf, WeftError } from '../../base/errors.ts'
import { jsonLine, printable, printableLines } from '../../base/text.ts'
import { checkedConfig } from '../../control/config/check.ts'
import { withoutSecrets } from '../../control/config/hidden.ts'
import { configSchema, unknownKeys } from '../../control/config/keys.ts'
import type { NetworkConfig, SubnetRange } from '../../control/config/network-config.ts'
import { planOf } from '../../control/config/plan.ts'
import { isCompatible } from '../../control/lease/allocate.ts'
import { sourceOf } from '../../control/lease/decode.ts'
import { parseLeaseKey } from '../../control/lease/lease.ts'
import type { Entry } from '../../control/lease/subnet-manager.ts'
import type { Store } from '../../control/store/store.ts'
import {
  ADDRESS_BITS,
  FAMILIES,
  familiesOf,
  FAMILY_NAMES,
  familyOf,
  formatAddress,
  formatNet,
  listed,
  netsText,
  onlyOf,
  type Net,
  type Nets,
} from '../../net/address.ts'
import { STORE_FLAGS } from '../../options.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG } from './command.ts'
import { count, type Screen } from './look.ts'
import { withStore } from './store.ts'

const MORE = "Uses the store of this host's daemon unless flags name another store."
const flags = { ...SOCKET_FLAG, ...STORE_FLAGS }

export const configGetCommand = command({
  name: 'config get',
  does: 'print the network configuration in the store',
  more: `${MORE} Prints secrets, such as a WireGuard key, as <hidden>.`,
  flags: {
    'show-secrets': { default: false, help: 'print the configuration exactly as stored, with its secrets' },
    ...flags,
  },
  run: ({ options, screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, signal }) => {
      const text = await store.config(signal)
      screen.write(`${printableLines((options['show-secrets'] ? text : hidden(text)).trimEnd())}\n`)
      return EXIT.ok
    }),
})

/**
 * Returns a configuration's text with its secrets hidden. Throws WeftError CONFIG if the text is not JSON, because weft
 * cannot recognise the secrets in it.
 */
function hidden(text: string): string {
  try {
    return withoutSecrets(text)
  } catch (error) {
    throw new WeftError('CONFIG', `the network configuration is not valid JSON: ${messageOf(error)}`, {
      remedy: 'print the configuration exactly as stored with `weft config get --show-secrets`, and correct the error',
    })
  }
}

/** The maximum number of unknown keys that an error message names. */
const NAMED = 5

/**
 * Parses a configuration. The warnings name the keys that weftd would ignore. Throws WeftError CONFIG if no weftd could
 * start with the configuration. The error also names unknown keys, because a mistyped key may be the cause.
 */
function check(text: string): { readonly config: NetworkConfig; readonly warnings: readonly string[] } {
  try {
    const warnings: string[] = []
    return { config: checkedConfig(text, { warn: (line) => void warnings.push(line) }), warnings }
  } catch (error) {
    const unknown = unknownKeys(text)
    if (!isWeftError(error, 'CONFIG') || unknown.length === 0) throw error
    const message = [error.message, ...unknown.slice(0, NAMED)].join(', and ')
    throw new WeftError('CONFIG', message, { remedy: error.remedy, cause: error })
  }
}

const warningsText = (warnings: readonly string[], { colour }: Screen): string =>
  warnings.map((line) => `${colour('doubtful', printable(line))}\n`).join('')
/**
 * Returns the error for keys that weftd ignores, because they are probably mistyped; undefined if there are no such
 * keys.
 */
function keysError(text: string): WeftError | undefined {
  const unknown = unknownKeys(text)
  if (unknown.length === 0) return undefined
  const more = unknown.length > NAMED ? `, and ${unknown.length - NAMED} more` : ''
  return new WeftError('CONFIG', unknown.slice(0, NAMED).join(', and ') + more, {
    remedy: '`weft config schema` lists all keys',
  })
}

/** Reads a file; `-` means standard input. Throws WeftError USAGE if the file cannot be read. */
async function readText(path: string): Promise<string> {
  try {
    return path === '-' ? await textOf(process.stdin) : await readFile(path, 'utf8')
  } catch (error) {
    throw new WeftError('USAGE', `${path} cannot be read: ${messageOf(error)}`, {
      remedy: 'name a file, or - for standard input',
    })
  }
}

/**
 * Returns true if the configuration allows the subnets of a lease. A lease without a subnet of one family is allowed,
 * because its node will choose a subnet.
 */
const fits = ({ ipv4, ipv6 }: Nets, config: NetworkConfig): boolean =>
  (!ipv4 || (config.ipv4 !== undefined && isCompatible(ipv4, config.ipv4))) &&
  (!ipv6 || (config.ipv6 !== undefined && isCompatible(ipv6, config.ipv6)))

/**
 * Explains what happens to leases that the new configuration does not allow: their nodes lose the subnet of a family,
 * or get other subnets. `unfit` must not be empty.
 */
function unfitError(unfit: readonly Nets[], config: NetworkConfig): WeftError {
  const families = familiesOf(config)
  const isLossAlone = unfit.every(
    (nets) => families.some((family) => nets[family]) && fits(onlyOf(families, nets), config),
  )
  const family = FAMILIES.find((each) => !families.includes(each))
  const [first = {}] = unfit
  if (family && isLossAlone) {
    const name = FAMILY_NAMES[family]
    const net = first[family]
    return new WeftError(
      'CONFIG',
      `it has no ${name}: ${count(unfit.length, 'lease')} would lose the ${name} subnet, such as ${net && formatNet(net)}, and keep the other family`,
      { remedy: `give --force if nothing needs ${name}` },
    )
  }
  return new WeftError('CONFIG', `it does not fit ${count(unfit.length, 'lease')}, such as ${netsText(first)}`, {
    remedy: 'give --force if the nodes with these leases may get other subnets',
  })
}

function describeRange({ network, subnetLength, subnetMin, subnetMax }: SubnetRange<Net>) {
  const size = 1n << BigInt(ADDRESS_BITS[familyOf(network)] - subnetLength)
  return {
    network: formatNet(network),
    subnetLength,
    subnetMin: formatAddress(subnetMin),
    subnetMax: formatAddress(subnetMax),
    nodes: Number((BigInt(subnetMax) - BigInt(subnetMin)) / size) + 1,
  }
}

async function storedConfig(store: Store, signal: AbortSignal): Promise<NetworkConfig | undefined> {
  try {
    return check(await store.config(signal)).config
  } catch (error) {
    if (isWeftError(error, 'CONFIG') || isWeftError(error, 'CONFIG_MISSING')) return undefined
    throw error
  }
}

/**
 * Describes how a new configuration affects the nodes that have a lease. `isCut` is true if the configuration cuts some
 * nodes off from each other.
 */
function planText(
  before: NetworkConfig,
  config: NetworkConfig,
  entries: readonly Entry[],
): { readonly lines: readonly string[]; readonly nodes: string; readonly isCut: boolean } {
  const { changes, cut, effects } = planOf(
    before,
    config,
    entries.map(({ lease }) => lease?.attrs.backendType ?? ''),
  )
  const lines = changes.length === 0 ? [] : [...changes, ...effects]
  if (lines.length === 0 || entries.length === 0) return { lines, nodes: '', isCut: false }
  const all = count(entries.length, 'node')
  if (cut === 0) return { lines, nodes: `each of ${all} applies it when weftd restarts there`, isCut: false }
  const nodes = `${cut} of ${all} will reopen ${cut === 1 ? 'its' : 'their'} data path when weftd restarts there; until all have restarted, nodes with the old configuration and nodes with the new one do not reach each other`
  return { lines, nodes, isCut: true }
}

export const configSetCommand = command({
  name: 'config set',
  args: 'FILE',
  does: 'check a network configuration and write it to the store',
  more: `FILE may be - for standard input. ${MORE} Each daemon uses the new configuration after its next restart. Prints the changes and their effects first. Without --force it refuses a configuration that leases do not fit, that has unknown keys, or with which restarted nodes cannot reach the others. Exits with 1 if it refuses. With --dry-run it stores nothing, and exits with 0 unless the configuration is not valid.`,
  flags: {
    'dry-run': { default: false, help: 'only print the changes, their effects, and what needs --force; store nothing' },
    force: {
      default: false,
      help: 'write it even if leases do not fit it (their nodes get other subnets, or lose those of one family, when they restart), if nodes cannot reach each other until all have restarted, or if it has unknown keys',
    },
    ...flags,
  },
  async run({ options, args: [path = ''], screen, signal: stopping }) {
    const text = await readText(path)
    const { config, warnings } = check(text)
    const isDry = options['dry-run']
    /** Throws `error`, unless --force suppresses it. In a dry run prints the error instead. */
    const refuse = (error: WeftError): void => {
      if (options.force) return
      if (!isDry) throw error
      screen.write(`${screen.colour('doubtful', 'needs --force')}: ${printable(error.message)}\n`)
    }
    const unknown = keysError(text)
    if (unknown) refuse(unknown)
    return withStore(options, screen, stopping, async ({ store, signal }) => {
      const { entries } = await sourceOf(store).list(signal)
      const keys = entries.flatMap(({ key }) => parseLeaseKey(key) ?? [])
      const unfit = keys.filter((nets) => !fits(nets, config))
      if (unfit.length > 0) refuse(unfitError(unfit, config))
      const before = await storedConfig(store, signal)
      const nodes = entries.filter(({ key }) => parseLeaseKey(key))
      const plan = before && planText(before, config, nodes)
      for (const line of plan?.lines ?? []) screen.write(`${printable(line)}\n`)
      if (plan?.isCut && !options.force)
        refuse(
          new WeftError('CONFIG', isDry ? plan.nodes : `nothing was stored: ${plan.nodes}`, {
            remedy: 'give --force, and restart weftd on all nodes soon after each other',
          }),
        )
      else if (plan && plan.nodes !== '') screen.write(`${plan.nodes}\n`)
      if (isDry) {
        screen.write(`nothing was stored\n${warningsText(warnings, screen)}`)
        return EXIT.ok
      }
      await store.setConfig(text.trimEnd(), signal)
      screen.write(`stored; daemons use it when they restart\n${warningsText(warnings, screen)}`)
      return EXIT.ok
    })
  },
})

export const configCheckCommand = command({
  name: 'config check',
  args: '[FILE]',
  does: 'check the network configuration in the store, or in a file',
  more: `FILE may be - for standard input. ${MORE} Exits with 3 if it is not valid.`,
  flags: { ...JSON_FLAG, ...flags },
  async run({ options, args: [path], screen, signal: stopping }) {
    const judge = async (text: string): Promise<number> => {
      try {
        const { config, warnings } = check(text)
        const unknown = keysError(text)
        if (unknown) throw unknown
        const { backendType, backend } = config
        const ranges = listed(config).map(describeRange)
        const [first, ipv6] = ranges
        if (options.json)
          screen.write(jsonLine({ valid: true, ...first, ...(ipv6 ? { ipv6 } : {}), backendType, backend, warnings }))
        else {
          const each = ranges.map(
            ({ network, subnetLength, subnetMin, subnetMax, nodes }) =>
              `${network} in /${subnetLength}, ${subnetMin} to ${subnetMax}, ${count(nodes, 'node')}; `,
          )
          screen.write(
            `${screen.colour('good', 'valid')}: ${each.join('')}${printable(backendType)}\n${warningsText(warnings, screen)}`,
          )
        }
        return EXIT.ok
      } catch (error) {
        if (!isWeftError(error, 'CONFIG')) throw error
        if (options.json) screen.write(jsonLine({ valid: false, problem: describeError(error) }))
        else screen.write(`${screen.colour('bad', 'not valid')}: ${printable(describeError(error))}\n`)
        return EXIT.wrong
      }
    }
    if (path !== undefined) return judge(await readText(path))
    return withStore(options, screen, stopping, async ({ store, signal }) => judge(await store.config(signal)))
  },
})

export const configSchemaCommand = command({
  name: 'config schema',
  does: 'print the JSON Schema of the network configuration, for editors and programs',
  flags: {},
  async run({ screen }) {
    screen.write(`${JSON.stringify(configSchema(), undefined, 2)}\n`)
    return EXIT.ok
  },
})
