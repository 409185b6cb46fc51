// backend-options.ts - reads the options of the `Backend` object, each by its name in any case, with a clear refusal.

import { WeftError } from '../errors.ts'
import { Secret } from '../secret.ts'

export interface BackendOptions {
  /** A whole number from 0 to `most`. */
  readonly number: (name: string, fallback: number, most: number) => number
  readonly flag: (name: string) => boolean
  readonly text: (name: string) => string
  /** A text that may be secret, or have a part that is. */
  readonly secret: (name: string) => Secret
  /** One of a few words; undefined where it is left out. */
  readonly word: <W extends string>(name: string, words: readonly W[]) => W | undefined
  /** Throws WeftError CONFIG about an option's value. */
  readonly refuse: (name: string, remedy: string) => never
}

/** `backend` has its names in lower case, as network-config.ts reads it. All methods throw WeftError CONFIG. */
export function backendOptions(backend: Readonly<Record<string, unknown>>): BackendOptions {
  const given = (name: string): unknown => backend[name.toLowerCase()] ?? undefined
  function refuse(name: string, remedy: string): never {
    throw new WeftError('CONFIG', `Backend.${name} is ${JSON.stringify(given(name))}`, { remedy })
  }
  return {
    number(name, fallback, most) {
      const value = given(name) ?? fallback
      if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= most) return value
      return refuse(name, `give it a whole number from 0 to ${most}`)
    },
    flag(name) {
      const value = given(name) ?? false
      return typeof value === 'boolean' ? value : refuse(name, 'give it true or false')
    },
    text(name) {
      const value = given(name) ?? ''
      return typeof value === 'string' ? value : refuse(name, 'give it a text')
    },
    secret(name) {
      const value = given(name) ?? ''
      if (value instanceof Secret) return value
      return typeof value === 'string' ? new Secret(value, (text) => text) : refuse(name, 'give it a text')
    },
    word(name, words) {
      const value = given(name)
      if (value === undefined) return undefined
      return words.find((word) => word === value) ?? refuse(name, `give it one of ${words.join(', ')}, or leave it out`)
    },
    refuse,
  }
}
