// keys.ts - the keys that a network configuration may have: of its head one table, of `Backend` that of the backends (path/catalog.ts);
// the ones that nobody reads, and the same as a JSON Schema.

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
  /** A number's range. */
  readonly least?: number
  readonly most?: number
  /** What it is, and what holds without it. */
  readonly does: string
}

/** The keys of the head, as upstream has them (pkg/subnet/config.go). */
export const HEAD = {
  Network: {
    type: 'string',
    does: 'The IPv4 network that the subnets of all nodes are parts of, such as 10.5.0.0/16.',
  },
  SubnetLen: {
    type: 'integer',
    least: 0,
    most: 30,
    does: 'The prefix length of the subnet of a node; 24 where it is left out, or 0, and the network is large enough.',
  },
  SubnetMin: {
    type: 'string',
    does: 'The first subnet that a node may get; the second of the network where it is left out.',
  },
  SubnetMax: {
    type: 'string',
    does: 'The last subnet that a node may get; the last of the network where it is left out.',
  },
  IPv6Network: { type: 'string', does: 'The IPv6 network, such as fd00:5::/48; asked for where EnableIPv6 is true.' },
  IPv6SubnetLen: {
    type: 'integer',
    least: 0,
    most: 126,
    does: 'As SubnetLen, of IPv6; 64 where it is left out.',
  },
  IPv6SubnetMin: { type: 'string', does: 'As SubnetMin, of IPv6.' },
  IPv6SubnetMax: { type: 'string', does: 'As SubnetMax, of IPv6.' },
  EnableIPv4: { type: 'boolean', does: 'False for a network of IPv6 alone; true where it is left out.' },
  EnableIPv6: { type: 'boolean', does: 'True for a network that has IPv6.' },
  EnableNFTables: { type: 'boolean', does: 'True for firewall rules by nftables instead of iptables.' },
  Backend: { type: 'object', does: 'How packets travel between the nodes; udp where it is left out.' },
} as const satisfies Readonly<Record<string, Key>>
export type HeadKey = keyof typeof HEAD

const TYPE = 'Type'
const isOption = (option: Option | Options): option is Option => typeof option.kind === 'string'
/** The options of a backend, those of its groups among them. */
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
/** A key as it is shown: it is somebody's text of any length. */
const shown = (key: string): string => JSON.stringify(key.length > 60 ? `${key.slice(0, 60)}...` : key)

/**
 * What of a configuration nobody reads, each as half a sentence that names the word which was meant: `the network configuration has
 * "Bakcend", which nothing reads; did you mean Backend?`. Nothing of a text that is no JSON object, which others refuse.
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

/** An option that stands beside `Backend` instead of in it is one that was meant to be in it. */
function meantBy(key: string): string {
  const inside = Object.keys(KINDS).some((type) => has(namesOf(type as BackendType), key))
  return inside ? '; it belongs into Backend' : meant(key, Object.keys(HEAD))
}

function unknownOptions(backend: unknown): readonly string[] {
  const members = goJsonMembers(backend)
  const given = members?.get('type')
  const type = typeof given === 'string' ? given.toLowerCase() : ''
  if (!members) return []
  // Of a type that there is not, which others refuse, any option may be meant.
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

/** A property of the schema for an option. */
function schemaOf(option: Option): object {
  switch (option.kind) {
    case 'flag':
      return { type: 'boolean', default: false }
    case 'number':
      return { type: 'integer', minimum: 0, maximum: option.most, default: option.default }
    case 'word':
      return { enum: option.words, ...(option.default === undefined ? {} : { default: option.default }) }
    case 'secret':
      return { type: 'string', ...(option.form ? { pattern: `^$|${option.form.source}` } : {}) }
  }
}

const backendSchema = (type: BackendType): object => ({
  properties: {
    [TYPE]: { const: type },
    ...Object.fromEntries(optionsOf(KINDS[type].options).map((option) => [option.name, schemaOf(option)])),
    ...Object.fromEntries(
      ofWindows(type).map((name) => [name, { description: "Read by flannel's nodes with Windows alone." }]),
    ),
  },
  additionalProperties: false,
})

/**
 * A configuration as a JSON Schema, draft 7, which editors and Helm know. It asks for the names as they are usually written, although
 * a daemon reads them in any case.
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
        properties: { [TYPE]: { enum: types, description: `${DEFAULT_TYPE} where there is no Backend.` } },
        required: [TYPE],
        allOf: types.map((type) => ({
          if: { properties: { [TYPE]: { const: type } }, required: [TYPE] },
          // oxlint-disable-next-line no-thenable -- JSON Schema's word
          then: backendSchema(type),
        })),
      },
    },
    additionalProperties: false,
    anyOf: [{ required: ['Network'] }, { properties: { EnableIPv4: { const: false } }, required: ['IPv6Network'] }],
  }
}
