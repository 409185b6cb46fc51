// plan.ts - predicts the effect of a new network configuration: the keys that change, and the number of nodes that are
// unreachable until weftd has restarted on all nodes.

import { Secret } from '../../base/secret.ts'
import { familiesOf, formatAddress, formatNet, FAMILIES, type Net } from '../../net/address.ts'
import { isBackendType, kindOf, KINDS, outersOf, overheadBy, portOf, PROTOCOL_TEXTS } from '../../path/catalog.ts'
import { readOption } from './backend-options.ts'
import { isRequired, optionsOf } from './keys.ts'
import type { NetworkConfig, SubnetRange } from './network-config.ts'

interface Plan {
  /** One line for each key of the configuration that changes, such as `Backend.Port: 8285 -> 9000`. */
  readonly changes: readonly string[]
  /**
   * The number of nodes that cannot exchange packets with the rest of the nodes until weftd has restarted on all nodes.
   */
  readonly cut: number
  /**
   * Consequences for an operator besides the changed keys, such as a different MTU of the containers or a port to open.
   */
  readonly effects: readonly string[]
}

interface Value {
  readonly key: string
  readonly value: unknown
  readonly isShared: boolean
  /** The default value that applies if the configuration omits the option; undefined if the option is required. */
  readonly usual?: Value['value']
}

const rangeValues = (prefix: string, range: SubnetRange<Net> | undefined): readonly Value[] =>
  [
    [`${prefix}Network`, range && formatNet(range.network)],
    [`${prefix}SubnetLen`, range?.subnetLength],
    [`${prefix}SubnetMin`, range && formatAddress(range.subnetMin)],
    [`${prefix}SubnetMax`, range && formatAddress(range.subnetMax)],
  ].map(([key, value]) => ({ key: String(key), value, isShared: false }))

function valuesOf(config: NetworkConfig): readonly Value[] {
  const { backendType: type, backend, enableNftables } = config
  return [
    ...FAMILIES.flatMap((family) => rangeValues(family === 'ipv4' ? '' : 'IPv6', config[family])),
    { key: 'EnableNFTables', value: enableNftables, isShared: false },
    { key: 'Backend.Type', value: type, isShared: true },
    ...(isBackendType(type) ? optionsOf(KINDS[type].options) : []).map((option) => ({
      key: `Backend.${option.name}`,
      value: readOption(option, backend),
      usual: isRequired(option) ? undefined : readOption(option, {}),
      isShared: option.isShared === true,
    })),
  ]
}

/** Compares two valid network configurations. `published` has the backend type of each node's lease. */
export function planOf(before: NetworkConfig, after: NetworkConfig, published: readonly string[]): Plan {
  const old = new Map(valuesOf(before).map((each) => [each.key, each]))
  const isOtherType = before.backendType !== after.backendType
  // If the backend type changes, equal option names have different meanings. So all options that the new configuration
  // sets count as added.
  const isOwn = (key: string): boolean => isOtherType && key.startsWith('Backend.') && key !== 'Backend.Type'
  const oldValue = ({ key, usual }: Value): Value['value'] => (isOwn(key) ? usual : old.get(key)?.value)
  const changed = valuesOf(after).filter((each) => !isSame(each.value, oldValue(each)))
  // Returns true if the lease type `type` shows that a node already runs the new backend. If the old and the new
  // backend publish the same type, a lease cannot show which of them the node runs.
  const isThere = (type: string): boolean =>
    isOtherType && type !== kindOf(before.backendType)?.published && type === kindOf(after.backendType)?.published
  return {
    changes: changed.map((each) => `${each.key}: ${textOf(oldValue(each))} -> ${textOf(each.value)}`),
    cut: changed.some(({ isShared }) => isShared) ? published.filter((type) => !isThere(type)).length : 0,
    effects: [...mtuEffect(before, after), ...portEffect(before, after)],
  }
}

/**
 * The MTU in bytes of most external interfaces. planOf computes the containers' MTU for this value, to compare two
 * configurations.
 */
const USUAL_MTU = 1500

/**
 * Returns the MTU of the containers if the external interface's MTU is USUAL_MTU; undefined if weft does not know the
 * type of the backend.
 */
function mtuOf({ backendType: type, backend, ...config }: NetworkConfig): number | undefined {
  if (!isBackendType(type)) return undefined
  const option = optionsOf(KINDS[type].options).find(({ name }) => name === 'MTU')
  const underlay = option && readOption(option, backend)
  const kind = kindOf(type)
  const families = familiesOf(config)
  const outers = families.flatMap((family) => outersOf(type, family, backend, families))
  const overheads = outers.map((outer) => kind?.reserved ?? overheadBy(type, outer))
  return (typeof underlay === 'number' && underlay > 0 ? underlay : USUAL_MTU) - Math.max(0, ...overheads)
}

function mtuEffect(before: NetworkConfig, after: NetworkConfig): readonly string[] {
  const [old, now] = [mtuOf(before), mtuOf(after)]
  if (old === undefined || now === undefined || old === now) return []
  const then = now < old ? '; make new containers, or lower the MTU of their bridge' : ''
  return [
    `the MTU of containers changes from ${old} to ${now} bytes, if the external interface has ${USUAL_MTU}${then}`,
  ]
}

function portEffect(before: NetworkConfig, after: NetworkConfig): readonly string[] {
  const textIn = ({ backendType: type, backend, ...config }: NetworkConfig): string | undefined => {
    const families = familiesOf(config)
    const outers = families.flatMap((family) => outersOf(type, family, backend, families))
    const ports = [...new Set(outers.flatMap((outer) => portOf(type, backend, outer) ?? []))]
    if (ports.length > 0) return `UDP ${ports.length === 1 ? 'port' : 'ports'} ${ports.join(' and ')}`
    const outside = kindOf(type)?.outside
    return outside && PROTOCOL_TEXTS[outside.protocol]
  }
  const now = textIn(after)
  return now === undefined || now === textIn(before)
    ? []
    : [`firewalls between the nodes must accept ${now} before weftd restarts`]
}

const isSame = (a: unknown, b: unknown): boolean =>
  a === b || JSON.stringify(identityOf(a)) === JSON.stringify(identityOf(b))

/** Replaces each secret in a value by its keyed hash, so that two values can be compared as texts. */
function identityOf(value: unknown): unknown {
  if (value instanceof Secret) return value.identity
  if (Array.isArray(value)) return value.map(identityOf)
  if (typeof value !== 'object' || value === null) return value ?? null
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, identityOf(each)]))
}

function textOf(value: unknown): string {
  if (value instanceof Secret) return value.isEmpty ? 'none' : value.toString()
  if (value === undefined || value === null || value === '') return 'none'
  if (typeof value === 'string') return value
  return Array.isArray(value) && value.length === 0 ? 'none' : JSON.stringify(value)
}
