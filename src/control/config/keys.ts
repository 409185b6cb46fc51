// keys.ts - the keys that a network configuration may have, as a table and as a JSON Schema, and the search for unknown
// keys. The keys of `Backend` come from the table of backends (path/catalog.ts).

import { meant } from '../../base/nearest.ts'
import {
  DEFAULT_TYPE,
  isBackendType,
  kindOf,
  KINDS,
  type BackendType,
  type Option,
  type Options,
} from '../../path/catalog.ts'
import { goJsonMembers } from './go-json.ts'

interface Key {
  readonly type: 'string' | 'boolean' | 'integer' | 'object'
  readonly least?: number
  readonly most?: number
  /** The description of the key and of its default value, for the JSON Schema. */
  readonly does: string
}

/** The top-level keys of the network configuration, as in flannel's pkg/subnet/config.go. */
export const HEAD = {
  Network: {
    type: 'string',
    does: 'The IPv4 network that the subnets of all nodes are parts of, such as 10.5.0.0/16.',
  },
  SubnetLen: {
    type: 'integer',
    least: 0,
    most: 30,
    does: "The prefix length of a node's subnet. If it is omitted or 0, it is 24 in a network that is large enough.",
  },
  SubnetMin: {
    type: 'string',
    does: 'The first subnet that a node may get; by default the second subnet of the network.',
  },
  SubnetMax: {
    type: 'string',
    does: 'The last subnet that a node may get; by default the last subnet of the network.',
  },
  IPv6Network: { type: 'string', does: 'The IPv6 network, such as fd00:5::/48; required if EnableIPv6 is true.' },
  IPv6SubnetLen: {
    type: 'integer',
    least: 0,
    most: 126,
    does: "The prefix length of a node's IPv6 subnet; by default 64.",
  },
  IPv6SubnetMin: { type: 'string', does: 'The first IPv6 subnet that a node may get.' },
  IPv6SubnetMax: { type: 'string', does: 'The last IPv6 subnet that a node may get.' },
  EnableIPv4: { type: 'boolean', does: 'False for an IPv6-only network; by default true.' },
  EnableIPv6: { type: 'boolean', does: 'True for an IPv6 or dual-stack network.' },
  EnableNFTables: { type: 'boolean', does: 'True if weft sets its firewall rules with nftables instead of iptables.' },
  Backend: { type: 'object', does: 'The backend that carries packets between nodes; by default udp.' },
} as const satisfies Readonly<Record<string, Key>>
export type HeadKey = keyof typeof HEAD

const TYPE = 'Type'
const isOption = (option: Option | Options): option is Option => typeof option.kind === 'string'
/** Lists the options of a backend type, including the options in groups. */
export const optionsOf = (options: Options): readonly Option[] =>
  Object.values(options).flatMap((option) => (isOption(option) ? [option] : optionsOf(option)))

const ofWindows = (type: BackendType): readonly string[] => kindOf(type)?.ofWindows ?? []

const namesOf = (type: BackendType): readonly string[] => [
  TYPE,
  ...optionsOf(KINDS[type].options).map(({ name }) => name),
  ...ofWindows(type),
]

const has = (names: readonly string[], key: string): boolean =>
  names.some((name) => name.toLowerCase() === key.toLowerCase())
/**
 * Formats a key of the configuration for a message: quoted, escaped and cut to 60 characters, because the key is
 * untrusted text.
 */
const shown = (key: string): string => JSON.stringify(key.length > 60 ? `${key.slice(0, 60)}...` : key)

/**
 * Lists the keys of a configuration that neither flannel nor weft reads. Each result is a clause for a warning, with
 * the key that was probably meant: `the network configuration has "Bakcend", which nothing reads; did you mean
 * Backend?`. Returns an empty list if the text is not a JSON object; parseNetworkConfig refuses a text that is not a
 * JSON object.
 */
export function unknownKeys(text: string): readonly string[] {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return []
  }
  if (!goJsonMembers(value)) return []
  const head = Object.keys(HEAD)
  const unknown = Object.keys(value as object)
    .filter((key) => !has(head, key))
    .map((key) => `the network configuration has ${shown(key)}, which nothing reads${meantBy(key)}`)
  const [, backend] = Object.entries(value as object).findLast(([key]) => key.toLowerCase() === 'backend') ?? []
  return [...unknown, ...unknownOptions(backend)]
}

/** Returns a hint for an unknown top-level key of the configuration, for example that the key belongs in `Backend`. */
function meantBy(key: string): string {
  const inside = Object.keys(KINDS).some((type) => has(namesOf(type as BackendType), key))
  return inside ? '; it belongs into Backend' : meant(key, Object.keys(HEAD))
}

function unknownOptions(backend: unknown): readonly string[] {
  const members = goJsonMembers(backend)
  const given = members?.get('type')
  const type = typeof given === 'string' ? given.toLowerCase() : ''
  if (!members) return []
  // If the backend type is unknown, accept the option names of all backend types here, because parseNetworkConfig
  // refuses the unknown type.
  const names = isBackendType(type) ? namesOf(type) : (Object.keys(KINDS) as BackendType[]).flatMap(namesOf)
  return Object.keys(backend as object)
    .filter((key) => !has(names, key))
    .map((key) => {
      const others = Object.keys(KINDS).filter((other) => has(namesOf(other as BackendType), key))
      const hint = has(Object.keys(HEAD), key)
        ? '; it belongs beside Backend'
        : others.length > 0
          ? `; it is an option of ${others.join(', ')}`
          : meant(key, names)
      return `Backend has ${shown(key)}, which ${isBackendType(type) ? `${type} does not read` : 'nothing reads'}${hint}`
    })
}

function schemaOf(option: Option): object {
  switch (option.kind) {
    case 'flag':
      return { type: 'boolean', default: false }
    case 'number':
      return { type: 'integer', minimum: 0, maximum: option.most, default: option.default }
    case 'word':
      return { enum: option.words, ...(option.default === undefined ? {} : { default: option.default }) }
    case 'secret':
      if (!option.form) return { type: 'string' }
      return { type: 'string', pattern: option.isRequired ? option.form.source : `^$|${option.form.source}` }
    case 'text':
      return {
        type: 'string',
        pattern: option.default === undefined && !option.isRequired ? `^$|${option.form.source}` : option.form.source,
        ...(option.default === undefined ? {} : { default: option.default }),
      }
    case 'texts': {
      const text = { type: 'string', pattern: option.form.source }
      return { anyOf: [text, { type: 'array', items: text, minItems: 1 }] }
    }
    case 'object':
      return { type: option.orText ? ['object', 'string'] : 'object' }
  }
}

const backendSchema = (type: BackendType): object => ({
  properties: {
    [TYPE]: { const: type },
    ...Object.fromEntries(optionsOf(KINDS[type].options).map((option) => [option.name, schemaOf(option)])),
    ...Object.fromEntries(
      ofWindows(type).map((name) => [name, { description: 'Only flannel on Windows nodes reads this option.' }]),
    ),
  },
  ...requiredOf(type),
  additionalProperties: false,
})

export const isRequired = (option: Option): boolean =>
  (option.kind === 'text' || option.kind === 'secret') && option.isRequired === true

function requiredOf(type: BackendType): object {
  const required = optionsOf(KINDS[type].options).filter(isRequired)
  return required.length > 0 ? { required: required.map(({ name }) => name) } : {}
}

/** Returns a JSON Schema that accepts only objects whose member `key` is `value`. */
const is = (key: HeadKey, value: boolean): object => ({ properties: { [key]: { const: value } }, required: [key] })

/**
 * Returns the JSON Schema (draft 7, which editors and Helm support) of a network configuration. The schema accepts each
 * key only as documented (`SubnetLen`), although the daemon ignores case.
 */
export function configSchema(): object {
  const types = Object.keys(KINDS) as BackendType[]
  const properties = Object.fromEntries(
    Object.entries<Key>(HEAD).map(([name, { type, least, most, does }]) => [
      name,
      {
        type,
        description: does,
        ...(least === undefined ? {} : { minimum: least }),
        ...(most === undefined ? {} : { maximum: most }),
      },
    ]),
  )
  return {
    $schema: 'http://json-schema.org/draft-07/schema#',
    title: 'net-conf.json',
    description: 'The network configuration of weft and of flannel.',
    type: 'object',
    properties: {
      ...properties,
      Backend: {
        ...properties['Backend'],
        properties: { [TYPE]: { enum: types, description: `The backend; by default ${DEFAULT_TYPE}.` } },
        required: [TYPE],
        allOf: types.map((type) => ({
          if: { properties: { [TYPE]: { const: type } }, required: [TYPE] },
          // oxlint-disable-next-line no-thenable -- JSON Schema's word
          then: backendSchema(type),
        })),
      },
    },
    additionalProperties: false,
    // oxlint-disable no-thenable -- `then` is a keyword of JSON Schema
    allOf: [
      { if: is('EnableIPv4', false), then: is('EnableIPv6', true), else: { required: ['Network'] } },
      { if: is('EnableIPv6', true), then: { required: ['IPv6Network'] } },
    ],
    // oxlint-enable no-thenable
  }
}
