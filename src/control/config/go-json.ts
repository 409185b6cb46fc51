// go-json.ts - reads JSON objects as Go's encoding/json reads them into a struct: the case of a key does not matter,
// and if a key occurs twice, its last value applies.

import { parseJson } from './hidden.ts'

/**
 * Parses a JSON object and returns its members by lower-case key. `parse` replaces JSON.parse. Throws an Error that
 * says why `text` is not an object.
 */
export function readGoJsonObject(text: string, parse = parseJson): ReadonlyMap<string, unknown> {
  const value = parse(text)
  if (value === null) return new Map() // Go leaves the struct as it was
  return goJsonMembers(value) ?? fail(`it is ${jsonKind(value)} instead of an object`)
}

/** Returns the members of a JSON object by lower-case key; undefined if `value` is not an object. */
export function goJsonMembers(value: unknown): ReadonlyMap<string, unknown> | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined
  return new Map(Object.entries(value).map(([key, member]) => [key.toLowerCase(), member]))
}

/**
 * Returns the name that Go's error messages use for the type of a JSON value, such as `number`. The value must not be
 * null.
 */
export function jsonKind(value: unknown): string {
  if (Array.isArray(value)) return 'array'
  return typeof value === 'boolean' ? 'bool' : typeof value
}

function fail(message: string): never {
  throw new Error(message)
}
